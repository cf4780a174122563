//! Generations of conversations: read with the decision about an event, written when one begins.

use domain::generation::ConversationGeneration;
use protocol::id::AgentId;
use sea_orm::Value;

use crate::error::{StoreError, parsed};
use crate::model::registry::Candidate;
use crate::sql::{Sql, SqlRow, executed};

/// Current generations of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversationGenerations {
    of_agents: Vec<(AgentId, ConversationGeneration)>,
    /// Epoch milliseconds of the newest transcript item before the event.
    pub last_message_at: Option<i64>,
}

impl ConversationGenerations {
    /// Returns the generation of an agent. `None`: it has begun none.
    pub fn of(&self, agent: AgentId) -> Option<ConversationGeneration> {
        let mut all = self.of_agents.iter();
        all.find(|(id, _)| *id == agent).map(|(_, found)| *found)
    }
}

/// Reads the generations of a conversation if an agent of the workspace has any. `newest`: sequence of the
/// newest transcript item.
pub(crate) async fn generations_of(
    tx: &impl Sql,
    candidates: &[Candidate],
    key: Option<&str>,
    newest: i64,
) -> Result<ConversationGenerations, StoreError> {
    let expires = |one: &Candidate| one.agent.spec.conversation_idle_seconds.is_some();
    // Without an idle limit no agent begins generations, so the two reads are saved.
    let Some(key) = key.filter(|_| candidates.iter().any(expires)) else {
        return Ok(ConversationGenerations::default());
    };
    let sql = "SELECT agent_id, events_after, number, transcript_after FROM conversation_generations \
               WHERE conversation_key = $1";
    let rows = tx.query_sql(sql.to_owned(), vec![key.into()]).await?;
    let of_agents = rows.iter().map(read_generation);
    let of_agents = of_agents.collect::<Result<_, _>>()?;
    let sql = "SELECT created_at FROM transcript_items WHERE conversation_key = $1 AND seq = $2";
    let newest = tx.query_sql(sql.to_owned(), vec![key.into(), newest.into()]);
    let newest = newest.await?;
    let last_message_at = newest.first().map(|row| row.number("created_at"));
    Ok(ConversationGenerations {
        of_agents,
        last_message_at: last_message_at.transpose()?,
    })
}

fn read_generation(row: &SqlRow) -> Result<(AgentId, ConversationGeneration), StoreError> {
    let agent = row.text("agent_id")?;
    let id = parsed("conversation_generations.agent_id", &agent, &agent)?;
    let generation = ConversationGeneration {
        events_after: row.number("events_after")?,
        number: row.number("number")?,
        transcript_after: row.number("transcript_after")?,
    };
    Ok((AgentId(id), generation))
}

/// A generation that the event of a new run begins.
pub(crate) struct BegunGeneration<'a> {
    pub(crate) conversation_key: &'a str,
    pub(crate) agent: AgentId,
    pub(crate) generation: ConversationGeneration,
    pub(crate) at: i64,
}

/// Writes generations. The caller holds the locks of their conversations.
pub(crate) async fn begin_generations(
    tx: &impl Sql,
    begun: impl Iterator<Item = BegunGeneration<'_>>,
) -> Result<(), StoreError> {
    let rows = begun.map(|begun| -> [Value; 6] {
        [
            begun.conversation_key.into(),
            begun.agent.to_string().into(),
            begun.generation.events_after.into(),
            begun.generation.number.into(),
            begun.generation.transcript_after.into(),
            begun.at.into(),
        ]
    });
    let upsert = "INSERT INTO conversation_generations (conversation_key, agent_id, events_after, number, \
                  transcript_after, begun_at) VALUES rows ON CONFLICT (conversation_key, agent_id) DO UPDATE SET \
                  events_after = excluded.events_after, number = excluded.number, \
                  transcript_after = excluded.transcript_after, begun_at = excluded.begun_at";
    executed(tx, rows.collect(), upsert).await
}

/// Deletes the generations of a deleted agent.
pub(crate) async fn delete_generations(tx: &impl Sql, agent: &str) -> Result<(), StoreError> {
    let sql = "DELETE FROM conversation_generations WHERE agent_id = $1";
    tx.execute_sql(sql.to_owned(), vec![agent.into()]).await
}
