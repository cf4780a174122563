//! Notifications over LISTEN and NOTIFY of PostgreSQL.

use futures_util::future::BoxFuture;
use store::{NotifyEvent, Store};
use tokio::sync::mpsc;

use super::notification::{NotificationBatch, ReplicaId};
use super::{Bus, Inbound, Notification, OnInbound};

/// A bus over the shared database.
pub(crate) struct PostgresBus {
    store: Store,
}

impl PostgresBus {
    pub(crate) fn new(store: Store) -> Self {
        Self { store }
    }

    /// Sends notifications. Those that arrive during one commit form the next batch.
    async fn send(&self, me: ReplicaId, outgoing: &mut mpsc::Receiver<Notification>) {
        let mut is_away = false;
        while let Some(first) = outgoing.recv().await {
            let notice = NotificationBatch::of(first, outgoing).write(me);
            let sent = self.store.notifications().notify(&notice).await;
            // Logged once per outage.
            if let Err(error) = &sent
                && !is_away
            {
                let error = error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    "cannot notify other replicas over PostgreSQL; they poll until it succeeds"
                );
            }
            is_away = sent.is_err();
        }
    }
}

impl Bus for PostgresBus {
    fn run<'a>(
        &'a self,
        outgoing: &'a mut mpsc::Receiver<Notification>,
        on_inbound: OnInbound<'a>,
    ) -> BoxFuture<'a, ()> {
        let me = ReplicaId::new();
        let listening = self
            .store
            .notifications()
            .listen(move |notice| match notice {
                NotifyEvent::Missed => on_inbound(Inbound::Missed),
                NotifyEvent::Text(text) => me
                    .read(text)
                    .for_each(|notification| on_inbound(Inbound::Notification(notification))),
            });
        Box::pin(async move {
            tokio::join!(self.send(me, outgoing), listening);
        })
    }
}
