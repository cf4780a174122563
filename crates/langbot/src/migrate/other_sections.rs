//! Sections of a pipeline other than the runner's settings.

use protocol::JsonObject;
use serde_json::json;

use super::convert::{Converted, convert};
use super::draft::SettingsDraft;
use super::families::{Family, FieldKind};
use super::report::{FieldAction, member};
use super::source::FoundPipeline;

/// Setting of an agent that an `expire-time` becomes.
pub(super) const IDLE_SECONDS: &str = "conversation_idle_seconds";
/// Largest value of that setting: a year.
const MAX_IDLE_SECONDS: u64 = 31_536_000;

impl SettingsDraft<'_, '_> {
    /// Returns the `conversation_idle_seconds` of an `expire-time`. `None`: conversations never expired.
    pub(super) fn idle_seconds(&mut self, ai: &JsonObject, at: &str) -> Option<u64> {
        let value = ai.get("runner")?.get("expire-time")?;
        let pointer = member(&member(at, "runner"), "expire-time");
        let read = || value.as_str()?.trim().parse::<f64>().ok();
        let seconds = value.as_f64().or_else(read);
        // NaN and infinity would pass the comparisons below.
        let seconds = seconds.filter(|seconds| seconds.is_finite());
        // Zero and negative values mean "never" in LangBot.
        if value.is_null() || seconds.is_some_and(|seconds| seconds <= 0.0) {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and larger values are cut"
        )]
        let Some(seconds) = seconds.map(|seconds| seconds.ceil() as u64) else {
            self.note(FieldAction::Dropped, pointer).why =
                Some("is no number of seconds".to_owned());
            return None;
        };
        let note = self.note(FieldAction::Renamed, pointer);
        note.target = Some(IDLE_SECONDS.to_owned());
        // Clamped, not rejected: a longer time has nearly the same effect.
        (seconds > MAX_IDLE_SECONDS).then(|| note.why = Some("a year is the longest".to_owned()));
        Some(seconds.min(MAX_IDLE_SECONDS))
    }

    /// Notes the results for `remove-think` and for the other sections.
    pub(super) fn other_sections(
        &mut self,
        found: &FoundPipeline,
        ai: &JsonObject,
        at: &str,
        family: Option<&'static Family>,
        section_at: &str,
    ) {
        let misc = found
            .config
            .get("output")
            .and_then(|output| output.get("misc"));
        let removes = misc.and_then(|misc| misc.get("remove-think"));
        let removes = removes.map(|value| convert(FieldKind::Bool, value));
        // A setting of the runner itself wins over the pipeline's.
        if let Some(Converted::Same(value) | Converted::Changed(value, _)) = removes
            && value == json!(true)
            && let Some(family) = family
            && !self.config.iter().any(|(name, _)| name == "remove-think")
        {
            let pointer = format!("{}/output/misc/remove-think", found.at);
            if family.removes_think {
                self.keep("remove-think", None, value, pointer, None);
            } else {
                self.note(FieldAction::Dropped, pointer).why =
                    Some("its runner has no such setting: reasoning is shown".to_owned());
            }
        }
        for name in ai.keys() {
            let pointer = member(at, name);
            let is_read = ["runner", "runner_config"].contains(&name.as_str());
            // An agent has its own settings at this position, not sections of runners.
            if found.config.contains_key("ai") && !is_read && pointer != section_at {
                self.note(FieldAction::Dropped, pointer).why =
                    Some("belongs to a runner that is not selected".to_owned());
            }
        }
        for name in ["trigger", "safety", "output"] {
            if found.config.contains_key(name) {
                self.note(FieldAction::Dropped, member(&found.at, name)).why =
                    Some("is the bot platform's business, before and after a run".to_owned());
            }
        }
    }
}
