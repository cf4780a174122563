//! Database outages: a lost and restored connection, a slow database, a lost commit result. I8, F50–F54, F59,
//! F89.

#[path = "outage/authority.rs"]
mod authority;

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::support::client::{Client, message};
use crate::support::database::postgres_server;
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::proxy::{CutTrigger, NetworkFault, Proxy};
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{
    Gate, Run, ScriptStep, answer, head, send, sse, sse_and_wait, sse_around, sse_head,
};
use crate::support::{OwnStage, Postgres, Stage, number, until, within};

/// A gateway that reaches its database through the test proxy.
async fn stage(configure: impl FnOnce(&mut Config)) -> Option<(OwnStage, Proxy)> {
    stage_of(StubRunner::start().await, configure).await
}

async fn stage_of(
    runner: StubRunner,
    configure: impl FnOnce(&mut Config),
) -> Option<(OwnStage, Proxy)> {
    let server = postgres_server()?;
    let port = server.port().unwrap_or(5432);
    let proxy = Proxy::to(&format!("{}:{port}", server.host_str().unwrap())).await;
    let address = proxy.address;
    let configure = |config: &mut Config| {
        config.use_database_proxy(address);
        configure(config);
    };
    let stage = OwnStage::of(Postgres, runner, configure).await?;
    Some((stage, proxy))
}

fn talk(run: &Run) -> Vec<ScriptStep> {
    sse(run.talk(3).concat())
}

async fn ready(stage: &Stage) {
    until("the gateway to be ready", async || {
        stage.readiness().await == "ok"
    })
    .await;
}

/// Seconds of an outage that a run survives: 2, or `RUNNEL_TEST_OUTAGE_SECONDS`.
fn outage() -> u64 {
    number("RUNNEL_TEST_OUTAGE_SECONDS", 2) as u64
}

#[rstest]
#[case::refused(NetworkFault::Refusing)]
#[case::silent(NetworkFault::Holding)]
#[tokio::test]
async fn rejects_events_during_outage_and_accepts_once_after(#[case] wire: NetworkFault) {
    let (stage, proxy) = or_skip!(stage(|_| {}).await);
    stage.runner.answer_all(talk);
    let before = stage.client.post(&message("before")).await.run_id();
    stage.outcome(&before).await;

    proxy.set(wire);
    let refused = stage.client.post(&message("during")).await;
    refused.assert_error(503, "code", "runtime_error");
    assert_eq!(refused.error("retryable"), true);
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(stage.readiness().await, "database_unreachable");

    proxy.set(NetworkFault::Forwarding);
    ready(&stage).await;
    let run_id = stage.client.post(&message("during")).await.run_id();
    assert_eq!(stage.outcome(&run_id).await.ending(), "completed");
    let again = stage.client.post(&message("during")).await;
    assert!(again.is_replay());
    assert_eq!(again.body["run_id"], run_id.as_str());
    let runs = stage.client.get("/v1/runs").await.body;
    assert_eq!(runs["items"].as_array().unwrap().len(), 2, "{runs}");
    assert_eq!(stage.runner.posts(&run_id), 1);
}

/// Results of a flood; several times the gateway's buffer.
const FLOOD: usize = 110;

#[rstest]
#[case::refused(NetworkFault::Refusing)]
#[case::silent(NetworkFault::Holding)]
#[tokio::test]
async fn live_run_survives_outage_without_loss(#[case] wire: NetworkFault) {
    let runner = StubRunner::start().await;
    let between = Proxy::to(runner.url.trim_start_matches("http://")).await;
    let lease = (outage() * 3 / 2).max(6);
    let url = between.url();
    let configure = move |config: &mut Config| {
        config.runs = format!("lease_seconds = {lease}");
        // The run keeps its full timeout after the outage.
        config.agents[0].timeout_seconds += Duration::from_secs(outage()).as_secs_f64();
        config.set_runner_url(&url);
    };
    let (stage, proxy) = or_skip!(stage_of(runner, configure).await);
    let gate = Gate::new();
    let hold = gate.clone();
    stage.runner.answer_all(move |run| {
        let text = "x".repeat(100_000);
        let flood: String = (2..FLOOD + 2).map(|n| run.delta(n, &text)).collect();
        // The run's text in total exceeds one message.
        let message = r#"{"message":{"role":"assistant","content":"in short"}}"#;
        let end = run.result(FLOOD + 2, "run.completed", message);
        sse_around(&hold, run.delta(1, "first"), flood + &end)
    });
    let mut stream = stage.client.post_streaming(&message("m-1")).await;
    let run_id = stream.run_id();
    assert_eq!(stream.event().await.unwrap().id, Some(1));

    proxy.set(wire);
    gate.cancel();
    // The outage itself; its length is under test.
    tokio::time::sleep(Duration::from_secs(outage())).await;
    let (sent, unread) = (between.answered(), between.unread());
    let read = sent.saturating_sub(unread);
    eprintln!("{sent} bytes were sent, {unread} of them unread");
    assert!(read < 4_000_000, "{read} bytes were read meanwhile");
    proxy.set(NetworkFault::Forwarding);

    // The outage may have ended the stream, but its events are a prefix of the ledger.
    let mut seen = 1 + stream.rest().await.len() as u64;
    until("the complete run", async || {
        if seen < FLOOD as u64 + 2 {
            let rest = stage.client.follow(&run_id, seen).await.rest().await;
            seen += rest.len() as u64;
        }
        seen == FLOOD as u64 + 2
    })
    .await;
    let run = stage.client.run(&run_id).await;
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!(run["metadata"]["rejected"], 0);
    let ledger = stage.client.ledger(&run_id).await;
    ledger.assert_valid(&run_id);
    assert_eq!(ledger.0.len(), FLOOD + 2);
}

/// A database query of a run besides its appends: for an announced artifact, for deferred results, for a retry
/// of its POST.
#[derive(Clone, Copy)]
enum RunQuery {
    ArtifactLookup,
    DeferredResults,
    PostRetry,
}

fn asking(what: RunQuery, run: &Run, hold: Gate) -> Vec<ScriptStep> {
    let artifact = r#"{"artifact_id":"none","name":"a"}"#;
    match what {
        RunQuery::ArtifactLookup => vec![
            sse_head(),
            ScriptStep::Hold(hold),
            send(run.result(1, "artifact.created", artifact)),
            send(run.delta(2, "a")),
            send(run.completed(3)),
        ],
        RunQuery::DeferredResults => vec![
            ScriptStep::Hold(hold),
            head("202 Accepted", "content-length: 0\r\n"),
        ],
        RunQuery::PostRetry if run.attempt == 1 => {
            answer("429 Too Many Requests", "retry-after: 3\r\n", "")
        }
        RunQuery::PostRetry => talk(run),
    }
}

#[rstest]
#[case::artifact_lookup(RunQuery::ArtifactLookup)]
#[case::deferred_results(RunQuery::DeferredResults)]
#[case::post_retry(RunQuery::PostRetry)]
#[tokio::test]
async fn retries_run_queries_after_outage(#[case] what: RunQuery) {
    let (stage, proxy) = or_skip!(stage(|config| config.agents[0].retries = 1).await);
    let gate = Gate::new();
    let hold = gate.clone();
    stage
        .runner
        .answer_all(move |run| asking(what, run, hold.clone()));
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    let host = stage.host_of(&run_id).await;
    if matches!(what, RunQuery::PostRetry) {
        until("the run to be posted later", async || {
            stage.gateway.log().contains("did not take run")
        })
        .await;
    }
    proxy.set(NetworkFault::Refusing);
    gate.cancel();
    until("a failed attempt", async || {
        stage.gateway.log().contains("cannot store results of run")
    })
    .await;
    proxy.set(NetworkFault::Forwarding);

    if matches!(what, RunQuery::DeferredResults) {
        let result = |sequence: u64, kind: &str, data: Value| json!({"run_id": run_id, "type": kind, "sequence": sequence, "data": data});
        let word = json!({"chunk": {"role": "assistant", "content": "a"}});
        let end = json!({"finish_reason": "stop"});
        let results = [
            result(1, "message.delta", word),
            result(2, "run.completed", end),
        ];
        let results = json!({"results": results});
        until("the results to be taken", async || {
            let appending = host.request(Method::POST, "/run/results").json(&results);
            crate::support::client::send(appending)
                .await
                .unwrap()
                .status
                == 200
        })
        .await;
    }
    assert_eq!(stage.outcome(&run_id).await.ending(), "completed");
    let posts = 1 + usize::from(matches!(what, RunQuery::PostRetry));
    assert_eq!(stage.runner.posts(&run_id), posts);
}

#[tokio::test]
async fn keeps_files_when_event_commit_is_unknown() {
    let (stage, proxy) = or_skip!(stage(|config| config.runs = "lease_seconds = 3".into()).await);
    stage.runner.answer_all(talk);
    let mut event = message("gone-1");
    let file = BASE64_STANDARD.encode("a;b\n".repeat(30_000));
    event["input"]["text"] = json!("only-here");
    event["input"]["attachments"] =
        json!([{"name": "t.csv", "mime_type": "text/csv", "content": file}]);
    // The transaction that stores the event: it commits, but the response is lost.
    proxy.arm_then(
        CutTrigger::AfterCommit("only-here".into()),
        NetworkFault::Holding,
    );
    let back = async {
        until("the writer to give up", async || {
            stage.gateway.log().contains("transaction timed out")
        })
        .await;
        proxy.set(NetworkFault::Forwarding);
    };
    let (refused, ()) = tokio::join!(stage.client.post(&event), back);
    assert_eq!(refused.status, 503, "{}", refused.body);

    ready(&stage).await;
    let again = stage.client.post(&event).await;
    assert!(again.is_replay(), "{}", again.body);
    let run_id = again.run_id();
    assert_eq!(stage.outcome(&run_id).await.ending(), "completed");
    let run_request = stage.runner.run_request(&run_id).await.json();
    let artifact_id = &run_request["context"]["input"]["attachments"][0]["id"];
    let path = format!("/v1/artifacts/{}", artifact_id.as_str().unwrap());
    assert_eq!(stage.client.get(&path).await.status, 200);
}

fn words_without_end(run: &Run) -> Vec<ScriptStep> {
    let words: Vec<_> = (1..2000)
        .map(|n| run.delta(n, "word ").into_bytes())
        .collect();
    vec![
        sse_head(),
        ScriptStep::Pace(words, Duration::from_millis(20)),
        ScriptStep::AwaitClose,
    ]
}

#[rstest]
#[case::refused(NetworkFault::Refusing, |run: &Run| sse_and_wait(run.delta(1, "a")))]
#[case::silent(NetworkFault::Holding, |run: &Run| sse_and_wait(run.delta(1, "a")))]
#[case::refused_with_words(NetworkFault::Refusing, words_without_end)]
#[case::silent_with_words(NetworkFault::Holding, words_without_end)]
#[tokio::test]
async fn run_with_expired_lease_ends_as_orphaned(
    #[case] wire: NetworkFault,
    #[case] script: fn(&Run) -> Vec<ScriptStep>,
) {
    let [a, b, ..] = *uuid::Uuid::new_v4().as_bytes();
    let metrics = format!("127.{a}.{b}.2:9464");
    let configure = |config: &mut Config| {
        config.runs = "lease_seconds = 2".into();
        config.rest = format!("[metrics]\nlisten = \"{metrics}\"\n");
    };
    let (stage, proxy) = or_skip!(stage(configure).await);
    let between = stage.start(script).await;
    let mut stream = stage.client.follow(&between, 0).await;
    let seen = stream.event().await.unwrap();

    proxy.set(wire);
    // The lease expires by the clock while the database is away. A pending write may time out at the same
    // moment.
    let ends = ["its lease expired", "its ledger cannot be written"];
    until("the run to be let go", async || {
        let log = stage.gateway.log();
        ends.iter().any(|end| log.contains(end))
    })
    .await;
    proxy.set(NetworkFault::Forwarding);

    let outcome = stage.outcome(&between).await;
    assert_eq!(outcome.ending(), "failed host.orphaned");
    assert_eq!(outcome.run["error"]["retryable"], true);
    assert_eq!(outcome.ledger.0[0], seen.data);
    assert_eq!(stage.runner.posts(&between), 1);
    if stage.gateway.log().contains(ends[0]) {
        let metrics = Client::new(&format!("http://{metrics}"), "");
        let scraped = metrics.anonymous(Method::GET, "/metrics").send();
        let scraped = within("the metrics", scraped).await.unwrap();
        let scraped = scraped.text().await.unwrap();
        assert_contains!(scraped, "\nrunnel_leases_lost_total 1\n");
    }
}

/// The text that the statement contains, the fault, and that the write happens once.
#[rstest]
#[case::never_made(CutTrigger::BeforeCommit as fn(String) -> CutTrigger)]
#[case::made(CutTrigger::AfterCommit as fn(String) -> CutTrigger)]
#[tokio::test]
async fn checks_lost_commit_before_retry(#[case] trap: fn(String) -> CutTrigger) {
    let (stage, proxy) = or_skip!(stage(|_| {}).await);
    let script = |run: &Run| {
        let malformed = run.result(3, "message.delta", r#"{"rejected-3":1}"#);
        let words = [run.delta(1, "said-1"), run.delta(2, "said-2"), malformed];
        let message =
            r#"{"finish_reason":"stop","message":{"role":"assistant","content":"end-4"}}"#;
        let parts = words
            .into_iter()
            .chain([run.result(4, "run.completed", message)]);
        let parts: Vec<_> = parts.map(String::into_bytes).collect();
        vec![
            sse_head(),
            ScriptStep::Pace(parts, Duration::from_millis(60)),
        ]
    };
    stage.runner.answer_all(script);
    // The commits of the event, of the POST intent, of a result, of a lone rejection, of the end.
    for (n, text) in ["lost-0", "available_apis", "said-2", "rejected-3", "end-4"]
        .into_iter()
        .enumerate()
    {
        proxy.arm(trap(text.to_owned()));
        let event_id = format!("lost-{n}");
        let answer = stage.client.post(&message(&event_id)).await;
        assert!(!answer.is_replay());
        let outcome = stage.outcome(&answer.run_id()).await;
        within(text, proxy.fired(n + 1)).await;
        let types = ["message.delta", "message.delta", "run.completed"];
        outcome.assert("completed", &types);
        outcome.assert_rejected(&["invalid_payload"]);
        assert_eq!(stage.runner.posts(&answer.run_id()), 1);
    }
    let runs = stage.client.get("/v1/runs").await.body;
    assert_eq!(runs["items"].as_array().unwrap().len(), 5);
}

/// A process's first event commits before the dispatch of its run; for later events both share one commit.
#[rstest]
#[case::the_first(false)]
#[case::a_later_one(true)]
#[tokio::test]
async fn resent_event_after_lost_commit_is_duplicate(#[case] is_later: bool) {
    let (stage, proxy) = or_skip!(stage(|config| config.runs = "lease_seconds = 3".into()).await);
    stage.runner.answer_all(talk);
    if is_later {
        let run_id = stage.client.post(&message("before")).await.run_id();
        assert_eq!(stage.outcome(&run_id).await.ending(), "completed");
    }
    proxy.arm_then(
        CutTrigger::AfterCommit("gone-1".into()),
        NetworkFault::Refusing,
    );
    stage.client.post(&message("gone-1")).await.expect(503);
    assert!(proxy.has_fired());
    proxy.set(NetworkFault::Forwarding);
    ready(&stage).await;

    let again = stage.client.post(&message("gone-1")).await;
    assert!(again.is_replay(), "{}", again.body);
    let outcome = stage.outcome(&again.run_id()).await;
    assert_eq!(outcome.ending(), "completed");
    assert_eq!(stage.runner.posts(&again.run_id()), 1);
    let runs = stage.client.get("/v1/runs").await.body;
    let expected = 1 + usize::from(is_later);
    assert_eq!(runs["items"].as_array().unwrap().len(), expected);
}

#[rstest]
#[case::never_made(CutTrigger::BeforeCommit as fn(String) -> CutTrigger)]
#[case::made(CutTrigger::AfterCommit as fn(String) -> CutTrigger)]
#[tokio::test]
async fn host_call_recovers_result_of_lost_commit(#[case] trap: fn(String) -> CutTrigger) {
    let (stage, proxy) = or_skip!(stage(|_| {}).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let path = "/state/conversation/k";
    assert_eq!(run.put(path, &json!("one")).await.body["version"], 1);

    proxy.arm(trap("unique-two".into()));
    let written = run.put_at_version(1, path, &json!("unique-two")).await;
    assert!(proxy.has_fired());
    assert_eq!((written.status, &written.body["version"]), (200, &json!(2)));
    assert_eq!(run.get(path).await.body["value"], "unique-two");
    run.put_at_version(1, path, &json!("late"))
        .await
        .expect(409);
    run.end(&stage).await;
}

#[rstest]
#[case::never_made(CutTrigger::BeforeCommit as fn(String) -> CutTrigger, NetworkFault::Forwarding)]
#[case::made(CutTrigger::AfterCommit as fn(String) -> CutTrigger, NetworkFault::Forwarding)]
#[case::made_and_then_away(CutTrigger::AfterCommit as fn(String) -> CutTrigger, NetworkFault::Refusing)]
#[tokio::test]
async fn steering_pull_recovers_from_lost_commit(
    #[case] trap: fn(String) -> CutTrigger,
    #[case] wire: NetworkFault,
) {
    let mut steerable = manifest(RUNNER_ID);
    steerable["capabilities"]["steering"] = json!(true);
    let steer = |config: &mut Config| config.agents[0].concurrency = "steer";
    let runner = StubRunner::start_as(steerable).await;
    let (stage, proxy) = or_skip!(stage_of(runner, steer).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for event_id in ["m-2", "m-3"] {
        let absorbed = stage.client.post(&message(event_id)).await;
        assert_eq!(absorbed.body["run_id"], run.run_id.as_str());
    }
    proxy.arm_then(trap("pulled".into()), wire);
    let back = async {
        proxy.fired(1).await;
        if wire == NetworkFault::Refusing {
            // Logged once the writer's second attempt has timed out waiting for a connection.
            until("the second try to fail", async || {
                stage.gateway.log().contains("cannot store results of run")
            })
            .await;
        }
        proxy.set(NetworkFault::Forwarding);
    };
    let all = json!({"mode": "all"});
    let (pulled, ()) = tokio::join!(run.call("/steering/pull", &all), back);
    let ids = |body: &Value| {
        let items = body["items"].as_array().unwrap_or_else(|| panic!("{body}"));
        let id = |item: &Value| item["event"]["event_id"].as_str().unwrap().to_owned();
        items.iter().map(id).collect::<Vec<_>>()
    };
    assert_eq!(ids(&pulled.body), ["m-2", "m-3"]);
    let again = run.call("/steering/pull", &all).await;
    assert_eq!(ids(&again.body), [""; 0]);
    run.end(&stage).await;
}

#[tokio::test]
async fn slow_database_fails_no_run() {
    // A response takes twice this, a commit a few seconds, and commits are continuous for longer than a lease.
    // The leases hold because renewals do not queue after the runs' writes.
    const LATE: Duration = Duration::from_millis(100);
    const PAUSE: Duration = Duration::from_millis(100);
    let (stage, proxy) = or_skip!(stage(|config| config.runs = "lease_seconds = 15".into()).await);
    let gate = Gate::new();
    let mut runs = Vec::new();
    for n in 0..6 {
        // Some end at the same time, others later.
        let words = 50 + 40 * (n / 4);
        let (event_id, hold) = (format!("slow-{n}"), gate.clone());
        stage.runner.answer(&event_id, move |run| {
            let frames = run.talk(words).into_iter().map(String::into_bytes);
            let frames = frames.collect();
            vec![
                sse_head(),
                ScriptStep::Hold(hold.clone()),
                ScriptStep::Pace(frames, PAUSE),
            ]
        });
        let run_id = stage.client.post(&message(&event_id)).await.run_id();
        until("the run to be posted", async || {
            stage.runner.posts(&run_id) == 1
        })
        .await;
        runs.push((run_id, words + 1));
    }
    proxy.set(NetworkFault::Late(LATE));
    gate.cancel();
    let ended = runs.iter().map(|(run_id, _)| stage.client.finished(run_id));
    futures_util::future::join_all(ended).await;
    proxy.set(NetworkFault::Forwarding);
    for (run_id, events) in runs {
        let outcome = stage.outcome(&run_id).await;
        assert_eq!(outcome.ending(), "completed");
        assert_eq!(outcome.ledger.0.len(), events);
        assert_eq!(stage.runner.posts(&run_id), 1);
    }
    let log = stage.gateway.log();
    for amiss in [
        "its lease expired",
        "another replica took over run",
        "transaction timed out after",
    ] {
        assert!(!log.contains(amiss), "{amiss}");
    }
}

async fn database(stage: &OwnStage) -> PgConnection {
    PgConnection::connect(&stage.gateway.database_url())
        .await
        .unwrap()
}

async fn execute(database: &mut PgConnection, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(database)
        .await
        .unwrap();
}

#[rstest]
#[case::serialization("40001")]
#[case::deadlock("40P01")]
#[case::lock_timeout("55P03")]
#[tokio::test]
async fn retries_serialization_conflicts_exactly_once(#[case] code: &str) {
    let stage = or_skip!(OwnStage::on(Postgres, |_| {}).await);
    stage.runner.answer_all(talk);
    let mut database = database(&stage).await;
    // Sequences are not rolled back: the first two writes to each table fail. Event and attempt share a commit, which
    // therefore conflicts four times, fewer than an item has tries.
    for table in ["events", "run_attempts", "run_segments"] {
        let sql = format!(
            "CREATE SEQUENCE lost_{table};
             CREATE FUNCTION lose_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF nextval('lost_{table}') <= 2 THEN
                     RAISE EXCEPTION 'lost' USING ERRCODE = '{code}'; END IF;
                 RETURN NEW; END $$;
             CREATE TRIGGER lose BEFORE INSERT ON {table}
                 FOR EACH ROW EXECUTE FUNCTION lose_{table}();"
        );
        execute(&mut database, sql).await;
    }
    let answer = stage.client.post(&message("m-1")).await;
    let outcome = stage.outcome(&answer.run_id()).await;
    let types = [
        "message.delta",
        "message.delta",
        "message.delta",
        "run.completed",
    ];
    outcome.assert("completed", &types);
    assert_eq!(stage.runner.posts(&answer.run_id()), 1);
    let lost: (i64,) = sqlx::query_as("SELECT last_value FROM lost_events")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert!(lost.0 > 2, "{}", lost.0);
}

#[tokio::test]
async fn repeated_connection_loss_fails_no_run() {
    let stage = or_skip!(OwnStage::on(Postgres, |_| {}).await);
    stage.runner.answer_all(|run| {
        let frames = run.talk(150).into_iter().map(String::into_bytes).collect();
        vec![
            sse_head(),
            ScriptStep::Pace(frames, Duration::from_millis(10)),
        ]
    });
    let mut database = database(&stage).await;
    let mut stream = stage.client.post_streaming(&message("m-1")).await;
    let run_id = stream.run_id();
    for _ in 0..10 {
        let all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()";
        execute(&mut database, all.to_owned()).await;
        if stream.events(8).await.is_empty() {
            break;
        }
    }
    let outcome = stage.outcome(&run_id).await;
    assert_eq!(outcome.ending(), "completed");
    assert_eq!(outcome.ledger.0.len(), 151);
}

/// Connections that die silently, as with a firewall or a moved database; new connections work.
#[tokio::test]
async fn silently_dead_connections_fail_no_run() {
    const LEASE: Duration = Duration::from_secs(6);
    let configure = |config: &mut Config| {
        config.runs = format!("lease_seconds = {}", LEASE.as_secs());
    };
    let (stage, proxy) = or_skip!(stage(configure).await);
    let gate = Gate::new();
    let hold = gate.clone();
    stage
        .runner
        .answer_all(move |run| sse_around(&hold, run.delta(1, "one"), run.completed(2)));
    let mut stream = stage.client.post_streaming(&message("m-1")).await;
    let run_id = stream.run_id();
    assert_eq!(stream.event().await.unwrap().id, Some(1));
    proxy.silence();
    // Past the expiry of an unrenewed lease.
    tokio::time::sleep(LEASE + LEASE / 2).await;
    gate.cancel();
    let outcome = stage.outcome(&run_id).await;
    outcome.assert("completed", &["message.delta", "run.completed"]);
}

#[tokio::test]
async fn returns_endpoint_secret_after_lost_commit() {
    let (stage, proxy) = or_skip!(stage(|_| {}).await);
    let admin = stage.admin.clone();
    let other = StubRunner::start_as(manifest("plugin:test/other/default")).await;
    proxy.arm(CutTrigger::AfterCommit("lost-endpoint".to_owned()));
    let spec = json!({"name": "lost-endpoint", "base_url": other.url});
    let answer = admin.create("/v1/runner-endpoints", &spec).await;
    within("the answer to be lost", proxy.fired(1)).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let secret = answer.body["secret"].as_str().unwrap();
    assert!(secret.starts_with("whsec_"), "{secret}");
}
