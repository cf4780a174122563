//! Action graphs in the playground: listed, approved and answered in a terminal.

use std::path::Path;

use tokio::process::Command;

use crate::dev::sending;
use crate::support::playground::Playground;
use crate::support::programs::runnel;
use crate::support::terminal::PseudoTerminal;
use crate::support::{TempDirectory, run};

const ASK: [&str; 3] = ["--conversation", "planner", "Put a note on the board"];

/// `runnel runs list`, piped.
fn listing(here: &Path) -> Command {
    let mut command = Command::new(runnel());
    command
        .args(["runs", "list"])
        .current_dir(here)
        .env_remove("RUNNEL_URL")
        .env_remove("RUNNEL_API_KEY");
    command
}

#[tokio::test]
async fn lists_and_approves_graphs_in_terminal() {
    let directory = TempDirectory::new();
    let playground = Playground::start(&directory.file("runnel-data")).await;
    let here = directory.file("");
    let mut terminal = PseudoTerminal::start(&mut sending(&here, &ASK), 80);
    terminal.say("", "3 Refuse > ", 1).await;
    let screen = terminal.screen();
    for line in [
        "✓ Look at the clock",
        "✓ Ask the assistant",
        "? Post the note",
    ] {
        assert!(screen.contains(line), "{line}: {screen}");
    }
    terminal.say("2\n", "completed in", 2).await;
    let screen = terminal.screen();
    assert!(screen.contains("The note is on the board."), "{screen}");
    assert!(screen.contains("Note 1:"), "{screen}");
    // The assistant's child run received its knowledge.
    assert!(screen.contains("My notes say:"), "{screen}");
    assert!(terminal.end().await.success());

    // Allowed for the conversation: no further approval, also without a terminal. The other agent answered in
    // child runs.
    let printed = run(&mut sending(&here, &ASK)).await;
    assert!(printed.stdout.contains("Note 2:"), "{printed:?}");
    assert_contains!(printed.stderr, "[completed] Post the note");
    let runs = playground.client().get("/v1/runs").await.body;
    let runs = runs["items"].as_array().unwrap().iter();
    let children: Vec<_> = runs
        .filter(|run| run["parent_run_id"].is_string())
        .collect();
    let previews = children
        .iter()
        .map(|run| run["input_preview"].as_str().unwrap());
    assert_eq!(
        previews.collect::<Vec<_>>(),
        ["Ask the assistant: What is Runnel?"; 2]
    );
    let parent = children[0]["parent_run_id"].as_str().unwrap();
    let listed = run(&mut listing(&here)).await.stdout;
    let child = format!(
        "↳ of {}: Ask the assistant: What is Runnel?",
        &parent[parent.len() - 8..]
    );
    assert!(listed.contains(&child), "{listed}");
    playground.stop().await;
}

#[tokio::test]
async fn rejection_or_missing_terminal_posts_nothing() {
    let directory = TempDirectory::new();
    let playground = Playground::start(&directory.file("runnel-data")).await;
    let here = directory.file("");
    let mut terminal = PseudoTerminal::start(&mut sending(&here, &ASK), 80);
    terminal.say("", "3 Refuse > ", 1).await;
    terminal
        .say("refuse\n", "The note is not on the board.", 1)
        .await;
    assert!(terminal.end().await.success());
    let printed = run(&mut sending(&here, &ASK)).await;
    assert_contains!(printed.stdout, "The note is not on the board.");
    assert_contains!(printed.stderr, "[failed] Post the note");
    assert!(printed.stderr.contains("; actions failed]"), "{printed:?}");
    let listed = run(&mut listing(&here)).await.stdout;
    assert!(listed.contains("completed (actions failed)"), "{listed}");
    playground.stop().await;
}

#[tokio::test]
async fn declared_graphs_run_live_without_a_model() {
    let directory = TempDirectory::new();
    let playground = Playground::start(&directory.file("runnel-data")).await;
    let here = directory.file("");
    let graph = r#"{"kind": "act", "message": "I look at the clock.", "calls": [{"id": "clock", "type": "tool",
        "name": "current_time", "args": {"utc_offset": {"$ref": "input:event#/data/inputs/offset"}}}]}"#;
    std::fs::write(directory.file("clock.json"), graph).unwrap();
    let live = |offset: &str| {
        let mut command = Command::new(runnel());
        let offset = format!("offset={offset}");
        command
            .args([
                "graph",
                "run",
                "clock.json",
                "--live",
                "--conversation",
                "planner",
                "--input",
                &offset,
            ])
            .current_dir(&here)
            .env_remove("RUNNEL_URL")
            .env_remove("RUNNEL_API_KEY");
        command
    };
    for (offset, time) in [("9", "+09:00"), ("-3", "-03:00")] {
        let printed = run(&mut live(offset)).await;
        assert!(printed.stdout.contains(time), "{printed:?}");
        assert!(printed.stderr.contains("completed in"), "{printed:?}");
    }
    let refused = run(&mut live("\"late\"")).await;
    assert!(refused.stdout.contains("Not done:"), "{refused:?}");
    playground.stop().await;
}
