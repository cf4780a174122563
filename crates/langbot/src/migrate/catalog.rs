//! Catalog rows of LangBot: model providers, models, MCP servers and knowledge bases.
//!
//! A database stores them in tables, LangBot's API returns them in lists. Models and knowledge bases keep their
//! ids, because pipelines refer to them.

mod bases;
mod entry;
mod models;
mod providers;
mod row;
mod servers;

use std::collections::BTreeSet;

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::Value;

use super::convert::decoded;
use super::report::{Migration, member};
use super::source::MigrationDocument;
use providers::Providers;
use row::{CatalogRow, RowKind};

/// Maximum rows of one migration.
const ROWS: usize = 10_000;
/// Maximum nesting depth of a list of rows.
const DEPTH: usize = 4;

/// Returns true for an object with lists of rows, including empty lists.
pub(super) fn is_catalog(object: &JsonObject) -> bool {
    let mut lists = RowKind::LISTS.iter();
    lists.any(|(name, _)| object.get(*name).is_some_and(|rows| list(rows).is_some()))
}

/// Returns true if a document has lists of rows at any position that [`rows`] searches.
pub(super) fn holds_rows(document: &Value) -> bool {
    let mut holds = false;
    walk(document, "", 0, &mut |object, _| {
        holds |= is_catalog(object);
    });
    holds
}

/// Returns all rows of a document.
pub(super) fn rows<'a>(document: &MigrationDocument<'a>) -> Result<Vec<CatalogRow<'a>>, Fault> {
    let mut rows = Vec::new();
    let mut fault = None;
    walk(document.value, "", 0, &mut |object, pointer| {
        for (name, kind) in RowKind::LISTS {
            let Some(items) = object.get(*name).and_then(list) else {
                continue;
            };
            for (at, item) in items.iter().enumerate() {
                let pointer = format!("{}/{at}", member(pointer, name));
                if rows.len() >= ROWS {
                    // Reported at the first surplus row: a document of millions of rows is not read to its end.
                    fault = Some(Fault::new(pointer, "is one too many: 10000 rows at most"));
                    return;
                }
                match item {
                    Value::Object(members) => {
                        rows.push(CatalogRow::new(document.file, pointer, *kind, members));
                    }
                    _ => fault = Some(Fault::new(pointer, "must be an object")),
                }
            }
        }
    });
    fault.map_or(Ok(rows), Err)
}

/// Plans all rows. `rankers`: model ids that pipelines use for ranking.
pub(super) fn plan(
    rows: &[CatalogRow<'_>],
    rankers: &BTreeSet<String>,
    variables: &mut BTreeSet<String>,
) -> Migration {
    let mut out = Migration::default();
    let of = |kinds: &'static [RowKind]| rows.iter().filter(move |row| kinds.contains(&row.kind));
    // Providers first: models refer to them by id.
    let mut providers = Providers::default();
    for row in of(&[RowKind::Provider]) {
        providers.plan(row, &mut out, variables);
    }
    let mut model_ids = BTreeSet::new();
    for row in of(RowKind::MODELS) {
        models::plan(
            row,
            rankers,
            &mut providers,
            &mut model_ids,
            &mut out,
            variables,
        );
    }
    let mut names = BTreeSet::new();
    for row in of(&[RowKind::Server]) {
        servers::plan(row, &mut names, &mut out, variables);
    }
    // Documents are only counted: their vectors belong to another store.
    let files: Vec<_> = of(&[RowKind::File]).collect();
    for row in of(&[RowKind::Base]) {
        bases::plan(row, &model_ids, &files, &mut out, variables);
    }
    sort(&mut out);
    out
}

/// Sorts providers before the models that refer to them, also for models with an inline provider.
fn sort(out: &mut Migration) {
    let order = [
        "model_providers",
        "models",
        "mcp_servers",
        "knowledge_bases",
    ];
    let rank = |name: &str| order.iter().position(|one| *one == name);
    out.tables.sort_by_key(|table| rank(table.kind.array()));
}

fn list(value: &Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(items) => Some(items.clone()),
        // `SQLite` stores lists as texts.
        _ => match decoded(value) {
            Some(Value::Array(items)) => Some(items),
            _ => None,
        },
    }
}

fn walk(value: &Value, pointer: &str, depth: usize, visit: &mut impl FnMut(&JsonObject, &str)) {
    // The depth is bounded, since a document may come from an attacker.
    if depth > DEPTH {
        return;
    }
    match value {
        Value::Object(object) => {
            visit(object, pointer);
            // Only `data` leads to lists in answers of LangBot's API. Other members may have lists of the same names
            // with another meaning.
            if let Some(data) = object.get("data") {
                walk(data, &member(pointer, "data"), depth + 1, visit);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                walk(item, &format!("{pointer}/{at}"), depth + 1, visit);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
