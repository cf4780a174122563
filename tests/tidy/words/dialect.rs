//! Shares of retired words in the names, comments and texts of a crate.

use std::collections::BTreeSet;

/// Declared names, comments and texts of a file or a crate, each with its line.
#[derive(Default)]
pub(crate) struct Source {
    pub names: Vec<(usize, String)>,
    /// Comment lines without their markers.
    pub comments: Vec<(usize, String)>,
    /// String literals that contain a space.
    pub texts: Vec<(usize, String)>,
    /// Lines of code outside of tests.
    pub lines: usize,
    /// Comment lines at the statements of these.
    pub reasons: usize,
}

/// Retired words, in lower case.
#[derive(Default)]
pub(crate) struct RetiredWords {
    pub names: BTreeSet<String>,
    /// Words and pairs of words of comments, log lines and errors.
    pub texts: BTreeSet<String>,
}

/// A retired word or a start of a comment that is no noun.
pub(crate) struct Finding {
    pub kind: Kind,
    pub path: String,
    pub line: usize,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Name,
    Comment,
    Start,
    Text,
}

/// Counts of a crate and its findings.
#[derive(Default)]
pub(crate) struct Measure {
    pub names: usize,
    pub comments: usize,
    pub starts: usize,
    pub texts: usize,
    pub lines: usize,
    pub reasons: usize,
    pub findings: Vec<Finding>,
}

impl Measure {
    pub(crate) fn add(&mut self, path: &str, source: &Source, retired: &RetiredWords) {
        self.names += source.names.len();
        self.comments += source.comments.len();
        self.texts += source.texts.len();
        self.lines += source.lines;
        self.reasons += source.reasons;
        for (line, name) in &source.names {
            if parts(name).iter().any(|part| retired.names.contains(part)) {
                self.find(Kind::Name, path, *line, name);
            }
        }
        let mut before = None;
        for (line, comment) in &source.comments {
            if retired.is_in(comment) {
                self.find(Kind::Comment, path, *line, comment);
            }
            if before.is_none_or(|before| *line != before + 1) {
                self.starts += 1;
                if begins_with_question(comment) {
                    self.find(Kind::Start, path, *line, comment);
                }
            }
            before = Some(*line);
        }
        for (line, text) in &source.texts {
            if retired.is_in(text) {
                self.find(Kind::Text, path, *line, text);
            }
        }
    }

    fn find(&mut self, kind: Kind, path: &str, line: usize, text: &str) {
        self.findings.push(Finding {
            kind,
            path: path.to_owned(),
            line,
            text: text.to_owned(),
        });
    }

    /// Findings of one kind, as lines of a report.
    pub(crate) fn list(&self, kind: Kind) -> impl Iterator<Item = String> {
        let found = self
            .findings
            .iter()
            .filter(move |finding| finding.kind == kind);
        found.map(move |finding| {
            let Finding {
                path, line, text, ..
            } = finding;
            format!("{path}:{line} {kind:?}: {text}")
        })
    }

    /// Findings of one kind, and the number of names, lines, comments or texts that they come from.
    pub(crate) fn share(&self, kind: Kind) -> (usize, usize) {
        let all = match kind {
            Kind::Name => self.names,
            Kind::Comment => self.comments,
            Kind::Start => self.starts,
            Kind::Text => self.texts,
        };
        let found = self.findings.iter().filter(|finding| finding.kind == kind);
        (found.count(), all)
    }
}

impl RetiredWords {
    fn is_in(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let words: Vec<&str> = text
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .collect();
        words.iter().any(|word| self.texts.contains(*word))
            || words
                .windows(2)
                .any(|pair| self.texts.contains(&pair.join(" ")))
    }
}

/// True if a comment begins with a question word.
pub(crate) fn begins_with_question(comment: &str) -> bool {
    const QUESTIONS: [&str; 8] = [
        "Where", "When", "Why", "How", "Whether", "What", "Who", "Whatever",
    ];
    let first = comment.split(|c: char| !c.is_alphanumeric()).next();
    first.is_some_and(|word| QUESTIONS.contains(&word))
}

/// Parts of a name in lower case: `MAX_TokenCount` gives `max`, `token` and `count`.
pub(crate) fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for letter in name.chars() {
        if letter == '_' || (letter.is_uppercase() && was_lower) {
            parts.push(String::new());
        }
        was_lower = letter.is_lowercase() || letter.is_numeric();
        if let Some(part) = parts.last_mut().filter(|_| letter != '_') {
            part.extend(letter.to_lowercase());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}
