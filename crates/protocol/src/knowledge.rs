//! What a knowledge base finds (`/host/v1/knowledge-bases`).

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::message::ContentElement;

/// One passage of a knowledge base.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetrievalResultEntry {
    pub id: String,
    pub content: Vec<ContentElement>,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
    /// The lower, the closer to the query.
    pub distance: f64,
    /// The higher, the closer; absent when the base does not score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
}
