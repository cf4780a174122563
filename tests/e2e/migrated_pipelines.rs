//! Migration from a `LangBot` database: each of its nine pipelines answers from the written configuration.

use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use reqwest::Method;

use crate::migrate::{MASTER_KEY, runnel};
use crate::support::client::{Client, send};
use crate::support::connectors::connectors_with;
use crate::support::fake_platforms::FakePlatforms;
use crate::support::langbot_database::{LangbotDatabase, pipelines};
use crate::support::listening::{ChildServer, local_agent_under};
use crate::support::runner::SECRET;
use crate::support::{Engine, Postgres, Sqlite, TempDirectory, programs};

/// The default address of the Local Agent.
const LOCAL_AGENT: &str = "127.0.0.1:9101";
/// A configuration line of each agent with a fixed platform address, and its API path. Users set no address
/// there.
const FIXED: [(&str, &str); 2] = [
    ("app-id = \"app-4\"\n", "/api/v1"),
    ("app-id = \"app-8\"\n", ""),
];

/// Addresses in the fixture, and the paths on the fake platforms that replace them.
const ADDRESSES: [(&str, &str); 7] = [
    ("https://dify.example/v1", "/v1"),
    ("https://api.coze.com", ""),
    ("https://n8n.example/webhook/5", "/webhook/5"),
    ("http://langflow.example:7860", ""),
    ("http://deerflow.example:2026", ""),
    ("http://weknora.example:8080/api/v1", "/api/v1"),
    ("https://api.openai.example/v1", "/openai/v1"),
];

#[rstest]
#[tokio::test]
async fn nine_migrated_pipelines_answer_two_turns(#[values(Sqlite, Postgres)] engine: Engine) {
    let directory = TempDirectory::new();
    let platforms = FakePlatforms::start().await;
    let addresses = ADDRESSES.map(|(from, path)| (from, format!("{}{path}", platforms.url)));
    let database = or_skip!(LangbotDatabase::create_at(engine, &directory, &addresses).await);
    // The service needs the platform secrets in its environment, and its address goes into the configuration. So
    // migrate twice.
    let report = migrate(&directory, &database.source, "http://127.0.0.1:9120").await;
    let hosts = platforms.url.trim_start_matches("http://");
    let mut secrets = variables(&report);
    let lists: Vec<_> = secrets
        .iter()
        .map(|(name, _)| (format!("{name}_HOSTS"), hosts.to_owned()))
        .collect();
    secrets.extend(lists);
    let service = connectors_with(&["--ids", "langbot"], &secrets).await;
    let local_agent = local_agent_under(SECRET).await;
    let report = migrate(&directory, &database.source, &service.url).await;
    let gateway = serve(&directory, &report, &platforms, &local_agent).await;

    let mut wrong = Vec::new();
    for turn in ["hello", "again"] {
        for pipeline in pipelines() {
            let name = pipeline["name"].as_str().unwrap();
            let answer = ask(&gateway, &pipeline["uuid"], &format!("{turn} {name}")).await;
            let is_answered = answer.contains(&format!("heard {turn} {name}"));
            let is_same_conversation = !answer.contains("a new conversation");
            if !is_answered
                || is_same_conversation != (turn == "again" || sends_conversation_id(name))
            {
                wrong.push(format!("{name}: {answer}"));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

/// True if the first turn already names a conversation: the caller's, or one created before the message.
fn sends_conversation_id(pipeline: &str) -> bool {
    matches!(pipeline, "n8n" | "Langflow" | "DeerFlow" | "WeKnora")
}

/// Writes the configuration anew and returns the report.
async fn migrate(directory: &TempDirectory, source: &str, connectors: &str) -> Value {
    let _ = std::fs::remove_file(directory.file("runnel.toml"));
    let arguments = [
        "migrate-config",
        source,
        "--connectors",
        connectors,
        "--local-agent",
        "runnel",
        "--write",
        "runnel.toml",
        "--json",
    ];
    let printed = runnel(directory, &arguments, &[]).await.exited(0);
    printed.json()
}

/// All variables of the report, with values.
fn variables(report: &Value) -> Vec<(String, String)> {
    let named = report["variables"].as_array().unwrap().iter();
    let named = named.map(|one| one["name"].as_str().unwrap().to_owned());
    named
        .map(|name| {
            let value = match name.as_str() {
                "RUNNEL_MASTER_KEY" => MASTER_KEY,
                name if name.ends_with("_RUNNER_SECRET") => SECRET,
                _ => "a-key",
            };
            (name, value.to_owned())
        })
        .collect()
}

/// Starts the gateway on the written configuration, with free ports for the fixed ones.
async fn serve(
    directory: &TempDirectory,
    report: &Value,
    platforms: &FakePlatforms,
    local_agent: &ChildServer,
) -> (Client, ChildServer) {
    let written = std::fs::read_to_string(directory.file("runnel.toml")).unwrap();
    let address = local_agent.url.strip_prefix("http://").unwrap();
    let mut written = written.replace(LOCAL_AGENT, address);
    for (line, path) in FIXED {
        assert!(written.contains(line), "{line}: {written}");
        let base = format!("{line}base-url = \"{}{path}\"\n", platforms.url);
        written = written.replace(line, &base);
    }
    directory.write("runnel.toml", &written);
    let mut variables = variables(report);
    let database = format!("sqlite://{}", directory.file("runnel.db").display());
    variables.push(("RUNNEL__DATABASE__URL".to_owned(), database));
    variables.push((
        "RUNNEL__SERVER__LISTEN".to_owned(),
        "127.0.0.1:0".to_owned(),
    ));
    let checked = runnel(directory, &["check-config"], &variables).await;
    assert_eq!(
        checked.stdout, "the configuration is valid\n",
        "{checked:?}"
    );
    let made = [
        "token", "create", "--role", "client", "--name", "test", "--json",
    ];
    let made = runnel(directory, &made, &variables).await;
    let made: Value = serde_json::from_str(&made.stdout).unwrap_or_else(|_| panic!("{made:?}"));
    let mut command = Command::new(programs::runnel());
    command
        .arg("serve")
        .current_dir(directory.file(""))
        .envs(variables);
    let gateway = ChildServer::spawn(&mut command).await.unwrap();
    (
        Client::new(&gateway.url, made["key"].as_str().unwrap()),
        gateway,
    )
}

/// Posts a message to a pipeline, in its one conversation. Returns the text of the answer.
async fn ask((client, _): &(Client, ChildServer), pipeline: &Value, text: &str) -> String {
    let query = json!({
        "query_id": text, "launcher_type": "person", "launcher_id": pipeline, "pipeline_uuid": pipeline,
        "message_chain": [{"type": "Plain", "text": text}],
    });
    let posted = client.request(Method::POST, "/v1/adapters/pipeline/queries");
    let posted = send(posted.json(&query)).await.unwrap();
    assert_eq!(posted.status, 202, "{text}: {}", posted.body);
    let run = client.finished(&posted.run_id()).await;
    match run["status"].as_str() {
        Some("completed") => run["output"].to_string(),
        _ => run.to_string(),
    }
}
