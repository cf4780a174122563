//! Structured questions to a user and their answers (`docs/protocol.md`, section `action.requested`).
//!
//! A runner sends a result `action.requested` with the action [`INTERACTION_REQUESTED`] and an
//! [`InteractionRequest`] as payload. The answer arrives as an event of type [`INTERACTION_SUBMITTED`], in
//! `ctx.input.interaction`. Lengths count characters. `domain::interaction` checks lengths and the rules across
//! fields.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::JsonObject;
use crate::context::ActorContext;

/// The `action` of `action.requested` that asks a user.
pub const INTERACTION_REQUESTED: &str = "interaction.requested";

/// Event type of an answer.
pub const INTERACTION_SUBMITTED: &str = "interaction.submitted";

/// A question of a runner. At most 256 KiB as JSON. Unknown fields are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InteractionRequest {
    /// Runner-side id of the question, unique in its run; 1–255 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255))]
    pub interaction_id: String,
    #[serde(default)]
    pub kind: InteractionKind,
    /// Title, 1–1,000 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 1000))]
    pub title: String,
    /// Description, at most 10,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 10000))]
    pub description: Option<String>,
    /// Form fields, at most 50, with unique ids.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 50))]
    pub fields: Vec<InteractionField>,
    /// Buttons, at most 20, with unique ids.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 20))]
    pub actions: Vec<InteractionAction>,
    /// Expiry in epoch seconds, at most 24 hours ahead. Default: 30 minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    /// The question as plain text, for surfaces without forms; 1–20,000 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 20000))]
    pub fallback_text: String,
    /// True if the run waits for the answer by `GET /host/v1/interactions/{interaction_id}`. That call returns
    /// an answer that arrives during the run, and the answer creates no event. After the end of the run, an
    /// answer creates an event as usual.
    #[serde(rename = "await", default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits: bool,
}

/// Presentation hint. All kinds can have fields and actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum InteractionKind {
    #[default]
    Form,
    Confirmation,
    Choice,
    /// The gateway's question whether a budget is raised for a run (`docs/interactions.md`). Runners cannot ask it.
    Budget,
}

/// One form field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InteractionField {
    /// Key of the value in the answer; 1–128 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    pub id: String,
    /// Label, 1–512 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 512))]
    pub label: String,
    #[serde(rename = "type")]
    pub kind: InteractionFieldType,
    #[serde(default)]
    pub required: bool,
    /// Options, at most 100, with unique values. `select` and `multiselect` need at least one.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub options: Vec<InteractionOption>,
    /// Placeholder, at most 1,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 1000))]
    pub placeholder: Option<String>,
    /// Initial value of the field.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub default: Value,
}

/// Value type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum InteractionFieldType {
    Text,
    Textarea,
    /// The value of one option.
    Select,
    /// A list of option values.
    Multiselect,
    Number,
    Boolean,
    /// A surface-specific file reference.
    File,
}

/// One option of a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InteractionOption {
    /// Value, 1–512 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 512))]
    pub value: String,
    /// Label, 1–512 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 512))]
    pub label: String,
    /// Description, at most 2,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2000))]
    pub description: Option<String>,
}

/// One button.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InteractionAction {
    /// Id, 1–128 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    pub id: String,
    /// Label, 1–512 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 512))]
    pub label: String,
    #[serde(default)]
    pub style: InteractionActionStyle,
}

/// Style of a button.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum InteractionActionStyle {
    #[default]
    Default,
    Primary,
    Danger,
}

/// An answer to a question, at most 256 KiB as JSON. In a run context the gateway has validated it against the
/// question. Clients cannot set it there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct InteractionSubmission {
    /// `interaction_id` of the question; 1–255 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255))]
    pub interaction_id: String,
    /// Id of the chosen action; at most 128 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 128))]
    pub action_id: Option<String>,
    /// Values by field id.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub values: JsonObject,
    /// Time of the answer, in epoch seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_at: Option<i64>,
}

/// Maximum long-poll time of `GET /host/v1/interactions/{interaction_id}`, in seconds.
pub const MAX_WAIT_SECONDS: u64 = 30;

/// State of a question that its run waits for. All states except `open` are final.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum AwaitedInteraction {
    /// No answer yet. Call again.
    Open,
    /// The first answer, validated against the question.
    Submitted {
        /// The chosen action. Null if the question has none.
        action_id: Option<String>,
        /// Values by field id.
        values: JsonObject,
        /// Credential of the answer. `actor_type` is `link`, or `api_key` with the key's id as `actor_id`.
        actor: ActorContext,
    },
    /// No answer arrived before `expires_at`. Later answers are rejected.
    Expired,
    /// The run was cancelled. Later answers are rejected.
    Cancelled,
}

/// Interactions that a delivery surface can show. The surface receives all others as `fallback_text`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct InteractionDeliveryCapabilities {
    #[serde(deserialize_with = "crate::lists::each_once")]
    pub field_types: Vec<InteractionFieldType>,
    #[serde(deserialize_with = "crate::lists::each_once")]
    pub action_styles: Vec<InteractionActionStyle>,
    /// True if the surface can update a question after it was shown.
    pub supports_updates: bool,
    /// Maximum number of fields of one question. Absent: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_fields: Option<u32>,
}
