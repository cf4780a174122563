//! Position of a run in a trace (W3C Trace Context): its parent and its span.

use std::fmt;

use protocol::id::RunId;
use uuid::Uuid;

/// Trace id: 32 hex digits, not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

/// Span id: 16 hex digits, not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId([u8; 8]);

/// Content of a `traceparent` header: the parent of the following spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    /// True if the sender records the trace.
    pub is_sampled: bool,
}

/// Trace of a run. It derives from the run's row, so every replica computes the same ids, also after a
/// take-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTrace {
    pub trace_id: TraceId,
    /// Span of the run.
    pub span_id: SpanId,
    /// Span of the run's event. `None`: the run is the root of its trace.
    pub parent: Option<TraceParent>,
}

impl TraceId {
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }
}

impl SpanId {
    /// `None` for the all-zero id.
    pub fn new(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8]).then_some(Self(bytes))
    }

    /// Returns the second half of an id, which is random in all ids generated here, and never zero.
    pub fn of(id: Uuid) -> Self {
        // UUIDs of version 7 begin with the time; the last half has the random bits and the variant, never 0.
        let [_, _, _, _, _, _, _, _, last @ ..] = *id.as_bytes();
        Self(last)
    }

    pub fn bytes(&self) -> [u8; 8] {
        self.0
    }
}

impl TraceParent {
    /// Parses a `traceparent`. A malformed header is ignored, because tracing must not fail a request.
    pub fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.split_at_checked(55)?;
        let mut parts = head.split('-');
        let [version] = hex(parts.next()?)?;
        // Later versions may append fields; this version may not.
        // Version 0xff is invalid by the standard.
        let may_continue = version != 0 && rest.starts_with('-');
        if version == 0xff || !(rest.is_empty() || may_continue) {
            return None;
        }
        let trace_id: [u8; 16] = hex(parts.next()?)?;
        let span_id = SpanId::new(hex(parts.next()?)?)?;
        let [flags] = hex(parts.next()?)?;
        // The standard forbids the all-zero id.
        let is_valid = parts.next().is_none() && trace_id != [0; 16];
        is_valid.then_some(Self {
            trace_id: TraceId(trace_id),
            span_id,
            is_sampled: flags & 1 == 1,
        })
    }
}

impl RunTrace {
    /// Returns the trace of the event's header. Without one, the run starts a trace with its own id.
    pub fn of(run: RunId, parent: Option<TraceParent>) -> Self {
        // Derived from the row, so that each replica computes the same id.
        let own = TraceId(*run.0.as_bytes());
        Self {
            trace_id: parent.map_or(own, |parent| parent.trace_id),
            span_id: SpanId::of(run.0),
            parent,
        }
    }

    /// Returns the sampling decision: the parent's, or the given ratio of trace ids. All replicas decide alike.
    pub fn is_sampled(&self, ratio: f64) -> bool {
        /// The standard defines the last seven bytes as random.
        const ALL: u32 = 1 << 28;
        let [.., a, b, c, d, _, _, _] = self.trace_id.0;
        let random = u32::from_be_bytes([a, b, c, d]) >> 4;
        match self.parent {
            // The sender has decided for its complete trace; another decision would leave gaps.
            Some(parent) => parent.is_sampled,
            None => f64::from(random) < ratio * f64::from(ALL),
        }
    }

    /// Returns the `traceparent` for outgoing calls of the run. Without a ratio, every run is sampled.
    pub fn header(&self, sample_ratio: Option<f64>) -> TraceParent {
        TraceParent {
            trace_id: self.trace_id,
            span_id: self.span_id,
            is_sampled: sample_ratio.is_none_or(|ratio| self.is_sampled(ratio)),
        }
    }

    /// Returns the parent span of a call from the run's runner. This is the runner's own span if it belongs to
    /// this trace, or the run's.
    pub fn parent_of_call(&self, traceparent: Option<TraceParent>) -> SpanId {
        // A runner may trace on its own; its span is foreign to this trace.
        let traceparent = traceparent.filter(|traceparent| traceparent.trace_id == self.trace_id);
        traceparent.map_or(self.span_id, |traceparent| traceparent.span_id)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(formatter, &self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(formatter, &self.0)
    }
}

/// Formats the header value.
impl fmt::Display for TraceParent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only the flag `sampled` is defined for version 00.
        let flags = u8::from(self.is_sampled);
        write!(
            formatter,
            "00-{}-{}-{flags:02x}",
            self.trace_id, self.span_id
        )
    }
}

fn write_hex(formatter: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes
        .iter()
        .try_for_each(|byte| write!(formatter, "{byte:02x}"))
}

/// Lower case only, as the standard requires.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    // `from_str_radix` would also take upper case and a sign.
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn parses_only_valid_traceparent_headers() {
        let parent = TraceParent::parse(HEADER).unwrap();
        assert!(parent.is_sampled);
        assert_eq!(parent.to_string(), HEADER);
        let unsampled = HEADER.replace("-01", "-00");
        assert!(!TraceParent::parse(&unsampled).unwrap().is_sampled);
        let later = format!("cc{}-what-comes", &HEADER[2..]);
        assert_eq!(TraceParent::parse(&later), Some(parent));
        for bad in [
            "",
            "00-canary-trace-01",
            &HEADER[..54],
            &format!("{HEADER}-more"),
            &format!("{HEADER}0"),
            &later.replace("-what", "what"),
            &format!("ff{}", &HEADER[2..]),
            &HEADER.to_uppercase(),
            &HEADER.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &HEADER.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &HEADER.replace("-00f0", "0-0f0"),
            &HEADER.replace("4bf9", "4bfg"),
            &format!("{}ä", &HEADER[..54]),
        ] {
            assert_eq!(TraceParent::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn runs_join_event_trace_or_start_their_own() {
        let run = RunId(Uuid::from_u128(0x01a1_ffb1_ba00_7c3a_9b1e_5f0c_2a7d_4e61));
        let root = RunTrace::of(run, None);
        assert_eq!(
            root.trace_id.to_string(),
            "01a1ffb1ba007c3a9b1e5f0c2a7d4e61"
        );
        assert_eq!(root.span_id.to_string(), "9b1e5f0c2a7d4e61");
        assert!(root.is_sampled(1.0) && !root.is_sampled(0.0));

        let parent = TraceParent::parse(HEADER).unwrap();
        let child = RunTrace::of(run, Some(parent));
        assert_eq!(
            (child.trace_id, child.span_id),
            (parent.trace_id, root.span_id)
        );
        assert!(child.is_sampled(0.0), "the sender has decided");

        let of_runner = TraceParent {
            span_id: SpanId::new([7; 8]).unwrap(),
            ..parent
        };
        assert_eq!(child.parent_of_call(Some(of_runner)), of_runner.span_id);
        assert_eq!(child.parent_of_call(None), child.span_id);
        assert_eq!(
            root.parent_of_call(Some(of_runner)),
            root.span_id,
            "a span of another trace is no parent"
        );
    }

    #[test]
    fn samples_given_ratio_of_traces() {
        // Evenly distributed over the random part of an id.
        let run = |n: u128| RunId(Uuid::from_u128(1 << 120 | n << 48));
        let sampled = |ratio: f64| {
            let runs = (0..256).map(|n| RunTrace::of(run(n), None));
            runs.filter(|run| run.is_sampled(ratio)).count()
        };
        assert_eq!([0.0, 0.25, 0.5, 1.0].map(sampled), [0, 64, 128, 256]);
    }

    proptest! {
        #[test]
        fn parser_never_panics(text in "\\PC{0,80}") {
            if let Some(parent) = TraceParent::parse(&text) {
                prop_assert_eq!(&parent.to_string()[3..52], &text[3..52]);
            }
        }
    }
}
