//! The streaming answer of a model call.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _};
use protocol::JsonObject;

use super::hooked::CheckedStream;
use super::pipeline::{FaceAnswer, LastFrames};
use super::token_bounds::generated_bytes;
use crate::host_call::HostCall;
use egress::upstream::UpstreamError;
use web::error::{ApiError, ApiResult};

/// A streaming answer. If it is dropped, the call ends as abandoned.
pub(super) struct AnswerStream {
    pub(super) call: HostCall,
    pub(super) items: BoxStream<'static, ApiResult<JsonObject>>,
    /// The items are chunks of a completion.
    pub(super) is_completion: bool,
    pub(super) answer: Box<dyn FaceAnswer>,
    /// Interval of heartbeats.
    pub(super) heartbeat: Duration,
    /// The text for the hooks, until they have checked it.
    pub(super) check: Option<CheckedStream>,
}

impl AnswerStream {
    /// All frames. The stream ends with the run or the first error.
    pub(super) fn frames(mut self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        let begun = self.answer.begin();
        self.call.add_bytes(begun.len());
        let later = stream::unfold(
            Some(self),
            |stream| async move { Some(stream?.next().await) },
        );
        stream::once(std::future::ready(begun))
            .chain(later)
            .filter(|frames| std::future::ready(!frames.is_empty()))
            .map(Ok)
    }

    /// The next frames, and the rest of the stream.
    async fn next(mut self) -> (Bytes, Option<Self>) {
        let beat = self.answer.heartbeat();
        let item = match beat {
            None => self.items.next().await,
            Some(beat) => match tokio::time::timeout(self.heartbeat, self.items.next()).await {
                Ok(item) => item,
                // The item is not lost: `next` of the stream is cancel-safe, and the next frame waits for it again.
                Err(_) => return (beat, Some(self)),
            },
        };
        match item {
            Some(Ok(item)) => self.read(item).await,
            Some(Err(failed)) => (self.fail(failed), None),
            None => (self.finish(), None),
        }
    }

    async fn read(mut self, item: JsonObject) -> (Bytes, Option<Self>) {
        self.call.trace_mut().note_chunk();
        if self.is_completion {
            self.call.count(domain::usage::usage_of(&item));
            self.call.count_text(generated_bytes(&item, "delta"));
        }
        if let Some(check) = &mut self.check {
            check.add(&item);
        }
        let rendered = match self.answer.item(item) {
            Ok(rendered) => rendered,
            Err(failed) => return (self.fail(failed), None),
        };
        self.call.count(rendered.counted.usage);
        self.call.count_text(rendered.counted.text_bytes);
        let is_last = rendered.end.as_ref().map(Result::is_ok);
        // Before the end of the answer is sent: a refused stream must not look complete.
        if is_last.unwrap_or_else(|| self.answer.has_finished())
            && let Err(refused) = self.checked().await
        {
            return (self.fail(refused), None);
        }
        if let Some(keep) = rendered.keep {
            keep();
        }
        self.call.add_bytes(rendered.frames.len());
        match rendered.end {
            None => self.within_budget(rendered.frames).await,
            // The provider may leave the connection open after its last event.
            Some(end) => {
                let _ = self.call.end(end.map_err(ApiError::from));
                (rendered.frames, None)
            }
        }
    }

    /// Passes the complete text through the hooks, once.
    async fn checked(&mut self) -> ApiResult<()> {
        match self.check.take() {
            Some(check) => self.call.within(check.check()).await,
            None => Ok(()),
        }
    }

    /// Ends the stream when its use reaches what its budgets have left. Exceeds them by the last item at most.
    async fn within_budget(mut self, frames: Bytes) -> (Bytes, Option<Self>) {
        // Nothing is left to stop: only the count of the answer may follow.
        if self.answer.has_finished() {
            return (frames, Some(self));
        }
        match self.call.grow().await {
            Ok(()) => (frames, Some(self)),
            Err(over) => ([frames, self.fail(over)].concat().into(), None),
        }
    }

    /// Ends the stream after the provider's last item.
    fn finish(mut self) -> Bytes {
        // Without this check, a cut answer would look complete to the client.
        if !self.answer.has_finished() {
            let cut = "the stream ended before the answer did".to_owned();
            return self.fail(UpstreamError::Malformed(cut).into());
        }
        let LastFrames { answer, mark } = self.answer.finish();
        self.call.add_bytes(answer.len());
        let _ = self.call.end(Ok(()));
        if mark.is_empty() {
            return answer;
        }
        [answer, mark].concat().into()
    }

    fn fail(self, failed: ApiError) -> Bytes {
        let failed = self.call.end::<()>(Err(failed)).err();
        let (status, error) = failed.unwrap_or_else(ApiError::internal).into_parts();
        self.answer.error(status, error)
    }
}
