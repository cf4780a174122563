//! Language and time zone of a run: those of the actor, then of the event, then of the agent.

use protocol::admin::{AgentSpec, Fault};
use protocol::event::EventEnvelope;

/// Longest language tag that RFC 5646 asks implementations to take.
const LOCALE_BYTES: usize = 35;
const TIMEZONE_BYTES: usize = 64;

/// Language and time zone of a run, if the event or the agent has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunLocale {
    /// With `_` between its parts.
    pub locale: Option<String>,
    pub timezone: Option<String>,
}

impl RunLocale {
    pub fn of(event: &EventEnvelope, agent: &AgentSpec) -> Self {
        let actor = event.actor.as_ref();
        let locale = actor
            .and_then(|actor| actor.locale.as_ref())
            .or(event.locale.as_ref())
            .or(agent.locale.as_ref());
        let timezone = actor
            .and_then(|actor| actor.timezone.as_ref())
            .or(event.timezone.as_ref())
            .or(agent.timezone.as_ref());
        Self {
            // One separator for runners: events carry both `en-US` and `en_US`.
            locale: locale.map(|tag| tag.replace('-', "_")),
            timezone: timezone.cloned(),
        }
    }
}

/// Checks the language and time zone below `prefix`.
pub fn check_locale(prefix: &str, locale: Option<&str>, timezone: Option<&str>) -> Vec<Fault> {
    let mut faults = Vec::new();
    if locale.is_some_and(|tag| !is_locale(tag)) {
        let message = "must be a language tag of at most 35 bytes, such as en_US or zh-Hans";
        faults.push(Fault::new(format!("{prefix}/locale"), message));
    }
    if timezone.is_some_and(|name| !is_timezone(name)) {
        let message = "must be an IANA time zone name of at most 64 bytes, such as Europe/Berlin";
        faults.push(Fault::new(format!("{prefix}/timezone"), message));
    }
    faults
}

/// A language of 2 to 8 letters, then parts of 1 to 8 letters and digits.
fn is_locale(tag: &str) -> bool {
    let mut parts = tag.split(['-', '_']);
    let is_part = |part: &str| {
        (1..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let is_language = |part: &str| {
        (2..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphabetic())
    };
    tag.len() <= LOCALE_BYTES && parts.next().is_some_and(is_language) && parts.all(is_part)
}

/// The form of a name. The gateway has no table of zones, so an unknown name of this form passes.
fn is_timezone(name: &str) -> bool {
    // An offset such as `+02:00` is no zone name.
    let is_part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphabetic())
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_+-".contains(&byte))
    };
    name.len() <= TIMEZONE_BYTES && name.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn accepts_language_tags_and_zone_names_alone() {
        for (locale, timezone, is_valid) in [
            ("en", "UTC", true),
            ("zh-Hans-CN", "Etc/GMT+5", true),
            ("de_DE", "America/Argentina/Buenos_Aires", true),
            ("e", "", false),
            ("en US", "+02:00", false),
            ("en__US", "../etc/passwd", false),
            ("12", "Europe//Berlin", false),
            (&"en-".repeat(12), &"A".repeat(65), false),
        ] {
            let found = check_locale("/actor", Some(locale), Some(timezone));
            let pointers: Vec<_> = found.iter().map(|fault| fault.pointer.as_str()).collect();
            let faulty = ["/actor/locale", "/actor/timezone"];
            let expected: &[&str] = if is_valid { &[] } else { &faulty };
            assert_eq!(pointers, expected, "{locale} {timezone}");
        }
    }

    #[test]
    fn prefers_actor_then_event_then_agent() {
        let named = |name: &str| json!({"locale": name, "timezone": name});
        let check = |[actor, event, agent]: [bool; 3], expected: Option<&str>| {
            let part = |has: bool, name: &str| if has { named(name) } else { json!({}) };
            let with = |mut value: Value, part: Value| {
                let part = part.as_object().unwrap().clone();
                value.as_object_mut().unwrap().extend(part);
                value
            };
            let actor = with(json!({"actor_type": "user"}), part(actor, "actor"));
            let posted = json!({"event_type": "a.b", "actor": actor});
            let spec = json!({"name": "a", "event_types": ["a.b"], "runner_id": "plugin:a/b/c"});
            let event = serde_json::from_value(with(posted, part(event, "ev-ent"))).unwrap();
            let spec = serde_json::from_value(with(spec, part(agent, "agent"))).unwrap();
            let found = RunLocale::of(&event, &spec);
            let underscored = expected.map(|name| name.replace('-', "_"));
            assert_eq!(found.locale, underscored);
            assert_eq!(found.timezone.as_deref(), expected);
        };
        check([true, true, true], Some("actor"));
        check([false, true, true], Some("ev-ent"));
        check([false, false, true], Some("agent"));
        check([false, false, false], None);
    }
}
