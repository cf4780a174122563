//! Follows a run, and writes the answer of a face from its events.

use axum::body::{Body, Bytes};
use axum::response::Response;
use domain::usage::{TokenParts, usage};
use futures_util::stream::unfold;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use protocol::id::RunId;
use protocol::run::AgentRunEvent;

use crate::ledger::{LedgerItem, LedgerReader};
use client_api::client::interactions::ContinuedRun;
use web::auth::ScopedCaller;
use web::error::{ApiError, ApiResult};
use web::memory_budget::{MemoryPermit, Sender};
use web::state::ApiState;
use web::stream::event_stream;
use web::stream_limit::ConcurrencySlot;

const RUN_ID: HeaderName = HeaderName::from_static("runnel-run-id");
const KEEP_ALIVE: Bytes = Bytes::from_static(b": \n\n");

/// Maximum bytes of one answer. A longer one ends as cut; the run continues.
pub(crate) const ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// Writes the answer of one request in the form of a face. Pure: equal events give equal frames.
pub(crate) trait FaceWriter: Send + 'static {
    /// Frames before the first event.
    fn begin(&mut self) -> String;
    /// Frames of an event.
    fn write(&mut self, event: &AgentRunEvent) -> String;
    /// True if the answer has no further events.
    fn has_ended(&self) -> bool;
    /// Frames of the end. `tokens`: the accounting of the run, used if its runner reports none.
    fn finish(&mut self, tokens: Option<TokenParts>) -> String;
    /// Frames of a stream that is cut before its end.
    fn cut(&mut self) -> String;
    /// Bytes that the writer holds.
    fn bytes(&self) -> usize;
}

/// A run and the writer of its answer.
pub(crate) struct Follower<W> {
    state: ApiState,
    run: RunId,
    reader: LedgerReader,
    writer: W,
    memory: MemoryPermit,
}

/// Frames for the client.
enum Output {
    Frames(String),
    KeepAlive,
    /// The frames of the end.
    Last(String),
}

impl<W: FaceWriter> Follower<W> {
    /// Follows a run that the caller reaches.
    pub(crate) fn new(
        state: &ApiState,
        caller: &ScopedCaller,
        run: &ContinuedRun,
        slot: ConcurrencySlot,
        writer: W,
    ) -> Self {
        Self {
            state: state.clone(),
            run: run.run,
            reader: LedgerReader::after(state, caller, run.run, run.after, slot),
            writer,
            memory: caller.answer.permit_for_stream(Sender::Key(caller.key)),
        }
    }

    async fn next(&mut self) -> ApiResult<Output> {
        if self.writer.has_ended() {
            // Read once, at the end: earlier the sums would change.
            let tokens = tokens_of(&self.state, self.run).await?;
            return Ok(Output::Last(self.writer.finish(tokens)));
        }
        match self.reader.next().await? {
            Some(LedgerItem::Event(event)) => {
                let frames = self.writer.write(&event);
                // The writer holds the answer for its last frame, so the key pays for it.
                self.memory.grow_to(self.writer.bytes())?;
                Ok(Output::Frames(frames))
            }
            Some(LedgerItem::KeepAlive) => Ok(Output::KeepAlive),
            None => Ok(Output::Last(self.writer.cut())),
        }
    }

    /// Waits for the end and returns the writer.
    pub(crate) async fn complete(mut self) -> ApiResult<(W, Option<TokenParts>)> {
        // Also without a stream, so that the numbers of events are the same.
        self.writer.begin();
        while self.next_frames().await?.is_some() {}
        let tokens = tokens_of(&self.state, self.run).await?;
        Ok((self.writer, tokens))
    }

    /// The frames of the next event, empty for a keep-alive. `None`: the answer has ended.
    pub(crate) async fn next_frames(&mut self) -> ApiResult<Option<String>> {
        if self.writer.has_ended() {
            return Ok(None);
        }
        match self.next().await? {
            Output::Frames(frames) => Ok(Some(frames)),
            Output::KeepAlive => Ok(Some(String::new())),
            Output::Last(_) => {
                let message = "the gateway stops, or the API key was revoked; read the run again";
                Err(ApiError::unavailable(message))
            }
        }
    }

    pub(crate) fn into_writer(self) -> W {
        self.writer
    }

    /// Streams the answer. An error closes the connection before the end.
    pub(crate) fn stream(mut self) -> Response {
        // At once: clients and proxies see an open stream before the first event.
        let begin = self.writer.begin();
        let first = futures_util::stream::once(async { Ok(Bytes::from(begin)) });
        let rest = unfold(Some(self), |follower| async {
            let mut follower = follower?;
            match follower.next().await {
                Ok(Output::Frames(frames)) => Some((Ok(frames.into()), Some(follower))),
                Ok(Output::KeepAlive) => Some((Ok(KEEP_ALIVE), Some(follower))),
                // `None` ends the stream after these frames.
                Ok(Output::Last(frames)) => Some((Ok(frames.into()), None)),
                Err(error) => Some((Err(StreamCut(error)), None)),
            }
        });
        let frames = futures_util::StreamExt::chain(first, rest);
        event_stream(Body::from_stream(frames))
    }
}

/// The stream ends before the answer.
#[derive(Debug)]
struct StreamCut(ApiError);

impl std::fmt::Display for StreamCut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.message())
    }
}

impl std::error::Error for StreamCut {}

/// Adds the id of the run.
pub(crate) fn name_run(headers: &mut HeaderMap, run: RunId) {
    let id = HeaderValue::from_str(&run.to_string());
    headers.extend(id.ok().map(|id| (RUN_ID, id)));
}

/// Tokens of a run's model calls so far. The last calls may be missing: they are settled after the run's end, while
/// a runner reports its tokens before.
pub(crate) async fn tokens_of(state: &ApiState, run: RunId) -> ApiResult<Option<TokenParts>> {
    let used = state.runs.store().usage().usage_of_run(run).await?;
    let models = used.iter().filter(|used| used.kind == "model");
    let counted = models.map(|used| used.tokens).reduce(TokenParts::plus);
    Ok(counted)
}

/// Tokens that a runner reports with an event.
pub(crate) fn reported_tokens(event: &AgentRunEvent) -> Option<TokenParts> {
    let reported = serde_json::Value::Object(event.usage.clone()?);
    let reported = usage(&reported)?;
    Some(TokenParts::of(Some(&reported)))
}
