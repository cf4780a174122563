//! Where a run stands in a trace (W3C Trace Context): whose child it is, and what it is called there.

use std::fmt;

use protocol::id::RunId;
use uuid::Uuid;

/// The id of a trace: 32 hex digits, never all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

/// The id of a span in its trace: 16 hex digits, never all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId([u8; 8]);

/// What a `traceparent` header says: the span that whatever follows is a child of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    /// Whether its sender keeps the trace.
    pub is_sampled: bool,
}

/// The place of a run in a trace. It follows from what the run's row holds: every replica knows it, and one
/// that takes the run over goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTrace {
    pub trace_id: TraceId,
    /// The run's own span.
    pub span_id: SpanId,
    /// The span that the run's event came with; `None`: the run is the root of its trace.
    pub parent: Option<TraceParent>,
}

impl TraceId {
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }
}

impl SpanId {
    /// `None` for the id that means none.
    pub fn new(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8]).then_some(Self(bytes))
    }

    /// The last half of an id: random in every one that is made here, and never zero.
    pub fn of(id: Uuid) -> Self {
        let [_, _, _, _, _, _, _, _, last @ ..] = *id.as_bytes();
        Self(last)
    }

    pub fn bytes(&self) -> [u8; 8] {
        self.0
    }
}

impl TraceParent {
    /// Reads a `traceparent`. What is malformed, or names nobody, is none: a trace is nothing to fail for.
    pub fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.split_at_checked(55)?;
        let mut parts = head.split('-');
        let [version] = hex(parts.next()?)?;
        // A later version may add to the end, this one may not.
        let may_go_on = version != 0 && rest.starts_with('-');
        if version == 0xff || !(rest.is_empty() || may_go_on) {
            return None;
        }
        let trace_id: [u8; 16] = hex(parts.next()?)?;
        let span_id = SpanId::new(hex(parts.next()?)?)?;
        let [flags] = hex(parts.next()?)?;
        let is_whole = parts.next().is_none() && trace_id != [0; 16];
        is_whole.then_some(Self {
            trace_id: TraceId(trace_id),
            span_id,
            is_sampled: flags & 1 == 1,
        })
    }
}

impl RunTrace {
    /// The trace of a run whose event came with this header, else one of its own that is named like the run.
    pub fn of(run: RunId, parent: Option<TraceParent>) -> Self {
        let own = TraceId(*run.0.as_bytes());
        Self {
            trace_id: parent.map_or(own, |parent| parent.trace_id),
            span_id: SpanId::of(run.0),
            parent,
        }
    }

    /// Whether the trace is kept: as its sender has decided, else this part of all of them. Every replica
    /// decides alike.
    pub fn is_sampled(&self, ratio: f64) -> bool {
        /// What the standard calls random are the last seven bytes.
        const ALL: u32 = 1 << 28;
        let [.., a, b, c, d, _, _, _] = self.trace_id.0;
        let place = u32::from_be_bytes([a, b, c, d]) >> 4;
        match self.parent {
            Some(parent) => parent.is_sampled,
            None => f64::from(place) < ratio * f64::from(ALL),
        }
    }

    /// What is told to whom the run calls.
    pub fn header(&self, is_sampled: bool) -> TraceParent {
        TraceParent {
            trace_id: self.trace_id,
            span_id: self.span_id,
            is_sampled,
        }
    }

    /// The span that a call of the run's runner is a child of: the runner's own, when it names one of this
    /// trace, else the run's.
    pub fn parent_of_call(&self, told: Option<TraceParent>) -> SpanId {
        let told = told.filter(|told| told.trace_id == self.trace_id);
        told.map_or(self.span_id, |told| told.span_id)
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

/// As the header has it.
impl fmt::Display for TraceParent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
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

/// Lower case alone, as the standard has it.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
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
    fn a_header_is_read_as_it_is_written_and_nothing_else_is_one() {
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
    fn a_run_is_a_child_of_what_its_event_came_with_else_the_root_of_its_own_trace() {
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
    fn a_ratio_keeps_about_that_part() {
        // Evenly over what is random in an id.
        let run = |n: u128| RunId(Uuid::from_u128(1 << 120 | n << 48));
        let kept = |ratio: f64| {
            let runs = (0..256).map(|n| RunTrace::of(run(n), None));
            runs.filter(|run| run.is_sampled(ratio)).count()
        };
        assert_eq!([0.0, 0.25, 0.5, 1.0].map(kept), [0, 64, 128, 256]);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_fail(text in "\\PC{0,80}") {
            if let Some(parent) = TraceParent::parse(&text) {
                prop_assert_eq!(&parent.to_string()[3..52], &text[3..52]);
            }
        }
    }
}
