//! Redaction of secrets in messages, excerpts and logs.

use std::sync::LazyLock;

use regex::Regex;
use secrecy::{ExposeSecret as _, SecretString};

const REDACTED: &str = "[redacted]";
/// Minimum length in bytes. Shorter values occur in too many harmless texts.
const SHORTEST: usize = 6;

/// Texts that look like a secret.
static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    let patterns = [
        r"(?i)\b(?:bearer|basic)\s+[a-z0-9._~+/=-]{8,}",
        r"\b(?:sk|pk|app|pat|fastgpt|ragflow|hf)[-_][A-Za-z0-9_-]{12,}",
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
        r"://[^/\s:@]+:[^/\s@]+@",
        r#"(?i)\b(?:api[_-]?key|access[_-]?token|secret|password|authorization)["']?\s*[:=]\s*["']?(?:bearer\s+)?[^\s"',;&}]{6,}"#,
    ];
    Regex::new(&patterns.join("|")).expect("the patterns are fixed")
});

/// Redacts the secrets of one run, and texts that look like secrets.
#[derive(Debug, Default)]
pub struct SecretRedactor {
    secrets: Vec<SecretString>,
}

impl SecretRedactor {
    /// A redactor for these secrets.
    pub fn new(mut secrets: Vec<SecretString>) -> Self {
        secrets.retain(|secret| secret.expose_secret().len() >= SHORTEST);
        Self { secrets }
    }

    /// The text without secrets.
    pub fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            if text.contains(secret.expose_secret()) {
                text = text.replace(secret.expose_secret(), REDACTED);
            }
        }
        // A platform may echo credentials that are not of this run, such as those of its own providers.
        PATTERN.replace_all(&text, REDACTED).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacts_given_and_likely_secrets() {
        let redactor = SecretRedactor::new(vec!["known-value".into(), "a".into()]);
        for (text, clean) in [
            ("it is known-value", "it is [redacted]"),
            ("Authorization: Bearer abcdefgh1234", "[redacted]"),
            ("key app-abcdefghijklmnop is bad", "key [redacted] is bad"),
            ("a plain text", "a plain text"),
        ] {
            assert_eq!(redactor.redact(text), clean);
        }
    }
}
