//! Settings and output of `runnel dev`, and the same settings under `runnel serve`.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use uuid::Uuid;

use crate::dev::sending;
use crate::support::client::{Client, message};
use crate::support::gateway::unused_loopback_address;
use crate::support::playground::Playground;
use crate::support::programs::runnel;
use crate::support::script::sse;
use crate::support::terminal::PseudoTerminal;
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::support::{CommandOutput, OwnStage, TempDirectory, run, until, within};

async fn send(directory: &TempDirectory, arguments: &[&str]) -> CommandOutput {
    let printed = run(&mut sending(&directory.file(""), arguments)).await;
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    printed
}

async fn names(client: &Client, path: &str, key: &str) -> Vec<String> {
    let page = client.get(path).await.body;
    let items = page["items"].as_array().unwrap().iter();
    items
        .map(|item| item[key].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn overrides_and_variables_stand_above_generated_settings() {
    let directory = TempDirectory::new();
    directory.write(
        "runnel-dev.toml",
        "[[agents]]\nname = \"hello\"\nenabled = false\n\
         [[agents]]\nname = \"mine\"\nevent_types = [\"message.received\"]\nscope = { kind = \"global\" }\n\
         runner_id = \"plugin:runnel/echo/default\"\n\
         [[knowledge_bases]]\nkb_id = \"mine\"\n",
    );
    let data = directory.file("runnel-data");
    let variables = [("RUNNEL__EGRESS__ALLOW", "127.0.0.1:1,10.0.0.1:2")];
    let playground = Playground::start_with(&data, &[], &variables).await;
    let settings = playground.line("settings ");
    assert_eq!(settings, Some("./runnel-dev.toml, ./runnel-data/dev.toml"));
    assert_eq!(
        playground.line("agent "),
        Some("mine → plugin:runnel/echo/default")
    );
    assert_eq!(send(&directory, &["heard"]).await.stdout, "heard\n");
    let endpoint = |port: u16| json!({"name": format!("e{port}"), "base_url": format!("http://127.0.0.1:{port}")});
    for (port, status) in [(1, 201), (3, 400)] {
        let made = playground
            .client()
            .create("/v1/runner-endpoints", &endpoint(port))
            .await;
        assert_eq!(made.status, status, "{}", made.body);
    }
    playground.stop().await;

    let variables = [("RUNNEL__SERVER__NONSENSE", "1")];
    let printed = run(Command::new(runnel())
        .args(["dev", "--listen", "127.0.0.1:0"])
        .envs(variables)
        .current_dir(directory.file("")))
    .await
    .exited(1);
    assert!(printed.stderr.contains("server.nonsense"), "{printed:?}");
}

#[tokio::test]
async fn local_settings_join_the_playground() {
    let upstream = Upstream::start().await;
    let chunk = json!({"id": "c", "object": "chat.completion.chunk", "choices": [
        {"index": 0, "delta": {"role": "assistant", "content": "From the file."}, "finish_reason": "stop"}]});
    let reply = vec![format!("data: {chunk}"), "data: [DONE]".to_owned()];
    upstream.reply(UpstreamReply::Events(reply));
    let directory = TempDirectory::new();
    let settings = format!(
        "[server]\nlisten = \"nowhere\"\n[database]\nurl = \"postgres://nowhere/x\"\n\
         [egress]\nallow = [\"{place}\"]\n\
         [[model_providers]]\nname = \"p\"\nkind = \"openai\"\nbase_url = \"http://{place}/v1\"\n\
         [[models]]\nmodel_id = \"vectors\"\nprovider = \"p\"\noperations = [\"invoke\"]\n\
         [[models]]\nmodel_id = \"talker\"\nprovider = \"p\"\nupstream_model = \"talker-7\"\n\
         [[tools]]\ntool_name = \"get_current_time\"\n\
         [[knowledge_bases]]\nkb_id = \"mine\"\n\
         [[agents]]\nname = \"mine\"\nevent_types = [\"message.received\"]\n\
         runner_id = \"plugin:runnel/echo/default\"\n\
         scope = {{ kind = \"conversation\", conversation_id = \"mine\" }}\n",
        place = upstream.url.trim_start_matches("http://")
    );
    directory.write("runnel.toml", &settings);
    let data = directory.file("runnel-data");
    let playground = Playground::start(&data).await;
    let lines = ["model ", "settings "].map(|word| playground.line(word).unwrap());
    assert_eq!(
        lines,
        [
            "talker of ./runnel.toml",
            "./runnel.toml, ./runnel-data/dev.toml"
        ]
    );
    assert_eq!(
        playground.line("note "),
        Some("[server] of ./runnel.toml is not used by dev: listen; put it into ./runnel-dev.toml")
    );
    assert_eq!(
        send(&directory, &["hello"]).await.stdout,
        "From the file.\n"
    );
    assert_eq!(upstream.requests()[0].body["model"], "talker-7");
    let mine = send(&directory, &["--conversation", "mine", "heard"]).await;
    assert_eq!(mine.stdout, "heard\n");
    let mut bases = names(&playground.client(), "/v1/knowledge-bases", "kb_id").await;
    bases.sort_unstable();
    assert_eq!(bases, ["mine", "runnel"]);
    playground.stop().await;

    for (option, origin) in [
        ("--script", "scripted, by"),
        ("--no-config", "scripted, by"),
    ] {
        let playground = Playground::start_with(&data, &[option], &[]).await;
        let model = playground.line("model ").unwrap();
        assert!(model.starts_with(origin), "{option}: {model}");
        playground.stop().await;
    }
}

#[tokio::test]
async fn preserves_settings_changed_by_hand() {
    let directory = TempDirectory::new();
    let data = directory.file("runnel-data");
    let playground = Playground::start(&data).await;
    assert_eq!(playground.line("note "), None);
    playground.stop().await;
    let file = data.join("dev.toml");
    let changed = std::fs::read_to_string(&file)
        .unwrap()
        .replace("\"hello\"", "\"mine\"");
    std::fs::write(&file, &changed).unwrap();

    let playground = Playground::start(&data).await;
    let note = playground.line("note ").unwrap();
    assert!(note.starts_with("dev.toml was changed by hand"), "{note}");
    let stored = std::fs::read_to_string(data.join("dev.toml.bak")).unwrap();
    assert_eq!(stored, changed);
    playground.stop().await;

    let playground = Playground::start(&data).await;
    assert_eq!(playground.line("note "), None);
    playground.stop().await;
}

#[tokio::test]
async fn copied_settings_serve_the_same_agents() {
    let directory = TempDirectory::new();
    let data = directory.file("runnel-data");
    let playground = Playground::start(&data).await;
    let key = playground.key.clone();
    playground.stop().await;
    let elsewhere = TempDirectory::new();
    let copy = elsewhere.file("mine.toml");
    std::fs::copy(data.join("dev.toml"), &copy).unwrap();
    let head = std::fs::read_to_string(&copy).unwrap();
    let (head, _) = head.split_once("\n\n").unwrap();
    assert_contains!(head, "it uses the database of this playground");
    run(Command::new(runnel())
        .args(["check-config", "--probe", "--config"])
        .arg(&copy)
        .current_dir(elsewhere.file("")))
    .await
    .exited(0);

    let mut serving = Command::new(runnel())
        .args(["serve", "--config"])
        .arg(&copy)
        .current_dir(elsewhere.file(""))
        .env("RUNNEL__SERVER__LISTEN", unused_loopback_address())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(serving.stdout.take().unwrap()).lines();
    let line = within("the gateway to listen", stdout.next_line()).await;
    let url = line.unwrap().unwrap().replace("listening ", "");
    let arguments = ["--url", &url, "--key", &key];
    let printed = send(&elsewhere, &[&["What is Runnel?"], &arguments[..]].concat()).await;
    assert!(printed.stdout.starts_with("My notes say:"), "{printed:?}");
    let printed = send(
        &elsewhere,
        &[&["What time is it in Tokyo?"], &arguments[..]].concat(),
    )
    .await;
    assert!(printed.stdout.contains("(UTC+09:00)"), "{printed:?}");
    serving.kill().await.unwrap();
}

#[tokio::test]
async fn offers_model_server_at_local_port() {
    let upstream = Upstream::start().await;
    upstream.reply(UpstreamReply::Json(200, json!({"data": [{"id": "llama"}]})));
    let directory = TempDirectory::new();
    let port = upstream.url.rsplit(':').next().unwrap();
    let arguments = ["--model-ports", port];
    let playground = Playground::start_with(&directory.file("runnel-data"), &arguments, &[]).await;
    let expected = format!(
        "llama at {0}/v1: OPENAI_BASE_URL={0}/v1 runnel dev takes it",
        upstream.url
    );
    assert_eq!(playground.line("found "), Some(expected.as_str()));
    playground.stop().await;
}

#[tokio::test]
async fn prints_one_line_for_each_run() {
    let directory = TempDirectory::new();
    let playground = Playground::start_echoing(&directory.file("runnel-data")).await;
    send(&directory, &["first"]).await;
    send(&directory, &["second\nline"]).await;
    playground.logged("\"second line\"").await;
    let log = playground.log();
    let lines: Vec<_> = log.lines().collect();
    assert_eq!(lines.len(), 2, "{log}");
    for (line, text) in lines.iter().zip(["first", "second line"]) {
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.len() == 8 && time.matches(':').count() == 2, "{line}");
        assert!(rest.starts_with("echo ✓ 0."), "{line}");
        assert!(rest.ends_with(&format!(" s \"{text}\"")), "{line}");
    }
    playground.stop().await;
}

#[tokio::test]
async fn quiet_playground_prints_no_line_per_run() {
    let directory = TempDirectory::new();
    let data = directory.file("runnel-data");
    let playground = Playground::start_with(&data, &["-q"], &[]).await;
    send(&directory, &["hello"]).await;
    let log = data.with_extension("log");
    playground.stop().await;
    assert_eq!(std::fs::read_to_string(log).unwrap(), "");
}

#[tokio::test]
async fn verbose_playground_prints_its_log() {
    let directory = TempDirectory::new();
    let data = directory.file("runnel-data");
    let playground = Playground::start_with(&data, &["-v"], &[]).await;
    let line = playground.logged("a signing key was made").await;
    assert!(line.contains(" INFO "), "{line}");
    playground.stop().await;
}

/// The signal of a closed terminal.
#[tokio::test]
async fn hangup_ends_playground_at_a_terminal_only() {
    let directory = TempDirectory::new();
    let playground = Playground::start(&directory.file("runnel-data")).await;
    playground.signal("HUP").await;
    playground.logged("SIGHUP changes nothing").await;
    playground.stop().await;

    let mut command = Command::new(runnel());
    command
        .args(["dev", "--script", "--listen", "127.0.0.1:0"])
        .current_dir(directory.file(""));
    let mut terminal = PseudoTerminal::start(&mut command, 80);
    terminal.say("", "runnel send", 1).await;
    terminal.hang_up();
    assert!(terminal.exited().await.success());
}

/// The log line about this run whose message has this text.
fn line_of(log: &str, run_id: &str, text: &str) -> Option<Value> {
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let mut lines = lines.filter(|line: &Value| {
        line["run.id"] == run_id && line["message"].as_str().unwrap_or_default().contains(text)
    });
    lines.next()
}

#[tokio::test]
async fn failed_runs_are_warnings_with_cause_and_endpoint() {
    let OwnStage { stage, gateway } = OwnStage::new().await;
    stage
        .runner
        .answer_all(|run| sse([run.delta(1, "hm"), run.failed(2)].concat()));
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    stage.client.finished(&run_id).await;
    let mut ended = None;
    until("the end to be logged", async || {
        ended = line_of(&gateway.log(), &run_id, " ended as ");
        ended.is_some()
    })
    .await;
    let ended = ended.unwrap();
    assert_eq!(ended["level"], "WARN");
    let found = ["endpoint.name", "code", "error", "status"].map(|key| &ended[key]);
    assert_eq!(found, ["stub", "boom", "it broke", "failed"]);
}

#[tokio::test]
async fn retries_are_logged_with_cause_and_endpoint() {
    let stage = OwnStage::with(|config| config.agents[0].retries = 1).await;
    let OwnStage { mut stage, gateway } = stage;
    stage.runner.stop().await;
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    stage.client.finished(&run_id).await;
    let retry = line_of(&gateway.log(), &run_id, "did not take run").unwrap();
    let found = ["endpoint.name", "attempt"].map(|key| &retry[key]);
    assert_eq!(found, [&json!("stub"), &json!(1)]);
    let error = retry["error"].as_str().unwrap();
    assert!(error.contains("the runner cannot be reached: "), "{error}");
}

#[tokio::test]
async fn log_names_what_starts_and_stops() {
    let OwnStage { stage, mut gateway } = OwnStage::new().await;
    gateway.stop().await;
    let log = gateway.log();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let start = lines.iter().find(|line| line["version"].is_string());
    let start = start.unwrap_or_else(|| panic!("{log}"));
    let expected = json!([env!("CARGO_PKG_VERSION"), stage.client.url, 1, 1, "INFO"]);
    let found = ["version", "address", "agents", "endpoints", "level"].map(|key| &start[key]);
    assert_eq!(json!(found), expected);
    assert!(start["database"].as_str().unwrap().starts_with("sqlite://"));
    assert_eq!(lines.last().unwrap()["message"], "stopped");
}

#[tokio::test]
async fn quiet_gateway_logs_no_information() {
    let directory = TempDirectory::new();
    let [first, second] = [Uuid::new_v4(), Uuid::new_v4()].map(Uuid::simple);
    directory.write("master.key", &format!("{first}{second}"));
    directory.write(
        "runnel.toml",
        "[server]\nlisten = \"127.0.0.1:0\"\n[auth]\nmaster_key = \"file:master.key\"\n",
    );
    let log = directory.file("log");
    let mut serving = Command::new(runnel())
        .args(["serve", "-q"])
        .current_dir(directory.file(""))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(serving.stdout.take().unwrap()).lines();
    let line = within("the gateway to listen", stdout.next_line()).await;
    assert!(line.unwrap().unwrap().starts_with("listening "));
    serving.kill().await.unwrap();
    assert_eq!(std::fs::read_to_string(log).unwrap(), "");
}

#[tokio::test]
async fn log_format_is_selectable() {
    let directory = TempDirectory::new();
    let [first, second] = [Uuid::new_v4(), Uuid::new_v4()].map(Uuid::simple);
    directory.write("master.key", &format!("{first}{second}"));
    let settings = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[auth]\nmaster_key = \"file:{}\"\n\
         [database]\nurl = \"sqlite://{}\"\n",
        directory.file("master.key").display(),
        directory.file("runnel.db").display()
    );
    directory.write("runnel.toml", &settings);
    for (format, starts_with_brace) in [("text", false), ("json", true)] {
        let mut serving = Command::new(runnel())
            .args(["serve", "--log-format", format])
            .current_dir(directory.file(""))
            .env("RUNNEL_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(serving.stderr.take().unwrap()).lines();
        let line = within("a line of the log", stderr.next_line()).await;
        let line = line.unwrap().unwrap();
        assert_eq!(line.starts_with('{'), starts_with_brace, "{line}");
        serving.kill().await.unwrap();
    }
}
