//! `runnel send` at a terminal: line editing, Ctrl-C, lost connections, colours.

use serde_json::Value;
use tokio::process::Command;

use crate::dev::{sending, start_echoing};
use crate::support::faulty_runner::{FaultyRunner, InjectedFault};
use crate::support::playground::Playground;
use crate::support::programs::runnel;
use crate::support::runner::SECRET;
use crate::support::script::{Gate, ScriptStep, send as step, sse_head};
use crate::support::terminal::PseudoTerminal;
use crate::support::{OwnStage, Stage, TempDirectory, run};

const BACKSPACE: &str = "\u{7f}";
const LEFT: &str = "\u{1b}[D";
const UP: &str = "\u{1b}[A";

/// Answers of the runs, which repeat their messages, newest first.
async fn answers(playground: &Playground) -> Vec<String> {
    let runs = playground.client().get("/v1/runs").await.body;
    let runs = runs["items"].as_array().unwrap().iter();
    runs.map(|run| run["output"]["content"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn chat_sends_the_line_that_it_shows() {
    let (playground, directory) = start_echoing().await;
    let mut terminal = PseudoTerminal::start(&mut sending(&directory.file(""), &[]), 80);
    terminal.type_keys("", ">").await;
    let erased = format!("你好世界{BACKSPACE}{BACKSPACE}吗");
    terminal.type_keys(&erased, "> 你好吗").await;
    terminal.say("\r", "completed in", 1).await;
    terminal.type_keys("", ">").await;
    terminal.type_keys(&format!("ac{LEFT}b"), "> abc").await;
    terminal.say("\r", "completed in", 2).await;
    terminal.type_keys("", ">").await;
    terminal.type_keys(&format!("{UP}{UP}"), "> 你好吗").await;
    terminal.say("\r", "completed in", 3).await;
    let rows = terminal.rows();
    assert_eq!(rows[1..3], ["> 你好吗", "你好吗"], "{rows:#?}");
    assert!(terminal.end().await.success());
    assert_eq!(answers(&playground).await, ["你好吗", "abc", "你好吗"]);

    // The next chat knows the messages of this one.
    let mut terminal = PseudoTerminal::start(&mut sending(&directory.file(""), &[]), 80);
    terminal.type_keys("", ">").await;
    terminal.type_keys(&format!("{UP}{UP}"), "> abc").await;
    playground.stop().await;
}

#[tokio::test]
async fn chat_sends_fenced_lines_as_one_message() {
    let (playground, directory) = start_echoing().await;
    let mut terminal = PseudoTerminal::start(&mut sending(&directory.file(""), &[]), 80);
    terminal.type_keys("", ">").await;
    terminal.type_keys("\"\"\"one\r", "> \"\"\"one").await;
    terminal.type_keys("/two\"\"\"", "/two\"\"\"").await;
    terminal.say("\r", "completed in", 1).await;
    for (line, printed) in [
        ("/hlep", "unknown command /hlep; /help lists"),
        ("/help", "begin another conversation"),
        ("/cancel", "has ended: completed"),
        ("/quit", ""),
    ] {
        terminal.type_keys("", ">").await;
        terminal.type_keys(line, &format!("> {line}")).await;
        terminal.say("\r", printed, 1).await;
    }
    assert_eq!(answers(&playground).await, ["one\n/two"]);
    assert!(terminal.exited().await.success());
    playground.stop().await;
}

/// A stage whose runs say `hello` and then wait.
async fn waiting(stage: &Stage) -> Gate {
    let gate = Gate::new();
    let hold = gate.clone();
    stage.runner.answer_all(move |run| {
        let delta = step(run.delta(1, "hello"));
        vec![sse_head(), delta, ScriptStep::Hold(hold.clone())]
    });
    gate
}

/// A `send` to this stage.
fn sending_to(stage: &Stage, directory: &TempDirectory, arguments: &[&str]) -> Command {
    let mut command = sending(&directory.file(""), arguments);
    command
        .env("RUNNEL_URL", &stage.client.url)
        .env("RUNNEL_API_KEY", &stage.client.key);
    command
}

async fn newest_run(stage: &Stage) -> Value {
    let runs = stage.client.get("/v1/runs?limit=1").await.body;
    runs["items"][0].clone()
}

#[tokio::test]
async fn first_interrupt_cancels_the_run() {
    let stage = OwnStage::new().await;
    let _gate = waiting(&stage).await;
    let directory = TempDirectory::new();
    let mut sending = sending_to(&stage, &directory, &["wait"]);
    let mut terminal = PseudoTerminal::start(&mut sending, 80);
    terminal.say("", "hello", 1).await;
    terminal.interrupt();
    terminal.say("", " cancelled in ", 1).await;
    assert_eq!(terminal.exited().await.code(), Some(130));
    let run = newest_run(&stage).await;
    assert_eq!(run["status"], "cancelled");
    let expected = format!("[run {} cancelled in ", run["run_id"].as_str().unwrap());
    assert_contains!(terminal.screen(), &expected);
}

#[tokio::test]
async fn lost_gateway_is_named_once() {
    let mut stage = OwnStage::new().await;
    let _gate = waiting(&stage).await;
    let directory = TempDirectory::new();
    let mut sending = sending_to(&stage, &directory, &["wait"]);
    let mut terminal = PseudoTerminal::start(&mut sending, 80);
    terminal.say("", "hello", 1).await;
    let run = newest_run(&stage).await;
    stage.gateway.kill().await;
    terminal.say("", "trying again (2)…", 1).await;
    let rows = terminal.rows();
    let lost = rows.iter().filter(|row| row.contains("connection lost"));
    assert_eq!(lost.count(), 1, "{rows:#?}");
    terminal.interrupt();
    let refused = format!("connection refused at {}: is the", stage.client.url);
    terminal.say("", &refused, 1).await;
    terminal.interrupt();
    let id = run["run_id"].as_str().unwrap();
    let left = format!("[left; `runnel runs watch {id}` follows the run]");
    terminal.say("", &left, 1).await;
    assert_eq!(terminal.exited().await.code(), Some(130));
}

#[tokio::test]
async fn terminal_without_colors_gets_plain_text() {
    let (playground, directory) = start_echoing().await;
    let start = |variable: &str, value: &str| {
        let mut sending = sending(&directory.file(""), &["hi"]);
        PseudoTerminal::start(sending.env(variable, value), 80)
    };
    let mut dumb = start("TERM", "dumb");
    dumb.say("", " s]", 1).await;
    assert!(!dumb.screen().contains('\u{1b}'), "{:?}", dumb.screen());
    let mut plain = start("NO_COLOR", "1");
    plain.say("", " s]", 1).await;
    assert_lacks!(plain.screen(), "\u{1b}[2m");
    let mut colored = start("CLICOLOR", "1");
    colored.say("", " s]", 1).await;
    assert_contains!(colored.screen(), "\u{1b}[2m");
    playground.stop().await;
}

#[tokio::test]
async fn verdicts_are_colored_on_terminals_only() {
    const RED: &str = "\u{1b}[31m";
    let directory = TempDirectory::new();
    directory.write("runnel.toml", "[server]\nlistn = 1\n");
    let runner = FaultyRunner::start(InjectedFault::ListFails).await;
    let commands = [
        &["check-config"][..],
        &["conform", &runner.url, "--secret", "env:E2E_SECRET"],
    ];
    for arguments in commands {
        let mut command = Command::new(runnel());
        command
            .args(arguments)
            .current_dir(directory.file(""))
            .env("E2E_SECRET", SECRET);
        let piped = run(&mut command).await;
        let text = format!("{}{}", piped.stdout, piped.stderr);
        assert!(!text.contains('\u{1b}'), "{text:?}");
        for (variable, value, is_red) in [
            ("CLICOLOR", "1", true),
            ("NO_COLOR", "1", false),
            ("TERM", "dumb", false),
        ] {
            let mut terminal = PseudoTerminal::start(command.env(variable, value), 80);
            assert_eq!(terminal.exited().await.code(), Some(1));
            let last = text.split_whitespace().next_back().unwrap();
            terminal.say("", last, 1).await;
            let screen = terminal.screen();
            assert_eq!(screen.contains(RED), is_red, "{variable}: {screen:?}");
            assert_eq!(screen.contains('\u{1b}'), is_red, "{variable}: {screen:?}");
            command.env_remove(variable);
        }
    }
}

#[tokio::test]
async fn connection_and_key_errors_are_one_sentence() {
    let (playground, directory) = start_echoing().await;
    let here = directory.file("");
    let rejected = run(sending(&here, &["hi"]).env("RUNNEL_API_KEY", "rnl_wrong")).await;
    assert_eq!(rejected.status.code(), Some(1));
    assert_eq!(
        rejected.stderr,
        "error: the key was rejected; check --key or RUNNEL_API_KEY\n"
    );
    let url = playground.url.clone();
    playground.stop().await;
    let refused = run(&mut sending(&here, &["hi"])).await;
    assert_eq!(refused.status.code(), Some(1));
    let expected = format!("error: connection refused at {url}: is the gateway running?\n");
    assert_eq!(refused.stderr, expected);
}
