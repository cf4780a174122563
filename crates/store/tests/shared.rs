//! Shared parts of runs are stored once and restored completely.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{AGENT, LockHolder, StoreFixture, TestEvent, new_run, on_both, plan_by};
use domain::authorization::{
    EventScope, GrantCandidates, ModelLimits, ResourceCatalog, SharedGrants, Subject,
};
use domain::context::{ContextParts, build_context, context_json};
use domain::locale::RunLocale;
use domain::state::StateOwner;
use protocol::admin::AgentSpec;
use protocol::context::AgentRunState;
use protocol::event::EventEnvelope;
use protocol::id::{EndpointId, RunId, RunnerId};
use protocol::manifest::AgentRunnerManifest;
use sea_orm::{ConnectionTrait, Database, Statement};
use serde_json::json;
use store::{
    Append, FirstAttempt, Ingest, IngestPlan, NewRun, OverBudget, PageBudget, ReadBudget,
    SharedParts, StoreError, sha256_hex,
};
use uuid::Uuid;

on_both!(
    restores_texts_with_shared_parts,
    reserves_context_parts_before_read,
    retention_deletes_unused_parts,
);

/// An agent with `count` tools.
struct TestAgent {
    granted: SharedGrants,
    spec: AgentSpec,
    spec_json: String,
    runner: RunnerId,
}

impl TestAgent {
    fn with_tools(count: usize) -> Self {
        let manifest: AgentRunnerManifest = serde_json::from_value(json!({
            "id": "plugin:a/b/c", "name": "c", "label": {},
            "permissions": {"tools": ["detail", "call"]},
        }))
        .unwrap();
        let spec: AgentSpec = serde_json::from_value(json!({
            "name": "helper", "event_types": ["message.received"], "runner_id": "plugin:a/b/c",
            "resource_policy": {"tools": "*"},
        }))
        .unwrap();
        let tool = |n: usize| {
            json!({
                "tool_name": format!("tool_{n}"), "operations": ["detail", "call"],
                "description": format!("Looks up the records of department {n}, newest first."),
                "parameters": {"type": "object", "required": ["query"], "properties": {
                    "query": {"type": "string", "description": "What the records are to contain."},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
                    "since": {"type": "string", "format": "date-time", "description": "The oldest."},
                }},
            })
        };
        let tools: Vec<_> = (0..count).map(tool).collect();
        let catalog = ResourceCatalog {
            tools: serde_json::from_value(json!(tools)).unwrap(),
            ..ResourceCatalog::default()
        };
        let scope = EventScope {
            has_conversation: true,
            ..EventScope::default()
        };
        let considered = GrantCandidates {
            catalog: &catalog,
            registered_skills: &[],
            peers: &[],
            parent: None,
        };
        Self {
            granted: SharedGrants::to(considered, &manifest, &spec, scope),
            spec_json: serde_json::to_string(&spec).unwrap(),
            spec,
            runner: manifest.id,
        }
    }

    fn shared(&self) -> SharedParts {
        let texts = self.granted.shared_texts().into_iter();
        SharedParts::of(texts.chain([self.spec_json.clone()]))
    }

    /// An event with a run dispatched at ingest, and the run's snapshot and context.
    fn event(
        &self,
        bench: &StoreFixture,
        n: usize,
        shared: &SharedParts,
    ) -> (TestEvent, NewRun, String) {
        let envelope = envelope(n);
        let event_id = format!("e-{n}");
        let run_id = RunId(Uuid::now_v7());
        let base = bench.event(&event_id, &sha256_hex(event_id.as_bytes()));
        let mut identity = base.conversation.clone().unwrap();
        identity.conversation_id = format!("c-{n}");
        let subject = Subject {
            run_id,
            agent_version: 1,
            endpoint_id: EndpointId(Uuid::nil()),
            event_id: &event_id,
            has_artifacts: false,
            has_prompt: false,
            shows_interactions: false,
            registered_skills: &[],
            peers: &[],
            parent: None,
            token_limits: &[],
            owner: StateOwner {
                workspace: &bench.workspace,
                runner: &self.runner,
                agent: AGENT,
                bot_id: Some("b"),
                generation: None,
                conversation: Some(&identity),
                actor: envelope.actor.as_ref(),
                subject: None,
            },
        };
        let snapshot = self.granted.snapshot(&subject);
        let text = self.granted.text_of(&snapshot);
        let hash = sha256_hex(text.as_bytes());
        let context = build_context(ContextParts {
            snapshot: &snapshot,
            snapshot_sha256: &hash,
            static_refs: serde_json::Map::new(),
            locale: RunLocale::default(),
            event: &envelope,
            event_seq: Some(1),
            arrived_at: 1_000,
            transcript_before: 0,
            latest_cursor: None,
            state: AgentRunState::default(),
            state_incomplete: Vec::new(),
            config: self.spec.config.clone(),
            deadline_at: 9_000,
            trace_id: "0".repeat(32),
            limits: serde_json::Map::new(),
            model_limits: ModelLimits::default(),
            from: None,
        });
        let context = context_json(&context);
        let run = NewRun {
            agent_spec: shared.apart(&self.spec_json),
            snapshot: shared.apart(&text),
            snapshot_sha256: hash,
            shared: shared.clone(),
            ..new_run(run_id)
        };
        let attempt = FirstAttempt {
            owner: "me".to_owned(),
            lease: Duration::from_mins(1),
            context: shared.apart(context.get()),
        };
        let (begun, sent_context) = (run.clone(), context.get().to_owned());
        let decide = move |_: &_| IngestPlan::Start {
            run: Box::new(begun.clone()),
            attempt: Some(Box::new(attempt.clone())),
            message: None,
            answer: String::new(),
        };
        let event = Ingest {
            conversation: Some(identity),
            envelope: serde_json::to_string(&envelope).unwrap(),
            decide: plan_by(decide),
            ..base
        };
        (event, run, sent_context)
    }
}

fn envelope(n: usize) -> EventEnvelope {
    let event = json!({
        "event_type": "message.received", "bot_id": "b",
        "conversation": {"conversation_id": format!("c-{n}")},
        "actor": {"actor_type": "user", "actor_id": format!("u-{n}"), "actor_name": "Ada"},
        "input": {"text": "How many records were made last week?"},
    });
    serde_json::from_value(event).unwrap()
}

/// Creates a run of 11 events; returns it with its context.
async fn short_run(
    bench: &StoreFixture,
    agent: &TestAgent,
    n: usize,
    shared: &SharedParts,
) -> (NewRun, String) {
    let (event, run, context) = agent.event(bench, n, shared);
    bench.ingest(event).await.unwrap();
    let begun = bench
        .runs()
        .find_run(&bench.workspace, run.id)
        .await
        .unwrap();
    let begun = begun.unwrap();
    let line =
        json!({"type": "message.delta", "data": {"chunk": {"content": "Last week there were "}}});
    let line = line.to_string();
    let lines: Vec<_> = (0..10).map(|_| line.as_str()).collect();
    let append = bench.append(&begun, 0, &lines);
    bench.write(append).await.unwrap();
    let end = Append {
        terminal: Some(bench.terminal(None)),
        ..bench.append(&begun, 10, &[line.as_str()])
    };
    bench.write(end).await.unwrap();
    (run, context)
}

async fn count(bench: &StoreFixture, sql: &str) -> i64 {
    let database = Database::connect(bench.url()).await.unwrap();
    let statement = Statement::from_string(database.get_database_backend(), sql.to_owned());
    let row = database.query_one_raw(statement).await.unwrap().unwrap();
    let count = row.try_get_by_index(0).unwrap();
    database.close().await.unwrap();
    count
}

async fn restores_texts_with_shared_parts(bench: StoreFixture) {
    let agent = TestAgent::with_tools(20);
    let mut runs = Vec::new();
    for n in 0..3 {
        runs.push(short_run(&bench, &agent, n, &agent.shared()).await);
    }
    // Without shared parts, like runs of an older gateway.
    runs.push(short_run(&bench, &agent, 3, &SharedParts::default()).await);
    for (run, context) in &runs {
        let snapshot = bench.runs().find_snapshot(run.id).await.unwrap().unwrap();
        assert_eq!(sha256_hex(snapshot.as_bytes()), run.snapshot_sha256);
        let stored = bench
            .runs()
            .find_context(run.id, ReadBudget::default())
            .await
            .unwrap();
        assert_eq!(stored.as_ref(), Some(context));
        let row = bench
            .runs()
            .find_run(&bench.workspace, run.id)
            .await
            .unwrap();
        let inputs = bench.runs().find_run_inputs(&row.unwrap()).await.unwrap();
        assert_eq!(inputs.unwrap().agent_spec, agent.spec_json);
    }
    let parts = count(&bench, "SELECT COUNT(*) FROM shared_parts").await;
    assert!((2..=6).contains(&parts), "{parts}");

    bench
        .tamper("UPDATE shared_parts SET text = text || ' '")
        .await;
    let (other, writer) = store::Store::open(&bench.url()).await.unwrap();
    let mut writing = tokio::task::JoinSet::new();
    writing.spawn(writer);
    assert!(
        other.runs().find_snapshot(runs[0].0.id).await.is_err(),
        "it was changed"
    );
    other.close().await;
}

/// Grants a number of bytes, then refuses.
struct ByteBudget(AtomicUsize);

impl PageBudget for ByteBudget {
    fn take(&self, bytes: usize) -> Result<(), OverBudget> {
        let left = self.0.load(Ordering::Relaxed).checked_sub(bytes);
        let left = left.ok_or(OverBudget {
            reason: "full",
            message: "wait",
        })?;
        self.0.store(left, Ordering::Relaxed);
        Ok(())
    }
}

async fn reserves_context_parts_before_read(bench: StoreFixture) {
    let agent = TestAgent::with_tools(20);
    let (run, context) = short_run(&bench, &agent, 0, &agent.shared()).await;
    // A gateway with an empty part cache.
    let (other, writer) = store::Store::open(&bench.url()).await.unwrap();
    let mut writing = tokio::task::JoinSet::new();
    writing.spawn(writer);
    // Reading a tampered part would be another error.
    let shared = "UPDATE shared_parts SET text = 'x' || substr(text, 2)";
    bench.tamper(shared).await;
    let row = count(
        &bench,
        "SELECT CAST(octet_length(context) + 1000 AS BIGINT) FROM run_attempts",
    )
    .await;
    let small = ByteBudget(AtomicUsize::new(usize::try_from(row).unwrap()));
    let refused = other
        .runs()
        .find_context(run.id, ReadBudget::of(&small))
        .await;
    assert!(
        matches!(refused, Err(StoreError::OverBudget(_))),
        "{refused:?}"
    );
    let large = ByteBudget(AtomicUsize::new(2 * context.len()));
    let corrupt = other
        .runs()
        .find_context(run.id, ReadBudget::of(&large))
        .await;
    assert!(
        matches!(corrupt, Err(StoreError::Corrupt { .. })),
        "{corrupt:?}"
    );
    other.close().await;
}

async fn retention_deletes_unused_parts(bench: StoreFixture) {
    let agent = TestAgent::with_tools(20);
    let (run, _) = short_run(&bench, &agent, 1, &agent.shared()).await;
    let all = "SELECT COUNT(*) FROM shared_parts";
    let before = count(&bench, all).await;
    bench.tamper("UPDATE shared_parts SET created_at = 1").await;
    assert_eq!(
        bench.retention().sweep_shared_parts().await.unwrap(),
        0,
        "in use"
    );
    assert_eq!(
        bench.retention().prune_runs(Duration::ZERO).await.unwrap(),
        1
    );
    if let Some(database) = &bench.database {
        // Another replica creates a run that uses the part.
        let hold = "SELECT 1 FROM shared_parts FOR KEY SHARE";
        let holder = LockHolder::of(database, hold).await;
        assert_eq!(
            bench.retention().sweep_shared_parts().await.unwrap(),
            0,
            "held"
        );
        holder.commit().await;
    }
    assert_eq!(bench.retention().sweep_shared_parts().await.unwrap(), 1);
    assert_eq!(count(&bench, all).await, before - 1);
    // The run stays, with its authorization.
    let snapshot = bench.runs().find_snapshot(run.id).await.unwrap().unwrap();
    assert_eq!(sha256_hex(snapshot.as_bytes()), run.snapshot_sha256);
    // A later run inserts the part again.
    let (again, context) = short_run(&bench, &agent, 2, &agent.shared()).await;
    let stored = bench
        .runs()
        .find_context(again.id, ReadBudget::default())
        .await
        .unwrap();
    assert_eq!(stored, Some(context));
}

/// Database growth in bytes per run.
async fn bytes_of_a_run(agent: &TestAgent, shared: &SharedParts) -> i64 {
    const RUNS: i64 = 200;
    let bench = StoreFixture::fast().await;
    let size = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()";
    short_run(&bench, agent, 0, shared).await;
    let before = count(&bench, size).await;
    for n in 1..=RUNS {
        short_run(&bench, agent, usize::try_from(n).unwrap(), shared).await;
    }
    (count(&bench, size).await - before) / RUNS
}

#[tokio::test]
async fn short_runs_share_large_texts() {
    let agent = TestAgent::with_tools(20);
    let inlined = bytes_of_a_run(&agent, &SharedParts::default()).await;
    let shared = bytes_of_a_run(&agent, &agent.shared()).await;
    #[expect(
        clippy::print_stderr,
        reason = "figures for who reads the test's output"
    )]
    {
        eprintln!("a run of 11 events with 20 tools: {inlined} bytes inlined, {shared} shared");
    }
    assert!(
        shared * 2 <= inlined,
        "{inlined} bytes inlined, {shared} shared"
    );
}
