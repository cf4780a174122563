//! The playground's generated settings: a template that is filled in at start, and again when a runner of the command
//! line lists other runners.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use langbot::migrate::toml_text;
use serde_json::json;
use store::sha256_hex;

use super::model::ChosenModel;
use super::own_runners::OwnRunners;
use super::sidecars::StartedSidecar;
use crate::config::sqlite_url;
use cli::dev_file::write_private;

const TEMPLATE: &str = include_str!("dev.toml");
/// Agent of the template whose model declares action graphs.
#[cfg(feature = "graph")]
const PLANNER: &str = include_str!("planner_agent.toml");
#[cfg(not(feature = "graph"))]
const PLANNER: &str = "";
/// Name of the file in the data directory.
pub(super) const SETTINGS_FILE: &str = "dev.toml";
/// Start of the line with the digest of the rest of the file.
const DIGEST: &str = "# digest ";
/// Agents of the template.
const AGENTS: [&str; 2] = ["hello", "planner"];

/// Everything that the generated settings depend on.
pub(super) struct GeneratedSettings {
    /// Absolute, so that a copy of the file serves from any directory.
    pub(super) data_dir: PathBuf,
    pub(super) listen: SocketAddr,
    pub(super) model: ChosenModel,
    pub(super) sidecars: Vec<StartedSidecar>,
    pub(super) own: OwnRunners,
}

impl GeneratedSettings {
    pub(super) fn file(&self) -> PathBuf {
        self.data_dir.join(SETTINGS_FILE)
    }

    /// Writes the file. One that was changed by hand is kept under another name, which is returned.
    pub(super) fn write(&self) -> anyhow::Result<Option<PathBuf>> {
        let file = self.file();
        let text = self.text();
        let backup = match std::fs::read_to_string(&file) {
            // Writing an equal file would change its time and wake file watchers.
            Ok(found) if found == text => return Ok(None),
            Ok(found) if !is_generated(&found) => Some(keep(&file)?),
            _ => None,
        };
        write_private(&file, &text)?;
        Ok(backup)
    }

    fn text(&self) -> String {
        let text = self.filled();
        let digest = digest_of(&text);
        let (head, rest) = text.split_once("{digest}").unwrap_or((&text, ""));
        format!("{head}{digest}{rest}")
    }

    fn filled(&self) -> String {
        let sidecars = self.sidecars.iter().map(|one| one.address.to_string());
        let rules = self.own.rules().chain(&self.model.rule).cloned();
        let allow: Vec<_> = sidecars.chain(rules).collect();
        let data = toml_escaped(&self.data_dir.to_string_lossy());
        let model_id = toml_escaped(&self.model.model_id);
        let planner_models = self.model.planner_models();
        let values = [
            ("# {models}", self.model.tables()),
            ("{has_planner}", (!PLANNER.is_empty()).to_string()),
            ("{allow}", toml_text::value(&json!(allow))),
            ("{listen}", self.listen.to_string()),
            ("{planner_models}", planner_models.join(", ")),
            ("{planner_fallbacks}", planner_models[1..].join(", ")),
            ("{planner_model}", toml_escaped(self.model.planner())),
            ("{database}", toml_escaped(&sqlite_url(&self.data_dir))),
            ("{model_id}", model_id.clone()),
            ("{data}", data.clone()),
        ];
        let fill = |text: String, (name, value): (&str, String)| text.replace(name, &value);
        let text = [TEMPLATE, PLANNER].concat();
        let mut text = values.into_iter().fold(text, fill);
        // Last, because these texts may contain what looks like a placeholder.
        for sidecar in &self.sidecars {
            text.push_str(&sidecar.tables(&data, &model_id));
        }
        let others = self.sidecars.iter().flat_map(StartedSidecar::agents);
        let others: Vec<_> = others.chain(AGENTS.map(str::to_owned)).collect();
        let others: Vec<_> = others.iter().map(String::as_str).collect();
        text.push_str(&self.own.tables(&others));
        text
    }
}

/// True if the digest in the file fits the rest of it: nothing was changed by hand.
fn is_generated(text: &str) -> bool {
    let Some(line) = text.lines().find(|line| line.starts_with(DIGEST)) else {
        return false;
    };
    // The digest was taken of the text with the placeholder.
    let template = text.replacen(line, &format!("{DIGEST}{{digest}}"), 1);
    line[DIGEST.len()..] == digest_of(&template)
}

fn digest_of(text: &str) -> String {
    sha256_hex(text.as_bytes())[..16].to_owned()
}

/// Renames the file to the first free name `dev.toml.bak`, `dev.toml.bak2` …
fn keep(file: &Path) -> anyhow::Result<PathBuf> {
    let name = |number: u32| match number {
        1 => file.with_extension("toml.bak"),
        _ => file.with_extension(format!("toml.bak{number}")),
    };
    // Earlier backups stay: their changes may not be merged yet.
    let free = (1..=1000).map(name).find(|name| !name.exists());
    let free = free.context("the data directory is full of copies of dev.toml; delete some")?;
    std::fs::rename(file, &free)
        .with_context(|| format!("{} cannot be renamed", file.display()))?;
    Ok(free)
}

/// Escapes a text for a TOML string, without the quotes.
fn toml_escaped(text: &str) -> String {
    let quoted = toml_text::value(&json!(text));
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_files_do_not_fit_their_digest() {
        let template = "# a\n# digest {digest}\n[server]\nlisten = \"x\"\n";
        let text = template.replace("{digest}", &digest_of(template));
        assert!(is_generated(&text));
        for changed in [
            text.replace("\"x\"", "\"y\""),
            text.replace("# digest ", "# "),
            String::new(),
        ] {
            assert!(!is_generated(&changed), "{changed}");
        }
    }
}
