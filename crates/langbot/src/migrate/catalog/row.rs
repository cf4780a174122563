//! One row with decoded JSON columns.

use protocol::JsonObject;
use serde_json::Value;

use crate::migrate::convert::{Converted, convert, decoded};
use crate::migrate::families::FieldKind;
use crate::migrate::report::member;

/// Kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::migrate) enum RowKind {
    Provider,
    Llm,
    Embedding,
    Rerank,
    /// A model of an API answer without a kind.
    SomeModel,
    Server,
    Base,
    File,
}

impl RowKind {
    /// Names of row lists: database tables first, then members of API answers.
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

/// JSON columns, which `SQLite` returns as texts.
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

/// A row and its pointer.
#[derive(Clone, Debug)]
pub(in crate::migrate) struct CatalogRow<'a> {
    pub(super) file: &'a str,
    pub(super) pointer: String,
    pub(super) kind: RowKind,
    members: JsonObject,
}

impl<'a> CatalogRow<'a> {
    pub(super) fn new(file: &'a str, pointer: String, kind: RowKind, members: &JsonObject) -> Self {
        let mut members = members.clone();
        // Decoded once here, so that all readers see the same type.
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

    /// Returns the value of a column, or null.
    pub(super) fn value(&self, column: &str) -> &Value {
        self.members.get(column).unwrap_or(&Value::Null)
    }

    /// Returns a non-blank text, trimmed.
    pub(super) fn text(&self, column: &str) -> Option<&str> {
        let text = self.value(column).as_str()?.trim();
        (!text.is_empty()).then_some(text)
    }

    /// Returns a flag. `SQLite` stores 0 and 1.
    pub(super) fn flag(&self, column: &str) -> Option<bool> {
        match convert(FieldKind::Bool, self.value(column)) {
            Converted::Same(read) | Converted::Changed(read, _) => read.as_bool(),
            _ => None,
        }
    }

    /// Returns the members of a column with an object.
    pub(super) fn object(&self, column: &str) -> Option<&JsonObject> {
        self.value(column).as_object()
    }

    /// Returns the pointer of a column.
    pub(super) fn at(&self, column: &str) -> String {
        member(&self.pointer, column)
    }

    /// Returns true for a column with a value other than null, and other than an empty text, list or object.
    pub(super) fn has_value(&self, column: &str) -> bool {
        match self.value(column) {
            Value::Null => false,
            Value::String(text) => !text.trim().is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(members) => !members.is_empty(),
            _ => true,
        }
    }
}
