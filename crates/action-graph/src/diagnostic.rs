//! Diagnostics: a code, a position and a fix.

use serde::{Deserialize, Serialize};

use crate::code::{Code, Severity};

/// Values that a diagnostic lists at most.
const ALLOWED: usize = 12;
/// Characters of a message.
const MESSAGE: usize = 300;

/// One fault, warning or repair of a declaration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    /// The stable name.
    pub code: Code,
    /// Its effect on the declaration.
    pub level: Severity,
    /// JSON pointer into the declaration as the model wrote it.
    pub pointer: String,
    /// Description of the fault, at most 300 characters.
    pub message: String,
    /// Fix; replaces the code's own hint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Values that would be accepted, at most 12.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<String>,
}

impl Diagnostic {
    /// A diagnostic with the level of its code.
    pub fn new(code: Code, pointer: impl Into<String>, message: impl AsRef<str>) -> Self {
        Self {
            code,
            level: code.level(),
            pointer: pointer.into(),
            // Characters, so that a cut never splits one.
            message: message.as_ref().chars().take(MESSAGE).collect(),
            hint: None,
            allowed: Vec::new(),
        }
    }

    /// Adds a hint of its own.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds values that would be accepted; the first 12 are kept.
    #[must_use]
    pub fn allow<T: Into<String>>(mut self, allowed: impl IntoIterator<Item = T>) -> Self {
        self.allowed = allowed.into_iter().take(ALLOWED).map(Into::into).collect();
        self
    }

    /// True if it refuses the declaration.
    pub fn is_error(&self) -> bool {
        self.level == Severity::Error
    }

    /// The line of a notice: message, then fix.
    pub fn line(&self) -> String {
        let fix = self.hint.as_deref().unwrap_or_else(|| self.code.fix());
        let mut line = format!("{}. Fix: {fix}", self.message);
        if !self.allowed.is_empty() {
            line.push_str(". Allowed: ");
            line.push_str(&self.allowed.join(", "));
        }
        // A notice has one line for each diagnostic; texts of models may have breaks.
        line.replace(['\r', '\n'], " ")
    }
}

/// Collects the diagnostics of all gates.
#[derive(Debug, Default)]
pub(crate) struct Diagnostics {
    list: Vec<Diagnostic>,
}

/// Diagnostics that are collected before later ones are dropped.
const COLLECTED: usize = 256;

impl Diagnostics {
    pub(crate) fn push(&mut self, diagnostic: Diagnostic) {
        // Bounded: a hostile declaration could otherwise produce one diagnostic for each byte.
        if self.list.len() < COLLECTED && !self.list.contains(&diagnostic) {
            self.list.push(diagnostic);
        }
    }

    pub(crate) fn add(&mut self, code: Code, pointer: impl Into<String>, text: impl AsRef<str>) {
        self.push(Diagnostic::new(code, pointer, text));
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.list.iter().any(Diagnostic::is_error)
    }

    /// The first `most`, errors before the rest, each in the order of their places.
    pub(crate) fn finish(mut self, max: usize) -> Vec<Diagnostic> {
        // Sorted twice: the first order decides what is dropped, the second is for readers.
        self.list
            .sort_by_cached_key(|one| (one.level, position_key(&one.pointer), one.code));
        self.list.truncate(max);
        self.list
            .sort_by_cached_key(|one| (position_key(&one.pointer), one.code));
        self.list
    }
}

/// Tokens of a pointer; indices are compared as numbers.
fn position_key(pointer: &str) -> Vec<(u64, String)> {
    let tokens = pointer.split('/').skip(1);
    // Numbers, so that action 10 follows action 9.
    tokens
        .map(|token| match token.parse() {
            Ok(index) => (index, String::new()),
            Err(_) => (u64::MAX, token.to_owned()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_by_pointer_and_keeps_errors() {
        let mut found = Diagnostics::default();
        found.add(Code::Repaired, "/calls/1", "x");
        found.add(Code::BadId, "/calls/10/id", "x");
        found.add(Code::BadId, "/calls/2/id", "x");
        let retained = found.finish(2);
        let pointers: Vec<_> = retained.iter().map(|one| one.pointer.as_str()).collect();
        assert_eq!(pointers, ["/calls/2/id", "/calls/10/id"]);
    }
}
