//! Pages and searches of a conversation transcript, for runners and clients.

use domain::authorization::FrozenConversation;
use domain::history::ValidSearch;
use protocol::history::{HistorySearchResult, TranscriptItem};
use protocol::id::WorkspaceId;
use protocol::run::Page;
use store::{HistoryMatch, HistoryQuery as StoreQuery, ListPage, ReadBudget, TranscriptRecord};

use crate::error::ApiResult;
use crate::query::page_limit;
use crate::response_memory::ResponseMemory;
use crate::state::ApiState;
use crate::view::{Direction, transcript_item};
use keys::cursor::{InvalidCursor, history_position};

/// Cursors, direction and size of a page.
#[derive(Debug, Default)]
pub struct TranscriptQuery {
    pub before_cursor: Option<String>,
    pub after_cursor: Option<String>,
    pub limit: Option<u64>,
    pub direction: Direction,
    pub include_attachments: bool,
}

/// A conversation of a workspace. Without a conversation there are no items.
pub struct ConversationTranscript<'a> {
    pub state: &'a ApiState,
    pub workspace: &'a WorkspaceId,
    pub conversation: Option<&'a FrozenConversation>,
    /// Items up to this sequence are not part of the transcript; 0: all are.
    pub begins_after: i64,
    pub memory: &'a ResponseMemory,
}

impl ConversationTranscript<'_> {
    /// Reads a page. `next_cursor` continues in the direction of the page, `prev_cursor` reverses it.
    pub async fn page(&self, query: &TranscriptQuery) -> ApiResult<Page<TranscriptItem>> {
        let page = StoreQuery {
            limit: page_limit(query.limit)?,
            before: self.position(query.before_cursor.as_deref())?,
            after: self.after(query.after_cursor.as_deref())?,
            forward: query.direction == Direction::Forward,
            attachments: query.include_attachments,
            budget: ReadBudget::of(self.memory),
        };
        let slice = match self.key().await? {
            Some(key) => {
                self.state
                    .runs
                    .store()
                    .conversations()
                    .page_history(&key, page)
                    .await?
            }
            None => ListPage {
                items: Vec::new(),
                has_more: false,
            },
        };
        let items = self.items(slice.items);
        let end = |item: Option<&TranscriptItem>| item.and_then(|item| item.cursor.clone());
        Ok(Page {
            next_cursor: end(items.last()).filter(|_| slice.has_more),
            prev_cursor: end(items.first()),
            total_count: None,
            has_more: slice.has_more,
            items,
        })
    }

    /// Searches the transcript. `query` is the original text, for the cursor.
    pub async fn search(
        &self,
        query: String,
        valid_search: ValidSearch,
    ) -> ApiResult<HistorySearchResult> {
        let criteria = HistoryMatch {
            before: self.position(valid_search.filters.before_cursor.as_deref())?,
            after: self.after(valid_search.filters.after_cursor.as_deref())?,
            query: valid_search.query,
            roles: valid_search.filters.roles,
            item_types: valid_search.filters.item_types,
            top: valid_search.top,
        };
        let found = match self.key().await? {
            Some(key) => {
                let store = self.state.runs.store();
                let budget = ReadBudget::of(self.memory);
                store
                    .conversations()
                    .search_history(&key, &criteria, budget)
                    .await?
            }
            None => Vec::new(),
        };
        Ok(HistorySearchResult {
            total_count: found.len() as u64,
            items: self.items(found),
            query,
        })
    }

    /// The key of the conversation; `None` if it has no items yet.
    async fn key(&self) -> ApiResult<Option<String>> {
        let Some(conversation) = self.conversation else {
            return Ok(None);
        };
        let store = self.state.runs.store();
        Ok(store
            .conversations()
            .find_conversation_key(self.workspace, conversation)
            .await?)
    }

    fn after(&self, cursor: Option<&str>) -> Result<Option<i64>, InvalidCursor> {
        let begin = (self.begins_after > 0).then_some(self.begins_after);
        // The later of both: a cursor must not lead before the restart of the conversation.
        Ok(self.position(cursor)?.max(begin))
    }

    fn position(&self, cursor: Option<&str>) -> Result<Option<i64>, InvalidCursor> {
        let Some(cursor) = cursor else {
            return Ok(None);
        };
        let conversation = self.conversation.ok_or(InvalidCursor)?;
        let cursors = self.state.runs.cursors();
        history_position(cursors, self.workspace, conversation, cursor).map(Some)
    }

    fn items(&self, records: Vec<TranscriptRecord>) -> Vec<TranscriptItem> {
        let Some(conversation) = self.conversation else {
            return Vec::new();
        };
        let cursors = self.state.runs.cursors();
        let item = |record| transcript_item(record, cursors, self.workspace, conversation);
        records.into_iter().map(item).collect()
    }
}
