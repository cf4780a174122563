//! Converts the settings of a built-in runner by the migration map.

use protocol::JsonObject;
use serde_json::Value;

use super::connectors::{IDLE_SECONDS, IDLE_TIMEOUT, NEW_USERS, TIMEOUT, USERS};
use super::convert::{Converted, convert};
use super::draft::SettingsDraft;
use super::families::{Family, FamilyField, FieldKind, FieldNeed};
use super::report::{FieldAction, FieldNote, member};
use super::server::RunnerServer;

impl SettingsDraft<'_, '_> {
    /// Converts the settings of a built-in runner, field by field.
    pub(super) fn legacy(&mut self, family: &'static Family, section: &JsonObject, at: &str) {
        for field in family.fields {
            self.field(field, section, at);
        }
        let is_mapped = |name: &&String| {
            family
                .fields
                .iter()
                .any(|f| f.from.contains(&name.as_str()))
        };
        // Each setting of the section gets a note, so that users see what is lost.
        for name in section.keys().filter(|name| !is_mapped(name)) {
            self.note(FieldAction::Dropped, member(at, name)).why =
                Some(format!("{} has no such setting", family.plugin));
        }
        // A default of an unsupported setting would make the configuration invalid.
        for add in family
            .adds
            .iter()
            .filter(|add| !self.unknown.contains(&add.to))
        {
            self.default(add.to, add.value, add.why);
        }
        if self.server == RunnerServer::Connectors && family.adds.iter().any(|add| add.to == USERS)
        {
            // The names of users change at the service, which then sees new users.
            let note = FieldNote::new(FieldAction::Warning, None).to("runner_id");
            self.notes.push(note.because(NEW_USERS));
        }
        for (choice, value, needed) in family.needs {
            let setting = |name: &str| self.config.iter().find(|(key, _)| key == name);
            if setting(choice).is_some_and(|(_, chosen)| chosen == value) {
                // Checked after all fields: the choice and its settings may have any order.
                let absent: Vec<_> = needed
                    .iter()
                    .filter(|name| setting(name).is_none())
                    .collect();
                for name in absent {
                    self.note(FieldAction::Missing, member(at, name)).why =
                        Some(format!("{choice} {value} needs it"));
                }
            }
        }
    }

    fn field(&mut self, field: &'static FamilyField, section: &JsonObject, at: &str) {
        let given = || {
            let names = field.from.iter();
            names.filter_map(|name| Some((*name, section.get(*name)?)))
        };
        if let FieldKind::Nowhere(why) = field.kind {
            for (name, _) in given() {
                self.note(FieldAction::Dropped, member(at, name)).why = Some(why.to_owned());
            }
            return;
        }
        if field.kind == FieldKind::Policy {
            // The policy reads these settings itself; a note here would be a second one.
            return;
        }
        if let FieldNeed::Always(value, why) = field.need {
            for (name, _) in given() {
                self.note(FieldAction::Dropped, member(at, name)).why = Some(why.to_owned());
            }
            self.fill(field.to, value, why);
            return;
        }
        // The first name with a value wins; empty values under another name do not count.
        let has_value =
            |value: &Value| !value.is_null() && convert(field.kind, value) != Converted::Empty;
        let chosen = given().find(|(_, value)| has_value(value));
        for (name, value) in given() {
            match chosen {
                Some((other, _)) if other == name => {}
                // Two names with different values: the user must know which one has no effect.
                Some((_, one)) if has_value(value) && one != value => {
                    self.note(FieldAction::Dropped, member(at, name)).why =
                        Some("its other name has another value".to_owned());
                }
                _ => {
                    self.note(FieldAction::Dropped, member(at, name)).why =
                        Some("is redundant".to_owned());
                }
            }
        }
        let wrong = match chosen {
            None => None,
            Some((name, value)) => {
                let pointer = member(at, name);
                match self.set(field.to, field.kind, value, pointer.clone()) {
                    // An invalid value falls through: its default applies, and the reason is noted.
                    Ok(_) => return,
                    Err(message) => Some((pointer, message)),
                }
            }
        };
        let why = wrong
            .as_ref()
            .map_or("was not set", |(_, message)| *message);
        match field.need {
            FieldNeed::Critical => {
                let pointer = wrong
                    .as_ref()
                    .map_or_else(|| member(at, field.from[0]), |(pointer, _)| pointer.clone());
                // A missing secret or address cannot be invented.
                let why = if wrong.is_some() { why } else { "is not set" };
                self.note(FieldAction::Missing, pointer).why = Some(why.to_owned());
                return;
            }
            FieldNeed::Default(_) if self.unknown.contains(&field.to) => {}
            FieldNeed::Default(value) => self.fill(field.to, value, why),
            FieldNeed::ByAppType(choices) => {
                let app_type = self.config.iter().find(|(name, _)| name == "app-type");
                let app_type = app_type.and_then(|(_, value)| value.as_str());
                let choice = choices.iter().find(|(name, _)| app_type == Some(*name));
                if let Some((_, value)) = choice {
                    self.default(field.to, value, "goes with this app-type");
                }
            }
            FieldNeed::Optional | FieldNeed::Always(..) => {}
        }
        if let Some((pointer, message)) = wrong {
            self.note(FieldAction::Dropped, pointer).why = Some(message.to_owned());
        }
    }

    /// Sets a default of the map. Connectors have an idle timeout with a default of its own in place of the
    /// service timeout.
    fn fill(&mut self, name: &str, value: &str, why: &str) {
        if self.server != RunnerServer::Connectors || name != TIMEOUT {
            self.default(name, value, why);
        } else if value
            .parse()
            .is_ok_and(|seconds: f64| seconds > IDLE_SECONDS)
        {
            self.default(IDLE_TIMEOUT, value, why);
        }
    }

    fn default(&mut self, name: &str, value: &str, why: &str) {
        let value = serde_json::from_str(value).expect("the defaults of the map are JSON");
        self.config.push((name.to_owned(), value));
        let note = FieldNote::new(FieldAction::Defaulted, None);
        self.notes
            .push(note.to(format!("config.{name}")).because(why));
    }
}
