//! Skills: packages of the operator and skills registered by runs. Runs with a grant activate them, and they
//! stay with the conversation.

use std::sync::Once;

use futures_util::future::join_all;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::isolation::admin_key_of;
use crate::mcp_tools::{PYTHON, json_output};
use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::database::rows;
use crate::support::gateway::{Agent, Config};
use crate::support::held::HeldRun;
use crate::support::peer::environment;
use crate::support::repository::repository_file;
use crate::support::runner::{RUNNER_ID, SECRET, StubRunner, manifest};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, skill, skipped, until};

const ENTRY: &str = "/state/conversation/host.activated_skills";

/// A runner with the skill capability.
fn author() -> Value {
    let mut manifest = manifest(RUNNER_ID);
    manifest["capabilities"]["skill_authoring"] = json!(true);
    manifest
}

async fn stage(engine: Engine, resources: &'static str) -> Option<OwnStage> {
    let runner = StubRunner::start_as(author()).await;
    OwnStage::of(engine, runner, |config| {
        config.agents[0].resources = resources;
        let one = |name: &str| {
            let directory = skill(name);
            format!("[[skills]]\nskill_name = \"{name}\"\ndirectory = \"{directory}\"\n")
        };
        config.rest = one("summary") + &one("greeting");
    })
    .await
}

async fn call(run: &HeldRun, tool: &str, parameters: Value) -> ApiResponse {
    let body = json!({"parameters": parameters});
    run.call(&format!("/tools/{tool}/call"), &body).await
}

#[rstest]
#[tokio::test]
async fn activated_skills_stay_with_conversation(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, r#"skills = ["summary"]"#).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let resources = &run.run_request["context"]["resources"];
    assert_eq!(resources["skills"][0]["skill_name"], "summary");
    assert_eq!(resources["skills"][0]["description"], "Makes it short.");
    let tools: Vec<_> = resources["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["tool_name"].as_str().unwrap())
        .collect();
    assert_eq!(tools, ["list_skills", "activate", "read_skill_file"]);

    let listed = call(&run, "list_skills", json!({})).await;
    assert_eq!(listed.body["result"]["skills"], resources["skills"]);
    assert_eq!(run.get(ENTRY).await.status, 404);
    let activated = call(&run, "activate", json!({"skill_name": "summary"})).await;
    assert_eq!(activated.status, 200, "{}", activated.body);
    let result = &activated.body["result"];
    let written = std::fs::read_to_string(format!("{}/SKILL.md", skill("summary"))).unwrap();
    assert_eq!(result["content"], written);
    assert_eq!(result["files"], json!(["references/words.md"]));
    let file = json!({"skill_name": "summary", "path": "references/words.md"});
    let read = call(&run, "read_skill_file", file).await;
    assert_eq!(read.body["result"]["content"], "Few.\n");
    for (tool, parameters) in [
        ("activate", json!({"skill_name": "greeting"})),
        ("activate", json!({"skill_name": "nobody"})),
        ("activate", json!({})),
        (
            "read_skill_file",
            json!({"skill_name": "greeting", "path": "x"}),
        ),
        (
            "read_skill_file",
            json!({"skill_name": "summary", "path": "../summary/SKILL.md"}),
        ),
    ] {
        let refused = call(&run, tool, parameters).await;
        assert_eq!(refused.status, 400, "{tool}: {}", refused.body);
    }

    let entry = run.get(ENTRY).await.expect(200);
    let activations = entry.body["value"].as_object().unwrap();
    assert_eq!(activations.keys().collect::<Vec<_>>(), ["summary"]);
    assert_eq!(activations["summary"]["run_id"], run.run_id.as_str());
    assert_eq!(run.put(ENTRY, &json!({})).await.status, 403);
    let deleted = send(run.request(Method::DELETE, ENTRY)).await.unwrap();
    assert_eq!(deleted.status, 403);
    run.end(&stage).await;

    let next = HeldRun::start(&stage, &message("m-2")).await;
    assert_eq!(next.get(ENTRY).await.body["value"], entry.body["value"]);
    next.end(&stage).await;
    let mut event = message("m-3");
    event["conversation"]["conversation_id"] = json!("c-8");
    let elsewhere = HeldRun::start(&stage, &event).await;
    assert_eq!(elsewhere.get(ENTRY).await.status, 404);
    elsewhere.end(&stage).await;
}

#[tokio::test]
async fn skill_tools_require_a_granted_skill() {
    let stage = stage(Sqlite, r#"tools = "*""#).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(run.run_request["context"]["resources"]["tools"], json!([]));
    let refused = call(&run, "activate", json!({"skill_name": "summary"})).await;
    assert_eq!(refused.status, 403, "{}", refused.body);
    run.end(&stage).await;
}

#[tokio::test]
async fn loads_every_skill_of_a_directory() {
    let runner = StubRunner::start_as(author()).await;
    let stage = Stage::of(Sqlite, runner, |config| {
        config.agents[0].resources = r#"skills = ["summary"]"#;
        config.rest = format!("[[skill_directories]]\ndirectory = \"{}\"\n", skill(""));
    })
    .await
    .unwrap();
    let listed = stage.admin.clone().get("/v1/skills").await.body;
    let says = |name, description| json!({"skill_name": name, "description": description});
    let expected = json!([
        says("greeting", "Says hello."),
        says("summary", "Makes it short.")
    ]);
    assert_eq!(listed["items"], expected);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let file = json!({"skill_name": "summary", "path": "references/words.md"});
    let read = call(&run, "read_skill_file", file).await;
    assert_eq!(read.body["result"]["content"], "Few.\n");
    run.end(&stage).await;
}

/// Grants to register skills, and to use all skills of the agent and the operator.
const REGISTER_GRANTS: &str = r#"tools = ["register_skill"], skills = "*""#;

fn brief(content: &str) -> Value {
    json!({"skill_name": "brief", "description": "Cuts \"it\".", "content": content,
        "files": [{"path": "notes/more.md", "content": "More.\n"}]})
}

/// Registers the skill in a new run. Returns the run id and the registered skill.
async fn register(stage: &Stage, event_id: &str, skill: Value) -> (String, Value) {
    let run = HeldRun::start(stage, &message(event_id)).await;
    let registered = call(&run, "register_skill", skill).await.expect(200);
    run.end(stage).await;
    (run.run_id, registered.body["result"]["registered"].clone())
}

fn names(run: &HeldRun, kind: &str, member: &str) -> Vec<String> {
    let all = run.run_request["context"]["resources"][kind]
        .as_array()
        .unwrap();
    let names = all.iter().map(|one| one[member].as_str().unwrap());
    names.map(str::to_owned).collect()
}

#[rstest]
#[tokio::test]
async fn later_runs_see_registered_skills(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, REGISTER_GRANTS).await);
    let first = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(
        names(&first, "skills", "skill_name"),
        ["summary", "greeting"]
    );
    assert_eq!(
        names(&first, "tools", "tool_name"),
        [
            "list_skills",
            "activate",
            "read_skill_file",
            "register_skill"
        ]
    );
    let tools = &first.run_request["context"]["resources"]["tools"];
    assert_eq!(tools[3]["effect"], "write");
    let registered = call(&first, "register_skill", brief("Cut.\n")).await;
    assert_eq!(registered.status, 200, "{}", registered.body);
    let registered_skill = registered.body["result"]["registered"].clone();
    assert_eq!(registered.body["result"]["skill_name"], "brief");
    assert_members!(registered_skill, {"run_id": first.run_id, "version": 1});
    let too_soon = call(&first, "activate", json!({"skill_name": "brief"})).await;
    assert_eq!(too_soon.status, 400, "{}", too_soon.body);
    first.end(&stage).await;
    let changes = stage.admin.get("/v1/changes?kind=skill").await.expect(200);
    let by = json!({"kind": "run", "id": first.run_id});
    assert_members!(changes.body["items"][0], {
        "action": "created", "object_name": "brief", "changed_by": by,
    });
    let path = format!("/v1/runs/{}/audit", first.run_id);
    until("the audit", async || {
        let audit = stage.client.get(&path).await.body;
        audit["items"].as_array().unwrap().iter().any(|row| {
            row["resource"] == "register_skill"
                && row["decision"] == "allow"
                && row["outcome"] == "ok"
        })
    })
    .await;

    let next = HeldRun::start(&stage, &message("m-2")).await;
    let skills = &next.run_request["context"]["resources"]["skills"];
    assert_eq!(
        skills[2],
        json!({"skill_name": "brief", "description": "Cuts \"it\".", "registered": registered_skill})
    );
    let listed = call(&next, "list_skills", json!({})).await;
    assert_eq!(&listed.body["result"]["skills"], skills);
    let activated = call(&next, "activate", json!({"skill_name": "brief"})).await;
    let expected = json!({"skill_name": "brief", "files": ["notes/more.md"], "registered": registered_skill,
        "content": "---\nname: brief\ndescription: \"Cuts \\\"it\\\".\"\n---\n\nCut.\n"});
    assert_eq!(activated.body["result"], expected);
    let file = |path: &str| json!({"skill_name": "brief", "path": path});
    let read = call(&next, "read_skill_file", file("notes/more.md")).await;
    assert_eq!(read.body["result"]["content"], "More.\n");
    for path in ["more.md", "SKILL.md", "../brief/notes/more.md"] {
        let refused = call(&next, "read_skill_file", file(path)).await;
        assert_eq!(refused.status, 400, "{path}: {}", refused.body);
    }
    let entry = next.get(ENTRY).await.body;
    assert_eq!(entry["value"]["brief"]["run_id"], next.run_id.as_str());
    next.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn registered_skills_belong_to_one_agent(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start_as(author()).await;
    let staged = OwnStage::of(engine, runner, |config: &mut Config| {
        config.agents[0].resources = REGISTER_GRANTS;
        config.agents.push(Agent {
            name: "second",
            event_types: "test.second",
            resources: REGISTER_GRANTS,
            ..Agent::default()
        });
    });
    let stage = or_skip!(staged.await);
    let (_, ours) = register(&stage, "m-1", brief("Cut.\n")).await;

    let mut event = message("m-2");
    event["event_type"] = json!("test.second");
    let second = HeldRun::start(&stage, &event).await;
    assert_eq!(names(&second, "skills", "skill_name"), [""; 0]);
    let refused = call(&second, "activate", json!({"skill_name": "brief"})).await;
    assert_eq!(refused.status, 403, "{}", refused.body);
    let theirs = call(&second, "register_skill", brief("Theirs.\n")).await;
    assert_eq!(theirs.body["result"]["registered"]["version"], 1);
    second.end(&stage).await;

    let other = Client::new(&stage.client.url, &admin_key_of(&stage, "other").await);
    let endpoint = json!({"name": "stub-of-other", "base_url": stage.runner.url, "secret": SECRET});
    let made = other.create("/v1/runner-endpoints", &endpoint).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let agent = json!({"name": "main", "event_types": ["message.received"], "runner_id": RUNNER_ID,
        "config": {"timeout": 50}, "resource_policy": {"tools": ["register_skill"], "skills": "*"}});
    let made = other.create("/v1/agents", &agent).await.expect(201);
    let path = format!("/v1/agents/{}", made.body["id"].as_str().unwrap());
    let elsewhere = HeldRun::start_as(&stage, &other, &message("m-3")).await;
    assert_eq!(names(&elsewhere, "skills", "skill_name"), [""; 0]);
    let third = call(&elsewhere, "register_skill", brief("Third.\n")).await;
    assert_eq!(third.status, 200, "{}", third.body);
    let listed = other.get(&format!("{path}/skills")).await.body;
    assert_eq!(
        listed["items"][0]["registered"],
        third.body["result"]["registered"]
    );

    // The operator's skill is not overwritten, and the agent uses its own.
    let last = HeldRun::start(&stage, &message("m-4")).await;
    assert_eq!(
        last.run_request["context"]["resources"]["skills"][0]["registered"],
        ours
    );
    last.end(&stage).await;
    assert_eq!(other.delete(&path).await.status, 204);
    let late = call(&elsewhere, "register_skill", brief("Late.\n")).await;
    assert_eq!(late.status, 400, "{}", late.body);
    elsewhere.release();
    let sql = "SELECT content FROM agent_skills ORDER BY content";
    let left = rows(&stage.gateway.database_url(), sql).await;
    assert_eq!(left, ["Cut.\n", "Theirs.\n"]);
}

#[rstest]
#[tokio::test]
async fn rejects_skills_changed_or_withdrawn_during_run(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(stage(engine, REGISTER_GRANTS).await);
    let elsewhere = |event_id: &str| {
        let mut event = message(event_id);
        event["conversation"]["conversation_id"] = json!(event_id);
        event
    };
    let activate =
        async |run: &HeldRun| call(run, "activate", json!({"skill_name": "brief"})).await;
    register(&stage, "m-1", brief("Cut.\n")).await;
    let held = HeldRun::start(&stage, &elsewhere("m-2")).await;
    assert_eq!(activate(&held).await.status, 200);
    let (_, same) = register(&stage, "m-3", brief("Cut.\n")).await;
    assert_eq!(same["version"], 1, "equal content keeps the version");
    assert_eq!(activate(&held).await.status, 200);
    let (second, changed) = register(&stage, "m-4", brief("Cut more.\n")).await;
    assert_members!(changed, {"version": 2, "run_id": second});
    let file = json!({"skill_name": "brief", "path": "notes/more.md"});
    for refused in [
        activate(&held).await,
        call(&held, "read_skill_file", file.clone()).await,
    ] {
        refused.assert_detail(403, "reason", "skill_changed");
    }
    held.end(&stage).await;

    let held = HeldRun::start(&stage, &elsewhere("m-5")).await;
    let activated = activate(&held).await.body["result"].clone();
    assert!(
        activated["content"]
            .as_str()
            .unwrap()
            .ends_with("\n\nCut more.\n")
    );
    let admin = stage.admin.clone();
    let agent = admin.get("/v1/agents").await.body["items"][0]["id"].clone();
    let skills = format!("/v1/agents/{}/skills", agent.as_str().unwrap());
    let listed = admin.get(&skills).await.body["items"].clone();
    assert_eq!(
        listed,
        json!([{"skill_name": "brief", "description": "Cuts \"it\".", "registered": changed}])
    );
    let shown = admin.get(&format!("{skills}/brief")).await.body;
    assert_eq!(shown["content"], activated["content"]);
    assert_members!(shown, {"files": json!([{"path": "notes/more.md", "content": "More.\n"}])});
    assert_eq!(shown["registered"], changed);
    // Also for an agent from the configuration file.
    assert_eq!(admin.delete(&format!("{skills}/brief")).await.status, 204);
    let refused = activate(&held).await;
    refused.assert_detail(403, "reason", "skill_gone");
    assert_eq!(admin.delete(&format!("{skills}/brief")).await.status, 404);
    assert_eq!(admin.get(&format!("{skills}/brief")).await.status, 404);
    held.end(&stage).await;
    let last = HeldRun::start(&stage, &message("m-6")).await;
    assert_eq!(
        names(&last, "skills", "skill_name"),
        ["summary", "greeting"]
    );
    last.end(&stage).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serializes_concurrent_skill_registrations() {
    let stage = or_skip!(stage(Postgres, REGISTER_GRANTS).await);
    let replica = stage.gateway.start_replica().await;
    let mut runs = Vec::new();
    for number in 0..8 {
        let mut event = message(&format!("m-{number}"));
        event["conversation"]["conversation_id"] = json!(number.to_string());
        let client = [&stage.client, &replica.client][number % 2];
        runs.push(HeldRun::start_as(&stage, client, &event).await);
    }
    let at_once = async |skills: Vec<Value>| {
        let calls = skills.into_iter().zip(runs.iter().cycle());
        let calls = calls.map(|(skill, run)| call(run, "register_skill", skill));
        join_all(calls).await
    };

    let briefs = (0..8).map(|number| brief(&format!("Cut {number}.\n")));
    let answers = at_once(briefs.collect()).await;
    let mut versions: Vec<_> = answers
        .iter()
        .enumerate()
        .map(|(number, answer)| {
            assert_eq!(answer.status, 200, "{}", answer.body);
            let version = &answer.body["result"]["registered"]["version"];
            (version.as_u64().unwrap(), format!("Cut {number}.\n"))
        })
        .collect();
    versions.sort_unstable();
    assert!(
        versions.iter().map(|(version, _)| *version).eq(1..=8),
        "{versions:?}"
    );
    let contents = "SELECT content FROM agent_skills";
    let stored = rows(&stage.gateway.database_url(), contents).await;
    assert_eq!(stored, [versions[7].1.as_str()], "the last one is stored");

    let others = (0..60).map(|number| {
        let mut skill = brief("Cut.\n");
        skill["skill_name"] = json!(format!("s-{number}"));
        skill
    });
    let answers = at_once(others.collect()).await;
    let taken = answers.iter().filter(|answer| answer.status == 200).count();
    let refused = answers.iter().filter(|answer| answer.status == 400).count();
    assert_eq!((taken, refused), (49, 11), "50 are kept at most");
    let stored = rows(&stage.gateway.database_url(), contents).await;
    assert_eq!(stored.len(), 50);
}

#[tokio::test]
async fn wildcard_grants_do_not_include_skill_registration() {
    let stage = stage(Sqlite, r#"tools = "*", skills = "*""#).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(
        names(&run, "tools", "tool_name"),
        ["list_skills", "activate", "read_skill_file"]
    );
    let refused = call(&run, "register_skill", brief("Cut.\n")).await;
    assert_eq!(refused.status, 403, "{}", refused.body);
    run.end(&stage).await;
    let admin = stage.admin.clone();
    let path = format!("/v1/runs/{}/authorization", run.run_id);
    let document = admin.get(&path).await.body.to_string();
    assert_contains!(document, "does not list it by its name");
    let sql = "SELECT skill_name FROM agent_skills";
    assert_eq!(rows(&stage.gateway.database_url(), sql).await, [""; 0]);
}

#[rstest]
#[tokio::test]
async fn limits_registered_skills_and_reserves_operator_names(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(stage(engine, REGISTER_GRANTS).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let with = |member: &str, value: Value| {
        let mut skill = brief("Cut.\n");
        skill[member] = value;
        skill
    };
    let file = |path: &str| json!([{"path": path, "content": ""}]);
    let large = "x".repeat(256 << 10);
    for (skill, pointer) in [
        (
            with("skill_name", json!("greeting")),
            "/parameters/skill_name",
        ),
        (
            with("skill_name", json!("../brief")),
            "/parameters/skill_name",
        ),
        (with("files", file("../brief")), "/parameters/files/0/path"),
        (
            with("files", file("/etc/passwd")),
            "/parameters/files/0/path",
        ),
        (
            with("content", json!("---\nname: greeting\n---\n")),
            "/parameters/content",
        ),
        (with("content", json!(large)), "/parameters"),
        (with("description", json!("")), "/parameters/description"),
        (json!({}), "/parameters"),
    ] {
        let refused = call(&run, "register_skill", skill).await;
        assert_eq!(refused.status, 400, "{pointer}: {}", refused.body);
        assert_eq!(refused.detail("pointer"), pointer, "{}", refused.body);
    }
    for number in 0..50 {
        let skill = with("skill_name", json!(format!("s-{number}")));
        call(&run, "register_skill", skill).await.expect(200);
    }
    let full = call(&run, "register_skill", with("skill_name", json!("s-50"))).await;
    assert_eq!(full.status, 400, "{}", full.body);
    assert!(full.body.to_string().contains("50 skills"), "{}", full.body);
    let mut again = with("skill_name", json!("s-7"));
    again["content"] = json!("Another.");
    let replaced = call(&run, "register_skill", again).await;
    assert_eq!(replaced.body["result"]["registered"]["version"], 2);
    run.end(&stage).await;
    let sql = "SELECT skill_name FROM agent_skills";
    assert_eq!(rows(&stage.gateway.database_url(), sql).await.len(), 50);
}

#[tokio::test]
async fn official_mcp_client_reads_and_registers_skills() {
    static SKIPPED: Once = Once::new();
    let Some(environment) = environment(&PYTHON.replace("==", "-"), &[PYTHON]).await else {
        skipped(&SKIPPED, "mcp", "pip could not install the client");
        return;
    };
    let stage = stage(Sqlite, REGISTER_GRANTS).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let calls = json!([
        ["list_skills", {}],
        ["activate", {"skill_name": "summary"}],
        ["read_skill_file", {"skill_name": "summary", "path": "references/words.md"}],
        ["register_skill", brief("Cut.\n")],
        ["register_skill", {"skill_name": "greeting", "description": "d", "content": "c"}],
    ]);
    let input = json!({"url": format!("{}/mcp", run.host.url), "token": run.token, "calls": calls,
        "mode": "auto"});
    let mut python = Command::new(environment.join("bin/python"));
    python
        .arg(repository_file("tests/clients/mcp_python/face.py"))
        .arg(input.to_string());
    let output = json_output(&mut python).await;
    let tools = output["tools"].as_array().unwrap();
    let tool = |name: &str| tools.iter().find(|tool| tool["name"] == name).unwrap();
    assert_members!(tool("activate")["inputSchema"], {"required": json!(["skill_name"])});
    assert_eq!(tool("list_skills")["annotations"]["readOnlyHint"], true);
    assert_eq!(tool("register_skill")["annotations"]["readOnlyHint"], false);
    let content = |index: usize| &output["results"][index]["structuredContent"];
    assert_eq!(content(0)["skills"][0]["skill_name"], "summary");
    assert!(
        content(1)["content"]
            .as_str()
            .unwrap()
            .contains("# Summary"),
        "{output}"
    );
    assert_eq!(content(2)["content"], "Few.\n");
    assert_eq!(content(3)["registered"]["run_id"], run.run_id.as_str());
    assert_eq!(output["results"][4]["isError"], true, "{output}");
    let refused = output["results"][4]["content"][0]["text"].as_str().unwrap();
    assert!(refused.starts_with("/parameters/skill_name"), "{output}");
    run.end(&stage).await;
    let next = HeldRun::start(&stage, &message("m-2")).await;
    assert_eq!(names(&next, "skills", "skill_name")[2], "brief");
    next.end(&stage).await;
}
