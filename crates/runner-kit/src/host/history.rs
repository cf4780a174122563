//! Transcript of the conversation.

use protocol::history::{HistorySearch, HistorySearchResult, TranscriptItem};
use protocol::run::Page;
use reqwest::Method;
use serde::Serialize;

use crate::host::{HostConnection, HostError};

/// Selection of history items; absent fields take the gateway's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HistoryPageQuery {
    /// Conversation of the run; any other is rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    /// Only items before this one; may be combined with `after_cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_cursor: Option<String>,
    /// Only items after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_cursor: Option<String>,
    /// At most 100. Pages with large items have fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<PageDirection>,
    /// Includes `attachment_refs`; empty otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub include_attachments: bool,
}

/// Reading direction of a page. Default: backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PageDirection {
    Backward,
    Forward,
}

/// Transcript of the run's conversation.
#[derive(Clone, Copy, Debug)]
pub struct HistoryApi<'a>(pub(super) &'a HostConnection);

impl HistoryApi<'_> {
    /// Page of the conversation's transcript. `next_cursor` continues in the page's direction, `prev_cursor`
    /// reverses it.
    pub async fn page(self, query: &HistoryPageQuery) -> Result<Page<TranscriptItem>, HostError> {
        let request = self.0.request(Method::GET, &["history"]).await?;
        self.0.answer(request.query(query)).await
    }

    /// Searches the conversation's transcript, newest first.
    pub async fn search(self, search: &HistorySearch) -> Result<HistorySearchResult, HostError> {
        let request = self.0.request(Method::POST, &["history", "search"]).await?;
        self.0.answer(request.json(search)).await
    }
}
