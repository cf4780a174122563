//! Client side of a run's SSE stream, frame by frame. Dropping it closes the connection.

use std::collections::VecDeque;
use std::time::Duration;

use super::within;

pub struct Stream {
    pub response: reqwest::Response,
    buffer: Vec<u8>,
    frames: VecDeque<Frame>,
}

/// An SSE frame: the text between two empty lines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frame {
    /// The bytes, including the empty line.
    pub raw: String,
    pub id: Option<u64>,
    pub event: String,
    pub data: String,
}

impl Stream {
    pub fn new(response: reqwest::Response) -> Self {
        Self {
            response,
            buffer: Vec::new(),
            frames: VecDeque::new(),
        }
    }

    pub fn header(&self, name: &str) -> &str {
        self.response
            .headers()
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    pub fn run_id(&self) -> String {
        self.header("runnel-run-id").to_owned()
    }

    /// The next frame of any kind. `None` at the end or after a broken connection; partial frames are dropped.
    pub async fn frame(&mut self) -> Option<Frame> {
        while self.frames.is_empty() {
            let bytes = within("a frame", self.response.chunk())
                .await
                .ok()
                .flatten()?;
            self.buffer.extend_from_slice(&bytes);
            while let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let rest = self.buffer.split_off(end + 2);
                let raw = std::mem::replace(&mut self.buffer, rest);
                self.frames
                    .push_back(Frame::parse(String::from_utf8(raw).unwrap()));
            }
        }
        self.frames.pop_front()
    }

    /// The next ledger frame. Skips frames with an id but no data, which only set the start of the stream.
    pub async fn event(&mut self) -> Option<Frame> {
        loop {
            let frame = self.frame().await?;
            if frame.id.is_some() && !frame.data.is_empty() {
                return Some(frame);
            }
        }
    }

    /// The next `count` ledger frames, or fewer at the end.
    pub async fn events(&mut self, count: usize) -> Vec<Frame> {
        let mut events = Vec::new();
        while events.len() < count {
            let Some(event) = self.event().await else {
                break;
            };
            events.push(event);
        }
        events
    }

    /// All remaining ledger frames. Fails after a timeout, because heartbeats keep the stream of an endless run
    /// open.
    pub async fn rest(mut self) -> Vec<Frame> {
        const MAX_WAIT: Duration = Duration::from_mins(4);
        let all = tokio::time::timeout(MAX_WAIT, self.events(usize::MAX)).await;
        all.unwrap_or_else(|_| panic!("a stream had no end within {MAX_WAIT:?}"))
    }
}

impl Frame {
    fn parse(raw: String) -> Self {
        let mut frame = Self::default();
        let mut data = Vec::new();
        for line in raw.lines() {
            match line.split_once(": ") {
                Some(("id", value)) => frame.id = Some(value.parse().unwrap()),
                Some(("event", value)) => value.clone_into(&mut frame.event),
                Some(("data", value)) => data.push(value),
                _ => {}
            }
        }
        frame.data = data.join("\n");
        frame.raw = raw;
        frame
    }
}
