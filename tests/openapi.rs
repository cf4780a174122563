//! The committed OpenAPI documents are what the binary prints.

use std::path::Path;
use std::process::Command;

#[track_caller]
fn check(document: &str) {
    let printed = Command::new(env!("CARGO_BIN_EXE_runnel"))
        .args(["openapi", document])
        .output()
        .expect("the binary starts");
    let stderr = String::from_utf8_lossy(&printed.stderr);
    assert!(printed.status.success(), "{}: {stderr}", printed.status);
    let printed = String::from_utf8(printed.stdout).expect("JSON is UTF-8");

    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../openapi")
        .join(format!("{document}.json"));
    let committed = std::fs::read_to_string(file).unwrap_or_default();
    if committed == printed {
        return;
    }
    let same = committed.lines().zip(printed.lines());
    let line = same
        .take_while(|(committed, printed)| committed == printed)
        .count();
    panic!(
        "openapi/{document}.json is not what the code says, from line {} on:\n\
         committed: {}\n  printed: {}\n\
         if the change is meant: cargo run -- openapi {document} > openapi/{document}.json",
        line + 1,
        committed.lines().nth(line).unwrap_or("(nothing)"),
        printed.lines().nth(line).unwrap_or("(nothing)"),
    );
}

#[test]
fn the_document_of_the_gateway_is_committed_as_it_is() {
    check("gateway");
}

#[test]
fn the_document_of_runners_is_committed_as_it_is() {
    check("runner");
}

/// How an agent is kept is the operators' business.
#[test]
fn the_document_of_runners_knows_no_agents() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi");
    let read = |name: &str| std::fs::read_to_string(file.join(name)).expect("it is committed");
    let (gateway, runner) = (read("gateway.json"), read("runner.json"));
    for name in ["resource_policy", "state_policy", "concurrency"] {
        assert!(gateway.contains(name), "{name}");
        assert!(!runner.contains(name), "{name}");
    }
}
