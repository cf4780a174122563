//! Skills: packages of the operator, activated by runs that were granted them, and kept with the conversation.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{Answer, message, send};
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::{Engine, Postgres, Sqlite, Stage, skill};

const ENTRY: &str = "/state/conversation/host.activated_skills";

async fn stage(engine: Engine, resources: &'static str) -> Option<Stage> {
    let mut manifest = manifest(RUNNER_ID);
    manifest["capabilities"]["skill_authoring"] = json!(true);
    let runner = StubRunner::start_as(manifest).await;
    Stage::of(engine, runner, |config| {
        config.agents[0].resources = resources;
        let one = |name: &str| {
            let directory = skill(name);
            format!("[[skills]]\nskill_name = \"{name}\"\ndirectory = \"{directory}\"\n")
        };
        config.rest = one("summary") + &one("greeting");
    })
    .await
}

async fn call(run: &HeldRun, tool: &str, parameters: Value) -> Answer {
    let body = json!({"parameters": parameters});
    run.call(&format!("/tools/{tool}/call"), &body).await
}

#[rstest]
#[tokio::test]
async fn a_granted_skill_is_activated_and_stays_on_record_with_its_conversation(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let Some(stage) = stage(engine, r#"skills = ["summary"]"#).await else {
        return;
    };
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let resources = &run.asked["context"]["resources"];
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

    let entry = run.get(ENTRY).await;
    assert_eq!(entry.status, 200, "{}", entry.body);
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
async fn who_was_granted_no_skill_has_no_tool_to_read_one() {
    let stage = stage(Sqlite, r#"tools = "*""#).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(run.asked["context"]["resources"]["tools"], json!([]));
    let refused = call(&run, "activate", json!({"skill_name": "summary"})).await;
    assert_eq!(refused.status, 403, "{}", refused.body);
    run.end(&stage).await;
}
