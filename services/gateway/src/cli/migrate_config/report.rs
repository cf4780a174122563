//! Text report of a migration.

use std::fmt::Write as _;

use langbot::migrate::{FieldNote, Migration, MigrationOutcome, ResourceReport};
use serde_json::json;

pub(super) fn report(migration: &Migration) -> String {
    let mut text = String::new();
    for one in &migration.pipelines {
        let runner = one.runner_id.as_deref().unwrap_or("nothing");
        let outcome = match one.outcome {
            MigrationOutcome::Migrated => "",
            MigrationOutcome::Nothing => " (nothing to migrate)",
            MigrationOutcome::Blocked => " (NOT MIGRATED)",
        };
        let _ = writeln!(
            text,
            "{}#{}: {} → {runner}{outcome}",
            one.file, one.pointer, one.agent
        );
        if let Some(message) = &one.message {
            let _ = writeln!(text, "  {message}");
        }
        for note in &one.fields {
            line(&mut text, note);
        }
    }
    for one in &migration.resources {
        resource(&mut text, one);
    }
    if !migration.variables.is_empty() {
        text.push_str("\nVariables to set:\n");
    }
    for variable in &migration.variables {
        let from = match &variable.from {
            Some(from) => format!("its value is at {from}; "),
            None => String::new(),
        };
        let value = match &variable.value {
            Some(value) => format!("={value}"),
            None => String::new(),
        };
        let _ = writeln!(
            text,
            "  {}{value}: {from}read by {}",
            variable.name, variable.read_by
        );
    }
    text
}

fn resource(text: &mut String, one: &ResourceReport) {
    let outcome = match one.outcome {
        MigrationOutcome::Migrated => "",
        MigrationOutcome::Nothing => " (nothing to migrate)",
        MigrationOutcome::Blocked => " (NOT MIGRATED)",
    };
    let _ = writeln!(
        text,
        "{}#{}: {} {}{outcome}",
        one.file, one.pointer, one.table, one.name
    );
    if let Some(message) = &one.message {
        let _ = writeln!(text, "  {message}");
    }
    for note in &one.fields {
        line(text, note);
    }
}

fn line(text: &mut String, note: &FieldNote) {
    let action = json!(note.action);
    let _ = write!(text, "  {:<10}", action.as_str().unwrap_or_default());
    match (&note.pointer, &note.target) {
        (Some(pointer), Some(target)) => {
            let _ = write!(text, " {pointer} → {target}");
        }
        (Some(path), None) | (None, Some(path)) => {
            let _ = write!(text, " {path}");
        }
        (None, None) => {}
    }
    match &note.why {
        Some(why) => {
            let _ = writeln!(text, ": {why}");
        }
        None => text.push('\n'),
    }
}
