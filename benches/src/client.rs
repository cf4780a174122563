//! A minimal HTTP/1.1 client on one keep-alive connection. The load generator must cost far less than what it
//! measures.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Timeout of a response. It is far above any normal latency, so a timeout is a failure.
const TIMEOUT: Duration = Duration::from_mins(1);
const BUFFER: usize = 64 * 1024;

/// One keep-alive connection.
pub(crate) struct LoadConnection {
    socket: TcpStream,
    buffer: Vec<u8>,
    /// Start of the unread bytes in `buffer`.
    at: usize,
}

impl LoadConnection {
    pub(crate) async fn open(address: &str) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address).await.context("no connection")?;
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(BUFFER),
            at: 0,
        })
    }

    pub(crate) async fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.socket.write_all(request).await
    }

    /// Reads a response to its end, passes body parts to `body`, and returns the status.
    pub(crate) async fn answer(&mut self, body: impl FnMut(&[u8])) -> anyhow::Result<u16> {
        let (status, framing) = self.head().await?;
        self.rest(framing, body).await?;
        Ok(status)
    }

    /// Reads the head of a response and parts of its body until `enough` returns true.
    pub(crate) async fn answer_until(
        &mut self,
        enough: impl FnMut(&[u8]) -> bool,
    ) -> anyhow::Result<(u16, Framing)> {
        let (status, mut framing) = self.head().await?;
        self.rest_until(&mut framing, enough).await?;
        Ok((status, framing))
    }

    /// Reads further parts of a response until `enough` returns true, at most to its end.
    pub(crate) async fn rest_until(
        &mut self,
        framing: &mut Framing,
        mut enough: impl FnMut(&[u8]) -> bool,
    ) -> anyhow::Result<()> {
        let mut done = false;
        while !framing.is_complete() && !done {
            if self.at == self.buffer.len() {
                self.fill().await?;
            }
            self.at += framing.read(&self.buffer[self.at..], &mut |part| done |= enough(part))?;
        }
        Ok(())
    }

    /// Reads the rest of a response.
    pub(crate) async fn rest(
        &mut self,
        mut framing: Framing,
        mut body: impl FnMut(&[u8]),
    ) -> anyhow::Result<()> {
        let pass = |part: &[u8]| {
            body(part);
            false
        };
        self.rest_until(&mut framing, pass).await
    }

    async fn head(&mut self) -> anyhow::Result<(u16, Framing)> {
        let end = loop {
            let head = &self.buffer[self.at..];
            if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                break self.at + end + 4;
            }
            self.fill().await?;
        };
        let head = std::str::from_utf8(&self.buffer[self.at..end]).context("a head in UTF-8")?;
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        let framing = Framing::of(head)?;
        self.at = end;
        Ok((status.context("a status")?, framing))
    }

    async fn fill(&mut self) -> anyhow::Result<()> {
        if self.at == self.buffer.len() {
            self.buffer.clear();
            self.at = 0;
        }
        let read = timeout(TIMEOUT, self.socket.read_buf(&mut self.buffer)).await;
        ensure!(
            read.context("nothing came in time")?? > 0,
            "closed too early"
        );
        Ok(())
    }
}

/// Framing of a body.
#[derive(Debug)]
pub(crate) enum Framing {
    /// Remaining bytes.
    Length(usize),
    Chunked(Chunk),
}

#[derive(Debug, PartialEq)]
pub(crate) enum Chunk {
    /// The size line, as far as it was read.
    Size(usize),
    Data(usize),
    /// The CR LF that ends a chunk.
    End(usize),
    /// The CR LF after the last chunk.
    Trailer(usize),
    Over,
}

impl Framing {
    fn of(head: &str) -> anyhow::Result<Self> {
        if head.starts_with("HTTP/1.1 204") {
            return Ok(Self::Length(0));
        }
        for (name, value) in head.lines().filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("content-length") {
                return Ok(Self::Length(value.trim().parse()?));
            }
            if name.eq_ignore_ascii_case("transfer-encoding") {
                return Ok(Self::Chunked(Chunk::Size(0)));
            }
        }
        bail!("an answer without length: {head}")
    }

    fn is_complete(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunk::Over))
    }

    /// Copies the body's part of `bytes` into `body` and returns the bytes read.
    fn read(&mut self, bytes: &[u8], body: &mut impl FnMut(&[u8])) -> anyhow::Result<usize> {
        let mut at = 0;
        while at < bytes.len() && !self.is_complete() {
            let rest = &bytes[at..];
            at += match self {
                Self::Length(left) => {
                    let count = rest.len().min(*left);
                    body(&rest[..count]);
                    *left -= count;
                    count
                }
                Self::Chunked(chunk) => chunk.read(rest, body)?,
            };
        }
        Ok(at)
    }
}

impl Chunk {
    fn read(&mut self, bytes: &[u8], body: &mut impl FnMut(&[u8])) -> anyhow::Result<usize> {
        match self {
            Self::Size(size) => {
                match bytes[0] {
                    b'\n' if *size == 0 => *self = Self::Trailer(2),
                    b'\n' => *self = Self::Data(*size),
                    b'\r' => {}
                    digit => {
                        let digit = char::from(digit).to_digit(16).context("a chunk size")?;
                        *size = *size * 16 + digit as usize;
                    }
                }
                Ok(1)
            }
            Self::Data(left) => {
                let count = bytes.len().min(*left);
                body(&bytes[..count]);
                *left -= count;
                if *left == 0 {
                    *self = Self::End(2);
                }
                Ok(count)
            }
            Self::End(left) | Self::Trailer(left) if *left > 1 => {
                *left -= 1;
                Ok(1)
            }
            Self::End(_) => {
                *self = Self::Size(0);
                Ok(1)
            }
            Self::Trailer(_) | Self::Over => {
                *self = Self::Over;
                Ok(1)
            }
        }
    }
}

/// State of an event stream: just enough to show that it is complete.
#[derive(Debug, Default)]
pub(crate) struct StreamCheck {
    pub(crate) events: u64,
    /// True when the ids are 1, 2, 3 …
    pub(crate) is_dense: bool,
    last_id: u64,
    pub(crate) completed: bool,
    /// An incomplete line.
    line: Vec<u8>,
}

impl StreamCheck {
    pub(crate) fn new() -> Self {
        Self {
            is_dense: true,
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, mut part: &[u8]) {
        while let Some(end) = part.iter().position(|byte| *byte == b'\n') {
            if self.line.is_empty() {
                self.end_line(&part[..end]);
            } else {
                self.line.extend_from_slice(&part[..end]);
                let line = std::mem::take(&mut self.line);
                self.end_line(&line);
            }
            part = &part[end + 1..];
        }
        self.line.extend_from_slice(part);
    }

    fn end_line(&mut self, line: &[u8]) {
        if let Some(id) = line.strip_prefix(b"id: ") {
            let id = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok());
            self.is_dense &= id == Some(self.last_id + 1);
            self.last_id += 1;
        } else if line.starts_with(b"data: ") {
            self.events += 1;
        } else if let Some(kind) = line.strip_prefix(b"event: ") {
            self.completed = kind == b"run.completed";
        }
    }

    /// True when the stream is complete: `events` events in order, the last one terminal.
    pub(crate) fn is_complete(&self, events: u64) -> bool {
        self.is_dense && self.completed && self.events == events && self.last_id == events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_chunked_stream_across_any_split() {
        let body =
            "id: 1\nevent: message.delta\ndata: a\n\nid: 2\nevent: run.completed\ndata: b\n\n";
        let (first, second) = body.split_at(20);
        let wire = format!(
            "{:x}\r\n{first}\r\n{:X}\r\n{second}\r\n0\r\n\r\nnext",
            first.len(),
            second.len()
        );
        for size in 1..wire.len() {
            let mut stream = StreamCheck::new();
            let mut framing = Framing::Chunked(Chunk::Size(0));
            let mut read = 0;
            for part in wire.as_bytes().chunks(size) {
                read += framing.read(part, &mut |part| stream.push(part)).unwrap();
            }
            assert!(
                framing.is_complete() && stream.is_complete(2),
                "{size}: {stream:?}"
            );
            assert_eq!(read, wire.len() - 4, "{size}");
        }
    }

    #[test]
    fn rejects_streams_with_gaps_or_without_terminal() {
        let is_complete = |text: &str, events| {
            let mut stream = StreamCheck::new();
            stream.push(text.as_bytes());
            stream.is_complete(events)
        };
        let (one, end) = (
            "id: 1\nevent: message.delta\ndata: a\n\n",
            "id: 2\nevent: run.completed\ndata: b\n\n",
        );
        assert!(is_complete(&format!("{one}{end}"), 2));
        assert!(!is_complete(&format!("{one}{end}"), 3));
        assert!(!is_complete(one, 1));
        assert!(!is_complete(end, 1));
        assert!(!is_complete(
            &format!("{one}{}", end.replace("completed", "failed")),
            2
        ));
    }
}
