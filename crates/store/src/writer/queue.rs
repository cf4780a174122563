//! The writer's queue, bounded in items and bytes, and a lane for urgent items.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::job::Item;
use crate::error::StoreError;

/// Maximum items of one commit.
const BATCH: usize = 1024;
/// Approximate maximum bytes of one commit: later items wait for it.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Maximum queued items. When full, writers wait, and with them the runner's socket (backpressure).
const MAX_QUEUED_ITEMS: usize = 4096;
/// Approximate maximum of queued bytes. When full, items with a weight wait.
const MAX_QUEUED_BYTES: usize = 64 * 1024 * 1024;
/// Maximum urgent items: a process has one or two at a time. When full, writers wait.
const MAX_URGENT_ITEMS: usize = 16;

/// Linger time of items without a waiting caller: a commit of many rows costs little more than one row.
const LINGER: Duration = Duration::from_millis(50);

/// Sender of the writer's queue.
#[derive(Clone)]
pub(crate) struct Writer {
    queue: mpsc::Sender<QueueMessage>,
    lane: mpsc::Sender<Box<dyn Item>>,
    byte_permits: Arc<Semaphore>,
    wake: Arc<Notify>,
    /// True after a commit failed on the database, until a small write succeeds.
    is_failing: Arc<AtomicBool>,
}

enum QueueMessage {
    /// An item with the permit for its bytes, released when the writer takes the item.
    Item(Box<dyn Item>, OwnedSemaphorePermit),
    Close(oneshot::Sender<()>),
}

/// Receiver of the writer's queue.
pub(super) struct WriteQueue {
    queue: mpsc::Receiver<QueueMessage>,
    lane: mpsc::Receiver<Box<dyn Item>>,
    /// Notified when an item has a waiting caller.
    wake: Arc<Notify>,
}

/// Items gathered for one commit.
#[derive(Default)]
pub(super) struct GatheredItems {
    pub(super) items: Vec<Box<dyn Item>>,
    bytes: usize,
    /// Notified after the last item is written; no items follow.
    pub(super) closing: Option<oneshot::Sender<()>>,
}

impl GatheredItems {
    /// True when no item has a waiting caller and the batch is not full.
    fn can_linger(&self) -> bool {
        self.closing.is_none()
            && self.items.len() < BATCH
            && self.bytes < BATCH_BYTES
            && !self.items.iter().any(|item| item.is_awaited())
    }
}

pub(super) fn queue(is_failing: Arc<AtomicBool>) -> (Writer, WriteQueue) {
    let (queue, inbox) = mpsc::channel(MAX_QUEUED_ITEMS);
    let (lane, urgent) = mpsc::channel(MAX_URGENT_ITEMS);
    let wake = Arc::new(Notify::new());
    let writer = Writer {
        queue,
        lane,
        byte_permits: Arc::new(Semaphore::new(MAX_QUEUED_BYTES)),
        wake: Arc::clone(&wake),
        is_failing,
    };
    let inbox = WriteQueue {
        queue: inbox,
        lane: urgent,
        wake,
    };
    (writer, inbox)
}

impl Writer {
    pub(crate) async fn send(&self, item: Box<dyn Item>) -> Result<(), StoreError> {
        if item.is_urgent() {
            // No byte permit: a full queue must not delay a lease renewal.
            let sent = self.lane.send(item).await;
            self.wake.notify_one();
            return sent.map_err(|_| StoreError::Closed);
        }
        let is_awaited = item.is_awaited();
        // A larger item would wait for ever; it takes the complete budget instead.
        let bytes = u32::try_from(item.weight().min(MAX_QUEUED_BYTES)).unwrap_or(u32::MAX);
        let byte_permits = Arc::clone(&self.byte_permits)
            .acquire_many_owned(bytes)
            .await;
        let byte_permits = byte_permits.map_err(|_| StoreError::Closed)?;
        let sent = self
            .queue
            .send(QueueMessage::Item(item, byte_permits))
            .await;
        // The queue holds a full commit: end the linger time.
        if is_awaited || self.queue.max_capacity() - self.queue.capacity() >= BATCH {
            self.wake.notify_one();
        }
        sent.map_err(|_| StoreError::Closed)
    }

    /// Queued items.
    pub(crate) fn queued(&self) -> usize {
        let waiting = |max: usize, left: usize| max - left;
        waiting(self.queue.max_capacity(), self.queue.capacity())
            + waiting(self.lane.max_capacity(), self.lane.capacity())
    }

    /// True while the writer task accepts work.
    pub(crate) fn is_open(&self) -> bool {
        !self.queue.is_closed()
    }

    /// True from a commit that failed on the database until the next successful probe.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Acquire)
    }

    /// Clears the failure after a successful probe.
    pub(crate) fn note_recovered(&self) {
        self.is_failing.store(false, Ordering::Release);
    }

    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.queue.send(QueueMessage::Close(done)).await.is_ok() {
            self.wake.notify_one();
            // The writer may have ended without a reply: it is closed in either case.
            let _ = closed.await;
        }
    }
}

impl WriteQueue {
    /// Takes the queued urgent items.
    pub(super) fn gather_urgent(&mut self) -> Vec<Box<dyn Item>> {
        let mut gathered = GatheredItems::default();
        self.take_urgent(&mut gathered);
        gathered.items
    }

    /// Waits for an item and takes all queued items with it; returns empty at `until`. `None`: all senders are
    /// gone.
    pub(super) async fn gather(
        &mut self,
        until: Option<std::time::Instant>,
    ) -> Option<GatheredItems> {
        let mut gathered = GatheredItems::default();
        let late = async {
            match until {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Urgent items first, then the oldest of the queue.
            biased;
            Some(item) = self.lane.recv() => gathered.items.push(item),
            message = self.queue.recv() => self.take(message?, &mut gathered),
            () = late => return Some(gathered),
        }
        self.take_waiting(&mut gathered);
        let end = Instant::now() + LINGER;
        while gathered.can_linger() {
            // Returns at once on a notification for an item already taken.
            let notified = tokio::time::timeout_at(end, self.wake.notified()).await;
            self.take_waiting(&mut gathered);
            if notified.is_err() {
                break;
            }
        }
        Some(gathered)
    }

    fn take_urgent(&mut self, gathered: &mut GatheredItems) {
        while let Ok(item) = self.lane.try_recv() {
            gathered.items.push(item);
        }
    }

    fn take_waiting(&mut self, gathered: &mut GatheredItems) {
        self.take_urgent(gathered);
        while gathered.items.len() < BATCH
            && gathered.bytes < BATCH_BYTES
            && let Ok(message) = self.queue.try_recv()
        {
            self.take(message, gathered);
        }
    }

    fn take(&mut self, message: QueueMessage, gathered: &mut GatheredItems) {
        match message {
            // The permit is released here, so senders can queue again while this batch commits.
            QueueMessage::Item(item, _permit) => {
                gathered.bytes += item.weight();
                gathered.items.push(item);
            }
            QueueMessage::Close(done) => {
                // Senders get `Closed` from here on; items that are already queued still commit.
                self.queue.close();
                self.lane.close();
                gathered.closing = Some(done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::probe::WriteProbe;
    use crate::writer::job::Job;

    fn item(is_awaited: bool) -> Box<dyn Item> {
        Box::new(Job::new(
            WriteProbe,
            is_awaited.then(|| oneshot::channel().0),
        ))
    }

    #[tokio::test]
    async fn background_items_linger_until_awaited_item() {
        let (writer, mut inbox) = queue(Arc::default());
        writer.send(item(false)).await.unwrap();
        let awaited = async { writer.send(item(true)).await.unwrap() };
        let (gathered, ()) = tokio::join!(inbox.gather(None), awaited);
        assert_eq!(gathered.unwrap().items.len(), 2);
        // And after the linger time without one.
        writer.send(item(false)).await.unwrap();
        let mut gathering = Box::pin(inbox.gather(None));
        assert!(gathering.as_mut().now_or_never().is_none());
        assert_eq!(gathering.await.unwrap().items.len(), 1);
    }

    #[tokio::test]
    async fn full_batch_does_not_linger() {
        let (writer, mut inbox) = queue(Arc::default());
        writer.send(item(false)).await.unwrap();
        let mut gathering = Box::pin(inbox.gather(None));
        assert!(gathering.as_mut().now_or_never().is_none());
        for _ in 0..BATCH {
            writer.send(item(false)).await.unwrap();
        }
        let gathered = gathering.now_or_never();
        assert_eq!(gathered.unwrap().unwrap().items.len(), BATCH);
    }

    #[tokio::test]
    async fn awaited_items_do_not_linger() {
        let (writer, mut inbox) = queue(Arc::default());
        writer.send(item(false)).await.unwrap();
        writer.send(item(true)).await.unwrap();
        let gathered = inbox.gather(None).now_or_never();
        assert_eq!(gathered.unwrap().unwrap().items.len(), 2);
    }
}
