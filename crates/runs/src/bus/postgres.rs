//! Rings by the database's own LISTEN and NOTIFY.

use futures_util::future::BoxFuture;
use store::{Notice, Store};
use tokio::sync::mpsc;

use super::ring::{Gathered, Name};
use super::{Bus, Hear, Heard, Ring};

/// The database that all replicas have anyway.
pub(crate) struct PostgresBus {
    store: Store,
}

impl PostgresBus {
    pub(crate) fn new(store: Store) -> Self {
        Self { store }
    }

    /// The commit of one notice is the time in which the next one gathers.
    async fn send(&self, me: Name, rings: &mut mpsc::Receiver<Ring>) {
        let mut is_away = false;
        while let Some(first) = rings.recv().await {
            let notice = Gathered::of(first, rings).write(me);
            let sent = self.store.notify(&notice).await;
            if let Err(error) = &sent
                && !is_away
            {
                let error = error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    "other replicas cannot be rung; they look by themselves until that is over"
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
        let listening = self.store.listen(move |notice| match notice {
            Notice::Missed => hear(Heard::Missed),
            Notice::Text(text) => me.read(text).for_each(|ring| hear(Heard::Ring(ring))),
        });
        Box::pin(async move {
            tokio::join!(self.send(me, rings), listening);
        })
    }
}
