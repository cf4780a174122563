//! Two workspaces of one gateway, with the same names and ids in both.

use aws_lc_rs::digest::{SHA256, digest};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use rstest::rstest;
use serde_json::{Value, json};

use crate::isolation::{absent_ids, admin_key_of, request, visible_response, without_ids};
use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::deferred::Deferred;
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::routes::{Face, operations};
use crate::support::runner::{RUNNER_ID, SECRET, StubRunner, manifest};
use crate::support::script::head;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, hex};

const CATALOG: &str = r#"
[[model_providers]]
name = "script"
kind = "scripted"
[[models]]
model_id = "m"
provider = "script"
[[knowledge_bases]]
kb_id = "handbook"
[[budgets]]
name = "few"
scope = "workspace"
window = "month"
calls = 3
"#;

/// A runner with every permission that this file's agents grant.
fn generous() -> Value {
    let mut manifest = manifest(RUNNER_ID);
    manifest["capabilities"]["knowledge_retrieval"] = json!(true);
    manifest["permissions"] = json!({
        "models": ["invoke"], "knowledge_bases": ["list", "retrieve"],
        "history": ["page", "search"], "events": ["get", "page"],
        "storage": ["plugin", "workspace", "binding"],
        "artifacts": ["metadata", "read", "create"],
    });
    manifest
}

fn everything() -> Value {
    json!({
        "models": ["m"], "knowledge_bases": ["handbook"],
        "history": ["page", "search"], "events": ["get", "page"],
        "storage": ["plugin", "workspace", "binding"],
        "artifacts": ["metadata", "read", "create"],
    })
}

async fn stage(engine: Engine, configure: impl FnOnce(&mut Config)) -> Option<OwnStage> {
    let runner = StubRunner::start_as(generous()).await;
    OwnStage::of(engine, runner, |config: &mut Config| {
        CATALOG.clone_into(&mut config.rest);
        configure(config);
    })
    .await
}

/// A workspace with an endpoint and an agent of its own, whose names are the same in every workspace.
struct Team {
    id: &'static str,
    admin: Client,
}

impl Team {
    async fn new(stage: &OwnStage, id: &'static str) -> Self {
        let admin = Client::new(&stage.client.url, &admin_key_of(stage, id).await);
        let endpoint = json!({"name": "stub", "base_url": stage.runner.url, "secret": SECRET});
        let made = admin.create("/v1/runner-endpoints", &endpoint).await;
        assert_eq!(made.status, 201, "{}", made.body);
        let bare = json!({
            "name": "bare", "event_types": ["test.bare"], "runner_id": RUNNER_ID,
            "config": {"timeout": 50},
        });
        let single = json!({
            "name": "single", "event_types": ["test.single"], "runner_id": RUNNER_ID,
            "config": {"timeout": 50}, "concurrency": "reject",
        });
        let main = json!({
            "name": "main", "event_types": ["message.received"], "runner_id": RUNNER_ID,
            "scope": {"kind": "global"}, "config": {"timeout": 50},
            "resource_policy": everything(),
            "state_policy": {"enabled": true, "scopes": ["conversation", "actor", "runner"]},
        });
        for agent in [main, bare, single] {
            admin.create("/v1/agents", &agent).await.expect(201);
        }
        Self { id, admin }
    }

    async fn two(stage: &OwnStage) -> [Self; 2] {
        // In a careless query, `_` of the first id is a wildcard that matches the second.
        [
            Self::new(stage, "team_a").await,
            Self::new(stage, "team-a").await,
        ]
    }

    /// A text that only this workspace holds.
    fn mark(&self) -> String {
        format!(
            "mark-of-{}",
            hex(digest(&SHA256, self.id.as_bytes()).as_ref())
        )
    }

    fn event(&self, event_id: &str) -> Value {
        let mut event = message(event_id);
        event["input"]["text"] = json!(format!("hello {}", self.mark()));
        event
    }

    async fn put_document(&self) -> ApiResponse {
        let path = "/v1/knowledge-bases/handbook/documents/guide";
        let put = self.admin.request(Method::PUT, path);
        let put = put.header(CONTENT_TYPE, "text/plain");
        send(put.body(format!("vacation {}", self.mark())))
            .await
            .unwrap()
    }

    /// A run whose runner has answered 202.
    async fn defer(&self, stage: &OwnStage, event_id: &str) -> Deferred {
        stage.runner.answer(event_id, |_| {
            vec![head("202 Accepted", "content-length: 0\r\n")]
        });
        let run_id = self.admin.post(&self.event(event_id)).await.run_id();
        let host = stage.host_of(&run_id).await;
        Deferred { run_id, host }
    }
}

/// Ids that clients choose are the same in both workspaces.
#[rstest]
#[tokio::test]
async fn equal_ids_in_workspaces_start_independent_runs(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(stage(engine, |_| {}).await);
    let teams = Team::two(&stage).await;
    for team in &teams {
        assert_eq!(team.put_document().await.status, 201);
        let keyed = async || {
            let mut event = team.event("");
            event.as_object_mut().unwrap().remove("event_id");
            event["event_type"] = json!("message.received");
            let posting = team.admin.posting(&event);
            send(posting.header("idempotency-key", "key-1"))
                .await
                .unwrap()
        };
        let (first, again) = (keyed().await, keyed().await);
        assert!(!first.is_replay() && again.is_replay(), "{}", again.body);
        assert_eq!(first.body["run_id"], again.body["run_id"]);
        team.admin.finished(&first.run_id()).await;
    }
    let [one, two] = &teams;
    let first = HeldRun::start_as(&stage, &one.admin, &one.event("m-1")).await;
    let second = HeldRun::start_as(&stage, &two.admin, &two.event("m-1")).await;
    assert_ne!(first.run_id, second.run_id);
    assert!(one.admin.post(&one.event("m-1")).await.is_replay());

    for (team, run) in [(one, &first), (two, &second)] {
        let value = json!(team.mark());
        for path in ["/state/conversation/k", "/state/actor/k", "/state/runner/k"] {
            assert_eq!(run.get(path).await.status, 404, "{} {path}", team.id);
            assert_eq!(run.put(path, &value).await.status, 200, "{path}");
        }
        for path in [
            "/storage/plugin/k",
            "/storage/workspace/k",
            "/storage/binding/k",
        ] {
            assert_eq!(run.get(path).await.status, 404, "{} {path}", team.id);
            let put = run.request(Method::PUT, path).body(team.mark());
            assert_eq!(send(put).await.unwrap().status, 204, "{path}");
        }
        let query = json!({"query_text": "vacation"});
        let found = run.call("/knowledge-bases/handbook/retrieve", &query).await;
        assert_eq!(found.status, 200, "{}", found.body);
        assert_contains!(found.body.to_string(), &team.mark());
    }
    for (team, other, run) in [(one, two, &first), (two, one, &second)] {
        for path in [
            "/state/conversation?prefix=k",
            "/state/conversation/k",
            "/state/runner/k",
            "/history",
            "/events",
            "/events/m-1",
            "/runs",
            "/context",
        ] {
            let answer = visible_response(run.request(Method::GET, path)).await;
            assert_eq!(answer.status, 200, "{path} {}", answer.body);
            assert!(
                !answer.body.contains(&other.mark()),
                "{path} {}",
                answer.body
            );
        }
        for path in ["/storage/workspace/k", "/storage/plugin/k"] {
            let blob = visible_response(run.request(Method::GET, path)).await;
            assert_eq!(blob.body, team.mark(), "{path}");
        }
        let query = json!({"query_text": "vacation"});
        let found = run.call("/knowledge-bases/handbook/retrieve", &query).await;
        assert_lacks!(found.body.to_string(), &other.mark());
        let search = run
            .call("/history/search", &json!({"query": "hello"}))
            .await;
        assert_eq!(search.status, 200, "{}", search.body);
        assert_lacks!(search.body.to_string(), &other.mark());
    }
    for (team, run) in [(one, first), (two, second)] {
        run.release();
        let ended = team.admin.finished(&run.run_id).await;
        assert_eq!(ended["status"], "completed");
    }
}

/// A run token with ids of the other workspace's run, event and artifact gets the same responses as unknown ids.
#[rstest]
#[tokio::test]
async fn run_tokens_grant_nothing_in_other_workspaces(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, |_| {}).await);
    let [one, two] = Team::two(&stage).await;
    let first = HeldRun::start_as(&stage, &one.admin, &one.event("m-one")).await;
    let second = HeldRun::start_as(&stage, &two.admin, &two.event("m-two")).await;
    let absent_ids = absent_ids();
    for (team, run, event_id) in [(&two, &first, "m-two"), (&one, &second, "m-one")] {
        let far = if run.run_id == first.run_id {
            &second
        } else {
            &first
        };
        let upload = far.request(Method::POST, "/artifacts").body(team.mark());
        let artifact = send(upload).await.unwrap().body["artifact_id"].clone();
        let mut foreign = absent_ids.clone();
        foreign.extend([
            ("run_id", far.run_id.clone()),
            ("event_id", event_id.to_owned()),
            ("artifact_id", artifact.as_str().unwrap().to_owned()),
        ]);
        let caller = Client::new(&stage.client.url, &run.token);
        let mut compared = 0;
        for operation in operations(&stage.client).await {
            let names_one = ["{run_id}", "{event_id}", "{artifact_id}"]
                .iter()
                .any(|name| operation.path.contains(name));
            if operation.face != Face::Host || operation.id == "cancel_own_run" {
                continue;
            }
            let answer = visible_response(request(&caller, &operation, &foreign)).await;
            let id = &operation.id;
            assert!(!answer.body.contains(&team.mark()), "{id} {}", answer.body);
            if names_one {
                let nothing = visible_response(request(&caller, &operation, &absent_ids)).await;
                assert_eq!(answer.status, 404, "{id}");
                assert_eq!(
                    without_ids(answer, &foreign),
                    without_ids(nothing, &absent_ids),
                    "{id}"
                );
                compared += 1;
            }
        }
        assert!(compared >= 6, "{compared}");
        // The other run is untouched.
        assert_eq!(team.admin.run(&far.run_id).await["status"], "running");
        // An event cannot attach an upload of another workspace.
        let upload = team.admin.request(Method::POST, "/v1/artifacts");
        let upload = send(upload.body(team.mark())).await.unwrap();
        assert_eq!(upload.status, 201, "{}", upload.body);
        let url = format!("artifact:{}", upload.body["artifact_id"].as_str().unwrap());
        let mut event = message("m-borrows");
        event["input"]["attachments"] = json!([{"url": url}]);
        let own = if team.id == one.id { &two } else { &one };
        let refused = own.admin.post(&event).await;
        refused.assert_detail(400, "pointer", "/input/attachments/0/url");
    }
    for (team, run) in [(&one, first), (&two, second)] {
        run.release();
        team.admin.finished(&run.run_id).await;
    }
}

/// Every workspace lists the configured models and bases; agents need a grant to use them.
#[rstest]
#[tokio::test]
async fn agents_of_every_workspace_need_their_grants(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, |_| {}).await);
    let [one, two] = Team::two(&stage).await;
    for (path, name) in [("/v1/models", "m"), ("/v1/knowledge-bases", "handbook")] {
        let listed = one.admin.get(path).await;
        assert!(listed.body.to_string().contains(name), "{}", listed.body);
    }
    // Agents and endpoints of the configuration stay in `default`.
    for path in ["/v1/agents", "/v1/runner-endpoints"] {
        let listed = one.admin.get(path).await.body;
        let origins = listed["items"].as_array().unwrap().iter();
        assert!(
            origins.clone().all(|item| item["origin"] == "api"),
            "{listed}"
        );
    }
    let ask = json!({"messages": [{"role": "user", "content": "hi"}]});
    let mut event = one.event("m-bare");
    event["event_type"] = json!("test.bare");
    let bare = HeldRun::start_as(&stage, &one.admin, &event).await;
    for (path, body) in [
        ("/models/m/invoke", &ask),
        (
            "/knowledge-bases/handbook/retrieve",
            &json!({"query_text": "vacation"}),
        ),
        ("/history/search", &json!({"query": "hello"})),
    ] {
        let refused = bare.call(path, body).await;
        assert_eq!(refused.status, 403, "{path} {}", refused.body);
    }
    bare.release();

    // The budget allows three calls a month per workspace.
    for team in [&one, &two] {
        let event_id = format!("m-{}", team.id);
        let run = HeldRun::start_as(&stage, &team.admin, &team.event(&event_id)).await;
        for _ in 0..3 {
            run.call("/models/m/invoke", &ask).await.expect(200);
        }
        let refused = run.call("/models/m/invoke", &ask).await;
        refused.assert_detail(429, "budget", "few");
        let used = team.admin.get("/v1/budgets").await.body["items"][0]["used"].clone();
        assert_eq!(used.as_array().unwrap().len(), 1, "{used}");
        assert_members!(used[0], {"id": team.id, "calls": 3});
        run.release();
        team.admin.finished(&run.run_id).await;
    }
}

#[rstest]
#[tokio::test]
async fn counts_live_runs_and_conversations_per_workspace(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let staged = stage(engine, |config| config.limits = "workspace_runs = 2".into());
    let stage = or_skip!(staged.await);
    let [one, two] = Team::two(&stage).await;
    let single = |event_id: &str| {
        let mut event = message(event_id);
        event["event_type"] = json!("test.single");
        event
    };
    let busy = HeldRun::start_as(&stage, &one.admin, &single("m-1")).await;
    let refused = one.admin.post(&single("m-2")).await;
    refused.assert_detail(409, "reason", "run_active");
    let quiet = HeldRun::start_as(&stage, &two.admin, &single("m-1")).await;

    let second = HeldRun::start_as(&stage, &one.admin, &one.event("m-3")).await;
    let refused = one.admin.post(&one.event("m-4")).await;
    refused.assert_detail(429, "reason", "workspace_runs");
    let other = HeldRun::start_as(&stage, &two.admin, &two.event("m-3")).await;
    let refused = two.admin.post(&two.event("m-4")).await;
    assert_eq!(
        refused.detail("reason"),
        "workspace_runs",
        "{}",
        refused.body
    );
    for (team, run) in [(&one, busy), (&two, quiet), (&one, second), (&two, other)] {
        run.release();
        team.admin.finished(&run.run_id).await;
    }
}

/// The next start ends streamed runs and continues runs answered with 202.
#[rstest]
#[tokio::test]
async fn recovers_runs_of_every_workspace(#[values(Sqlite, Postgres)] engine: Engine) {
    let quick = |config: &mut Config| "lease_seconds = 1.0".clone_into(&mut config.runs);
    let mut stage = or_skip!(stage(engine, quick).await);
    let teams = Team::two(&stage).await;
    let mut left = Vec::new();
    for team in &teams {
        let held = HeldRun::start_as(&stage, &team.admin, &team.event("m-held")).await;
        let deferred = team.defer(&stage, "m-later").await;
        deferred.accepted(&[deferred.delta(1, "before ")], 1).await;
        left.push((held, deferred));
    }
    stage.gateway.kill().await;
    stage.gateway.restart().await;
    for (team, (held, deferred)) in teams.iter().zip(&left) {
        let ended = team.admin.finished(&held.run_id).await;
        assert_eq!(ended["error"]["code"], "host.orphaned", "{ended}");
        deferred.accepted(&[deferred.completed(2)], 2).await;
        let ended = team.admin.finished(&deferred.run_id).await;
        assert_eq!(ended["status"], "completed", "{ended}");
        team.admin
            .ledger(&deferred.run_id)
            .await
            .assert_valid(&deferred.run_id);
    }
    let [one, two] = &teams;
    for (team, run_id) in [(one, &left[1].0.run_id), (two, &left[0].1.run_id)] {
        team.admin
            .get(&format!("/v1/runs/{run_id}"))
            .await
            .expect(404);
    }
}
