//! Typed access to fields of a configuration, with a list of all faults.

use std::collections::BTreeSet;
use std::time::Duration;

use action_graph::action::Effect;
use action_graph::json::join;
use protocol::JsonObject;
use protocol::message::Message;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Value of form selectors for "none".
const NONE: &str = "__none__";

/// Value of `approve` that requires approvals of plans.
pub(crate) const PLAN: &str = "plan";

/// Fault of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFault {
    /// JSON pointer relative to the agent's `config`.
    pub pointer: String,
    /// Rule that the value violates.
    pub message: String,
}

/// Reader of one configuration. Absent values and null select the default; invalid values are faults.
pub(super) struct TableReader<'a> {
    config: &'a JsonObject,
    faults: Vec<TableFault>,
}

impl<'a> TableReader<'a> {
    pub(super) fn new(config: &'a JsonObject) -> Self {
        Self {
            config,
            faults: Vec::new(),
        }
    }

    pub(super) fn finish(self) -> Vec<TableFault> {
        self.faults
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.config.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn fault(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        self.faults.push(TableFault {
            pointer: pointer.into(),
            message: message.into(),
        });
    }

    pub(super) fn flag(&mut self, key: &str, default: bool) -> bool {
        match self.get(key) {
            None => default,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => {
                self.fault(format!("/{key}"), "must be true or false");
                default
            }
        }
    }

    pub(super) fn integer(&mut self, key: &str, min: u64, max: u64, default: u64) -> u64 {
        let Some(value) = self.get(key) else {
            return default;
        };
        let fits = value.as_u64().filter(|number| (min..=max).contains(number));
        fits.unwrap_or_else(|| {
            let message = if max == u64::MAX {
                format!("must be an integer of at least {min}")
            } else {
                format!("must be an integer from {min} to {max}")
            };
            self.fault(format!("/{key}"), message);
            // The default value lets the same pass check all other fields.
            default
        })
    }

    pub(super) fn size(&mut self, key: &str, min: u64, max: u64, default: u64) -> usize {
        usize::try_from(self.integer(key, min, max, default)).unwrap_or(usize::MAX)
    }

    /// Reads one of these words.
    pub(super) fn word<T: Copy>(&mut self, key: &str, words: &[(&str, T)], default: T) -> T {
        let Some(value) = self.get(key) else {
            return default;
        };
        let found = words.iter().find(|(word, _)| value.as_str() == Some(word));
        if let Some((_, meaning)) = found {
            return *meaning;
        }
        let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        self.fault(
            format!("/{key}"),
            format!("must be one of {}", words.join(", ")),
        );
        default
    }

    /// Effects that need an approval, and true if plans do.
    pub(super) fn approvals(&mut self, default: &[Effect]) -> (BTreeSet<Effect>, bool) {
        let is_plan = |value: &Value| value.as_str() == Some(PLAN);
        let Some(value) = self.get("approve") else {
            return (default.iter().copied().collect(), false);
        };
        let (plans, effects): (Vec<Value>, Vec<Value>) = match value.clone() {
            Value::Array(list) => list.into_iter().partition(is_plan),
            word if is_plan(&word) => (vec![word], Vec::new()),
            _ => {
                self.fault("/approve".to_owned(), "must be a list of effects, or plan");
                return (BTreeSet::new(), false);
            }
        };
        // `plan` without effects adds to the default effects instead of replacing them.
        if effects.is_empty() && !plans.is_empty() {
            return (default.iter().copied().collect(), true);
        }
        (self.effects("approve", default), !plans.is_empty())
    }

    /// Reads a list of effects by name.
    pub(super) fn effects(&mut self, key: &str, default: &[Effect]) -> BTreeSet<Effect> {
        let Some(value) = self.get(key) else {
            return default.iter().copied().collect();
        };
        let Some(list) = value.as_array() else {
            self.fault(format!("/{key}"), "must be a list of effects");
            return BTreeSet::new();
        };
        let mut effects = BTreeSet::new();
        for (index, name) in list.iter().enumerate() {
            // `approvals` reads this word; skipping it here preserves the indices of faults.
            if key == "approve" && name.as_str() == Some(PLAN) {
                continue;
            }
            let found = Effect::ALL
                .into_iter()
                .find(|effect| name.as_str() == Some(effect.as_str()));
            if let Some(effect) = found {
                effects.insert(effect);
            } else {
                let words = Effect::ALL.map(Effect::as_str).join(", ");
                self.fault(format!("/{key}/{index}"), format!("must be one of {words}"));
            }
        }
        effects
    }

    /// Reads a list of texts without blank ones and [`NONE`].
    pub(super) fn texts(&mut self, key: &str) -> Vec<String> {
        let Some(value) = self.get(key) else {
            return Vec::new();
        };
        let Some(list) = value.as_array() else {
            self.fault(format!("/{key}"), "must be a list of texts");
            return Vec::new();
        };
        let mut texts = Vec::new();
        for (index, one) in list.iter().enumerate() {
            match one.as_str().map(str::trim) {
                Some("" | NONE) => {}
                Some(text) => texts.push(text.to_owned()),
                None => self.fault(format!("/{key}/{index}"), "must be a text"),
            }
        }
        texts
    }

    /// Reads the id of a selector.
    pub(super) fn selected(&mut self, key: &str) -> Option<String> {
        let value = self.get(key)?;
        let Some(id) = value.as_str() else {
            self.fault(format!("/{key}"), "must be an id");
            return None;
        };
        let id = id.trim();
        (!matches!(id, "" | NONE)).then(|| id.to_owned())
    }

    /// Reads the ids of a model selector with fallbacks, or one id.
    pub(super) fn models(&mut self, key: &str) -> Vec<String> {
        let chosen: Vec<&Value> = match self.get(key) {
            None => return Vec::new(),
            Some(one @ Value::String(_)) => vec![one],
            Some(Value::Object(selected)) => {
                let fallbacks = selected.get("fallbacks").and_then(Value::as_array);
                selected
                    .get("primary")
                    .into_iter()
                    .chain(fallbacks.into_iter().flatten())
                    .collect()
            }
            Some(_) => {
                self.fault(
                    format!("/{key}"),
                    "must be a model id, or an object with primary and fallbacks",
                );
                return Vec::new();
            }
        };
        let ids = chosen.into_iter().filter_map(Value::as_str).map(str::trim);
        ids.filter(|id| !matches!(*id, "" | NONE))
            .map(str::to_owned)
            .collect()
    }

    /// Reads a timeout in seconds; 0 and null mean no limit of the agent.
    pub(super) fn timeout(&mut self, key: &str, default: Duration) -> Option<Duration> {
        if self.config.get(key).is_some_and(Value::is_null) {
            return None;
        }
        let seconds = self.integer(key, 0, u64::from(u32::MAX), default.as_secs());
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// Reads messages with a role and a text, or one text as the system message.
    pub(super) fn prompt(&mut self, key: &str) -> Vec<Message> {
        let list = match self.get(key) {
            None => return Vec::new(),
            Some(Value::String(text)) => return vec![Message::text("system", text)],
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.fault(format!("/{key}"), "must be a list of messages");
                return Vec::new();
            }
        };
        let mut messages = Vec::new();
        for (index, message) in list.iter().enumerate() {
            let text = |name| message.get(name).and_then(Value::as_str);
            match (text("role"), text("content")) {
                (Some(role), Some(content)) => messages.push(Message::text(role, content)),
                _ => self.fault(
                    format!("/{key}/{index}"),
                    "must have a role and a content, both texts",
                ),
            }
        }
        messages
    }

    /// Deserializes a structured value; form fields hold it as JSON text.
    pub(super) fn table<T: DeserializeOwned + Default>(&mut self, key: &str) -> T {
        let Some(value) = self.get(key) else {
            return T::default();
        };
        let value = match value {
            // An empty text area of the form is no table.
            Value::String(text) if text.trim().is_empty() => return T::default(),
            // Null fails the deserialization below and becomes a fault of this field.
            Value::String(text) => serde_json::from_str(text).unwrap_or(Value::Null),
            other => other.clone(),
        };
        match serde_path_to_error::deserialize(value) {
            Ok(table) => table,
            Err(error) => {
                let pointer = pointer_of(error.path());
                self.fault(format!("/{key}{pointer}"), error.into_inner().to_string());
                T::default()
            }
        }
    }
}

fn pointer_of(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in path {
        let token = match segment {
            Segment::Seq { index } => index.to_string(),
            Segment::Map { key } => key.clone(),
            Segment::Enum { .. } | Segment::Unknown => continue,
        };
        pointer = join(&pointer, &token);
    }
    pointer
}
