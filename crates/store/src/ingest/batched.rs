//! Batch ingest: many events in few statements.

use std::collections::{HashMap, HashSet};

use protocol::id::WorkspaceId;

use super::duplicates::duplicates_among;
use super::rows::{Rows, lock_conversations};
use crate::capacity::{Capacities, lock_capacity};
use crate::conversation::{busy_among, live_runs};
use crate::error::StoreError;
use crate::failpoint;
use crate::generations::generations_of;
use crate::model::ingest::{DecisionFacts, Ingest, IngestPlan, Ingested};
use crate::new_run::cached_candidates;
use crate::sql::Sql;
use crate::tx_cache::TxCache;

/// Ingests the new and independent events of a batch. `None`: apply the event singly.
pub(crate) async fn ingest_batch(
    tx: &impl Sql,
    ingests: &[&Ingest],
    tx_cache: &mut TxCache,
) -> Result<Vec<Option<Ingested>>, StoreError> {
    let mut taken: Vec<_> = ingests.iter().map(|_| None).collect();
    let mut plain = independent(ingests);
    let duplicates = duplicates_among(tx, ingests, &plain).await?;
    // An event that repeats an earlier one is applied by itself: it returns the stored answer.
    plain.retain(|index| !duplicates.contains(index));
    if plain.is_empty() {
        return Ok(taken);
    }
    let mut capacities = HashMap::new();
    for index in &plain {
        let (workspace, max_runs) = (&ingests[*index].workspace, ingests[*index].max_live_runs);
        if !capacities.contains_key(workspace) {
            let held = lock_capacity(tx, workspace, max_runs).await?;
            capacities.insert(workspace.clone(), held);
        }
    }
    let events: Vec<_> = plain.iter().map(|index| ingests[*index]).collect();
    // If one event is refused, roll all of them back and apply each singly.
    savepoint(tx, "SAVEPOINT").await?;
    match take_all(tx, &events, capacities, tx_cache).await {
        Ok(stored) => {
            savepoint(tx, "RELEASE SAVEPOINT").await?;
            for (index, stored) in plain.into_iter().zip(stored) {
                taken[index] = Some(stored);
            }
        }
        Err(StoreError::Refused | StoreError::Taken) if tx.has_savepoints() => {
            savepoint(tx, "ROLLBACK TO SAVEPOINT").await?;
        }
        // Without savepoints the transaction is rolled back, and the pool applies its items.
        Err(error) => return Err(error),
    }
    Ok(taken)
}

async fn savepoint(tx: &impl Sql, verb: &str) -> Result<(), StoreError> {
    if !tx.has_savepoints() {
        return Ok(());
    }
    tx.execute_sql(format!("{verb} events_together"), Vec::new())
        .await
}

/// Positions of events that share no key, id or conversation with an earlier one.
fn independent(ingests: &[&Ingest]) -> Vec<usize> {
    let (mut keys, mut ids, mut conversations) = (HashSet::new(), HashSet::new(), HashSet::new());
    // The second event of a conversation depends on the run of the first one.
    let mut is_apart = |ingest: &Ingest| {
        let workspace = ingest.workspace.as_str();
        let key = keys.insert((workspace.to_owned(), ingest.dedupe_key.clone()));
        let id = ids.insert((workspace.to_owned(), ingest.event_id.clone()));
        let conversation = ingest.conversation.clone();
        let conversation = conversation
            .is_none_or(|identity| conversations.insert((workspace.to_owned(), identity)));
        key && id && conversation
    };
    let independent = ingests.iter().enumerate();
    let independent = independent.filter(|(_, ingest)| is_apart(ingest));
    independent.map(|(index, _)| index).collect()
}

async fn take_all(
    tx: &impl Sql,
    events: &[&Ingest],
    mut capacities: HashMap<WorkspaceId, Capacities>,
    tx_cache: &mut TxCache,
) -> Result<Vec<Ingested>, StoreError> {
    let mut all_facts = facts_of(tx, events, tx_cache).await?;
    let mut rows = Rows::default();
    let mut stored = Vec::with_capacity(events.len());
    for (event, facts) in events.iter().zip(&mut all_facts) {
        let capacities = capacities.entry(event.workspace.clone()).or_default();
        facts.capacities = capacities.clone();
        let facts: &DecisionFacts = facts;
        let plan = (event.decide)(facts);
        // Later events of the batch count this run.
        if let IngestPlan::Start { run, .. } | IngestPlan::Queue { run, .. } = &plan {
            capacities.add(run.endpoint_id);
        }
        stored.push(
            rows.gather(tx, event, plan, facts.position.as_ref())
                .await?,
        );
    }
    rows.write(tx).await?;
    failpoint::pass("ingest.before_commit").await?;
    Ok(stored)
}

/// Decision inputs of each event, without capacities.
async fn facts_of(
    tx: &impl Sql,
    events: &[&Ingest],
    tx_cache: &mut TxCache,
) -> Result<Vec<DecisionFacts>, StoreError> {
    let locked = lock_conversations(tx, events).await?;
    // A new conversation has no runs.
    let lived = locked.iter().filter(|locked| locked.version > 1);
    let keys = lived.map(|locked| locked.position.conversation_key.as_str());
    let busy = busy_among(tx, keys).await?;
    let mut positions = locked.into_iter().map(|locked| locked.position);
    let mut all_facts = Vec::with_capacity(events.len());
    for event in events {
        let position = event.conversation.as_ref().and_then(|_| positions.next());
        let key = position
            .as_ref()
            .map(|position| position.conversation_key.as_str());
        let newest = position
            .as_ref()
            .map_or(0, |position| position.transcript_before);
        let candidates = cached_candidates(tx, &event.workspace, tx_cache).await?;
        all_facts.push(DecisionFacts {
            unanswerable: None,
            child_refused: None,
            generations: generations_of(tx, &candidates, key, newest).await?,
            candidates,
            live: live_runs(tx, key.filter(|key| busy.contains(*key))).await?,
            position,
            capacities: Capacities::default(),
        });
    }
    Ok(all_facts)
}
