//! The stream of a run: replay from the ledger, then live events, to the terminal.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::ledger::{LineHead, write_frame};
use futures_util::Stream;
use protocol::id::{RunId, WorkspaceId};
use store::StoreError;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::deps::RunDeps;
use crate::live::{LiveRun, RunProgress, Tail};
use crate::notifier::RunWaiter;
use telemetry::metrics::OpenStream;

/// Maximum events and bytes of one page from the table; at least one event. A slow reader holds one page in
/// memory.
const PAGE: usize = 256;
const PAGE_BYTES: usize = 128 * 1024;

/// Start of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchFrom {
    /// After this event, which the client has named.
    After(u64),
    /// After this event, which the client cannot know. The stream names it first, so that a client can resume
    /// there.
    Joining(u64),
}

/// Minimum pause between two looks at a run of another replica.
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

/// Streams of runs, live ones and stored ones.
pub struct RunStreams {
    pub(super) deps: Arc<RunDeps>,
}

impl RunStreams {
    /// Cursor for a stream that starts now: before the next event, or before the terminal of an ended run.
    pub async fn current_cursor(
        &self,
        workspace: &WorkspaceId,
        id: RunId,
    ) -> Result<u64, StoreError> {
        let run = self.deps.find_run(workspace, id).await?;
        Ok(run.map_or(0, |run| {
            run.last_sequence
                .saturating_sub(u64::from(run.status.is_terminal()))
        }))
    }

    /// Frames of a run after `from`, up to its terminal. The caller has checked that the client may see the run.
    /// An error ends the stream; the client resumes by its last id.
    pub fn watch(
        &self,
        run: RunId,
        from: WatchFrom,
        heartbeat: Duration,
    ) -> impl Stream<Item = Result<Bytes, StoreError>> + Send + use<> {
        let (cursor, named) = match from {
            WatchFrom::After(cursor) => (cursor, String::new()),
            // A frame without data dispatches no event.
            WatchFrom::Joining(cursor) => (cursor, format!("id: {cursor}\n\n")),
        };
        let hello = Bytes::from(format!(": run {run}\n\n{named}"));
        let now = Instant::now();
        let watcher = Watcher {
            deps: Arc::clone(&self.deps),
            run,
            live: None,
            waiter: None,
            cursor,
            heartbeat,
            // Sent at once: proxies and clients see an open stream before the first event.
            ready: VecDeque::from([hello]),
            shown_at: now,
            look_since: now.checked_sub(self.deps.limits.poll).unwrap_or(now),
            has_sent_draining: false,
            done: false,
            _open: OpenStream::enter(),
        };
        futures_util::stream::unfold(watcher, |mut watcher| async move {
            let next = watcher.next().await.transpose()?;
            if next.is_err() {
                watcher.done = true;
            }
            Some((next, watcher))
        })
    }
}

struct Watcher {
    deps: Arc<RunDeps>,
    run: RunId,
    live: Option<Arc<LiveRun>>,
    /// Set while the run lives elsewhere.
    waiter: Option<RunWaiter>,
    cursor: u64,
    heartbeat: Duration,
    ready: VecDeque<Bytes>,
    shown_at: Instant,
    /// Maximum age of a shared look at the run's row.
    look_since: Instant,
    /// The stream has sent `gateway.draining`.
    has_sent_draining: bool,
    done: bool,
    _open: OpenStream,
}

impl Watcher {
    /// The next bytes, or the end.
    async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                self.shown_at = Instant::now();
                return Ok(Some(bytes));
            }
            if self.done {
                return Ok(None);
            }
            if self.live.is_none() {
                // Looked up in each round: the run may start here, or be taken over by this process.
                self.live = self.deps.live.get(self.run);
            }
            match self.live.clone() {
                Some(live) => self.follow(&live).await?,
                None => Box::pin(self.read_elsewhere()).await?,
            }
        }
    }

    /// Subscribes first, then reads, so that no event is missed.
    async fn follow(&mut self, live: &LiveRun) -> Result<(), StoreError> {
        let mut progress = live.log.subscribe();
        // Read before the tail: progress after it wakes the wait below.
        let seen = *progress.borrow_and_update();
        match live.log.tail(self.cursor) {
            Tail::Frames(bytes, last) => {
                self.cursor = last;
                self.ready.push_back(bytes);
                Ok(())
            }
            Tail::Behind => {
                if !Box::pin(self.read_table()).await? {
                    // Events that are neither buffered nor in the table were pruned.
                    self.live = None;
                    return Box::pin(self.read_elsewhere()).await;
                }
                Ok(())
            }
            Tail::UpToDate if seen.settled => {
                self.done = true;
                Ok(())
            }
            // Another process writes the terminal.
            Tail::UpToDate if seen.ended => {
                self.live = None;
                Box::pin(self.read_elsewhere()).await
            }
            Tail::UpToDate => {
                self.wait(&mut progress).await;
                Ok(())
            }
        }
    }

    async fn wait(&mut self, progress: &mut watch::Receiver<RunProgress>) {
        let stopping = self.deps.lifecycle.stopping.clone();
        tokio::select! {
            // The log is dropped with the run; the next look reads the table.
            _ = progress.changed() => {}
            () = tokio::time::sleep(self.heartbeat) => self.ready.push_back(HEARTBEAT),
            // The run may end within the grace, so its stream stays open.
            () = stopping.cancelled(), if !self.has_sent_draining => self.send_draining(),
        }
    }

    /// Follows a run that has ended, is queued, or lives on another replica.
    async fn read_elsewhere(&mut self) -> Result<(), StoreError> {
        let waiter = self
            .waiter
            .get_or_insert_with(|| RunWaiter::of(&self.deps.notifier, self.run));
        let notifications = waiter.notifications();
        let notified = notifications.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        // Status first: the events of a run that was terminal before the read are complete.
        let look = waiter.look(&self.deps.store, self.look_since).await?;
        let is_behind = self.cursor < look.last_sequence;
        if is_behind && self.read_table().await? {
            return Ok(());
        }
        if is_behind && look.has_ended {
            // Pruned during the replay.
            return Err(StoreError::Pruned);
        }
        if look.has_ended {
            self.done = true;
            return Ok(());
        }
        let stopping = self.deps.lifecycle.stopping.clone();
        // Counted from the shared look, so that all streams of the run share the next one.
        let next_look = look.at + self.deps.limits.poll.min(self.heartbeat);
        tokio::select! {
            // Independent of the rate of notifications, because a look is a query.
            () = async {
                notified.await;
                self.look_since = Instant::now();
                tokio::time::sleep(BETWEEN_LOOKS).await;
            } => {}
            () = tokio::time::sleep_until(next_look) => {
                self.look_since = next_look;
                self.send_heartbeat_if_due();
            }
            () = stopping.cancelled() => {
                self.send_draining();
                self.done = true;
            }
        }
        Ok(())
    }

    /// Reads a page after the cursor. False: there is none.
    async fn read_table(&mut self) -> Result<bool, StoreError> {
        let lines = self
            .deps
            .store
            .runs()
            .read_lines(self.run, self.cursor, PAGE, PAGE_BYTES)
            .await?;
        let Some(last) = lines.last() else {
            return Ok(false);
        };
        self.cursor = last.sequence;
        let mut frames = Vec::new();
        for line in &lines {
            let head = LineHead::of(&line.text).map_err(|_| StoreError::Corrupt {
                column: "run_segments.payload",
                row: self.run.to_string(),
            })?;
            write_frame(&mut frames, line.sequence, &head.kind, &line.text);
        }
        self.ready.push_back(Bytes::from(frames));
        Ok(true)
    }

    fn send_heartbeat_if_due(&mut self) {
        if self.shown_at.elapsed() >= self.heartbeat {
            self.ready.push_back(HEARTBEAT);
        }
    }

    /// Notifies the client once that the gateway stops.
    fn send_draining(&mut self) {
        if std::mem::replace(&mut self.has_sent_draining, true) {
            return;
        }
        // Spreads the retries, so that not all clients reconnect at once.
        let jitter = u64::from(self.run.0.as_bytes()[15]) * 8;
        // Without data, so that clients do not read it as an event of the ledger.
        let frame = format!("retry: {}\nevent: gateway.draining\n\n", 1000 + jitter);
        self.ready.push_back(Bytes::from(frame));
    }
}

const HEARTBEAT: Bytes = Bytes::from_static(b": \n\n");
