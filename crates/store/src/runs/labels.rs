//! Texts that a client sees with a run: its conversation, its agent's name and the start of its input.

use std::collections::HashMap;

use domain::authorization::FrozenConversation;
use domain::run::Run;
use protocol::id::{AgentId, WorkspaceId};
use sea_orm::{ColumnTrait, DbBackend, EntityTrait, QueryFilter, QuerySelect};

use crate::entity::{agents, conversations};
use crate::error::{StoreError, parsed};
use crate::repositories::RunRepository;
use crate::sql::{Sql, padded, returned};

/// Labels of some runs.
#[derive(Clone, Debug, Default)]
pub struct RunLabels {
    /// Conversations, by key.
    pub conversations: HashMap<String, FrozenConversation>,
    /// Current names of the agents that still exist.
    pub agent_names: HashMap<AgentId, String>,
    /// The first characters of each event's input text, by event id. Events without a text are missing.
    pub inputs: HashMap<String, String>,
}

impl RunRepository<'_> {
    /// Labels of runs of the workspace. An input has at most `characters` characters.
    pub async fn find_run_labels(
        self,
        workspace: &WorkspaceId,
        runs: &[Run],
        characters: u32,
    ) -> Result<RunLabels, StoreError> {
        if runs.is_empty() {
            return Ok(RunLabels::default());
        }
        let keys = runs.iter().filter_map(|run| run.conversation_key.clone());
        let conversations = conversations_of(self, keys.collect()).await?;
        let ids = runs.iter().map(|run| run.agent_id.to_string());
        let names: Vec<(String, String)> = agents::Entity::find()
            .select_only()
            .column(agents::Column::Id)
            .column(agents::Column::Name)
            .filter(agents::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(agents::Column::Id.is_in(padded(ids)))
            .into_tuple()
            .all(&self.db.readers)
            .await?;
        let agent_names = names
            .into_iter()
            .map(|(id, name)| Ok((parsed("agents.id", &id, &id)?, name)))
            .collect::<Result<_, StoreError>>()?;
        let events = runs.iter().map(|run| run.event_id.as_str());
        let inputs = input_texts(&self.db.readers, workspace, events, characters).await?;
        Ok(RunLabels {
            conversations,
            agent_names,
            inputs,
        })
    }
}

async fn conversations_of(
    runs: RunRepository<'_>,
    keys: Vec<String>,
) -> Result<HashMap<String, FrozenConversation>, StoreError> {
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = conversations::Entity::find()
        .filter(conversations::Column::Key.is_in(padded(keys)))
        .all(&runs.db.readers)
        .await?;
    let named = rows.into_iter().map(|row| {
        let conversation = FrozenConversation {
            bot_id: row.bot_id,
            conversation_id: row.conversation_id,
            thread_id: row.thread_id,
        };
        (row.key, conversation)
    });
    Ok(named.collect())
}

/// The first characters of the events' input texts, by event id.
pub(crate) async fn input_texts(
    conn: &impl Sql,
    workspace: &WorkspaceId,
    events: impl Iterator<Item = &str>,
    characters: u32,
) -> Result<HashMap<String, String>, StoreError> {
    let rows = events.map(|event| [event.into(), workspace.as_str().into()]);
    let text = input_text(conn.backend(), "e.envelope", characters);
    let sql = format!(
        "SELECT e.event_id, {text} AS input FROM rows, events e \
         WHERE e.workspace_id = ?2 AND e.event_id = ?1"
    );
    let mut inputs = HashMap::new();
    for row in returned(conn, rows.collect(), &sql).await? {
        if let Some(input) = row.text_if_any("input")? {
            inputs.insert(row.text("event_id")?, input);
        }
    }
    Ok(inputs)
}

/// Maximum bytes of an envelope whose text is read. The database parses it for each row of a list.
const ENVELOPE_BYTES: u32 = 256 * 1024;

/// Expression for the begin of an envelope's text: the summary of a child run's task, `input.text`, or the text of
/// its first content part.
fn input_text(backend: DbBackend, envelope: &str, characters: u32) -> String {
    let member = |postgres: &str, sqlite: &str| match backend {
        DbBackend::Postgres => format!("CAST({envelope} AS json) #>> '{{{postgres}}}'"),
        _ => format!("json_extract({envelope}, '$.{sqlite}')"),
    };
    let (source, summary) = (
        member("source", "source"),
        member("data,summary", "data.summary"),
    );
    let text = member("input,text", "input.text");
    let part = member("input,contents,0,text", "input.contents[0].text");
    format!(
        "CASE WHEN octet_length({envelope}) <= {ENVELOPE_BYTES} \
         THEN substr(coalesce(CASE WHEN {source} = 'run' THEN {summary} END, {text}, {part}), 1, {characters}) END"
    )
}
