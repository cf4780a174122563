//! Inlined parts of a context.

use serde::{Deserialize, Serialize};

/// Inlined parts of the context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct InlineContextPolicy {
    pub mode: InlineMode,
    pub delivered_count: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_total_count: Option<i64>,
    pub messages_complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Inlining mode. The gateway never emits the two tail modes; they remain in the schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum InlineMode {
    None,
    #[default]
    CurrentEvent,
    RecentTail,
    SummaryTail,
}
