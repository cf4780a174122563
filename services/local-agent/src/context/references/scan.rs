//! Finds references and keeps a bounded number.

use std::collections::VecDeque;

use serde_json::Value;

use crate::context::references::{MAX_FILES, MAX_REFERENCES};

/// Longer tokens are data.
const LONGEST_IDENTIFIER: usize = 200;
const LONGEST_URL: usize = 500;
const LONGEST_PATH: usize = 512;
/// Minimum segments of an identifier.
const SEGMENTS: usize = 3;
/// Maximum depth of JSON that is searched for paths.
const DEEPEST: usize = 6;
/// Maximum bytes of a text that is parsed as JSON.
const LARGEST_JSON: usize = 1024 * 1024;

/// References found so far.
pub(super) struct ReferenceScan {
    /// Unambiguous identifiers.
    pub(super) strong: BoundedEnds,
    /// Tokens that may be words, dates or versions.
    pub(super) weak: BoundedEnds,
    pub(super) files: BoundedEnds,
}

impl Default for ReferenceScan {
    fn default() -> Self {
        Self {
            strong: BoundedEnds::new(MAX_REFERENCES),
            weak: BoundedEnds::new(MAX_REFERENCES),
            files: BoundedEnds::new(MAX_FILES),
        }
    }
}

impl ReferenceScan {
    /// Collects identifiers of a text, and paths when it is JSON.
    pub(super) fn read(&mut self, text: &str) {
        let mut rest = text;
        while let Some((token, after)) = next_token(rest) {
            self.identifier(token);
            rest = after;
        }
        let trimmed = text.trim_start();
        if trimmed.starts_with(['{', '[']) && text.len() <= LARGEST_JSON {
            // Texts that are no JSON have no paths.
            if let Ok(value) = serde_json::from_str::<Value>(trimmed) {
                self.paths(&value, 0);
            }
        }
    }

    /// Adds a token if it is an identifier.
    pub(super) fn identifier(&mut self, token: &str) {
        // Punctuation around a token belongs to the sentence.
        let token = token.trim_start_matches(['-', ':']);
        let token = token.trim_end_matches(['.', ':', '-', ',', ';', '!', '?']);
        let is_url = token.contains("://");
        let longest = if is_url {
            LONGEST_URL
        } else {
            LONGEST_IDENTIFIER
        };
        let is_plain = token
            .chars()
            .all(|c| is_token(c) || (is_url && is_in_url(c)));
        let segments = token.split(is_joint).filter(|segment| !segment.is_empty());
        if !is_plain || token.len() > longest || segments.count() < SEGMENTS {
            return;
        }
        if is_strong(token) {
            self.strong.push(token);
        } else {
            self.weak.push(token);
        }
    }

    /// Adds a path if it fits on a line.
    pub(super) fn file(&mut self, path: &str) {
        let is_odd = |c: char| c.is_control() || c == '<' || c == '>';
        let is_plain = !path.trim().is_empty() && path.trim() == path && !path.contains(is_odd);
        if is_plain && path.len() <= LONGEST_PATH {
            self.files.push(path);
        }
    }

    fn paths(&mut self, value: &Value, depth: usize) {
        if depth > DEEPEST {
            return;
        }
        match value {
            Value::Object(object) => {
                for (name, value) in object {
                    match value {
                        Value::String(path) if name == "path" => self.file(path),
                        _ => self.paths(value, depth + 1),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| self.paths(value, depth + 1)),
            _ => {}
        }
    }
}

/// Next run of identifier characters, and the rest.
fn next_token(text: &str) -> Option<(&str, &str)> {
    let start = text.find(is_token)?;
    let text = &text[start..];
    let plain = text.find(|c| !is_token(c)).unwrap_or(text.len());
    let is_url = text[..plain].contains("://");
    let end = if is_url {
        text.find(|c| !is_in_url(c)).unwrap_or(text.len())
    } else {
        plain
    };
    Some(text.split_at(end))
}

fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || is_joint(c)
}

fn is_joint(c: char) -> bool {
    matches!(c, '_' | '.' | ':' | '/' | '-')
}

fn is_in_url(c: char) -> bool {
    c.is_ascii_graphic()
        && !matches!(
            c,
            '<' | '>' | '"' | '\'' | '`' | '(' | ')' | '[' | ']' | '{' | '}' | '\\' | '|'
        )
}

/// Letters with digits, or letters joined as no prose joins them.
fn is_strong(token: &str) -> bool {
    let has_letter = token.contains(|c: char| c.is_ascii_alphabetic());
    has_letter && token.contains(|c: char| c.is_ascii_digit() || matches!(c, '_' | ':' | '/'))
}

/// Bounded list that keeps its first and last entries.
pub(super) struct BoundedEnds {
    first: Vec<String>,
    last: VecDeque<String>,
    /// Limit of each half.
    limit: usize,
}

impl BoundedEnds {
    fn new(limit: usize) -> Self {
        Self {
            first: Vec::new(),
            last: VecDeque::new(),
            limit,
        }
    }

    fn push(&mut self, value: &str) {
        if self
            .first
            .iter()
            .chain(&self.last)
            .any(|other| other == value)
        {
            return;
        }
        if self.first.len() < self.limit {
            self.first.push(value.to_owned());
            return;
        }
        if self.last.len() == self.limit {
            self.last.pop_front();
        }
        self.last.push_back(value.to_owned());
    }

    /// At most `limit` entries: the first half from the oldest, the others from the newest.
    pub(super) fn ends(self, limit: usize) -> Vec<String> {
        let mut all = self.first;
        all.extend(self.last);
        let spare = all.len().saturating_sub(limit);
        let oldest = limit / 2;
        if spare > 0 {
            all.drain(oldest..oldest + spare);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(text: &str, strong: &[&str], weak: &[&str]) {
        let mut found = ReferenceScan::default();
        found.read(text);
        assert_eq!(found.strong.ends(99), strong, "{text}");
        assert_eq!(found.weak.ends(99), weak, "{text}");
    }

    fn files(text: &str) -> Vec<String> {
        let mut found = ReferenceScan::default();
        found.read(text);
        found.files.ends(99)
    }

    #[test]
    fn requires_three_identifier_segments() {
        check("see order_2026_0042.", &["order_2026_0042"], &[]);
        check("订单acme:eu:9，谢谢", &["acme:eu:9"], &[]);
        check(
            "(arn:aws:s3:::bucket/key)",
            &["arn:aws:s3:::bucket/key"],
            &[],
        );
        check(
            "at /workspace/out/a1.csv, too",
            &["/workspace/out/a1.csv"],
            &[],
        );
        check(
            "4f9c2d1a-77b0-4c1e-9d2f-0a1b2c3d4e5f",
            &["4f9c2d1a-77b0-4c1e-9d2f-0a1b2c3d4e5f"],
            &[],
        );
        check("two_segments and one", &[], &[]);
        check("... --- :::", &[], &[]);
    }

    #[test]
    fn keeps_full_urls() {
        let url = "https://shop.example.org/a/b?id=7&x=%20#top";
        check(&format!("look at \"{url}\"."), &[url], &[]);
        check(&format!("<{url}>"), &[url], &[]);
    }

    #[test]
    fn ranks_words_dates_and_versions_lower() {
        check(
            "state-of-the-art since 2026-11-22 in 1.2.3",
            &[],
            &["state-of-the-art", "2026-11-22", "1.2.3"],
        );
    }

    #[test]
    fn ignores_encoded_data() {
        let data = "ab/cd9+".repeat(200).replace('+', "/");
        check(&data, &[], &[]);
    }

    #[test]
    fn finds_paths_six_json_levels_deep() {
        let mut nested = json!({"path": "/deep"});
        for _ in 0..6 {
            nested = json!({"a": nested});
        }
        assert_eq!(files(&nested.to_string()), ["/deep"]);
        assert!(files(&json!([nested]).to_string()).is_empty());
        assert_eq!(
            files(" [{\"path\":\"/b\"},{\"path\":7},{\"path\":\"/b\"}]"),
            ["/b"]
        );
        assert!(files("path /b {\"path\":\"/b\"}").is_empty());
        assert!(files("{\"path\":").is_empty());
    }

    #[test]
    fn escapes_block_end_in_paths() {
        for path in ["/a</files>", "/a\n- /b", " ", &"x".repeat(600)] {
            assert!(
                files(&json!({"path": path}).to_string()).is_empty(),
                "{path}"
            );
        }
    }
}
