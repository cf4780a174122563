//! Spans of runs, with OpenTelemetry's conventions for generative AI.
//!
//! Spans are recorded at their end without blocking: they are queued, or dropped if the queue is full.
//! Attributes hold configured names, ids, counts and codes, but never text of persons, models or tools.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::run::Run;
use domain::trace::{RunTrace, SpanId, TraceId, TraceParent};
use domain::usage::TokenParts;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::gen_ai::GenAiMetrics;
use crate::metrics;
use clock::Clock;

/// Queue size in spans. Further ones are dropped.
const QUEUED: usize = 2048;
/// Maximum length of names and text attributes, in characters.
const TEXT_CHARS: usize = 256;

pub(crate) const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub(crate) const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub(crate) const IS_ESTIMATE: &str = "runnel.usage.is_estimate";
pub(crate) const FIRST_CHUNK: &str = "gen_ai.response.time_to_first_chunk";

/// Span recorder. Cheap to clone; the default records nothing.
#[derive(Clone, Default)]
pub struct Spans(Option<SpanQueue>);

#[derive(Clone)]
struct SpanQueue {
    queue: mpsc::Sender<Span>,
    sample_ratio: f64,
    /// `None`: metrics are not exported.
    metrics: Option<Arc<GenAiMetrics>>,
}

/// A span of a trace.
#[derive(Debug)]
pub struct Span {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    pub parent: Option<SpanId>,
    pub kind: SpanKind,
    pub name: String,
    /// Since 1970.
    pub start: Duration,
    pub end: Duration,
    pub attributes: Vec<(&'static str, SpanAttribute)>,
    /// Error code; `None`: success.
    pub error: Option<String>,
}

/// Kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    Internal,
    /// A call to another service.
    Client,
}

/// Export result of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exported {
    /// Accepted by the collector.
    Taken,
    /// Not sent, or rejected.
    Failed,
    /// Dropped: the queue was full.
    Dropped,
}

impl Exported {
    /// All results.
    pub const ALL: [Self; 3] = [Self::Taken, Self::Failed, Self::Dropped];

    /// Value of the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }
}

/// An attribute value.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanAttribute {
    Text(String),
    Number(u64),
    Seconds(f64),
    Flag(bool),
}

/// The start time of a span.
#[derive(Clone, Copy, Debug)]
pub struct SpanStart {
    wall: Duration,
    at: Instant,
}

impl SpanStart {
    /// The current time.
    pub fn now(clock: Clock) -> Self {
        Self {
            wall: since_1970(clock.now_ms()),
            at: Instant::now(),
        }
    }

    /// Time since then.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }
}

impl Spans {
    /// A recorder that samples this fraction of traces, and the queue of its spans. `metrics` measure all spans.
    pub fn exporting(
        sample_ratio: f64,
        metrics: Option<Arc<GenAiMetrics>>,
    ) -> (Self, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(QUEUED);
        let exporting = SpanQueue {
            queue,
            sample_ratio,
            metrics,
        };
        (Self(Some(exporting)), spans)
    }

    /// The parent span of an event. `None` if export is off.
    pub fn parent_of(&self, header: Option<&str>) -> Option<TraceParent> {
        self.0.as_ref()?;
        header.and_then(TraceParent::parse)
    }

    /// Trace header for the run's outgoing calls.
    pub fn header_of(&self, run: &Run) -> TraceParent {
        let trace = trace_of(run);
        let exporting = self.0.as_ref();
        trace.header(exporting.map(|exporting| exporting.sample_ratio))
    }

    /// True when spans of the run are exported or measured.
    pub fn exports(&self, run: &Run) -> bool {
        let exporting = self.0.as_ref();
        exporting.is_some_and(|exporting| {
            exporting.metrics.is_some() || trace_of(run).is_sampled(exporting.sample_ratio)
        })
    }

    /// Records a run that ends now. `error`: the error code, unless it succeeded.
    pub fn run_ended(&self, run: &Run, agent_name: &str, end_ms: i64, error: Option<&str>) {
        let trace = trace_of(run);
        let mut attributes = vec![
            ("gen_ai.operation.name", text("invoke_agent")),
            ("gen_ai.provider.name", text("runnel")),
            ("gen_ai.agent.id", text(&run.agent_id.to_string())),
            ("gen_ai.agent.name", text(agent_name)),
            ("runnel.run.id", text(&run.id.to_string())),
            ("runnel.runner.id", text(&run.runner_id.to_string())),
        ];
        if let Some(key) = &run.conversation_key {
            // The database key, since the platform's conversation id may be a phone number.
            attributes.push(("gen_ai.conversation.id", text(key)));
        }
        let span = Span {
            trace_id: trace.trace_id,
            span_id: trace.span_id,
            parent: trace.parent.map(|parent| parent.span_id),
            kind: SpanKind::Client,
            name: cut(&format!("invoke_agent {agent_name}")),
            start: since_1970(run.created_at),
            end: since_1970(end_ms),
            attributes,
            error: error.map(cut),
        };
        self.tell(&trace, span);
    }

    /// Records a call of the run's runner that ends now. `runner_parent`: the parent span from the runner's header.
    pub fn call_ended(
        &self,
        run: &Run,
        runner_parent: Option<TraceParent>,
        begun: SpanStart,
        mut call: CallSpan,
        error: Option<&str>,
    ) {
        let trace = trace_of(run);
        if let Some(after) = call.first_chunk {
            let seconds = SpanAttribute::Seconds(after.as_secs_f64());
            call.attributes.push((FIRST_CHUNK, seconds));
        }
        let span = Span {
            trace_id: trace.trace_id,
            span_id: SpanId::of(Uuid::new_v4()),
            parent: Some(trace.parent_of_call(runner_parent)),
            kind: call.kind,
            name: cut(&call.name),
            start: begun.wall,
            // The end from the monotonic clock: a clock that is set back must not make it earlier than the start.
            end: begun.wall + begun.elapsed(),
            attributes: call.attributes,
            error: error.map(cut),
        };
        self.tell(&trace, span);
    }

    fn tell(&self, trace: &RunTrace, span: Span) {
        let Some(exporting) = &self.0 else { return };
        // Before the sampling, which would make counts of calls wrong.
        if let Some(metrics) = &exporting.metrics {
            metrics.record(&span);
        }
        if !trace.is_sampled(exporting.sample_ratio) {
            return;
        }
        // Never waits: a slow collector must not delay runs.
        if exporting.queue.try_send(span).is_err() {
            metrics::spans_exported(Exported::Dropped, 1);
        }
    }
}

/// Attributes of a call to a model, tool or knowledge base.
#[derive(Debug)]
pub struct CallSpan {
    kind: SpanKind,
    name: String,
    attributes: Vec<(&'static str, SpanAttribute)>,
    /// Time from the start to the first chunk of a stream.
    first_chunk: Option<Duration>,
}

impl CallSpan {
    /// A model call. `operation`: `chat`, `embeddings`, `rerank`; `provider`: its kind; `upstream`: the
    /// provider's model name; `id`: the granted id.
    pub fn of_model(operation: &'static str, provider: &str, upstream: &str, id: &str) -> Self {
        Self {
            kind: SpanKind::Client,
            name: format!("{operation} {upstream}"),
            attributes: vec![
                ("gen_ai.operation.name", text(operation)),
                ("gen_ai.provider.name", text(provider)),
                ("gen_ai.request.model", text(upstream)),
                ("runnel.model.id", text(id)),
            ],
            first_chunk: None,
        }
    }

    /// A tool call. `call_id`: its idempotency key.
    pub fn of_tool(name: &str, call_id: Option<&str>) -> Self {
        let mut attributes = vec![
            ("gen_ai.operation.name", text("execute_tool")),
            ("gen_ai.tool.name", text(name)),
        ];
        if let Some(id) = call_id {
            attributes.push(("gen_ai.tool.call.id", text(id)));
        }
        Self {
            kind: SpanKind::Internal,
            name: format!("execute_tool {name}"),
            attributes,
            first_chunk: None,
        }
    }

    /// A knowledge base search. `top_k`: the requested number of passages, if any.
    pub fn of_retrieval(kb_id: &str, top_k: Option<u64>) -> Self {
        let mut attributes = vec![
            ("gen_ai.operation.name", text("retrieval")),
            ("gen_ai.data_source.id", text(kb_id)),
        ];
        if let Some(top_k) = top_k {
            attributes.push(("gen_ai.retrieval.top_k", SpanAttribute::Number(top_k)));
        }
        Self {
            kind: SpanKind::Client,
            name: format!("retrieval {kb_id}"),
            attributes,
            first_chunk: None,
        }
    }

    /// Sets the number of passages found.
    pub fn count_passages(&mut self, passages: u64) {
        let found = ("runnel.retrieval.passages", SpanAttribute::Number(passages));
        self.attributes.push(found);
    }

    /// Sets the time from the start to a chunk of a stream. The first one counts.
    pub fn count_chunk(&mut self, after: Duration) {
        self.first_chunk.get_or_insert(after);
    }

    /// Sets the token usage. By convention cached and reasoning tokens
    /// are part of the input and output counts.
    pub fn count(&mut self, tokens: TokenParts) {
        let counts = [
            (INPUT_TOKENS, tokens.prompt()),
            (OUTPUT_TOKENS, tokens.completion()),
        ];
        let details = [
            ("gen_ai.usage.cache_read.input_tokens", tokens.cache_read),
            (
                "gen_ai.usage.cache_creation.input_tokens",
                tokens.cache_write(),
            ),
            ("gen_ai.usage.reasoning.output_tokens", tokens.reasoning),
        ];
        let details = details.into_iter().filter(|(_, count)| *count > 0);
        for (name, count) in counts.into_iter().chain(details) {
            self.attributes.push((name, SpanAttribute::Number(count)));
        }
    }

    /// Marks the token usage as estimated here.
    pub fn mark_estimate(&mut self) {
        let flag = (IS_ESTIMATE, SpanAttribute::Flag(true));
        self.attributes.push(flag);
    }
}

/// Position of a run in its trace.
pub fn trace_of(run: &Run) -> RunTrace {
    RunTrace::of(run.id, run.trace_parent)
}

fn text(text: &str) -> SpanAttribute {
    SpanAttribute::Text(cut(text))
}

fn cut(text: &str) -> String {
    // By characters: a cut inside one would not be UTF-8.
    text.chars().take(TEXT_CHARS).collect()
}

fn since_1970(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use protocol::id::RunId;

    use super::*;

    #[test]
    fn drops_spans_when_the_queue_is_full() {
        let (spans, mut queue) = Spans::exporting(1.0, None);
        let trace = RunTrace::of(RunId(Uuid::now_v7()), None);
        let one = || Span {
            trace_id: trace.trace_id,
            span_id: SpanId::of(Uuid::new_v4()),
            parent: None,
            kind: SpanKind::Internal,
            name: String::new(),
            start: Duration::ZERO,
            end: Duration::ZERO,
            attributes: Vec::new(),
            error: None,
        };
        for _ in 0..QUEUED + 100 {
            spans.tell(&trace, one());
        }
        let taken = std::iter::from_fn(|| queue.try_recv().ok()).count();
        assert_eq!(taken, QUEUED);
        spans.tell(&trace, one());
        assert!(queue.try_recv().is_ok(), "the queue accepts spans again");
    }

    #[test]
    fn exports_nothing_and_ignores_headers_by_default() {
        let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(Spans::default().parent_of(Some(header)).is_none());
        let (spans, _queue) = Spans::exporting(0.0, None);
        assert!(spans.parent_of(Some(header)).is_some());
        assert!(spans.parent_of(Some("00-canary")).is_none());
    }

    #[test]
    fn truncates_long_names_at_character_boundaries() {
        assert_eq!(cut(&"ä".repeat(1000)), "ä".repeat(TEXT_CHARS));
    }
}
