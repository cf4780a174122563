//! Structured questions to a person, and their answers (protocol §3, `action.requested`).
//!
//! A runner asks by a result `action.requested` whose action is [`INTERACTION_REQUESTED`] and whose
//! payload is an [`InteractionRequest`]. The answer comes as an event of type
//! [`INTERACTION_SUBMITTED`] and stands in `ctx.input.interaction`. Lengths count characters;
//! `domain::interaction` checks them and all that one field cannot say of itself.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::JsonObject;
use crate::context::ActorContext;

/// The one `action` of `action.requested` that is more than telemetry.
pub const INTERACTION_REQUESTED: &str = "interaction.requested";

/// The event type of an answer.
pub const INTERACTION_SUBMITTED: &str = "interaction.submitted";

/// What a runner asks. At most 256 KiB as JSON. Unknown fields are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InteractionRequest {
    /// The runner's own id, unique in its run; 1–255 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255))]
    pub interaction_id: String,
    #[serde(default)]
    pub kind: InteractionKind,
    /// 1–1,000 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 1000))]
    pub title: String,
    /// At most 10,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 10000))]
    pub description: Option<String>,
    /// At most 50, no id twice.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 50))]
    pub fields: Vec<InteractionField>,
    /// At most 20, no id twice.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 20))]
    pub actions: Vec<InteractionAction>,
    /// Epoch seconds, at most 24 hours ahead; half an hour when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    /// The same question as plain text, for surfaces that show no forms; 1–20,000 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 20000))]
    pub fallback_text: String,
    /// True: the run waits for the answer by `GET /host/v1/interactions/{interaction_id}`. An answer that comes while
    /// the run lives is given to that call, and no event is made. After the end of the run it is an event, as without it.
    #[serde(rename = "await", default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits: bool,
}

/// How the question is meant; all kinds have fields and actions alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum InteractionKind {
    #[default]
    Form,
    Confirmation,
    Choice,
}

/// One thing to fill in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InteractionField {
    /// The key of its value in the answer; 1–128 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    pub id: String,
    /// 1–512 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 512))]
    pub label: String,
    #[serde(rename = "type")]
    pub kind: InteractionFieldType,
    #[serde(default)]
    pub required: bool,
    /// At most 100, no value twice; `select` and `multiselect` need one at least.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub options: Vec<InteractionOption>,
    /// At most 1,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 1000))]
    pub placeholder: Option<String>,
    /// What the surface fills in before the person does.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub default: Value,
}

/// What a field takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum InteractionFieldType {
    Text,
    Textarea,
    /// The value of one option.
    Select,
    /// A list of values of options.
    Multiselect,
    Number,
    Boolean,
    /// Whatever the surface refers to a file by.
    File,
}

/// One thing to pick.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InteractionOption {
    /// 1–512 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 512))]
    pub value: String,
    /// 1–512 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 512))]
    pub label: String,
    /// At most 2,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2000))]
    pub description: Option<String>,
}

/// One way to answer, as a button.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InteractionAction {
    /// 1–128 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    pub id: String,
    /// 1–512 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 512))]
    pub label: String,
    #[serde(default)]
    pub style: InteractionActionStyle,
}

/// How a button looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum InteractionActionStyle {
    #[default]
    Default,
    Primary,
    Danger,
}

/// What a person answered, at most 256 KiB as JSON. In a context it has been checked against the
/// request; a client cannot put it there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct InteractionSubmission {
    /// That of the request; 1–255 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255))]
    pub interaction_id: String,
    /// Which action was taken; at most 128 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 128))]
    pub action_id: Option<String>,
    /// By the ids of fields.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub values: JsonObject,
    /// Epoch seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_at: Option<i64>,
}

/// The longest time that one call of `GET /host/v1/interactions/{interaction_id}` waits, in seconds.
pub const MOST_WAIT_SECONDS: u64 = 30;

/// The state of a question that its run waits for. All but `open` are final.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum AwaitedInteraction {
    /// No answer yet. Call again.
    Open,
    /// The first answer, checked against the question.
    Submitted {
        /// The action that was taken; null where the question has none.
        action_id: Option<String>,
        /// By the ids of fields.
        values: JsonObject,
        /// The credential of the answer. `actor_type`: `api_key`, with the key's id as `actor_id`, or `link`.
        actor: ActorContext,
    },
    /// No answer came before `expires_at`, and none is taken any more.
    Expired,
    /// The run was cancelled, and no answer is taken any more.
    Cancelled,
}

/// Which interactions a delivery surface can show. What it cannot show reaches it as `fallback_text`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct InteractionDeliveryCapabilities {
    #[serde(deserialize_with = "crate::lists::each_once")]
    pub field_types: Vec<InteractionFieldType>,
    #[serde(deserialize_with = "crate::lists::each_once")]
    pub action_styles: Vec<InteractionActionStyle>,
    /// True when a question that was shown can be changed afterwards.
    pub supports_updates: bool,
    /// The most fields of one question; no bound when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_fields: Option<u32>,
}
