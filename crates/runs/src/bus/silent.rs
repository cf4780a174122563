//! A bus that drops everything: for a single process, or for replicas that poll.

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use super::{Bus, Hear, Ring};

/// Receives and drops notifications.
pub(crate) struct SilentBus;

impl Bus for SilentBus {
    fn attend<'a>(&'a self, rings: &'a mut mpsc::Receiver<Ring>, _: Hear<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move { while rings.recv().await.is_some() {} })
    }
}
