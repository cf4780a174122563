//! Questions of a run as calls of the function `ask_user`, and their answers as its outputs.
//!
//! A client opts in by declaring the function. An agent has tools of its own, so no other function is accepted.

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::interaction::{
    INTERACTION_REQUESTED, InteractionActionStyle, InteractionDeliveryCapabilities,
    InteractionFieldType,
};
use protocol::result::ResultType;
use protocol::run::AgentRunEvent;
use serde::Deserialize;
use serde_json::Value;

/// Name of the function.
pub(crate) const ASK_USER: &str = "ask_user";

/// An open question of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenQuestion {
    /// Id of the interaction, and of the call.
    pub(crate) id: String,
    /// The question as JSON.
    pub(crate) arguments: String,
    /// The run waits for the answer.
    pub(crate) is_awaited: bool,
}

impl OpenQuestion {
    /// The question that the gateway opened with this event.
    pub(crate) fn of(event: &AgentRunEvent) -> Option<Self> {
        let is_question = ResultType::parse(&event.kind) == Some(ResultType::ActionRequested)
            && event.data.get("action")?.as_str()? == INTERACTION_REQUESTED;
        // Without this id the question is telemetry, and takes no answer.
        let id = event.metadata.get("interaction")?.get("id")?.as_str()?;
        // A platform action has an id of its own, and is no question for the user.
        let payload = event.data.get("payload").filter(|_| is_question)?;
        Some(Self {
            id: id.to_owned(),
            arguments: payload.to_string(),
            is_awaited: payload["await"] == true,
        })
    }
}

/// An output of `ask_user`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AnswerOutput {
    /// Id of the interaction.
    pub(crate) question: String,
    pub(crate) action_id: Option<String>,
    pub(crate) values: JsonObject,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerMembers {
    #[serde(default)]
    action_id: Option<String>,
    #[serde(default)]
    values: JsonObject,
}

impl AnswerOutput {
    /// Reads the output at `pointer`.
    pub(crate) fn read(question: String, output: &str, pointer: &str) -> Result<Self, Fault> {
        let read = serde_json::from_str::<AnswerMembers>(output);
        let AnswerMembers { action_id, values } = read.map_err(|_| {
            let message =
                r#"must be a JSON text like {"action_id": "book", "values": {"guests": 2}}"#;
            Fault::new(pointer, message)
        })?;
        Ok(Self {
            question,
            action_id,
            values,
        })
    }
}

/// Returns whether the client declares `ask_user`. `name_of` finds the name of a function.
pub(crate) fn declares_ask_user(
    tools: &[Value],
    name_of: impl Fn(&Value) -> &Value,
) -> Result<bool, Fault> {
    let foreign = tools.iter().position(|tool| name_of(tool) != ASK_USER);
    match foreign {
        Some(at) => {
            let message =
                "must be the function ask_user: the agent has its own tools; leave others out";
            Err(Fault::new(format!("/tools/{at}"), message))
        }
        // Without the function, the event names no surface for questions.
        None => Ok(!tools.is_empty()),
    }
}

/// All questions but those for files, which a function call cannot carry.
pub(crate) fn capabilities() -> InteractionDeliveryCapabilities {
    InteractionDeliveryCapabilities {
        field_types: vec![
            InteractionFieldType::Text,
            InteractionFieldType::Textarea,
            InteractionFieldType::Select,
            InteractionFieldType::Multiselect,
            InteractionFieldType::Number,
            InteractionFieldType::Boolean,
        ],
        action_styles: vec![
            InteractionActionStyle::Default,
            InteractionActionStyle::Primary,
            InteractionActionStyle::Danger,
        ],
        supports_updates: false,
        max_fields: None,
    }
}
