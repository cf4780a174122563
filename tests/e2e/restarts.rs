//! New starts of runs whose runner was lost, from the event or from a checkpoint.

use std::sync::atomic::{AtomicU32, Ordering};

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::gateway::Config;
use crate::support::ledger::Ledger;
use crate::support::runner::{RecordedRequest, StubRunner};
use crate::support::script::{Run, answer, sse, sse_and_wait};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until};

const FROM_CHECKPOINT: &str = r#", on = ["runner.lost"], from = "checkpoint""#;
const FROM_START: &str = r#", on = ["runner.lost"]"#;

fn configure(restarts: &'static str, max: u32) -> impl FnOnce(&mut Config) {
    move |config| {
        config.runs = "lease_seconds = 2".into();
        "public_url = \"http://runnel.test\"".clone_into(&mut config.server);
        config.agents[0].retries = max;
        config.agents[0].restarts = restarts;
    }
}

/// A runner that streams `1 2 ` in its first attempt and then works on; later attempts complete with `3 `.
async fn stage(engine: Engine, restarts: &'static str) -> Option<OwnStage> {
    let runner = StubRunner::start_resumable(20).await;
    runner.answer_all(|run| match run.attempt {
        1 => sse_and_wait([run.delta(1, "1 "), run.delta(2, "2 ")].concat()),
        _ => sse([run.delta(1, "3 "), run.completed(2)].concat()),
    });
    OwnStage::of(engine, runner, configure(restarts, 1)).await
}

/// Posts an event, and waits for this number of events of its run.
async fn begin(stage: &OwnStage, events: u64) -> String {
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    until("the first results", async || {
        stage.client.run(&run_id).await["last_sequence"] == events
    })
    .await;
    run_id
}

/// The gateway of the run is killed. The runner has lost the run, too: it answers the resume with 404.
async fn lose(stage: &mut OwnStage) {
    stage.gateway.kill().await;
    stage.gateway.restart().await;
}

async fn put(host: &Client, body: &Value) -> ApiResponse {
    let call = host.request(Method::PUT, "/checkpoint");
    send(call.json(body)).await.unwrap()
}

/// Client of the host API with this token, at the present address of the gateway.
fn host(stage: &OwnStage, request: &RecordedRequest) -> Client {
    let token = request.json()["host"]["token"].as_str().unwrap().to_owned();
    Client::new(&format!("{}/host/v1", stage.client.url), &token)
}

/// The run requests of a run, in order.
fn starts(stage: &OwnStage, run_id: &str) -> Vec<RecordedRequest> {
    let mut requests = stage.runner.requests();
    requests.retain(|one| one.is_run() && one.header("runnel-run-id") == Some(run_id));
    requests
}

/// Text of the deltas that no later start has superseded.
fn text_of(ledger: &Ledger) -> String {
    let restarts = ledger.of_type("run.restarted");
    let number = |value: &Value| value.as_u64().unwrap();
    let is_valid = |sequence: u64| {
        restarts.iter().all(|restart| {
            let (after, at) = (&restart["data"]["after"], &restart["sequence"]);
            sequence <= number(after) || sequence > number(at)
        })
    };
    let mut deltas = ledger.of_type("message.delta");
    deltas.retain(|delta| is_valid(number(&delta["sequence"])));
    let text = |delta: &Value| {
        delta["data"]["chunk"]["content"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    deltas.iter().map(text).collect()
}

const RESTARTED: [&str; 6] = [
    "message.delta",
    "message.delta",
    "run.restarted",
    "message.delta",
    "message.delta",
    "run.completed",
];

#[rstest]
#[tokio::test]
async fn run_continues_from_checkpoint(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(stage(engine, FROM_CHECKPOINT).await);
    let run_id = begin(&stage, 2).await;
    let first = stage.runner.run_request(&run_id).await;
    let host = host(&stage, &first);
    let none = send(host.request(Method::GET, "/checkpoint"))
        .await
        .unwrap();
    none.assert_error(404, "code", "not_found");
    let stored = put(&host, &json!({"value": {"step": 1}, "sequence": 1})).await;
    assert_eq!(stored.expect(200).body, json!({"version": 1, "after": 1}));
    let read = send(host.request(Method::GET, "/checkpoint"))
        .await
        .unwrap();
    let expected = json!({"value": {"step": 1}, "version": 1, "after": 1});
    assert_eq!(read.expect(200).body, expected);

    lose(&mut stage).await;
    let outcome = stage.outcome(&run_id).await;
    outcome.assert("completed", &RESTARTED);
    assert_eq!(
        outcome.ledger.events()[2]["data"],
        json!({"attempt": 3, "code": "runner.lost", "from": "checkpoint", "after": 1})
    );
    let replaced = &outcome.ledger.events()[3];
    let chunk = json!({"role": "assistant", "content": "", "all_content": "1 "});
    assert_eq!(
        (&replaced["source"], &replaced["data"]["chunk"]),
        (&json!("host"), &chunk)
    );
    assert_eq!(text_of(&outcome.ledger), "1 3 ");
    assert_eq!(outcome.run["output"]["content"], "1 3 ");

    let starts = starts(&stage, &run_id);
    let resumes: Vec<_> = starts
        .iter()
        .map(|start| start.json()["context"]["runtime"]["resume"].clone())
        .collect();
    assert_eq!(
        resumes,
        [json!(null), json!({"checkpoint": {"step": 1}, "after": 1})]
    );
    assert_eq!(starts[1].header("runnel-attempt"), Some("3"));
    let without_resume = |request: &RecordedRequest| {
        let mut context = request.json()["context"].clone();
        context["runtime"].as_object_mut().unwrap().remove("resume");
        context
    };
    assert_eq!(without_resume(&starts[0]), without_resume(&starts[1]));
}

#[rstest]
#[case::policy(FROM_START, true)]
#[case::no_checkpoint(FROM_CHECKPOINT, false)]
#[tokio::test]
async fn run_starts_again_from_event(#[case] restarts: &'static str, #[case] has_one: bool) {
    let mut stage = stage(Sqlite, restarts).await.unwrap();
    let run_id = begin(&stage, 2).await;
    if has_one {
        let host = host(&stage, &stage.runner.run_request(&run_id).await);
        put(&host, &json!({"value": 1})).await.expect(200);
    }
    lose(&mut stage).await;
    let outcome = stage.outcome(&run_id).await;
    outcome.assert("completed", &RESTARTED);
    let expected = json!({"attempt": 3, "code": "runner.lost", "from": "start", "after": 0});
    assert_eq!(outcome.ledger.events()[2]["data"], expected);
    assert_eq!(outcome.run["output"]["content"], "3 ");
    let second = &starts(&stage, &run_id)[1].json()["context"]["runtime"];
    assert_eq!(second.get("resume"), None);
}

/// The runner is lost with its connection, and again in each new start.
#[rstest]
#[case::never("", 2, 0)]
#[case::twice(FROM_START, 2, 2)]
#[tokio::test]
async fn run_ends_as_lost_after_maximum(
    #[case] restarts: &'static str,
    #[case] max: u32,
    #[case] expected: usize,
) {
    let runner = StubRunner::start_resumable(20).await;
    runner.answer_all(|run| sse(run.delta(1, "1 ")));
    let stage = OwnStage::of(Sqlite, runner, configure(restarts, max)).await;
    let stage = stage.unwrap();
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    let outcome = stage.outcome(&run_id).await;
    assert_eq!(outcome.ending(), "failed runner.lost");
    assert_eq!(outcome.ledger.of_type("run.restarted").len(), expected);
    assert_eq!(starts(&stage, &run_id).len(), expected + 1);
}

/// A new start is lost as well, after a checkpoint of its own: both checkpoints keep their results.
#[tokio::test]
async fn second_restart_continues_from_newest_checkpoint() {
    let runner = StubRunner::start_resumable(20).await;
    runner.answer_all(|run| match run.attempt {
        5 => sse([run.delta(1, "c "), run.completed(2)].concat()),
        1 => sse_and_wait([run.delta(1, "a "), run.delta(2, "lost ")].concat()),
        _ => sse_and_wait([run.delta(1, "b "), run.delta(2, "lost ")].concat()),
    });
    let stage = OwnStage::of(Sqlite, runner, configure(FROM_CHECKPOINT, 2)).await;
    let mut stage = stage.unwrap();
    let run_id = begin(&stage, 2).await;
    let first = host(&stage, &stage.runner.run_request(&run_id).await);
    put(&first, &json!({"value": "a", "sequence": 1}))
        .await
        .expect(200);
    lose(&mut stage).await;
    until("the second start", async || {
        stage.client.run(&run_id).await["last_sequence"] == 6
    })
    .await;
    let second = host(&stage, &starts(&stage, &run_id)[1]);
    let stored = put(&second, &json!({"value": "b", "sequence": 1})).await;
    assert_eq!(stored.expect(200).body, json!({"version": 2, "after": 5}));
    lose(&mut stage).await;
    let outcome = stage.outcome(&run_id).await;
    assert_eq!(outcome.ending(), "completed");
    assert_eq!(text_of(&outcome.ledger), "a b c ");
    assert_eq!(outcome.run["output"]["content"], "a b c ");
    let third = &starts(&stage, &run_id)[2].json()["context"]["runtime"]["resume"];
    assert_eq!(*third, json!({"checkpoint": "b", "after": 5}));
}

/// A new start loses only its connection: the resume continues its own numbers.
#[rstest]
#[tokio::test]
async fn new_start_is_resumed_by_its_own_numbers(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start_resumable(20).await;
    let bad = |run: &Run, number: u64| {
        let data = r#"{"scope":"nobody","key":"k","value":1}"#;
        run.result(number, "state.updated", data)
    };
    runner.answer_all(move |run| match run.attempt {
        // The rejected result of the lost start has the number of a result of the new one.
        1 => sse_and_wait([run.delta(1, "1 "), bad(run, 2), run.delta(3, "x ")].concat()),
        _ => sse([run.delta(1, "2 "), run.delta(2, "3 ")].concat()),
    });
    runner.answer_resumes(|run| match run.attempt {
        2 => answer("404 Not Found", "", ""),
        _ => sse([run.delta(2, "3 "), run.delta(3, "4 "), run.completed(4)].concat()),
    });
    let stage = OwnStage::of(engine, runner, configure(FROM_CHECKPOINT, 1)).await;
    let mut stage = or_skip!(stage);
    let run_id = begin(&stage, 2).await;
    let first = host(&stage, &stage.runner.run_request(&run_id).await);
    put(&first, &json!({"value": 1, "sequence": 1}))
        .await
        .expect(200);
    lose(&mut stage).await;
    let outcome = stage.outcome(&run_id).await;
    assert_eq!(outcome.ending(), "completed");
    assert_eq!(text_of(&outcome.ledger), "1 2 3 4 ");
    let resumes = stage.runner.resumes(&run_id);
    let after: Vec<_> = resumes
        .iter()
        .map(|one| one.json()["after"].clone())
        .collect();
    assert_eq!(after, [json!(3), json!(2)]);
    outcome.assert_rejected(&["invalid_payload"]);
}

/// The gateway dies between the event of the new start and its POST.
#[rstest]
#[tokio::test]
async fn restarting_gateway_may_crash(
    #[values(Sqlite, Postgres)] engine: Engine,
    #[values("restart.after_event", "post.after_intent")] moment: &str,
) {
    let runner = StubRunner::start_resumable(20).await;
    runner.answer_all(|run| match run.attempt {
        1 => sse_and_wait([run.delta(1, "1 "), run.delta(2, "2 ")].concat()),
        _ => sse([run.delta(1, "3 "), run.completed(2)].concat()),
    });
    let stage = OwnStage::of(engine, runner, configure(FROM_START, 3)).await;
    let mut stage = or_skip!(stage);
    let run_id = begin(&stage, 2).await;
    stage.gateway.kill().await;
    let dying = format!("{moment}=1*return(abort)");
    stage.gateway.start_with_failpoints(&dying).await;
    stage.gateway.exited().await;
    stage.gateway.restart().await;
    let outcome = stage.outcome(&run_id).await;
    assert_eq!(outcome.ending(), "completed");
    assert_eq!(outcome.run["output"]["content"], "3 ");
    assert_eq!(text_of(&outcome.ledger), "3 ");
}

/// The runner's process is gone for a while: the new start waits for it.
#[tokio::test]
async fn new_start_waits_for_runner() {
    let refusals = AtomicU32::new(0);
    let runner = StubRunner::start_resumable(20).await;
    runner.answer_all(move |run| {
        if run.attempt == 1 {
            return sse(run.delta(1, "1 "));
        }
        match refusals.fetch_add(1, Ordering::SeqCst) {
            0 => answer("409 Conflict", "", ""),
            1 => answer("503 Service Unavailable", "retry-after: 1\r\n", ""),
            _ => sse([run.delta(1, "2 "), run.completed(2)].concat()),
        }
    });
    let stage = OwnStage::of(Sqlite, runner, configure(FROM_START, 1)).await;
    let stage = stage.unwrap();
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    let outcome = stage.outcome(&run_id).await;
    let types = [
        "message.delta",
        "run.restarted",
        "message.delta",
        "message.delta",
        "run.completed",
    ];
    outcome.assert("completed", &types);
    assert_eq!(starts(&stage, &run_id).len(), 4);
}

/// A question of a superseded result stays open, and its repetition has no effect.
#[tokio::test]
async fn repeated_question_of_new_start_is_stored_once() {
    let ask = |run: &Run| {
        let payload = json!({"interaction_id": "q", "title": "t", "fallback_text": "f"});
        let data = json!({"action": "interaction.requested", "payload": payload});
        run.result(1, "action.requested", &data.to_string())
    };
    let mut manifest = crate::support::runner::manifest(crate::support::runner::RUNNER_ID);
    manifest["capabilities"]["resumable"] = json!(true);
    manifest["capabilities"]["interactions"] = json!(true);
    manifest["permissions"]["interactions"] = json!(["request"]);
    let runner = StubRunner::start_as(manifest).await;
    runner.answer_all(move |run| match run.attempt {
        1 => sse(ask(run)),
        _ => sse([ask(run), run.delta(2, "answer"), run.completed(3)].concat()),
    });
    let stage = OwnStage::of(Sqlite, runner, |config| {
        configure(FROM_START, 1)(config);
        config.agents[0].interactions = true;
    })
    .await
    .unwrap();
    let mut event = message("m-1");
    event["delivery"] = json!({"surface": "web", "interactions": {"field_types": ["text"]}});
    let run_id = stage.client.post(&event).await.run_id();
    let outcome = stage.outcome(&run_id).await;
    outcome.assert_rejected(&[]);
    assert_eq!(outcome.ending(), "completed");
    let stored = stage.client.get("/v1/interactions").await.body;
    assert_eq!(stored["items"].as_array().unwrap().len(), 1, "{stored}");
}

#[tokio::test]
async fn checkpoint_waits_for_its_result() {
    let stage = stage(Sqlite, FROM_CHECKPOINT).await.unwrap();
    let run_id = begin(&stage, 2).await;
    let host = host(&stage, &stage.runner.run_request(&run_id).await);
    let newest = put(&host, &json!({"value": null})).await.expect(200);
    assert_eq!(newest.body, json!({"version": 1, "after": 2}));
    let pending = put(&host, &json!({"value": 1, "sequence": 3})).await;
    pending.assert_detail(503, "reason", "results_pending");
    let none = put(&host, &json!({"value": 1, "sequence": 0})).await;
    none.assert_detail(400, "pointer", "/sequence");
    let surplus = put(&host, &json!({"value": 1, "more": 1})).await;
    assert_eq!(surplus.status, 400, "{}", surplus.body);
}

#[rstest]
#[tokio::test]
async fn refuses_large_outdated_and_late_checkpoints(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(stage(engine, FROM_CHECKPOINT).await);
    stage.runner.answer_resumes(|_| sse_and_wait(""));
    let run_id = begin(&stage, 2).await;
    let old = host(&stage, &stage.runner.run_request(&run_id).await);
    let large = "x".repeat(256 * 1024 - 2);
    put(&old, &json!({"value": large})).await.expect(200);
    let too_large = put(&old, &json!({"value": large + "x"})).await;
    too_large.assert_detail(413, "pointer", "/value");
    let at = |version: &str| {
        let call = old.request(Method::PUT, "/checkpoint");
        call.header("if-match", version).json(&json!({"value": 2}))
    };
    let outdated = send(at("0")).await.unwrap();
    let found = (outdated.status, outdated.detail("version"));
    assert_eq!(found, (409, &json!(1)), "{}", outdated.body);
    send(at("1")).await.unwrap().expect(200);

    lose(&mut stage).await;
    let path = format!("/runs/{run_id}/resume");
    let resume = stage
        .runner
        .wait_for_request("the resume", |request| request.path == path)
        .await;
    let moved = host(&stage, &stage.runner.run_request(&run_id).await);
    let refused = put(&moved, &json!({"value": 3})).await;
    refused.assert_error(401, "code", "run_moved");
    let new = host(&stage, &resume);
    let read = send(new.request(Method::GET, "/checkpoint")).await.unwrap();
    assert_eq!(read.expect(200).body["value"], 2);
}

#[tokio::test]
async fn checkpoint_needs_a_state_scope() {
    let runner = StubRunner::start_resumable(20).await;
    runner.answer_all(|run| sse_and_wait(run.delta(1, "1 ")));
    let stage = OwnStage::of(Sqlite, runner, |config| {
        configure(FROM_CHECKPOINT, 1)(config);
        config.agents[0].state_scopes = "";
    })
    .await
    .unwrap();
    let run_id = begin(&stage, 1).await;
    let host = host(&stage, &stage.runner.run_request(&run_id).await);
    let refused = put(&host, &json!({"value": 1})).await;
    assert_eq!(refused.status, 403, "{}", refused.body);
}

#[tokio::test]
async fn runner_cannot_restart_its_run() {
    let stage = stage(Sqlite, FROM_START).await.unwrap();
    stage.runner.answer("m-1", |run| {
        let data = r#"{"attempt":2,"code":"runner.lost","from":"start","after":0}"#;
        let forged = run.result(2, "run.restarted", data);
        sse([
            run.delta(1, "1 "),
            forged,
            run.delta(2, "2 "),
            run.completed(3),
        ]
        .concat())
    });
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    let outcome = stage.outcome(&run_id).await;
    let types = ["message.delta", "message.delta", "run.completed"];
    outcome.assert("completed", &types);
    outcome.assert_rejected(&["invalid_envelope"]);
}

#[rstest]
#[case::other_code(json!({"on": ["runner.orphaned"]}), "/retry/on/0")]
#[case::without_effect(json!({"from": "checkpoint"}), "/retry/from")]
#[tokio::test]
async fn refuses_unusable_retry_policies(#[case] retry: Value, #[case] pointer: &str) {
    let stage = stage(Sqlite, "").await.unwrap();
    let mut spec = Config::new(&stage.runner).agents[0].spec();
    spec["name"] = json!("another");
    spec["retry"] = retry;
    let call = stage.admin.request(Method::POST, "/v1/agents").json(&spec);
    let refused = send(call).await.unwrap();
    refused.assert_detail(400, "pointer", pointer);
}
