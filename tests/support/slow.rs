//! Clients on bare TCP that read or write slowly, and resource use of the gateway process.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::{until, within};

/// A reader of a run's stream with a small receive window, so that unread data stays buffered in the gateway.
pub struct SlowReader {
    socket: TcpStream,
    raw: Vec<u8>,
}

pub async fn connect(url: &str) -> TcpStream {
    let address = url.trim_start_matches("http://").parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(32 * 1024).unwrap();
    within("a connection", socket.connect(address))
        .await
        .unwrap()
}

impl SlowReader {
    pub async fn follow(url: &str, key: &str, run_id: &str, after: u64) -> Self {
        let mut socket = connect(url).await;
        let head = format!(
            "GET /v1/runs/{run_id}/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\
             authorization: Bearer {key}\r\nlast-event-id: {after}\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        Self {
            socket,
            raw: Vec::new(),
        }
    }

    /// Waits until the response starts, without reading any of it.
    pub async fn is_answered(&self) {
        within("an answer", self.socket.readable()).await.unwrap();
    }

    /// Reads up to `bytes`, pauses, and repeats until the stream ends or breaks. Returns the event ids.
    pub async fn read(mut self, bytes: usize, pause: Duration) -> Vec<u64> {
        let mut buffer = vec![0; bytes];
        while let Ok(count) = within("bytes", self.socket.read(&mut buffer)).await {
            if count == 0 {
                break;
            }
            self.raw.extend_from_slice(&buffer[..count]);
            tokio::time::sleep(pause).await;
        }
        ids(&body(&self.raw))
    }
}

/// The received part of a body in chunked coding.
fn body(raw: &[u8]) -> Vec<u8> {
    let head = raw.windows(4).position(|four| four == b"\r\n\r\n");
    let mut rest = head.map_or(&[][..], |end| &raw[end + 4..]);
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        let chunk = &rest[end + 2..];
        body.extend_from_slice(&chunk[..size.min(chunk.len())]);
        if chunk.len() < size + 2 {
            break;
        }
        rest = &chunk[size + 2..];
    }
    body
}

/// Event ids of complete frames.
fn ids(body: &[u8]) -> Vec<u64> {
    let text = String::from_utf8_lossy(body);
    let complete = text.rfind("\n\n").map_or("", |end| &text[..end]);
    let id = |line: &str| line.strip_prefix("id: ").map(|id| id.parse().unwrap());
    complete.lines().filter_map(id).collect()
}

/// Resident memory of a process in KiB.
pub fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.unwrap().trim().trim_end_matches(" kB");
    number.parse().unwrap()
}

/// Number of open files of a process.
pub fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count()
}

/// Waits until a process has at most `most` open files.
pub async fn wait_for_open_files(pid: u32, max_files: usize) {
    until("the files to be closed", async || {
        open_files(pid) <= max_files
    })
    .await;
}

/// CPU time of a process in ticks, 100 per second.
pub fn processor_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let fields = after_name.split_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}
