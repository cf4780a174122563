//! Resumable runners: a streaming run outlives its gateway and its connection.

use std::sync::atomic::{AtomicU32, Ordering};

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{Client, message, send};
use crate::support::gateway::Config;
use crate::support::runner::StubRunner;
use crate::support::script::{
    Run, ScriptStep, answer, chunk, frame, head, send as write, sse, sse_and_wait, sse_head,
};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until};

const COMPLETED: [&str; 5] = [
    "message.delta",
    "message.delta",
    "message.delta",
    "message.delta",
    "run.completed",
];

/// Leases of a killed gateway expire soon.
fn short_lease(config: &mut Config) {
    config.runs = "lease_seconds = 2\ncancel_grace_seconds = 0.5".into();
    "public_url = \"http://runnel.test\"".clone_into(&mut config.server);
}

/// A runner that streams two results, works on, and answers a resume with the rest.
async fn stage(engine: Engine, configure: impl FnOnce(&mut Config)) -> Option<OwnStage> {
    let runner = StubRunner::start_resumable(20).await;
    runner.answer_all(|run| sse_and_wait([run.delta(1, "1 "), run.delta(2, "2 ")].concat()));
    runner.answer_resumes(|run| sse(run.rest(4)));
    OwnStage::of(engine, runner, configure).await
}

/// Posts an event, and waits for the two results of its run.
async fn begin(stage: &OwnStage) -> String {
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    until("two results", async || {
        stage.client.run(&run_id).await["last_sequence"] == 2
    })
    .await;
    run_id
}

async fn assert_completed(stage: &OwnStage, run_id: &str) {
    let outcome = stage.outcome(run_id).await;
    outcome.assert("completed", &COMPLETED);
    assert_eq!(outcome.ledger.text(), "1 2 3 4 ");
    assert_eq!(outcome.run["output"]["content"], "1 2 3 4 ");
    assert_eq!(stage.runner.posts(run_id), 1);
}

#[rstest]
#[tokio::test]
async fn run_continues_after_gateway_kill(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(stage(engine, short_lease).await);
    let run_id = begin(&stage).await;
    stage.gateway.kill().await;
    stage.gateway.restart().await;
    assert_completed(&stage, &run_id).await;
    let resumes = stage.runner.resumes(&run_id);
    assert_eq!(resumes.len(), 1);
    assert!(resumes[0].is_signed());
    let body = resumes[0].json();
    assert_eq!((&body["attempt"], &body["after"]), (&json!(2), &json!(2)));
    assert_ne!(
        body["host"]["token"],
        stage.runner.run_request(&run_id).await.json()["host"]["token"]
    );
    let (id, attempt) = ("webhook-id", resumes[0].header("runnel-attempt"));
    let expected = format!("resume_{}_2", run_id.replace('-', ""));
    assert_eq!(resumes[0].header(id), Some(expected.as_str()));
    assert_eq!(attempt, Some("2"));
}

#[tokio::test]
async fn other_replica_resumes_run_of_killed_one() {
    let mut stage = or_skip!(stage(Postgres, short_lease).await);
    let replica = stage.gateway.start_replica().await;
    let run_id = begin(&stage).await;
    let watching = replica.client.follow(&run_id, 0).await;
    stage.gateway.kill().await;
    let streamed: Vec<_> = watching.rest().await.into_iter().map(|f| f.data).collect();
    let ledger = replica.client.ledger(&run_id).await;
    assert_eq!(streamed, ledger.0);
    assert_eq!(ledger.types(), COMPLETED);
    assert_contains!(replica.log(), "this replica continues run");
    stage.gateway.restart().await;
}

#[rstest]
#[tokio::test]
async fn stopping_gateway_hands_run_over_at_once(#[values(true, false)] has_replica: bool) {
    let configure = |config: &mut Config| {
        short_lease(config);
        // The handover waits for neither the lease nor the grace period.
        config.runs = "lease_seconds = 300\nshutdown_grace_seconds = 300".into();
    };
    let engine = if has_replica { Postgres } else { Sqlite };
    let mut stage = or_skip!(stage(engine, configure).await);
    let replica = if has_replica {
        Some(stage.gateway.start_replica().await)
    } else {
        None
    };
    let run_id = begin(&stage).await;
    stage.gateway.stop().await;
    assert_contains!(stage.gateway.log(), "released the lease of run");
    if let Some(replica) = &replica {
        let streamed = replica.client.follow(&run_id, 0).await.rest().await;
        assert_eq!(streamed.len(), COMPLETED.len());
    }
    stage.gateway.restart().await;
    assert_completed(&stage, &run_id).await;
}

#[rstest]
#[case::reset(vec![ScriptStep::Reset])]
#[case::clean_end(vec![])]
#[tokio::test]
async fn run_continues_after_lost_connection(#[case] end: Vec<ScriptStep>) {
    let stage = stage(Sqlite, short_lease).await.unwrap();
    stage.runner.answer("m-1", move |run| {
        let results = [run.delta(1, "1 "), run.delta(2, "2 ")].concat();
        [sse(results), end.clone()].concat()
    });
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    assert_completed(&stage, &run_id).await;
}

/// Reads the run with this token.
async fn read_run(stage: &OwnStage, token: &str) -> crate::support::client::ApiResponse {
    let host = Client::new(&format!("{}/host/v1", stage.client.url), token);
    send(host.request(Method::GET, "/run")).await.unwrap()
}

#[tokio::test]
async fn earlier_token_is_refused_as_moved() {
    let mut stage = stage(Sqlite, short_lease).await.unwrap();
    stage.runner.answer_resumes(|_| sse_and_wait(""));
    let run_id = begin(&stage).await;
    let old = stage.runner.run_request(&run_id).await.json();
    let old = old["host"]["token"].as_str().unwrap().to_owned();
    read_run(&stage, &old).await.expect(200);
    stage.gateway.kill().await;
    stage.gateway.restart().await;
    let path = format!("/runs/{run_id}/resume");
    let resume = stage
        .runner
        .wait_for_request("the resume", |request| request.path == path)
        .await;
    let new = resume.json()["host"]["token"].as_str().unwrap().to_owned();
    let run = read_run(&stage, &new).await.expect(200).body;
    assert_eq!(run["run_id"], run_id.as_str(), "{run}");
    read_run(&stage, &old)
        .await
        .assert_error(401, "code", "run_moved");
    stage.client.cancel(&run_id).await.expect(202);
    until("the end", async || {
        stage.client.run(&run_id).await["status"] == "cancelled"
    })
    .await;
    for ended in [&old, &new] {
        read_run(&stage, ended)
            .await
            .assert_error(401, "code", "unauthenticated");
    }
}

/// Runs one event; the runner loses its connection after two results and answers resumes by this script.
async fn play(
    resume_within_seconds: u32,
    script: impl Fn(&Run) -> Vec<ScriptStep> + Send + Sync + 'static,
) -> (OwnStage, String) {
    let runner = StubRunner::start_resumable(resume_within_seconds).await;
    runner.answer_all(|run| sse([run.delta(1, "1 "), run.delta(2, "2 ")].concat()));
    runner.answer_resumes(script);
    let stage = OwnStage::of(Sqlite, runner, short_lease).await.unwrap();
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    (stage, run_id)
}

#[tokio::test]
async fn repeated_results_are_dropped() {
    let (stage, run_id) = play(20, |run| {
        let twice = [run.delta(1, "1 "), run.delta(2, "2 "), run.delta(3, "3 ")].concat();
        sse([twice.clone(), twice, run.rest(4)].concat())
    })
    .await;
    assert_completed(&stage, &run_id).await;
}

/// The number of stored results includes those before the fault.
#[rstest]
#[case::other_content(2, |run: &Run| run.delta(2, "other"))]
#[case::other_type(2, |run: &Run| run.completed(2))]
#[case::other_content_after_repetition(2, |run: &Run| run.delta(1, "1 ") + &run.delta(2, "other"))]
#[case::jump(2, |run: &Run| run.delta(4, "4 "))]
#[case::without_number(2, |run: &Run| run.unnumbered("message.delta", &chunk("x")))]
#[case::later_jump(3, |run: &Run| run.delta(3, "3 ") + &run.delta(5, "5 "))]
#[case::step_back(3, |run: &Run| run.delta(3, "3 ") + &run.delta(1, "other"))]
#[case::same_number_twice(3, |run: &Run| run.delta(3, "3 ") + &run.delta(3, "other"))]
#[tokio::test]
async fn contradicting_results_fail_run(
    #[case] stored: usize,
    #[case] results: fn(&Run) -> String,
) {
    let (stage, run_id) = play(20, move |run| sse_and_wait(results(run))).await;
    let types = [&vec!["message.delta"; stored][..], &["run.failed"]].concat();
    let outcome = stage.outcome(&run_id).await;
    outcome.assert("failed runner.protocol_violation", &types);
    stage.runner.cancel_request(&run_id).await;
}

#[rstest]
#[case::two_terminals(|run: &Run| run.rest(4) + &run.failed(6))]
#[case::repeated_terminal(|run: &Run| run.rest(4) + &run.completed(5))]
#[case::changed_terminal(|run: &Run| run.rest(4) + &run.failed(5))]
#[case::later_result(|run: &Run| run.rest(4) + &run.delta(6, "late"))]
#[case::repeated_answer(|run: &Run| run.rest(4) + &run.rest(4))]
#[tokio::test]
async fn first_terminal_of_resumed_run_holds(#[case] results: fn(&Run) -> String) {
    let (stage, run_id) = play(20, move |run| sse_and_wait(results(run))).await;
    assert_completed(&stage, &run_id).await;
}

/// A second connection would be as silent.
#[tokio::test]
async fn silence_after_resume_fails_run() {
    let configure = |config: &mut Config| {
        short_lease(config);
        config.limits = "silence_seconds = 0.5".into();
    };
    let stage = stage(Sqlite, configure).await.unwrap();
    let lost = |run: &Run| sse(run.delta(1, "1 ") + &run.delta(2, "2 "));
    stage.runner.answer("m-1", lost);
    stage.runner.answer_resumes(|_| sse_and_wait(""));
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    let types = ["message.delta", "message.delta", "run.failed"];
    let outcome = stage.outcome(&run_id).await;
    outcome.assert("failed runner.idle_timeout", &types);
    assert_eq!(stage.runner.resumes(&run_id).len(), 1);
    stage.runner.cancel_request(&run_id).await;
}

#[rstest]
#[case::unknown_run(20, |_: &Run| answer("404 Not Found", "", ""))]
#[case::no_answer(1, |_: &Run| vec![ScriptStep::AwaitClose])]
#[case::always_attached(2, |_: &Run| answer("409 Conflict", "", ""))]
#[case::no_progress(2, |_: &Run| sse(""))]
#[tokio::test]
async fn lost_runner_fails_run(#[case] seconds: u32, #[case] script: fn(&Run) -> Vec<ScriptStep>) {
    let (stage, run_id) = play(seconds, script).await;
    let types = ["message.delta", "message.delta", "run.failed"];
    stage
        .outcome(&run_id)
        .await
        .assert("failed runner.lost", &types);
    assert_eq!(stage.client.run(&run_id).await["error"]["retryable"], true);
}

#[tokio::test]
async fn refused_resume_is_repeated() {
    let tries = AtomicU32::new(0);
    let (stage, run_id) = play(20, move |run| match tries.fetch_add(1, Ordering::SeqCst) {
        0 => answer("409 Conflict", "", ""),
        1 => answer("500 Internal Server Error", "", ""),
        2 => vec![ScriptStep::Reset],
        _ => sse(run.rest(4)),
    })
    .await;
    assert_completed(&stage, &run_id).await;
    let attempts = stage.runner.resumes(&run_id);
    let attempts: Vec<_> = attempts
        .iter()
        .map(|resume| resume.json()["attempt"].clone())
        .collect();
    assert_eq!(attempts, [2, 3, 4, 5]);
}

/// The runner answers the resume with 202: later results are appended, and both halves survive another kill.
#[rstest]
#[tokio::test]
async fn resumed_run_continues_as_async_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(stage(engine, short_lease).await);
    let accepted = || vec![head("202 Accepted", "content-length: 0\r\n")];
    stage.runner.answer_resumes(move |_| accepted());
    let run_id = begin(&stage).await;
    stage.gateway.kill().await;
    stage.gateway.restart().await;
    let path = format!("/runs/{run_id}/resume");
    let resume = stage
        .runner
        .wait_for_request("the resume", |request| request.path == path)
        .await;
    let token = resume.json()["host"]["token"].as_str().unwrap().to_owned();
    let host = Client::new(&format!("{}/host/v1", stage.client.url), &token);
    let run = Run {
        id: run_id.clone(),
        event_id: String::new(),
        attempt: 2,
        after: 2,
    };
    let append = async |results: &[String]| {
        let results: Vec<Value> = results
            .iter()
            .map(|result| serde_json::from_str(result.trim().trim_start_matches("data: ")).unwrap())
            .collect();
        let call = host.request(Method::POST, "/run/results");
        send(call.json(&json!({"results": results}))).await.unwrap()
    };
    append(&[run.delta(3, "3 ")]).await.expect(200);
    until("the third result", async || {
        stage.client.run(&run_id).await["last_sequence"] == 3
    })
    .await;
    stage.gateway.kill().await;
    stage.gateway.restart().await;
    let rest = [run.delta(4, "4 "), run.completed(5)];
    append(&rest).await.expect(200);
    assert_completed(&stage, &run_id).await;
}

#[tokio::test]
async fn ended_run_sends_cancel_notice() {
    let configure = |config: &mut Config| {
        short_lease(config);
        config.agents[0].timeout_seconds = 1.5;
    };
    let stage = stage(Sqlite, configure).await.unwrap();
    let run_id = begin(&stage).await;
    let outcome = stage.outcome(&run_id).await;
    assert_eq!(outcome.ending(), "timeout deadline_exceeded");
    stage.runner.cancel_request(&run_id).await;
}

/// Usage, state, rejections and messages of the first gateway count in the second.
#[rstest]
#[tokio::test]
async fn next_owner_restores_earlier_results(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(stage(engine, short_lease).await);
    stage.runner.answer("m-1", |run| {
        let usage = r#","usage":{"input_tokens":3,"output_tokens":5}}"#;
        let delta = run.json(1, "message.delta", &chunk("one "));
        let delta = delta.strip_suffix('}').unwrap().to_owned() + usage;
        let bad = run.result(
            2,
            "state.updated",
            r#"{"scope":"nobody","key":"k","value":1}"#,
        );
        let message = r#"{"message":{"role":"assistant","content":"first"}}"#;
        let message = run.result(3, "message.completed", message);
        sse_and_wait([frame(&delta), bad, message].concat())
    });
    stage.runner.answer_resumes(|run| {
        let bad = run.result(
            2,
            "state.updated",
            r#"{"scope":"nobody","key":"k","value":1}"#,
        );
        let rest = [bad, run.delta(4, "two"), run.completed(5)].concat();
        vec![sse_head(), write(rest)]
    });
    let run_id = begin(&stage).await;
    stage.gateway.kill().await;
    stage.gateway.restart().await;
    let outcome = stage.outcome(&run_id).await;
    let types = [
        "message.delta",
        "message.completed",
        "message.delta",
        "run.completed",
    ];
    outcome.assert("completed", &types);
    assert_eq!(stage.runner.resumes(&run_id)[0].json()["after"], 3);
    let usage = json!({"input_tokens": 3, "output_tokens": 5});
    assert_eq!(outcome.run["usage"], usage);
    outcome.assert_rejected(&["invalid_payload"]);
    assert_eq!(outcome.run["metadata"]["duplicates"], 1);
    assert_eq!(outcome.run["output"]["content"], "first");
}

/// The gateway that resumes dies as well, before or after each of its commits.
#[rstest]
#[tokio::test]
async fn resuming_gateway_may_crash(
    #[values(Sqlite, Postgres)] engine: Engine,
    #[values(
        "orphan.after_takeover",
        "post.before_intent",
        "post.after_intent",
        "post.after_send",
        "terminal.before_commit",
        "terminal.after_commit"
    )]
    moment: &str,
) {
    let mut stage = or_skip!(stage(engine, short_lease).await);
    let run_id = begin(&stage).await;
    stage.gateway.kill().await;
    // It may die before it listens.
    let dying = format!("{moment}=1*return(abort)");
    stage.gateway.start_with_failpoints(&dying).await;
    stage.gateway.exited().await;
    stage.gateway.restart().await;
    assert_completed(&stage, &run_id).await;
}
