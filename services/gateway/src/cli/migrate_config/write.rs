//! Merges tables into a configuration file.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use langbot::migrate::{MigrationTable, TableComparison, TableKind, compare_table};

use crate::config::parse_toml;

const HEAD: &str = "# Begun by `runnel migrate-config`. Every other setting: see the defaults.\n\n\
    [auth]\nmaster_key = \"env:RUNNEL_MASTER_KEY\"\n";

/// Result of a write or dry run.
pub(super) struct MergedFile {
    pub(super) text: String,
    /// `dry_run`, `created`, `extended` or `unchanged`.
    pub(super) outcome: &'static str,
    pub(super) added: Vec<String>,
    /// Existing tables with different content.
    pub(super) differing: Vec<String>,
}

impl MergedFile {
    pub(super) fn nowhere(tables: &[MigrationTable]) -> Self {
        Self {
            text: joined(&tables.iter().collect::<Vec<_>>()),
            outcome: "dry_run",
            added: Vec::new(),
            differing: Vec::new(),
        }
    }

    pub(super) fn summary(&self, path: &Path) -> String {
        let mut text = format!("{} {}", self.outcome, path.display());
        for name in &self.added {
            let _ = write!(text, "\n  added {name}");
        }
        for name in &self.differing {
            let _ = write!(text, "\n  kept {name}: it exists with different content");
        }
        text
    }
}

/// Adds missing tables to the file.
pub(super) fn write(path: &Path, tables: &[MigrationTable]) -> anyhow::Result<MergedFile> {
    let shown = path.display();
    let before = match fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("{shown} cannot be read")),
    };
    let parse = |text: &str| parse_toml(path, text).map_err(|fault| anyhow::anyhow!(fault.message));
    let settings = parse(before.as_deref().unwrap_or_default())?;
    let of = |wanted: TableComparison| {
        let fits = tables
            .iter()
            .filter(|table| compare_table(&settings, table) == wanted);
        fits.collect::<Vec<_>>()
    };
    let (missing, differing) = (of(TableComparison::Missing), of(TableComparison::Differs));
    let named = |tables: &[&MigrationTable]| {
        let name = |table: &&MigrationTable| match table.kind {
            TableKind::Egress => format!("egress {}", table.members["allow"]),
            kind => format!("{} {}", kind.array(), table.name),
        };
        tables.iter().map(name).collect::<Vec<_>>()
    };
    let text = joined(&missing);
    let outcome = match &before {
        _ if missing.is_empty() => "unchanged",
        None => "created",
        Some(_) => "extended",
    };
    if !missing.is_empty() {
        let head = before.as_deref().unwrap_or(HEAD).trim_end();
        let after = if head.is_empty() {
            text.clone()
        } else {
            format!("{head}\n\n{text}")
        };
        // The text is appended, so the result is parsed to prove that the tables arrived.
        let extended = parse(&after).with_context(|| format!("{shown} cannot be extended"))?;
        let is_there =
            |table: &&MigrationTable| compare_table(&extended, table) == TableComparison::Same;
        ensure!(
            missing.iter().all(is_there),
            "{shown} cannot be extended: write its agents, runner_endpoints and other lists as [[agents]], [[runner_endpoints]] and so on"
        );
        replace(path, before.as_deref(), &after)?;
    }
    Ok(MergedFile {
        text,
        outcome,
        added: named(&missing),
        differing: named(&differing),
    })
}

/// Replaces the file atomically. Fails if the file has changed since it was read.
fn replace(path: &Path, before: Option<&str>, after: &str) -> anyhow::Result<()> {
    let shown = path.display();
    // A symbolic link must stay; only its target is replaced.
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = real.clone().into_os_string();
    name.push(format!(".{}.new", std::process::id()));
    let new = PathBuf::from(name);
    let put = || -> anyhow::Result<()> {
        // Next to the target, so that the rename is atomic.
        fs::write(&new, after)?;
        if let Ok(metadata) = fs::metadata(&real) {
            fs::set_permissions(&new, metadata.permissions())?;
        }
        // Another editor may have saved the file; its changes must not be lost.
        let now = fs::read_to_string(&real).ok();
        ensure!(now.as_deref() == before, "it was changed in the meantime");
        fs::rename(&new, &real)?;
        Ok(())
    };
    put().with_context(|| {
        // The temporary file may not exist; the first error counts.
        let _ = fs::remove_file(&new);
        format!("{shown} cannot be written")
    })
}

fn joined(tables: &[&MigrationTable]) -> String {
    let texts: Vec<_> = tables.iter().map(|table| table.text.as_str()).collect();
    texts.join("\n")
}
