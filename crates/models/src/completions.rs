//! Normalizes completions for both host APIs: separates tool calls, joins surrogate halves, merges token usage,
//! and ignores failures after the end of an answer.

use std::time::Duration;

use domain::json_repair::SurrogateHalves;
use domain::usage::{add_usage, usage_of};
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _};
use llm_formats::chat::{Assembler, assign_call_ids};
use protocol::JsonObject;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Chunks;
use super::deviations::ResponseDeviations;
use egress::upstream::UpstreamError;

mod normalizer;

use normalizer::{CompletionNormalizer, Step};

/// Maximum wait for token usage after a complete answer.
const REST: Duration = Duration::from_secs(3);

/// One piece of a streamed completion.
pub(super) enum CompletionPiece {
    Chunk {
        chunk: JsonObject,
        halves: SurrogateHalves,
    },
    /// The provider's own end mark.
    End,
}

impl CompletionPiece {
    /// A chunk whose texts are complete.
    pub(super) fn complete(chunk: JsonObject) -> Self {
        Self::Chunk {
            chunk,
            halves: SurrogateHalves::Absent,
        }
    }
}

/// Pieces of a completion. Others may follow a `Malformed` error.
pub(super) type CompletionPieces = BoxStream<'static, Result<CompletionPiece, UpstreamError>>;

/// Number of answers that a request asks for.
pub(super) fn requested_answers(body: &JsonObject) -> usize {
    let requested = body.get("n").and_then(Value::as_u64).unwrap_or(1);
    usize::try_from(requested).unwrap_or(usize::MAX)
}

/// Chunks of a completion with this number of answers. An error is the last item; without one the answer is
/// complete.
pub(super) fn normalized(
    pieces: CompletionPieces,
    answers: usize,
    noted: ResponseDeviations,
) -> Chunks {
    let settling = NormalizedStream {
        pieces,
        normalizer: CompletionNormalizer::new(answers, noted),
        rest: None,
        is_over: false,
    };
    let chunks = stream::unfold(settling, NormalizedStream::next);
    chunks.boxed()
}

struct NormalizedStream {
    pieces: CompletionPieces,
    normalizer: CompletionNormalizer,
    /// Deadline for pieces after a complete answer.
    rest: Option<Instant>,
    is_over: bool,
}

impl NormalizedStream {
    async fn next(mut self) -> Option<(Result<JsonObject, UpstreamError>, Self)> {
        while !self.is_over {
            let piece = self.pieces.next();
            // After a complete answer only usage may follow, so wait for a limited time.
            let piece = match self.rest {
                None => piece.await,
                Some(until) => {
                    let Ok(piece) = tokio::time::timeout_at(until, piece).await else {
                        self.normalizer.note("open_behind_answer");
                        return None;
                    };
                    piece
                }
            };
            let step = self.normalizer.step(piece);
            if self.normalizer.is_complete() {
                // The first deadline stays: further pieces must not extend it.
                self.rest.get_or_insert_with(|| Instant::now() + REST);
            }
            match step {
                Step::Nothing => {}
                Step::Give(chunk) => return Some((Ok(chunk), self)),
                Step::Over(last) => {
                    self.is_over = true;
                    return last.map(|last| (last, self));
                }
            }
        }
        None
    }
}

/// Validates a document as a completion.
pub(super) fn completion(mut document: JsonObject) -> Result<JsonObject, UpstreamError> {
    let choices = document.get_mut("choices").and_then(Value::as_array_mut);
    // A list of null choices is no answer.
    let choices = choices.filter(|choices| choices.iter().any(Value::is_object));
    let choices = choices.ok_or_else(|| {
        UpstreamError::Malformed("it is no completion: it has no choices".to_owned())
    })?;
    for choice in choices {
        if let Some(message) = choice.get_mut("message") {
            // Some servers send calls without an id, and clients match results by it.
            assign_call_ids(message);
        }
    }
    if let Some(usage) = usage_of(&document) {
        document.insert("usage".to_owned(), json!(usage));
    }
    Ok(document)
}

/// Assembles streamed chunks into one completion.
pub(super) async fn assembled(
    mut chunks: impl Stream<Item = Result<JsonObject, UpstreamError>> + Unpin,
) -> Result<JsonObject, UpstreamError> {
    let mut assembler = Assembler::default();
    while let Some(chunk) = chunks.next().await {
        match chunk {
            Ok(chunk) => assembler.add(chunk),
            Err(UpstreamError::Malformed(what)) => {
                let what = format!("a stream of events instead of a document: {what}");
                return Err(UpstreamError::Malformed(what));
            }
            Err(failed) => return Err(failed),
        }
    }
    Ok(assembler.finish())
}
