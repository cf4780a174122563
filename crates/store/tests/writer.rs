//! The writer: order of items, and recovery from failures.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Bench, audit, busy, on_both};
use futures_util::future::join_all;
use protocol::resources::StorageArea;
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, Statement};
use sqlx::{Connection, PgConnection};
use store::writer::Work;
use store::{
    AreaAccess, Condition, FinishUpload, Ingest, Ingested, Quota, Store, StoreError, Uploaded,
};
use tokio::task::JoinSet;
use uuid::Uuid;

on_both!(
    an_urgent_write_passes_all_that_waits,
    a_panic_outside_of_all_items_costs_its_batch_and_not_the_writer,
    what_nobody_waits_for_is_kept_while_the_database_is_away,
    blobs_that_come_together_share_a_commit,
    what_takes_too_long_together_is_done_one_after_the_other,
    what_takes_locks_lets_leases_pass,
    what_is_done_one_by_one_lets_leases_pass,
    what_lost_against_another_writer_is_done_together_once_more,
    what_comes_with_an_event_does_not_hold_its_locks,
);

type Log = Arc<Mutex<Vec<&'static str>>>;

struct Usual(Log);

impl Work for Usual {
    type Output = ();

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        self.0.lock().unwrap().push("usual");
        Ok(())
    }
}

struct Urgent(Log);

impl Work for Urgent {
    type Output = ();
    const URGENT: bool = true;

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        self.0.lock().unwrap().push("urgent");
        Ok(())
    }
}

async fn an_urgent_write_passes_all_that_waits(bench: Bench) {
    let gate = busy(&bench).await;
    let log = Log::default();
    for _ in 0..600 {
        bench.store.write_later(Usual(log.clone())).await.unwrap();
    }
    bench.store.write_later(Urgent(log.clone())).await.unwrap();
    gate.add_permits(1);
    bench.store.write(Usual(log.clone())).await.unwrap();
    let log = log.lock().unwrap();
    assert_eq!((log.len(), log[0]), (602, "urgent"));
}

struct Bent;

impl Work for Bent {
    type Output = ();

    fn order(&self) -> Uuid {
        panic!("as a bug of ours would")
    }

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        Ok(())
    }
}

async fn a_panic_outside_of_all_items_costs_its_batch_and_not_the_writer(bench: Bench) {
    let gate = busy(&bench).await;
    let log = Log::default();
    bench.store.write_later(Usual(log.clone())).await.unwrap();
    let (bent, ()) = tokio::join!(bench.store.write(Bent), async { gate.add_permits(1) });
    assert!(matches!(bent, Err(StoreError::Panicked)), "{bent:?}");
    assert_eq!(bench.store.condition().await, Condition::Sound);
    bench.store.write(Usual(log.clone())).await.unwrap();
    assert_eq!(log.lock().unwrap().len(), 1);
}

/// Fails `times` times like a lost database.
struct Failing {
    times: AtomicUsize,
    log: Log,
}

impl Work for Failing {
    type Output = ();

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let is_away = |left: usize| left.checked_sub(1);
        let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
        if self.times.fetch_update(set, get, is_away).is_ok() {
            return Err(StoreError::Unreachable);
        }
        self.log.lock().unwrap().push("failing");
        Ok(())
    }
}

async fn what_nobody_waits_for_is_kept_while_the_database_is_away(bench: Bench) {
    let log = Log::default();
    let failing = |times| Failing {
        times: AtomicUsize::new(times),
        log: log.clone(),
    };
    let awaited = bench.store.write(failing(1)).await;
    assert!(matches!(awaited, Err(StoreError::Unreachable)));
    bench.store.write_later(failing(2)).await.unwrap();
    while log.lock().unwrap().iter().all(|entry| *entry != "failing") {
        let _ = bench.store.write(Usual(log.clone())).await;
    }
    bench.store.write(Usual(log.clone())).await.unwrap();
    let done = log.lock().unwrap();
    assert_eq!(done.iter().filter(|entry| **entry == "failing").count(), 1);
}

/// As slow as on a slow database.
struct Slow(Log);

impl Work for Slow {
    type Output = ();

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        // Simulates a slow statement; the duration is what is tested.
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.0.lock().unwrap().push("slow");
        Ok(())
    }
}

async fn what_takes_too_long_together_is_done_one_after_the_other(bench: Bench) {
    // A transaction may be silent for one second.
    let opened = Store::open_for_leases(&bench.url(), Duration::from_secs(3)).await;
    let (store, writer) = opened.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(writer);
    let log = Log::default();
    let slow = (0..7).map(|_| store.write(Slow(log.clone())));
    let urgent = async {
        while log.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
        store.write(Urgent(log.clone())).await.unwrap();
    };
    let (slow, ()) = tokio::join!(join_all(slow), urgent);
    for one in slow {
        one.unwrap();
    }
    store.close().await;
    let log = log.lock().unwrap();
    assert_eq!(log.len(), 8, "{log:?}");
    let passed = log.iter().position(|entry| *entry == "urgent").unwrap();
    assert!(passed < 6, "a lease is renewed in between: {log:?}");
}

/// Fails its batch each time.
struct Poison;

impl Work for Poison {
    type Output = ();

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        Err(StoreError::Panicked)
    }
}

async fn what_is_done_one_by_one_lets_leases_pass(bench: Bench) {
    // The limit for single items is a sixth of a second.
    let opened = Store::open_for_leases(&bench.url(), Duration::from_secs(3)).await;
    let (store, writer) = opened.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(writer);
    let log = Log::default();
    // First in each batch, so every batch fails.
    let poison = (0..3).map(|_| store.write(Poison));
    let slow = (0..5).map(|_| store.write(Slow(log.clone())));
    let urgent = async {
        while log.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        store.write(Urgent(log.clone())).await.unwrap();
    };
    let (poison, slow, ()) = tokio::join!(join_all(poison), join_all(slow), urgent);
    assert!(poison.iter().all(Result::is_err), "{poison:?}");
    assert!(slow.iter().all(Result::is_ok), "{slow:?}");
    store.close().await;
    let log = log.lock().unwrap();
    assert_eq!(log.len(), 6, "each is done once: {log:?}");
    let passed = log.iter().position(|entry| *entry == "urgent").unwrap();
    assert!(passed < 3, "a lease is renewed in between: {log:?}");
}

/// Records its transaction. One of them loses a deadlock on its first try.
struct Losing {
    has_lost: AtomicUsize,
    transactions: Arc<Mutex<Vec<i64>>>,
}

impl Work for Losing {
    type Output = ();

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let lose = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$";
        if self.has_lost.fetch_add(1, Ordering::SeqCst) == 0 {
            tx.execute_unprepared(lose).await?;
        }
        let own = "SELECT CAST(pg_current_xact_id()::text AS BIGINT) AS own";
        let own = Statement::from_string(DbBackend::Postgres, own);
        let row = tx.query_one_raw(own).await?.unwrap();
        let own = row.try_get("", "own")?;
        self.transactions.lock().unwrap().push(own);
        Ok(())
    }
}

async fn what_lost_against_another_writer_is_done_together_once_more(bench: Bench) {
    if bench.database.is_none() {
        return;
    }
    let gate = busy(&bench).await;
    let transactions = Arc::new(Mutex::new(Vec::new()));
    let writes = [1, 1, 0].map(|times| {
        bench.store.write(Losing {
            has_lost: AtomicUsize::new(times),
            transactions: Arc::clone(&transactions),
        })
    });
    let letting_go = async {
        while bench.store.queued_writes() < 3 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(1);
    };
    let (written, ()) = tokio::join!(join_all(writes), letting_go);
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    let transactions = transactions.lock().unwrap();
    let [first, second, again @ ..] = transactions.as_slice() else {
        panic!("{transactions:?}");
    };
    assert_eq!(first, second);
    assert!(again.len() == 3 && again.iter().all(|one| *one == again[0]));
}

async fn what_comes_with_an_event_does_not_hold_its_locks(bench: Bench) {
    let gate = busy(&bench).await;
    let event = Ingest {
        // A low limit, so replicas lock the capacity.
        most_runs: Some(4),
        ..bench.event("e-1", "body")
    };
    let letting_go = async {
        while bench.store.queued_writes() < 2 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(1);
    };
    let both = async { tokio::join!(bench.store.ingest(event), busy(&bench), letting_go) };
    let both = tokio::time::timeout(Duration::from_secs(10), both).await;
    let (taken, gate, ()) = both.expect("the event is taken while the other is at work");
    assert!(matches!(taken, Ok(Ingested::Stored { .. })), "{taken:?}");
    gate.add_permits(1);
}

/// Queues a lease renewal during its transaction.
struct Overtaken(Log, Store);

impl Work for Overtaken {
    type Output = ();

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        self.0.lock().unwrap().push("usual");
        self.1.write_later(Urgent(self.0.clone())).await
    }
}

struct Locking(Log);

impl Work for Locking {
    type Output = ();

    fn lock(&self) -> Option<String> {
        Some("a lock of many".to_owned())
    }

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        self.0.lock().unwrap().push("locking");
        Ok(())
    }
}

async fn what_takes_locks_lets_leases_pass(bench: Bench) {
    let gate = busy(&bench).await;
    let log = Log::default();
    let store = &bench.store;
    store.write_later(Locking(log.clone())).await.unwrap();
    let overtaken = Overtaken(log.clone(), store.clone());
    store.write_later(overtaken).await.unwrap();
    gate.add_permits(1);
    while log.lock().unwrap().len() < 3 {
        tokio::task::yield_now().await;
    }
    // SQLite has one writer and no locks: one transaction for all.
    let wanted = if bench.database.is_some() {
        ["usual", "urgent", "locking"]
    } else {
        ["locking", "usual", "urgent"]
    };
    assert_eq!(*log.lock().unwrap(), wanted);
}

async fn blobs_that_come_together_share_a_commit(bench: Bench) {
    let run = bench.running("e-1").await;
    let gate = busy(&bench).await;
    let mut writing = JoinSet::new();
    for n in 0..20 {
        let finish = FinishUpload {
            condition: None,
            run_id: run.id,
            access: AreaAccess {
                workspace: bench.workspace.clone(),
                area: StorageArea::Plugin,
                owner: format!("owner-{}", n % 3),
            },
            quota: Quota {
                bytes: 1_000,
                keys: 100,
            },
            key: format!("k-{n}"),
            content_id: Uuid::now_v7(),
            last: 0,
            bytes: vec![7; 10],
            size: 10,
            sha256: String::new(),
            content_type: "a/b".to_owned(),
            audit: audit(Uuid::now_v7()),
            at: 1_000,
        };
        let store = bench.store.clone();
        writing.spawn(async move { store.write(finish).await.unwrap() });
    }
    while bench.store.queued_writes() < 20 {
        tokio::task::yield_now().await;
    }
    gate.add_permits(1);
    while let Some(written) = writing.join_next().await {
        assert_eq!(written.unwrap(), Uploaded::Written);
    }
    if let Some(database) = &bench.database {
        let mut connection = PgConnection::connect(&database.url()).await.unwrap();
        let commits = "SELECT COUNT(DISTINCT xmin::text) FROM storage_blobs";
        let commits: i64 = sqlx::query_scalar(commits)
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(commits, 1);
    }
}
