//! `runnel migrate-config`: `LangBot`'s pipelines as agents and runner endpoints of `runnel.toml`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use domain::migrate::{
    Document, FieldNote, LocalAgent, Migration, Outcome, RunnerIds, Standing, Table, Target,
    Variable, migrate, standing,
};
use serde_json::{Value, json};

use crate::cli::output;
use crate::config::parse_toml;

/// The most bytes of a file that is read.
const FILE_BYTES: u64 = 16 * 1024 * 1024;
const HEAD: &str = "# Begun by `runnel migrate-config`. Every other setting: see the defaults.\n\n\
    [auth]\nmaster_key = \"env:RUNNEL_MASTER_KEY\"\n";

#[derive(clap::Args)]
pub(super) struct MigrateArguments {
    /// JSON or TOML: a pipeline, a list of them, or an export with several.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Add what is missing to this file, and change nothing that stands there.
    #[arg(long, value_name = "PATH")]
    write: Option<PathBuf>,
    /// Which ids the runners have: `plugin:langbot-team/DifyAgent/default` or `plugin:langbot/dify-agent/default`.
    #[arg(long, value_enum, default_value = "newer")]
    ids: Ids,
    /// Which agent takes the place of LangBot's local agent: its plugin, or Runnel's own,
    /// `plugin:runnel/local-agent/default`.
    #[arg(long, value_enum, default_value = "langbot")]
    local_agent: Local,
}

#[derive(Clone, Copy, ValueEnum)]
enum Local {
    Langbot,
    Runnel,
}

#[derive(Clone, Copy, ValueEnum)]
enum Ids {
    Newer,
    Older,
}

/// Plans, prints, and writes when told to. Fails when a pipeline could not be migrated.
pub(super) fn migrate_config(arguments: &MigrateArguments, json: bool) -> anyhow::Result<ExitCode> {
    let mut migration = plan(arguments)?;
    let written = match &arguments.write {
        None => Written::nowhere(&migration.tables),
        Some(path) => write(path, &migration.tables)?,
    };
    if written.outcome == "created" {
        migration.variables.push(Variable {
            name: "RUNNEL_MASTER_KEY".to_owned(),
            from: None,
            read_by: "the gateway: 32 random bytes as hex, for example openssl rand -hex 32"
                .to_owned(),
        });
    }
    if json {
        let mut told = json!(migration);
        told["toml"] = json!(written.text);
        told["write"] = json!({
            "path": arguments.write,
            "outcome": written.outcome,
            "added": written.added,
            "kept": written.kept,
        });
        output::document(&told);
    } else {
        output::remark(&report(&migration));
        match &arguments.write {
            None => output::piece(&written.text),
            Some(path) => output::line(&written.told(path)),
        }
    }
    let blocked = migration
        .pipelines
        .iter()
        .any(|one| one.outcome == Outcome::Blocked);
    Ok(if blocked {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn plan(arguments: &MigrateArguments) -> anyhow::Result<Migration> {
    let mut read = Vec::new();
    for path in &arguments.files {
        read.push((path.display().to_string(), read_document(path)?));
    }
    let documents: Vec<_> = read
        .iter()
        .map(|(file, value)| Document { file, value })
        .collect();
    let to = Target {
        ids: match arguments.ids {
            Ids::Newer => RunnerIds::Newer,
            Ids::Older => RunnerIds::Older,
        },
        local_agent: match arguments.local_agent {
            Local::Langbot => LocalAgent::Langbot,
            Local::Runnel => LocalAgent::Runnel,
        },
    };
    migrate(&documents, to).map_err(|faults| {
        let lines: Vec<_> = faults
            .iter()
            .map(|(file, fault)| format!("{file}#{} {}", fault.pointer, fault.message))
            .collect();
        anyhow::anyhow!(lines.join("\n"))
    })
}

/// A file as a document. A parser's message may quote the file, which holds secrets: only the place is told.
fn read_document(path: &Path) -> anyhow::Result<Value> {
    let shown = path.display();
    let size = fs::metadata(path)
        .with_context(|| format!("{shown} cannot be read"))?
        .len();
    ensure!(
        size <= FILE_BYTES,
        "{shown} is larger than 16 MiB; migrate its pipelines in parts"
    );
    let bytes = fs::read(path).with_context(|| format!("{shown} cannot be read"))?;
    let text = text_of(&bytes, path)?;
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension {
        Some("toml") => Ok(parse_toml(path, text).map_err(|fault| anyhow::anyhow!(fault.message))?),
        Some("yaml" | "yml") => bail!("{shown} is YAML; convert it to JSON first"),
        _ => serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            anyhow::anyhow!("{shown} is no valid JSON at line {line}, column {column}")
        }),
    }
}

/// The text of a file in UTF-8; other encodings and formats that exports come in are named.
fn text_of<'a>(bytes: &'a [u8], path: &Path) -> anyhow::Result<&'a str> {
    let shown = path.display();
    let other = match bytes {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some("UTF-32"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, 1..=255, ..] | [1..=255, 0, ..] => Some("UTF-16"),
        _ => None,
    };
    if let Some(other) = other {
        bail!("{shown} is {other}; save it as UTF-8 and run this again");
    }
    ensure!(
        !bytes.starts_with(b"SQLite format 3"),
        "{shown} is an SQLite database; export its table of pipelines as JSON"
    );
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if text.len() < bytes.len() {
        output::remark(&format!(
            "{shown} begins with a byte order mark, which is skipped"
        ));
    }
    std::str::from_utf8(text)
        .with_context(|| format!("{shown} cannot be read as text: it is not in UTF-8"))
}

/// What was written, or would be.
struct Written {
    text: String,
    /// `dry_run`, `created`, `extended` or `unchanged`.
    outcome: &'static str,
    added: Vec<String>,
    /// Tables that stand there and say something else.
    kept: Vec<String>,
}

impl Written {
    fn nowhere(tables: &[Table]) -> Self {
        Self {
            text: joined(&tables.iter().collect::<Vec<_>>()),
            outcome: "dry_run",
            added: Vec::new(),
            kept: Vec::new(),
        }
    }

    fn told(&self, path: &Path) -> String {
        let mut told = format!("{} {}", self.outcome, path.display());
        for name in &self.added {
            let _ = write!(told, "\n  added {name}");
        }
        for name in &self.kept {
            let _ = write!(
                told,
                "\n  kept {name}: it stands there already and says something else"
            );
        }
        told
    }
}

/// Adds to the file what is missing in it.
fn write(path: &Path, tables: &[Table]) -> anyhow::Result<Written> {
    let shown = path.display();
    let before = match fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("{shown} cannot be read")),
    };
    let parse = |text: &str| parse_toml(path, text).map_err(|fault| anyhow::anyhow!(fault.message));
    let settings = parse(before.as_deref().unwrap_or_default())?;
    let of = |wanted: Standing| {
        let fits = tables
            .iter()
            .filter(|table| standing(&settings, table) == wanted);
        fits.collect::<Vec<_>>()
    };
    let (missing, differing) = (of(Standing::Missing), of(Standing::Differs));
    let named = |tables: &[&Table]| {
        let name = |table: &&Table| format!("{} {}", table.kind.array(), table.name);
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
        let extended = parse(&after).with_context(|| format!("{shown} cannot be extended"))?;
        let is_there = |table: &&Table| standing(&extended, table) == Standing::Same;
        ensure!(
            missing.iter().all(is_there),
            "{shown} cannot be extended: write its agents and runner_endpoints as [[agents]] and [[runner_endpoints]]"
        );
        replace(path, before.as_deref(), &after)?;
    }
    Ok(Written {
        text,
        outcome,
        added: named(&missing),
        kept: named(&differing),
    })
}

/// Puts the text in the file's place, whole or not at all, unless somebody has changed it since.
fn replace(path: &Path, before: Option<&str>, after: &str) -> anyhow::Result<()> {
    let shown = path.display();
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = real.clone().into_os_string();
    name.push(format!(".{}.new", std::process::id()));
    let new = PathBuf::from(name);
    let put = || -> anyhow::Result<()> {
        fs::write(&new, after)?;
        if let Ok(metadata) = fs::metadata(&real) {
            fs::set_permissions(&new, metadata.permissions())?;
        }
        let now = fs::read_to_string(&real).ok();
        ensure!(now.as_deref() == before, "it was changed in the meantime");
        fs::rename(&new, &real)?;
        Ok(())
    };
    put().with_context(|| {
        let _ = fs::remove_file(&new);
        format!("{shown} cannot be written")
    })
}

fn joined(tables: &[&Table]) -> String {
    let texts: Vec<_> = tables.iter().map(|table| table.text.as_str()).collect();
    texts.join("\n")
}

fn report(migration: &Migration) -> String {
    let mut text = String::new();
    for one in &migration.pipelines {
        let runner = one.runner_id.as_deref().unwrap_or("nothing");
        let outcome = match one.outcome {
            Outcome::Migrated => "",
            Outcome::Nothing => " (nothing to migrate)",
            Outcome::Blocked => " (NOT MIGRATED)",
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
    if !migration.variables.is_empty() {
        text.push_str("\nVariables to set:\n");
    }
    for variable in &migration.variables {
        let from = match &variable.from {
            Some(from) => format!("its value stands at {from}; "),
            None => String::new(),
        };
        let _ = writeln!(
            text,
            "  {}: {from}read by {}",
            variable.name, variable.read_by
        );
    }
    text
}

fn line(text: &mut String, note: &FieldNote) {
    let action = json!(note.action);
    let _ = write!(text, "  {:<10}", action.as_str().unwrap_or_default());
    match (&note.pointer, &note.target) {
        (Some(pointer), Some(target)) => {
            let _ = write!(text, " {pointer} → {target}");
        }
        (Some(place), None) | (None, Some(place)) => {
            let _ = write!(text, " {place}");
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
