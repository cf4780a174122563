//! Position of each setting: a line of the file, or an environment variable.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Places of the settings, for messages about faults.
#[derive(Clone, Debug, Default)]
pub struct Locations {
    file: PathBuf,
    /// Line by pointer, like `agents[0].scope`.
    lines: BTreeMap<String, usize>,
    /// Names of the variables that override settings, in upper case.
    variables: BTreeSet<String>,
}

impl Locations {
    /// Reads the places of a parsed file.
    pub(super) fn of(file: &Path, text: &str, table: &DeTable<'_>) -> Self {
        let mut lines = BTreeMap::new();
        let starts = line_starts(text);
        collect_table("", table, &starts, &mut lines);
        Self {
            file: file.to_owned(),
            lines,
            variables: BTreeSet::new(),
        }
    }

    /// Adds the names of environment variables.
    pub(super) fn with_variables(mut self, names: impl Iterator<Item = String>) -> Self {
        let names = names.map(|name| name.to_ascii_uppercase());
        self.variables = names.filter(|name| name.starts_with("RUNNEL__")).collect();
        self
    }

    /// The place of a setting, or of the table that lacks it.
    pub(super) fn location_of(&self, pointer: &str) -> Option<String> {
        let name = format!(
            "RUNNEL__{}",
            pointer.replace('.', "__").to_ascii_uppercase()
        );
        // The variable overrides the file, so it is the source of the fault.
        if self.variables.contains(&name) {
            return Some(format!("the variable {name}"));
        }
        if let Some(line) = self.line_of(pointer) {
            return Some(format!("{}:{line}", self.file.display()));
        }
        // A variable of a section that nothing else names.
        let start = format!("{name}__");
        let mut variables = self.variables.iter();
        let within = variables.find(|name| !pointer.is_empty() && name.starts_with(&start));
        within.map(|name| format!("the variable {name}"))
    }

    /// The line of a setting, or of the table that lacks it.
    pub(super) fn line_of(&self, pointer: &str) -> Option<usize> {
        let mut pointer = pointer;
        while !pointer.is_empty() {
            if let Some(line) = self.lines.get(pointer) {
                return Some(*line);
            }
            // A missing key has no line; its table has one.
            pointer = &pointer[..pointer.rfind(['.', '[']).unwrap_or(0)];
        }
        None
    }
}

fn line_starts(text: &str) -> Vec<usize> {
    let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(breaks).collect()
}

fn collect_table(
    pointer: &str,
    table: &DeTable<'_>,
    starts: &[usize],
    lines: &mut BTreeMap<String, usize>,
) {
    for (key, value) in table {
        let name = key.get_ref();
        let within = if pointer.is_empty() {
            name.to_string()
        } else {
            format!("{pointer}.{name}")
        };
        lines.insert(within.clone(), line_at(key.span().start, starts));
        collect_value(&within, value, starts, lines);
    }
}

fn collect_value(
    pointer: &str,
    value: &Spanned<DeValue<'_>>,
    starts: &[usize],
    lines: &mut BTreeMap<String, usize>,
) {
    match value.get_ref() {
        DeValue::Table(table) => collect_table(pointer, table, starts, lines),
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let within = format!("{pointer}[{index}]");
                lines.insert(within.clone(), line_at(item.span().start, starts));
                collect_value(&within, item, starts, lines);
            }
        }
        _ => {}
    }
}

/// Number of the line with the byte `offset`, counted from 1.
fn line_at(offset: usize, starts: &[usize]) -> usize {
    starts.partition_point(|start| *start <= offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_lines_of_settings_and_lacking_tables() {
        let text = "[server]\nlisten = 'x'\n\n[[agents]]\nname = 'a'\n[[agents]]\nname = 'b'\n\
                    scope = { kind = 'global' }\nevent_types = [\n  'a',\n  'b',\n]\n[agents.config]\nx = 1\n";
        let table = DeTable::parse(text).unwrap();
        let found = Locations::of(Path::new("r.toml"), text, table.get_ref())
            .with_variables(["runnel__server__body_seconds".to_owned()].into_iter());
        for (pointer, location) in [
            ("server.listen", Some("r.toml:2")),
            ("server.port", Some("r.toml:1")),
            (
                "server.body_seconds",
                Some("the variable RUNNEL__SERVER__BODY_SECONDS"),
            ),
            ("agents[0]", Some("r.toml:4")),
            ("agents[0].runner_id", Some("r.toml:4")),
            ("agents[1].name", Some("r.toml:7")),
            ("agents[1].scope.kind", Some("r.toml:8")),
            ("agents[1].event_types[1]", Some("r.toml:11")),
            ("agents[1].config.x", Some("r.toml:14")),
            ("auth.master_key", None),
            ("", None),
        ] {
            assert_eq!(found.location_of(pointer).as_deref(), location, "{pointer}");
        }
    }
}
