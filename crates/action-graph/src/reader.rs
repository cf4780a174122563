//! Reads the fields of a JSON object: types, words, lengths, harmless repairs and unknown fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::code::{Code, Severity};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::json::{self, join, type_name};
use crate::near;
use crate::policy::{POLICY_NAMES, Policies};
use crate::word::Word;

/// Nesting of JSON inside a string.
const STRING_DEPTH: usize = 16;

/// An object whose fields are taken out one by one; the rest is unknown.
pub(crate) struct FieldReader<'a> {
    map: Map<String, Value>,
    at: String,
    /// Fields that the reader requested.
    read_keys: Vec<String>,
    found: &'a mut Diagnostics,
}

impl<'a> FieldReader<'a> {
    pub(crate) fn new(map: Map<String, Value>, at: &str, found: &'a mut Diagnostics) -> Self {
        Self {
            map,
            at: at.to_owned(),
            read_keys: Vec::new(),
            found,
        }
    }

    pub(crate) fn at(&self, key: &str) -> String {
        join(&self.at, key)
    }

    pub(crate) fn add(&mut self, code: Code, key: &str, message: impl AsRef<str>) {
        let at = self.at(key);
        self.found.add(code, at, message);
    }

    /// The value of a field; `null` is absence.
    pub(crate) fn take(&mut self, key: &str) -> Option<Value> {
        // Remembered even if absent: hints for unknown fields suggest these names.
        self.mark_read(key);
        self.map.remove(key).filter(|value| !value.is_null())
    }

    fn mark_read(&mut self, key: &str) {
        if !self.read_keys.iter().any(|one| one == key) {
            self.read_keys.push(key.to_owned());
        }
    }

    pub(crate) fn has(&mut self, key: &str) -> bool {
        self.mark_read(key);
        // Models write null for an absent field.
        self.map.get(key).is_some_and(|value| !value.is_null())
    }

    /// Reports a field that is absent; true if it is there.
    pub(crate) fn require(&mut self, key: &str, code: Code) -> bool {
        let has = self.has(key);
        if !has {
            self.add(code, key, format!("`{key}` is missing"));
        }
        has
    }

    pub(crate) fn is_text(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_string)
    }

    fn wrong_type(&mut self, key: &str, expected: &str, value: &Value) {
        let found = type_name(value);
        let message = format!("`{key}` must be {expected}, found {found}");
        self.add(Code::WrongJsonType, key, message);
    }

    /// A text of at most `most` characters.
    pub(crate) fn text(&mut self, key: &str, max: usize) -> Option<String> {
        match self.take(key)? {
            Value::String(text) => {
                // Bytes first: they are cheaper to count and never below the characters.
                if text.len() > max && text.chars().count() > max {
                    let message = format!("`{key}` has more than {max} characters");
                    self.add(Code::TextTooLong, key, message);
                    return None;
                }
                Some(text)
            }
            other => {
                self.wrong_type(key, "a string", &other);
                None
            }
        }
    }

    pub(crate) fn flag(&mut self, key: &str) -> Option<bool> {
        match self.take(key)? {
            Value::Bool(flag) => Some(flag),
            other => {
                self.wrong_type(key, "a boolean", &other);
                None
            }
        }
    }

    /// An integer between `least` and `most`.
    pub(crate) fn number<T: TryFrom<u64>>(&mut self, key: &str, min: u64, max: u64) -> Option<T> {
        let value = self.take(key)?;
        match value.as_u64() {
            // A type that is too small for the range counts as absent.
            Some(number) if (min..=max).contains(&number) => T::try_from(number).ok(),
            Some(_) => {
                let message = format!("`{key}` must be between {min} and {max}");
                self.add(Code::BadEnum, key, message);
                None
            }
            None => {
                self.wrong_type(key, "an integer", &value);
                None
            }
        }
    }

    /// A word; blanks and capitals are repaired.
    pub(crate) fn word<T: Word>(&mut self, key: &str, code: Code) -> Option<T> {
        self.word_of(key, code, T::WORDS)
    }

    /// One of these words.
    pub(crate) fn word_of<T: Copy>(
        &mut self,
        key: &str,
        code: Code,
        all: &[(&str, T)],
    ) -> Option<T> {
        let text = self.text(key, usize::MAX)?;
        let is = |word: &str| {
            all.iter()
                .find(|(name, _)| *name == word)
                .map(|(_, value)| *value)
        };
        if let Some(value) = is(&text) {
            return Some(value);
        }
        // Harmless spellings: `Read-Only ` means `read_only`.
        let repaired = text.trim().to_lowercase().replace('-', "_");
        if let Some(value) = is(&repaired) {
            self.add(Code::Repaired, key, format!("read as `{repaired}`"));
            return Some(value);
        }
        // Cut: the text of a model may be long.
        let shown: String = text.chars().take(40).collect();
        let names = all.iter().map(|(name, _)| *name);
        let diagnostic = Diagnostic::new(code, self.at(key), format!("`{shown}` is no {key}"));
        self.found.push(diagnostic.allow(names));
        None
    }

    /// An object; a string that holds the JSON of one is parsed once.
    pub(crate) fn object(&mut self, key: &str, code: Code) -> Option<Map<String, Value>> {
        let value = self.take(key)?;
        match self.unstringified(key, value, Value::is_object) {
            Value::Object(object) => Some(object),
            other => {
                let found = type_name(&other);
                let message = format!("`{key}` must be an object, found {found}");
                self.add(code, key, message);
                None
            }
        }
    }

    /// The result of a reader of an object; other fields of the object are reported.
    pub(crate) fn nested<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&mut FieldReader<'_>) -> T,
    ) -> Option<T> {
        let object = self.object(key, Code::WrongJsonType)?;
        let mut inner = FieldReader::new(object, &self.at(key), self.found);
        let read = read(&mut inner);
        inner.rest();
        Some(read)
    }

    /// The entries of a required list with their pointers. Only the first `max` are read, so that the other faults come
    /// from a bounded list.
    pub(crate) fn entries(
        &mut self,
        key: &str,
        max: usize,
        code: Code,
        noun: &str,
    ) -> Vec<(String, Value)> {
        self.require(key, Code::MissingField);
        let list = self.list(key).unwrap_or_default();
        if list.len() > max {
            self.add(code, key, format!("more than {max} {noun}"));
        }
        let at = self.at(key);
        let entries = list.into_iter().take(max).enumerate();
        entries
            .map(|(index, value)| (format!("{at}/{index}"), value))
            .collect()
    }

    /// A list; a string that holds the JSON of one is parsed once.
    pub(crate) fn list(&mut self, key: &str) -> Option<Vec<Value>> {
        let value = self.take(key)?;
        match self.unstringified(key, value, Value::is_array) {
            Value::Array(list) => Some(list),
            other => {
                self.wrong_type(key, "a list", &other);
                None
            }
        }
    }

    fn unstringified(&mut self, key: &str, value: Value, fits: fn(&Value) -> bool) -> Value {
        // Parsed once: JSON in a string in a string is not unwrapped.
        let Value::String(text) = &value else {
            return value;
        };
        match json::parse(text, STRING_DEPTH) {
            Ok(inner) if fits(&inner) => {
                self.add(Code::Unstringified, key, "the JSON in the string is used");
                inner
            }
            _ => value,
        }
    }

    /// A list of texts; one text counts as a list of one.
    pub(crate) fn texts(&mut self, key: &str, max: usize) -> Vec<String> {
        let list = match self.map.get(key) {
            Some(Value::String(_)) => {
                self.add(Code::Repaired, key, "read as a list");
                self.take(key).into_iter().collect()
            }
            _ => self.list(key).unwrap_or_default(),
        };
        // Refused as one: a cut list could lose the entry that matters.
        if list.len() > max {
            let message = format!("`{key}` has more than {max} entries");
            self.add(Code::TooLarge, key, message);
            return Vec::new();
        }
        let mut texts = Vec::with_capacity(list.len());
        for (index, value) in list.into_iter().enumerate() {
            match value {
                Value::String(text) => texts.push(text),
                other => self.wrong_type(&format!("{key}/{index}"), "a string", &other),
            }
        }
        texts
    }

    /// The reserved policies.
    pub(crate) fn policies(&mut self) -> Policies {
        // Removed here, so that `rest` does not report reserved names.
        let mut policies = Policies::default();
        for name in POLICY_NAMES {
            if let Some(value) = self.map.remove(name).filter(|value| !value.is_null()) {
                policies.named.insert(name.to_owned(), value);
            }
        }
        policies
    }

    /// The unknown fields, each with a warning that names the field that was probably meant.
    pub(crate) fn rest(self) -> BTreeMap<String, Value> {
        self.rest_as(Code::UnknownField.level())
    }

    /// The same with this level: an error for an object in which a wrong field changes what happens.
    pub(crate) fn rest_as(self, level: Severity) -> BTreeMap<String, Value> {
        for key in self.map.keys() {
            let shown: String = key.chars().take(64).collect();
            let message = format!("`{shown}` is no field");
            let at = join(&self.at, &shown);
            let mut diagnostic = Diagnostic::new(Code::UnknownField, at, message);
            diagnostic.level = level;
            if let Some(field) = near::field(key, &self.read_keys) {
                diagnostic = diagnostic.hint(format!("write `{field}`"));
            } else if level == Severity::Error {
                diagnostic = diagnostic
                    .hint("leave the field out")
                    .allow(self.read_keys.clone());
            }
            self.found.push(diagnostic);
        }
        self.map.into_iter().collect()
    }

    pub(crate) fn found(&mut self) -> &mut Diagnostics {
        self.found
    }
}
