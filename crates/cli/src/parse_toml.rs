//! The parser of TOML files, which the binary shares with its configuration.

use std::path::Path;

use serde_json::Value;

/// Parses the text of a TOML file. Its errors name the file and the line.
pub type ParseToml = fn(&Path, &str) -> anyhow::Result<Value>;
