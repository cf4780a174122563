//! `runnel graph`: lint, render and run model outputs without a gateway.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::support::{CommandOutput, TempDirectory, programs, run, within};

const CHAIN: &str = r#"{"kind": "act", "message": "I look.", "calls": [
    {"id": "find", "type": "tool", "name": "search", "args": {"q": "button"}},
    {"id": "read", "type": "tool", "name": "read", "args": {"path": {"$ref": "action:find.output#/files/0"}}}]}"#;

const TOOLS: &str = r#"
goal = "Fix the toolbar."

[[tools]]
name = "search"
effects = ["read"]
schema = { type = "object", properties = { q = { type = "string" } }, required = ["q"] }
answers = [{ output = { files = ["a.vue", "b.vue"] } }]

[[tools]]
name = "read"
effects = ["read"]
answers = [{ output = "three buttons" }]
"#;

async fn graph(arguments: &[&str], files: &[(&str, &str)]) -> CommandOutput {
    let directory = TempDirectory::new();
    for (name, text) in files {
        directory.write(name, text);
    }
    let mut command = Command::new(programs::runnel());
    command.arg("graph").args(arguments);
    run(command.current_dir(directory.file(""))).await
}

fn document(printed: &CommandOutput) -> Value {
    printed.json()
}

#[tokio::test]
async fn graph_lint_reports_code_position_and_fix() {
    let broken = CHAIN.replace("\"search\"", "\"serach\"");
    let files = [("out.json", broken.as_str()), ("tools.toml", TOOLS)];
    let lint = ["lint", "out.json", "--tools", "tools.toml"];
    let printed = graph(&lint, &files).await.exited(1);
    let line = printed.stdout.lines().next().unwrap();
    assert_starts_with!(line, "error unknown_tool at /calls/0/name: ");
    assert!(line.contains("Fix: did you mean `search`?"), "{line}");
    assert_eq!(printed.stderr, "refused (errors: 1, warnings: 0)\n");
    let printed = graph(&[&lint[..], &["--json"]].concat(), &files).await;
    let answer = document(&printed);
    assert_eq!(answer["accepted"], false);
    assert_eq!(answer["diagnostics"][0]["code"], "unknown_tool");
}

#[tokio::test]
async fn graph_lint_reads_standard_input() {
    let mut command = Command::new(programs::runnel());
    command.args(["graph", "lint", "-", "--json"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(CHAIN.as_bytes()).await.unwrap();
    drop(input);
    let output = within("the verdict", child.wait_with_output())
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["accepted"], true);
}

#[tokio::test]
async fn graph_render_prints_the_models_transcript() {
    let files = [("out.json", CHAIN), ("tools.toml", TOOLS)];
    let printed = graph(&["render", "out.json", "--tools", "tools.toml"], &files).await;
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    for part in [
        "<turn index=\"1\">\n## User request\n\nFix the toolbar.\n</turn>\n",
        "### Call read\n\nTool: `read`\nAfter: find\n",
        "\"path\": \"a.vue\"",
        "### Result for read\n\nStatus: completed\n\n```md\nthree buttons\n```\n",
    ] {
        assert!(
            printed.stdout.contains(part),
            "{part} is not in {}",
            printed.stdout
        );
    }
    let refused = graph(&["render", "out.json"], &[("out.json", "{}")]).await;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stdout.contains("## Runtime notice"), "{refused:?}");
}

#[tokio::test]
async fn graph_run_prints_states_and_the_record() {
    let files = [("out.json", CHAIN), ("tools.toml", TOOLS)];
    let run = ["run", "out.json", "--tools", "tools.toml"];
    let printed = graph(&run, &files).await.exited(0);
    let states: Vec<_> = printed.stdout.lines().take(4).collect();
    let expected = [
        "▸      1 ms  find  pending -> running",
        "✓      2 ms  find  running -> completed",
        "▸      2 ms  read  pending -> running",
        "✓      3 ms  read  running -> completed",
    ];
    assert_eq!(states, expected);
    let printed = graph(&[&run[..], &["--json"]].concat(), &files).await;
    let answer = document(&printed);
    assert_eq!(answer["end"], "finished");
    assert_eq!(answer["record"]["type"], "agent.protocol.result");
    assert_eq!(answer["record"]["actions"][1]["summary"], "three buttons");
    assert_eq!(answer["transitions"][3]["to"], "completed");
}

#[tokio::test]
async fn graph_run_fails_with_the_graph() {
    let failing = TOOLS.replace("output = \"three buttons\"", "error = \"no such file\"");
    let files = [("out.json", CHAIN), ("tools.toml", failing.as_str())];
    let printed = graph(
        &["run", "out.json", "--tools", "tools.toml", "--json"],
        &files,
    )
    .await
    .exited(1);
    let error = &document(&printed)["record"]["actions"][1]["error"];
    assert_eq!(
        *error,
        json!({"code": "tool_error", "message": "no such file"})
    );
}

#[tokio::test]
async fn graph_reports_invalid_scripts() {
    let files = [("out.json", CHAIN), ("tools.toml", "tols = 1\n")];
    let printed = graph(&["run", "out.json", "--tools", "tools.toml"], &files).await;
    assert_eq!(printed.status.code(), Some(1), "{printed:?}");
    assert_contains!(printed.stderr, "tools.toml: tols: unknown field `tols`");
}
