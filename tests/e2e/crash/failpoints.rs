//! Every failpoint (`runnel failpoints`) with every action. The binary lists them, so none is forgotten, and
//! each must be reached.

use std::os::unix::process::ExitStatusExt;

use rstest::rstest;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::checks::ConversationLog;
use super::journal::ClientConversation;
use super::load::Load;
use super::stage;
use crate::support::programs::runnel;
use crate::support::runner::{RUNNER_ID, RecordedRequest, StubRunner, manifest};
use crate::support::script::{Gate, Run, ScriptStep, sse, sse_around};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, number, run, seed, until};

/// Short, so that leases of a dead process expire soon.
const LEASE: &str = "1.0";
/// SIGABRT.
const ABORTED: i32 = 6;

/// The action at a failpoint, once. Every commit reaches the failpoints of the writer, so skip those of the
/// start.
fn once(name: &str, action: &str) -> String {
    let after = if name.starts_with("writer.") {
        "20*off->"
    } else {
        ""
    };
    format!("{name}={after}1*return({action})")
}

fn met(name: &str, action: &str) -> String {
    format!("failpoint {name}: {action}")
}

/// Names of all failpoints that the load of this test reaches. `unknown_effects` covers those of tool calls,
/// `restarts` those of new starts, `schedules` those of schedules.
async fn names() -> Vec<String> {
    let printed = run(Command::new(runnel()).arg("failpoints")).await;
    let names = printed.stdout.lines().map(str::to_owned);
    let names: Vec<_> = names
        .filter(|name| {
            !["tool_call.", "restart.", "schedule."]
                .iter()
                .any(|part| name.starts_with(part))
        })
        .collect();
    assert!(names.len() > 20, "{printed:?}");
    names
}

fn load(stage: &Stage) -> Load<'_> {
    Load {
        client: &stage.client,
        runner: &stage.runner,
        gone: CancellationToken::new(),
    }
}

/// All failpoints on SQLite. On PostgreSQL those of the writer and, of the others, one of
/// `RUNNEL_TEST_FAILPOINT_STEP`, by the random seed.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abort_at_any_failpoint_keeps_acknowledgements(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(stage(engine, LEASE).await);
    let mut book = ConversationLog::default();
    stage.gateway.kill().await;
    let step = match engine {
        Sqlite => 1,
        Postgres => number("RUNNEL_TEST_FAILPOINT_STEP", 4),
    };
    let first = usize::try_from(seed()).unwrap() % step;
    let names = names().await.into_iter().enumerate();
    let names: Vec<_> = names
        .filter(|(at, name)| at % step == first || name.starts_with("writer."))
        .map(|(_, name)| name)
        .collect();
    for name in &names {
        abort_at_failpoint(&mut stage, &mut book, name).await;
        book.check_ended(&stage.client, &stage.runner).await;
        stage.gateway.kill().await;
    }
    stage.gateway.restart().await;
    book.close(&stage.client, &stage.runner).await;
    eprintln!("{engine:?}: {} deaths, {:?}", names.len(), book.figures);
}

/// Starts the gateway so that it aborts at this failpoint under load, and records all acknowledgements.
async fn abort_at_failpoint(stage: &mut OwnStage, book: &mut ConversationLog, name: &str) {
    let OwnStage { stage, gateway } = stage;
    let (client, runner) = (&stage.client, &stage.runner);
    let mut talk = ClientConversation::new("");
    if name.starts_with("orphan.") {
        // Leave an orphaned run first.
        let event = talk.event("held");
        gateway.restart().await;
        let run_id = client.post(&event).await.run_id();
        talk.acknowledged(&event, &run_id);
        let is_held = |request: &RecordedRequest| request.is_run() && is_of(request, &run_id);
        runner.wait_for_request("the run", is_held).await;
        gateway.kill().await;
    }
    let listens = gateway.start_with_failpoints(&once(name, "abort")).await;
    let load = Load {
        client,
        runner,
        gone: CancellationToken::new(),
    };
    let dying = async {
        let status = gateway.exited().await;
        load.gone.cancel();
        status
    };
    let (mut talks, status) = if listens {
        tokio::join!(load.run(), dying)
    } else {
        (Vec::new(), dying.await)
    };
    assert_eq!(status.signal(), Some(ABORTED), "{name}: {status}");
    assert!(gateway.log().contains(&met(name, "abort")), "{name}");
    talks.push(talk);
    gateway.restart().await;
    let before = book.figures.stored_unacknowledged;
    book.reconcile(client, talks).await;
    let untold = book.figures.stored_unacknowledged - before;
    match name {
        // The first event of this process aborts it, so no event is stored.
        "ingest.before_commit" => assert_eq!(untold, 0, "{name}: a retry was a replay"),
        "ingest.after_commit" => assert!(untold > 0, "{name}: no retry was a replay"),
        _ => {}
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_end_despite_error_panic_or_delay(
    #[values(Sqlite, Postgres)] engine: Engine,
    #[values("error", "panic", "delay")] action: &str,
) {
    let mut stage = or_skip!(stage(engine, LEASE).await);
    stage.gateway.kill().await;
    // The writer catches panics inside a transaction, one at a time; its loop has no failpoint for a panic.
    let broken = |name: &String| action != "panic" || !name.starts_with("writer.");
    let names: Vec<_> = names().await.into_iter().filter(broken).collect();
    // Runs orphaned by one failpoint reach the failpoints of the takeover.
    let all: Vec<_> = names.iter().map(|name| once(name, action)).collect();
    assert!(stage.gateway.start_with_failpoints(&all.join(";")).await);

    let load = load(&stage);
    let met = async {
        for name in &names {
            let line = met(name, action);
            until(&line, async || stage.gateway.log().contains(&line)).await;
        }
        load.gone.cancel();
    };
    let (talks, ()) = tokio::join!(load.run(), met);
    let mut book = ConversationLog::default();
    book.reconcile(&stage.client, talks).await;
    book.close(&stage.client, &stage.runner).await;
    eprintln!("{engine:?} {action}: {:?}", book.figures);
}

/// A run that waits at the gate after its first event.
async fn spared(stage: &Stage) -> (String, Gate) {
    let gate = Gate::new();
    let hold = gate.clone();
    let script = move |run: &Run| sse_around(&hold, run.delta(1, "one"), run.completed(2));
    let run_id = stage.start(script).await;
    let mut watching = stage.client.follow(&run_id, 0).await;
    assert_eq!(watching.event().await.unwrap().id, Some(1));
    (run_id, gate)
}

#[tokio::test]
async fn panicking_run_task_ends_only_its_run() {
    let mut stage = stage(Sqlite, "15.0").await.unwrap();
    stage.gateway.kill().await;
    // At the second run.
    let second = "run.task=1*off->1*return(panic)";
    assert!(stage.gateway.start_with_failpoints(second).await);
    let (spared, gate) = spared(&stage).await;
    let broken = stage.play(|run| sse(run.talk(3).concat())).await;
    broken.assert("failed host.internal", &["run.failed"]);
    gate.cancel();
    let spared = stage.outcome(&spared).await;
    spared.assert("completed", &["message.delta", "run.completed"]);
    let after = stage.play(|run| sse(run.talk(1).concat())).await;
    after.assert("completed", &["message.delta", "run.completed"]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_workers_orphan_no_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start_as(manifest(RUNNER_ID)).await;
    let staged = OwnStage::of(engine, runner, |config| {
        config.runs = format!("lease_seconds = {LEASE}");
        config
            .environment
            .push(("TOKIO_WORKER_THREADS", "2".to_owned()));
    });
    let mut stage = or_skip!(staged.await);
    stage.gateway.kill().await;
    // Block both workers for four leases.
    let both = "run.task=1*off->2*return(block)";
    assert!(stage.gateway.start_with_failpoints(both).await);
    let (spared, gate) = spared(&stage).await;
    // Both responses come after both events are accepted: a blocked worker may fail a post.
    let answer = Gate::new();
    let mut blocking = Vec::new();
    for _ in 0..2 {
        let answer = answer.clone();
        let waiting = move |run: &Run| {
            let talk = sse(run.talk(1).concat());
            [vec![ScriptStep::Hold(answer.clone())], talk].concat()
        };
        blocking.push(stage.start(waiting).await);
    }
    answer.cancel();
    for blocked in blocking {
        let blocked = stage.outcome(&blocked).await;
        blocked.assert("completed", &["message.delta", "run.completed"]);
    }
    let log = stage.gateway.log();
    assert_eq!(log.matches(&met("run.task", "block")).count(), 2, "{log}");
    gate.cancel();
    let spared = stage.outcome(&spared).await;
    spared.assert("completed", &["message.delta", "run.completed"]);
}

#[tokio::test]
async fn active_failpoints_are_logged_loudly() {
    let mut stage = stage(Sqlite, "15.0").await.unwrap();
    assert!(!stage.gateway.log().contains("FAILPOINTS"));
    stage.gateway.kill().await;
    stage.gateway.start_with_failpoints("run.task=off").await;
    assert_contains!(stage.gateway.log(), "test build with active failpoints");
}

fn is_of(request: &RecordedRequest, run_id: &str) -> bool {
    request.header("runnel-run-id") == Some(run_id)
}
