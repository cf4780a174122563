//! Sums of calls by day: recorded with each call, bounded in groups, and read without the calls.
use std::ops::Range;

use crate::support::{StoreFixture, create_database, on_both};
use domain::usage::TokenParts;
use migrations::{Migrator, MigratorTrait};
use protocol::id::{AgentId, RunId};
use sea_orm::Database;
use sqlx::{Connection, PgConnection, Row};
use store::{SettleUsage, UsageDays, UsageGrouping, UsageOfDay, UsedCall};
use uuid::Uuid;

on_both!(
    sums_calls_by_day_and_group,
    counts_run_once_per_group,
    joins_cheapest_groups,
    restricts_report_to_agents,
    migration_sums_earlier_calls,
);

const DAY_MS: i64 = 86_400_000;

fn agent(n: u128) -> AgentId {
    AgentId(Uuid::from_u128(n))
}

/// A model call of a new run, on day 10.
fn call(bench: &StoreFixture, agent_id: AgentId) -> UsedCall {
    UsedCall {
        id: Uuid::now_v7(),
        workspace: bench.workspace.clone(),
        run_id: RunId(Uuid::now_v7()),
        agent_id,
        gateway: "g-1".to_owned(),
        kind: "model",
        resource: "m-1".to_owned(),
        outcome: "ok",
        tokens: TokenParts {
            input: 5,
            cache_read: 3,
            output: 2,
            ..TokenParts::default()
        },
        is_estimate: false,
        cost_micros: 100,
        wall_ms: 7,
        at: 10 * DAY_MS,
    }
}

async fn settle(bench: &StoreFixture, call: UsedCall) {
    let settle = SettleUsage {
        call,
        lines: Vec::new(),
        reserved: domain::budget::Amount::default(),
    };
    bench.write(settle).await.unwrap();
}

fn report(days: Range<i64>, grouping: UsageGrouping) -> UsageDays {
    UsageDays {
        days,
        grouping,
        agent_id: None,
        agents: None,
    }
}

async fn used(bench: &StoreFixture, report: &UsageDays) -> Vec<UsageOfDay> {
    let usage = bench.usage();
    let mut used = usage.usage_by_day(&bench.workspace, report).await.unwrap();
    used.sort_by(|a, b| (a.day, &a.group).cmp(&(b.day, &b.group)));
    used
}

/// Day, group, runs, calls and cost of each row.
async fn rows(
    bench: &StoreFixture,
    report: &UsageDays,
) -> Vec<(i64, Option<String>, u64, u64, u64)> {
    let used = used(bench, report).await.into_iter();
    let row = |one: UsageOfDay| (one.day, one.group, one.runs, one.calls, one.cost_micros);
    used.map(row).collect()
}

async fn sums_calls_by_day_and_group(bench: StoreFixture) {
    for gateway in ["g-1", "g-2"] {
        let call = UsedCall {
            gateway: gateway.to_owned(),
            ..call(&bench, agent(1))
        };
        settle(&bench, call).await;
    }
    let late = UsedCall {
        at: 11 * DAY_MS - 1,
        resource: "m-2".to_owned(),
        ..call(&bench, agent(1))
    };
    settle(&bench, late).await;
    let next = UsedCall {
        at: 11 * DAY_MS,
        kind: "tool",
        resource: "t".to_owned(),
        ..call(&bench, agent(2))
    };
    settle(&bench, next).await;
    let group = |n| Some(agent(n).to_string());
    assert_eq!(
        rows(&bench, &report(10..12, UsageGrouping::Agent)).await,
        [(10, group(1), 3, 3, 300), (11, group(2), 1, 1, 100)]
    );
    assert_eq!(
        rows(&bench, &report(10..12, UsageGrouping::Model)).await,
        [
            (10, Some("m-1".to_owned()), 2, 2, 200),
            (10, Some("m-2".to_owned()), 1, 1, 100)
        ]
    );
    assert_eq!(
        rows(&bench, &report(10..12, UsageGrouping::Tool)).await,
        [(11, Some("t".to_owned()), 1, 1, 100)]
    );
    let first = used(&bench, &report(10..11, UsageGrouping::Agent)).await;
    let tokens = TokenParts {
        input: 15,
        cache_read: 9,
        output: 6,
        ..TokenParts::default()
    };
    assert_eq!((first[0].tokens, first[0].wall_ms), (tokens, 21));
    assert_eq!(
        rows(&bench, &report(12..20, UsageGrouping::Agent)).await,
        []
    );
}

async fn counts_run_once_per_group(bench: StoreFixture) {
    let run_id = RunId(Uuid::now_v7());
    for (day, resource) in [(10, "m-1"), (10, "m-1"), (10, "m-2"), (11, "m-1")] {
        let call = UsedCall {
            run_id,
            at: day * DAY_MS,
            resource: resource.to_owned(),
            ..call(&bench, agent(1))
        };
        settle(&bench, call).await;
    }
    let group = Some(agent(1).to_string());
    assert_eq!(
        rows(&bench, &report(10..12, UsageGrouping::Agent)).await,
        [(10, group.clone(), 1, 3, 300), (11, group, 0, 1, 100)]
    );
    let [one, two] = ["m-1", "m-2"].map(|model| Some(model.to_owned()));
    assert_eq!(
        rows(&bench, &report(10..12, UsageGrouping::Model)).await,
        [
            (10, one.clone(), 1, 2, 200),
            (10, two, 1, 1, 100),
            (11, one, 0, 1, 100)
        ]
    );
}

async fn joins_cheapest_groups(bench: StoreFixture) {
    for n in 1..=23 {
        let call = UsedCall {
            cost_micros: u64::try_from(n).unwrap(),
            ..call(&bench, agent(n))
        };
        settle(&bench, call).await;
    }
    let rows = rows(&bench, &report(0..100, UsageGrouping::Agent)).await;
    assert_eq!(rows.len(), 21);
    assert_eq!(rows[0], (10, None, 3, 3, 1 + 2 + 3));
    assert_eq!(rows[1], (10, Some(agent(4).to_string()), 1, 1, 4));
}

async fn restricts_report_to_agents(bench: StoreFixture) {
    for n in 1..=3 {
        settle(&bench, call(&bench, agent(n))).await;
    }
    let all = report(10..11, UsageGrouping::Agent);
    let groups = async |report: UsageDays| {
        let rows = rows(&bench, &report).await.into_iter();
        rows.filter_map(|row| row.1).collect::<Vec<_>>()
    };
    let reached = Some(vec![agent(2), agent(3)]);
    let restricted = UsageDays {
        agents: reached.clone(),
        ..all.clone()
    };
    let foreign = UsageDays {
        agents: reached,
        agent_id: Some(agent(1)),
        ..all
    };
    assert_eq!(
        groups(restricted).await,
        [agent(2).to_string(), agent(3).to_string()]
    );
    assert_eq!(groups(foreign).await, Vec::<String>::new());
}

async fn migration_sums_earlier_calls(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    for (day, resource) in [(10, "m-1"), (10, "m-2"), (11, "m-1")] {
        let call = UsedCall {
            run_id: run.id,
            at: day * DAY_MS,
            resource: resource.to_owned(),
            ..call(&bench, run.agent_id)
        };
        settle(&bench, call).await;
    }
    let by_agent = report(10..12, UsageGrouping::Agent);
    let before = used(&bench, &by_agent).await;
    let db = Database::connect(bench.url()).await.unwrap();
    let all = Migrator::migrations();
    let mut newest_first = all.iter().rev();
    let later = newest_first.position(|one| one.name() == "m20261129_000004_usage_by_day");
    let steps = u32::try_from(later.unwrap() + 1).unwrap();
    Migrator::down(&db, Some(steps)).await.unwrap();
    Migrator::up(&db, None).await.unwrap();
    db.close().await.unwrap();
    assert_eq!(used(&bench, &by_agent).await, before);
    assert_eq!(before.len(), 2);
}

/// A report reads the days of its period from the primary key, also by the plan of an empty table.
#[tokio::test]
async fn reports_read_only_their_period() {
    const ROWS: i64 = 50_000;
    let Some(database) = create_database().await else {
        return;
    };
    let bench = StoreFixture::open(&database.url(), Some(database.clone())).await;
    let period = report(40_000..40_010, UsageGrouping::Agent);
    assert_eq!(used(&bench, &period).await, []);
    let fill = format!(
        "INSERT INTO usage_days SELECT 'default', i, 'a' || i % 7, 'model', 'm', 'g', 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1 \
         FROM generate_series(1, {ROWS}) i; \
         INSERT INTO usage_calls (id, workspace_id, run_id, kind, resource, outcome, prompt_tokens, completion_tokens, \
             is_estimate, cost_micros, wall_ms, at) \
         SELECT 'c' || i, 'default', 'r' || i, 'model', 'm', 'ok', 1, 1, 0, 1, 1, 1 FROM generate_series(1, {ROWS}) i"
    );
    bench.tamper(&fill).await;
    let reads = async || {
        database.deadlocks().await;
        let mut admin = PgConnection::connect(&database.url()).await.unwrap();
        let sql = "SELECT CAST(SUM(t.seq_scan) AS BIGINT), CAST(SUM(i.idx_tup_read) AS BIGINT) \
            FROM pg_stat_user_tables t JOIN pg_stat_user_indexes i ON i.relid = t.relid \
            WHERE t.relname IN ('usage_days', 'usage_calls')";
        let row = sqlx::query(sql).fetch_one(&mut admin).await.unwrap();
        admin.close().await.unwrap();
        (row.get::<i64, _>(0), row.get::<i64, _>(1))
    };
    bench.store.close().await;
    drop(bench);
    let (scans_before, entries_before) = reads().await;
    let bench = StoreFixture::open(&database.url(), Some(database.clone())).await;
    assert_eq!(used(&bench, &period).await.len(), 10);
    settle(&bench, call(&bench, agent(1))).await;
    bench.store.close().await;
    drop(bench);
    let (scans, entries) = reads().await;
    assert_eq!(scans - scans_before, 0);
    assert!(entries - entries_before < 100, "{entries} entries");
    database.drop().await;
}
