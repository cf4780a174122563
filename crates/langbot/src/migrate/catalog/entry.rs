//! Builder of a configuration table from a row.

use std::collections::BTreeSet;

use serde_json::Value;

use super::row::CatalogRow;
use crate::migrate::migration_table::{MigrationTable, TableKind};
use crate::migrate::report::{
    FieldAction, FieldNote, Migration, MigrationOutcome, ResourceReport, Variable, member,
};
use crate::migrate::secrets::SecretVariables;

/// A table and the notes on its row.
pub(super) struct TableEntry<'r, 'v> {
    row: &'r CatalogRow<'r>,
    kind: TableKind,
    name: String,
    vault: SecretVariables<'v>,
    members: Vec<(String, Value)>,
    notes: Vec<FieldNote>,
}

impl<'r, 'v> TableEntry<'r, 'v> {
    /// `prefix`: prefix of its variables.
    pub(super) fn new(
        row: &'r CatalogRow<'r>,
        kind: TableKind,
        name: &str,
        prefix: &'v str,
        named: &'v mut BTreeSet<String>,
    ) -> Self {
        Self {
            row,
            kind,
            name: name.to_owned(),
            vault: SecretVariables {
                space: "",
                prefix,
                named,
                removed: Vec::new(),
            },
            members: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Sets a member from a column.
    pub(super) fn set(&mut self, column: &str, member: &str, value: Value) -> &mut FieldNote {
        let action = if column == member {
            FieldAction::Kept
        } else {
            FieldAction::Renamed
        };
        self.members.push((member.to_owned(), value));
        self.note(action, self.row.at(column)).target = Some(member.to_owned());
        self.last()
    }

    /// Adds a member without a column.
    pub(super) fn add(&mut self, member: &str, value: Value, why: &str) {
        self.members.push((member.to_owned(), value));
        let note = FieldNote::new(FieldAction::Defaulted, None);
        self.notes.push(note.to(member).because(why));
    }

    /// Returns the reference to a variable that replaces the secret at `pointer`.
    pub(super) fn refer(&mut self, path: &str, pointer: &str, target: &str) -> Value {
        let reference = self.vault.refer(path, pointer);
        let variable = self.vault.removed.last().map(|one| one.variable.clone());
        let note = FieldNote::new(FieldAction::Referenced, Some(pointer.to_owned())).to(target);
        let why = format!(
            "take the secret from here into {}",
            variable.unwrap_or_default()
        );
        self.notes.push(note.because(why));
        reference
    }

    /// Adds a member whose notes exist already.
    pub(super) fn push(&mut self, member: &str, value: Value) {
        self.members.push((member.to_owned(), value));
    }

    /// Notes the new name of a value within a column. `path`: its path below the row, with `/`.
    pub(super) fn renamed(&mut self, path: &str, target: &str) {
        let pointer = format!("{}/{path}", self.row.pointer);
        self.note(FieldAction::Renamed, pointer).target = Some(target.to_owned());
    }

    /// Notes that a value within a column has no counterpart.
    pub(super) fn dropped(&mut self, path: &[&str], why: &str) {
        let at = path
            .iter()
            .fold(self.row.pointer.clone(), |at, name| member(&at, name));
        self.note(FieldAction::Dropped, at).why = Some(why.to_owned());
    }

    /// Notes that a non-empty column has no counterpart.
    pub(super) fn drop(&mut self, column: &str, why: &str) {
        if self.row.has_value(column) {
            self.note(FieldAction::Dropped, self.row.at(column)).why = Some(why.to_owned());
        }
    }

    pub(super) fn warn(&mut self, column: &str, why: String) {
        self.note(FieldAction::Warning, self.row.at(column)).why = Some(why);
    }

    /// Adds the table to the migration.
    pub(super) fn migrated(self, title: &str, out: &mut Migration) {
        let read_by = format!("the gateway, for {} {}", self.kind.array(), self.name);
        let row = self.row;
        let variables = self.vault.removed.iter().map(|removed| Variable {
            name: removed.variable.clone(),
            from: Some(format!("{}#{}", row.file, removed.pointer)),
            value: None,
            read_by: read_by.clone(),
        });
        out.variables.extend(variables);
        let title = format!("{title}: {}{}", row.file, row.pointer);
        let table = MigrationTable::of(self.kind, &self.name, &title, self.members);
        out.tables.push(table);
        out.resources.push(ResourceReport {
            file: row.file.to_owned(),
            pointer: row.pointer.clone(),
            table: self.kind.array(),
            name: self.name,
            outcome: MigrationOutcome::Migrated,
            message: None,
            fields: self.notes,
        });
    }

    fn note(&mut self, action: FieldAction, pointer: String) -> &mut FieldNote {
        self.notes.push(FieldNote::new(action, Some(pointer)));
        self.last()
    }

    fn last(&mut self) -> &mut FieldNote {
        self.notes.last_mut().expect("a note was pushed just now")
    }
}

/// Cause of a row without a table.
pub(super) struct LeftOutRow {
    outcome: MigrationOutcome,
    message: String,
}

/// Reports a row without a table.
pub(super) fn left_out(
    row: &CatalogRow<'_>,
    kind: TableKind,
    name: &str,
    why: LeftOutRow,
    out: &mut Migration,
) {
    out.resources.push(ResourceReport {
        file: row.file.to_owned(),
        pointer: row.pointer.clone(),
        table: kind.array(),
        name: name.to_owned(),
        outcome: why.outcome,
        message: Some(why.message),
        fields: Vec::new(),
    });
}

/// A row without a counterpart.
pub(super) fn blocked(why: impl Into<String>) -> LeftOutRow {
    LeftOutRow {
        outcome: MigrationOutcome::Blocked,
        message: why.into(),
    }
}

/// A row with nothing to migrate.
pub(super) fn nothing(why: impl Into<String>) -> LeftOutRow {
    LeftOutRow {
        outcome: MigrationOutcome::Nothing,
        message: why.into(),
    }
}
