//! Removes secrets from upstream texts before others read them: errors, logs, audit, previews.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use protocol::JsonObject;
use regex::Regex;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;

/// Replacement of a secret.
const REDACTED: &str = "[redacted]";
/// Shorter values occur in too many harmless texts.
const SHORTEST: usize = 6;

/// Patterns of common secrets.
static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    let patterns = [
        r"(?i)\b(?:bearer|basic)\s+[a-z0-9._~+/=-]{8,}",
        r"\b(?:sk|pk|rk|ghp|gho|xox[abps]|glpat|hf)[-_][A-Za-z0-9_-]{12,}",
        r"\b(?:rnl_|whsec_)[A-Za-z0-9_+/=-]{8,}",
        r"\bAKIA[0-9A-Z]{16}\b",
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
        r"://[^/\s:@]+:[^/\s@]+@",
        r#"(?i)\b(?:api[_-]?key|access[_-]?token|secret|password|passwd|authorization)["']?\s*[:=]\s*["']?(?:bearer\s+|basic\s+)?[^\s"',;&}]{6,}"#,
    ];
    Regex::new(&patterns.join("|")).expect("the patterns are fixed")
});

/// Secrets that the gateway holds for its providers. Cheap to clone.
#[derive(Clone, Default)]
pub struct Redactor {
    secrets: Arc<[SecretString]>,
}

impl Redactor {
    /// Redacts these values in addition to [`PATTERN`]; of a header value also the credential after its scheme.
    pub fn new(secrets: impl IntoIterator<Item = SecretString>) -> Self {
        let is_long = |secret: &SecretString| secret.expose_secret().len() >= SHORTEST;
        let secrets = secrets.into_iter().flat_map(|secret| {
            let scheme_and_credential = secret.expose_secret().split_once(' ');
            let credential = scheme_and_credential.map(|(_, credential)| credential.trim().into());
            // The longer one first, because it contains the other.
            [Some(secret), credential].into_iter().flatten()
        });
        Self {
            secrets: secrets.filter(is_long).collect(),
        }
    }

    /// Redacts this value, too.
    #[must_use]
    pub fn with(&self, secret: SecretString) -> Self {
        Self::new(std::iter::once(secret).chain(self.secrets.iter().cloned()))
    }

    /// Text without the registered secrets. Pattern matches stay: results are user data.
    pub fn redact_registered<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        for secret in self.secrets.iter() {
            if text.contains(secret.expose_secret()) {
                text = Cow::Owned(text.replace(secret.expose_secret(), REDACTED));
            }
        }
        text
    }

    /// True when the text contains a registered secret.
    pub fn finds_registered(&self, text: &str) -> bool {
        matches!(self.redact_registered(text), Cow::Owned(_))
    }

    /// [`Redactor::redact_registered`] on every text and name in a value; rewrites only those with a secret.
    pub fn redact_registered_in(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(clean) = self.redact_registered(text) {
                    *text = clean;
                }
            }
            Value::Array(items) => items
                .iter_mut()
                .for_each(|item| self.redact_registered_in(item)),
            Value::Object(members) => self.redact_registered_in_object(members),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// [`Redactor::redact_registered_in`] on an object.
    pub fn redact_registered_in_object(&self, members: &mut JsonObject) {
        members
            .values_mut()
            .for_each(|member| self.redact_registered_in(member));
        // A map cannot rename a key in place; rebuilt only if a name holds a secret.
        if members.keys().any(|name| self.finds_registered(name)) {
            let named = std::mem::take(members).into_iter();
            *members = named
                .map(|(name, member)| (self.redact_registered(&name).into_owned(), member))
                .collect();
        }
    }

    /// Text without the registered secrets and without matches of [`PATTERN`].
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let text = self.redact_registered(text);
        match PATTERN.replace_all(&text, REDACTED) {
            Cow::Borrowed(_) => text,
            Cow::Owned(redacted) => Cow::Owned(redacted),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn redacts_registered_values_and_secret_patterns() {
        let redactor = Redactor::new([SecretString::from("plain-word-key"), "abc".into()]);
        for (text, redacted) in [
            (
                "Incorrect key plain-word-key given",
                "Incorrect key [redacted] given",
            ),
            (
                "key sk-proj-abcdefghijkl1234 is wrong",
                "key [redacted] is wrong",
            ),
            ("Authorization: Bearer abcdefgh.ijk", "[redacted]"),
            ("see https://user:pass@host/x", "see https[redacted]host/x"),
            (
                "{\"api_key\":\"0123456789\",\"a\":1}",
                "{\"[redacted]\",\"a\":1}",
            ),
            ("abc is part of many words", "abc is part of many words"),
            (
                "a token of 12 tokens was counted",
                "a token of 12 tokens was counted",
            ),
        ] {
            let got = redactor.redact(text);
            let [got, wanted] = [got.as_ref(), redacted].map(|text| text.replace(' ', ""));
            assert_eq!(got, wanted, "{text}");
        }
    }

    #[test]
    fn redacts_credentials_with_and_without_scheme() {
        let redactor = Redactor::new(["Bearer plain-word-key".into()]);
        let mut value = json!({
            "plain-word-key": ["bearer plain-word-key", 1, null],
            "a": "Bearer plain-word-key",
            "b": "a key",
        });
        redactor.redact_registered_in(&mut value);
        let clean =
            json!({"[redacted]": ["bearer [redacted]", 1, null], "a": "[redacted]", "b": "a key"});
        assert_eq!(value, clean);
    }
}
