//! Commands for a running gateway: runs, agents, endpoints, interactions, conversations, backup.

use std::path::Path;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::dev::{sending, start_echoing};
use crate::interactions::{ask, asking_event, question, stage as asking_stage};
use crate::support::playground::Playground;
use crate::support::programs::runnel;
use crate::support::runner::StubRunner;
use crate::support::script::{Run, answer, sse};
use crate::support::{CommandOutput, OwnStage, Sqlite, Stage, TempDirectory, run};

async fn command(here: &Path, arguments: &[&str]) -> CommandOutput {
    let mut command = Command::new(runnel());
    let command = command.args(arguments).current_dir(here);
    run(command
        .env_remove("RUNNEL_URL")
        .env_remove("RUNNEL_API_KEY"))
    .await
}

/// Runs a command on a stage, with the administrator's key.
async fn on_stage(stage: &Stage, arguments: &[&str]) -> CommandOutput {
    let mut command = Command::new(runnel());
    command
        .args(arguments)
        .env("RUNNEL_URL", &stage.admin.url)
        .env("RUNNEL_API_KEY", &stage.admin.key);
    run(&mut command).await
}

#[track_caller]
fn assert_printed(printed: &CommandOutput, expected: &str) {
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    assert!(printed.stdout.contains(expected), "{expected}: {printed:?}");
}

fn document(printed: &CommandOutput) -> Value {
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    printed.json()
}

#[tokio::test]
async fn runs_are_listed_and_found_by_parts() {
    let (playground, directory) = start_echoing().await;
    let here = directory.file("");
    for words in [&["hello", "world"][..], &["second"]] {
        assert!(run(&mut sending(&here, words)).await.status.success());
    }
    let listed = document(&command(&here, &["runs", "list", "--json"]).await);
    let ids = listed["items"].as_array().unwrap().iter();
    let ids: Vec<_> = ids.map(|run| run["run_id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 2, "{listed}");
    let tail = |id: &str| id[id.len() - 8..].to_owned();
    let table = command(&here, &["runs", "list", "--agent", "echo"]).await;
    let rows: Vec<_> = table.stdout.lines().collect();
    assert!(rows[0].starts_with("id        status     age"), "{table:?}");
    assert!(
        rows[1].starts_with(&format!("{}  completed", tail(ids[0]))),
        "{table:?}"
    );
    assert_eq!(rows.len(), 3, "{table:?}");

    let shown = command(&here, &["runs", "show", &tail(ids[1])]).await;
    assert_printed(&shown, ids[1]);
    assert!(shown.stdout.ends_with("\nhello world\n"), "{shown:?}");
    let watched = command(&here, &["runs", "watch"]).await;
    assert_printed(&watched, "second\n");
    assert_starts_with!(watched.stderr, &format!("[run {} completed", ids[0]));
    let cancelled = command(&here, &["runs", "cancel", ids[0]]).await;
    assert_printed(&cancelled, "has ended: completed");

    let ambiguous = command(&here, &["runs", "show", "0"]).await;
    assert_eq!(ambiguous.status.code(), Some(1));
    assert_contains!(ambiguous.stderr, "2 runs match 0; give more");
    assert!(
        ids.iter().all(|id| ambiguous.stderr.contains(id)),
        "{ambiguous:?}"
    );
    playground.stop().await;
}

#[tokio::test]
async fn shows_events_grants_and_calls_of_a_run() {
    let (playground, directory) = start_echoing().await;
    let here = directory.file("");
    assert!(run(&mut sending(&here, &["hello"])).await.status.success());
    let plain = command(&here, &["runs", "show"]).await;
    let all = ["runs", "show", "--events", "--grants", "--audit"];
    let shown = command(&here, &all).await;
    for row in [
        "runner  message.completed",
        "state conversation  ",
        "run_get run  allow",
    ] {
        assert_printed(&shown, row);
        assert!(!plain.stdout.contains(row), "{row}: {plain:?}");
    }
    let run = document(&command(&here, &[&all[..], &["--json"]].concat()).await);
    let first = |list: &str| run[list][0].clone();
    assert_eq!(first("events")["sequence"], 1, "{run}");
    assert!(first("grants")["granted"].is_boolean(), "{run}");
    assert!(first("audit")["decision"].is_string(), "{run}");
    playground.stop().await;
}

#[tokio::test]
async fn conversations_are_listed_and_shown_in_order() {
    let (playground, directory) = start_echoing().await;
    let here = directory.file("");
    for text in ["first", "second"] {
        assert!(run(&mut sending(&here, &[text])).await.status.success());
    }
    let listed = command(&here, &["conversations", "list"]).await;
    let rows: Vec<_> = listed.stdout.lines().collect();
    assert!(rows[1].starts_with("dev"), "{listed:?}");
    assert!(rows[1].ends_with("second"), "{listed:?}");
    let shown = document(&command(&here, &["conversations", "show", "dev", "--json"]).await);
    let messages = shown["items"].as_array().unwrap().iter();
    let messages: Vec<_> = messages
        .map(|message| message["content"].as_str().unwrap())
        .collect();
    assert_eq!(messages, ["first", "first", "second", "second"]);
    let last = command(&here, &["conversations", "show", "dev", "--limit", "1"]).await;
    assert!(last.stdout.starts_with("assistant  "), "{last:?}");
    let none = command(&here, &["conversations", "show", "nowhere"]).await;
    assert_contains!(none.stderr, "no message in the conversation nowhere");
    playground.stop().await;
}

#[tokio::test]
async fn failed_run_is_retried_and_followed() {
    let stage = OwnStage::new().await;
    stage.runner.answer_all(|run| sse(run.failed(1)));
    let failed = on_stage(&stage, &["send", "hi"]).await.exited(1);
    let runs = document(&on_stage(&stage, &["runs", "list", "--json"]).await);
    let id = runs["items"][0]["run_id"].as_str().unwrap();
    assert_starts_with!(failed.stderr, &format!("[run {id} failed in "));
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let retried = on_stage(&stage, &["runs", "retry", id]).await.exited(0);
    assert_contains!(retried.stderr, "runs the event again");
    assert!(retried.stderr.contains(" completed"), "{retried:?}");
    let shown = on_stage(&stage, &["runs", "show"]).await;
    let key = runs["items"][0]["posted_by"].as_str().unwrap();
    for (name, value) in [("retry of", id), ("API key", key)] {
        let is_shown = |line: &str| line.starts_with(name) && line.ends_with(value);
        assert!(shown.stdout.lines().any(is_shown), "{name}: {shown:?}");
    }
}

#[tokio::test]
async fn retry_begins_after_named_result() {
    let runner = StubRunner::start_resumable(20).await;
    let stage = OwnStage::of(Sqlite, runner, |_| {}).await.unwrap();
    let log = r#"{"level":"info","text":"one step"}"#;
    stage
        .runner
        .answer_all(move |run| sse([run.result(1, "processor.log", log), run.failed(2)].concat()));
    on_stage(&stage, &["send", "hi"]).await.exited(1);
    let runs = document(&on_stage(&stage, &["runs", "list", "--json"]).await);
    let id = runs["items"][0]["run_id"].as_str().unwrap();
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let retried = on_stage(&stage, &["runs", "retry", id, "--from", "1"]).await;
    assert_contains!(
        retried.exited(0).stderr,
        "runs the event again after result 1"
    );
    let shown = on_stage(&stage, &["runs", "show"]).await;
    assert_contains!(shown.stdout, &format!("{id} after result 1"));
    let earlier = on_stage(&stage, &["runs", "show", id]).await;
    assert_contains!(earlier.stdout, "retried as");
}

#[tokio::test]
async fn run_shows_error_response_to_admins() {
    let stage = OwnStage::new().await;
    let trace = format!(
        "{{\"detail\": \"KeyError: 'FOO_TOKEN' in handler\"}}\n{}",
        "x".repeat(300)
    );
    for (head, content_type, message) in [
        (
            "500 Internal Server Error",
            "",
            "the runner answered HTTP 500",
        ),
        (
            "200 OK",
            "content-type: text/html\r\n",
            "not with an event stream",
        ),
    ] {
        let body = trace.clone();
        let script = move |_: &Run| answer(head, content_type, &body);
        let run_id = stage.start(script).await;
        stage.outcome(&run_id).await;
        let shown = on_stage(&stage, &["runs", "show", &run_id]).await;
        assert_printed(
            &shown,
            "{\"detail\": \"KeyError: 'FOO_TOKEN' in handler\"} xxx",
        );
        let admin = stage.admin.rejections(&run_id).await;
        let client = stage.client.rejections(&run_id).await;
        for (rejections, excerpt) in [(admin, &trace[..200]), (client, "")] {
            assert_eq!(rejections.len(), 1, "{rejections:?}");
            assert_eq!(rejections[0]["reason"], "error_response");
            assert_eq!(rejections[0]["excerpt"], excerpt);
            assert!(rejections[0]["message"].as_str().unwrap().contains(message));
        }
    }
}

#[tokio::test]
async fn agents_are_switched_and_deleted_by_name() {
    let (playground, directory) = start_echoing().await;
    let here = directory.file("");
    assert_printed(
        &command(&here, &["agents", "list"]).await,
        "plugin:runnel/echo/default",
    );
    let shown = command(&here, &["agents", "show", "echo"]).await;
    assert_printed(&shown, "resource_policy {");
    assert_printed(
        &command(&here, &["agents", "disable", "echo"]).await,
        "echo is disabled",
    );
    let printed = run(&mut sending(&here, &["What is Runnel?"])).await;
    assert!(printed.stdout.starts_with("My notes say"), "{printed:?}");
    assert_printed(
        &command(&here, &["agents", "enable", "echo"]).await,
        "echo is enabled",
    );
    let printed = run(&mut sending(&here, &["What is Runnel?"])).await;
    assert_eq!(printed.stdout, "What is Runnel?\n");
    assert_printed(
        &command(&here, &["agents", "delete", "echo"]).await,
        "deleted echo",
    );
    let gone = command(&here, &["agents", "show", "echo"]).await;
    assert_eq!(
        gone.stderr,
        "error: there is no agent echo; `runnel agents list` lists them\n"
    );
    let declared = command(&here, &["agents", "disable", "hello"]).await;
    assert_eq!(declared.status.code(), Some(1));
    assert_contains!(declared.stderr, "of the configuration file");
    playground.stop().await;
}

#[tokio::test]
async fn endpoint_refresh_reports_health_and_runners() {
    let (playground, directory) = start_echoing().await;
    let here = directory.file("");
    assert_printed(&command(&here, &["endpoints", "list"]).await, "healthy");
    let refreshed = command(&here, &["endpoints", "refresh", "echo"]).await;
    assert_printed(&refreshed, "echo is healthy\n  plugin:runnel/echo/default");
    playground.stop().await;
}

#[tokio::test]
async fn budgets_are_listed_set_and_reset() {
    let budget =
        "[[budgets]]\nname = \"day\"\nscope = \"agent\"\nwindow = \"day\"\ntokens = 1000\n";
    let stage = Stage::on(Sqlite, |config| config.rest += budget).await;
    let stage = stage.unwrap();
    let listed = on_stage(&stage, &["budgets"]).await;
    assert_printed(&listed, "day     each agent  tokens    1000   0     1000  ");
    let listed = document(&on_stage(&stage, &["budgets", "--json"]).await);
    assert_eq!(listed["items"][0]["most"]["tokens"], 1000, "{listed}");
    let raise = ["budgets", "set", "day", "--tokens", "2000", "--calls", "7"];
    assert_printed(&on_stage(&stage, &raise).await, "day is set");
    let listed = document(&on_stage(&stage, &["budgets", "list", "--json"]).await);
    let limits = json!({"calls": 7, "tokens": 2000});
    assert_members!(listed["items"][0], {"most": limits, "source": "api", "window": "day"});
    let reset = ["budgets", "reset", "day"];
    assert_printed(&on_stage(&stage, &reset).await, "day is reset");
    let listed = on_stage(&stage, &["budgets", "list"]).await;
    assert_printed(&listed, "tokens    1000   0     1000  ");
    let again = on_stage(&stage, &reset).await;
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    let playground = Stage::new().await;
    let listed = on_stage(&playground, &["budgets"]).await;
    assert!(listed.stderr.contains("no budgets"), "{listed:?}");
}

#[tokio::test]
async fn interactions_are_listed_and_answered() {
    let stage = asking_stage(Sqlite).await.unwrap();
    let waiting_run_id = ask(&stage, &asking_event("q-1"), &[question("q", &json!({}))]).await;
    let listed = on_stage(&stage, &["interactions", "list"]).await;
    assert_printed(&listed, "Which room?");
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let wrong = ["interactions", "answer", "--action", "sell"];
    let wrong = on_stage(&stage, &wrong).await;
    assert_contains!(wrong.stderr, "there is no action sell: 1 Book");
    let answer = [
        "interactions",
        "answer",
        "--action",
        "Book",
        "--value",
        "room=B",
    ];
    let answered = on_stage(&stage, &answer).await.exited(0);
    assert!(answered.stderr.contains("completed"), "{answered:?}");
    assert!(
        !answered.stderr.contains(&waiting_run_id),
        "it follows the new run"
    );
    let none = on_stage(&stage, &["interactions", "answer"]).await;
    assert_eq!(none.stderr, "error: no question is open\n");
    let all = document(&on_stage(&stage, &["interactions", "list", "--all", "--json"]).await);
    assert_eq!(all["items"][0]["status"], "submitted", "{all}");
}

#[tokio::test]
async fn send_posts_events_types_and_attachments() {
    let stage = OwnStage::new().await;
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let directory = TempDirectory::new();
    let event = json!({"event_type": "message.received", "event_id": "e-7",
        "input": {"text": "from the file"}, "conversation": {"conversation_id": "c-7"}});
    let event = directory.write("event.json", &event.to_string());
    let note = directory.write("note.md", "# A note\n");
    let (event, note) = (event.to_str().unwrap(), note.to_str().unwrap());
    let sent = on_stage(&stage, &["send", "--event", event, "--attach", note]).await;
    assert_eq!(sent.status.code(), Some(0), "{sent:?}");
    let stored = stage.client.get("/v1/events/e-7").await.body;
    assert_eq!(stored["conversation_id"], "c-7", "{stored}");
    let requests = stage.runner.requests();
    let requests = requests
        .iter()
        .rfind(|request| request.is_run())
        .unwrap()
        .json();
    let input = &requests["context"]["input"];
    assert_eq!(input["text"], "from the file", "{requests}");
    assert_eq!(input["attachments"][0]["name"], "note.md", "{requests}");

    let unknown = on_stage(&stage, &["send", "--type", "order.piad", "hi"]).await;
    assert_eq!(unknown.status.code(), Some(1));
    let hint = "`runnel explain --type order.piad` shows why";
    assert!(unknown.stderr.contains(hint), "{unknown:?}");
    let empty = on_stage(&stage, &["send", ""]).await;
    assert_eq!(empty.status.code(), Some(2));
    assert_starts_with!(empty.stderr, "error: the message is empty");
}

#[tokio::test]
async fn backup_restores_runs_and_artifacts() {
    let (playground, directory) = start_echoing().await;
    let here = directory.file("");
    let note = directory.write("note.md", "# A note\n");
    let send = ["--attach", note.to_str().unwrap(), "remember me"];
    run(&mut sending(&here, &send)).await.exited(0);
    let saved = document(&command(&here, &["backup", "saved.tar", "--json"]).await);
    assert_members!(saved, {"runs": 1, "artifacts": 1});
    let again = command(&here, &["backup", "saved.tar"]).await;
    assert_contains!(again.stderr, "saved.tar exists: choose another name");
    playground.stop().await;

    let restored = directory.file("other/runnel-data");
    std::fs::create_dir_all(&restored).unwrap();
    let mut extract = Command::new("tar");
    extract.arg("-xf").arg(directory.file("saved.tar"));
    run(extract.current_dir(&restored)).await.exited(0);
    let key = "master.key";
    std::fs::copy(directory.file("runnel-data").join(key), restored.join(key)).unwrap();
    let playground = Playground::start(&restored).await;
    let runs = playground.client().get("/v1/runs").await.body;
    assert_members!(runs["items"][0]["output"], {"content": "remember me"});
    playground.stop().await;
}
