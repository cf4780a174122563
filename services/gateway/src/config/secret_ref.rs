//! References to secrets. The configuration itself never holds a secret.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::str::FromStr;

use secrecy::SecretString;

/// Maximum size of a secret file; a larger file is a mistake.
const MAX_BYTES: u64 = 64 * 1024;

/// `env:NAME` or `file:PATH`. `Debug` shows the reference, which is not secret.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretRef {
    Environment(String),
    File(PathBuf),
}

/// The text is not a reference. The error does not repeat it, because it may be the secret.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretRefError {
    #[error("must not hold the secret itself; write `env:NAME` or `file:PATH`")]
    Literal,
    #[error("has no proper variable name after `env:`; letters, digits and `_` make one")]
    VariableName,
    #[error("has no path after `file:`")]
    EmptyPath,
}

/// Failure to read a secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("the variable of {0} is not set")]
    NotSet(SecretRef),
    #[error("the value of {0} is empty")]
    Empty(SecretRef),
    #[error("the value of {0} is not UTF-8 text")]
    NotText(SecretRef),
    #[error("the value of {0} is longer than 64 KiB")]
    TooLong(SecretRef),
    #[error("{reference} cannot be read")]
    Unreadable {
        reference: SecretRef,
        source: io::Error,
    },
}

impl SecretRef {
    /// Reads the secret. One trailing line break is dropped.
    pub fn resolve(&self) -> Result<SecretString, SecretError> {
        let text = match self {
            Self::Environment(name) => self.read_variable(name)?,
            Self::File(path) => self.read_file(path)?,
        };
        // Editors and `echo` append a line break; other white space belongs to the secret.
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        if text.is_empty() {
            return Err(SecretError::Empty(self.clone()));
        }
        Ok(SecretString::from(text))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "secrets are read where they are referred to"
    )]
    fn read_variable(&self, name: &str) -> Result<String, SecretError> {
        std::env::var(name).map_err(|error| match error {
            std::env::VarError::NotPresent => SecretError::NotSet(self.clone()),
            std::env::VarError::NotUnicode(_) => SecretError::NotText(self.clone()),
        })
    }

    fn read_file(&self, path: &PathBuf) -> Result<String, SecretError> {
        let unreadable = |source| SecretError::Unreadable {
            reference: self.clone(),
            source,
        };
        let file = File::open(path).map_err(unreadable)?;
        let mut bytes = Vec::new();
        // One byte more than allowed, to notice an oversized file.
        let read = file
            .take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        if read as u64 > MAX_BYTES {
            return Err(SecretError::TooLong(self.clone()));
        }
        String::from_utf8(bytes).map_err(|_| SecretError::NotText(self.clone()))
    }
}

impl FromStr for SecretRef {
    type Err = SecretRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("env", name)) if is_variable_name(name) => Ok(Self::Environment(name.to_owned())),
            Some(("env", _)) => Err(SecretRefError::VariableName),
            Some(("file", "")) => Err(SecretRefError::EmptyPath),
            Some(("file", path)) => Ok(Self::File(PathBuf::from(path))),
            _ => Err(SecretRefError::Literal),
        }
    }
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

impl fmt::Display for SecretRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment(name) => write!(formatter, "env:{name}"),
            Self::File(path) => write!(formatter, "file:{}", path.display()),
        }
    }
}

impl fmt::Debug for SecretRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn reference(text: &str) -> SecretRef {
        text.parse().unwrap()
    }

    #[test]
    fn refuses_literals_without_repeating_them() {
        assert_eq!(reference("env:ECHO_SECRET").to_string(), "env:ECHO_SECRET");
        assert_eq!(
            reference("file:/run/secrets/x").to_string(),
            "file:/run/secrets/x"
        );
        for (text, error) in [
            ("whsec_c2VjcmV0", SecretRefError::Literal),
            ("hunter2:hunter2", SecretRefError::Literal),
            ("", SecretRefError::Literal),
            ("env:", SecretRefError::VariableName),
            ("env:with space", SecretRefError::VariableName),
            ("env:1ST", SecretRefError::VariableName),
            ("file:", SecretRefError::EmptyPath),
        ] {
            let refused = text.parse::<SecretRef>().unwrap_err();
            assert!(!refused.to_string().contains("hunter2"));
            assert_eq!(refused, error, "{text}");
        }
    }

    #[test]
    fn resolves_variables_and_files() {
        let path = std::env::temp_dir().join(format!("runnel-secret-{}", std::process::id()));
        std::fs::write(&path, "s3cret\r\n").unwrap();
        let resolved = SecretRef::File(path.clone()).resolve();
        std::fs::write(&path, "\n").unwrap();
        let empty = SecretRef::File(path.clone()).resolve();
        std::fs::remove_file(&path).unwrap();

        assert_eq!(resolved.unwrap().expose_secret(), "s3cret");
        assert!(matches!(empty, Err(SecretError::Empty(_))));
        assert!(matches!(
            SecretRef::File(path).resolve(),
            Err(SecretError::Unreadable { .. })
        ));
        assert!(
            !reference("env:PATH")
                .resolve()
                .unwrap()
                .expose_secret()
                .is_empty()
        );
        assert!(matches!(
            reference("env:RUNNEL_SURELY_NOT_SET").resolve(),
            Err(SecretError::NotSet(_))
        ));
    }
}
