//! Append calls on their way from a handler to the relay of their run, within the process that owns the run.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::AppendResults;
use tokio::sync::oneshot;

/// Maximum unread calls of a run. Further calls go through the database.
const MAX_UNREAD: usize = 16;

/// Append calls of one run, in memory. A dropped sender means: ask the database.
#[derive(Default)]
pub(crate) struct AppendInbox(Mutex<InboxState>);

#[derive(Default)]
struct InboxState {
    is_open: bool,
    unread: VecDeque<(Arc<AppendResults>, oneshot::Sender<()>)>,
    /// Calls that the relay has taken, in the order of their results.
    taken: VecDeque<TakenCall>,
}

struct TakenCall {
    last: u64,
    stored: oneshot::Sender<()>,
    /// Repeats a call in flight: after the commit, the database compares the two.
    is_repeated: bool,
}

impl AppendInbox {
    // Consistent after a panic: it changes by one step at a time.
    fn state(&self) -> MutexGuard<'_, InboxState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts calls from now on.
    pub(crate) fn open(&self) {
        self.state().is_open = true;
    }

    /// Puts a call. The receiver gets `()` once the results are in the ledger. `None`: the relay reads no calls.
    pub(crate) fn put(&self, call: Arc<AppendResults>) -> Option<oneshot::Receiver<()>> {
        let mut state = self.state();
        if !state.is_open || state.unread.len() >= MAX_UNREAD {
            return None;
        }
        let (stored, waiting) = oneshot::channel();
        state.unread.push_back((call, stored));
        Some(waiting)
    }

    /// Takes the call that continues after the result `read_through`, of `bytes` up to it. Other calls go through the
    /// database.
    pub(crate) fn take(
        &self,
        attempt: u32,
        read_through: u64,
        bytes: u64,
    ) -> Option<Arc<AppendResults>> {
        let mut state = self.state();
        while let Some((call, stored)) = state.unread.pop_front() {
            let (Some((first, _)), Some((last, _))) = (call.results.first(), call.results.last())
            else {
                continue;
            };
            let (first, last) = (*first, *last);
            let is_next =
                call.attempt == attempt && first == read_through + 1 && bytes <= call.max_bytes;
            let is_in_flight = state.taken.back().is_some_and(|taken| taken.last >= last);
            if is_next || is_in_flight {
                let after = state.taken.partition_point(|taken| taken.last <= last);
                let taken = TakenCall {
                    last,
                    stored,
                    is_repeated: !is_next,
                };
                state.taken.insert(after, taken);
            }
            if is_next {
                return Some(call);
            }
        }
        None
    }

    /// Answers the calls whose results up to `through` are in the ledger.
    pub(crate) fn note_judged(&self, through: u64) {
        let mut state = self.state();
        while let Some(call) = state.taken.pop_front_if(|taken| taken.last <= through) {
            if !call.is_repeated {
                // The handler may have gone.
                let _ = call.stored.send(());
            }
        }
    }

    /// Accepts no more calls; those that were taken still get their answers.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.is_open = false;
        state.unread.clear();
    }

    /// Leaves all calls to the database.
    pub(crate) fn close(&self) {
        self.stop();
        self.state().taken.clear();
    }
}

#[cfg(test)]
mod tests {
    use protocol::id::{RunId, WorkspaceId};
    use store::AuditEntry;
    use uuid::Uuid;

    use super::*;

    fn call(numbers: std::ops::RangeInclusive<u64>) -> Arc<AppendResults> {
        Arc::new(AppendResults {
            run_id: RunId(Uuid::nil()),
            attempt: 1,
            lease: std::time::Duration::from_secs(1),
            results: numbers.map(|number| (number, "{}".to_owned())).collect(),
            digests: Vec::new(),
            max_bytes: 100,
            audit: AuditEntry {
                id: Uuid::nil(),
                workspace: WorkspaceId("w".to_owned()),
                run_id: RunId(Uuid::nil()),
                action: "result",
                resource: String::new(),
                operation: "append",
                allowed: true,
                rule: "".into(),
                interaction_id: None,
                bytes: 0,
                at: 0,
                is_shared: false,
            },
        })
    }

    #[test]
    fn answers_calls_after_their_commit() {
        let inbox = AppendInbox::default();
        assert!(inbox.put(call(1..=2)).is_none(), "not open yet");
        inbox.open();
        let mut first = inbox.put(call(1..=2)).unwrap();
        let mut next = inbox.put(call(3..=3)).unwrap();
        assert_eq!(inbox.take(1, 0, 0).unwrap().results.len(), 2);
        assert_eq!(inbox.take(1, 2, 4).unwrap().results.len(), 1);
        inbox.note_judged(2);
        assert!(first.try_recv().is_ok());
        assert!(next.try_recv().is_err());
        inbox.stop();
        assert!(inbox.put(call(4..=4)).is_none());
        inbox.note_judged(3);
        assert!(next.try_recv().is_ok());
    }

    #[test]
    fn leaves_other_calls_to_the_database() {
        let inbox = AppendInbox::default();
        inbox.open();
        let calls = [1..=1, 1..=1, 4..=4, 2..=2].map(|numbers| inbox.put(call(numbers)).unwrap());
        let [mut first, mut repeated, mut gap, mut large] = calls;
        assert!(inbox.take(1, 0, 0).is_some());
        // None after a gap, and none beyond the limit of bytes.
        assert!(inbox.take(1, 1, 101).is_none());
        let is_pending = |one: &mut oneshot::Receiver<()>| {
            matches!(one.try_recv(), Err(oneshot::error::TryRecvError::Empty))
        };
        assert!(!is_pending(&mut gap) && !is_pending(&mut large));
        // A repeated call waits for the first one.
        assert!(is_pending(&mut repeated) && is_pending(&mut first));
        inbox.note_judged(1);
        assert!(first.try_recv().is_ok());
        assert!(!is_pending(&mut repeated));
        let mut late = inbox.put(call(2..=2)).unwrap();
        inbox.close();
        assert!(!is_pending(&mut late));
    }
}
