//! The ledger of a run as events: live until its end, or the part that is stored now.

use std::collections::VecDeque;
use std::pin::Pin;

use axum::body::Bytes;
use futures_util::{Stream, StreamExt as _};
use protocol::id::RunId;
use protocol::run::AgentRunEvent;
use protocol::sse::{Decoder, SseItem, SseLimits};
use store::StoreError;

use runs::watch::WatchFrom;
use web::auth::ScopedCaller;
use web::state::ApiState;
use web::stream::run_frames;
use web::stream_limit::ConcurrencySlot;

/// Events and bytes of one page from the table; at least one event.
const PAGE: usize = 256;
const PAGE_BYTES: usize = 128 * 1024;

/// Our own ledger bounds its lines when it takes them.
const UNLIMITED: SseLimits = SseLimits {
    line_bytes: usize::MAX,
    event_bytes: usize::MAX,
};

/// An item of a live ledger.
pub(crate) enum LedgerItem {
    Event(Box<AgentRunEvent>),
    /// A keep-alive for the client.
    KeepAlive,
}

/// Reads the events of a run up to its terminal.
pub(crate) struct LedgerReader {
    run: RunId,
    frames: Pin<Box<dyn Stream<Item = Result<Bytes, StoreError>> + Send>>,
    decoder: Decoder,
    ready: VecDeque<SseItem>,
}

impl LedgerReader {
    /// The events after this sequence. The caller must reach the run.
    pub(crate) fn after(
        state: &ApiState,
        caller: &ScopedCaller,
        run: RunId,
        after: u64,
        slot: ConcurrencySlot,
    ) -> Self {
        let (workspace, key) = caller.credential();
        let frames = run_frames(state, workspace, key, run, WatchFrom::After(after), slot);
        Self {
            run,
            frames: Box::pin(frames),
            // The sequence is in the data, too, so the ids are not needed.
            decoder: Decoder::of_data(UNLIMITED),
            ready: VecDeque::new(),
        }
    }

    /// The next item. `None`: the terminal was read, the gateway stops, or the key was revoked.
    pub(crate) async fn next(&mut self) -> Result<Option<LedgerItem>, StoreError> {
        loop {
            match self.ready.pop_front() {
                Some(SseItem::Comment) => return Ok(Some(LedgerItem::KeepAlive)),
                Some(SseItem::Event(event)) => {
                    let event = parse(self.run, &event.data)?;
                    return Ok(Some(LedgerItem::Event(Box::new(event))));
                }
                None => {}
            }
            let Some(bytes) = self.frames.next().await.transpose()? else {
                return Ok(None);
            };
            let mut items = Vec::new();
            // Frames of one page arrive as one chunk, or in several.
            let decoded = self.decoder.push(&bytes, &mut items);
            decoded.map_err(|_| corrupt(self.run))?;
            // One chunk may have many events, and the caller takes one at a time.
            self.ready.extend(items);
        }
    }
}

/// A page of stored events after this sequence; empty at the end.
pub(crate) async fn stored_events(
    state: &ApiState,
    run: RunId,
    after: u64,
) -> Result<Vec<AgentRunEvent>, StoreError> {
    let runs = state.runs.store().runs();
    let lines = runs.read_lines(run, after, PAGE, PAGE_BYTES).await?;
    let lines = lines.iter();
    lines.map(|line| parse(run, line.text.as_bytes())).collect()
}

fn parse(run: RunId, line: &[u8]) -> Result<AgentRunEvent, StoreError> {
    serde_json::from_slice(line).map_err(|_| corrupt(run))
}

fn corrupt(run: RunId) -> StoreError {
    StoreError::Corrupt {
        column: "run_segments.payload",
        row: run.to_string(),
    }
}
