//! One row, with its columns of JSON read.

use protocol::JsonObject;
use serde_json::Value;

use crate::migrate::convert::{Converted, convert};
use crate::migrate::families::Kind;
use crate::migrate::source::{decoded, member};

/// The kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::migrate) enum RowKind {
    Provider,
    Llm,
    Embedding,
    Rerank,
    /// A model of an answer that does not tell its kind.
    SomeModel,
    Server,
    Base,
    File,
}

impl RowKind {
    /// The lists that hold rows: tables of the database first, then members of the API's answers.
    pub(super) const LISTS: &'static [(&'static str, Self)] = &[
        ("model_providers", Self::Provider),
        ("llm_models", Self::Llm),
        ("embedding_models", Self::Embedding),
        ("rerank_models", Self::Rerank),
        ("mcp_servers", Self::Server),
        ("knowledge_bases", Self::Base),
        ("external_knowledge_bases", Self::Base),
        ("knowledge_base_files", Self::File),
        ("providers", Self::Provider),
        ("models", Self::SomeModel),
        ("servers", Self::Server),
        ("bases", Self::Base),
    ];
    pub(super) const MODELS: &'static [Self] =
        &[Self::Llm, Self::Embedding, Self::Rerank, Self::SomeModel];
}

/// Columns of JSON, which `SQLite` gives as texts.
const JSON: [&str; 8] = [
    "abilities",
    "api_keys",
    "creation_settings",
    "extra_args",
    "provider",
    "reasoning_config",
    "requester_config",
    "retrieval_settings",
];

/// A row and its place.
#[derive(Clone, Debug)]
pub(in crate::migrate) struct Row<'a> {
    pub(super) file: &'a str,
    pub(super) pointer: String,
    pub(super) kind: RowKind,
    members: JsonObject,
}

impl<'a> Row<'a> {
    pub(super) fn new(file: &'a str, pointer: String, kind: RowKind, members: &JsonObject) -> Self {
        let mut members = members.clone();
        for name in JSON {
            if let Some(value) = members.get_mut(name)
                && let Some(held) = decoded(value)
            {
                *value = held;
            }
        }
        Self {
            file,
            pointer,
            kind,
            members,
        }
    }

    /// The value of a column; null where it is absent.
    pub(super) fn value(&self, column: &str) -> &Value {
        self.members.get(column).unwrap_or(&Value::Null)
    }

    /// A text that is not blank, trimmed.
    pub(super) fn text(&self, column: &str) -> Option<&str> {
        let text = self.value(column).as_str()?.trim();
        (!text.is_empty()).then_some(text)
    }

    /// A flag; `SQLite` has 0 and 1.
    pub(super) fn flag(&self, column: &str) -> Option<bool> {
        match convert(Kind::Bool, self.value(column)) {
            Converted::Same(read) | Converted::Changed(read, _) => read.as_bool(),
            _ => None,
        }
    }

    /// The members of a column that holds an object.
    pub(super) fn object(&self, column: &str) -> Option<&JsonObject> {
        self.value(column).as_object()
    }

    /// The place of a column.
    pub(super) fn at(&self, column: &str) -> String {
        member(&self.pointer, column)
    }

    /// True when a column says something: no null, no empty text, list or object.
    pub(super) fn says(&self, column: &str) -> bool {
        match self.value(column) {
            Value::Null => false,
            Value::String(text) => !text.trim().is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(members) => !members.is_empty(),
            _ => true,
        }
    }
}
