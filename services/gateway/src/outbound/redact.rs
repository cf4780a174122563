//! Secrets taken out of texts that providers send and others will read: errors, logs, audit, previews.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use regex::Regex;
use secrecy::{ExposeSecret as _, SecretString};

/// What stands where a secret stood.
const REDACTED: &str = "[redacted]";
/// Shorter values stand in too many texts that are none.
const SHORTEST: usize = 6;

/// What looks like a secret wherever it comes from.
static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    let patterns = [
        r"(?i)\b(?:bearer|basic)\s+[a-z0-9._~+/=-]{8,}",
        r"\b(?:sk|pk|rk|ghp|gho|xox[abps]|glpat|hf)[-_][A-Za-z0-9_-]{12,}",
        r"\b(?:rnl_|whsec_)[A-Za-z0-9_+/=-]{8,}",
        r"\bAKIA[0-9A-Z]{16}\b",
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
        r"://[^/\s:@]+:[^/\s@]+@",
        r#"(?i)\b(?:api[_-]?key|access[_-]?token|secret|password|passwd|authorization)["']?\s*[:=]\s*["']?(?:(?:bearer|basic)\s+)?[^\s"',;&}]{6,}"#,
    ];
    Regex::new(&patterns.join("|")).expect("the patterns are fixed")
});

/// The secrets that the gateway itself holds for its providers. Cheap to clone.
#[derive(Clone, Default)]
pub struct Redactor {
    known: Arc<[SecretString]>,
}

impl Redactor {
    /// Takes these values out wherever they stand, beside what looks like a secret.
    pub fn new(known: impl IntoIterator<Item = SecretString>) -> Self {
        let is_long = |secret: &SecretString| secret.expose_secret().len() >= SHORTEST;
        Self {
            known: known.into_iter().filter(is_long).collect(),
        }
    }

    /// The text without the values that the gateway holds. What merely looks like a secret stays: for
    /// results, which are somebody's data.
    pub fn redact_known<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        for secret in self.known.iter() {
            if text.contains(secret.expose_secret()) {
                text = Cow::Owned(text.replace(secret.expose_secret(), REDACTED));
            }
        }
        text
    }

    /// The text without secrets.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let text = self.redact_known(text);
        match PATTERN.replace_all(&text, REDACTED) {
            Cow::Borrowed(_) => text,
            Cow::Owned(redacted) => Cow::Owned(redacted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_hold_and_what_looks_like_a_secret_is_taken_out() {
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
            ("abc stands in many words", "abc stands in many words"),
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
}
