use super::*;
use crate::testing::offline_access;

const WITHIN: u64 = 120;

/// Runner whose runs survive their connection.
struct SurvivingRunner<F>(F);

impl<F: Fn(RunHandle) -> ResultStream + Send + Sync + 'static> Runner for SurvivingRunner<F> {
    fn manifest(&self) -> AgentRunnerManifest {
        let manifest = json!({"id": RUNNER_ID, "name": "default", "label": {},
            "capabilities": {"resumable": true}, "resume_within_seconds": WITHIN});
        serde_json::from_value(manifest).unwrap()
    }

    fn run(&self, run: RunHandle) -> ResultStream {
        (self.0)(run)
    }
}

fn surviving(run: impl Fn(RunHandle) -> ResultStream + Send + Sync + 'static) -> Router {
    router(vec![Arc::new(SurvivingRunner(run))], secret())
}

/// Sends "a", and "b" after `gate` opens.
fn gated(gate: &CancellationToken) -> Router {
    let gate = gate.clone();
    surviving(move |_| {
        let gate = gate.clone();
        results_of(|out| async move {
            out.send(results::delta("a")).await;
            gate.cancelled().await;
            out.send(results::delta("b")).await;
            Ok(())
        })
    })
}

/// Runner whose work ends only by a drop, which fires the token.
fn endless() -> (Router, CancellationToken) {
    let dropped = CancellationToken::new();
    let seen = dropped.clone();
    let router = surviving(move |_| {
        let guard = seen.clone().drop_guard();
        results_of(|out| async move {
            let _guard = guard;
            out.send(results::delta("a")).await;
            std::future::pending::<Result<(), RunError>>().await
        })
    });
    (router, dropped)
}

/// Body of a run request whose host is down.
fn offline_run() -> Vec<u8> {
    let request = run_request(RUNNER_ID, "hello", &offline_access()).unwrap();
    serde_json::to_vec(&request).unwrap()
}

async fn start(router: &Router) -> Response {
    let request = signed("POST", "/runs", &offline_run());
    let response = router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    response
}

fn resume(attempt: u32, after: u64) -> Request<Body> {
    resume_at(&offline_access(), attempt, after)
}

fn resume_at(access: &protocol::request::HostAccess, attempt: u32, after: u64) -> Request<Body> {
    let body = json!({"run_id": RUN_ID, "runner_id": RUNNER_ID, "attempt": attempt,
        "after": after, "host": access});
    let path = format!("/runs/{RUN_ID}/resume");
    signed("POST", &path, body.to_string().as_bytes())
}

async fn resumed(router: &Router, attempt: u32, after: u64) -> Response {
    let response = router.clone().oneshot(resume(attempt, after)).await;
    let response = response.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
    response
}

/// Reads until the text has this end.
async fn read_until(response: Response, end: &str) -> String {
    let mut body = response.into_body().into_data_stream();
    let mut seen = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&seen).contains(end) {
            seen.extend(body.next().await.unwrap().unwrap());
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.unwrap();
    String::from_utf8(seen).unwrap()
}

#[tokio::test]
async fn resumes_equal_bytes_after_each_result() {
    let gate = CancellationToken::new();
    gate.cancel();
    let complete = text(start(&gated(&gate)).await).await;
    let frames: Vec<_> = complete.split_inclusive("\n\n").skip(1).collect();
    assert_eq!(frames.len(), 3);
    for stored in 0..=frames.len() {
        let router = gated(&gate);
        read_until(start(&router).await, &frames[..stored].concat()).await;
        let rest = text(resumed(&router, 2, stored as u64).await).await;
        assert_eq!(rest, format!(": hi\n\n{}", frames[stored..].concat()));
    }
}

#[tokio::test]
async fn work_continues_without_connection() {
    let gate = CancellationToken::new();
    let router = gated(&gate);
    read_until(start(&router).await, "id: 1\n").await;
    gate.cancel();
    let rest = decode(&text(resumed(&router, 2, 1).await).await);
    let sequences: Vec<_> = rest.iter().map(|result| &result["sequence"]).collect();
    assert_eq!(sequences, [2, 3]);
    assert_eq!(rest[1]["type"], "run.completed");
}

#[tokio::test]
async fn ended_run_repeats_its_terminal() {
    let gate = CancellationToken::new();
    gate.cancel();
    let router = gated(&gate);
    text(start(&router).await).await;
    let cancel = signed("POST", &format!("/runs/{RUN_ID}/cancel"), b"{}");
    check_refused(router.clone(), cancel, 404, "not_found").await;
    for attempt in 2..4 {
        let rest = decode(&text(resumed(&router, attempt, 2).await).await);
        assert_eq!(rest.len(), 1);
        assert_eq!(rest[0]["type"], "run.completed");
    }
    // The run id is free for another run.
    text(start(&router).await).await;
}

#[tokio::test]
async fn higher_attempt_takes_run_from_older_connection() {
    let (router, dropped) = endless();
    let first = start(&router).await;
    let _second = resumed(&router, 3, 0).await;
    let cut = tokio::time::timeout(PATIENCE, to_bytes(first.into_body(), 1 << 20)).await;
    assert!(cut.unwrap().is_err(), "the older connection ends early");
    for attempt in [1, 2, 3] {
        check_refused(router.clone(), resume(attempt, 0), 409, "conflict").await;
    }
    assert!(!dropped.is_cancelled());
}

#[tokio::test]
async fn refuses_resume_of_unknown_runs() {
    let gate = CancellationToken::new();
    let router = gated(&gate);
    check_refused(router.clone(), resume(2, 0), 404, "not_found").await;
    let _first = start(&router).await;
    let mut other: Value = serde_json::from_slice(&offline_run()).unwrap();
    other["action"] = "resume".into();
    other["run_id"] = "r-2".into();
    other["attempt"] = 2.into();
    let body = other.to_string();
    let on_single_url = signed("POST", "/", body.as_bytes());
    check_refused(router.clone(), on_single_url, 404, "not_found").await;
    // The gateway has a result that this runner never sent.
    check_refused(router.clone(), resume(2, 9), 404, "not_found").await;
    check_refused(router, resume(3, 0), 404, "not_found").await;
}

#[tokio::test]
async fn does_not_resume_runs_without_capability() {
    let router = until_cancelled(RouterOptions::default());
    let request = signed("POST", "/runs", &offline_run());
    let _running = router.clone().oneshot(request).await.unwrap();
    check_refused(router, resume(2, 0), 404, "not_found").await;
}

#[tokio::test(start_paused = true)]
async fn drops_work_that_no_gateway_resumes() {
    let (router, dropped) = endless();
    read_until(start(&router).await, "id: 1\n").await;
    let detached_at = tokio::time::Instant::now();
    dropped.cancelled().await;
    assert_eq!(detached_at.elapsed().as_secs(), WITHIN);
    tokio::task::yield_now().await;
    check_refused(router, resume(2, 1), 404, "not_found").await;
}

#[tokio::test]
async fn cancel_without_connection_drops_work() {
    let (router, dropped) = endless();
    read_until(start(&router).await, "id: 1\n").await;
    let cancel = signed("POST", &format!("/runs/{RUN_ID}/cancel"), b"{}");
    assert_eq!(router.clone().oneshot(cancel).await.unwrap().status(), 202);
    tokio::time::timeout(PATIENCE, dropped.cancelled())
        .await
        .unwrap();
    let rest = decode(&text(resumed(&router, 2, 1).await).await);
    assert_eq!(rest[0]["data"]["code"], "cancelled");
}

#[tokio::test]
async fn full_buffer_without_connection_fails_run() {
    let (opened, dropped) = (CancellationToken::new(), CancellationToken::new());
    let (gate, seen) = (opened.clone(), dropped.clone());
    let router = surviving(move |_| {
        let (gate, guard) = (gate.clone(), seen.clone().drop_guard());
        results_of(|out| async move {
            let _guard = guard;
            out.send(results::delta("a")).await;
            gate.cancelled().await;
            for _ in 0..=10_000 {
                out.send(results::delta("b")).await;
            }
            Ok(())
        })
    });
    read_until(start(&router).await, "id: 1\n").await;
    opened.cancel();
    tokio::time::timeout(PATIENCE, dropped.cancelled())
        .await
        .unwrap();
    let rest = decode(&text(resumed(&router, 2, 10_000).await).await);
    assert_eq!(rest[0]["sequence"], 10_001);
    assert_eq!(rest[1]["sequence"], 10_002);
    assert_eq!(rest[1]["data"]["code"], "runner.buffer_full");
}

#[tokio::test]
async fn host_calls_wait_for_access_of_resume() {
    let router = surviving(|run| {
        results_of(|out| async move {
            out.send(results::log("started")).await;
            let record = run.host.run().await?;
            out.send(results::completed(record.event_id)).await;
            Ok(())
        })
    });
    read_until(start(&router).await, "id: 1\n").await;
    let fake = FakeHost::start().await.unwrap();
    let access = fake.access(Clock::system().now_seconds());
    let response = router.oneshot(resume_at(&access, 2, 1)).await.unwrap();
    let sent = decode(&text(response).await);
    assert_eq!(sent[0]["data"]["message"]["content"], "m-1001");
}

#[tokio::test]
async fn shutdown_awaits_runs_without_connection() {
    let ended = CancellationToken::new();
    let seen = ended.clone();
    let router = surviving(move |run| {
        let seen = seen.clone();
        results_of(|_| async move {
            run.cancel.cancelled().await;
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            seen.cancel();
            Ok(())
        })
    });
    let mut served = served(router).await;
    let mut answer = start_over_socket(&served).await;
    assert_eq!(answer.chunk().await.unwrap().unwrap(), ": hi\n\n");
    drop(answer);
    served.stop.cancel();
    let stopped = tokio::time::timeout(PATIENCE, served.server.join_next()).await;
    stopped.unwrap().unwrap().unwrap().unwrap();
    assert!(ended.is_cancelled());
}

#[tokio::test]
async fn checkpoint_includes_sent_results() {
    let fake = FakeHost::start().await.unwrap();
    for version in 1..=2 {
        fake.answer(200, json!({"version": version, "after": 0}));
    }
    let router = surviving(|run| {
        results_of(|out| async move {
            assert_eq!(run.context.runtime.resume, None);
            run.host.checkpoint(json!({"step": 0})).await?;
            out.send(results::delta("a")).await;
            out.send(results::delta("b")).await;
            let stored = run.host.checkpoint(json!({"step": 2})).await?;
            assert_eq!(stored.version, 2);
            Ok(())
        })
    });
    let access = fake.access(Clock::system().now_seconds() + 900);
    let request = run_request(RUNNER_ID, "hello", &access).unwrap();
    let request = signed("POST", "/runs", &serde_json::to_vec(&request).unwrap());
    let response = router.oneshot(request).await.unwrap();
    let sent = text(response).await;
    assert!(sent.contains("run.completed"), "{sent}");
    let stored: Vec<_> = fake.calls().into_iter().map(|call| call.body).collect();
    let expected = [
        json!({"value": {"step": 0}}),
        json!({"value": {"step": 2}, "sequence": 2}),
    ];
    assert_eq!(stored, expected);
}
