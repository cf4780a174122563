//! The writer: order of items, and recovery from failures.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{StoreFixture, audit, busy, on_both};
use futures_util::future::join_all;
use protocol::resources::StorageArea;
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, Statement};
use sqlx::{Connection, PgConnection};
use store::writer::Mutation;
use store::{
    AreaAccess, DatabaseCondition, FinishUpload, Ingest, Ingested, Quota, Store, StoreError,
    UploadStep,
};
use tokio::task::JoinSet;
use uuid::Uuid;

on_both!(
    urgent_write_skips_the_queue,
    writer_survives_panic_outside_items,
    keeps_background_writes_during_outage,
    concurrent_blobs_share_a_commit,
    slow_batch_is_split_for_leases,
    lease_renewal_overtakes_locking_items,
    lease_renewal_overtakes_single_items,
    retries_batch_after_deadlock,
    other_items_do_not_extend_ingest_locks,
);

type Log = Arc<Mutex<Vec<&'static str>>>;

struct Usual(Log);

impl Mutation for Usual {
    type Output = ();

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        self.0.lock().unwrap().push("usual");
        Ok(())
    }
}

struct Urgent(Log);

impl Mutation for Urgent {
    type Output = ();
    const URGENT: bool = true;

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        self.0.lock().unwrap().push("urgent");
        Ok(())
    }
}

async fn urgent_write_skips_the_queue(bench: StoreFixture) {
    let gate = busy(&bench).await;
    let log = Log::default();
    for _ in 0..600 {
        bench.write_later(Usual(log.clone())).await.unwrap();
    }
    bench.write_later(Urgent(log.clone())).await.unwrap();
    gate.add_permits(1);
    bench.write(Usual(log.clone())).await.unwrap();
    let log = log.lock().unwrap();
    assert_eq!((log.len(), log[0]), (602, "urgent"));
}

struct PanickingOrder;

impl Mutation for PanickingOrder {
    type Output = ();

    fn order(&self) -> Uuid {
        panic!("as a bug of ours would")
    }

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        Ok(())
    }
}

async fn writer_survives_panic_outside_items(bench: StoreFixture) {
    let gate = busy(&bench).await;
    let log = Log::default();
    bench.write_later(Usual(log.clone())).await.unwrap();
    let (outcome, ()) = tokio::join!(bench.write(PanickingOrder), async {
        gate.add_permits(1);
    });
    assert!(matches!(outcome, Err(StoreError::Panicked)), "{outcome:?}");
    assert_eq!(bench.condition().await, DatabaseCondition::Healthy);
    bench.write(Usual(log.clone())).await.unwrap();
    assert_eq!(log.lock().unwrap().len(), 1);
}

/// Fails `times` times like a lost database.
struct FailingWrite {
    times: AtomicUsize,
    log: Log,
}

impl Mutation for FailingWrite {
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

async fn keeps_background_writes_during_outage(bench: StoreFixture) {
    let log = Log::default();
    let failing = |times| FailingWrite {
        times: AtomicUsize::new(times),
        log: log.clone(),
    };
    let awaited = bench.write(failing(1)).await;
    assert!(matches!(awaited, Err(StoreError::Unreachable)));
    bench.write_later(failing(2)).await.unwrap();
    while log.lock().unwrap().iter().all(|entry| *entry != "failing") {
        let _ = bench.write(Usual(log.clone())).await;
    }
    bench.write(Usual(log.clone())).await.unwrap();
    let done = log.lock().unwrap();
    assert_eq!(done.iter().filter(|entry| **entry == "failing").count(), 1);
}

/// As slow as on a slow database.
struct Slow(Log);

impl Mutation for Slow {
    type Output = ();

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        // Simulates a slow statement; the duration is what is tested.
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.0.lock().unwrap().push("slow");
        Ok(())
    }
}

async fn slow_batch_is_split_for_leases(bench: StoreFixture) {
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

impl Mutation for Poison {
    type Output = ();

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        Err(StoreError::Panicked)
    }
}

async fn lease_renewal_overtakes_single_items(bench: StoreFixture) {
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
struct DeadlockLoser {
    has_lost: AtomicUsize,
    transactions: Arc<Mutex<Vec<i64>>>,
}

impl Mutation for DeadlockLoser {
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

async fn retries_batch_after_deadlock(bench: StoreFixture) {
    if bench.database.is_none() {
        return;
    }
    let gate = busy(&bench).await;
    let transactions = Arc::new(Mutex::new(Vec::new()));
    let writes = [1, 1, 0].map(|times| {
        bench.write(DeadlockLoser {
            has_lost: AtomicUsize::new(times),
            transactions: Arc::clone(&transactions),
        })
    });
    let releasing = async {
        while bench.queued_writes() < 3 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(1);
    };
    let (written, ()) = tokio::join!(join_all(writes), releasing);
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    let transactions = transactions.lock().unwrap();
    let [first, second, again @ ..] = transactions.as_slice() else {
        panic!("{transactions:?}");
    };
    assert_eq!(first, second);
    assert!(again.len() == 3 && again.iter().all(|one| *one == again[0]));
}

async fn other_items_do_not_extend_ingest_locks(bench: StoreFixture) {
    let gate = busy(&bench).await;
    let event = Ingest {
        // A low limit, so replicas lock the capacity.
        max_live_runs: Some(4),
        ..bench.event("e-1", "body")
    };
    let releasing = async {
        while bench.queued_writes() < 2 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(1);
    };
    let both = async { tokio::join!(bench.ingest(event), busy(&bench), releasing) };
    let both = tokio::time::timeout(Duration::from_secs(10), both).await;
    let (taken, gate, ()) = both.expect("the event is taken while the other is at work");
    assert!(matches!(taken, Ok(Ingested::Stored { .. })), "{taken:?}");
    gate.add_permits(1);
}

/// Queues a lease renewal during its transaction.
struct Overtaken(Log, Store);

impl Mutation for Overtaken {
    type Output = ();

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        self.0.lock().unwrap().push("usual");
        self.1.write_later(Urgent(self.0.clone())).await
    }
}

struct Locking(Log);

impl Mutation for Locking {
    type Output = ();

    fn lock(&self) -> Option<String> {
        Some("a lock of many".to_owned())
    }

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        self.0.lock().unwrap().push("locking");
        Ok(())
    }
}

async fn lease_renewal_overtakes_locking_items(bench: StoreFixture) {
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

async fn concurrent_blobs_share_a_commit(bench: StoreFixture) {
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
    while bench.queued_writes() < 20 {
        tokio::task::yield_now().await;
    }
    gate.add_permits(1);
    while let Some(written) = writing.join_next().await {
        assert_eq!(written.unwrap(), UploadStep::Written);
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
