//! Schedules: due times become occurrences once, and one replica claims each.
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::{StoreFixture, on_both, variable};
use domain::schedule::{Recurrence, due_plan};
use protocol::id::ScheduleId;
use protocol::schedule::{OccurrenceStatus, ScheduleSpec};
use serde_json::json;
use store::{
    AdvanceSchedules, ClaimOccurrences, ClaimedOccurrence, NewOccurrence, OccurrenceResult,
    RecordOccurrences, ScheduleAdvance, ScheduleRecord, TriedOccurrence,
};
use uuid::Uuid;

on_both!(
    moves_each_schedule_on_once,
    claims_each_occurrence_once,
    stale_claim_records_nothing,
    claims_all_schedules_of_a_minute,
);

fn spec() -> ScheduleSpec {
    let spec = json!({"name": "n", "every": "1h", "event": {}});
    serde_json::from_value(spec).unwrap()
}

/// Inserts schedules that have been due since this time, in epoch milliseconds.
async fn insert(bench: &StoreFixture, count: usize, due_at: i64) {
    let spec = serde_json::to_string(&spec()).unwrap();
    let row = |_| {
        let id = Uuid::now_v7();
        format!(
            "('{id}', '{}', '{id}', 'api', TRUE, '{spec}', {due_at}, 0, 1, {}, 0, 'gateway')",
            bench.workspace,
            due_at - 3_600_000
        )
    };
    let mut left = count;
    while left > 0 {
        let rows: Vec<_> = (0..left.min(1000)).map(row).collect();
        left -= rows.len();
        let sql = format!(
            "INSERT INTO schedules (id, workspace_id, name, origin, enabled, spec, next_due_at, occurrences, version, \
             created_at, updated_at, updated_by) VALUES {}",
            rows.join(", ")
        );
        bench.tamper(&sql).await;
    }
}

/// Time by the clock of the database, which comes with due schedules.
async fn now(bench: &StoreFixture) -> i64 {
    insert(bench, 1, 3_600_000).await;
    let due = bench.agents().due_schedules(1).await.unwrap();
    bench.tamper("DELETE FROM schedules").await;
    due.now
}

/// The plan of a gateway.
fn plan(record: &ScheduleRecord, now: i64) -> ScheduleAdvance {
    let recurrence = Recurrence::of(&record.spec, record.created_at / 1000).unwrap();
    let due_at = record.next_due_at.unwrap();
    let plan = due_plan(&recurrence, record.spec.misfire, due_at / 1000, now / 1000);
    let occurrence = |due: i64| NewOccurrence {
        due_at: due * 1000,
        free_at: due * 1000,
        status: OccurrenceStatus::Pending,
    };
    ScheduleAdvance {
        id: record.id,
        version: record.version,
        due_at,
        next_due_at: plan.next.map(|next| next * 1000),
        occurrences: plan.run.into_iter().map(occurrence).collect(),
    }
}

/// Moves a batch on; returns the plans.
async fn advance(bench: &StoreFixture, limit: u64) -> Vec<ScheduleAdvance> {
    let due = bench.agents().due_schedules(limit).await.unwrap();
    let advances: Vec<_> = due.records.iter().map(|one| plan(one, due.now)).collect();
    let (at, count) = (due.now, advances.len() as u64);
    let write = AdvanceSchedules {
        advances: advances.clone(),
        at,
    };
    assert_eq!(bench.write(write).await.unwrap(), count);
    advances
}

async fn claim(bench: &StoreFixture, limit: u64) -> Vec<ClaimedOccurrence> {
    let lease = Duration::from_mins(1);
    bench
        .write(ClaimOccurrences { limit, lease })
        .await
        .unwrap()
}

async fn record(bench: &StoreFixture, claimed: &[ClaimedOccurrence], result: &OccurrenceResult) {
    let tried = |one: &ClaimedOccurrence| TriedOccurrence {
        owner: one.owner.clone(),
        due_at: one.due_at,
        epoch: one.epoch,
        result: result.clone(),
    };
    let tries = claimed.iter().map(tried).collect();
    bench
        .write(RecordOccurrences { tries, at: 1 })
        .await
        .unwrap();
}

fn triggered() -> OccurrenceResult {
    OccurrenceResult::Triggered {
        run: None,
        reason: None,
    }
}

async fn moves_each_schedule_on_once(bench: StoreFixture) {
    let due_at = now(&bench).await / 1000 * 1000 - 5_000;
    insert(&bench, 3, due_at).await;
    let advances = advance(&bench, 10).await;
    assert!(
        advances
            .iter()
            .all(|one| one.next_due_at == Some(due_at + 3_600_000))
    );
    // The plan of another replica, which read the same rows.
    let late = AdvanceSchedules { advances, at: 1 };
    assert_eq!(bench.write(late).await.unwrap(), 0);
    assert!(
        bench
            .agents()
            .due_schedules(10)
            .await
            .unwrap()
            .records
            .is_empty()
    );
    assert_eq!(bench.agents().count_late_occurrences(10).await.unwrap(), 3);
}

async fn claims_each_occurrence_once(bench: StoreFixture) {
    let due_at = now(&bench).await / 1000 * 1000 - 5_000;
    insert(&bench, 20, due_at).await;
    advance(&bench, 20).await;
    let (one, other) = tokio::join!(claim(&bench, 12), claim(&bench, 12));
    let owners: BTreeSet<_> = one.iter().chain(&other).map(|one| &one.owner).collect();
    assert_eq!((owners.len(), one.len() + other.len()), (20, 20));
    assert!(!bench.agents().has_free_occurrence().await.unwrap());
    record(&bench, &one, &triggered()).await;
    let refused = OccurrenceResult::Refused {
        reason: "full".to_owned(),
        wait: Duration::ZERO,
    };
    record(&bench, &other, &refused).await;
    let again = claim(&bench, 20).await;
    assert_eq!(again.len(), other.len());
    assert!(again.iter().all(|one| one.tries == 2));
    record(&bench, &again, &triggered()).await;
    let id: ScheduleId = one[0].owner.parse().unwrap();
    let listed = bench.agents().newest_occurrences(id, 100).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].status, OccurrenceStatus::Triggered);
}

async fn stale_claim_records_nothing(bench: StoreFixture) {
    let due_at = now(&bench).await / 1000 * 1000 - 5_000;
    insert(&bench, 1, due_at).await;
    advance(&bench, 1).await;
    let stale = claim(&bench, 1).await;
    bench
        .tamper("UPDATE schedule_occurrences SET free_at = 0")
        .await;
    let current = claim(&bench, 1).await;
    let failed = OccurrenceResult::Failed {
        reason: "late".to_owned(),
    };
    record(&bench, &stale, &failed).await;
    let id: ScheduleId = current[0].owner.parse().unwrap();
    let status = async || {
        let listed = bench.agents().newest_occurrences(id, 1).await.unwrap();
        listed[0].status
    };
    assert_eq!(status().await, OccurrenceStatus::Pending);
    record(&bench, &current, &triggered()).await;
    assert_eq!(status().await, OccurrenceStatus::Triggered);
}

/// `RUNNEL_TEST_DUE_SCHEDULES` schedules that are due at once. 100,000 take less than a minute.
async fn claims_all_schedules_of_a_minute(bench: StoreFixture) {
    let count = variable("RUNNEL_TEST_DUE_SCHEDULES");
    let count = count.map_or(2_000, |count| count.parse().unwrap());
    let due_at = now(&bench).await / 1000 * 1000;
    insert(&bench, count, due_at).await;
    let begin = Instant::now();
    let mut advanced = 0;
    while advanced < count {
        // Inserting them may have taken longer than the misfire limit: their number is the same.
        advanced += advance(&bench, 1000).await.len();
    }
    let moved = begin.elapsed();
    let mut owners = BTreeSet::new();
    loop {
        let claimed = claim(&bench, 256).await;
        if claimed.is_empty() {
            break;
        }
        record(&bench, &claimed, &triggered()).await;
        for one in claimed {
            assert!(owners.insert(one.owner), "an occurrence was claimed twice");
        }
    }
    let total = begin.elapsed();
    assert_eq!(owners.len(), count);
    #[expect(clippy::print_stderr, reason = "reports the figures of a full run")]
    {
        eprintln!(
            "{count} schedules: moved on after {moved:?}, all claimed and recorded after {total:?}"
        );
    }
    assert!(total < Duration::from_mins(1), "{count} took {total:?}");
}
