//! Crashes at each failpoint of the specification. Later runs continue, with the same end as without a crash.

mod play;

use protocol::run::RunStatus;
use runner_kit::CancellationToken;
use serde_json::{Value, json};

use crate::failpoint::Kill;
use crate::testing::{ToolReply, ending, later, questions, submitted};
use play::{
    CrashCase, EndState, action, compare, heads, once, one, play, record, request, submit, sweep,
    until,
};

/// Three actions in a row; the second one is of this tool.
fn chain(tool: &str) -> CrashCase {
    CrashCase::of(&[
        action("a", "look", json!({})),
        action("b", tool, json!({"depends_on": ["a"]})),
        action("c", "look", json!({"depends_on": ["b"]})),
    ])
}

fn fan_out() -> CrashCase {
    let each = json!({"for_each": {"items": "action:find.output#/list", "max": 7}, "input": {"x": {"$ref": "item"}}});
    CrashCase::of(&[
        action("find", "look", json!({})),
        action("each", "note", each),
    ])
}

fn parallel() -> CrashCase {
    CrashCase::of(&[
        action("a", "look", json!({})),
        action("b", "note", json!({})),
        action("c", "mystery", json!({})),
    ])
}

fn retried() -> CrashCase {
    let policy = json!({"mode": "retry", "max_attempts": 3, "backoff_ms": 20_000});
    let mut case = CrashCase::of(&[action("a", "note", json!({"failure_policy": policy}))]);
    case.fails = 1;
    case
}

/// The second action fails, and the third one is replaced.
fn revised() -> CrashCase {
    let mut case = chain("mystery");
    case.breaks = Some("mystery");
    case.revised = Some(vec![action("d", "note", json!({"depends_on": ["a"]}))]);
    case
}

/// Compares the end with that of a run without a crash.
async fn check(case: &CrashCase, kill: Kill, what: &str) -> EndState {
    let twin = play(case, None).await;
    let end = play(case, Some(kill)).await;
    assert!(end.died, "{what}: the point is never reached");
    compare(&twin, &end, what);
    end
}

#[tokio::test(start_paused = true)]
async fn dies_after_the_model_answered() {
    let end = check(&chain("note"), Kill::at("answer.before_accept"), "accept").await;
    assert_eq!(end.host.model_calls(), 3, "the model is called again");
}

#[tokio::test(start_paused = true)]
async fn dies_around_a_call() {
    for tool in ["look", "note", "mystery"] {
        check(&chain(tool), Kill::after("effect.before_call", 1), tool).await;
        check(&chain(tool), Kill::after("tool.acted", 1), tool).await;
        check(&chain(tool), Kill::after("effect.answered", 1), tool).await;
    }
}

#[tokio::test(start_paused = true)]
async fn dies_around_a_question() {
    for point in ["ask.stored", "ask.sent"] {
        let end = check(&chain("send"), Kill::at(point), point).await;
        assert_eq!(end.host.memory.effects("send"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn dies_before_a_child_is_named() {
    let end = check(&chain("writer"), Kill::at("child.spawned"), "child").await;
    assert_eq!(
        end.host.script().spawned.len(),
        1,
        "the same key finds the same child"
    );
}

#[tokio::test(start_paused = true)]
async fn resumes_children_that_ended_between_runs() {
    let end = play(&chain("writer"), None).await;
    assert_eq!((end.runs, end.host.script().spawned.len()), (2, 1));
    assert_eq!(end.record["status"], "completed");
}

#[tokio::test(start_paused = true)]
async fn revisions_make_a_generation() {
    let twin = play(&revised(), None).await;
    assert_eq!(twin.record["generation"], 2);
}

#[tokio::test(start_paused = true)]
async fn dies_within_the_grace_of_a_cancel() {
    let host = chain("mystery").host();
    host.tool("mystery", [ToolReply::Hangs]);
    let cancel = CancellationToken::new();
    let run = until(
        &host,
        request("r1"),
        Some(Kill::at("cancel.grace")),
        cancel.clone(),
    );
    let cancelling = async {
        while host.memory.effects("mystery") == 0 {
            host.called.notified().await;
            tokio::task::yield_now().await;
        }
        host.script().is_cancelled = true;
        cancel.cancel();
    };
    let (ended, ()) = tokio::join!(run, cancelling);
    assert!(ended.is_none(), "it died");
    host.script().is_cancelled = false;
    let first_run = one(&host, request("r2"), None).await.unwrap();
    let question = questions(&first_run).remove(0);
    let id = question["interaction_id"].as_str().unwrap();
    assert!(id.contains(".outcome."), "the outcome needs a person");
    let happened = submitted(&request("r3"), "r3", id, "happened", &json!({}));
    one(&host, happened, None).await.unwrap();
    assert_eq!(host.memory.effects("mystery"), 1);
    let record = record(&host).await;
    let status = |at: usize| record["actions"][at]["status"].clone();
    assert_eq!(
        [status(0), status(1), status(2)],
        ["completed", "completed", "canceled"]
    );
}

#[tokio::test(start_paused = true)]
async fn stale_runs_write_nothing() {
    let host = chain("mystery").host();
    host.tool(
        "mystery",
        [ToolReply::Together(3, json!({"did": "mystery"}))],
    );
    host.memory.world().lax = true;
    let stale = one(&host, request("r1"), None);
    let later = async {
        while host.calls().len() < 2 {
            host.called.notified().await;
        }
        host.memory.set("r1", RunStatus::Failed);
        let first_run = one(&host, request("r2"), None).await.unwrap();
        let before = heads(&host);
        // A third call releases the first run.
        host.script().calls.push(("any".to_owned(), Value::Null));
        host.called.notify_waiters();
        (questions(&first_run), before)
    };
    let (stale, (questions, before)) = tokio::join!(stale, later);
    assert_eq!(questions.len(), 1, "it is not known whether it happened");
    assert_eq!(ending(&stale.unwrap()).0, "run.completed");
    assert_eq!(heads(&host), before, "the first run changed nothing");
    assert_eq!(host.memory.effects("mystery"), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_models_leave_one_observation() {
    let case = chain("note");
    let host = case.host();
    let mind = host.script().mind.take();
    host.says([case.declared()]);
    let failed = one(&host, request("r1"), None).await.unwrap();
    assert_eq!(ending(&failed).0, "run.failed");
    host.script().mind = mind;
    one(&host, request("r2"), None).await.unwrap();
    assert_eq!(host.memory.effects("note"), 1);
    assert_eq!(record(&host).await["status"], "completed");
    once(&host, "after a failed model");
}

#[tokio::test(start_paused = true)]
async fn dies_while_a_retry_waits() {
    check(&retried(), Kill::at("retry.waiting"), "retry").await;
}

#[tokio::test(start_paused = true)]
async fn dies_within_a_fan_out() {
    let end = check(&fan_out(), Kill::after("effect.answered", 3), "3 of 7").await;
    assert_eq!(end.host.memory.effects("note"), 7);
}

#[tokio::test(start_paused = true)]
async fn dies_after_an_observation() {
    for case in [chain("note"), chain("mystery")] {
        check(&case, Kill::after("observe.made", 1), "observed").await;
    }
}

#[tokio::test(start_paused = true)]
async fn dies_before_an_answered_graph_is_closed() {
    check(&chain("mystery"), Kill::at("answer.sent"), "sent").await;
}

#[tokio::test(start_paused = true)]
async fn answers_that_arrive_twice_count_once() {
    let case = chain("send");
    let host = case.host();
    let first_run = one(&host, request("r1"), None).await.unwrap();
    let question = questions(&first_run).remove(0);
    one(&host, submit("r2", &question), None).await.unwrap();
    let again = one(&host, submit("r3", &question), None).await.unwrap();
    assert_eq!(ending(&again), ("run.completed", "stop"));
    assert_eq!(host.memory.effects("send"), 1);
}

#[tokio::test(start_paused = true)]
async fn answers_may_precede_the_end_of_their_run() {
    let case = chain("send");
    let host = case.host();
    let first_run = one(&host, request("r1"), None).await.unwrap();
    let question = questions(&first_run).remove(0);
    host.memory.set("r1", RunStatus::Running);
    let second_run = one(&host, submit("r2", &question), None).await.unwrap();
    assert_eq!(ending(&second_run).0, "run.completed");
    assert_eq!(
        host.memory.effects("send"),
        0,
        "a live run drives the graph"
    );
    host.memory.set("r1", RunStatus::Completed);
    let later = later(&request("r3"), "r3", "e-r3");
    one(&host, later, None).await.unwrap();
    assert_eq!(host.memory.effects("send"), 1, "the answer was kept");
    assert_eq!(record(&host).await["status"], "completed");
}

#[tokio::test(start_paused = true)]
async fn live_runs_are_not_overtaken() {
    let case = chain("mystery");
    let host = case.host();
    let kill = Kill::at("effect.before_call");
    assert!(one(&host, request("r1"), Some(kill)).await.is_none());
    host.memory.set("r1", RunStatus::Running);
    one(&host, later(&request("r2"), "r2", "e-r2"), None)
        .await
        .unwrap();
    let world = host.memory.world();
    let mut graphs = world.documents.values();
    assert!(
        graphs.any(|one| one.summary["runs"] == json!(["r1"]) && one.summary["closed"].is_null())
    );
}

#[tokio::test(start_paused = true)]
async fn full_storage_lets_nothing_begin() {
    let case = chain("mystery");
    let host = case.host();
    host.memory.fail("put_document", "payload_too_large", 99);
    one(&host, request("r1"), None).await.unwrap();
    assert_eq!(host.memory.effects("mystery"), 0);
}

#[tokio::test(start_paused = true)]
async fn dies_around_every_call_of_the_gateway() {
    let cases = [
        chain("note"),
        chain("mystery"),
        chain("send"),
        chain("writer"),
        retried(),
        revised(),
        parallel(),
        fan_out(),
    ];
    let mut points = 0;
    for case in cases {
        points += sweep(&case, "host.before").await;
        points += sweep(&case, "host.after").await;
    }
    assert!(points > 300, "{points} points");
}
