//! Faults of a configuration. All are collected, not the first only.

use std::fmt;

use protocol::admin::Fault;

use super::locations::Locations;

/// One fault and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// `section.key` or `agents[0].scope`; empty for the complete file.
    pub pointer: String,
    /// Instruction for the operator. Never repeats a value, which may be a misplaced secret.
    pub message: String,
    /// `runnel.toml:12`, or the environment variable. `None`: the setting is written nowhere.
    pub location: Option<String>,
}

impl ConfigFault {
    pub fn new(pointer: impl Into<String>, message: impl fmt::Display) -> Self {
        Self {
            pointer: pointer.into(),
            message: message.to_string(),
            location: None,
        }
    }
}

impl ConfigFault {
    /// A fault inside the entry with the pointer `entry`. Converts the JSON pointer of the API.
    pub(crate) fn within(entry: &str, fault: &Fault) -> Self {
        let pointer = format!("{entry}{}", dotted(&fault.pointer));
        Self::new(pointer.trim_start_matches('.'), &fault.message)
    }
}

/// Converts `/event_types/0` to `.event_types[0]`.
fn dotted(pointer: &str) -> String {
    let segments = pointer.split('/').skip(1);
    let segments = segments.map(|segment| match segment.parse::<usize>() {
        Ok(index) => format!("[{index}]"),
        Err(_) => format!(".{segment}"),
    });
    segments.collect()
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.pointer.is_empty() {
            write!(formatter, "{}: ", self.pointer)?;
        }
        formatter.write_str(&self.message)?;
        match &self.location {
            Some(location) => write!(formatter, "\n  --> {location}"),
            None => Ok(()),
        }
    }
}

/// All faults of a configuration, each with its place on a line of its own; never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigFault>);

impl From<ConfigFault> for ConfigErrors {
    fn from(fault: ConfigFault) -> Self {
        Self(vec![fault])
    }
}

impl ConfigErrors {
    /// Adds the place of each fault, and sorts the faults by line.
    pub(crate) fn located(mut self, locations: &Locations) -> Self {
        for fault in &mut self.0 {
            fault.location = locations.location_of(&fault.pointer);
        }
        self.0
            .sort_by_cached_key(|fault| locations.line_of(&fault.pointer));
        self
    }
}

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
