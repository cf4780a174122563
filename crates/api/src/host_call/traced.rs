//! What is told of a call to whoever collects traces.

use domain::trace::TraceParent;

use super::HostCall;
use models::Model;
use telemetry::spans::{Begun, CallSpan};

/// A call that is told of when it ends.
pub(super) struct Traced {
    pub(super) begun: Begun,
    /// The span that the runner called under.
    pub(super) told: Option<TraceParent>,
    /// `None`: nothing is told of it.
    pub(super) span: Option<CallSpan>,
    /// What went wrong although there is a result.
    pub(super) fault: Option<&'static str>,
}

impl HostCall {
    /// It is a call of a model: of `action`, as the audit names it.
    pub(crate) fn trace_model(&mut self, action: &str, id: &str, model: &Model) {
        let operation = match action {
            "models_embed" => "embeddings",
            "models_rerank" => "rerank",
            _ => "chat",
        };
        self.trace(|| CallSpan::of_model(operation, model.provider.kind(), &model.upstream, id));
    }

    /// It is a call of a tool, under this key if any.
    pub(crate) fn trace_tool(&mut self, name: &str, key: Option<&str>) {
        self.trace(|| CallSpan::of_tool(name, key));
    }

    /// It is a search in a knowledge base, for so many passages if that was said.
    pub(crate) fn trace_retrieval(&mut self, kb_id: &str, top_k: Option<u64>) {
        self.trace(|| CallSpan::of_retrieval(kb_id, top_k));
    }

    /// So many passages were found.
    pub(crate) fn note_passages(&mut self, passages: usize) {
        if let Some(span) = &mut self.traced.span {
            span.count_passages(passages as u64);
        }
    }

    /// The tool says itself that it has failed.
    pub(crate) fn note_tool_error(&mut self) {
        self.traced.fault = Some("tool_error");
    }

    fn trace(&mut self, span: impl FnOnce() -> CallSpan) {
        let runs = &self.runs;
        if !self.ended && runs.spans().tells_of(&self.grant.run) {
            self.traced.span = Some(span());
        }
    }

    /// Tells of it, once.
    pub(super) fn tell(&mut self, outcome: &'static str, used: Option<(u64, u64, bool)>) {
        let Some(mut span) = self.traced.span.take() else {
            return;
        };
        if let Some((input, output, is_estimate)) = used {
            span.count(input, output, is_estimate);
        }
        let error = (outcome != "ok").then_some(outcome);
        let error = error.or(self.traced.fault);
        let Self { runs, grant, .. } = self;
        let Traced { begun, told, .. } = self.traced;
        runs.spans()
            .call_ended(&grant.run, told, begun, span, error);
    }
}
