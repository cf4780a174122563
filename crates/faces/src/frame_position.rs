//! Positions in the streams of faces whose clients send `Last-Event-ID`.

use std::fmt;

use domain::run::Run;
use http::HeaderMap;

use web::error::{ApiError, ApiResult};
use web::query::single_header;

/// Position of a frame: the sequence of its event, and its number among the frames of this event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FramePosition {
    pub(crate) sequence: u64,
    number: u32,
}

impl FramePosition {
    /// `number`: from 1, among the frames of an event.
    pub(crate) fn of(sequence: u64, number: u32) -> Self {
        Self { sequence, number }
    }

    /// After all frames of an event.
    pub(crate) fn after(sequence: u64) -> Self {
        Self {
            sequence,
            number: u32::MAX,
        }
    }

    /// Reads the id of a frame, `SEQUENCE` or `SEQUENCE.NUMBER`.
    pub(crate) fn parse(id: &str) -> Option<Self> {
        // `parse` would also accept a plus sign.
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        match id.split_once('.') {
            None => Some(Self::after(id.parse().ok().filter(|_| digits(id))?)),
            Some((sequence, number)) => Some(Self {
                sequence: sequence.parse().ok().filter(|_| digits(sequence))?,
                number: number.parse().ok().filter(|_| digits(number))?,
            }),
        }
    }

    /// The position of `Last-Event-ID`. The header is absent or empty for a new stream.
    pub(crate) fn of_header(headers: &HeaderMap) -> ApiResult<Option<Self>> {
        let last = single_header(headers, "last-event-id")?;
        let last = last.filter(|id| !id.trim().is_empty());
        let position = last.map(|id| Self::parse(id).ok_or_else(not_of_stream));
        position.transpose()
    }

    /// Fails if no frame of this run after the sequence `after` has this position.
    pub(crate) fn check(self, run: &Run, after: u64) -> ApiResult<()> {
        let is_of_run = (after..=run.last_sequence).contains(&self.sequence);
        is_of_run.then_some(()).ok_or_else(not_of_stream)
    }
}

impl fmt::Display for FramePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            u32::MAX => write!(f, "{}", self.sequence),
            number => write!(f, "{}.{number}", self.sequence),
        }
    }
}

fn not_of_stream() -> ApiError {
    ApiError::invalid_argument("`Last-Event-ID` must be the id of a frame of this stream")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_ids_of_frames() {
        assert_eq!(FramePosition::parse("7"), Some(FramePosition::after(7)));
        for id in ["", "+7", "7.", "a", "7.1.1", "-1"] {
            assert_eq!(FramePosition::parse(id), None, "{id}");
        }
    }
}
