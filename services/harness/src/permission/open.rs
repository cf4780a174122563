//! Undecided permissions of a turn, shared by all protocols.

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::FuturesUnordered;

use super::{Permission, PermissionDecider, PermissionDecision};

/// Maximum undecided permissions of one turn. Further requests are refused.
const MAX_OPEN: usize = 32;

/// Undecided permissions of one turn. `Request`: the protocol's own request, which its response refers to.
pub(crate) struct OpenPermissions<Request> {
    deciding: FuturesUnordered<BoxFuture<'static, (u64, PermissionDecision)>>,
    /// Number, request and title of each permission, oldest first.
    open: Vec<(u64, Request, String)>,
    next: u64,
    is_closed: bool,
}

/// A decided permission. The adapter answers each exactly once.
#[derive(Debug, PartialEq)]
pub(crate) struct Decided<Request> {
    pub(crate) request: Request,
    pub(crate) title: String,
    pub(crate) decision: PermissionDecision,
}

impl<Request> OpenPermissions<Request> {
    pub(crate) fn new() -> Self {
        Self {
            deciding: FuturesUnordered::new(),
            open: Vec::new(),
            next: 0,
            is_closed: false,
        }
    }

    /// Starts the decision on a permission. `Some`: decided at once, because the turn stops or too many are open.
    pub(crate) fn ask(
        &mut self,
        request: Request,
        permission: Permission,
        permissions: &PermissionDecider,
    ) -> Option<Decided<Request>> {
        let title = permission.title.clone();
        self.add(request, title, permissions.clone().decide(permission))
    }

    fn add(
        &mut self,
        request: Request,
        title: String,
        deciding: impl Future<Output = PermissionDecision> + Send + 'static,
    ) -> Option<Decided<Request>> {
        let at_once = if self.is_closed {
            Some(PermissionDecision::Cancelled)
        } else {
            (self.open.len() >= MAX_OPEN).then_some(PermissionDecision::TooMany)
        };
        if let Some(decision) = at_once {
            return Some(Decided {
                request,
                title,
                decision,
            });
        }
        // Requests need not be unique: harnesses choose their ids. The number identifies the decision.
        self.next += 1;
        let number = self.next;
        self.deciding
            .push(deciding.map(move |decision| (number, decision)).boxed());
        self.open.push((number, request, title));
        None
    }

    /// Next decision. Pends while none is open. Cancel-safe.
    pub(crate) async fn decided(&mut self) -> Decided<Request> {
        loop {
            let Some((number, decision)) = self.deciding.next().await else {
                // An empty set ends at once; returning would spin the caller's `select!`.
                std::future::pending::<()>().await;
                continue;
            };
            let index = self.open.iter().position(|(open, ..)| *open == number);
            if let Some(index) = index {
                let (_, request, title) = self.open.remove(index);
                return Decided {
                    request,
                    title,
                    decision,
                };
            }
        }
    }

    /// Cancels all open permissions, and every later request.
    pub(crate) fn close(&mut self) -> Vec<Decided<Request>> {
        self.is_closed = true;
        // Dropping a decision ends its wait for the person.
        self.deciding.clear();
        let open = self.open.drain(..);
        open.map(|(_, request, title)| Decided {
            request,
            title,
            decision: PermissionDecision::Cancelled,
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn add(open: &mut OpenPermissions<u32>, request: u32) -> Option<PermissionDecision> {
        let decided = open.add(request, format!("permission {request}"), pending());
        decided.map(|decided| decided.decision)
    }

    #[tokio::test]
    async fn decisions_return_with_their_own_request() {
        let mut open = OpenPermissions::new();
        assert_eq!(add(&mut open, 1), None);
        let allowed = ready(PermissionDecision::Allowed);
        assert_eq!(open.add(2, "second".to_owned(), allowed), None);
        assert_eq!(add(&mut open, 3), None);
        let decided = open.decided().await;
        assert_eq!((decided.request, decided.title.as_str()), (2, "second"));
        assert_eq!(decided.decision, PermissionDecision::Allowed);
    }

    #[test]
    fn closing_cancels_open_and_later_permissions() {
        let mut open = OpenPermissions::new();
        for request in [1, 2] {
            assert_eq!(add(&mut open, request), None);
        }
        let closed = open.close().into_iter();
        let closed: Vec<_> = closed.map(|it| (it.request, it.decision)).collect();
        assert_eq!(
            closed,
            [
                (1, PermissionDecision::Cancelled),
                (2, PermissionDecision::Cancelled)
            ]
        );
        assert_eq!(add(&mut open, 3), Some(PermissionDecision::Cancelled));
        assert!(open.close().is_empty());
    }

    #[test]
    fn refuses_more_open_permissions_than_allowed() {
        let mut open = OpenPermissions::new();
        let added = (0..=32).map(|request| add(&mut open, request));
        let refused: Vec<_> = added.flatten().collect();
        assert_eq!(refused, [PermissionDecision::TooMany]);
    }
}
