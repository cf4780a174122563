//! A request that pauses in the middle of its body until the test finishes it.

use std::time::{Duration, Instant};

use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::client::ApiResponse;
use super::slow::connect;
use super::{until, within};

/// The gateway caches checks of a database row for 5 ms; wait longer so that it checks again.
const CHECK_CACHE_TTL: Duration = Duration::from_millis(10);

pub struct PausedRequest {
    socket: TcpStream,
    rest: Vec<u8>,
    accepted: Instant,
}

/// Request with its credential.
pub struct RequestParts<'a> {
    pub method: &'a Method,
    pub path: &'a str,
    /// Bearer credential, if any.
    pub credential: Option<&'a str>,
    pub media_type: &'a str,
    pub body: &'a [u8],
}

impl PausedRequest {
    /// Sends the head and half of the body. Returns once the gateway requests the body, which means that it has
    /// accepted the head.
    pub async fn begin(url: &str, sent: &RequestParts<'_>) -> Self {
        let mut socket = connect(url).await;
        let RequestParts {
            method,
            path,
            credential,
            media_type,
            body,
        } = sent;
        let bearer = credential.map(|credential| format!("authorization: Bearer {credential}\r\n"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nexpect: 100-continue\r\n\
             content-type: {media_type}\r\ncontent-length: {}\r\n{}\r\n",
            body.len(),
            bearer.unwrap_or_default(),
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        let expected = b"HTTP/1.1 100 Continue\r\n\r\n";
        let mut received = vec![0; expected.len()];
        within("100 Continue", socket.read_exact(&mut received))
            .await
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&received),
            String::from_utf8_lossy(expected),
            "{method} {path}"
        );
        let (half, rest) = body.split_at(body.len() / 2);
        socket.write_all(half).await.unwrap();
        Self {
            socket,
            rest: rest.to_vec(),
            accepted: Instant::now(),
        }
    }

    /// Sends the rest and reads the response.
    pub async fn finish(mut self) -> ApiResponse {
        until("the check of the head to be old", async || {
            self.accepted.elapsed() > CHECK_CACHE_TTL
        })
        .await;
        self.socket.write_all(&self.rest).await.unwrap();
        let mut raw = Vec::new();
        within("an answer", self.socket.read_to_end(&mut raw))
            .await
            .unwrap();
        let raw = String::from_utf8_lossy(&raw);
        let (head, body) = raw.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        ApiResponse {
            status,
            headers: HeaderMap::new(),
            body: serde_json::from_str(body).unwrap_or(Value::Null),
        }
    }
}
