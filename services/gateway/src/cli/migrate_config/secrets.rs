//! `--secrets`: a file with the values of variables, for `EnvironmentFile=`, `env_file:` or a shell.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use langbot::migrate::SecretValue;
use secrecy::ExposeSecret as _;
use serde::Serialize;

use cli::dev_file::write_private;

const HEAD: &str = "# Secrets of LangBot, written by `runnel migrate-config`.\n";

/// Names of the variables. No value is printed.
#[derive(Serialize)]
pub(super) struct WrittenSecrets {
    added: Vec<String>,
    /// The file has them already.
    kept: Vec<String>,
    /// The source has no value for them.
    missing: Vec<String>,
}

impl WrittenSecrets {
    pub(super) fn summary(&self, path: &Path) -> String {
        let mut text = format!("\nSecrets in {}, mode 0600:\n", path.display());
        for (names, outcome) in [
            (&self.added, "added"),
            (&self.kept, "kept"),
            (&self.missing, "missing"),
        ] {
            for name in names {
                let _ = write!(text, "  {outcome:<10} {name}");
                if outcome == "missing" {
                    text.push_str(": the source masks its value; write it here");
                }
                text.push('\n');
            }
        }
        text
    }
}

/// Adds missing variables to the file and makes it private. Existing values stay.
pub(super) fn write_secrets(
    path: &Path,
    secrets: &[SecretValue],
) -> anyhow::Result<WrittenSecrets> {
    let mut text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => HEAD.to_owned(),
        Err(error) => {
            return Err(error).with_context(|| format!("{} cannot be read", path.display()));
        }
    };
    // Existing values win: the operator may have rotated a secret since.
    let present: BTreeSet<String> = text.lines().filter_map(name_of).collect();
    let (mut added, mut existing, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    if !text.ends_with('\n') {
        text.push('\n');
    }
    for secret in secrets {
        let name = secret.variable.clone();
        match &secret.value {
            _ if present.contains(&name) => existing.push(name),
            None => missing.push(name),
            Some(value) => {
                let _ = writeln!(text, "{name}={}", quoted(value.expose_secret()));
                added.push(name);
            }
        }
    }
    // Also without additions, so that the mode of an existing file is restricted.
    write_private(path, &text)?;
    Ok(WrittenSecrets {
        added,
        kept: existing,
        missing,
    })
}

fn name_of(line: &str) -> Option<String> {
    let line = line.trim_start();
    let (name, _) = line
        .strip_prefix("export ")
        .unwrap_or(line)
        .split_once('=')?;
    Some(name.trim().to_owned())
}

/// Plain texts need no quotes. Files of services know no escape of a single quote; a shell does.
fn quoted(value: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./+=:@%,".contains(&byte);
    if !value.is_empty() && value.bytes().all(is_plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use secrecy::SecretString;

    use super::*;

    fn secret(variable: &str, value: Option<&str>) -> SecretValue {
        SecretValue {
            variable: variable.to_owned(),
            value: value.map(SecretString::from),
        }
    }

    #[test]
    fn adds_missing_secrets_to_private_file() {
        let path = std::env::temp_dir().join(format!("runnel-secrets-{}", uuid::Uuid::new_v4()));
        fs::write(&path, "# mine\nexport A_KEY=own").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let secrets = [
            secret("A_KEY", Some("other")),
            secret("B_KEY", Some("Bearer it's")),
            secret("C_KEY", None),
            secret("D_KEY", Some("sk-1/+=")),
        ];
        let written = write_secrets(&path, &secrets).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "# mine\nexport A_KEY=own\nB_KEY='Bearer it'\\''s'\nD_KEY=sk-1/+=\n"
        );
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let summary = written.summary(&path);
        for line in ["added      B_KEY", "kept       A_KEY", "missing    C_KEY"] {
            assert!(summary.contains(line), "{summary}");
        }
        assert!(
            !summary.contains("sk-1") && !summary.contains("it's"),
            "{summary}"
        );
        let again = write_secrets(&path, &secrets).unwrap();
        assert_eq!(again.added, [""; 0]);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        fs::remove_file(&path).unwrap();
    }
}
