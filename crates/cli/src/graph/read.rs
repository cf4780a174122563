//! Input files of `runnel graph`: a model output, and a script of tools.

use std::io::Read as _;
use std::path::Path;

use action_graph::output::ModelOutput;
use action_graph::rules::CarrierMode;
use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::graph::script::{ReplayScript, ScriptFile};
use crate::parse_toml::ParseToml;

/// Maximum size of a file; twice the largest declaration.
const MAX_BYTES: u64 = 1 << 20;

/// A model output and its format.
pub(super) struct ModelFile {
    pub(super) output: ModelOutput,
    /// Format that the agent is assumed to be configured for.
    pub(super) carrier: CarrierMode,
}

/// Reads a model output. Text that begins with `{` is carrier arguments; other text is Markdown.
pub(super) fn read_model_output(path: &Path) -> anyhow::Result<ModelFile> {
    Ok(model_output(&read(path)?))
}

pub(super) fn model_output(text: &str) -> ModelFile {
    if text.trim_start().starts_with('{') {
        return ModelFile {
            output: ModelOutput::carrier(text),
            carrier: CarrierMode::Flat,
        };
    }
    ModelFile {
        output: ModelOutput::text(text),
        carrier: CarrierMode::Fenced,
    }
}

/// Reads a script: JSON if the extension is `.json`, else TOML.
pub(super) fn read_script(path: &Path, parse_toml: ParseToml) -> anyhow::Result<ReplayScript> {
    let text = read(path)?;
    let shown = path.display();
    let is_json = path.extension().is_some_and(|end| end == "json");
    let value: Value = if is_json {
        serde_json::from_str(&text).with_context(|| format!("{shown} is no JSON"))?
    } else {
        parse_toml(path, &text)?
    };
    let file: ScriptFile = serde_path_to_error::deserialize(value)
        .map_err(|error| anyhow::anyhow!("{shown}: {}: {}", error.path(), error.inner()))?;
    ReplayScript::new(file).with_context(|| format!("{shown} is no script of tools"))
}

fn read(path: &Path) -> anyhow::Result<String> {
    let (shown, mut bytes) = (path.display(), Vec::new());
    let read = if path.as_os_str() == "-" {
        std::io::stdin()
            .lock()
            .take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
    };
    read.with_context(|| format!("cannot read {shown}"))?;
    // One byte more than allowed was read, to notice the excess.
    if bytes.len() as u64 > MAX_BYTES {
        bail!("{shown} is larger than 1 MiB");
    }
    String::from_utf8(bytes).with_context(|| format!("{shown} is no UTF-8"))
}
