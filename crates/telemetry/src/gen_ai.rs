//! Metrics of OpenTelemetry's conventions for generative AI, derived from ended spans.
//!
//! Each is a histogram from the start of the process on. Attributes are configured names and error codes, as in
//! [`crate::metrics`].

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clock::Clock;

use crate::spans::{FIRST_CHUNK, INPUT_TOKENS, IS_ESTIMATE, OUTPUT_TOKENS, Span, SpanAttribute};

/// Maximum number of series. Measurements of further ones share one series of their metric.
const SERIES: usize = 2000;

const CALL_SECONDS: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];

/// A histogram of the conventions, with their names, units and boundaries.
#[derive(Debug)]
pub struct Instrument {
    pub name: &'static str,
    pub unit: &'static str,
    pub description: &'static str,
    /// Upper boundaries of all buckets but the last, inclusive.
    pub bounds: &'static [f64],
    /// Attributes of spans that the metric also has.
    attributes: &'static [&'static str],
}

static OPERATION_DURATION: Instrument = Instrument {
    name: "gen_ai.client.operation.duration",
    unit: "s",
    description: "GenAI operation duration.",
    bounds: CALL_SECONDS,
    attributes: CALL_ATTRIBUTES,
};

static FIRST_CHUNK_DURATION: Instrument = Instrument {
    name: "gen_ai.client.operation.time_to_first_chunk",
    unit: "s",
    description: "Time to receive the first chunk of a stream.",
    bounds: CALL_SECONDS,
    attributes: CALL_ATTRIBUTES,
};

pub(crate) static TOKEN_USAGE: Instrument = Instrument {
    name: "gen_ai.client.token.usage",
    unit: "{token}",
    description: "Number of input and output tokens used.",
    bounds: &[
        1.0,
        4.0,
        16.0,
        64.0,
        256.0,
        1024.0,
        4096.0,
        16_384.0,
        65_536.0,
        262_144.0,
        1_048_576.0,
        4_194_304.0,
        16_777_216.0,
        67_108_864.0,
    ],
    attributes: CALL_ATTRIBUTES,
};

static AGENT_DURATION: Instrument = Instrument {
    name: "gen_ai.invoke_agent.duration",
    unit: "s",
    description: "Duration of a run, from its event to its end.",
    bounds: &[
        0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6,
    ],
    attributes: &["gen_ai.agent.name"],
};

static TOOL_DURATION: Instrument = Instrument {
    name: "gen_ai.execute_tool.duration",
    unit: "s",
    description: "Duration of a tool call.",
    bounds: CALL_SECONDS,
    attributes: &["gen_ai.tool.name"],
};

const CALL_ATTRIBUTES: &[&str] = &[
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
];

/// Attributes of a series, by name. Empty: those of the series that all further ones share.
pub type SeriesAttributes = Vec<(&'static str, String)>;

/// The measurements of one series.
#[derive(Clone, Debug)]
pub struct Distribution {
    pub instrument: &'static Instrument,
    pub sum: f64,
    pub min: f64,
    pub max: f64,
    /// One more than the boundaries.
    pub buckets: Vec<u64>,
}

/// All series of the process.
pub struct GenAiMetrics {
    /// Since 1970.
    began: Duration,
    at: Instant,
    series: Mutex<BTreeMap<(&'static str, SeriesAttributes), Distribution>>,
}

impl GenAiMetrics {
    /// Metrics without measurements.
    pub fn begin(clock: Clock) -> Self {
        Self {
            began: clock.since_epoch(),
            at: Instant::now(),
            series: Mutex::default(),
        }
    }

    /// Begin of the measurements and the current time, since 1970.
    pub fn period(&self) -> std::ops::Range<Duration> {
        self.began..self.began + self.at.elapsed()
    }

    /// A copy of all series.
    pub fn all(&self) -> Vec<(SeriesAttributes, Distribution)> {
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let copies = series.iter();
        copies
            .map(|((_, attributes), one)| (attributes.clone(), one.clone()))
            .collect()
    }

    /// Measures an ended span.
    pub fn record(&self, span: &Span) {
        let seconds = span.end.saturating_sub(span.start).as_secs_f64();
        let duration = match attribute(span, "gen_ai.operation.name") {
            Some(SpanAttribute::Text(operation)) if operation == "invoke_agent" => &AGENT_DURATION,
            Some(SpanAttribute::Text(operation)) if operation == "execute_tool" => &TOOL_DURATION,
            _ => &OPERATION_DURATION,
        };
        let mut attributes = duration.of(span);
        if let Some(error) = &span.error {
            attributes.push(("error.type", error.clone()));
        }
        self.add(duration, attributes, seconds);
        if let Some(SpanAttribute::Seconds(after)) = attribute(span, FIRST_CHUNK) {
            let attributes = FIRST_CHUNK_DURATION.of(span);
            self.add(&FIRST_CHUNK_DURATION, attributes, *after);
        }
        // The conventions allow no estimated counts by default.
        if attribute(span, IS_ESTIMATE).is_some() {
            return;
        }
        for (name, direction) in [(INPUT_TOKENS, "input"), (OUTPUT_TOKENS, "output")] {
            if let Some(SpanAttribute::Number(tokens)) = attribute(span, name) {
                let mut attributes = TOKEN_USAGE.of(span);
                attributes.push(("gen_ai.token.type", direction.to_owned()));
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "token counts are far below 2^53"
                )]
                self.add(&TOKEN_USAGE, attributes, *tokens as f64);
            }
        }
    }

    fn add(&self, instrument: &'static Instrument, attributes: SeriesAttributes, measured: f64) {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = (instrument.name, attributes);
        if series.len() >= SERIES && !series.contains_key(&key) {
            key.1.clear();
        }
        let one = series.entry(key).or_insert_with(|| Distribution {
            instrument,
            sum: 0.0,
            min: measured,
            max: measured,
            buckets: vec![0; instrument.bounds.len() + 1],
        });
        one.sum += measured;
        one.min = one.min.min(measured);
        one.max = one.max.max(measured);
        let bucket = instrument.bounds.partition_point(|bound| *bound < measured);
        if let Some(count) = one.buckets.get_mut(bucket) {
            *count += 1;
        }
    }
}

impl Instrument {
    fn of(&self, span: &Span) -> SeriesAttributes {
        let names = self.attributes.iter();
        names
            .filter_map(|name| match attribute(span, name) {
                Some(SpanAttribute::Text(text)) => Some((*name, text.clone())),
                _ => None,
            })
            .collect()
    }
}

fn attribute<'a>(span: &'a Span, name: &str) -> Option<&'a SpanAttribute> {
    let found = span.attributes.iter().find(|(other, _)| *other == name);
    found.map(|(_, attribute)| attribute)
}

#[cfg(test)]
mod tests {
    use domain::trace::{RunTrace, SpanId};
    use protocol::id::RunId;
    use uuid::Uuid;

    use super::*;
    use crate::spans::SpanKind;

    fn tool_span(tool: &str, millis: u64) -> Span {
        Span {
            trace_id: RunTrace::of(RunId(Uuid::now_v7()), None).trace_id,
            span_id: SpanId::of(Uuid::new_v4()),
            parent: None,
            kind: SpanKind::Internal,
            name: String::new(),
            start: Duration::from_secs(1),
            end: Duration::from_secs(1) + Duration::from_millis(millis),
            attributes: vec![
                (
                    "gen_ai.operation.name",
                    SpanAttribute::Text("execute_tool".to_owned()),
                ),
                ("gen_ai.tool.name", SpanAttribute::Text(tool.to_owned())),
            ],
            error: None,
        }
    }

    #[test]
    fn counts_boundaries_in_the_lower_bucket() {
        let metrics = GenAiMetrics::begin(Clock::system());
        for millis in [10, 11, 100_000] {
            metrics.record(&tool_span("echo", millis));
        }
        let mut failed = tool_span("echo", 20);
        failed.error = Some("timeout".to_owned());
        metrics.record(&failed);
        let all = metrics.all();
        let [(ok, one), (failed, _)] = &all[..] else {
            panic!("{all:?}")
        };
        assert_eq!(ok, &[("gen_ai.tool.name", "echo".to_owned())]);
        assert_eq!(failed[1], ("error.type", "timeout".to_owned()));
        assert_eq!((one.buckets[0], one.buckets[1], one.buckets[14]), (1, 1, 1));
        assert_eq!((one.min, one.max), (0.01, 100.0));
    }

    #[test]
    fn further_series_share_one() {
        let metrics = GenAiMetrics::begin(Clock::system());
        for tool in 0..SERIES + 10 {
            metrics.record(&tool_span(&tool.to_string(), 1));
        }
        let all = metrics.all();
        assert_eq!(all.len(), SERIES + 1);
        let shared = all.iter().find(|(attributes, _)| attributes.is_empty());
        assert_eq!(shared.unwrap().1.buckets[0], 10);
    }
}
