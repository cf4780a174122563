//! The ledger of a run as events: live, until its end.

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
            let decoded = self.decoder.push(&bytes, &mut items);
            decoded.map_err(|_| corrupt(self.run))?;
            self.ready.extend(items);
        }
    }
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
