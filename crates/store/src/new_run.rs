//! New runs: candidate agents, and the initial rows of a run.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use protocol::id::{AgentId, WorkspaceId};
use protocol::resources::SkillResource;
use protocol::run::RunStatus;
use sea_orm::{DbBackend, Value};

use crate::agent_skills::skills_of_workspace;
use crate::agents::read_agent;
use crate::attempts::{DispatchIntent, insert_intents};
use crate::database_clock::{lease_end_sql, millis};
use crate::endpoints::bound_endpoints;
use crate::entity::{agents, runners};
use crate::error::{StoreError, signed};
use crate::model::append::TranscriptWrite;
use crate::model::new_run::{FirstAttempt, NewRun, UserMessage};
use crate::model::registry::{AgentRecord, Candidate, EndpointAddress, RunnerRecord};
use crate::runners::read_runner;
use crate::shared_parts::{NamedParts, StoredParts};
use crate::sql::{Sql, columns, executed, inserted};
use crate::transcript::terms_of;
use crate::tx_cache::TxCache;

/// The event of a run, and its conversation.
#[derive(Clone, Copy)]
pub(crate) struct RunEvent<'a> {
    pub(crate) workspace: &'a WorkspaceId,
    pub(crate) event_id: &'a str,
    pub(crate) conversation_key: Option<&'a str>,
    pub(crate) at: i64,
}

static ENABLED: LazyLock<String> = LazyLock::new(|| {
    let agent = columns::<agents::Entity>("a");
    format!(
        "SELECT {agent}, EXISTS (SELECT 1 FROM agent_skills s WHERE s.agent_id = a.id) AS has_skills, \
         EXISTS (SELECT 1 FROM pauses p WHERE p.scope IN \
         ('all', 'workspace:' || a.workspace_id, 'agent:' || a.id)) AS is_paused \
         FROM agents a WHERE a.workspace_id = $1 AND a.enabled"
    )
});

static BOUND_RUNNERS: LazyLock<String> = LazyLock::new(|| {
    let runner = columns::<runners::Entity>("r");
    format!(
        "SELECT {runner} FROM runners r WHERE r.workspace_id = $1 AND EXISTS \
         (SELECT 1 FROM agents a WHERE a.workspace_id = $1 AND a.runner_id = r.runner_id)"
    )
});

/// The enabled agents of a workspace, with their runners.
pub(crate) async fn candidates(
    conn: &impl Sql,
    workspace: &WorkspaceId,
) -> Result<Vec<Candidate>, StoreError> {
    let enabled = conn.query_sql(ENABLED.clone(), vec![workspace.as_str().into()]);
    let (enabled, runners) = conn
        .in_order(enabled, bound_runners(conn, workspace))
        .await?;
    let agents = enabled.iter().map(read_agent).collect::<Result<_, _>>()?;
    let have_skills = enabled.iter().map(|row| row.flag("has_skills"));
    let have_skills: Vec<bool> = have_skills.collect::<Result<_, _>>()?;
    // Most agents have none: skip the query.
    let skills = if have_skills.contains(&true) {
        skills_of_workspace(conn, workspace).await?
    } else {
        Vec::new()
    };
    let mut candidates = with_runners(agents, skills, &runners);
    for (candidate, row) in candidates.iter_mut().zip(&enabled) {
        candidate.is_paused = row.flag("is_paused")?;
    }
    Ok(candidates)
}

/// The same, read once in a transaction.
pub(crate) async fn cached_candidates(
    tx: &impl Sql,
    workspace: &WorkspaceId,
    tx_cache: &mut TxCache,
) -> Result<Arc<[Candidate]>, StoreError> {
    if let Some(cached) = tx_cache.candidates.get(workspace) {
        return Ok(Arc::clone(cached));
    }
    let read: Arc<[Candidate]> = candidates(tx, workspace).await?.into();
    let shared = Arc::clone(&read);
    tx_cache.candidates.insert(workspace.clone(), shared);
    Ok(read)
}

/// A runner that an agent is bound to, with the address of its endpoint.
pub(crate) struct BoundRunner {
    runner: RunnerRecord,
    endpoint: Option<Arc<EndpointAddress>>,
}

/// Runners of the workspace's agents.
pub(crate) async fn bound_runners(
    conn: &impl Sql,
    workspace: &WorkspaceId,
) -> Result<Vec<BoundRunner>, StoreError> {
    let runners = conn.query_sql(BOUND_RUNNERS.clone(), vec![workspace.as_str().into()]);
    let (runners, endpoints) = conn
        .in_order(runners, bound_endpoints(conn, workspace))
        .await?;
    let endpoints: Vec<_> = endpoints.into_iter().map(Arc::new).collect();
    let bound = runners.iter().map(|row| {
        let runner = read_runner(row)?;
        let endpoint = endpoints.iter().find(|one| one.id == runner.endpoint_id);
        let endpoint = endpoint.cloned();
        Ok(BoundRunner { runner, endpoint })
    });
    bound.collect()
}

/// Agents with their runners, each with its own skills from `skills`. None is paused.
pub(crate) fn with_runners(
    agents: Vec<AgentRecord>,
    skills: Vec<(AgentId, SkillResource)>,
    runners: &[BoundRunner],
) -> Vec<Candidate> {
    let mut skills_of: HashMap<AgentId, Vec<SkillResource>> = HashMap::new();
    for (agent, skill) in skills {
        skills_of.entry(agent).or_default().push(skill);
    }
    let candidates = agents.into_iter().map(|agent| {
        let mut bound = runners.iter();
        let bound = bound.find(|one| one.runner.id == agent.spec.runner_id);
        Candidate {
            endpoint: bound.and_then(|one| one.endpoint.clone()),
            runner: bound.map(|one| one.runner.clone()),
            skills: skills_of.remove(&agent.id).unwrap_or_default(),
            is_paused: false,
            agent,
        }
    });
    candidates.collect()
}

/// A new run: dispatched now (`running`), waiting for dispatch (`created`), or waiting for another run to end
/// (`queued`).
pub(crate) struct RunRow<'a> {
    pub(crate) event: RunEvent<'a>,
    pub(crate) run: &'a NewRun,
    pub(crate) begin: &'a Begin,
}

/// Initial state of a run.
pub(crate) enum Begin {
    Created,
    Queued,
    /// With its first attempt.
    Dispatched(Box<FirstAttempt>),
}

impl Begin {
    fn status(&self) -> RunStatus {
        match self {
            Self::Created => RunStatus::Created,
            Self::Queued => RunStatus::Queued,
            Self::Dispatched(_) => RunStatus::Running,
        }
    }

    fn attempt(&self) -> Option<&FirstAttempt> {
        match self {
            Self::Created | Self::Queued => None,
            Self::Dispatched(attempt) => Some(attempt),
        }
    }
}

/// Table and key column of frozen texts. `SQLite` rewrites the entire row on each change, so they have their own
/// table. `PostgreSQL` stores large values out of line itself.
pub(crate) fn frozen_in(backend: DbBackend) -> (&'static str, &'static str) {
    match backend {
        DbBackend::Sqlite => ("run_snapshots", "run_id"),
        _ => ("runs", "id"),
    }
}

/// Inserts new runs with their frozen texts, and the intents of dispatched ones.
pub(crate) async fn insert_runs(
    tx: &impl Sql,
    rows: &[RunRow<'_>],
    parts: &StoredParts,
) -> Result<(), StoreError> {
    let mut named = NamedParts::default();
    let frozen: Vec<_> = rows
        .iter()
        .map(|RunRow { run, .. }| {
            let texts = [&run.agent_spec, &run.snapshot];
            texts.map(|text| {
                named.add_permanent(text);
                Value::from(text.text.as_str())
            })
        })
        .collect();
    // Before the runs: a text with a mark must never be readable without its part.
    let at = rows.first().map_or(0, |row| row.event.at);
    named.write(tx, parts, at).await?;
    let rows_frozen = rows.iter().zip(frozen);
    if tx.backend() == DbBackend::Sqlite {
        let rows_alone = rows.iter().map(own_values).collect();
        executed(tx, rows_alone, &inserting(tx.backend(), "")).await?;
        let frozen = rows_frozen.map(|(row, [agent_spec, snapshot])| {
            [row.run.id.to_string().into(), agent_spec, snapshot]
        });
        let into = "run_snapshots (run_id, agent_spec, snapshot)";
        inserted(tx, into, frozen.collect()).await?;
    } else {
        let full_rows = rows_frozen.map(|(row, frozen)| {
            let mut values = [const { Value::Bool(None) }; OWN_VALUES + 2];
            let all = own_values(row).into_iter().chain(frozen);
            values
                .iter_mut()
                .zip(all)
                .for_each(|(slot, value)| *slot = value);
            values
        });
        let text = inserting(tx.backend(), ", agent_spec, snapshot");
        executed(tx, full_rows.collect(), &text).await?;
    }
    let intents = rows.iter().filter_map(|row| {
        let attempt = row.begin.attempt()?;
        Some(DispatchIntent {
            run: row.run.id,
            attempt: FirstAttempt::NUMBER,
            context: attempt.context.clone(),
            at: row.event.at,
        })
    });
    insert_intents(tx, intents, parts).await
}

/// Inserts a run from its own values and the columns in `also`. The lease end uses the database clock.
fn inserting(backend: DbBackend, also: &str) -> String {
    let lease_end = lease_end_sql(backend, "?1");
    let values = OWN_VALUES + also.matches(',').count();
    let values = (2..=values).fold(lease_end, |values, number| format!("{values}, ?{number}"));
    format!(
        "INSERT INTO runs (lease_expires_at, id, workspace_id, event_id, agent_id, agent_version, runner_id, \
         endpoint_id, conversation_key, status, attempt, lease_epoch, lease_owner, started_at, last_sequence, \
         deadline_at, snapshot_sha256, metadata, created_at, trace_parent, parent_run_id, retry_of, \
         retry_from, posted_by{also}) SELECT {values} FROM rows"
    )
}

/// Number of values in a run's own row.
const OWN_VALUES: usize = 24;

fn own_values(RunRow { event, run, begin }: &RunRow<'_>) -> [Value; OWN_VALUES] {
    let attempt = begin.attempt();
    let number = attempt.map_or(0, |_| i64::from(FirstAttempt::NUMBER));
    [
        attempt.map(|attempt| millis(attempt.lease)).into(),
        run.id.to_string().into(),
        event.workspace.as_str().into(),
        event.event_id.into(),
        run.agent_id.to_string().into(),
        run.agent_version.into(),
        run.runner_id.to_string().into(),
        run.endpoint_id.to_string().into(),
        event.conversation_key.map(str::to_owned).into(),
        begin.status().as_str().into(),
        number.into(),
        number.into(),
        attempt.map(|attempt| attempt.owner.clone()).into(),
        attempt.map(|_| event.at).into(),
        0_i64.into(),
        run.deadline_at.into(),
        run.snapshot_sha256.as_str().into(),
        "{}".into(),
        event.at.into(),
        run.trace_parent.map(|parent| parent.to_string()).into(),
        run.parent_run_id.map(|parent| parent.to_string()).into(),
        run.retry_of.map(|retried| retried.to_string()).into(),
        run.retry_from.map(signed).into(),
        run.posted_by.map(|key| key.to_string()).into(),
    ]
}

/// The user message of an event as a transcript item, under the run that receives it. `None` without a
/// conversation.
pub(crate) fn user_item(event: &RunEvent<'_>, message: UserMessage) -> Option<TranscriptWrite> {
    let conversation_key = event.conversation_key?.to_owned();
    Some(TranscriptWrite {
        terms: terms_of(&conversation_key, message.content.as_deref()),
        id: message.id,
        conversation_key,
        event_id: event.event_id.to_owned(),
        role: "user",
        content: message.content,
        content_json: message.content_json,
        attachment_refs: message.attachment_refs,
        author: message.author,
    })
}
