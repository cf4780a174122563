//! Schema fuzzing with Schemathesis (a peer from `PyPI`): valid and invalid requests to each operation with each
//! kind of credential. No response is a server error, and each conforms to the API document.
//!
//! `RUNNEL_TEST_SHAPES=200` sets the requests per operation, and adds the boundary values of each schema.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::sync::Once;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::isolation::ask;
use crate::support::client::{message, send};
use crate::support::gateway::{Agent, Config};
use crate::support::held::HeldRun;
use crate::support::peer::environment;
use crate::support::repository::repository_file;
use crate::support::routes::{Face, operations};
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{head, sse};
use crate::support::tool_server::ToolServer;
use crate::support::{
    Engine, OwnStage, Postgres, Sqlite, Stage, TempDirectory, number, seed, skill, skipped, until,
};

const SCHEMATHESIS: &str = "schemathesis==4.32.5";
static NO_SCHEMATHESIS: Once = Once::new();

/// Checks of every response.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_headers_conformance,response_schema_conformance,unsupported_method";

/// Credential of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShapeCaller {
    Client,
    Admin,
    Owner,
    /// The runner of a run with an open stream.
    Run,
    /// The runner of a deferred run: it appends results, which may end the run.
    DeferredSubject,
}

impl ShapeCaller {
    /// True if the credential is authorized for the operation.
    fn opens(self, face: Face, id: &str) -> bool {
        match self {
            Self::Client => face == Face::Client,
            Self::Admin => matches!(face, Face::Client | Face::Admin),
            Self::Owner => face == Face::Owner,
            Self::Run => face == Face::Host,
            Self::DeferredSubject => APPENDING.contains(&id),
        }
    }

    /// Operations that would end the test itself, or never end.
    fn leaves_out(self, id: &str) -> bool {
        match self {
            // Ends the run of this token.
            Self::Run => id == "cancel_own_run",
            Self::DeferredSubject => !APPENDING.contains(&id),
            Self::Client | Self::Admin => id == "stream_workspace_feed",
            Self::Owner => false,
        }
    }
}

const APPENDING: [&str; 2] = ["append_results", "run_heartbeat"];

const ALL: &str = r#"models = "*", tools = "*", knowledge_bases = "*", skills = "*", files = "*", history = ["page", "search"], events = ["get", "page"], storage = ["plugin", "workspace", "binding"], artifacts = ["metadata", "read", "create"], agents = "*""#;

const CATALOG: &str = r#"
[[model_providers]]
name = "script"
kind = "scripted"
[[models]]
model_id = "talker"
provider = "script"
operations = ["invoke", "stream", "rerank", "count_tokens"]
[[tools]]
tool_name = "find"
url = "{TOOLS}/find"
[[tools]]
tool_name = "get_current_time"
[[knowledge_bases]]
kb_id = "handbook"
embedding_model = "talker"
[[skills]]
skill_name = "summary"
directory = "{SKILL}"
[[budgets]]
name = "all"
scope = "workspace"
window = "day"
calls = 100000000
"#;

/// A runner with all permissions.
fn generous() -> Value {
    let mut manifest = manifest(RUNNER_ID);
    for capability in ["steering", "skill_authoring", "interactions", "interrupt"] {
        manifest["capabilities"][capability] = json!(true);
    }
    manifest["permissions"] = json!({
        "models": ["invoke", "stream", "rerank", "count_tokens"], "tools": ["detail", "call"],
        "knowledge_bases": ["list", "retrieve"], "history": ["page", "search"],
        "events": ["get", "page"], "storage": ["plugin", "workspace", "binding"],
        "artifacts": ["metadata", "read", "create"], "agents": ["call"],
    });
    manifest
}

async fn stage(engine: Engine, tools: &ToolServer) -> Option<OwnStage> {
    let runner = StubRunner::start_as(generous()).await;
    runner.answer_all(|run| sse(run.talk(2).concat()));
    OwnStage::of(engine, runner, |config: &mut Config| {
        let agent = &mut config.agents[0];
        agent.resources = ALL;
        agent.state_scopes = r#""conversation", "actor", "subject", "runner", "binding""#;
        agent.timeout_seconds = 7200.0;
        agent.interactions = true;
        config.agents.push(Agent {
            name: "helper",
            event_types: "test.helper",
            ..Agent::default()
        });
        "refused_credentials = 1000000\nsilence_seconds = 3600.0".clone_into(&mut config.limits);
        "append_lease_seconds = 7200.0".clone_into(&mut config.runs);
        let catalog = CATALOG.replace("{SKILL}", &skill("summary"));
        config.rest = catalog.replace("{TOOLS}", &tools.url);
    })
    .await
}

/// Known ids by parameter name, because random ids never match a resource.
type KnownIds = BTreeMap<&'static str, Value>;

/// Known ids, and the credential of the requests.
struct RequestTarget {
    ids: KnownIds,
    credential: String,
    /// Held until the test ends.
    _held: HeldRun,
}

async fn prepare(stage: &OwnStage, caller: ShapeCaller) -> RequestTarget {
    let admin = stage.admin.clone();
    let mut runs = Vec::new();
    for event_id in ["m-1", "m-2"] {
        let run_id = stage.client.post(&message(event_id)).await.run_id();
        stage.client.finished(&run_id).await;
        runs.push(run_id);
    }
    let held = HeldRun::start(stage, &message("m-held")).await;
    held.put("/state/conversation/k", &json!(1))
        .await
        .expect(200);
    for path in ["/storage/plugin/k", "/storage/workspace/k"] {
        let put = held.request(Method::PUT, path).body("bytes");
        assert_eq!(send(put).await.unwrap().status, 204, "{path}");
    }
    let child = json!({"agent_id": "helper", "input": {"text": "hi"}, "idempotency_key": "k"});
    runs.push(held.call("/child-runs", &child).await.run_id());
    let upload = held.request(Method::POST, "/artifacts").body("bytes");
    let artifact = text(&send(upload).await.unwrap().body["artifact_id"]);
    let path = "/v1/knowledge-bases/handbook/documents/guide";
    let put = admin
        .request(Method::PUT, path)
        .header(CONTENT_TYPE, "text/plain");
    let put = send(put.body("Read the guide.")).await.unwrap();
    assert_eq!(put.status, 201, "{}", put.body);
    let spec = json!({"name": "spare", "event_types": ["test.spare"], "runner_id": RUNNER_ID});
    let agent = text(&admin.create("/v1/agents", &spec).await.body["id"]);
    let key = json!({"name": "spare", "role": "client"});
    let key = text(&admin.create("/v1/api-keys", &key).await.body["id"]);
    let endpoints = admin.get("/v1/runner-endpoints").await.body;
    let interaction = ask(stage, "default", &runs[0], "question").await;
    let deferred = DeferredSubject::start(stage).await;
    let ids = KnownIds::from([
        ("path.run_id", json!(runs)),
        ("path.event_id", json!(["m-1", "m-held"])),
        ("path.agent_id", json!([agent])),
        ("path.endpoint_id", json!([endpoints["items"][0]["id"]])),
        ("path.api_key_id", json!([key])),
        ("path.artifact_id", json!([artifact])),
        ("path.interaction", json!([interaction])),
        ("path.conversation_id", json!(["c-7"])),
        ("query.wait_seconds", json!([0])),
        ("path.document_id", json!(["guide"])),
        ("path.kb_id", json!(["handbook"])),
        ("path.model_id", json!(["talker"])),
        ("path.name", json!(["find", "get_current_time"])),
        ("path.key", json!(["k"])),
        ("body.model", json!(["talker"])),
        ("body.agent_id", json!(["helper"])),
        ("body.runner_id", json!([RUNNER_ID])),
        ("body.base_url", json!([stage.runner.url])),
        ("body.event_type", json!(["message.received"])),
        ("body.jsonrpc", json!(["2.0"])),
        ("body.id", json!([1])),
        (
            "body.method",
            json!(["initialize", "ping", "tools/list", "tools/call"]),
        ),
        ("body.results[*].run_id", json!([deferred.run_id])),
        ("body.results[*].sequence", json!([1])),
        (
            "body.results[*].type",
            json!(["message.delta", "state.updated", "ours"]),
        ),
    ]);
    let credential = match caller {
        ShapeCaller::Client => stage.client.key.clone(),
        ShapeCaller::Admin => admin.key,
        ShapeCaller::Owner => stage.gateway.owner().key,
        ShapeCaller::Run => held.token.clone(),
        ShapeCaller::DeferredSubject => deferred.token,
    };
    RequestTarget {
        ids,
        credential,
        _held: held,
    }
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value}"))
        .to_owned()
}

/// A run that its runner deferred with 202.
struct DeferredSubject {
    run_id: String,
    token: String,
}

impl DeferredSubject {
    async fn start(stage: &Stage) -> Self {
        stage.runner.answer("m-later", |_| {
            vec![head("202 Accepted", "content-length: 0\r\n")]
        });
        let run_id = stage.client.post(&message("m-later")).await.run_id();
        let host = stage.host_of(&run_id).await;
        until("the run to be deferred", async || {
            let beat = host.request(Method::POST, "/run/heartbeat");
            send(beat).await.unwrap().status == 200
        })
        .await;
        let token = host.key;
        Self { run_id, token }
    }
}

/// Settings of Schemathesis, as TOML.
fn settings(stage: &Stage, ids: &KnownIds, left_out: &[String], cases: usize) -> String {
    let mut settings = format!(
        "hooks = {hooks}\nbase-url = {url}\ncontinue-on-failure = true\nrequest-timeout = 60\n\
         [cache]\nenabled = false\n\
         [generation]\nmax-examples = {cases}\ndatabase = \"none\"\n\
         with-security-parameters = false\nallow-x00 = false\n\
         [phases.fuzzing.extra-data-sources]\nresponses = false\n\
         [phases.coverage.extra-data-sources]\nresponses = false\n",
        hooks = json!(repository_file("tests/peer/shapes.py")),
        url = json!(stage.client.url),
    );
    let name = |parameter: &str| parameter.replace(['.', '[', '*', ']'], "_");
    let bindings = ids.keys().map(|parameter| {
        let name = name(parameter);
        format!("{parameter:?} = {{ dictionary = \"{name}\", probability = 0.7 }}\n")
    });
    settings.push_str("[parameters]\n");
    settings.extend(bindings);
    let dictionaries = ids.iter().map(|(parameter, values)| {
        let name = name(parameter);
        format!("[dictionaries.{name}]\nvalues = {values}\n")
    });
    settings.extend(dictionaries);
    let without =
        |id| format!("[[operations]]\ninclude-operation-id = \"{id}\"\nenabled = false\n");
    settings.extend(left_out.iter().map(without));
    settings
}

/// Seed of the requests. It is fixed, so that only a change can fail; with `RUNNEL_TEST_SHAPES` it is random.
fn shapes() -> u64 {
    if std::env::var_os("RUNNEL_TEST_SHAPES").is_none() {
        return 1;
    }
    seed() % 1_000_000_007
}

/// Sends the requests and returns the statuses of each operation. Fails with Schemathesis's report.
async fn send_shapes(
    stage: &Stage,
    subject: &RequestTarget,
    caller: ShapeCaller,
    left_out: &[String],
) -> Option<BTreeMap<String, BTreeMap<String, u64>>> {
    let name = SCHEMATHESIS.replace("==", "-");
    let Some(environment) = environment(&name, &[SCHEMATHESIS]).await else {
        skipped(
            &NO_SCHEMATHESIS,
            "python",
            "schemathesis could not be installed",
        );
        return None;
    };
    let cases = number("RUNNEL_TEST_SHAPES", 3);
    let cases = match caller {
        // Only two operations, but results have many shapes.
        ShapeCaller::DeferredSubject => 20 * cases,
        _ => cases,
    };
    // Boundary values are many and never change, so only long runs include them.
    let phases = if number("RUNNEL_TEST_SHAPES", 3) > 3 {
        "examples,coverage,fuzzing"
    } else {
        "examples,fuzzing"
    };
    let directory = TempDirectory::new();
    let settings = settings(stage, &subject.ids, left_out, cases);
    let settings = directory.write("schemathesis.toml", &settings);
    let (statuses, report) = (
        directory.file("statuses.json"),
        directory.file("report.json"),
    );
    let mut program = Command::new(environment.join("bin/python"));
    // The script in `bin` names its original directory, which was renamed later.
    program
        .args([
            "-c",
            "from schemathesis.cli import schemathesis; schemathesis()",
        ])
        .current_dir(directory.file(""))
        .env("RUNNEL_CREDENTIAL", &subject.credential)
        .env("RUNNEL_STATUSES", &statuses)
        .arg("--config-file")
        .arg(settings)
        .args(["run", "--no-color", "--checks", CHECKS, "--phases", phases])
        .args(["--seed", &shapes().to_string()])
        .arg("--report-json-path")
        .arg(&report)
        .arg(repository_file("openapi/gateway.json"))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    if caller == ShapeCaller::Run {
        program.env(
            "RUNNEL_RENEWAL",
            format!("{}/host/v1/token", stage.client.url),
        );
    }
    // Some minutes, and more for more requests.
    let bound = Duration::from_secs(300 + 60 * cases as u64);
    let output = tokio::time::timeout(bound, program.output()).await;
    let output = output.expect("Schemathesis to end").unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{caller:?}: {text}");
    let read = |path| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(read(&report)["complete"], true, "{text}");
    eprintln!("{}", read(&report)["test_cases"]);
    Some(serde_json::from_value(read(&statuses)).unwrap())
}

#[rstest]
#[tokio::test]
async fn responses_conform_to_api_document(
    #[values(Sqlite, Postgres)] engine: Engine,
    #[values(
        ShapeCaller::Client,
        ShapeCaller::Admin,
        ShapeCaller::Owner,
        ShapeCaller::Run,
        ShapeCaller::DeferredSubject
    )]
    caller: ShapeCaller,
) {
    let tools = ToolServer::start().await;
    let stage = or_skip!(stage(engine, &tools).await);
    let all = operations(&stage.client).await;
    let left_out: Vec<_> = all
        .iter()
        .filter(|operation| caller.leaves_out(&operation.id))
        .map(|operation| operation.id.clone())
        .collect();
    let subject = prepare(&stage, caller).await;
    let statuses = or_skip!(send_shapes(&stage, &subject, caller, &left_out).await);

    let sent: BTreeSet<_> = statuses.keys().chain(&left_out).collect();
    let served: BTreeSet<_> = all.iter().map(|operation| &operation.id).collect();
    assert_eq!(sent, served, "an operation was not called");
    // Requests get past authorization.
    let opened = all
        .iter()
        .filter(|operation| caller.opens(operation.face, &operation.id));
    let opened: Vec<_> = opened
        .map(|operation| &operation.id)
        .filter(|id| !left_out.contains(id))
        .collect();
    let is_good = |id: &&&String| statuses[**id].keys().any(|status| status.starts_with('2'));
    let good = opened.iter().filter(is_good).count();
    let none: Vec<_> = opened.iter().filter(|id| !is_good(id)).collect();
    assert!(2 * good >= opened.len(), "no good answer of {none:?}");
    eprintln!(
        "{caller:?}: {good} of {} gave a good answer; not {none:?}",
        opened.len()
    );
}
