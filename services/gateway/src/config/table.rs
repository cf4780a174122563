//! Reads one table key by key and collects every fault.

use std::collections::HashSet;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};

use super::fault::ConfigFault;
use super::suggestion::{instead, must_be_one_of};

/// The fault is in the list already; there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported;

/// A table whose keys are consumed one by one. Remaining keys are unknown.
pub(super) struct Table<'faults> {
    pointer: String,
    entries: Map<String, Value>,
    accepted: Vec<&'static str>,
    faults: &'faults mut Vec<ConfigFault>,
}

impl<'faults> Table<'faults> {
    /// Opens `value`. Any other type than a table is a fault.
    pub(super) fn open(
        pointer: String,
        value: Value,
        faults: &'faults mut Vec<ConfigFault>,
    ) -> Result<Self, Reported> {
        if let Value::Object(entries) = value {
            Ok(Self {
                pointer,
                entries,
                accepted: Vec::new(),
                faults,
            })
        } else {
            faults.push(ConfigFault::new(
                pointer,
                "must be a table of keys and values",
            ));
            Err(Reported)
        }
    }

    /// The value of `key`, parsed by `read`; `None` if absent.
    pub(super) fn optional<T, E: Display>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(Value) -> Result<T, E>,
    ) -> Result<Option<T>, Reported> {
        // Recorded even if absent, for the advice about unknown keys.
        self.accepted.push(key);
        // A null comes from a reset key.
        match self.entries.remove(key).filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(value) => match read(value) {
                Ok(value) => Ok(Some(value)),
                Err(message) => Err(self.fault(key, message)),
            },
        }
    }

    /// The value of `key`, parsed by `read`. Absence is a fault.
    pub(super) fn required<T, E: Display>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(Value) -> Result<T, E>,
    ) -> Result<T, Reported> {
        match self.optional(key, read)? {
            Some(value) => Ok(value),
            None => Err(self.fault(key, "is required")),
        }
    }

    /// The table under `key`, with arbitrary keys. `read_entry` parses each entry.
    pub(super) fn entries<T, E: Display>(
        &mut self,
        key: &'static str,
        mut read_entry: impl FnMut(&str, Value) -> Result<T, E>,
    ) -> Result<Vec<T>, Reported> {
        let entries = self.optional(key, object)?.unwrap_or_default();
        let (mut read, mut is_valid) = (Vec::new(), true);
        for (name, value) in entries {
            match read_entry(&name, value) {
                Ok(entry) => read.push(entry),
                Err(message) => {
                    self.fault(&format!("{key}.{name}"), message);
                    is_valid = false;
                }
            }
        }
        if is_valid { Ok(read) } else { Err(Reported) }
    }

    /// The array of tables under `key`; empty if absent. Duplicate values of `identity` are faults.
    pub(super) fn tables<T>(
        &mut self,
        key: &'static str,
        identity: &'static str,
        read: impl Fn(Table<'_>) -> Result<T, Reported>,
    ) -> Result<Vec<T>, Reported> {
        let mut seen = HashSet::new();
        self.items(key, |pointer, value, faults| {
            let id = value
                .get(identity)
                .and_then(Value::as_str)
                .map(str::to_owned);
            // The duplicate is read all the same, so that its own faults are reported.
            let repeated = id.is_some_and(|id| !seen.insert(id));
            if repeated {
                faults.push(ConfigFault::new(
                    format!("{pointer}.{identity}"),
                    "is used twice",
                ));
            }
            let item = read(Table::open(pointer, value, faults)?)?;
            if repeated { Err(Reported) } else { Ok(item) }
        })
    }

    /// The array under `key`, item by item; empty if absent.
    pub(super) fn items<T>(
        &mut self,
        key: &'static str,
        read_item: impl FnMut(String, Value, &mut Vec<ConfigFault>) -> Result<T, Reported>,
    ) -> Result<Vec<T>, Reported> {
        Ok(self.items_if_any(key, read_item)?.unwrap_or_default())
    }

    /// The array under `key`, item by item; `None` if absent.
    pub(super) fn items_if_any<T>(
        &mut self,
        key: &'static str,
        mut read_item: impl FnMut(String, Value, &mut Vec<ConfigFault>) -> Result<T, Reported>,
    ) -> Result<Option<Vec<T>>, Reported> {
        let Some(values) = self.optional(key, array)? else {
            return Ok(None);
        };
        let pointer = self.pointer_to(key);
        let items: Vec<_> = values
            .into_iter()
            .enumerate()
            .map(|(index, value)| read_item(format!("{pointer}[{index}]"), value, self.faults))
            .collect();
        // Collected in two steps: the first error must not end the reading of later items.
        items.into_iter().collect::<Result<_, _>>().map(Some)
    }

    /// The table under `key`. Absence is a fault.
    pub(super) fn section<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(Table<'_>) -> Result<T, Reported>,
    ) -> Result<T, Reported> {
        match self.section_if_any(key, read)? {
            Some(section) => Ok(section),
            None => Err(self.fault(key, "is required")),
        }
    }

    /// The table under `key`; `None` if absent.
    pub(super) fn section_if_any<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(Table<'_>) -> Result<T, Reported>,
    ) -> Result<Option<T>, Reported> {
        let Some(value) = self.optional(key, Ok::<_, &str>)? else {
            return Ok(None);
        };
        let pointer = self.pointer_to(key);
        read(Table::open(pointer, value, self.faults)?).map(Some)
    }

    /// Adds a fault about each of these keys that is set. Call it before the keys are read.
    pub(super) fn refuse(
        &mut self,
        keys: &[&'static str],
        message: &'static str,
    ) -> Result<(), Reported> {
        let is_set = |key: &&&str| {
            self.entries
                .get(**key)
                .is_some_and(|value| !value.is_null())
        };
        let set: Vec<_> = keys.iter().filter(is_set).collect();
        let mut result = Ok(());
        for key in set {
            result = Err(self.fault(key, message));
        }
        result
    }

    /// Adds a fault about `key`.
    pub(super) fn fault(&mut self, key: &str, message: impl Display) -> Reported {
        self.faults
            .push(ConfigFault::new(self.pointer_to(key), message));
        Reported
    }

    /// Adds a fault about `key` unless `is_right`. For checks across keys: evaluate the result after
    /// [`Table::close`], so that one fault does not hide another.
    pub(super) fn demand(
        &mut self,
        key: &str,
        is_right: bool,
        message: impl Display,
    ) -> Result<(), Reported> {
        if is_right {
            Ok(())
        } else {
            Err(self.fault(key, message))
        }
    }

    /// Ends the reading. Keys that were not read are faults.
    pub(super) fn close(mut self) -> Result<(), Reported> {
        let mut unknown: Vec<String> = self.entries.keys().cloned().collect();
        // Tables come in hash map order; messages need a stable one.
        unknown.sort_unstable();
        let accepted = std::mem::take(&mut self.accepted);
        for key in &unknown {
            let instead = instead(key, &accepted);
            self.fault(key, format_args!("is not known here; {instead}"));
        }
        if unknown.is_empty() {
            Ok(())
        } else {
            Err(Reported)
        }
    }

    /// Ends the reading and passes the remaining keys to `validate`, whose faults are relative to this table.
    pub(super) fn validate_rest<T>(
        self,
        validate: impl FnOnce(Map<String, Value>) -> Result<T, Vec<ConfigFault>>,
    ) -> Result<T, Reported> {
        let Self {
            pointer,
            entries,
            faults,
            ..
        } = self;
        validate(entries).map_err(|found| {
            faults.extend(found.into_iter().map(|fault| match fault.pointer.as_str() {
                "" => ConfigFault::new(pointer.as_str(), fault.message),
                within => ConfigFault::new(format!("{pointer}.{within}"), fault.message),
            }));
            Reported
        })
    }

    fn pointer_to(&self, key: &str) -> String {
        if self.pointer.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.pointer)
        }
    }
}

/// Text that is not blank and has no control characters.
pub(super) fn text(value: Value) -> Result<String, &'static str> {
    match value {
        Value::String(text) if text.trim().is_empty() => Err("must not be empty"),
        Value::String(text)
            if text
                .chars()
                .any(|letter| letter.is_control() && letter != '\n') =>
        {
            Err("must not hold control characters")
        }
        Value::String(text) => Ok(text),
        _ => Err("must be text in quotes"),
    }
}

/// Text of at most 255 bytes on one line, as ids and names are.
pub(super) fn name(value: Value) -> Result<String, &'static str> {
    match text(value)? {
        long if long.len() > 255 => Err("must be at most 255 bytes"),
        lines if lines.contains('\n') => Err("must be one line"),
        name => Ok(name),
    }
}

/// Text parsed as `T`. The error of `T` must not repeat the text.
pub(super) fn parsed<T: FromStr<Err: Display>>(value: Value) -> Result<T, String> {
    text(value)?
        .parse()
        .map_err(|error: T::Err| error.to_string())
}

/// An integer within `range`.
pub(super) fn integer(range: RangeInclusive<u64>) -> impl Fn(Value) -> Result<u64, String> {
    move |value| {
        value
            .as_u64()
            .filter(|number| range.contains(number))
            .ok_or_else(|| {
                format!(
                    "must be an integer from {} to {}",
                    range.start(),
                    range.end()
                )
            })
    }
}

/// A number of seconds within `range`.
pub(super) fn seconds(range: RangeInclusive<f64>) -> impl Fn(Value) -> Result<Duration, String> {
    move |value| {
        value
            .as_f64()
            .filter(|number| range.contains(number))
            .map(Duration::from_secs_f64)
            .ok_or_else(|| {
                format!(
                    "must be a number of seconds from {} to {}",
                    range.start(),
                    range.end()
                )
            })
    }
}

/// A text that must be one of `choices`.
pub(super) fn one_of(choices: &'static [&'static str]) -> impl Fn(Value) -> Result<String, String> {
    move |value| match value {
        Value::String(choice) if choices.contains(&choice.as_str()) => Ok(choice),
        Value::String(written) => Err(must_be_one_of(&written, choices)),
        _ => Err(format!("must be one of {}", choices.join(", "))),
    }
}

/// A non-empty array of distinct `choices`.
pub(super) fn some_of(
    choices: &'static [&'static str],
) -> impl Fn(Value) -> Result<Vec<String>, String> {
    move |value| {
        let chosen: Vec<String> = array(value)
            .ok()
            .and_then(|values: Vec<Value>| {
                values
                    .into_iter()
                    .map(|value| one_of(choices)(value).ok())
                    .collect()
            })
            .unwrap_or_default();
        let repeated = chosen
            .iter()
            .enumerate()
            .any(|(at, one)| chosen[..at].contains(one));
        if chosen.is_empty() || repeated {
            return Err(format!("must be a list of some of {}", choices.join(", ")));
        }
        Ok(chosen)
    }
}

pub(super) fn object(value: Value) -> Result<Map<String, Value>, &'static str> {
    if let Value::Object(entries) = value {
        Ok(entries)
    } else {
        Err("must be a table")
    }
}

pub(super) fn array(value: Value) -> Result<Vec<Value>, &'static str> {
    if let Value::Array(values) = value {
        Ok(values)
    } else {
        Err("must be an array")
    }
}
