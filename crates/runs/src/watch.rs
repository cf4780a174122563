//! The stream of a run: replay from the ledger, then live, to the terminal (contracts §6, §7).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::ledger::{LineHead, write_frame};
use futures_util::Stream;
use protocol::id::RunId;
use store::StoreError;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::doorbell::Bell;
use crate::live::{LiveRun, Progress, Tail};
use crate::{Inner, Runs};
use telemetry::metrics::OpenStream;

/// Events read from the table at once, and their bytes; one event at least. Each reader that hardly reads keeps as
/// much in memory.
const PAGE: usize = 256;
const PAGE_BYTES: usize = 128 * 1024;

/// From where a run is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchFrom {
    /// After this event, which the watcher has named.
    After(u64),
    /// After this event, of which the watcher cannot know: the stream names it first, and is resumed there.
    Joining(u64),
}

/// Between two looks at a run that lives elsewhere.
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

impl Runs {
    /// The frames of a run behind `from`, ended by its terminal. The caller has checked that the
    /// run is the watcher's to see. An error ends the stream: the client resumes by its last id.
    pub fn watch(
        &self,
        run: RunId,
        from: WatchFrom,
        heartbeat: Duration,
    ) -> impl Stream<Item = Result<Bytes, StoreError>> + Send + use<> {
        let (cursor, named) = match from {
            WatchFrom::After(cursor) => (cursor, String::new()),
            // Without data it dispatches no event.
            WatchFrom::Joining(cursor) => (cursor, format!("id: {cursor}\n\n")),
        };
        let hello = Bytes::from(format!(": run {run}\n\n{named}"));
        let now = Instant::now();
        let watcher = Watcher {
            inner: Arc::clone(&self.0),
            run,
            live: None,
            bell: None,
            cursor,
            heartbeat,
            ready: VecDeque::from([hello]),
            shown_at: now,
            look_since: now.checked_sub(self.0.limits.poll).unwrap_or(now),
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
    inner: Arc<Inner>,
    run: RunId,
    live: Option<Arc<LiveRun>>,
    /// Rings while the run lives elsewhere.
    bell: Option<Bell>,
    cursor: u64,
    heartbeat: Duration,
    ready: VecDeque<Bytes>,
    shown_at: Instant,
    /// A shared look at the run's row must be this young.
    look_since: Instant,
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
                self.live = self.inner.live.get(self.run);
            }
            match self.live.clone() {
                Some(live) => self.follow(&live).await?,
                None => Box::pin(self.read_elsewhere()).await?,
            }
        }
    }

    /// Subscribes, then reads: an event that is committed in between is seen all the same.
    async fn follow(&mut self, live: &LiveRun) -> Result<(), StoreError> {
        let mut progress = live.log.subscribe();
        let seen = *progress.borrow_and_update();
        match live.log.tail(self.cursor) {
            Tail::Frames(bytes, last) => {
                self.cursor = last;
                self.ready.push_back(bytes);
                Ok(())
            }
            Tail::Behind => {
                if !Box::pin(self.read_table()).await? {
                    // What the ring no longer has is not in the table either: it was deleted.
                    self.live = None;
                    return Box::pin(self.read_elsewhere()).await;
                }
                Ok(())
            }
            Tail::UpToDate if seen.settled => {
                self.done = true;
                Ok(())
            }
            // Somebody else writes the terminal.
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

    async fn wait(&mut self, progress: &mut watch::Receiver<Progress>) {
        let stopping = self.inner.stopping.clone();
        tokio::select! {
            // The log is gone when the run is: the next look finds it in the table.
            _ = progress.changed() => {}
            () = tokio::time::sleep(self.heartbeat) => self.ready.push_back(HEARTBEAT),
            () = stopping.cancelled() => self.tell_of_draining(),
        }
    }

    /// A run that has ended, waits, or lives on another replica.
    async fn read_elsewhere(&mut self) -> Result<(), StoreError> {
        let bell = self
            .bell
            .get_or_insert_with(|| Bell::of(&self.inner, self.run));
        let rings = bell.ring();
        let rung = rings.notified();
        tokio::pin!(rung);
        rung.as_mut().enable();
        // The status first: what was terminal before the read has all its events in it.
        let look = bell.look(self.look_since).await?;
        let is_behind = self.cursor < look.last_sequence;
        if is_behind && self.read_table().await? {
            return Ok(());
        }
        if is_behind && look.has_ended {
            // Deleted for its age while it was read: who comes back is told so.
            return Err(StoreError::Pruned);
        }
        if look.has_ended {
            self.done = true;
            return Ok(());
        }
        let stopping = self.inner.stopping.clone();
        // Counted from the shared look: all watchers of the run wake together, and share the next.
        let next_look = look.at + self.inner.limits.poll.min(self.heartbeat);
        tokio::select! {
            // However often it rings: a look costs the database a query.
            () = async {
                rung.await;
                self.look_since = Instant::now();
                tokio::time::sleep(BETWEEN_LOOKS).await;
            } => {}
            () = tokio::time::sleep_until(next_look) => {
                self.look_since = next_look;
                self.show_life();
            }
            () = stopping.cancelled() => self.tell_of_draining(),
        }
        Ok(())
    }

    /// Reads a page past the cursor; false when there is none.
    async fn read_table(&mut self) -> Result<bool, StoreError> {
        let lines = self
            .inner
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

    fn show_life(&mut self) {
        if self.shown_at.elapsed() >= self.heartbeat {
            self.ready.push_back(HEARTBEAT);
        }
    }

    /// The gateway is stopping: everything that is committed was shown, this is the last word. Who comes
    /// back finds another replica, or this one until it is gone; not all at once.
    fn tell_of_draining(&mut self) {
        self.done = true;
        let jitter = u64::from(self.run.0.as_bytes()[15]) * 8;
        // Without data: who reads the data of each event as an event of the ledger gets none that is not.
        let frame = format!("retry: {}\nevent: gateway.draining\n\n", 1000 + jitter);
        self.ready.push_back(Bytes::from(frame));
    }
}

const HEARTBEAT: Bytes = Bytes::from_static(b": \n\n");
