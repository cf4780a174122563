//! Overload: many streams, slow and stalled streams, too many streams, and a shutdown with open streams. F11,
//! F12, F15, F70, F74, F75, D10, D11.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::support::client::{Client, message, send as ask};
use crate::support::held::HeldRun;
use crate::support::ledger::Ledger;
use crate::support::script::{Gate, Run, ScriptStep, send, sse, sse_and_wait, sse_head};
use crate::support::slow::{
    SlowReader, connect, open_files, processor_ticks, resident_kib, wait_for_open_files,
};
use crate::support::stream::Stream;
use crate::support::{OwnStage, Stage, number, slow, until, within};

fn in_conversations(n: usize) -> serde_json::Value {
    let mut event = message(&format!("m-{n}"));
    event["conversation"]["conversation_id"] = format!("c-{n}").into();
    event
}

// --- shutdown ---

/// The part of a stream that a client read before the gateway closed it.
struct ClosedStream {
    run_id: String,
    events: Vec<String>,
    retry_ms: Option<u64>,
}

/// Adds a permit to `drain_notices` at the drain notice.
async fn read_to_the_close(
    mut stream: Stream,
    first: String,
    drain_notices: &Semaphore,
) -> ClosedStream {
    let run_id = stream.run_id();
    let mut seen = ClosedStream {
        run_id,
        events: vec![first],
        retry_ms: None,
    };
    while let Some(frame) = stream.frame().await {
        if frame.id.is_some() {
            seen.events.push(frame.data);
        } else if frame.event == "gateway.draining" {
            let retry = frame
                .raw
                .lines()
                .find_map(|line| line.strip_prefix("retry: "));
            seen.retry_ms = retry.map(|wait| wait.parse().unwrap());
            drain_notices.add_permits(1);
        }
    }
    seen
}

/// Sends a delta, waits for the gate, and completes.
fn held(gate: &Gate) -> impl Fn(&Run) -> Vec<ScriptStep> + Send + Sync + 'static {
    let gate = gate.clone();
    move |run| {
        vec![
            sse_head(),
            send(run.delta(1, "a")),
            ScriptStep::Hold(gate.clone()),
            send(run.completed(2)),
        ]
    }
}

/// Starts runs with one stream each, and reads the first event of each.
async fn streams(stage: &OwnStage, count: usize, gates: [&Gate; 2]) -> Vec<(Stream, String)> {
    let mut opening = JoinSet::new();
    let mut open = Vec::new();
    for n in 0..count {
        stage.runner.answer(&format!("m-{n}"), held(gates[n % 2]));
        let client = stage.client.clone();
        opening.spawn(async move {
            let mut stream = client.post_streaming(&in_conversations(n)).await;
            let first = stream.event().await.unwrap();
            (stream, first.data)
        });
        while opening.len() >= 50 {
            open.push(opening.join_next().await.unwrap().unwrap());
        }
    }
    open.extend(opening.join_all().await);
    open
}

/// `RUNNEL_TEST_STREAMS`: number of streams.
#[tokio::test]
async fn shutdown_closes_streams_in_time_without_loss() {
    const GRACE: Duration = Duration::from_secs(3);
    let count = number("RUNNEL_TEST_STREAMS", 60);
    let grace = format!("shutdown_grace_seconds = {}", GRACE.as_secs());
    let mut stage = OwnStage::with(|config| config.runs = grace).await;
    let [in_time, never] = [Gate::new(), Gate::new()];
    let open = streams(&stage, count, [&in_time, &never]).await;

    let signaled_at = Instant::now();
    stage.gateway.terminate().await;
    let drain_notices = Semaphore::new(0);
    let reading = open
        .into_iter()
        .map(|(stream, first)| read_to_the_close(stream, first, &drain_notices));
    let release = async {
        let _all = drain_notices
            .acquire_many(u32::try_from(count).unwrap())
            .await;
        in_time.cancel();
    };
    let closed = futures_util::future::join(futures_util::future::join_all(reading), release);
    let (all, ()) = within("the streams to be closed", closed).await;
    let closed_after = signaled_at.elapsed();
    assert!(stage.gateway.exited().await.success());
    let took = signaled_at.elapsed();
    eprintln!(
        "{count} streams: all closed after {closed_after:?}, gone after {took:?}, grace {GRACE:?}"
    );
    assert!(took < GRACE + Duration::from_secs(10), "{took:?}");

    let retries: Vec<_> = all
        .iter()
        .map(|seen| seen.retry_ms.expect("every client gets a retry time"))
        .collect();
    assert!(retries.iter().all(|retry| (1000..=4000).contains(retry)));
    assert!(
        retries.iter().any(|retry| *retry != retries[0]),
        "they would all come back at once"
    );

    stage.gateway.restart().await;
    let mut endings = std::collections::BTreeMap::new();
    for seen in &all {
        let ledger = ended(&stage.client, &seen.run_id).await;
        assert!(ledger.0.starts_with(&seen.events), "{ledger:?}");
        let is_late = ledger.last()["data"]["code"] == "host.orphaned";
        assert!(is_late || seen.events == ledger.0, "the stream was cut");
        let run = stage.client.run(&seen.run_id).await;
        let code = run["error"]["code"]
            .as_str()
            .unwrap_or("completed")
            .to_owned();
        *endings.entry(code).or_insert(0) += 1;
        assert_eq!(stage.runner.posts(&seen.run_id), 1);
    }
    eprintln!("{endings:?}");
    assert_eq!(
        endings.get("completed"),
        Some(&count.div_ceil(2)),
        "{endings:?}"
    );
    // If the grace period is too short, the next start ends the rest as orphans.
    assert!(endings.contains_key("host.shutdown"), "{endings:?}");
    let late = ["host.shutdown", "host.orphaned"].map(|code| endings.get(code).unwrap_or(&0));
    assert_eq!(late.into_iter().sum::<usize>(), count / 2, "{endings:?}");
}

async fn ended(client: &Client, run_id: &str) -> Ledger {
    client.finished(run_id).await;
    let ledger = client.ledger(run_id).await;
    ledger.assert_valid(run_id);
    assert!(ledger.is_ended(), "{ledger:?}");
    ledger
}

#[tokio::test]
async fn second_signal_exits_and_next_start_recovers() {
    let long = "shutdown_grace_seconds = 3600\nlease_seconds = 1";
    let mut stage = OwnStage::with(|config| config.runs = long.into()).await;
    stage
        .runner
        .answer_all(|run| sse_and_wait(run.delta(1, "a")));
    let mut stream = stage.client.post_streaming(&message("m-1")).await;
    stream.event().await.unwrap();
    let run_id = stream.run_id();
    stage.gateway.terminate().await;
    while stream.frame().await.unwrap().event != "gateway.draining" {}
    stage.gateway.terminate().await;
    stage.gateway.exited().await;

    stage.gateway.restart().await;
    let outcome = stage.outcome(&run_id).await;
    outcome.assert("failed host.orphaned", &["message.delta", "run.failed"]);
}

// --- slow readers ---

const EVENTS: usize = 6000;
/// Write timeout of a stalled reader.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// About 6 MiB: more than live buffer, send buffer and TCP window hold together.
fn long_run(run: &Run) -> Vec<ScriptStep> {
    run_of(run, 1000)
}

/// A run of `EVENTS` deltas with `text` bytes of text each.
fn run_of(run: &Run, text: usize) -> Vec<ScriptStep> {
    let text = "x".repeat(text);
    let frames = (1..=EVENTS).map(|n| run.delta(n, &text).into_bytes());
    let mut parts: Vec<_> = frames
        .collect::<Vec<_>>()
        .chunks(40)
        .map(<[_]>::concat)
        .collect();
    parts.push(run.completed(EVENTS + 1).into_bytes());
    vec![
        sse_head(),
        ScriptStep::Pace(parts, Duration::from_millis(10)),
    ]
}

/// `RUNNEL_TEST_READERS`: number of readers.
#[tokio::test]
async fn slow_readers_do_not_affect_others() {
    let count = number("RUNNEL_TEST_READERS", 50);
    // A fast reader shares the processor with the slow ones, so the timeout grows with their number.
    let patience = WRITE_TIMEOUT + Duration::from_secs(count as u64 / 100);
    let write = format!("write_seconds = {}", patience.as_secs());
    let stage = OwnStage::with(|config| config.server = write).await;
    let pid = stage.gateway.pid();
    let warm = stage.play(|run| sse(run.talk(3).concat())).await;
    assert_eq!(warm.ending(), "completed");
    let (files, before) = (open_files(pid), resident_kib(pid));

    let begin = Gate::new();
    let gate = begin.clone();
    let run_id = stage.start(move |run| {
        let mut steps = long_run(run);
        steps.insert(1, ScriptStep::Hold(gate.clone()));
        steps
    });
    let run_id = run_id.await;
    let (url, key) = (&stage.client.url, &stage.client.key);
    let mut slow = JoinSet::new();
    let mut stalled = Vec::new();
    for n in 0..count {
        let reader = SlowReader::follow(url, key, &run_id, 0).await;
        if n % 2 == 0 {
            stalled.push(reader);
        } else {
            slow.spawn(reader.read(16 * 1024, Duration::from_millis(5)));
        }
    }
    let fast = stage.client.follow(&run_id, 0).await;
    begin.cancel();

    let started = Instant::now();
    let frames = fast.rest().await;
    let fast_took = started.elapsed();
    assert!(
        fast_took < patience,
        "the fast client waited for the stalled ones: {fast_took:?}"
    );
    assert_eq!(
        frames.len(),
        EVENTS + 1,
        "the run and a fast client continue"
    );
    let all_read = within("the slow readers", slow.join_all()).await;
    let sequences: Vec<u64> = (1..=EVENTS as u64 + 1).collect();
    let mut cut = 0;
    for mut seen in all_read {
        // A slow reader may also hit the write timeout on a busy machine.
        cut += usize::from(seen != sequences);
        resume(&stage.client, &run_id, &mut seen).await;
        assert_eq!(seen, sequences);
    }
    let after = resident_kib(pid);
    eprintln!(
        "{count} readers: fast one {fast_took:?}, all {:?}, {cut} slow ones cut; \
         {before} KiB before, {after} KiB after",
        started.elapsed()
    );
    // A stalled reader costs kernel buffers and a few pages of the gateway. Buffering the unread events would
    // cost 3 MiB for each reader.
    let max_memory = before + 96 * 1024 + 128 * count as u64;
    assert!(after < max_memory, "{before} KiB before, {after} KiB after");

    wait_for_open_files(pid, files + 8).await;
    let mut reading = JoinSet::new();
    for reader in stalled {
        reading.spawn(reader.read(64 * 1024, Duration::ZERO));
    }
    for mut seen in within("what was on its way to stalled readers", reading.join_all()).await {
        assert!(
            seen.len() < EVENTS,
            "a reader that never read was disconnected"
        );
        resume(&stage.client, &run_id, &mut seen).await;
        assert_eq!(seen, sequences);
    }
    stage.outcome(&run_id).await;
    wait_for_open_files(pid, files + 8).await;
}

#[tokio::test]
async fn does_not_buffer_events_for_stalled_readers() {
    const READERS: usize = 6;
    // The write timeout is longer than the test.
    let write = "write_seconds = 300".to_owned();
    let stage = OwnStage::with(|config| config.server = write).await;
    let pid = stage.gateway.pid();
    stage.play(|run| sse(run.talk(3).concat())).await;
    let idle = resident_kib(pid);

    let begin = Gate::new();
    let gate = begin.clone();
    let run_id = stage.start(move |run| {
        // 48 MiB: three quarters of a run's limit.
        let mut steps = run_of(run, 8 * 1024);
        steps.insert(1, ScriptStep::Hold(gate.clone()));
        steps
    });
    let run_id = run_id.await;
    let fast = stage.client.follow(&run_id, 0).await;
    let mut readers = Vec::new();
    for _ in 0..READERS {
        readers.push(SlowReader::follow(&stage.client.url, &stage.client.key, &run_id, 0).await);
    }
    for reader in &readers {
        reader.is_answered().await;
    }
    let files = open_files(pid);
    begin.cancel();
    assert_eq!(fast.rest().await.len(), EVENTS + 1);
    // The run's own memory is released some seconds after its end. A copy for the readers would hold 48 MiB
    // more.
    let max_memory = idle + 64 * 1024;
    until("the memory to be given back", async || {
        // The allocator returns the pages of a thread when that thread allocates again.
        let warm = stage.client.get("/v1/runs?limit=100").await;
        assert_eq!(warm.status, 200);
        resident_kib(pid) < max_memory
    })
    .await;
    // The run's own files are closed.
    assert!(open_files(pid) + 4 >= files, "all are still there");
    drop(readers);
}

/// Reads the rest of an ended run after the last seen event.
async fn resume(client: &Client, run_id: &str, seen: &mut Vec<u64>) {
    if seen.last() <= Some(&(EVENTS as u64)) {
        let last = seen.last().copied().unwrap_or(0);
        let rest = client.follow(run_id, last).await.rest().await;
        seen.extend(rest.iter().filter_map(|frame| frame.id));
    }
}

// --- slow senders ---

/// Sends single bytes until the gateway closes the connection. Returns the response.
async fn send_slowly(url: String, start: String) -> String {
    let mut socket = connect(&url).await;
    socket.write_all(start.as_bytes()).await.unwrap();
    let (mut read, mut write) = socket.split();
    let sending = async {
        while write.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        std::future::pending::<()>().await;
    };
    let mut answer = Vec::new();
    tokio::select! {
        // A connection reset also counts as closed.
        _ = within("the gateway to close", read.read_to_end(&mut answer)) => {}
        () = sending => {}
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// `RUNNEL_TEST_SLOW_SENDERS`: number of senders.
#[tokio::test]
async fn disconnects_slow_senders_while_serving_others() {
    let count = number("RUNNEL_TEST_SLOW_SENDERS", 60);
    let short = "head_seconds = 1\nbody_seconds = 1";
    let stage = OwnStage::with(|config| config.server = short.into()).await;
    let pid = stage.gateway.pid();
    stage.play(|run| sse(run.talk(3).concat())).await;
    let files = open_files(pid);
    let (url, key) = (stage.client.url.clone(), &stage.client.key);
    let head = "POST /v1/events HTTP/1.1\r\nhost: localhost\r\nx-slow: ".to_owned();
    let body = format!(
        "POST /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: 100000\r\n\r\n{{"
    );
    let mut slow = JoinSet::new();
    for n in 0..count {
        let start = if n % 2 == 0 { &head } else { &body };
        slow.spawn(send_slowly(url.clone(), start.clone()));
    }
    for _ in 0..5 {
        let outcome = stage.play(|run| sse(run.talk(3).concat())).await;
        assert_eq!(outcome.ending(), "completed");
    }
    for answer in within("every slow sender to be cut", slow.join_all()).await {
        assert!(!answer.contains(" 202 "), "{answer}");
    }
    wait_for_open_files(pid, files + 8).await;
}

#[tokio::test]
async fn slow_body_gets_408() {
    let stage = Stage::with(|config| config.server = "body_seconds = 0.5".into()).await;
    let key = &stage.client.key;
    let start = format!(
        "POST /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: 100000\r\n\r\n{{"
    );
    let answer = send_slowly(stage.client.url.clone(), start).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("\"retryable\":true"), "{answer}");
}

// --- one key's streams ---

#[tokio::test]
async fn limits_streams_per_key_to_half_of_connections() {
    let stage = OwnStage::with(|config| config.server = "connections = 12".into()).await;
    let admin = stage.admin.clone();
    let held = HeldRun::start(&stage, &message("m-1")).await;
    let mut streams = Vec::new();
    for _ in 0..6 {
        let stream = stage.client.follow(&held.run_id, 0).await;
        assert_eq!(stream.response.status(), 200);
        streams.push(stream);
    }
    // A request whose stream is rejected stores no event.
    for refused in [
        stage.client.following(&held.run_id),
        stage.client.posting(&message("m-2")),
    ] {
        let answer = ask(refused.header("accept", "text/event-stream")).await;
        let answer = answer.unwrap();
        answer.assert_detail(429, "reason", "key_streams");
        assert_eq!(answer.headers["retry-after"], "5");
    }
    let runs = stage.client.get("/v1/runs").await.body;
    assert_eq!(runs["items"].as_array().unwrap().len(), 1, "{runs}");
    // Other requests are unaffected: health checks, host API calls, other keys, and non-stream requests of this
    // key.
    for path in ["/readyz", "/healthz"] {
        assert_eq!(stage.client.get(path).await.status, 200);
    }
    assert_eq!(held.get("/run").await.status, 200);
    let other = admin.follow(&held.run_id, 0).await;
    assert_eq!(other.response.status(), 200);
    // The slot is free after a client disconnects, also without a close.
    let is_free = async || {
        let stream = stage.client.follow(&held.run_id, 0).await;
        stream.response.status() == 200
    };
    streams.pop();
    until("the slot to be free", is_free).await;
    drop((streams, other));
    until("a slot to be free", is_free).await;
    held.end(&stage).await;
}

// --- too few files ---

#[tokio::test]
async fn file_descriptor_exhaustion_keeps_live_runs() {
    let stage = OwnStage::new().await;
    let pid = stage.gateway.pid();
    let gate = Gate::new();
    stage.runner.answer("m-1", held(&gate));
    let mut stream = stage.client.post_streaming(&message("m-1")).await;
    stream.event().await.unwrap();

    // The gateway's CPU ticks in a second of this state.
    let second = async || {
        let ticks = processor_ticks(pid);
        tokio::time::sleep(Duration::from_secs(1)).await;
        processor_ticks(pid) - ticks
    };
    let idle = second().await;
    let process = Pid::from_raw(i32::try_from(pid).unwrap());
    let now = open_files(pid) as u64;
    let before = prlimit(process, Resource::Nofile, files(now)).unwrap();
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let mut socket = connect(&stage.client.url).await;
        socket
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        waiting.push(socket);
    }
    gate.cancel();
    let rest = stream.rest().await;
    assert_eq!(rest.len(), 1, "the live run comes to its end");
    let used = second().await;
    assert!(
        used < idle + 30,
        "{used} hundredths of a second for waiting, and {idle} for nothing"
    );

    prlimit(process, Resource::Nofile, before).unwrap();
    for mut socket in waiting {
        let mut answer = String::new();
        within("a late answer", socket.read_to_string(&mut answer))
            .await
            .unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    let outcome = stage.play(|run| sse(run.talk(3).concat())).await;
    assert_eq!(outcome.ending(), "completed");
    let warnings = stage
        .gateway
        .log()
        .matches("connections cannot be accepted")
        .count();
    assert_eq!(warnings, 1, "logged once, not ten times a second");
}

/// A soft limit of `most` files; the hard limit stays, so that it can be raised again.
fn files(limit: u64) -> Rlimit {
    Rlimit {
        current: Some(limit),
        ..getrlimit(Resource::Nofile)
    }
}

const MIB: usize = 1024 * 1024;

/// Sends 4 MiB of a body and stops.
async fn half_a_body(stage: &Stage, key: &str) -> TcpStream {
    let mut socket = slow::connect(&stage.client.url).await;
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{{\"raw\":\"",
        5 * MIB
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(&vec![b'a'; 4 * MIB]).await.unwrap();
    socket
}

#[tokio::test]
async fn unfinished_bodies_stay_within_memory_budget() {
    let stage = Stage::with(|config| {
        config.limits = format!("body_bytes = {}", 64 * MIB);
    })
    .await;
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let admin = stage.admin.clone();
    let large = |n: usize| {
        let mut event = message(&format!("large-{n}"));
        event["raw"] = json!("a".repeat(4 * MIB - 10));
        event
    };
    assert_eq!(stage.client.post(&large(0)).await.status, 202);

    // One key fills its half of the memory budget; the other key has the other half.
    let mut held = Vec::new();
    until("the share of a key to be taken", async || {
        let response = stage.client.post(&large(held.len() + 1)).await;
        if response.status == 202 {
            held.push(half_a_body(&stage, &stage.client.key).await);
            return false;
        }
        assert_eq!(response.status, 429, "{}", response.body);
        assert_eq!(response.headers["retry-after"], "1");
        response.error("details")["reason"] == "body_bytes_of_sender"
    })
    .await;
    assert!(held.len() <= 8, "{} bodies in 32 MiB", held.len());
    assert_eq!(admin.post(&large(100)).await.status, 202);
    assert_eq!(stage.client.post(&message("small")).await.status, 202);

    drop(held);
    until("the memory to be released", async || {
        stage.client.post(&large(200)).await.status == 202
    })
    .await;
}
