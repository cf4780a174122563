//! `PostgreSQL` query plans of the write path.
use std::collections::BTreeMap;
use std::path::Path;

use crate::support::{
    StoreFixture, TestDatabase, TestEvent, create_database, dispatch, new_run, plan_by, together,
};
use protocol::id::{AgentId, ApiKeyId, EndpointId, RunId};
use protocol::run::RunStatus;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use store::{AuditOutcome, EventFilter, IngestPlan, NumberRange, RunFilter, RunWindow};
use uuid::Uuid;

/// Tables that grow with traffic.
const GROWING: [&str; 8] = [
    "conversations",
    "events",
    "runs",
    "run_attempts",
    "run_segments",
    "steering_items",
    "transcript_items",
    "audit_entries",
];
/// Rows of a large table.
const LARGE: i64 = 20_000;

async fn connected(database: &TestDatabase) -> PgConnection {
    PgConnection::connect(&database.url()).await.unwrap()
}

async fn run_sql(database: &TestDatabase, sql: &str) {
    let mut admin = connected(database).await;
    let sql = AssertSqlSafe(sql.to_owned());
    sqlx::raw_sql(sql).execute(&mut admin).await.unwrap();
    admin.close().await.unwrap();
}

/// Scans of each growing table, and index entries read. Waits until other connections have ended.
async fn reads(database: &TestDatabase) -> BTreeMap<String, (i64, i64)> {
    database.deadlocks().await;
    counted(database).await
}

/// The same, as counted by the server so far.
async fn counted(database: &TestDatabase) -> BTreeMap<String, (i64, i64)> {
    let mut admin = connected(database).await;
    let sql = "SELECT t.relname, t.seq_scan, (SELECT CAST(COALESCE(SUM(i.idx_tup_read), 0) AS BIGINT) \
               FROM pg_stat_user_indexes i WHERE i.relid = t.relid) FROM pg_stat_user_tables t";
    let rows = sqlx::query(sql).fetch_all(&mut admin).await.unwrap();
    let read = rows
        .iter()
        .map(|row| (row.get(0), (row.get(1), row.get(2))));
    let read = read
        .filter(|(table, _): &(String, _)| GROWING.contains(&table.as_str()))
        .collect();
    admin.close().await.unwrap();
    read
}

fn event(bench: &StoreFixture, n: usize, turn: &str, plan: IngestPlan) -> TestEvent {
    let mut event = bench.event(&format!("{n}-{turn}-{}", Uuid::now_v7()), "a");
    event.conversation.as_mut().unwrap().conversation_id = format!("c-{n}");
    let plan = std::sync::Mutex::new(Some(plan));
    event.decide = plan_by(move |_| plan.lock().unwrap().take().unwrap());
    event
}

fn ids(count: usize) -> Vec<RunId> {
    (0..count).map(|_| RunId(Uuid::now_v7())).collect()
}

/// Creates runs with events and an end, each with a queued successor that cancels it.
async fn live(bench: &StoreFixture, count: usize) {
    let (first, second) = (ids(count), ids(count));
    let answer = String::new;
    let events = (0..count).map(|n| {
        let run = Box::new(new_run(first[n]));
        let (attempt, message) = (None, None);
        let answer = answer();
        bench.ingest(event(
            bench,
            n,
            "first",
            IngestPlan::Start {
                run,
                attempt,
                message,
                answer,
            },
        ))
    });
    together(bench, events).await;
    let mut created = Vec::new();
    for id in &first {
        let run = bench.runs().find_run(&bench.workspace, *id).await.unwrap();
        created.push(run.unwrap());
    }
    together(bench, created.iter().map(|run| bench.write(dispatch(run)))).await;
    let mut running = Vec::new();
    for id in &first {
        let run = bench.runs().find_run(&bench.workspace, *id).await.unwrap();
        running.push(run.unwrap());
    }
    let appends = running
        .iter()
        .map(|run| bench.write(bench.append(run, 0, &["one"])));
    together(bench, appends).await;
    let entries: Vec<_> = running
        .iter()
        .map(|run| {
            let mut entry = crate::support::audit(Uuid::now_v7());
            entry.run_id = run.id;
            entry
        })
        .collect();
    for entry in &entries {
        bench.audit_log().audit(entry.clone()).await.unwrap();
    }
    for entry in &entries {
        let outcome = AuditOutcome {
            on_behalf_of: None,
            approval: None,
            id: entry.id,
            run_id: entry.run_id,
            bytes: 1,
            outcome: "ok",
            duration_ms: 1,
            effect: None,
        };
        bench.audit_log().audit_outcome(outcome).await.unwrap();
    }
    let events = (0..count).map(|n| {
        let run = Box::new(new_run(second[n]));
        let cancel = vec![first[n]];
        let (message, answer) = (None, answer());
        bench.ingest(event(
            bench,
            n,
            "second",
            IngestPlan::Queue {
                run,
                message,
                cancel,
                answer,
            },
        ))
    });
    together(bench, events).await;
    together(bench, running.iter().map(|run| bench.end(run, 1))).await;
}

async fn widths(bench: &StoreFixture) {
    for width in [1, 2, 7, 64] {
        live(bench, width).await;
    }
}

async fn open(database: &TestDatabase) -> StoreFixture {
    StoreFixture::open(&database.url(), Some(database.clone())).await
}

async fn close(bench: StoreFixture) {
    bench.store.close().await;
    drop(bench);
}

/// Id of the run with this number.
const RUN: &str = "'00000000-0000-7000-8000-' || (100000000000 + i)";

fn fill(rows: i64) -> String {
    format!(
        "INSERT INTO conversations SELECT 'k' || i, 'default', 'b', 'c' || i, '', 1, 1, 1 \
             FROM generate_series(1, {rows}) i; \
         INSERT INTO events (workspace_id, event_id, dedupe_key, body_sha256, answer, event_type, source, \
             bot_id, conversation_key, event_seq, envelope, received_at) \
             SELECT 'default', 'e' || i, 'd' || i, '', '', 't', 's', '', 'k' || i, 1, '\"' || repeat('x', 300) || '\"', i \
             FROM generate_series(1, {rows}) i; \
         INSERT INTO runs (id, workspace_id, event_id, agent_id, agent_version, runner_id, endpoint_id, \
             conversation_key, status, attempt, lease_epoch, last_sequence, deadline_at, snapshot_sha256, \
             metadata, created_at, finished_at, agent_spec, snapshot) \
             SELECT {RUN}, 'default', 'e' || i, 'a', 1, 'r', 'e', 'k' || i, 'completed', 1, 1, 1, 1, '', \
             '{{}}', i, 1, '{{}}', '{{}}' FROM generate_series(1, {rows}) i; \
         INSERT INTO run_attempts (run_id, attempt, intent_at, context) \
             SELECT {RUN}, 1, 1, '{{}}' FROM generate_series(1, {rows}) i; \
         INSERT INTO steering_items (run_id, n, event_id, status, at) \
             SELECT {RUN}, 1, 'e' || i, 'pulled', 1 FROM generate_series(1, {rows}) i; \
         INSERT INTO audit_entries (id, workspace_id, run_id, action, resource, operation, decision, rule, \
             bytes, at) SELECT 'a' || i, 'default', {RUN}, 'a', 'r', 'o', 'allow', '', 1, 1 \
             FROM generate_series(1, {rows}) i"
    )
}

/// Runs all statements with generic plans and checks the statistics of the tables.
#[tokio::test]
async fn write_plans_scan_no_table() {
    let Some(database) = create_database().await else {
        return;
    };
    let url = database.url();
    let (_, name) = url.rsplit_once('/').unwrap();
    let generic = format!("ALTER DATABASE {name} SET plan_cache_mode = force_generic_plan");
    run_sql(&database, &generic).await;
    close(open(&database).await).await;
    // Autovacuum could change the statistics of a small table between two writes, and with them the plans.
    let leave_alone =
        GROWING.map(|table| format!("ALTER TABLE {table} SET (autovacuum_enabled = off)"));
    run_sql(&database, &leave_alone.join("; ")).await;
    grown_under_plans_of_empty_tables(&database).await;
    for step in ["large, without statistics", "large"] {
        if step == "large" {
            run_sql(&database, "ANALYZE").await;
        }
        let before = reads(&database).await;
        let bench = open(&database).await;
        widths(&bench).await;
        close(bench).await;
        for (table, (scans, entries)) in reads(&database).await {
            let (scans_before, entries_before) = before[&table];
            assert_eq!(scans - scans_before, 0, "scans of {table}, {step}");
            let read = entries - entries_before;
            assert!(read < LARGE, "{read} index entries of {table}, {step}");
        }
    }
    database.drop().await;
}

/// Sessions cache plans of empty tables, and still read few index entries after the tables grow.
async fn grown_under_plans_of_empty_tables(database: &TestDatabase) {
    // The server may count reads of the small tables after the fill.
    const MAX_READS: i64 = 10 * LARGE;
    let bench = open(database).await;
    widths(&bench).await;
    run_sql(database, &fill(LARGE)).await;
    let before = counted(database).await;
    widths(&bench).await;
    close(bench).await;
    for (table, (scans, entries)) in reads(database).await {
        let (scans_before, entries_before) = before[&table];
        assert_eq!(scans - scans_before, 0, "scans of {table}, grown");
        let read = entries - entries_before;
        assert!(read < MAX_READS, "{read} index entries of {table}, grown");
    }
}

/// Filters without matches, in a table much larger than the scan limit of a request.
#[tokio::test]
async fn filtered_lists_scan_bounded_rows() {
    const ROWS: i64 = 80_000;
    const MAX_READS: i64 = 30_000;
    let Some(database) = create_database().await else {
        return;
    };
    close(open(&database).await).await;
    run_sql(&database, &fill(ROWS)).await;
    run_sql(&database, "ANALYZE").await;
    let statuses = |statuses: &[RunStatus]| RunFilter {
        statuses: statuses.to_vec(),
        ..RunFilter::default()
    };
    let of_nobody = RunFilter {
        agent_id: Some(AgentId(Uuid::now_v7())),
        ..RunFilter::default()
    };
    let of_no_runner = RunFilter {
        runner_id: Some("plugin:x/y/z".parse().unwrap()),
        ..RunFilter::default()
    };
    let mut filters = vec![
        (statuses(&[RunStatus::Failed]), true),
        (of_no_runner, true),
        (statuses(&[RunStatus::Queued, RunStatus::Running]), false),
        (of_nobody, false),
    ];
    filters.extend(filters_of_clients());
    for (filter, looks_on) in filters {
        let before = reads(&database).await;
        let bench = open(&database).await;
        let window = RunWindow {
            limit: 50,
            bytes: usize::MAX,
            ..RunWindow::default()
        };
        let found = bench.runs().list_runs(&bench.workspace, &filter, &window);
        let found = found.await.unwrap();
        assert_eq!(
            (found.runs.len(), found.next.is_some()),
            (0, looks_on),
            "{filter:?}"
        );
        close(bench).await;
        let after = reads(&database).await;
        for table in ["runs", "events"] {
            let ((scans, entries), (scans_before, entries_before)) = (after[table], before[table]);
            assert_eq!(scans - scans_before, 0, "{table}: {filter:?}");
            assert!(entries - entries_before < MAX_READS, "{table}: {filter:?}");
        }
    }
    counts_read_bounded_rows(&database, MAX_READS).await;
    let before = reads(&database).await;
    let bench = open(&database).await;
    let filter = EventFilter {
        event_types: vec!["zzz".to_owned()],
        ..EventFilter::default()
    };
    let found = bench
        .events()
        .list_events(&bench.workspace, &filter, None, 50);
    assert!(found.await.unwrap().next.is_some());
    close(bench).await;
    let (scans, entries) = reads(&database).await["events"];
    assert_eq!(scans - before["events"].0, 0);
    assert!(entries - before["events"].1 < MAX_READS);
    conversations_scan_bounded_rows(&database, MAX_READS).await;
    database.drop().await;
}

/// Filters without matches, and whether a list continues after its scan.
fn filters_of_clients() -> Vec<(RunFilter, bool)> {
    let all = RunFilter::default();
    let text = |text: &str| RunFilter {
        text: Some(text.to_owned()),
        ..all.clone()
    };
    let min = |min| NumberRange {
        min: Some(min),
        max: None,
    };
    vec![
        (text("no-such-key"), true),
        (text("ffffffff"), true),
        (
            RunFilter {
                endpoint_id: Some(EndpointId(Uuid::now_v7())),
                ..all.clone()
            },
            true,
        ),
        (
            RunFilter {
                error_code: Some("absent".to_owned()),
                ..all.clone()
            },
            true,
        ),
        (
            RunFilter {
                status_reason: Some("absent".to_owned()),
                ..all.clone()
            },
            true,
        ),
        (
            RunFilter {
                posted_by: Some(ApiKeyId(Uuid::now_v7())),
                ..all.clone()
            },
            true,
        ),
        (
            RunFilter {
                duration_ms: min(1),
                ..all.clone()
            },
            true,
        ),
        (
            RunFilter {
                cost_micros: min(1),
                ..all.clone()
            },
            true,
        ),
        (
            RunFilter {
                idempotency_key: Some("absent".to_owned()),
                ..all.clone()
            },
            false,
        ),
        (
            RunFilter {
                created: min(1_000_000),
                ..all.clone()
            },
            false,
        ),
        (
            RunFilter {
                created: min(1_000_000),
                text: Some("no-such-key".to_owned()),
                ..all
            },
            false,
        ),
    ]
}

/// Counts stop at their bound, and live runs are counted by their own index.
async fn counts_read_bounded_rows(database: &TestDatabase, max_reads: i64) {
    let before = reads(database).await["runs"];
    let bench = open(database).await;
    let filter = RunFilter::default();
    let counts = bench.runs().count_by_status(&bench.workspace, &filter);
    let counts = counts.await.unwrap();
    close(bench).await;
    let of = |status| {
        let mut counted = counts.statuses.iter();
        let counted = counted.find(|counted| counted.status == status).unwrap();
        (counted.count, counted.is_exact)
    };
    assert_eq!(of(RunStatus::Completed), (10_000, false));
    assert_eq!(of(RunStatus::Failed), (0, false));
    assert_eq!(of(RunStatus::Running), (0, true));
    assert_eq!(counts.since, Some(70_001));
    let (scans, entries) = reads(database).await["runs"];
    assert_eq!(scans - before.0, 0);
    assert!(entries - before.1 < max_reads);
}

/// The list of conversations reads the newest events, and one conversation for each.
async fn conversations_scan_bounded_rows(database: &TestDatabase, max_reads: i64) {
    let before = reads(database).await;
    let bench = open(database).await;
    let conversations = bench.conversations();
    let listed = conversations.list_conversations(&bench.workspace, None, 50, 200);
    listed.await.unwrap();
    close(bench).await;
    let after = reads(database).await;
    for table in ["events", "conversations", "runs"] {
        let ((scans, entries), (scans_before, entries_before)) = (after[table], before[table]);
        assert_eq!(scans - scans_before, 0, "{table}");
        assert!(entries - entries_before < max_reads, "{table}");
    }
}

/// Lists encoded in one text get bad estimates, and their plans scan. Only full-text indexes use such texts.
#[test]
fn statements_compare_no_text_encoded_lists() {
    fn walk(directory: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else {
                let source = std::fs::read_to_string(&path).unwrap();
                let other = source.replace("array_to_tsvector(string_to_array(", "");
                let lists = other
                    .lines()
                    .filter(|line| line.contains("string_to_array"));
                found.extend(lists.map(|line| format!("{}: {line}", path.display())));
            }
        }
    }
    let mut found = Vec::new();
    walk(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut found,
    );
    assert_eq!(found, Vec::<String>::new());
}
