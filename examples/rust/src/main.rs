//! Serves the echo runner by itself: the secret in `RUNNER_SECRET`, the port in `PORT`.

use std::io;
use std::net::Ipv4Addr;

use anyhow::Context;
use runner_kit::{CancellationToken, SigningSecret, router, serve};
use tokio::net::TcpListener;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};

const DEFAULT_PORT: u16 = 9100;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the first line is the address")]
async fn main() -> anyhow::Result<()> {
    let (secret, port) = settings()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!(
        "listening {url}\n\
         register  curl http://127.0.0.1:8700/v1/runner-endpoints -H \"Authorization: Bearer $RUNNEL_API_KEY\" \
         -H 'Content-Type: application/json' \
         -d '{{\"name\":\"echo\",\"base_url\":\"{url}\",\"secret\":\"'$RUNNER_SECRET'\"}}'"
    );

    let stop = CancellationToken::new();
    let serving = serve(
        listener,
        router(vec![echo_runner::echo()], secret),
        stop.clone(),
    );
    let stopping = async {
        let _stop = stop.drop_guard_ref();
        stop_signal().await
    };
    tokio::try_join!(serving, stopping)?;
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "an independent example, without a Config"
)]
fn settings() -> anyhow::Result<(SigningSecret, u16)> {
    let secret = std::env::var("RUNNER_SECRET").context("RUNNER_SECRET is not set")?;
    let port = match std::env::var("PORT") {
        Ok(port) => port.parse().context("PORT is not a port")?,
        Err(_) => DEFAULT_PORT,
    };
    Ok((
        secret.parse().context("RUNNER_SECRET cannot be used")?,
        port,
    ))
}

/// Returns on Ctrl-C, and on the signal that ends a service.
async fn stop_signal() -> io::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = ctrl_c() => interrupted,
        _ = terminated.recv() => Ok(()),
    }
}
