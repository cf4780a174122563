//! The playground: printed commands work, and its data persists.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::response::IntoResponse as _;
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::support::client::message;
use crate::support::playground::Playground;
use crate::support::programs::runnel;
use crate::support::script::sse;
use crate::support::terminal::PseudoTerminal;
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::support::{CommandOutput, OwnStage, TempDirectory, run};

const KEY: &str = "sk-a-key-that-nobody-prints";
/// First words of the document about Runnel.
const RUNNEL: &str = "Runnel is a gateway for agent runs over plain HTTP";
/// The script's answer from it.
const NOTES: &str = "My notes say:\n\nRunnel is a gateway for agent runs over plain HTTP";

/// A playground with its data in `runnel-data` of a new directory.
async fn start() -> (Playground, TempDirectory) {
    let directory = TempDirectory::new();
    let playground = Playground::start(&directory.file("runnel-data")).await;
    (playground, directory)
}

/// The same with the echo runner.
pub(crate) async fn start_echoing() -> (Playground, TempDirectory) {
    let directory = TempDirectory::new();
    let playground = Playground::start_echoing(&directory.file("runnel-data")).await;
    (playground, directory)
}

pub(crate) fn sending(here: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(runnel());
    command
        .arg("send")
        .args(arguments)
        .current_dir(here)
        .env_remove("RUNNEL_URL")
        .env_remove("RUNNEL_API_KEY");
    command
}

async fn send(here: &Path, arguments: &[&str]) -> CommandOutput {
    run(&mut sending(here, arguments)).await
}

/// Sends `input` through standard input, as a program does.
async fn pipe(here: &Path, input: &str) -> CommandOutput {
    let mut command = sending(here, &[]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    let output = crate::support::within("send to end", child.wait_with_output()).await;
    let output = output.unwrap();
    CommandOutput {
        status: output.status,
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn assert_sent(printed: &CommandOutput, text: &str) {
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    assert_eq!(printed.stdout, format!("{text}\n"));
    assert!(printed.stderr.starts_with("[run "), "{printed:?}");
    assert!(printed.stderr.contains(" completed in "), "{printed:?}");
    assert!(printed.stderr.ends_with(" s]\n"), "{printed:?}");
}

#[tokio::test]
async fn configured_connectors_serve_their_conversations() {
    let directory = TempDirectory::new();
    let platform = Upstream::start().await;
    platform.reply(UpstreamReply::Events(vec![
        r#"data: {"event": "message", "task_id": "t", "conversation_id": "d-1", "answer": "from Dify"}"#.to_owned(),
        r#"data: {"event": "message_end", "task_id": "t", "conversation_id": "d-1", "metadata": {}}"#.to_owned(),
    ]));
    let file = directory.file("helpdesk.toml");
    let agent = format!(
        "runner_id = \"dify-agent\"\n[config]\nbase-url = \"{}/v1\"\napi-key = \"env:CONNECTOR_KEY\"\n",
        platform.url
    );
    std::fs::write(&file, agent).unwrap();
    let address = platform.url.trim_start_matches("http://");
    let data = directory.file("runnel-data");
    let arguments = ["--connectors", "helpdesk.toml", "--allow", address];
    let variables = [("CONNECTOR_KEY", KEY)];
    let playground = Playground::start_with(&data, &arguments, &variables).await;
    let here = data.parent().unwrap();
    let printed = send(here, &["--conversation", "helpdesk", "Hi"]).await;
    assert_sent(&printed, "from Dify");
    let key = platform.requests()[0].headers["authorization"].clone();
    assert_eq!(key, format!("Bearer {KEY}"));
    // Other conversations keep the playground's agent.
    send(here, &["Hello"]).await.exited(0);
    assert_eq!(platform.requests().len(), 1);
    playground.stop().await;
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Runs of a conversation, oldest first.
async fn runs_of(playground: &Playground, conversation: &str) -> Vec<String> {
    let path = format!("/v1/runs?conversation_id={conversation}");
    let runs = playground.client().get(&path).await.body;
    let runs = runs["items"].as_array().unwrap().iter().rev();
    runs.map(|run| run["run_id"].as_str().unwrap().to_owned())
        .collect()
}

/// Calls of a run in order.
async fn called(playground: &Playground, run_id: &str) -> Vec<String> {
    let path = format!("/v1/runs/{run_id}/audit");
    let audit = playground.client().get(&path).await.body;
    let entries = audit["items"].as_array().unwrap().iter();
    let allowed = entries.filter(|entry| entry["decision"] == "allow");
    allowed
        .map(|entry| format!("{} {}", entry["action"], entry["resource"]))
        .collect()
}

#[tokio::test]
async fn printed_curl_command_works() {
    let (playground, _directory) = start().await;

    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(playground.try_command())
        .env("NO_PROXY", "*");
    let printed = run(&mut shell).await;

    assert!(printed.status.success(), "{printed:?}");
    let mut lines = printed.stdout.lines();
    assert!(lines.next().unwrap().starts_with(": run "), "{printed:?}");
    let data = lines.filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let types: Vec<_> = events.iter().map(|event| &event["type"]).collect();
    assert!(types.len() > 5, "{types:?}");
    let (ending, deltas) = (&types[types.len() - 2..], &types[..types.len() - 2]);
    assert_eq!(ending, ["message.completed", "run.completed"]);
    assert!(
        deltas.iter().all(|kind| **kind == "message.delta"),
        "{types:?}"
    );
    let content = &events[events.len() - 2]["data"]["message"]["content"];
    assert!(content.as_str().unwrap().starts_with(NOTES), "{content}");
}

#[tokio::test]
async fn greeting_lists_the_served_components() {
    let (playground, _directory) = start().await;
    let lines: Vec<_> = playground.greeting.lines().take(12).collect();
    let expected = [
        format!("runnel {}  {}", env!("CARGO_PKG_VERSION"), playground.url),
        format!("console  {}/console/#key={}", playground.url, playground.key),
        format!("docs     {}/docs", playground.url),
        format!("key      {}", playground.key),
        format!(
            "env      export RUNNEL_URL={} RUNNEL_API_KEY={}",
            playground.url, playground.key
        ),
        "settings ./runnel-data/dev.toml".to_owned(),
        "agent    hello → plugin:runnel/local-agent/default".to_owned(),
        "model    scripted, by ./runnel-data/script.toml; set OPENAI_API_KEY or OPENAI_BASE_URL for a real one"
            .to_owned(),
        "tools    current_time, post_note, by MCP".to_owned(),
        "kb       runnel, 8 passages".to_owned(),
        "send     runnel send \"What is Runnel?\"".to_owned(),
        "plan     runnel send --conversation planner \"Put a note about Runnel on the board\""
            .to_owned(),
    ];
    assert_eq!(lines, expected);

    let runners = playground.client().get("/v1/runners").await.body;
    let runners = runners["items"].as_array().unwrap().iter();
    let mut ids: Vec<_> = runners
        .map(|runner| runner["id"].as_str().unwrap())
        .collect();
    ids.sort_unstable();
    assert_eq!(
        ids,
        [
            "plugin:runnel/echo/default",
            "plugin:runnel/local-agent/default",
            "plugin:runnel/protocol-agent/default"
        ]
    );
}

#[tokio::test]
async fn first_conversation_uses_knowledge_tool_and_memory() {
    let (playground, directory) = start().await;
    let here = directory.file("");

    let printed = send(&here, &["What is Runnel?"]).await.exited(0);
    assert!(printed.stdout.starts_with(NOTES), "{printed:?}");

    let printed = send(&here, &["And what time is it in Tokyo?"]).await;
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    let answer = printed
        .stdout
        .strip_prefix("Let me look at the clock.\n\nIt is ");
    let time = answer.unwrap().strip_suffix(".\n").unwrap();
    assert!(time.ends_with("(UTC+09:00)"), "{time}");
    let mut remarks = printed.stderr.lines();
    let call = format!("* current_time {{\"utc_offset\":9}} ... {time}");
    assert_eq!(remarks.next(), Some(call.as_str()));
    assert!(remarks.next().unwrap().starts_with("[run "), "{printed:?}");

    let printed = send(&here, &["What did I ask you first?"]).await;
    let expected = "You began with: \"What is Runnel?\" \
        The message before this one was: \"And what time is it in Tokyo?\"";
    assert_sent(&printed, expected);

    let runs = runs_of(&playground, "dev").await;
    let [first, second, third] = runs.as_slice() else {
        panic!("{runs:?}");
    };
    let ledger = playground.client().ledger(first).await;
    let events = ledger.events();
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "message.delta");
    assert!(deltas.count() > 5, "{events:?}");
    let called_first = called(&playground, first).await;
    let retrieved = |calls: &[String]| calls.iter().any(|call| call.contains("runnel"));
    assert!(retrieved(&called_first), "{called_first:?}");
    let called_second = called(&playground, second).await;
    let request = called_second
        .iter()
        .any(|call| call.contains("current_time"));
    assert!(request, "{called_second:?}");
    let third = playground.client().run(third).await;
    assert_eq!(third["output"]["content"], expected);
}

#[tokio::test]
async fn new_conversation_has_no_history_and_persists() {
    let (playground, directory) = start().await;
    let here = directory.file("");
    assert!(
        send(&here, &["Hello from the old one"])
            .await
            .status
            .success()
    );

    let printed = send(&here, &["--new", "What did I say first?"]).await;
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    assert!(!printed.stdout.contains("the old one"), "{printed:?}");
    let printed = send(&here, &["And what did I say first now?"]).await;
    let expected = "You began with: \"What did I say first?\"";
    assert!(printed.stdout.starts_with(expected), "{printed:?}");

    let file = directory.file("runnel-data/conversation");
    let conversation = std::fs::read_to_string(&file).unwrap();
    let conversation = conversation.trim();
    assert!(conversation.starts_with("dev-"), "{conversation}");
    assert_eq!(runs_of(&playground, conversation).await.len(), 2);
    assert_eq!(runs_of(&playground, "dev").await.len(), 1);

    let printed = send(&here, &["--conversation", "dev", "What was first?"]).await;
    assert_contains!(printed.stdout, "Hello from the old one");
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), conversation);
    let printed = send(&here, &["--conversation", "dev", "--new", "x"]).await;
    assert_eq!(printed.status.code(), Some(2), "{printed:?}");
}

#[tokio::test]
async fn piped_input_is_one_message() {
    let (playground, directory) = start_echoing().await;
    let here = directory.file("");
    assert_sent(&pipe(&here, "two\nlines\n").await, "two\nlines");
    assert_eq!(runs_of(&playground, "dev").await.len(), 1);

    let printed = pipe(&here, " \n").await.exited(1);
    assert!(printed.stderr.contains("nothing to send"), "{printed:?}");
    let printed = pipe(&here, &"x".repeat((1 << 20) + 1)).await.exited(1);
    assert!(printed.stderr.contains("more than 1 MiB"), "{printed:?}");
    assert_eq!(runs_of(&playground, "dev").await.len(), 1);
}

#[tokio::test]
async fn send_on_a_terminal_is_a_chat() {
    let (playground, directory) = start().await;
    let mut terminal = PseudoTerminal::start(&mut sending(&directory.file(""), &[]), 60);
    terminal.say("", "> ", 1).await;
    terminal.say("What is Runnel?\n", "completed in", 1).await;
    terminal
        .say("What time is it in Tokyo?\n", "completed in", 2)
        .await;
    terminal.say("/new\n", "conversation dev-", 1).await;
    terminal
        .say("What did I say first?\n", "completed in", 3)
        .await;

    let screen = terminal.screen();
    assert_starts_with!(
        screen,
        "conversation dev; /help lists the commands, Ctrl-D ends\r\n"
    );
    assert!(screen.contains('⠙'), "nothing turns: {screen}");
    // The text, the call on a separate line, and the text again. No line is longer than the terminal.
    assert!(screen.contains("Let me look at the clock.\r\n"), "{screen}");
    let call = "\u{1b}[2m⚙ current_time {\"utc_offset\":9} … ";
    let lines: Vec<_> = screen.split("\r\n").collect();
    let index = lines.iter().position(|line| line.contains(call)).unwrap();
    let (_, shown) = lines[index].rsplit_once("\u{1b}[2m").unwrap();
    let shown = shown.strip_suffix("\u{1b}[0m").unwrap();
    assert!(
        shown.chars().count() <= 60 && shown.ends_with('…'),
        "{shown}"
    );
    assert!(lines[index + 1].contains("It is "), "{screen}");
    assert!(!screen.contains("You began with"), "{screen}");

    assert_eq!(terminal.end().await.code(), Some(0));
    assert_eq!(runs_of(&playground, "dev").await.len(), 2);
}

#[tokio::test]
async fn escapes_terminal_control_sequences_of_runners() {
    let (_playground, directory) = start_echoing().await;
    let text = "a\u{1b}[2Jb\u{7}";
    let mut terminal = PseudoTerminal::start(&mut sending(&directory.file(""), &[text]), 80);
    terminal.say("", "completed in", 1).await;
    let screen = terminal.screen();
    assert!(
        screen.contains("a[2Jb") && !screen.contains(text),
        "{screen:?}"
    );
}

#[tokio::test]
async fn json_events_hold_no_raw_control_characters() {
    let (_playground, directory) = start_echoing().await;
    let printed = run(&mut sending(
        &directory.file(""),
        &["--json", "a\u{9b}2Jb\u{7f}"],
    ))
    .await
    .exited(0);
    assert!(printed.stdout.contains("a\\u009b2Jb\\u007f"), "{printed:?}");
    assert_lacks!(printed.stdout, ['\u{7f}', '\u{9b}']);
}

/// Response chunks of OpenAI's API.
fn chunks(texts: &[&str]) -> Vec<String> {
    let chunk = |delta: Value, reason: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
        let chunk = json!({"id": "c-1", "object": "chat.completion.chunk", "choices": [choice]});
        format!("data: {chunk}")
    };
    let mut chunks: Vec<_> = texts
        .iter()
        .map(|text| chunk(json!({"role": "assistant", "content": text}), Value::Null))
        .collect();
    chunks.push(chunk(json!({}), json!("stop")));
    chunks.push("data: [DONE]".to_owned());
    chunks
}

#[tokio::test]
async fn uses_model_and_key_from_environment() {
    let upstream = Upstream::start().await;
    let listed = json!({"data": [{"id": "acme/small-1"}, {"id": "acme/large-1"}]});
    upstream.reply(UpstreamReply::Json(200, listed));
    let directory = TempDirectory::new();
    let data = directory.file("runnel-data");
    let base_url = format!("{}/v1", upstream.url);
    let variables = [
        ("OPENAI_API_KEY", KEY),
        ("OPENAI_BASE_URL", base_url.as_str()),
    ];
    let playground = Playground::start_with(&data, &[], &variables).await;
    let expected = format!("acme/small-1 at {base_url}, by OPENAI_…");
    assert_eq!(playground.line("model "), Some(expected.as_str()));

    upstream.reply(UpstreamReply::Events(chunks(&["Hello ", "there."])));
    assert_sent(
        &send(&directory.file(""), &["Is Runnel a gateway?"]).await,
        "Hello there.",
    );
    let requests = upstream.requests();
    let paths: Vec<_> = requests
        .iter()
        .map(|request| request.path.as_str())
        .collect();
    assert_eq!(paths, ["/v1/models", "/v1/chat/completions"]);
    for request in &requests {
        assert_eq!(request.headers["authorization"], format!("Bearer {KEY}"));
    }
    let body = &requests[1].body;
    assert_eq!(body["model"], "acme/small-1");
    assert_eq!(body["stream"], true);
    assert_eq!(body["tools"][0]["function"]["name"], "current_time");
    let messages = body["messages"].to_string();
    assert_contains!(messages, "Is Runnel a gateway?", RUNNEL);

    assert!(!playground.greeting.contains(KEY));
    for file in ["dev.toml", "dev.json"] {
        let text = std::fs::read_to_string(data.join(file)).unwrap();
        assert!(!text.contains(KEY), "{file}");
    }
    let log = std::fs::read_to_string(data.with_extension("log")).unwrap();
    assert!(!log.contains(KEY), "{log}");
    playground.stop().await;

    // The next start has no model, and the conversation continues.
    let playground = Playground::start(&data).await;
    let printed = send(&directory.file(""), &["What was first?"]).await;
    assert_contains!(printed.stdout, "Is Runnel a gateway?");
    playground.stop().await;
}

#[tokio::test]
async fn unusable_model_fails_start_without_printing_secret() {
    let directory = TempDirectory::new();
    let check = async |variables: &[(&str, &str)], expected: &str| {
        let mut command = Command::new(runnel());
        command
            .args(["dev", "--listen", "127.0.0.1:0"])
            .env_remove("OPENAI_API_KEY")
            .env_remove("OPENAI_MODEL")
            .envs(variables.iter().copied())
            .current_dir(directory.file(""));
        let printed = run(&mut command).await.exited(1);
        assert!(printed.stderr.contains(expected), "{printed:?}");
        assert!(!printed.stderr.contains(KEY), "{printed:?}");
    };
    let secret = format!("http://me:{KEY}@127.0.0.1/v1");
    let credentials = "OPENAI_BASE_URL holds a user name or a password";
    check(&[("OPENAI_BASE_URL", &secret)], credentials).await;
    let upstream = Upstream::start().await;
    upstream.reply(UpstreamReply::Json(401, json!({"error": {"message": KEY}})));
    let variables = [
        ("OPENAI_BASE_URL", upstream.url.as_str()),
        ("OPENAI_API_KEY", KEY),
    ];
    check(&variables, "OPENAI_MODEL is not set").await;
}

#[tokio::test]
async fn generated_settings_are_a_valid_configuration() {
    let (_playground, directory) = start().await;
    let mut command = Command::new(runnel());
    command
        .args(["check-config", "--config", "runnel-data/dev.toml"])
        .current_dir(directory.file(""));
    run(&mut command).await.exited(0);
}

#[tokio::test]
async fn send_finds_playground_in_parent_directories() {
    let (_playground, directory) = start_echoing().await;
    let below = directory.file("some/where/below");
    std::fs::create_dir_all(&below).unwrap();

    let printed = send(&directory.file(""), &["hello big world"]).await;
    assert_sent(&printed, "hello big world");
    assert_sent(&send(&below, &["and again"]).await, "and again");
}

#[tokio::test]
async fn send_uses_given_url_and_key() {
    let (playground, _directory) = start_echoing().await;
    let root = Path::new("/");
    let arguments = ["hello", "--url", &playground.url, "--key", &playground.key];
    assert_sent(&send(root, &arguments).await, "hello");
    let printed = send(root, &[&arguments[..], &["--new"]].concat()).await;
    assert_eq!(printed.stdout, "hello\n", "{printed:?}");
    assert_starts_with!(printed.stderr, "to continue it: --conversation dev-");

    let mut command = Command::new(runnel());
    command
        .args(["send", "by environment", "--conversation", "c-9"])
        .current_dir(root)
        .env("RUNNEL_URL", &playground.url)
        .env("RUNNEL_API_KEY", &playground.key);
    assert_sent(&run(&mut command).await, "by environment");
    assert_eq!(runs_of(&playground, "c-9").await.len(), 1);
}

#[tokio::test]
async fn send_prints_json_events() {
    let (_playground, directory) = start_echoing().await;
    let printed = send(&directory.file(""), &["hello big world", "--json"]).await;
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap()["type"].clone();
    let types: Vec<_> = printed.stdout.lines().map(parse).collect();
    let expected = json!([
        "message.delta",
        "message.delta",
        "message.delta",
        "state.updated",
        "message.completed",
        "run.completed",
    ]);
    assert_eq!(Value::from(types), expected);
}

#[tokio::test]
async fn send_without_gateway_explains_the_remedy() {
    let printed = send(Path::new("/"), &["hello"]).await.exited(2);
    assert_eq!(printed.stdout, "");
    assert!(printed.stderr.contains("runnel dev"), "{printed:?}");
}

/// A gateway that is busy for the first events. Returns its URL and the number of posted events.
async fn busy_gateway(busy: usize, status: u16) -> (String, Arc<AtomicUsize>) {
    let posts = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&posts);
    let answer = move || {
        let is_busy = counter.fetch_add(1, Ordering::SeqCst) < busy;
        async move {
            if is_busy {
                let status = StatusCode::from_u16(status).unwrap();
                let error = json!({"code": "rate_limited", "message": "too many events", "retryable": true});
                return (
                    status,
                    [("retry-after", "1")],
                    Json(json!({ "error": error })),
                )
                    .into_response();
            }
            let event = json!({"run_id": "r-1", "type": "run.completed", "data": {"finish_reason": "stop",
                "message": {"role": "assistant", "content": "at last"}}});
            let headers = [
                ("content-type", "text/event-stream"),
                ("runnel-run-id", "r-1"),
            ];
            let body = format!("event: run.completed\nid: 1\ndata: {event}\n\n");
            (headers, body).into_response()
        }
    };
    let router = Router::new().route("/v1/events", post(answer));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, posts)
}

#[tokio::test]
async fn send_waits_for_a_busy_gateway() {
    for status in [429, 503] {
        let (url, posts) = busy_gateway(1, status).await;
        let printed = send(Path::new("/"), &["hello", "--url", &url, "--key", "k"]).await;
        assert_eq!(printed.status.code(), Some(0), "{printed:?}");
        assert_contains!(printed.stderr, "too many events", "trying again in 1 s");
        assert_eq!(posts.load(Ordering::SeqCst), 2);

        let (url, posts) = busy_gateway(1, status).await;
        let arguments = ["hello", "--no-wait", "--url", &url, "--key", "k"];
        let printed = send(Path::new("/"), &arguments).await.exited(1);
        let expected = format!("too many events (HTTP {status}); try again in 1 s");
        assert!(printed.stderr.contains(&expected), "{printed:?}");
        assert_eq!(posts.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn send_fails_with_failed_run_or_no_gateway() {
    let stage = OwnStage::new().await;
    stage
        .runner
        .answer_all(|run| sse([run.delta(1, "hm"), run.failed(2)].concat()));
    let OwnStage { stage, mut gateway } = stage;
    let client = &stage.client;
    let arguments = ["hello", "--url", &client.url, "--key", &client.key];
    let printed = send(Path::new("/"), &arguments).await.exited(1);
    assert_eq!(printed.stdout, "hm\n");
    assert!(printed.stderr.contains("boom: it broke"), "{printed:?}");

    gateway.kill().await;
    let printed = send(Path::new("/"), &arguments).await.exited(1);
    assert_contains!(printed.stderr, "is the gateway running?");
    assert!(!printed.stderr.contains(&client.key), "{printed:?}");
}

#[tokio::test]
async fn restart_keeps_all_data() {
    const DOCUMENTS: &str = "/v1/knowledge-bases/runnel/documents";
    let (first, directory) = start_echoing().await;
    let data = directory.file("runnel-data");
    let run_id = first.client().post(&message("m-1")).await.run_id();
    let before = first.client().finished(&run_id).await;
    let documents = first.client().get(DOCUMENTS).await.body;
    assert_eq!(documents["items"][0]["document_id"], "runnel.md");
    let key = first.key.clone();
    first.stop().await;

    let second = Playground::start(&data).await;
    assert_eq!(second.key, key);
    assert_eq!(second.client().run(&run_id).await, before);
    let replay = second.client().post(&message("m-1")).await;
    assert_eq!(replay.run_id(), run_id);
    assert!(replay.is_replay());
    // Unchanged documents are not indexed again.
    assert_eq!(second.client().get(DOCUMENTS).await.body, documents);

    // The echo runner has a new port and a new secret, and the conversation continues.
    let mut event = message("m-2");
    event["input"]["text"] = json!("once more");
    let run_id = second.client().post(&event).await.run_id();
    let run = second.client().finished(&run_id).await;
    assert_eq!(run["status"], "completed", "{run}");
    let events = second.client().ledger(&run_id).await.events();
    let count = events.iter().find(|event| event["type"] == "state.updated");
    assert_eq!(count.unwrap()["data"]["value"], 2);

    let printed = send(&directory.file(""), &["found again"]).await;
    assert_sent(&printed, "found again");
}

#[tokio::test]
async fn data_files_are_readable_by_owner_only() {
    let (playground, directory) = start().await;
    let data = directory.file("runnel-data");
    assert!(
        send(&directory.file(""), &["--new", "hello"])
            .await
            .status
            .success()
    );
    assert_eq!(mode(&data), 0o700);
    for name in [
        "conversation",
        "dev.json",
        "dev.toml",
        "master.key",
        "script.toml",
    ] {
        assert_eq!(mode(&data.join(name)), 0o600, "{name}");
    }
    assert!(data.join("runnel.db").exists());
    let file: Value =
        serde_json::from_slice(&std::fs::read(data.join("dev.json")).unwrap()).unwrap();
    let expected = json!({"url": playground.url, "api_key": playground.key});
    assert_eq!(file, expected);
}
