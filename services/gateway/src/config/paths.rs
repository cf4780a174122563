//! Relative paths of a file: relative to the directory of the file, not to the working directory.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::fault::ConfigFault;

/// Form of a path in a setting.
#[derive(Clone, Copy)]
enum PathForm {
    Plain,
    /// `file:PATH`, a secret reference.
    Reference,
    /// `sqlite://PATH`, percent-encoded, or a secret reference.
    DatabaseUrl,
    /// `file://PATH`
    DirectoryUrl,
}

const SQLITE: &str = "sqlite://";

/// Settings with paths. `[]` is each item of an array, `*` each value of a table.
const SETTINGS: [(&str, PathForm); 24] = [
    ("auth.master_key", PathForm::Reference),
    ("database.url", PathForm::DatabaseUrl),
    ("bus.password", PathForm::Reference),
    ("bus.token", PathForm::Reference),
    ("bus.credentials", PathForm::Reference),
    ("bus.ca_file", PathForm::Plain),
    ("telemetry.headers.*", PathForm::Reference),
    ("artifacts.url", PathForm::DirectoryUrl),
    ("artifacts.access_key_id", PathForm::Reference),
    ("artifacts.secret_access_key", PathForm::Reference),
    ("model_providers.[].api_keys.[]", PathForm::Reference),
    ("model_providers.[].headers.*", PathForm::Reference),
    ("model_providers.[].script", PathForm::Plain),
    ("mcp_servers.[].headers.*", PathForm::Reference),
    ("mcp_servers.[].env.*", PathForm::Reference),
    ("tools.[].headers.*", PathForm::Reference),
    ("knowledge_bases.[].api_key", PathForm::Reference),
    ("runner_endpoints.[].secret", PathForm::Reference),
    ("runner_endpoints.[].headers.*", PathForm::Reference),
    ("sources.[].secret", PathForm::Reference),
    ("webhooks.[].secret", PathForm::Reference),
    ("files.[].path", PathForm::Plain),
    ("skills.[].directory", PathForm::Plain),
    ("skill_directories.[].directory", PathForm::Plain),
];

/// Prefixes the relative paths of a file's settings with the file's directory. A path that exists in the working
/// directory only is a fault: an earlier version may have meant it.
pub(super) fn anchor(tree: &mut Value, file: &Path) -> Result<(), Vec<ConfigFault>> {
    let directory = file.parent().unwrap_or(Path::new(""));
    // A file in the working directory needs no prefix.
    if directory.as_os_str().is_empty() || directory == Path::new(".") {
        return Ok(());
    }
    let mut faults = Vec::new();
    for (setting, form) in SETTINGS {
        each(tree, "", setting, &mut |pointer, text| {
            let Some((prefix, path)) = split(text, form) else {
                return;
            };
            // Only the path is encoded in a database URL, so it is compared decoded.
            let written = decoded(prefix, path);
            if !directory.join(&written).exists() && written.exists() {
                faults.push(moved(pointer, directory));
            }
            let start = encoded(prefix, &directory.to_string_lossy());
            *text = format!("{prefix}{}", Path::new(&start).join(path).display());
        });
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults)
    }
}

fn moved(pointer: &str, directory: &Path) -> ConfigFault {
    let directory = directory.display();
    ConfigFault::new(
        pointer,
        format_args!(
            "is relative to the directory of this file, {directory}, and does not exist there, but it exists in the working \
             directory; write an absolute path"
        ),
    )
}

/// Applies `change` to each text at `setting`.
fn each(
    value: &mut Value,
    pointer: &str,
    setting: &str,
    change: &mut impl FnMut(&str, &mut String),
) {
    let (segment, rest) = setting.split_once('.').unwrap_or((setting, ""));
    match (segment, value) {
        ("", Value::String(text)) => change(pointer, text),
        ("[]", Value::Array(items)) => {
            for (index, item) in items.iter_mut().enumerate() {
                each(item, &format!("{pointer}[{index}]"), rest, change);
            }
        }
        ("*", Value::Object(entries)) => {
            for (name, entry) in entries {
                each(entry, &format!("{pointer}.{name}"), rest, change);
            }
        }
        (name, Value::Object(entries)) => {
            if let Some(entry) = entries.get_mut(name) {
                let dot = if pointer.is_empty() { "" } else { "." };
                each(entry, &format!("{pointer}{dot}{name}"), rest, change);
            }
        }
        _ => {}
    }
}

/// Prefix and relative path of a text; `None` for anything else.
fn split(text: &str, form: PathForm) -> Option<(&'static str, &str)> {
    let prefixes: &[&str] = match form {
        PathForm::Plain => &[""],
        PathForm::Reference => &["file:"],
        PathForm::DatabaseUrl => &[SQLITE, "file:"],
        PathForm::DirectoryUrl => &["file://"],
    };
    let found = prefixes
        .iter()
        .find_map(|prefix| Some((*prefix, text.strip_prefix(prefix)?)));
    let is_relative =
        |path: &str| !path.is_empty() && path != ":memory:" && Path::new(path).is_relative();
    found.filter(|(_, path)| is_relative(path))
}

fn decoded(prefix: &str, path: &str) -> PathBuf {
    if prefix != SQLITE {
        return PathBuf::from(path);
    }
    let decoded = percent_encoding::percent_decode_str(path);
    PathBuf::from(decoded.decode_utf8_lossy().into_owned())
}

fn encoded(prefix: &str, path: &str) -> String {
    if prefix == SQLITE {
        super::escaped_url_path(path)
    } else {
        path.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn relative_paths_start_at_the_file() {
        let mut tree = json!({
            "auth": {"master_key": "file:keys/master"},
            "database": {"url": "sqlite://./data/r.db"},
            "artifacts": {"url": "file://data/artifacts", "access_key_id": "env:ID"},
            "bus": {"ca_file": "ca.pem"},
            "model_providers": [{"api_keys": ["file:a", "file:/b"], "headers": {"x": "file:c"}, "script": "s.toml"}],
            "skills": [{"directory": "skills/x", "description": "file:not a path"}],
            "agents": [{"config": {"secret": "file:opaque"}}],
            "runner_endpoints": [{"secret": "file:e.secret", "manifests": {"secret": "file:opaque"}}],
        });
        anchor(&mut tree, Path::new("/etc/run%nel/r.toml")).unwrap();
        let expected = json!({
            "auth": {"master_key": "file:/etc/run%nel/keys/master"},
            "database": {"url": "sqlite:///etc/run%25nel/./data/r.db"},
            "artifacts": {"url": "file:///etc/run%nel/data/artifacts", "access_key_id": "env:ID"},
            "bus": {"ca_file": "/etc/run%nel/ca.pem"},
            "model_providers": [{
                "api_keys": ["file:/etc/run%nel/a", "file:/b"], "headers": {"x": "file:/etc/run%nel/c"},
                "script": "/etc/run%nel/s.toml",
            }],
            "skills": [{"directory": "/etc/run%nel/skills/x", "description": "file:not a path"}],
            "agents": [{"config": {"secret": "file:opaque"}}],
            "runner_endpoints": [
                {"secret": "file:/etc/run%nel/e.secret", "manifests": {"secret": "file:opaque"}},
            ],
        });
        assert_eq!(tree, expected);
    }

    #[test]
    fn refuses_paths_of_the_working_directory() {
        // Tests run in the directory of the crate.
        let mut tree = json!({"database": {"url": "sqlite://Cargo.toml"}, "auth": {"master_key": "file:none"}});
        let faults = anchor(&mut tree, Path::new("/nowhere/r.toml")).unwrap_err();
        let pointers: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(pointers, ["database.url"]);
    }

    #[test]
    fn files_of_the_working_directory_stay_unchanged() {
        for file in ["r.toml", "./r.toml"] {
            let mut tree = json!({"auth": {"master_key": "file:key"}});
            anchor(&mut tree, Path::new(file)).unwrap();
            assert_eq!(tree, json!({"auth": {"master_key": "file:key"}}));
        }
    }
}
