//! Runs that continue after the first call: the runner answers 202 and appends its results later.

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{Client, message, send};
use crate::support::deferred::Deferred;
use crate::support::forger::Forger;
use crate::support::gateway::Config;
use crate::support::script::{Gate, Run, ScriptStep, head, send as send_bytes, sse_head};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until};

#[rstest]
#[tokio::test]
async fn appends_each_result_once_over_several_invocations(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let run = Deferred::start(&stage, &message("m-1")).await;
    run.accepted(&[run.delta(1, "one "), run.delta(2, "two ")], 2)
        .await;
    // Retries after a lost response, complete, and in part with new results.
    run.accepted(&[run.delta(1, "one "), run.delta(2, "two ")], 2)
        .await;
    run.accepted(&[run.delta(2, "two "), run.delta(3, "three")], 3)
        .await;
    let gap = run.append(&[run.delta(5, "five")]).await;
    gap.assert_detail(409, "reason", "sequence_gap");
    assert_eq!(gap.detail("expected"), 4);
    let beat = run.heartbeat().await.expect(200);
    assert_eq!(beat.body["accepted_through"], 3);
    assert_eq!(beat.body["cancel_requested"], false);
    assert!(beat.body["lease_expires_at"].is_i64(), "{}", beat.body);
    // The deltas are visible while the run is live.
    until("the deltas", async || {
        stage.client.run(&run.run_id).await["last_sequence"] == 3
    })
    .await;
    assert_eq!(stage.client.run(&run.run_id).await["status"], "running");
    run.accepted(&[run.completed(4)], 4).await;
    let outcome = stage.outcome(&run.run_id).await;
    let types = [
        "message.delta",
        "message.delta",
        "message.delta",
        "run.completed",
    ];
    outcome.assert("completed", &types);
    assert_eq!(outcome.ledger.text(), "one two three");
    assert_eq!(run.append(&[run.delta(5, "late")]).await.status, 401);
    assert_eq!(run.heartbeat().await.status, 401);
    assert_eq!(stage.runner.posts(&run.run_id), 1);
}

/// The runner sends the response head before its handler ends, as many servers can.
#[rstest]
#[case::chunked("transfer-encoding: chunked\r\n")]
#[case::until_close("")]
#[case::incomplete_length("content-length: 2\r\n")]
#[tokio::test]
async fn accepts_202_at_response_head(#[case] framing: &str) {
    // Far longer than a host call waits for the response of its runner.
    let stage = Stage::with(|config| config.limits = "first_byte_seconds = 300.0".into()).await;
    let answer = vec![
        send_bytes(format!("HTTP/1.1 202 Accepted\r\n{framing}\r\n")),
        ScriptStep::AwaitClose,
    ];
    let run = Deferred::start_with_answer(&stage, &message("m-1"), answer).await;
    run.accepted(&[run.delta(1, "one")], 1).await;
    run.accepted(&[run.completed(2)], 2).await;
    let types = ["message.delta", "run.completed"];
    stage.outcome(&run.run_id).await.assert("completed", &types);
    // The gateway closes the connection, because the run has ended.
    stage.runner.closed(1).await;
}

#[tokio::test]
async fn rejects_invalid_result_lists_by_pointer() {
    let stage = Stage::new().await;
    let run = Deferred::start(&stage, &message("m-1")).await;
    let mut unnumbered = run.delta(1, "x");
    unnumbered.as_object_mut().unwrap().remove("sequence");
    let of = |member: &str, value: Value| {
        let mut result = run.delta(1, "x");
        result[member] = value;
        result
    };
    let many: Vec<_> = (1..=1001).map(|n| run.delta(n, "x")).collect();
    for (results, pointer) in [
        (json!([]), "/results"),
        (json!(many), "/results"),
        (json!([1]), "/results/0"),
        (json!([of("run_id", Value::Null)]), "/results/0/run_id"),
        (json!([of("type", json!(""))]), "/results/0/type"),
        (json!([of("data", json!([]))]), "/results/0/data"),
        (json!([of("usage", json!(1))]), "/results/0/usage"),
        (json!([unnumbered]), "/results/0/sequence"),
        (json!([run.delta(0, "x")]), "/results/0/sequence"),
        (
            json!([run.delta(1, "x"), run.delta(3, "x")]),
            "/results/1/sequence",
        ),
    ] {
        let answer = run.append(results.as_array().unwrap()).await;
        assert_eq!(answer.status, 400, "{pointer}: {}", answer.body);
        assert_eq!(answer.detail("pointer"), pointer);
    }
    let large = run.append(&[run.delta(1, &"x".repeat(1024 * 1024))]).await;
    assert_eq!(large.status, 413, "{}", large.body);
    let advice = large.error("message").as_str().unwrap();
    assert!(advice.contains("upload it as an artifact"), "{advice}");
    run.accepted(&[run.delta(1, "x"), run.completed(2)], 2)
        .await;
    stage
        .outcome(&run.run_id)
        .await
        .assert("completed", &["message.delta", "run.completed"]);
}

#[tokio::test]
async fn appended_results_follow_the_rules_of_streams() {
    let stage = Stage::new().await;
    let run = Deferred::start(&stage, &message("m-1")).await;
    let bad = run.result(
        1,
        "state.updated",
        &json!({"scope": "nobody", "key": "k", "value": 1}),
    );
    let host = run.result(
        2,
        "state.updated",
        &json!({"scope": "conversation", "key": "host.k", "value": 1}),
    );
    let good = run.result(
        3,
        "state.updated",
        &json!({"scope": "conversation", "key": "k", "value": 7}),
    );
    let end = [run.delta(4, "done"), run.completed(5), run.delta(6, "late")];
    run.accepted(&[&[bad, host, good][..], &end[..]].concat(), 6)
        .await;
    let outcome = stage.outcome(&run.run_id).await;
    outcome.assert(
        "completed",
        &["state.updated", "message.delta", "run.completed"],
    );
    outcome.assert_rejected(&["invalid_payload", "unauthorized", "after_terminal"]);

    let run = Deferred::start(&stage, &message("m-2")).await;
    let mut foreign = run.delta(1, "x");
    foreign["run_id"] = json!("another");
    run.accepted(&[foreign], 1).await;
    let outcome = stage.outcome(&run.run_id).await;
    assert_eq!(outcome.run["error"]["code"], "runner.protocol_violation");
}

/// A state call sees the results appended and answered before it, on every replica.
#[rstest]
#[tokio::test]
async fn state_calls_see_previously_appended_results(#[values(Sqlite, Postgres)] engine: Engine) {
    let named = |config: &mut Config| {
        // Replicas share the public URL that issues tokens.
        "public_url = \"http://runnel.test\"".clone_into(&mut config.server);
    };
    let stage = or_skip!(OwnStage::on(engine, named).await);
    let replica = match engine {
        Sqlite => None,
        Postgres => Some(stage.gateway.start_replica().await),
    };
    let run = Deferred::start(&stage, &message("m-1")).await;
    let url = replica
        .as_ref()
        .map_or(&stage.client.url, |replica| &replica.client.url);
    let elsewhere = Client::new(&format!("{url}/host/v1"), &run.host.key);
    let state = |method, version: Option<&Value>| {
        let request = elsewhere.request(method, "/state/conversation/k");
        match version {
            Some(version) => request.header("if-match", version.to_string()),
            None => request,
        }
    };
    for turn in 1..=10 {
        let update = json!({"scope": "conversation", "key": "k", "value": turn});
        run.accepted(&[run.result(turn, "state.updated", &update)], turn)
            .await;
        let found = send(state(Method::GET, None)).await.unwrap();
        assert_eq!(found.body["value"], turn, "{}", found.body);
        let put = state(Method::PUT, Some(&found.body["version"]));
        let put = put.json(&json!({"value": format!("put {turn}")}));
        assert_eq!(send(put).await.unwrap().status, 200);
        let found = send(state(Method::GET, None)).await.unwrap();
        assert_eq!(found.body["value"], format!("put {turn}"));
    }
    // State calls do not wait for a terminal result.
    run.accepted(&[run.completed(11)], 11).await;
    let late = state(Method::PUT, None).json(&json!({"value": "late"}));
    assert_eq!(send(late).await.unwrap().status, 401);
}

/// A runner whose results are refused cannot end the run, so the gateway ends it.
#[tokio::test]
async fn exceeding_output_limit_by_appends_fails_the_run() {
    let sizes = "line_bytes = 4096\nevent_bytes = 8192\nrun_bytes = 65536";
    let stage = Stage::with(|config| config.limits = sizes.into()).await;
    let run = Deferred::start(&stage, &message("m-1")).await;
    let words = "x".repeat(8000);
    let mut refused = None;
    for sequence in 1..=40 {
        let answer = run.append(&[run.delta(sequence, &words)]).await;
        if answer.status != 200 {
            refused = Some(answer.status);
            break;
        }
    }
    // 413 until the gateway has judged the earlier results, 401 from then on.
    assert!(matches!(refused, Some(413 | 401)), "{refused:?}");
    let outcome = stage.outcome(&run.run_id).await;
    assert_eq!(outcome.ending(), "failed runner.output_limit");
    assert_eq!(outcome.run["error"]["retryable"], false);
}

#[rstest]
#[tokio::test]
async fn run_without_heartbeats_fails_as_orphaned(#[values(Sqlite, Postgres)] engine: Engine) {
    let lease = |config: &mut Config| "append_lease_seconds = 1.0".clone_into(&mut config.runs);
    let stage = or_skip!(Stage::on(engine, lease).await);
    let run = Deferred::start(&stage, &message("m-1")).await;
    run.accepted(&[run.delta(1, "one")], 1).await;
    // Heartbeats keep the run alive for longer than the lease.
    let begun = std::time::Instant::now();
    until("two leases to be over", async || {
        assert_eq!(run.heartbeat().await.status, 200);
        begun.elapsed().as_secs_f64() > 2.0
    })
    .await;
    let outcome = stage.outcome(&run.run_id).await;
    outcome.assert("failed runner.orphaned", &["message.delta", "run.failed"]);
    assert_eq!(outcome.run["error"]["retryable"], true);
    assert_eq!(run.heartbeat().await.status, 401);
}

#[tokio::test]
async fn owner_writes_results_accepted_by_another_replica() {
    let rings = |config: &mut Config| {
        "kind = \"postgres\"\npoll_seconds = 60.0".clone_into(&mut config.bus);
        // Replicas share the public URL that issues tokens.
        "public_url = \"http://runnel.test\"".clone_into(&mut config.server);
    };
    let stage = or_skip!(OwnStage::on(Postgres, rings).await);
    let replica = stage.gateway.start_replica().await;
    let run = Deferred::start(&stage, &message("m-1")).await;
    let elsewhere = Client::new(&format!("{}/host/v1", replica.client.url), &run.host.key);
    let mut sequence = 0;
    for (turn, host) in [&elsewhere, &run.host, &elsewhere, &elsewhere]
        .into_iter()
        .enumerate()
    {
        let results: Vec<_> = (1..=3)
            .map(|n| run.delta(sequence + n, &format!("{turn}.{n} ")))
            .collect();
        sequence += 3;
        let answer = run.append_as(host, &results).await;
        assert_eq!(answer.body, json!({"accepted_through": sequence}), "{turn}");
    }
    // Two concurrent calls with the same number: one result is accepted, and the other call is refused.
    let (left, right) = (run.delta(13, "left"), run.delta(13, "right"));
    let (left, right) = ([left], [right]);
    let (one, other) = tokio::join!(run.append(&left), run.append_as(&elsewhere, &right));
    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
    let answer = run.append_as(&elsewhere, &[run.completed(14)]).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let outcome = stage.outcome(&run.run_id).await;
    assert_eq!(outcome.run["status"], "completed");
    assert_eq!(outcome.ledger.events().len(), 14);
    let text = outcome.ledger.text();
    assert!(
        text.starts_with("0.1 0.2 0.3 1.1 ") && text.contains("3.3 "),
        "{text}"
    );
    assert!(text.ends_with("left") != text.ends_with("right"), "{text}");
}

/// Another replica without notifications accepts results, and the owner does not poll before the deadline.
#[rstest]
#[case::with_terminal(true)]
#[case::without_terminal(false)]
#[tokio::test]
async fn checks_accepted_results_before_deadline_ends_run(#[case] is_complete: bool) {
    let configure = |config: &mut Config| {
        "kind = \"none\"\npoll_seconds = 60.0".clone_into(&mut config.bus);
        "append_lease_seconds = 300.0".clone_into(&mut config.runs);
        "public_url = \"http://runnel.test\"".clone_into(&mut config.server);
        config.agents[0].timeout_seconds = 5.0;
    };
    let stage = or_skip!(OwnStage::on(Postgres, configure).await);
    let replica = stage.gateway.start_replica().await;
    let run = Deferred::start(&stage, &message("m-1")).await;
    // The owner has polled, and polls again in a minute.
    run.accepted(&[run.delta(1, "one ")], 1).await;
    until("the result to be judged", async || {
        stage.client.run(&run.run_id).await["last_sequence"] == 1
    })
    .await;
    let elsewhere = Client::new(&format!("{}/host/v1", replica.client.url), &run.host.key);
    let mut results = vec![run.delta(2, "two")];
    if is_complete {
        results.push(run.completed(3));
    }
    run.append_as(&elsewhere, &results).await.expect(200);
    let outcome = stage.outcome(&run.run_id).await;
    let (ending, last) = if is_complete {
        ("completed", "run.completed")
    } else {
        ("timeout deadline_exceeded", "run.failed")
    };
    outcome.assert(ending, &["message.delta", "message.delta", last]);
    assert_eq!(outcome.ledger.text(), "one two");
}

/// Appends results one by one until a call is refused. Returns the last accepted number.
async fn append_until_refused(run: &Deferred) -> u64 {
    let mut accepted = 0;
    loop {
        let answer = run.append(&[run.delta(accepted + 1, "x")]).await;
        match answer.status {
            200 => accepted += 1,
            // The rate limit applies, or the database is slow.
            429 | 503 => {}
            401 => return accepted,
            _ => panic!("{}", answer.body),
        }
    }
}

/// The end of a run leaves no accepted result unjudged.
#[rstest]
#[tokio::test]
async fn judges_results_accepted_as_cancel_grace_ends(#[values(Sqlite, Postgres)] engine: Engine) {
    let grace = |config: &mut Config| "cancel_grace_seconds = 0.2".clone_into(&mut config.runs);
    let stage = or_skip!(Stage::on(engine, grace).await);
    let talks = (0..8).map(|number| {
        let stage = &stage;
        async move {
            let mut event = message(&format!("m-{number}"));
            event["conversation"]["conversation_id"] = json!(format!("c-{number}"));
            let run = Deferred::start(stage, &event).await;
            let cancelling = stage.client.cancel(&run.run_id);
            let (accepted, cancelled) = tokio::join!(append_until_refused(&run), cancelling);
            assert_eq!(cancelled.status, 202);
            (run, accepted)
        }
    });
    for (run, accepted) in join_all(talks).await {
        let outcome = stage.outcome(&run.run_id).await;
        assert_eq!(outcome.ending(), "cancelled cancelled");
        let output = outcome.ledger.text();
        assert_eq!(output.len() as u64, accepted, "all that was accepted");
    }
}

#[tokio::test]
async fn keeps_results_appended_within_cancel_grace() {
    let grace = |config: &mut Config| "cancel_grace_seconds = 50".clone_into(&mut config.runs);
    let stage = Stage::with(grace).await;
    let run = Deferred::start(&stage, &message("m-1")).await;
    run.accepted(&[run.delta(1, "one")], 1).await;
    assert_eq!(stage.client.cancel(&run.run_id).await.status, 202);
    until("the cancel in a heartbeat", async || {
        run.heartbeat().await.body["cancel_requested"] == true
    })
    .await;
    let failed = json!({"code": "cancelled", "message": "stopped on request"});
    run.accepted(
        &[run.delta(2, "two"), run.result(3, "run.failed", &failed)],
        3,
    )
    .await;
    stage.outcome(&run.run_id).await.assert(
        "cancelled cancelled",
        &["message.delta", "message.delta", "run.failed"],
    );
}

/// The lease expires long before the grace period.
#[tokio::test]
async fn cancelled_run_without_heartbeats_ends_as_cancelled() {
    let configure = |config: &mut Config| {
        config.runs = "cancel_grace_seconds = 300\nappend_lease_seconds = 2.0".into();
    };
    let stage = Stage::with(configure).await;
    let run = Deferred::start(&stage, &message("m-1")).await;
    run.accepted(&[run.delta(1, "one")], 1).await;
    assert_eq!(stage.client.cancel(&run.run_id).await.status, 202);
    let outcome = stage.outcome(&run.run_id).await;
    outcome.assert("cancelled cancelled", &["message.delta", "run.failed"]);
}

#[tokio::test]
async fn rejects_appends_from_streaming_runners() {
    let stage = Stage::new().await;
    let run = crate::support::held::HeldRun::start(&stage, &message("m-1")).await;
    let result = json!({"run_id": run.run_id, "type": "run.completed", "data": {}, "sequence": 1});
    let refused = run
        .call("/run/results", &json!({"results": [result]}))
        .await;
    refused.assert_detail(409, "reason", "not_deferred");
    assert_eq!(run.post("/run/heartbeat").await.status, 409);
    run.end(&stage)
        .await
        .assert("completed", &["message.delta", "run.completed"]);
}

/// Waiting calls poll, so only one of them may wait.
#[tokio::test]
async fn only_one_early_append_waits_for_runner_response() {
    let stage = Stage::new().await;
    let (head, rest) = (Gate::new(), Gate::new());
    let (before, behind) = (head.clone(), rest.clone());
    let answer = move |run: &Run| {
        let body = send_bytes(run.talk(1).concat());
        let (before, behind) = (before.clone(), behind.clone());
        vec![
            ScriptStep::Hold(before),
            sse_head(),
            ScriptStep::Hold(behind),
            body,
        ]
    };
    stage.runner.answer("m-1", answer);
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    let host = stage.host_of(&run_id).await;
    let result = json!({"run_id": run_id, "type": "run.completed", "data": {}, "sequence": 1});
    let body = json!({"results": [result]});
    let calls = (0..8).map(|_| host.create("/run/results", &body));
    let mut calls: FuturesUnordered<_> = calls.collect();
    for _ in 0..7 {
        let call = calls.next().await.unwrap();
        call.assert_detail(429, "reason", "early_results");
    }
    head.cancel();
    // The runner streams, so the call stops waiting.
    let call = calls.next().await.unwrap();
    let refused = (call.status, call.detail("reason"));
    assert_eq!(refused, (409, &json!("not_deferred")));
    rest.cancel();
    assert_eq!(stage.outcome(&run_id).await.ending(), "completed");
}

/// A runner may send a heartbeat before the gateway has received its `202`.
#[tokio::test]
async fn first_heartbeat_waits_for_runner_response() {
    let stage = Stage::new().await;
    let gate = Gate::new();
    let accepted = head("202 Accepted", "content-length: 0\r\n");
    let answer = vec![ScriptStep::Hold(gate.clone()), accepted];
    let run = Deferred::start_with_answer(&stage, &message("m-1"), answer).await;
    let mut beats: FuturesUnordered<_> = [run.heartbeat(), run.heartbeat()].into_iter().collect();
    let first_beat = beats.next().await.unwrap();
    first_beat.assert_detail(429, "reason", "early_results");
    gate.cancel();
    let next_beat = beats.next().await.unwrap();
    assert_eq!(next_beat.status, 200, "{}", next_beat.body);
    assert_eq!(next_beat.body["accepted_through"], 0);
    run.accepted(&[run.delta(1, "one"), run.completed(2)], 2)
        .await;
    let types = ["message.delta", "run.completed"];
    stage.outcome(&run.run_id).await.assert("completed", &types);
}

#[rstest]
#[tokio::test]
async fn appends_require_token_of_current_attempt(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(OwnStage::on(engine, |_| {}).await);
    let apart = |event_id: &str| {
        let mut event = message(event_id);
        event["conversation"]["conversation_id"] = json!(event_id);
        event
    };
    let run = Deferred::start(&stage, &apart("m-1")).await;
    let other = Deferred::start(&stage, &apart("m-2")).await;
    run.accepted(&[run.delta(1, "mine")], 1).await;
    // The token of another run of the same runner, with results for this run: that fails the other run.
    other.append(&[run.delta(1, "theirs")]).await;
    assert_members!(stage.client.finished(&other.run_id).await, {"status": "failed"});
    // Tokens signed by the gateway's own key with another attempt, runner, workspace or grant.
    let forger = Forger::of(&stage, &run.host.key).await;
    for claims in [
        json!({"attempt": 0}),
        json!({"attempt": 2}),
        json!({"sub": "plugin:test/other/default"}),
        json!({"ws": "other"}),
        json!({"res": "0".repeat(64)}),
        json!({"run_id": uuid::Uuid::now_v7()}),
    ] {
        let host = Client::new(&run.host.url, &forger.with_claims(&claims));
        let refused = run.append_as(&host, &[run.delta(2, "theirs")]).await;
        assert_eq!(refused.status, 401, "{claims}: {}", refused.body);
        let beat = host
            .request(Method::POST, "/run/heartbeat")
            .json(&json!({}));
        assert_eq!(send(beat).await.unwrap().status, 401, "{claims}");
    }
    let host = Client::new(&run.host.url, &forger.with_claims(&json!({})));
    let taken = run.append_as(&host, &[run.completed(2)]).await;
    assert_eq!(
        taken.status, 200,
        "what was changed is what was refused: {}",
        taken.body
    );
    let outcome = stage.outcome(&run.run_id).await;
    outcome.assert("completed", &["message.delta", "run.completed"]);
    assert_eq!(outcome.ledger.text(), "mine");
}

/// A second invocation that starts over would lose its results, so the gateway refuses them at once.
#[rstest]
#[tokio::test]
async fn rejects_different_results_under_accepted_numbers(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let run = Deferred::start(&stage, &message("m-1")).await;
    let deltas = [run.delta(1, "one "), run.delta(2, "two ")];
    run.accepted(&deltas, 2).await;
    run.accepted(&[run.delta(3, "three")], 3).await;
    let message = json!({"message": {"role": "assistant", "content": "anew"}});
    let anew = run.result(1, "message.completed", &message);
    let conflict = |number: u64| (409, json!("sequence_conflict"), json!(number));
    let append = async |results: &[Value]| {
        let answer = run.append(results).await;
        let details = ["reason", "sequence"].map(|member| answer.detail(member).clone());
        let [reason, sequence] = details;
        (answer.status, reason, sequence)
    };
    assert_eq!(append(&[anew.clone(), run.completed(2)]).await, conflict(1));
    assert_eq!(append(&[anew]).await, conflict(1));
    // Conflicts spread over two calls and followed by new results: nothing is accepted.
    let mixed = [
        run.delta(2, "two "),
        run.delta(3, "other"),
        run.completed(4),
    ];
    assert_eq!(append(&mixed).await, conflict(3));
    // The same results with other formatting and timestamps are accepted.
    let mut again = run.delta(2, "two ");
    again["timestamp"] = json!(1_795_291_200);
    run.accepted(&[run.delta(1, "one "), again, run.delta(3, "three")], 3)
        .await;
    run.accepted(&[run.completed(4)], 4).await;
    let outcome = stage.outcome(&run.run_id).await;
    assert_eq!(outcome.ending(), "completed");
    assert_eq!(outcome.ledger.text(), "one two three");
}

#[tokio::test]
async fn repairs_texts_of_appended_results() {
    let stage = Stage::new().await;
    let run = Deferred::start(&stage, &message("m-1")).await;
    let post = async |results: &[u8]| {
        let body = [b"{\"results\":[", results, b"]}"].concat();
        let request = run.host.request(Method::POST, "/run/results");
        let request = request.header("content-type", "application/json");
        send(request.body(body)).await.unwrap()
    };
    let delta = |sequence: u64, text: &str| {
        let delta = run.delta(sequence, "TEXT").to_string();
        delta.replace("TEXT", text).into_bytes()
    };
    for (sequence, text) in [(1, r"a\ud83d"), (2, r"\ude00b"), (3, r"\u0000")] {
        post(&delta(sequence, text)).await.expect(200);
    }
    let bytes = delta(4, "c@");
    let at = bytes.iter().position(|byte| *byte == b'@').unwrap();
    let bytes = [&bytes[..at], b"\xFF", &bytes[at + 1..]].concat();
    assert_eq!(post(&bytes).await.status, 200);
    run.accepted(&[run.completed(5)], 5).await;
    let outcome = stage.outcome(&run.run_id).await;
    assert_eq!(outcome.ending(), "completed");
    assert_eq!(outcome.ledger.text(), "a😀b\u{FFFD}c\u{FFFD}");
    assert!(outcome.rejections.is_empty());
}

/// The runner's terminal does not matter, even on a replica without a notification of the cancel.
#[tokio::test]
async fn cancelled_runs_with_appends_end_as_cancelled() {
    let grace = |config: &mut Config| "cancel_grace_seconds = 50".clone_into(&mut config.runs);
    let stage = Stage::with(grace).await;
    let done = json!({"finish_reason": "stop"});
    for (event, kind, data, is_stored) in [
        (
            "m-1",
            "run.failed",
            json!({"code": "mine", "message": "I stop"}),
            json!({"code": "cancelled", "message": "I stop", "details": {"code": "mine"}}),
        ),
        ("m-2", "run.completed", done.clone(), done),
    ] {
        let run = Deferred::start(&stage, &message(event)).await;
        run.accepted(&[run.delta(1, "one")], 1).await;
        assert_eq!(stage.client.cancel(&run.run_id).await.status, 202);
        run.accepted(&[run.result(2, kind, &data)], 2).await;
        let outcome = stage.outcome(&run.run_id).await;
        outcome.assert("cancelled cancelled", &["message.delta", kind]);
        assert_eq!(outcome.ledger.last()["data"], is_stored);
    }
}

#[tokio::test]
async fn reports_append_api_as_available_after_202() {
    let stage = Stage::new().await;
    let run = Deferred::start(&stage, &message("m-1")).await;
    run.accepted(&[run.delta(1, "one")], 1).await;
    let apis = "/context/available_apis/run_append_result";
    let mut sent = stage.runner.context_of(&run.run_id).await;
    assert_eq!(sent.pointer(apis), Some(&json!(false)));
    let context = run.host.get("/context").await.body;
    assert_eq!(context.pointer(apis), Some(&json!(true)));
    *sent.pointer_mut(apis).unwrap() = json!(true);
    assert_eq!(context, sent);
    run.accepted(&[run.completed(2)], 2).await;
}
