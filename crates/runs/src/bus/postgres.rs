//! Notifications over LISTEN and NOTIFY of PostgreSQL.

use futures_util::future::BoxFuture;
use store::{NotifyEvent, Store};
use tokio::sync::mpsc;

use super::ring::{Gathered, Name};
use super::{Bus, Hear, Heard, Ring};

/// A bus over the shared database.
pub(crate) struct PostgresBus {
    store: Store,
}

impl PostgresBus {
    pub(crate) fn new(store: Store) -> Self {
        Self { store }
    }

    /// Sends notifications. Those that arrive during one commit form the next batch.
    async fn send(&self, me: Name, rings: &mut mpsc::Receiver<Ring>) {
        let mut is_away = false;
        while let Some(first) = rings.recv().await {
            let notice = Gathered::of(first, rings).write(me);
            let sent = self.store.notifications().notify(&notice).await;
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
    fn attend<'a>(
        &'a self,
        rings: &'a mut mpsc::Receiver<Ring>,
        hear: Hear<'a>,
    ) -> BoxFuture<'a, ()> {
        let me = Name::new();
        let listening = self
            .store
            .notifications()
            .listen(move |notice| match notice {
                NotifyEvent::Missed => hear(Heard::Missed),
                NotifyEvent::Text(text) => me.read(text).for_each(|ring| hear(Heard::Ring(ring))),
            });
        Box::pin(async move {
            tokio::join!(self.send(me, rings), listening);
        })
    }
}
