//! Sections of a pipeline other than the runner's settings.

use protocol::JsonObject;
use serde_json::json;

use super::convert::{Converted, convert};
use super::families::{Family, FieldKind};
use super::pipeline::SettingsDraft;
use super::report::FieldAction;
use super::source::{FoundPipeline, member};

impl SettingsDraft<'_, '_> {
    /// Notes the results for `remove-think`, for the expiry of conversations, and for the other sections.
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
        let expires = ai
            .get("runner")
            .and_then(|runner| runner.get("expire-time"));
        if expires.is_some_and(|time| !time.is_null() && time != &json!(0)) {
            let pointer = member(&member(at, "runner"), "expire-time");
            self.note(FieldAction::Dropped, pointer).why = Some(
                "conversations do not expire here; begin another one by another conversation_id"
                    .to_owned(),
            );
        }
        for name in ai.keys() {
            let pointer = member(at, name);
            let known = ["runner", "runner_config"].contains(&name.as_str());
            if found.config.contains_key("ai") && !known && pointer != section_at {
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
