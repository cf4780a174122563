//! Hooks: one HTTP call of the gateway that allows, denies or replaces a value (`docs/hooks.md`).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::JsonObject;
use crate::event::EventEnvelope;
use crate::id::{AgentId, RunId};
use crate::model::{LlmInvokeResult, LlmRequest};

/// Moment of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HookMoment {
    /// Before an event is stored.
    #[serde(rename = "event")]
    Event,
    /// Before a request is sent to a model.
    #[serde(rename = "model.request")]
    ModelRequest,
    /// After the answer of a model, before its end is delivered.
    #[serde(rename = "model.response")]
    ModelResponse,
    /// Before the arguments of a tool call are checked and approved.
    #[serde(rename = "tool.call")]
    ToolCall,
    /// After a tool has answered, before the result is stored and delivered.
    #[serde(rename = "tool.result")]
    ToolResult,
}

impl HookMoment {
    pub const ALL: [Self; 5] = [
        Self::Event,
        Self::ModelRequest,
        Self::ModelResponse,
        Self::ToolCall,
        Self::ToolResult,
    ];

    /// Returns the name used on the wire and in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::ModelRequest => "model.request",
            Self::ModelResponse => "model.response",
            Self::ToolCall => "tool.call",
            Self::ToolResult => "tool.result",
        }
    }

    /// True after a model or a tool was called.
    pub const fn is_of_answer(self) -> bool {
        // A refusal of these comes too late for a retry: the effect has happened, or the tokens are paid.
        matches!(self, Self::ModelResponse | Self::ToolResult)
    }

    /// Parses a name of [`Self::as_str`].
    pub fn parse(name: &str) -> Option<Self> {
        // Five names: a search is as fast as a map.
        Self::ALL.into_iter().find(|moment| moment.as_str() == name)
    }
}

/// Form of the value of a model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HookFormat {
    /// `LlmRequest` and `LlmInvokeResult` of the host API.
    Native,
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's responses.
    Responses,
    /// Anthropic's messages.
    Messages,
    /// Google's content generation.
    Gemini,
    /// `{"text": …}`: the generated text of a stream.
    Text,
}

/// A value, borrowed from its owner.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub enum HookValue<'a> {
    Json(&'a Value),
    Object(&'a JsonObject),
    Event(&'a EventEnvelope),
    Request(&'a LlmRequest),
    Answer(&'a LlmInvokeResult),
}

/// Body of a call. It is signed like a webhook.
#[derive(Debug, Serialize)]
pub struct HookRequest<'a> {
    /// Id of the call, as in the header `webhook-id`.
    pub id: &'a str,
    /// Name of the hook.
    pub hook: &'a str,
    #[serde(rename = "type")]
    pub moment: HookMoment,
    /// Epoch seconds.
    pub created_at: i64,
    pub workspace_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// Name of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<&'a str>,
    /// Id of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<HookFormat>,
    /// The value that the answer may replace.
    pub value: HookValue<'a>,
}

/// Answer of a hook. Further members are ignored.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
pub enum HookAnswer {
    Allow,
    Deny {
        /// For the caller; at most 200 characters of it are used.
        #[serde(default)]
        reason: String,
    },
    Replace {
        value: Value,
    },
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_moments_match_their_serialization() {
        for moment in HookMoment::ALL {
            assert_eq!(serde_json::to_value(moment).unwrap(), moment.as_str());
            assert_eq!(HookMoment::parse(moment.as_str()), Some(moment));
        }
    }

    #[test]
    fn reads_decisions_and_refuses_others() {
        let read = |answer: Value| serde_json::from_value::<HookAnswer>(answer).ok();
        let denied = |reason: &str| {
            Some(HookAnswer::Deny {
                reason: reason.to_owned(),
            })
        };
        let value = json!({"a": 1});
        assert_eq!(
            read(json!({"decision": "allow", "score": 1})),
            Some(HookAnswer::Allow)
        );
        assert_eq!(
            read(json!({"decision": "deny", "reason": "pii"})),
            denied("pii")
        );
        assert_eq!(read(json!({"decision": "deny"})), denied(""));
        assert_eq!(
            read(json!({"decision": "replace", "value": value})),
            Some(HookAnswer::Replace { value })
        );
        for faulty in [
            json!({}),
            json!([]),
            json!("allow"),
            json!({"decision": "ALLOW"}),
            json!({"decision": "replace"}),
            json!({"decision": "deny", "reason": 1}),
        ] {
            assert_eq!(read(faulty), None);
        }
    }
}
