//! The page of the grammar: its examples are accepted, and show every field that its tables list.

use std::collections::BTreeSet;

use action_graph::accept::OutputVerdict;
use action_graph::code::Severity;
use action_graph::output::ModelOutput;
use action_graph::rules::CarrierMode;

use crate::support::world;

const PAGE: &str = include_str!("../../../../docs/graph-grammar.md");
const FENCED: &str = "json agent-protocol";

/// Info strings and contents of the code blocks.
fn blocks() -> Vec<(&'static str, &'static str)> {
    let mut parts = PAGE.split("```");
    let mut blocks = Vec::new();
    while let (Some(_), Some(block)) = (parts.next(), parts.next()) {
        blocks.extend(block.split_once('\n'));
    }
    blocks
}

/// The names in the first column of the tables of fields.
fn fields() -> BTreeSet<&'static str> {
    let mut fields = BTreeSet::new();
    let mut is_table = false;
    for line in PAGE.lines() {
        is_table = line.starts_with("| field") || is_table && line.starts_with('|');
        let cell = line.split('|').nth(1).filter(|_| is_table);
        fields.extend(
            cell.into_iter()
                .flat_map(|cell| cell.split('`').skip(1).step_by(2)),
        );
    }
    fields.remove("result_policy");
    fields.remove("failure_policy");
    fields
}

#[test]
fn examples_of_the_page_are_accepted() {
    let sections = blocks().into_iter().find(|(info, _)| *info == "md");
    let (_, sections) = sections.expect("the sections");
    let mut examples = 0;
    for (info, text) in blocks() {
        let mut world = world();
        let output = match info {
            FENCED => {
                world.rules.carrier = CarrierMode::Fenced;
                let behind = if text.contains("md:") { sections } else { "" };
                ModelOutput::text(&format!("```{FENCED}\n{text}```\n\n{behind}"))
            }
            "json" => ModelOutput::carrier(text),
            _ => continue,
        };
        world.rules.limits.notice_diagnostics = 20;
        examples += 1;
        let diagnostics = match world.accept_output(&output) {
            OutputVerdict::Accepted(accepted) => accepted.diagnostics,
            OutputVerdict::Repair(repair) => panic!("{text}: {:?}", repair.diagnostics),
            OutputVerdict::Content(_) => panic!("{text} is no declaration"),
        };
        let faults = diagnostics.iter().filter(|one| one.level != Severity::Info);
        let faults: Vec<_> = faults.map(|one| one.code.as_str()).collect();
        assert!(
            faults
                .iter()
                .all(|code| ["persist_upgraded", "note_missing"].contains(code)),
            "{text}: {diagnostics:?}"
        );
    }
    assert!(examples > 10, "{examples}");
}

#[test]
fn examples_show_every_field() {
    let shown: String = blocks().into_iter().map(|(_, text)| text).collect();
    let fields = fields();
    assert!(fields.len() > 50, "{fields:?}");
    let lacking = fields
        .iter()
        .filter(|name| !shown.contains(&format!("\"{name}\"")));
    assert_eq!(lacking.collect::<Vec<_>>(), Vec::<&&str>::new());
}
