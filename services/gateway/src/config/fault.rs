//! Faults of a configuration. All are collected, not the first only.

use std::fmt;

use protocol::admin::Fault;

/// One fault and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// `section.key` or `agents[0].scope`; empty for the file as a whole.
    pub pointer: String,
    /// How to fix it. Never repeats a value, which may be a misplaced secret.
    pub message: String,
}

impl ConfigFault {
    pub fn new(pointer: impl Into<String>, message: impl fmt::Display) -> Self {
        Self {
            pointer: pointer.into(),
            message: message.to_string(),
        }
    }
}

impl ConfigFault {
    /// A fault inside the entry at `place`. Converts the JSON pointer of the API.
    pub(crate) fn within(place: &str, fault: &Fault) -> Self {
        let pointer = format!("{place}{}", fault.pointer.replace('/', "."));
        Self::new(pointer.trim_start_matches('.'), &fault.message)
    }
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pointer.is_empty() {
            formatter.write_str(&self.message)
        } else {
            write!(formatter, "{}: {}", self.pointer, self.message)
        }
    }
}

/// All faults of a configuration, one per line; never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigFault>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                formatter.write_str("\n")?;
            }
            fault.fmt(formatter)?;
        }
        Ok(())
    }
}
