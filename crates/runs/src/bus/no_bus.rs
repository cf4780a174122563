//! A bus that drops everything: for a single process, or for replicas that poll.

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use super::{Bus, Notification, OnInbound};

/// Receives and drops notifications.
pub(crate) struct NoBus;

impl Bus for NoBus {
    fn run<'a>(
        &'a self,
        outgoing: &'a mut mpsc::Receiver<Notification>,
        _: OnInbound<'a>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move { while outgoing.recv().await.is_some() {} })
    }
}
