//! Trace spans of host calls.

use domain::trace::TraceParent;
use domain::usage::TokenParts;

use super::HostCall;
use models::Model;
use telemetry::spans::{CallSpan, SpanStart};

/// A call to export when it ends.
pub(crate) struct CallTrace {
    pub(super) begun: SpanStart,
    /// The span of the caller.
    pub(super) trace_parent: Option<TraceParent>,
    /// `None`: the call is not exported.
    pub(super) span: Option<CallSpan>,
    /// An error in spite of a result.
    pub(super) fault: Option<&'static str>,
}

impl CallTrace {
    /// Records the number of passages found.
    pub(crate) fn note_passages(&mut self, passages: usize) {
        if let Some(span) = &mut self.span {
            span.count_passages(passages as u64);
        }
    }

    /// Records that the tool reported an error.
    pub(crate) fn note_tool_error(&mut self) {
        self.fault = Some("tool_error");
    }

    /// Records the time of a chunk of a stream.
    pub(crate) fn note_chunk(&mut self) {
        if let Some(span) = &mut self.span {
            span.count_chunk(self.begun.elapsed());
        }
    }
}

impl HostCall {
    /// Starts the span of a model call. `action` is the audit action.
    pub(crate) fn trace_model(&mut self, action: &str, id: &str, model: &Model) {
        let operation = match action {
            "models_embed" => "embeddings",
            "models_rerank" => "rerank",
            _ => "chat",
        };
        self.trace(|| CallSpan::of_model(operation, model.provider.kind(), &model.upstream, id));
    }

    /// Starts the span of a tool call, with its idempotency key if any.
    pub(crate) fn trace_tool(&mut self, name: &str, key: Option<&str>) {
        self.trace(|| CallSpan::of_tool(name, key));
    }

    /// Starts the span of a knowledge search, with `top_k` if given.
    pub(crate) fn trace_retrieval(&mut self, kb_id: &str, top_k: Option<u64>) {
        self.trace(|| CallSpan::of_retrieval(kb_id, top_k));
    }

    /// The span of the call.
    pub(crate) fn trace_mut(&mut self) -> &mut CallTrace {
        &mut self.traced
    }

    fn trace(&mut self, span: impl FnOnce() -> CallSpan) {
        let runs = &self.runs;
        // A denied call is in the audit log only.
        if !self.ended && runs.spans().exports(&self.grant.run) {
            self.traced.span = Some(span());
        }
    }

    /// Exports the span, once.
    pub(super) fn export(&mut self, outcome: &'static str, used: Option<(TokenParts, bool)>) {
        // Taken, so that the drop of the call exports nothing again.
        let Some(mut span) = self.traced.span.take() else {
            return;
        };
        if let Some((tokens, is_estimate)) = used {
            span.count(tokens);
            if is_estimate {
                span.mark_estimate();
            }
        }
        let error = (outcome != "ok").then_some(outcome);
        let error = error.or(self.traced.fault);
        let Self { runs, grant, .. } = self;
        let CallTrace {
            begun,
            trace_parent,
            ..
        } = self.traced;
        runs.spans()
            .call_ended(&grant.run, trace_parent, begun, span, error);
    }
}
