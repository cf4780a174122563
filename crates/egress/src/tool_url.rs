//! The URL template of an HTTP tool. Its path takes parameters.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::{PlainUrlError, parse_plain_url};

/// All characters with a meaning in URLs are encoded.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'~')
    .remove(b'.');

/// A text that is not a valid URL template. The error does not repeat it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlTemplateError {
    #[error(transparent)]
    Url(#[from] PlainUrlError),
    #[error(
        "has `{{name}}` elsewhere than in the path, or with other characters than a-z, 0-9, `_`"
    )]
    Placeholder,
}

/// A value that is not allowed in a path, by name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    #[error("`{0}` must be a text, a number or a boolean, because it is part of the path")]
    Kind(String),
    #[error(
        "`{0}` must not be empty or hold `.` or `..` as a segment, because it is part of the path"
    )]
    Dots(String),
    #[error(
        "`{0}` must not hold `/`, `\\` or control characters, because it is part of the path; `path_slashes` of the \
         tool allows them"
    )]
    Slash(String),
}

impl FillError {
    /// Name of the parameter.
    pub fn name(&self) -> &str {
        match self {
            Self::Kind(name) | Self::Dots(name) | Self::Slash(name) => name,
        }
    }
}

/// A URL with `{name}` in its path. `Debug` omits the query, which may hold a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct UrlTemplate {
    parts: Vec<UrlPart>,
}

#[derive(Clone, PartialEq, Eq)]
enum UrlPart {
    Text(String),
    Name(String),
}

impl UrlTemplate {
    /// Parses a template. Each filled URL must be plain.
    pub fn parse(raw: &str) -> Result<Self, UrlTemplateError> {
        let mut parts = Vec::new();
        let mut rest = raw;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or(UrlTemplateError::Placeholder)?;
            let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || letter == b'_';
            if name.is_empty() || !name.bytes().all(is_plain) {
                return Err(UrlTemplateError::Placeholder);
            }
            parts.push(UrlPart::Text(before.to_owned()));
            parts.push(UrlPart::Name(name.to_owned()));
            rest = after;
        }
        parts.push(UrlPart::Text(rest.to_owned()));
        let template = Self { parts };
        // Two fillings must differ only in the path; a value must never choose host or query.
        let [one, other] = ["x", "y"].map(|value| template.with(|_| value.to_owned()));
        let (one, other) = (parse_plain_url(&one)?, parse_plain_url(&other)?);
        let same = |url: &Url| (url.origin(), url.query().map(str::to_owned));
        let names = template.names().count();
        if same(&one) != same(&other) || (names > 0 && one.path() == other.path()) {
            return Err(UrlTemplateError::Placeholder);
        }
        Ok(template)
    }

    /// Names of the path parameters.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            UrlPart::Name(name) => Some(name.as_str()),
            UrlPart::Text(_) => None,
        })
    }

    /// The URL with sample values. Origin and query are the same for all values.
    pub fn example(&self) -> Url {
        parsed(&self.with(|_| "x".to_owned()))
    }

    /// The URL with percent-encoded values. Only parameters that are `is_open` may hold a slash. No value may be a dot
    /// segment.
    pub fn fill(
        &self,
        value: impl Fn(&str) -> Option<String>,
        is_open: impl Fn(&str) -> bool,
    ) -> Result<Url, FillError> {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                UrlPart::Text(text) => filled.push_str(text),
                UrlPart::Name(name) => {
                    let value = value(name).ok_or_else(|| FillError::Kind(name.clone()))?;
                    if value.is_empty() || value.split(['/', '\\']).any(is_dot_segment) {
                        return Err(FillError::Dots(name.clone()));
                    }
                    let ends_segment =
                        |letter: char| letter.is_control() || matches!(letter, '/' | '\\');
                    // Encoding does not help: services that route on the decoded path treat a slash as a separator.
                    if value.contains(ends_segment) && !is_open(name) {
                        return Err(FillError::Slash(name.clone()));
                    }
                    filled.extend(utf8_percent_encode(&value, ENCODED));
                }
            }
        }
        Ok(parsed(&filled))
    }

    fn with(&self, value: impl Fn(&str) -> String) -> String {
        let text = |part: &UrlPart| match part {
            UrlPart::Text(text) => text.clone(),
            UrlPart::Name(name) => value(name),
        };
        self.parts.iter().map(text).collect()
    }
}

/// True when a service that trims segments reads this one as `.` or `..`.
fn is_dot_segment(segment: &str) -> bool {
    let is_passed_over = |letter: char| {
        letter.is_whitespace()
            || letter.is_control()
            || matches!(letter, '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}')
    };
    matches!(segment.trim_matches(is_passed_over), "." | "..")
}

/// Parses a filled template.
fn parsed(filled: &str) -> Url {
    Url::parse(filled).expect("a template that was read is a URL with any segment")
}

impl fmt::Debug for UrlTemplate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.with(|name| format!("{{{name}}}"));
        let shown = text
            // The query may hold a secret.
            .split_once('?')
            .map_or(text.as_str(), |(shown, _)| shown);
        formatter.write_str(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &str, value: &str, is_open: bool) -> String {
        let template = UrlTemplate::parse(template).unwrap();
        let url = template.fill(|_| Some(value.to_owned()), |_| is_open);
        url.map_or_else(|error| error.to_string(), String::from)
    }

    #[test]
    fn values_stay_within_their_segment() {
        const TEMPLATE: &str = "https://t.example/v1/{id}/x?k=v";
        for (value, expected) in [
            ("a b", "https://t.example/v1/a%20b/x?k=v"),
            ("a?b#c", "https://t.example/v1/a%3Fb%23c/x?k=v"),
            ("%2e%2e", "https://t.example/v1/%252e%252e/x?k=v"),
            ("1.2", "https://t.example/v1/1.2/x?k=v"),
            ("ä", "https://t.example/v1/%C3%A4/x?k=v"),
        ] {
            assert_eq!(filled(TEMPLATE, value, false), expected);
        }
        for value in ["a/b", "a\\b", "a\nb", "\u{0}", "a\u{7f}", "a\u{85}", "/"] {
            assert!(
                filled(TEMPLATE, value, false).contains("must not hold"),
                "{value:?}"
            );
        }
        let open = filled(TEMPLATE, "src/a\\b.rs", true);
        assert_eq!(open, "https://t.example/v1/src%2Fa%5Cb.rs/x?k=v");
        for value in [
            "",
            ".",
            "..",
            " ..",
            "..\t",
            "\u{200b}..",
            "../../admin",
            "7/../../admin",
            "a\\..\\b",
            "a/.",
        ] {
            for is_open in [false, true] {
                let outcome = filled(TEMPLATE, value, is_open);
                assert!(
                    outcome.contains("must not be empty"),
                    "{value:?}: {outcome}"
                );
            }
        }
    }

    #[test]
    fn parameters_are_allowed_in_the_path_only() {
        for raw in [
            "https://{host}.example/",
            "https://t.example:{port}/",
            "https://t.example/?q={q}",
            "https://t.example/{a b}",
            "https://t.example/{}",
            "https://t.example/{a",
            "{scheme}://t.example/",
            "https://t.example{a}/",
        ] {
            assert!(UrlTemplate::parse(raw).is_err(), "{raw}");
        }
        let template = UrlTemplate::parse("https://t.example/{a}/{b_2}?key=hunter2").unwrap();
        assert_eq!(template.names().collect::<Vec<_>>(), ["a", "b_2"]);
        assert_eq!(format!("{template:?}"), "https://t.example/{a}/{b_2}");
    }
}
