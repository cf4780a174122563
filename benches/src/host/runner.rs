//! A runner that accepts runs, reports their tokens, and sends no results.

use std::time::Duration;

use anyhow::Context as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::token_in;
use crate::stub::{manifests, read_request, write_response};

const TIMEOUT: Duration = Duration::from_secs(30);
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
    transfer-encoding: chunked\r\n\r\n8\r\n: held\n\n\r\n";

/// Stops on drop, together with its runs.
pub(super) struct TokenRunner {
    pub(super) address: String,
    tokens: tokio::sync::Mutex<mpsc::Receiver<String>>,
    _serving: JoinSet<()>,
}

impl TokenRunner {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let (token_sender, tokens) = mpsc::channel(super::RUNS);
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, token_sender));
        Ok(Self {
            address,
            tokens: tokens.into(),
            _serving: serving,
        })
    }

    /// Waits for the tokens of `count` runs.
    pub(super) async fn tokens(&self, count: usize) -> anyhow::Result<Vec<String>> {
        let mut waiting = self.tokens.lock().await;
        let mut tokens = Vec::with_capacity(count);
        while tokens.len() < count {
            let token = timeout(TIMEOUT, waiting.recv()).await;
            tokens.push(token.context("a run did not come")?.context("a runner")?);
        }
        Ok(tokens)
    }
}

async fn serve(listener: TcpListener, token_sender: mpsc::Sender<String>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((socket, _)) = accepted {
                connections.spawn(serve_connection(socket, token_sender.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_connection(
    mut socket: TcpStream,
    token_sender: mpsc::Sender<String>,
) -> anyhow::Result<()> {
    let mut buffer = Vec::new();
    let manifests = manifests(&["invoke", "stream", "count_tokens"]);
    while let Some(request) = read_request(&mut socket, &mut buffer).await? {
        if request.path == "/runs" {
            token_sender.send(token_in(&request.body)?).await?;
            socket.write_all(HEAD).await?;
            std::future::pending::<()>().await;
        }
        write_response(&mut socket, "200 OK", &manifests).await?;
    }
    Ok(())
}
