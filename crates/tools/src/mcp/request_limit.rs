//! Limits requests that a server sends to the gateway. The SDK spawns a task per request and per response
//! without a limit.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rmcp::model::{JsonRpcMessage, RequestId, ServerNotification};
use rmcp::service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio_util::sync::CancellationToken;

/// Maximum number of unanswered requests of one server. Beyond it the connection is closed.
const WAITING: usize = 64;
/// Reason of that close.
pub(super) const TOO_MANY_REQUESTS: &str = "it was disconnected: it sent more requests than it takes \
                                   answers to; let it read the answers to its own requests";

/// A transport that closes if the peer sends requests without reading the responses.
pub(super) struct BoundedTransport<T> {
    transport: T,
    /// Received requests without a response.
    open: HashSet<RequestId>,
    /// Number of responses being sent.
    sending: Arc<AtomicUsize>,
    overrun: CancellationToken,
}

impl<T> BoundedTransport<T> {
    /// `overrun` is cancelled when the limit is exceeded.
    pub(super) fn new(transport: T, overrun: CancellationToken) -> Self {
        Self {
            transport,
            open: HashSet::new(),
            sending: Arc::default(),
            overrun,
        }
    }

    /// Records a received message. False: close the connection.
    fn note_received(&mut self, message: &RxJsonRpcMessage<RoleClient>) -> bool {
        match message {
            JsonRpcMessage::Request(request) => {
                // A duplicate id starts a second task but would be a single entry.
                let is_new = self.open.insert(request.id.clone());
                is_new && self.open.len() + self.sending.load(Ordering::Relaxed) <= WAITING
            }
            JsonRpcMessage::Notification(notification) => {
                // A cancelled request gets no response.
                if let ServerNotification::CancelledNotification(cancelled) =
                    &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    self.open.remove(id);
                }
                true
            }
            _ => true,
        }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for BoundedTransport<T> {
    type Error = T::Error;

    fn name() -> Cow<'static, str> {
        T::name()
    }

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let answered = match &message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            _ => None,
        };
        let sending = answered.map(|id| {
            self.open.remove(id);
            PendingResponse::begin(&self.sending)
        });
        let sent = self.transport.send(message);
        // The guard moves into the future: a response counts until it is written, or its task is dropped.
        async move {
            let _sending = sending;
            sent.await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        if self.overrun.is_cancelled() {
            return None;
        }
        let message = self.transport.receive().await?;
        if self.note_received(&message) {
            return Some(message);
        }
        self.overrun.cancel();
        None
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.transport.close().await
    }
}

/// Counts a response until it is sent or dropped.
struct PendingResponse(Arc<AtomicUsize>);

impl PendingResponse {
    fn begin(sending: &Arc<AtomicUsize>) -> Self {
        sending.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(sending))
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
    use serde_json::json;
    use tokio::sync::watch;

    use super::*;

    /// A peer that reads responses only after a signal.
    struct SlowPeer {
        takes: watch::Receiver<bool>,
        requests: Vec<ServerJsonRpcMessage>,
    }

    impl Transport<RoleClient> for SlowPeer {
        type Error = Infallible;

        fn send(
            &mut self,
            _message: ClientJsonRpcMessage,
        ) -> impl Future<Output = Result<(), Infallible>> + Send + 'static {
            let mut takes = self.takes.clone();
            async move {
                takes.wait_for(|takes| *takes).await.unwrap();
                Ok(())
            }
        }

        async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
            self.requests.pop()
        }

        async fn close(&mut self) -> Result<(), Infallible> {
            Ok(())
        }
    }

    fn ping(id: usize) -> ServerJsonRpcMessage {
        serde_json::from_value(json!({"jsonrpc": "2.0", "id": id, "method": "ping"})).unwrap()
    }

    fn cancelled(id: usize) -> ServerJsonRpcMessage {
        let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": id}});
        serde_json::from_value(cancelled).unwrap()
    }

    fn pong(id: usize) -> ClientJsonRpcMessage {
        serde_json::from_value(json!({"jsonrpc": "2.0", "id": id, "result": {}})).unwrap()
    }

    fn slow_peer(
        requests: Vec<ServerJsonRpcMessage>,
    ) -> (BoundedTransport<SlowPeer>, watch::Sender<bool>) {
        let (takes, taken) = watch::channel(false);
        let slow_peer = SlowPeer {
            takes: taken,
            requests: requests.into_iter().rev().collect(),
        };
        (
            BoundedTransport::new(slow_peer, CancellationToken::new()),
            takes,
        )
    }

    #[tokio::test]
    async fn disconnects_peers_that_read_no_responses() {
        let (mut transport, _takes) = slow_peer((0..300).map(ping).collect());
        // Pending like the tasks of the SDK.
        let mut answers = Vec::new();
        for id in 0..WAITING {
            assert!(transport.receive().await.is_some(), "{id}");
            answers.push(transport.send(pong(id)));
        }
        assert!(!transport.overrun.is_cancelled());
        assert!(transport.receive().await.is_none());
        assert!(transport.overrun.is_cancelled());
        assert!(transport.receive().await.is_none(), "nothing more is read");
    }

    #[tokio::test]
    async fn accepts_requests_while_responses_are_read() {
        let (mut transport, takes) = slow_peer((0..300).map(ping).collect());
        takes.send(true).unwrap();
        for id in 0..300 {
            assert!(transport.receive().await.is_some(), "{id}");
            transport.send(pong(id)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn cancelled_requests_close_and_duplicate_ids_disconnect() {
        let requests = (0..300).flat_map(|id| [ping(id), cancelled(id)]).collect();
        let (mut transport, _takes) = slow_peer(requests);
        for count in 0..600 {
            assert!(transport.receive().await.is_some(), "{count}");
        }
        let (mut transport, _takes) = slow_peer(vec![ping(1), ping(1)]);
        assert!(transport.receive().await.is_some());
        assert!(transport.receive().await.is_none());
    }
}
