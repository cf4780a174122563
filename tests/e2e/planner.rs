//! Action graphs in the playground: listed, approved and answered in a terminal.

use crate::dev::sending;
use crate::support::playground::Playground;
use crate::support::terminal::PseudoTerminal;
use crate::support::{TempDirectory, run};

const ASK: [&str; 3] = ["--conversation", "planner", "Put a note on the board"];

#[tokio::test]
async fn lists_and_approves_graphs_in_terminal() {
    let directory = TempDirectory::new();
    let playground = Playground::start(&directory.file("runnel-data")).await;
    let here = directory.file("");
    let mut terminal = PseudoTerminal::start(&mut sending(&here, &ASK), 80);
    terminal.say("", "3 Refuse > ", 1).await;
    let screen = terminal.screen();
    for line in ["✓ Look at the clock", "✓ Ask the assistant", "? Post the note"] {
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
    assert!(printed.stderr.contains("[completed] Post the note"), "{printed:?}");
    let runs = playground.client().get("/v1/runs").await.body;
    let runs = runs["items"].as_array().unwrap().iter();
    assert_eq!(runs.filter(|run| run["parent_run_id"].is_string()).count(), 2);
    playground.stop().await;
}

#[tokio::test]
async fn rejection_or_missing_terminal_posts_nothing() {
    let directory = TempDirectory::new();
    let playground = Playground::start(&directory.file("runnel-data")).await;
    let here = directory.file("");
    let mut terminal = PseudoTerminal::start(&mut sending(&here, &ASK), 80);
    terminal.say("", "3 Refuse > ", 1).await;
    terminal.say("refuse\n", "The note is not on the board.", 1).await;
    assert!(terminal.end().await.success());
    let printed = run(&mut sending(&here, &ASK)).await;
    assert!(printed.stdout.contains("The note is not on the board."), "{printed:?}");
    assert!(printed.stderr.contains("[failed] Post the note"), "{printed:?}");
    playground.stop().await;
}
