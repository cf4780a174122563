//! What is told of runs to a collector of traces: spans after OpenTelemetry's conventions for generative AI.
//!
//! A span is written when what it tells has ended, and nobody waits for it: it is queued, or dropped where the
//! queue is full. Attributes hold names of the configuration, ids, counts and codes. What a person, a model
//! or a tool said never stands in one.

use std::time::{Duration, Instant};

use domain::run::Run;
use domain::trace::{RunTrace, SpanId, TraceId, TraceParent};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::metrics;
use base::clock::Clock;

/// Spans that wait for the collector. Those beyond are dropped.
const QUEUED: usize = 2048;
/// Names and texts of attributes are cut here.
const TEXT_CHARS: usize = 256;

/// Where spans go. Cheap to clone; the default is nowhere.
#[derive(Clone, Default)]
pub struct Spans(Option<Telling>);

#[derive(Clone)]
struct Telling {
    queue: mpsc::Sender<Span>,
    sample_ratio: f64,
}

/// Something that took its time in a trace.
#[derive(Debug)]
pub struct Span {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    pub parent: Option<SpanId>,
    pub kind: SpanKind,
    pub name: String,
    /// From 1970 on.
    pub start: Duration,
    pub end: Duration,
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Why it failed; `None`: it did not.
    pub error: Option<String>,
}

/// Whether what it tells happened here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    Internal,
    /// Somebody else was asked.
    Client,
}

/// What became of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A collector has taken it.
    Taken,
    /// It could not be told, or was not taken.
    Failed,
    /// Too many waited.
    Dropped,
}

impl Told {
    /// All that may become of one.
    pub const ALL: [Self; 3] = [Self::Taken, Self::Failed, Self::Dropped];

    /// As it is counted.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }
}

/// One value of a span.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    Text(String),
    Number(u64),
    Flag(bool),
}

/// The moment at which something began.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    wall: Duration,
    at: Instant,
}

impl Begun {
    /// Now.
    pub fn now(clock: Clock) -> Self {
        Self {
            wall: since_1970(clock.now_ms()),
            at: Instant::now(),
        }
    }

    /// How long ago that was.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }
}

impl Spans {
    /// Spans for a collector, of this part of the traces, and where it takes them from.
    pub fn telling(sample_ratio: f64) -> (Self, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(QUEUED);
        let telling = Telling {
            queue,
            sample_ratio,
        };
        (Self(Some(telling)), spans)
    }

    /// The span that an event came with, where it is gone on with: nowhere, when nobody is told.
    pub fn goes_on_with(&self, header: Option<&str>) -> Option<TraceParent> {
        self.0.as_ref()?;
        header.and_then(TraceParent::parse)
    }

    /// What a run tells whom it calls.
    pub fn header_of(&self, run: &Run) -> TraceParent {
        let trace = trace_of(run);
        let telling = self.0.as_ref();
        trace.header(telling.is_none_or(|telling| trace.is_sampled(telling.sample_ratio)))
    }

    /// Whether anything of this run is told.
    pub fn tells_of(&self, run: &Run) -> bool {
        let telling = self.0.as_ref();
        telling.is_some_and(|telling| trace_of(run).is_sampled(telling.sample_ratio))
    }

    /// Tells of a run that has ended now. `error`: the code of its end, unless that is good.
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
            // The row's own key: what a platform calls the conversation may be a telephone number.
            attributes.push(("gen_ai.conversation.id", text(key)));
        }
        self.tell(Span {
            trace_id: trace.trace_id,
            span_id: trace.span_id,
            parent: trace.parent.map(|parent| parent.span_id),
            kind: SpanKind::Client,
            name: cut(&format!("invoke_agent {agent_name}")),
            start: since_1970(run.created_at),
            end: since_1970(end_ms),
            attributes,
            error: error.map(cut),
        });
    }

    /// Tells of a call that the runner of a run has made, and that ends now. `told`: the span that the
    /// runner named.
    pub fn call_ended(
        &self,
        run: &Run,
        told: Option<TraceParent>,
        begun: Begun,
        call: CallSpan,
        error: Option<&str>,
    ) {
        let trace = trace_of(run);
        self.tell(Span {
            trace_id: trace.trace_id,
            span_id: SpanId::of(Uuid::new_v4()),
            parent: Some(trace.parent_of_call(told)),
            kind: call.kind,
            name: cut(&call.name),
            start: begun.wall,
            end: begun.wall + begun.elapsed(),
            attributes: call.attributes,
            error: error.map(cut),
        });
    }

    fn tell(&self, span: Span) {
        let Some(telling) = &self.0 else { return };
        if telling.queue.try_send(span).is_err() {
            metrics::spans_told(Told::Dropped, 1);
        }
    }
}

/// A call of a model, a tool or a knowledge base, as a span names it.
#[derive(Debug)]
pub struct CallSpan {
    kind: SpanKind,
    name: String,
    attributes: Vec<(&'static str, Attribute)>,
}

impl CallSpan {
    /// A call of a model. `operation`: `chat`, `embeddings`, `rerank`; `provider`: its kind; `upstream`: the
    /// model's name there; `id`: what it was granted as.
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
        }
    }

    /// A call of a tool. `call_id`: the key under which it is made once.
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
        }
    }

    /// A search in a knowledge base. `top_k`: how many passages were asked for, where that was said.
    pub fn of_retrieval(kb_id: &str, top_k: Option<u64>) -> Self {
        let mut attributes = vec![
            ("gen_ai.operation.name", text("retrieval")),
            ("gen_ai.data_source.id", text(kb_id)),
        ];
        if let Some(top_k) = top_k {
            attributes.push(("gen_ai.request.top_k", Attribute::Number(top_k)));
        }
        Self {
            kind: SpanKind::Client,
            name: format!("retrieval {kb_id}"),
            attributes,
        }
    }

    /// So many passages were found.
    pub fn count_passages(&mut self, passages: u64) {
        let found = ("runnel.retrieval.passages", Attribute::Number(passages));
        self.attributes.push(found);
    }

    /// What it used, as its provider has counted or, where that said nothing, we have.
    pub fn count(&mut self, input_tokens: u64, output_tokens: u64, is_estimate: bool) {
        let (input, output) = (
            Attribute::Number(input_tokens),
            Attribute::Number(output_tokens),
        );
        self.attributes.push(("gen_ai.usage.input_tokens", input));
        self.attributes.push(("gen_ai.usage.output_tokens", output));
        if is_estimate {
            let flag = ("runnel.usage.is_estimate", Attribute::Flag(true));
            self.attributes.push(flag);
        }
    }
}

/// Where a run stands in its trace.
pub fn trace_of(run: &Run) -> RunTrace {
    RunTrace::of(run.id, run.trace_parent)
}

fn text(text: &str) -> Attribute {
    Attribute::Text(cut(text))
}

fn cut(text: &str) -> String {
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
    fn what_does_not_fit_into_the_queue_is_dropped_and_nobody_waits() {
        let (spans, mut queue) = Spans::telling(1.0);
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
            spans.tell(one());
        }
        let taken = std::iter::from_fn(|| queue.try_recv().ok()).count();
        assert_eq!(taken, QUEUED);
        spans.tell(one());
        assert!(queue.try_recv().is_ok(), "there is room again");
    }

    #[test]
    fn nobody_is_told_by_default_and_no_header_is_gone_on_with() {
        let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(Spans::default().goes_on_with(Some(header)).is_none());
        let (spans, _queue) = Spans::telling(0.0);
        assert!(spans.goes_on_with(Some(header)).is_some());
        assert!(spans.goes_on_with(Some("00-canary")).is_none());
    }

    #[test]
    fn long_names_are_cut_between_letters() {
        assert_eq!(cut(&"ä".repeat(1000)), "ä".repeat(TEXT_CHARS));
    }
}
