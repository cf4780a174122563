//! The bound of appends: ledger events of held runs, synced before each response, and nothing else. The gateway's
//! rate is a share of it.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::Options;
use crate::client::LoadConnection;
use crate::figures::{median, percentile, write};
use crate::process::machine;
use crate::stage::{
    BenchStage, ConfigAdditions, MeasuredProcess, announce, append_log, appended, play,
};
use crate::stub::{StubScript, read_request, write_response};

/// Runs that append at the same time, each one event at a time.
const RUNS: usize = 64;
/// Results of one run; more than it appends during a measurement, and fewer than `limits.run_events`.
const RESULTS: usize = 90_000;
/// Appends before each measurement, not counted.
const WARM_UP: Duration = Duration::from_millis(500);
/// Queued bodies of the log. Full: the connections wait.
const QUEUE: usize = 1024;

pub(crate) async fn run(options: &Options) -> anyhow::Result<()> {
    let stage = BenchStage::new(options).await?;
    println!("{}; {RUNS} runs that append one event at a time", machine());
    let mut names = vec!["bound"];
    let databases = stage.databases();
    names.extend(databases.iter().map(|database| database.name));
    let mut rates = vec![Vec::new(); names.len()];
    for round in 0..options.rounds {
        rates[0].push(bound(&stage).await?);
        for (database, rates) in databases.iter().zip(&mut rates[1..]) {
            // Each round has its own processes: the held runs end with them.
            let stub = async_stub(&stage).await?;
            let directory = format!("{}-{round}", database.name);
            let started = stage.gateway(
                &directory,
                database,
                &stub.address,
                ConfigAdditions::default(),
            );
            let (_gateway, target) = started.await?;
            let requests =
                (0..RUNS).map(|run| target.request(run, "application/json", "message.received"));
            let accepted = begin(&target.address, requests).await?;
            ensure!(
                accepted == 202,
                "an event was answered with HTTP {accepted}"
            );
            rates.push(appends_per_second(&stage, &stub).await?);
        }
    }
    let figures: Vec<_> = names
        .iter()
        .zip(&rates)
        .map(|(name, of)| print_share(name, of, &rates[0]))
        .collect();
    write(options, &json!({"machine": machine(), "append": figures}))
}

/// The rate of the log without a gateway.
async fn bound(stage: &BenchStage) -> anyhow::Result<f64> {
    let stub = async_stub(stage).await?;
    let log = append_log(stage).await?;
    let address = &log.address;
    let body = json!({"host": {"base_url": format!("http://{address}/v1"), "token": "none"}});
    let body = body.to_string();
    let request = format!(
        "POST /runs HTTP/1.1\r\nhost: stub\r\nrunnel-run-id: {}\r\ncontent-length: {}\r\n\r\n{body}",
        uuid::Uuid::nil(),
        body.len()
    );
    let requests = (0..RUNS).map(|_| request.clone().into_bytes());
    begin(&stub.address, requests).await?;
    appends_per_second(stage, &stub).await
}

async fn async_stub(stage: &BenchStage) -> anyhow::Result<MeasuredProcess> {
    let stub = stage.stub().await?;
    let script = StubScript {
        deltas: RESULTS,
        per_write: 1,
        is_async: true,
        ..StubScript::default()
    };
    play(&stub.address, script).await?;
    Ok(stub)
}

/// Sends these requests in order, and returns the status of the last response.
async fn begin(address: &str, requests: impl Iterator<Item = Vec<u8>>) -> anyhow::Result<u16> {
    let mut connection = LoadConnection::open(address).await?;
    let mut status = 0;
    for request in requests {
        connection.send(&request).await?;
        status = connection.answer(|_| {}).await?;
    }
    Ok(status)
}

async fn appends_per_second(stage: &BenchStage, stub: &MeasuredProcess) -> anyhow::Result<f64> {
    tokio::time::sleep(WARM_UP).await;
    let (before, since) = (appended(&stub.address).await?, Instant::now());
    tokio::time::sleep(Duration::from_secs_f64(stage.options.seconds)).await;
    let (after, elapsed) = (appended(&stub.address).await?, since.elapsed());
    ensure!(after > before, "no result was accepted");
    Ok((after - before) as f64 / elapsed.as_secs_f64())
}

fn print_share(name: &str, rates: &[f64], bound: &[f64]) -> Value {
    let shares = crate::figures::ratios(rates, bound);
    let [min, half, max] = [0.0, 50.0, 100.0].map(|at| percentile(&shares, at));
    let rate = median(rates);
    println!("{name:<12} {rate:>8.0} events/s  {half:.2} of the bound ({min:.2}–{max:.2})");
    json!({"target": name, "runs": RUNS, "events_per_second": rate, "share": half, "shares": shares})
}

/// A body to append, and the sender of its response.
type PendingBody = (Vec<u8>, oneshot::Sender<()>);

/// Serves the log: each body is appended and synced before its response, many bodies in one sync.
pub(crate) async fn serve(path: PathBuf) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let file = File::create(path)?;
    let (bodies, pending) = mpsc::channel(QUEUE);
    let writer = tokio::task::spawn_blocking(move || append_bodies(file, pending));
    announce(&listener)?;
    let mut connections = JoinSet::new();
    while !writer.is_finished() {
        tokio::select! {
            accepted = listener.accept() => if let Ok((socket, _)) = accepted {
                connections.spawn(serve_connection(socket, bodies.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
    writer.await?
}

async fn serve_connection(
    mut socket: TcpStream,
    bodies: mpsc::Sender<PendingBody>,
) -> anyhow::Result<()> {
    socket.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut socket, &mut buffer).await? {
        let (answer, synced) = oneshot::channel();
        bodies.send((request.body, answer)).await?;
        synced.await.context("the log has ended")?;
        write_response(&mut socket, "200 OK", &json!({})).await?;
    }
    Ok(())
}

fn append_bodies(mut file: File, mut pending: mpsc::Receiver<PendingBody>) -> anyhow::Result<()> {
    let mut group = Vec::new();
    let mut bytes = Vec::new();
    // The bodies that arrive during a sync share the next one.
    while pending.blocking_recv_many(&mut group, QUEUE) > 0 {
        bytes.clear();
        for (body, _) in &group {
            bytes.extend_from_slice(body);
        }
        file.write_all(&bytes)?;
        file.sync_data()?;
        for (_, answer) in group.drain(..) {
            let _ = answer.send(());
        }
    }
    Ok(())
}
