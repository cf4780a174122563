//! Batch ingest: many events in few statements.

use std::collections::{BTreeMap, HashMap};

use protocol::id::WorkspaceId;

use super::duplicates::{Duplicate, duplicates_among};
use super::rows::{Rows, busy_events, lock_conversations, uncount_events};
use crate::capacity::{Capacities, count_live, limits_of, lock_capacity};
use crate::conversation::{live_runs, lock_runs};
use crate::error::StoreError;
use crate::failpoint;
use crate::generations::generations_of;
use crate::model::ingest::{
    AnyEffects, AnyIngest, DecisionFacts, EventDecision, IngestPlan, Ingested,
};
use crate::new_run::cached_candidates;
use crate::shared_parts::StoredParts;
use crate::sql::Sql;
use crate::state::context_states;
use crate::tx_cache::TxCache;

/// Result of one event, with the effects of its decision, if one was made.
type DecidedEvent = (Ingested, Option<AnyEffects>);

/// Reads that need no lock.
struct UnlockedFacts {
    duplicates: Vec<(usize, Duplicate)>,
    /// Counted live runs of each workspace.
    capacities: HashMap<WorkspaceId, Capacities>,
}

/// Ingests events that share no row, see [`crate::batch_op::BatchOp::keys`].
pub(crate) async fn ingest_batch(
    tx: &impl Sql,
    ingests: &[&AnyIngest],
    tx_cache: &mut TxCache,
) -> Result<Vec<DecidedEvent>, StoreError> {
    if ingests.is_empty() {
        return Ok(Vec::new());
    }
    // Before any lock: a replayed event does not wait for its conversation.
    let unlocked = read_unlocked(tx, ingests, tx_cache).await?;
    let (mut ingested, mut rows) = (BTreeMap::new(), Rows::default());
    for (index, duplicate) in unlocked.duplicates {
        match duplicate {
            Duplicate::Stored(answer) => drop(ingested.insert(index, (answer, None))),
            Duplicate::Expired(event_id) => rows.free_key(ingests[index], event_id),
        }
    }
    let new = ingests.iter().enumerate();
    let new = new.filter(|(index, _)| !ingested.contains_key(index));
    let (indexes, events): (Vec<_>, Vec<_>) = new.map(|(index, event)| (index, *event)).unzip();
    if !events.is_empty() {
        // Before every other lock of the transaction, as in all replicas.
        let capacities = lock_capacities(tx, &events, unlocked.capacities).await?;
        let mut facts = facts_of(tx, &events, tx_cache).await?;
        let decisions = decide_all(&events, &mut facts, capacities);
        let stored = store_decided(tx, &events, &facts, decisions, rows, tx_cache).await?;
        ingested.extend(indexes.into_iter().zip(stored));
    }
    Ok(ingested.into_values().collect())
}

/// Reads duplicates, counts of live runs, and into the cache the candidates of each workspace.
async fn read_unlocked(
    tx: &impl Sql,
    ingests: &[&AnyIngest],
    tx_cache: &mut TxCache,
) -> Result<UnlockedFacts, StoreError> {
    let of_workspaces = async {
        let mut capacities = HashMap::new();
        for ingest in ingests {
            let (workspace, max_runs) = (&ingest.workspace, ingest.max_live_runs);
            if !capacities.contains_key(workspace) {
                let limits = limits_of(tx, workspace, max_runs);
                let candidates = cached_candidates(tx, workspace, tx_cache);
                let (limits, candidates) = tx.in_order(limits, candidates).await?;
                let limits = limits.with_agents(&candidates);
                let counted = count_live(tx, workspace, limits).await?;
                capacities.insert(workspace.clone(), counted);
            }
        }
        Ok(capacities)
    };
    let reading = tx.in_order(duplicates_among(tx, ingests), of_workspaces);
    let (duplicates, capacities) = reading.await?;
    Ok(UnlockedFacts {
        duplicates,
        capacities,
    })
}

async fn store_decided<'a>(
    tx: &impl Sql,
    events: &[&'a AnyIngest],
    all_facts: &'a [DecisionFacts],
    mut decisions: Vec<EventDecision<AnyEffects>>,
    mut rows: Rows<'a>,
    tx_cache: &mut TxCache,
) -> Result<Vec<DecidedEvent>, StoreError> {
    let parts = dispatch_started(tx, events, &mut decisions, tx_cache).await?;
    let (mut stored, mut uncounted) = (Vec::with_capacity(events.len()), Vec::new());
    for ((event, facts), decision) in events.iter().zip(all_facts).zip(decisions) {
        let position = facts.position.as_ref();
        let mut ingested = rows.gather(tx, event, decision.plan, position).await?;
        if ingested == Ingested::Refused {
            // Another replica may have stored this event while this one waited for the conversation. The run that
            // causes the refusal may then be its own.
            if let Some(Duplicate::Stored(answer)) = event.find_duplicate(tx).await? {
                ingested = answer;
            }
            uncounted.extend(position);
        }
        stored.push((ingested, Some(decision.effects)));
    }
    uncount_events(tx, &uncounted).await?;
    rows.write(tx, &parts).await?;
    failpoint::pass("ingest.before_commit").await?;
    Ok(stored)
}

fn decide_all(
    events: &[&AnyIngest],
    all_facts: &mut [DecisionFacts],
    mut capacities: HashMap<WorkspaceId, Capacities>,
) -> Vec<EventDecision<AnyEffects>> {
    let mut decisions = Vec::with_capacity(events.len());
    for (event, facts) in events.iter().zip(all_facts) {
        let capacities = capacities.entry(event.workspace.clone()).or_default();
        facts.capacities = capacities.clone();
        let decision = event.decide.decide_any(facts);
        // Later events of the batch count this run.
        if let IngestPlan::Start { run, .. } | IngestPlan::Queue { run, .. } = &decision.plan {
            capacities.add(run);
        }
        decisions.push(decision);
    }
    decisions
}

/// Adds the first attempts of runs that this commit dispatches. Their contexts have the state as it is now. Returns
/// the stored parts among those of all new runs.
async fn dispatch_started(
    tx: &impl Sql,
    events: &[&AnyIngest],
    decisions: &mut [EventDecision<AnyEffects>],
    tx_cache: &mut TxCache,
) -> Result<StoredParts, StoreError> {
    let scopes = decisions.iter_mut();
    let scopes = scopes.map(|decision| decision.context_scopes.take());
    let (started, scopes): (Vec<_>, Vec<_>) = scopes
        .enumerate()
        .filter_map(|(index, scopes)| Some((index, scopes?)))
        .unzip();
    let parts = decisions
        .iter()
        .filter_map(|decision| match &decision.plan {
            IngestPlan::Start { run, .. } | IngestPlan::Queue { run, .. } => Some(&run.shared),
            IngestPlan::Refuse | IngestPlan::Keep { .. } | IngestPlan::Absorb { .. } => None,
        });
    let parts = StoredParts::find(tx, parts, tx_cache);
    let (states, parts) = tx.in_order(context_states(tx, &scopes), parts).await?;
    for (index, state) in started.into_iter().zip(states) {
        let decision = &mut decisions[index];
        if let IngestPlan::Start { attempt, .. } = &mut decision.plan {
            let decide = &events[index].decide;
            *attempt = decide
                .dispatch_any(&mut decision.effects, &state)
                .map(Box::new);
        }
    }
    Ok(parts)
}

async fn lock_capacities(
    tx: &impl Sql,
    events: &[&AnyIngest],
    mut counted: HashMap<WorkspaceId, Capacities>,
) -> Result<HashMap<WorkspaceId, Capacities>, StoreError> {
    let mut capacities = HashMap::new();
    // In the order of the events, as in all replicas.
    for event in events {
        if let Some(counted) = counted.remove(&event.workspace) {
            let held = lock_capacity(tx, &event.workspace, counted).await?;
            capacities.insert(event.workspace.clone(), held);
        }
    }
    Ok(capacities)
}

/// Decision inputs of each event, without capacities.
async fn facts_of(
    tx: &impl Sql,
    events: &[&AnyIngest],
    tx_cache: &mut TxCache,
) -> Result<Vec<DecisionFacts>, StoreError> {
    let parents = events
        .iter()
        .filter_map(|event| Some(event.parent?.run_id.0));
    let parents = parents.collect();
    let live = async {
        lock_runs(tx, &parents, std::iter::empty()).await?;
        busy_events(tx, events).await
    };
    let (positions, busy) = tx.in_order(lock_conversations(tx, events), live).await?;
    let mut positions = positions.into_iter();
    let mut all_facts = Vec::with_capacity(events.len());
    for (index, event) in events.iter().enumerate() {
        let position = event.conversation.as_ref().and_then(|_| positions.next());
        let key = position
            .as_ref()
            .map(|position| position.conversation_key.as_str());
        let newest = position
            .as_ref()
            .map_or(0, |position| position.transcript_before);
        let candidates = cached_candidates(tx, &event.workspace, tx_cache).await?;
        all_facts.push(DecisionFacts {
            unanswerable: event.unanswerable(tx).await?,
            child_refused: event.child_refused(tx).await?,
            generations: generations_of(tx, &candidates, key, newest).await?,
            candidates,
            live: live_runs(tx, key.filter(|_| busy.contains(&index))).await?,
            position,
            capacities: Capacities::default(),
        });
    }
    Ok(all_facts)
}
