//! Results of a resumable run, between the task that produces them and the connection that reads them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

/// Bounds of a buffer. Full: the oldest results that a connection has read are dropped. Full of unread ones: the run
/// waits for its connection, or fails without one.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferBounds {
    pub(super) bytes: usize,
    pub(super) results: usize,
}

impl Default for BufferBounds {
    fn default() -> Self {
        Self {
            bytes: 8 * 1024 * 1024,
            results: 10_000,
        }
    }
}

/// Consecutive results of one run, as frames.
#[derive(Debug)]
pub(super) struct ResultBuffer {
    bounds: BufferBounds,
    state: watch::Sender<BufferState>,
}

#[derive(Debug)]
struct BufferState {
    frames: VecDeque<Bytes>,
    bytes: usize,
    /// Sequence of the first frame, also of an empty buffer.
    first: u64,
    /// Sequence of the last result that a connection has read.
    read: u64,
    /// Highest attempt of a run request or resume.
    attempt: u32,
    is_attached: bool,
    has_ended: bool,
    /// No connection attaches any more.
    is_closed: bool,
}

/// The buffer is full, and no connection reads it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BufferFull;

/// Cause of a refused resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachRefusal {
    /// The attempt is not above the highest one.
    StaleAttempt,
    /// The run is over, or the buffer lacks the next result.
    Lost,
}

/// Next step of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadStep {
    Frame(Bytes),
    /// After the terminal result.
    End,
    /// Another connection has the run.
    Superseded,
}

/// Reader of one connection. Dropping it detaches the connection.
#[derive(Debug)]
pub(super) struct BufferReader {
    buffer: Arc<ResultBuffer>,
    attempt: u32,
}

impl ResultBuffer {
    /// Empty buffer with the connection of the run request.
    pub(super) fn new(bounds: BufferBounds, attempt: u32) -> (Arc<Self>, BufferReader) {
        let state = watch::Sender::new(BufferState {
            frames: VecDeque::new(),
            bytes: 0,
            first: 1,
            read: 0,
            attempt,
            is_attached: true,
            has_ended: false,
            is_closed: false,
        });
        let buffer = Arc::new(Self { bounds, state });
        let reader = BufferReader {
            buffer: Arc::clone(&buffer),
            attempt,
        };
        (buffer, reader)
    }

    /// Appends a result. Waits for free space while a connection reads.
    pub(super) async fn push(&self, frame: Bytes) -> Result<(), BufferFull> {
        loop {
            if self.modify(|state| state.push(&frame, self.bounds)) {
                return Ok(());
            }
            let read = {
                let state = self.state.borrow();
                if !state.is_attached {
                    return Err(BufferFull);
                }
                state.read
            };
            let has_changed = |state: &BufferState| state.read != read || !state.is_attached;
            self.until(has_changed).await;
        }
    }

    /// Appends the terminal result, beyond the bounds if need be.
    pub(super) fn end(&self, frame: Bytes) {
        self.state.send_modify(|state| {
            state.append(frame);
            state.has_ended = true;
        });
    }

    /// Attaches the connection of a resume after the result `after`; 0: from the first one.
    pub(super) fn attach(
        self: &Arc<Self>,
        attempt: u32,
        after: u64,
    ) -> Result<BufferReader, AttachRefusal> {
        let mut attached = Err(AttachRefusal::Lost);
        self.state
            .send_modify(|state| attached = state.attach(attempt, after));
        attached.map(|()| BufferReader {
            buffer: Arc::clone(self),
            attempt,
        })
    }

    /// Refuses all further connections.
    pub(super) fn close(&self) {
        self.state.send_modify(|state| state.is_closed = true);
    }

    /// Completes when the buffer is closed, or closes it after `within` without a connection.
    pub(super) async fn abandoned(&self, within: impl Fn() -> Duration) {
        loop {
            self.until(|state| !state.is_attached || state.is_closed)
                .await;
            let attempt = self.state.borrow().attempt;
            let resumed = self.until(|state| state.attempt != attempt || state.is_closed);
            let _ = tokio::time::timeout(within(), resumed).await;
            // A resume may come between the timeout and this line.
            let is_over = self.modify(|state| {
                state.is_closed |= state.attempt == attempt && !state.is_attached;
                state.is_closed
            });
            if is_over {
                return;
            }
        }
    }

    /// Completes when no connection reads.
    pub(super) async fn detached(&self) {
        self.until(|state| !state.is_attached).await;
    }

    pub(super) fn bytes(&self) -> usize {
        self.state.borrow().bytes
    }

    /// Sequence of the next result.
    pub(super) fn next_sequence(&self) -> u64 {
        self.state.borrow().last() + 1
    }

    fn modify(&self, change: impl FnOnce(&mut BufferState) -> bool) -> bool {
        // Readers and writers wake only after a change.
        self.state.send_if_modified(change)
    }

    async fn until(&self, condition: impl FnMut(&BufferState) -> bool) {
        let mut changes = self.state.subscribe();
        // `self` owns the sender, so it cannot be dropped.
        let _ = changes.wait_for(condition).await;
    }
}

impl BufferState {
    /// Sequence of the last frame; 0 before the first one.
    fn last(&self) -> u64 {
        self.first + self.frames.len() as u64 - 1
    }

    fn push(&mut self, frame: &Bytes, bounds: BufferBounds) -> bool {
        let has_space = |state: &Self| {
            state.frames.len() < bounds.results && state.bytes + frame.len() <= bounds.bytes
        };
        while !has_space(self) && self.first <= self.read {
            self.drop_first();
        }
        // A single result above the bound passes through an empty buffer.
        let fits = has_space(self) || self.frames.is_empty();
        if fits {
            self.append(frame.clone());
        }
        fits
    }

    fn append(&mut self, frame: Bytes) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    fn drop_first(&mut self) {
        if let Some(frame) = self.frames.pop_front() {
            self.bytes -= frame.len();
            self.first += 1;
        }
    }

    fn attach(&mut self, attempt: u32, after: u64) -> Result<(), AttachRefusal> {
        if attempt <= self.attempt {
            return Err(AttachRefusal::StaleAttempt);
        }
        if self.is_closed || after.saturating_add(1) < self.first || after > self.last() {
            return Err(AttachRefusal::Lost);
        }
        // The gateway has stored them.
        while self.first <= after {
            self.drop_first();
        }
        self.read = after;
        self.attempt = attempt;
        self.is_attached = true;
        Ok(())
    }

    /// Next step of the connection of `attempt`; `None` while there is none.
    fn step(&mut self, attempt: u32) -> Option<ReadStep> {
        if self.attempt != attempt {
            return Some(ReadStep::Superseded);
        }
        let index = usize::try_from(self.read + 1 - self.first).ok()?;
        if let Some(frame) = self.frames.get(index) {
            self.read += 1;
            return Some(ReadStep::Frame(frame.clone()));
        }
        self.has_ended.then_some(ReadStep::End)
    }
}

impl BufferReader {
    /// Next frame, or the end of the connection. Cancel-safe.
    pub(super) async fn next(&self) -> ReadStep {
        let Self { buffer, attempt } = self;
        loop {
            let mut next = None;
            buffer.modify(|state| {
                next = state.step(*attempt);
                matches!(next, Some(ReadStep::Frame(_)))
            });
            if let Some(step) = next {
                return step;
            }
            let has_step = |state: &BufferState| {
                state.attempt != *attempt || state.read < state.last() || state.has_ended
            };
            buffer.until(has_step).await;
        }
    }
}

impl Drop for BufferReader {
    fn drop(&mut self) {
        self.buffer.modify(|state| {
            let is_ours = state.attempt == self.attempt;
            state.is_attached &= !is_ours;
            is_ours
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: BufferBounds = BufferBounds {
        bytes: 10,
        results: 3,
    };

    fn frame(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    /// Texts that the reader gets without waiting.
    async fn ready(reader: &BufferReader) -> Vec<Bytes> {
        let mut frames = Vec::new();
        while let std::task::Poll::Ready(ReadStep::Frame(frame)) =
            futures_util::poll!(Box::pin(reader.next()))
        {
            frames.push(frame);
        }
        frames
    }

    #[tokio::test]
    async fn repeats_equal_bytes_after_stored_result() {
        let (buffer, first) = ResultBuffer::new(BOUNDS, 1);
        for text in ["a", "b", "c"] {
            buffer.push(frame(text)).await.unwrap();
        }
        assert_eq!(ready(&first).await, ["a", "b", "c"]);
        let second = buffer.attach(2, 1).unwrap();
        assert_eq!(ready(&second).await, ["b", "c"]);
        assert_eq!(first.next().await, ReadStep::Superseded);
        buffer.end(frame("d"));
        assert_eq!(second.next().await, ReadStep::Frame(frame("d")));
        assert_eq!(second.next().await, ReadStep::End);
        let third = buffer.attach(3, 3).unwrap();
        assert_eq!(ready(&third).await, ["d"]);
    }

    #[tokio::test]
    async fn refuses_stale_attempts_and_missing_results() {
        let (buffer, _reader) = ResultBuffer::new(BOUNDS, 4);
        buffer.push(frame("a")).await.unwrap();
        let refused = |attempt, after| buffer.attach(attempt, after).err();
        assert_eq!(refused(4, 0), Some(AttachRefusal::StaleAttempt));
        assert_eq!(refused(5, 2), Some(AttachRefusal::Lost));
        assert_eq!(refused(5, u64::MAX), Some(AttachRefusal::Lost));
        assert_eq!(refused(5, 1), None);
        // The resume has acknowledged the first result.
        assert_eq!(refused(6, 0), Some(AttachRefusal::Lost));
        buffer.close();
        assert_eq!(refused(6, 1), Some(AttachRefusal::Lost));
    }

    #[tokio::test]
    async fn drops_read_results_and_waits_for_unread_ones() {
        let (buffer, reader) = ResultBuffer::new(BOUNDS, 1);
        for text in ["a", "b", "c"] {
            buffer.push(frame(text)).await.unwrap();
        }
        let mut waiting = Box::pin(buffer.push(frame("d")));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        assert_eq!(reader.next().await, ReadStep::Frame(frame("a")));
        waiting.await.unwrap();
        assert_eq!(buffer.attach(2, 0).err(), Some(AttachRefusal::Lost));

        let mut waiting = Box::pin(buffer.push(frame("e")));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(reader);
        assert_eq!(waiting.await, Err(BufferFull));
    }

    #[tokio::test]
    async fn bounds_bytes_but_passes_single_large_results() {
        let (buffer, reader) = ResultBuffer::new(BOUNDS, 1);
        buffer.push(frame("eleven bytes")).await.unwrap();
        let mut waiting = Box::pin(buffer.push(frame("b")));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        reader.next().await;
        waiting.await.unwrap();
        assert_eq!(buffer.bytes(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn closes_after_time_without_connection() {
        let within = Duration::from_mins(2);
        let (buffer, first) = ResultBuffer::new(BOUNDS, 1);
        let mut abandoned = Box::pin(buffer.abandoned(|| within));
        assert!(futures_util::poll!(&mut abandoned).is_pending());
        drop(first);
        let early = tokio::time::timeout(within / 2, &mut abandoned).await;
        assert!(early.is_err());
        let second = buffer.attach(2, 0).unwrap();
        let attached = tokio::time::timeout(within * 2, &mut abandoned).await;
        assert!(attached.is_err());
        let detached_at = tokio::time::Instant::now();
        drop(second);
        abandoned.await;
        assert_eq!(detached_at.elapsed().as_secs(), within.as_secs());
        assert_eq!(buffer.attach(3, 0).err(), Some(AttachRefusal::Lost));
    }
}
