//! Concurrent writes of two replicas to the same rows; the test acts as the second replica.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{
    LockHolder, StoreFixture, TestDatabase, TestEvent, busy, dispatch, new_run, plan_by,
    user_message,
};
use domain::run::Run;
use futures_util::future::join_all;
use protocol::admin::AgentSpec;
use protocol::id::{AgentId, RunId};
use protocol::principal::PrincipalKind;
use protocol::resources::StateScope;
use store::{
    Append, Appended, DatabaseCondition, Dispatched, Ingest, IngestPlan, Ingested, LeaseFilter,
    Promotion, RunnerStatus, SaveAgent, SavedAgent, StateAccess, StateWritten, Store, StoreError,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

/// Makes a test of each function, on `PostgreSQL` only: `SQLite` has one writer.
macro_rules! on_postgres {
    ($($name:ident),+ $(,)?) => {
        mod postgres {
            $(#[tokio::test] async fn $name() {
                if let Some(bench) = super::StoreFixture::postgres().await {
                    let database = bench.database.clone().unwrap();
                    super::$name(bench, database.clone()).await;
                    database.drop().await;
                }
            })+
        }
    };
}

on_postgres!(
    locks_runs_in_one_order,
    locks_conversations_in_event_order,
    locks_ended_and_queued_runs_in_order,
    locks_cancelled_runs_in_one_order,
    replicas_do_not_deadlock_on_shared_rows,
    locked_row_does_not_block_lease_renewal,
    renews_leases_of_locked_rows_after_unlock,
    locked_row_does_not_block_other_writes,
    many_locked_rows_do_not_block_writes,
    fails_write_to_locked_row,
    locked_conversation_does_not_block_other_events,
    reports_version_conflict_of_agents,
    keeps_runner_taken_by_another_endpoint,
    lock_timeout_is_no_outage,
    detects_takeover_after_lost_reply,
    appends_in_two_round_trips,
    stores_short_run_in_nine_round_trips,
    waits_for_free_server_connection,
);

/// Two running runs in these conversations, in order of creation.
async fn running(bench: &StoreFixture, conversations: [&str; 2]) -> [Run; 2] {
    let [a, b] = conversations;
    [start(bench, 1, a).await, start(bench, 2, b).await]
}

/// A running run in this conversation.
async fn start(bench: &StoreFixture, id: u128, conversation: &str) -> Run {
    let event = bench.event(conversation, "body");
    let mut identity = event.conversation.clone().unwrap();
    conversation.clone_into(&mut identity.conversation_id);
    let event = Ingest {
        conversation: Some(identity),
        // Later runs get smaller keys.
        new_conversation_key: Uuid::from_u128(u128::from(u64::MAX) - id),
        decide: plan_by(move |_| IngestPlan::Start {
            run: Box::new(new_run(RunId(Uuid::from_u128(id)))),
            attempt: None,
            message: None,
            answer: String::new(),
        }),
        ..event
    };
    let taken = bench.ingest(event).await.unwrap();
    assert!(matches!(taken, Ingested::Stored { .. }));
    let run = bench.run_of(conversation, conversation).await.unwrap();
    match bench.write(dispatch(&run)).await.unwrap() {
        Dispatched::Owned(run) => *run,
        Dispatched::Lost => panic!("nobody else has it"),
    }
}

/// Releases the writer when `count` items are queued.
async fn release_writer(bench: &StoreFixture, gate: &tokio::sync::Semaphore, count: usize) {
    while bench.queued_writes() < count {
        tokio::task::yield_now().await;
    }
    gate.add_permits(1);
}

fn hold_run(run: &Run) -> String {
    format!(
        "SELECT 1 FROM runs WHERE id = '{}' FOR NO KEY UPDATE NOWAIT",
        run.id
    )
}

async fn locks_runs_in_one_order(bench: StoreFixture, database: TestDatabase) {
    let [first, second] = running(&bench, ["a", "bb"]).await;
    let mut other = LockHolder::of(&database, &hold_run(&first)).await;
    let gate = busy(&bench).await;
    // One single item and one batch operation.
    let put = bench.write(bench.put(&second, "k", Some("1"), None));
    let append = bench.write(bench.append(&first, 0, &["one"]));
    let crossing = async {
        release_writer(&bench, &gate, 2).await;
        other.wait_until_blocking().await;
        let held = other.take(&hold_run(&second)).await;
        held.expect("who waits for the first has not taken the second");
        other.commit().await;
    };
    let (put, append, ()) = tokio::join!(put, append, crossing);
    put.unwrap();
    assert_eq!(append.unwrap(), Appended::Written { next: Vec::new() });
}

async fn locks_conversations_in_event_order(bench: StoreFixture, database: TestDatabase) {
    let runs = running(&bench, ["a", "bb"]).await;
    let hold = |conversation: &str| {
        format!(
            "SELECT 1 FROM conversations WHERE conversation_id = '{conversation}' \
             FOR NO KEY UPDATE NOWAIT"
        )
    };
    let mut other = LockHolder::of(&database, &hold("a")).await;
    let gate = busy(&bench).await;
    let ends = runs.iter().map(|run| {
        let promotion = Promotion {
            conversation_key: run.conversation_key.clone().unwrap(),
            promote_next: Arc::new(|_, _, _| None),
        };
        bench.write(Append {
            terminal: Some(bench.terminal(Some(promotion))),
            ..bench.append(run, 0, &["end"])
        })
    });
    let crossing = async {
        release_writer(&bench, &gate, 2).await;
        other.wait_until_blocking().await;
        let held = other.take(&hold("bb")).await;
        held.expect("who waits for the first has not taken the second");
        other.commit().await;
    };
    let (ended, ()) = tokio::join!(join_all(ends), crossing);
    for ended in ended {
        assert_eq!(ended.unwrap(), Appended::Written { next: Vec::new() });
    }
}

/// An event with this plan, in this conversation.
fn event_of(bench: &StoreFixture, conversation: &str, event: &str, plan: IngestPlan) -> TestEvent {
    let event = bench.event(event, "body");
    let mut identity = event.conversation.clone().unwrap();
    conversation.clone_into(&mut identity.conversation_id);
    let plan = Mutex::new(Some(plan));
    Ingest {
        conversation: Some(identity),
        decide: plan_by(move |_| plan.lock().unwrap().take().unwrap_or(IngestPlan::Refuse)),
        ..event
    }
}

fn queued(id: u128, cancel: Vec<RunId>) -> IngestPlan {
    IngestPlan::Queue {
        run: Box::new(new_run(RunId(Uuid::from_u128(id)))),
        message: None,
        cancel,
        answer: String::new(),
    }
}

async fn locks_ended_and_queued_runs_in_order(bench: StoreFixture, database: TestDatabase) {
    let run = start(&bench, 9, "a").await;
    let behind = event_of(&bench, "a", "behind", queued(5, Vec::new()));
    bench.ingest(behind).await.unwrap();
    let waiting = bench.run_of("a", "behind").await.unwrap();
    let mut other = LockHolder::of(&database, &hold_run(&waiting)).await;
    let promotion = Promotion {
        conversation_key: run.conversation_key.clone().unwrap(),
        promote_next: Arc::new(|_, _, _| None),
    };
    let end = bench.write(Append {
        terminal: Some(bench.terminal(Some(promotion))),
        ..bench.append(&run, 0, &["end"])
    });
    let crossing = async {
        other.wait_until_blocking().await;
        let held = other.take(&hold_run(&run)).await;
        held.expect("who waits for the first has not taken the second");
        other.commit().await;
    };
    let (ended, ()) = tokio::join!(end, crossing);
    let next = vec![waiting.id];
    assert_eq!(ended.unwrap(), Appended::Written { next });
}

async fn locks_cancelled_runs_in_one_order(bench: StoreFixture, database: TestDatabase) {
    let (first, second) = (start(&bench, 1, "bb").await, start(&bench, 2, "a").await);
    let mut other = LockHolder::of(&database, &hold_run(&first)).await;
    let gate = busy(&bench).await;
    // The later run first, because its event arrives first.
    let plans = [("a", 3, &second), ("bb", 4, &first)];
    let events = plans.map(|(conversation, id, run)| {
        let name = format!("after-{conversation}");
        let event = event_of(&bench, conversation, &name, queued(id, vec![run.id]));
        bench.ingest(event)
    });
    let crossing = async {
        release_writer(&bench, &gate, 2).await;
        other.wait_until_blocking().await;
        let held = other.take(&hold_run(&second)).await;
        held.expect("who waits for the first has not taken the second");
        other.commit().await;
    };
    let (taken, ()) = tokio::join!(join_all(events), crossing);
    for taken in taken {
        assert!(matches!(taken.unwrap(), Ingested::Stored { .. }));
    }
    for run in [first, second] {
        let found = bench.runs().find_run(&bench.workspace, run.id).await;
        assert!(found.unwrap().unwrap().cancel_requested_at.is_some());
    }
}

/// Two replicas repeatedly write the same keys of one scope in opposite orders.
async fn replicas_do_not_deadlock_on_shared_rows(bench: StoreFixture, database: TestDatabase) {
    const KEYS: u128 = 12;
    let mut runs = Vec::new();
    for id in 1..=2 * KEYS {
        runs.push(start(&bench, id, &format!("c-{id}")).await);
    }
    let (other, writer) = Store::open(&bench.url()).await.unwrap();
    let mut writers = JoinSet::new();
    writers.spawn(writer);
    let (ours, theirs) = runs.split_at(runs.len() / 2);
    for _ in 0..10 {
        let puts = ours.iter().zip(0..);
        let puts = puts.map(|(run, key)| (&bench.store, run, key));
        let others = theirs.iter().zip((0..KEYS).rev());
        let others = others.map(|(run, key)| (&other, run, key));
        let all = puts.chain(others).map(|(store, run, key)| {
            let put = bench.put(run, &format!("k-{key}"), Some("1"), None);
            store.write(put)
        });
        for written in join_all(all).await {
            assert!(matches!(written.unwrap(), StateWritten::Version(_)));
        }
    }
    other.close().await;
    writers.join_all().await;
    drop((other, bench));
    assert_eq!(database.deadlocks().await, 0);
}

/// Otherwise one locked row would cost all runs of a replica their leases.
async fn locked_row_does_not_block_lease_renewal(bench: StoreFixture, database: TestDatabase) {
    let [first, second] = running(&bench, ["a", "bb"]).await;
    let other = LockHolder::of(&database, &hold_run(&first)).await;
    let renew = || {
        let ids = vec![second.id, first.id];
        bench
            .leases()
            .renew_leases("me", ids, Duration::from_secs(30))
    };
    let renewed = renew().await.unwrap();
    assert!(renewed.held.keys().eq([&second.id]), "{renewed:?}");
    assert!(renewed.busy.iter().eq([&first.id]), "{renewed:?}");
    other.commit().await;
    let renewed = renew().await.unwrap();
    assert_eq!((renewed.held.len(), renewed.busy.len()), (2, 0));
    let lapsed = bench
        .leases()
        .expired_runs("you", LeaseFilter::Expired, 10)
        .await;
    assert!(lapsed.unwrap().is_empty());
}

/// On a slow database, results lock a run's row most of the time.
async fn renews_leases_of_locked_rows_after_unlock(bench: StoreFixture, database: TestDatabase) {
    let [first, second] = running(&bench, ["a", "bb"]).await;
    let mut other = LockHolder::of(&database, &hold_run(&first)).await;
    let keeper = bench.leases().lease_keeper().await.unwrap();
    let renewing = keeper.renew("me", vec![second.id, first.id], Duration::from_mins(10));
    let freeing = async {
        other.wait_until_blocking().await;
        other.commit().await;
    };
    let (renewed, ()) = tokio::join!(renewing, freeing);
    let renewed = renewed.unwrap();
    assert_eq!((renewed.held.len(), renewed.busy.len()), (2, 0));
}

/// Writes to the locked row wait in order; other writes are committed meanwhile.
async fn locked_row_does_not_block_other_writes(bench: StoreFixture, database: TestDatabase) {
    let [first, second] = running(&bench, ["a", "bb"]).await;
    let mut other = LockHolder::of(&database, &hold_run(&first)).await;
    let waits = AtomicBool::new(true);
    let held = async {
        let append = bench.write(bench.append(&first, 0, &["one"]));
        let put = bench.write(bench.put(&first, "k", Some("1"), None));
        let (append, put) = tokio::join!(append, put);
        waits.store(false, Ordering::Relaxed);
        (append, put)
    };
    let meanwhile = async {
        other.wait_until_blocking().await;
        for _ in 0..5 {
            let put = bench.write(bench.put(&second, "k", Some("1"), None));
            put.await.unwrap();
            assert!(waits.load(Ordering::Relaxed), "it is still locked");
        }
        other.commit().await;
    };
    let ((append, put), ()) = tokio::join!(held, meanwhile);
    assert_eq!(append.unwrap(), Appended::Written { next: Vec::new() });
    put.unwrap();
}

/// Other writes commit long before the first waiting one fails: lock waits do not add up.
async fn many_locked_rows_do_not_block_writes(bench: StoreFixture, database: TestDatabase) {
    const LOCKED: u128 = 24;
    let free = start(&bench, LOCKED + 1, "free").await;
    let mut locked = Vec::new();
    for id in 1..=LOCKED {
        locked.push(start(&bench, id, &format!("locked-{id}")).await);
    }
    let ids: Vec<_> = locked.iter().map(|run| format!("'{}'", run.id)).collect();
    let hold = format!(
        "SELECT 1 FROM runs WHERE id IN ({}) FOR NO KEY UPDATE NOWAIT",
        ids.join(", ")
    );
    let mut other = LockHolder::of(&database, &hold).await;
    let waits = AtomicBool::new(true);
    let held = async {
        let puts = locked.iter().map(|run| async {
            let put = bench.write(bench.put(run, "k", Some("1"), None)).await;
            waits.store(false, Ordering::Relaxed);
            put
        });
        join_all(puts).await
    };
    let meanwhile = async {
        other.wait_until_blocking().await;
        for _ in 0..5 {
            let put = bench.write(bench.put(&free, "k", Some("1"), None));
            put.await.unwrap();
            assert!(waits.load(Ordering::Relaxed), "all are still locked");
        }
        other.commit().await;
    };
    let (held, ()) = tokio::join!(held, meanwhile);
    for put in held {
        put.unwrap();
    }
}

/// In the same workspace, with a shared capacity.
async fn locked_conversation_does_not_block_other_events(
    bench: StoreFixture,
    database: TestDatabase,
) {
    running(&bench, ["a", "bb"]).await;
    let hold = "SELECT 1 FROM conversations WHERE conversation_id = 'a' FOR NO KEY UPDATE NOWAIT";
    let mut other = LockHolder::of(&database, hold).await;
    let post = |conversation: &'static str, event: &str| {
        let event = bench.event(event, "body");
        let mut identity = event.conversation.clone().unwrap();
        conversation.clone_into(&mut identity.conversation_id);
        bench.ingest(Ingest {
            conversation: Some(identity),
            decide: plan_by(|_| IngestPlan::Refuse),
            ..event
        })
    };
    let waits = AtomicBool::new(true);
    let held = async {
        let both = tokio::join!(post("a", "a-1"), post("a", "a-2"));
        waits.store(false, Ordering::Relaxed);
        both
    };
    let meanwhile = async {
        other.wait_until_blocking().await;
        for number in 0..5 {
            let refused = post("bb", &format!("b-{number}")).await;
            assert_eq!(refused.unwrap(), Ingested::Refused);
            assert!(waits.load(Ordering::Relaxed), "it is still locked");
        }
        other.commit().await;
    };
    let ((one, two), ()) = tokio::join!(held, meanwhile);
    assert_eq!(
        (one.unwrap(), two.unwrap()),
        (Ingested::Refused, Ingested::Refused)
    );
}

async fn fails_write_to_locked_row(bench: StoreFixture, database: TestDatabase) {
    let [first, _] = running(&bench, ["a", "bb"]).await;
    let other = LockHolder::of(&database, &hold_run(&first)).await;
    let append = || bench.write(bench.append(&first, 0, &["one"]));
    let given_up = append().await;
    assert!(matches!(given_up, Err(StoreError::Locked)), "{given_up:?}");
    other.commit().await;
    assert_eq!(
        append().await.unwrap(),
        Appended::Written { next: Vec::new() }
    );
}

async fn reports_version_conflict_of_agents(bench: StoreFixture, database: TestDatabase) {
    let spec = serde_json::json!({"name": "a", "event_types": ["*"], "runner_id": "plugin:a/b/c"});
    let spec: AgentSpec = serde_json::from_value(spec).unwrap();
    let id = AgentId(Uuid::now_v7());
    let workspace = bench.workspace.clone();
    let create = SaveAgent::Create {
        id,
        workspace: workspace.clone(),
        spec: spec.clone(),
        by: PrincipalKind::Gateway.into(),
        at: 1,
    };
    bench.write(create).await.unwrap();
    let if_match = Some(1);
    let delete = SaveAgent::Delete {
        id,
        workspace: workspace.clone(),
        if_match,
    };
    let update = SaveAgent::Update {
        id,
        workspace,
        spec,
        if_match,
        by: PrincipalKind::Gateway.into(),
        at: 2,
    };
    for (change, current) in [(update, 2), (delete, 3)] {
        let elsewhere = format!("UPDATE agents SET version = {current} WHERE id = '{id}'");
        let mut other = LockHolder::of(&database, &elsewhere).await;
        let changing = bench.write(change);
        let (changed, ()) = tokio::join!(changing, async {
            other.wait_until_blocking().await;
            other.commit().await;
        });
        assert_eq!(changed.unwrap(), SavedAgent::Mismatch(current));
    }
}

async fn keeps_runner_taken_by_another_endpoint(bench: StoreFixture, database: TestDatabase) {
    let [old, new] = [bench.endpoint("old").await, bench.endpoint("new").await];
    assert!(bench.discover(old, None).await.is_empty());
    let taken = format!("UPDATE runners SET endpoint_id = '{new}'");
    let mut other = LockHolder::of(&database, &taken).await;
    // The endpoint lists no runner.
    let refreshing = bench.write(bench.discovery(old, &[]));
    let (conflicts, ()) = tokio::join!(refreshing, async {
        other.wait_until_blocking().await;
        other.commit().await;
    });
    assert!(conflicts.unwrap().is_empty());
    let id = "plugin:a/b/c".parse().unwrap();
    let left = bench.endpoints().find_runner(&bench.workspace, &id).await;
    let left = left.unwrap().expect("it is not taken away");
    assert_eq!(
        (left.endpoint_id, left.status),
        (new, RunnerStatus::Accepted)
    );
}

async fn lock_timeout_is_no_outage(bench: StoreFixture, database: TestDatabase) {
    let [run, _] = running(&bench, ["a", "bb"]).await;
    // A transaction may be silent for one second.
    let opened = Store::open_for_leases(&bench.url(), Duration::from_secs(3)).await;
    let (store, writer) = opened.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(writer);
    let other = LockHolder::of(&database, &hold_run(&run)).await;
    let put = store.write(bench.put(&run, "k", Some("1"), None)).await;
    assert!(matches!(put, Err(StoreError::Locked)), "{put:?}");
    assert_eq!(store.condition().await, DatabaseCondition::Healthy);
    other.commit().await;
    let put = store.write(bench.put(&run, "k", Some("1"), None)).await;
    put.unwrap();
    store.close().await;
}

/// A proxy before a database. On request it drops the connection with the reply to the next commit.
struct LossyProxy {
    url: String,
    drops_reply: Arc<AtomicBool>,
    /// Number of accepted connections.
    accepted: watch::Receiver<usize>,
    round_trips: Arc<AtomicUsize>,
    _work: JoinSet<()>,
}

impl LossyProxy {
    async fn before(database: &TestDatabase) -> Self {
        Self::before_url(&database.url()).await
    }

    async fn before_url(url: &str) -> Self {
        let (rest, name) = url.rsplit_once('/').unwrap();
        let (scheme, authority) = rest.split_once("://").unwrap();
        let (user, server) = authority
            .rsplit_once('@')
            .unwrap_or(("postgres", authority));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap();
        let drops_reply = Arc::new(AtomicBool::new(false));
        let (server, drop_flag) = (server.to_owned(), Arc::clone(&drops_reply));
        let round_trips = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&round_trips);
        let (asking, accepted) = watch::channel(0);
        let mut work = JoinSet::new();
        work.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                asking.send_modify(|count| *count += 1);
                let server = TcpStream::connect(&server).await.unwrap();
                let counter = Arc::clone(&counter);
                connections.spawn(carry(client, server, Arc::clone(&drop_flag), counter));
            }
        });
        Self {
            url: format!("{scheme}://{user}@{here}/{name}?sslmode=disable"),
            drops_reply,
            accepted,
            round_trips,
            _work: work,
        }
    }
}

async fn carry(
    mut client: TcpStream,
    mut server: TcpStream,
    drops_reply: Arc<AtomicBool>,
    round_trips: Arc<AtomicUsize>,
) {
    let (mut request, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
    let (mut is_lost, mut is_answered) = (false, true);
    loop {
        let sent = tokio::select! {
            read = client.read(&mut request) => match read {
                Ok(read) if read > 0 => {
                    let request = &request[..read];
                    round_trips.fetch_add(usize::from(is_answered), Ordering::SeqCst);
                    is_answered = false;
                    let commits = request.windows(6).any(|word| word == b"COMMIT");
                    is_lost |= commits && drops_reply.swap(false, Ordering::SeqCst);
                    server.write_all(request).await
                }
                _ => return,
            },
            read = server.read(&mut answered) => match read {
                Ok(read) if read > 0 && !is_lost => {
                    is_answered = true;
                    client.write_all(&answered[..read]).await
                }
                _ => return,
            },
        };
        if sent.is_err() {
            return;
        }
    }
}

async fn detects_takeover_after_lost_reply(bench: StoreFixture, database: TestDatabase) {
    let runs = running(&bench, ["a", "bb"]).await;
    let between = LossyProxy::before(&database).await;
    let (store, writer) = Store::open(&between.url).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(writer);
    let hour = Duration::from_hours(1);

    between.drops_reply.store(true, Ordering::SeqCst);
    let ids = runs.iter().map(|run| run.id).collect();
    let taken = store
        .leases()
        .take_over_batch(ids, "you", hour, LeaseFilter::Expired)
        .await;
    let taken = taken.unwrap();
    assert!(!between.drops_reply.load(Ordering::SeqCst));
    let epochs: Vec<_> = taken.iter().map(|run| run.fencing_token).collect();
    assert_eq!(epochs, runs.map(|run| run.fencing_token + 1));

    between.drops_reply.store(true, Ordering::SeqCst);
    let epoch = store
        .leases()
        .take_over(&taken[0], "they", hour, LeaseFilter::All)
        .await;
    assert!(!between.drops_reply.load(Ordering::SeqCst));
    assert_eq!(epoch.unwrap(), Some(epochs[0] + 1));
    store.close().await;
}

async fn appends_in_two_round_trips(bench: StoreFixture, database: TestDatabase) {
    let [run, _] = running(&bench, ["a", "bb"]).await;
    let between = LossyProxy::before(&database).await;
    let (store, writer) = Store::open(&between.url).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(writer);
    // The first append prepares the statements.
    store.write(bench.append(&run, 0, &["one"])).await.unwrap();
    let before = between.round_trips.load(Ordering::SeqCst);
    store.write(bench.append(&run, 1, &["two"])).await.unwrap();
    let round_trips = between.round_trips.load(Ordering::SeqCst) - before;
    // The update of the run, then segment and commit. A slow machine may add the check of an idle session.
    assert!(round_trips <= 3, "{round_trips}");
    store.close().await;
}

/// An event of a conversation that dispatches its run, one append and the end.
async fn short_run(bench: &StoreFixture, store: &Store, event_id: &str) {
    let id = RunId(Uuid::now_v7());
    let mut event = bench.event(event_id, "body");
    event.decide = plan_by(move |_| IngestPlan::Start {
        run: Box::new(new_run(id)),
        attempt: None,
        message: Some(user_message(Uuid::now_v7())),
        answer: String::new(),
    });
    event.decide.context_scopes = Some(vec![StateAccess {
        scope: StateScope::Runner,
        identity: "r".to_owned(),
    }]);
    store.events().ingest(event).await.ingested.unwrap();
    let run = bench.runs().find_run(&bench.workspace, id).await;
    let run = run.unwrap().unwrap();
    store.write(bench.append(&run, 0, &["one"])).await.unwrap();
    let promotion = Promotion {
        conversation_key: run.conversation_key.clone().unwrap(),
        promote_next: Arc::new(|_, _, _| None),
    };
    let end = Append {
        terminal: Some(bench.terminal(Some(promotion))),
        ..bench.append(&run, 1, &["two"])
    };
    store.write(end).await.unwrap();
}

async fn stores_short_run_in_nine_round_trips(bench: StoreFixture, database: TestDatabase) {
    let between = LossyProxy::before(&database).await;
    let (store, writer) = Store::open(&between.url).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(writer);
    // The first run prepares the statements.
    short_run(&bench, &store, "e-1").await;
    let before = between.round_trips.load(Ordering::SeqCst);
    short_run(&bench, &store, "e-2").await;
    let round_trips = between.round_trips.load(Ordering::SeqCst) - before;
    // Event: reads without locks, reads under locks, state, writes. Append: update, writes. End: reads under locks,
    // update, writes. A slow machine may add checks of an idle session.
    assert!(round_trips <= 11, "{round_trips}");
    store.close().await;
}

/// A replica that starts on a server without free connections.
async fn waits_for_free_server_connection(bench: StoreFixture, database: TestDatabase) {
    let role = format!("runnel_store_{}", Uuid::now_v7().simple());
    let mut admin = LockHolder::of(&database, "SELECT 1").await;
    for sql in [
        "COMMIT".to_owned(),
        format!("CREATE ROLE {role} LOGIN PASSWORD 'secret' CONNECTION LIMIT 0"),
        format!("GRANT ALL ON SCHEMA public TO {role}"),
        format!("GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}"),
    ] {
        admin.take(&sql).await.unwrap();
    }
    let url = database.url();
    let (_, authority) = url.rsplit_once('@').unwrap();
    let mut between =
        LossyProxy::before_url(&format!("postgres://{role}:secret@{authority}")).await;

    let url = between.url.clone();
    let mut opening = JoinSet::new();
    opening.spawn(async move { Store::open(&url).await.map(drop) });
    // A second attempt proves that the first one was refused.
    between
        .accepted
        .wait_for(|accepted| *accepted > 1)
        .await
        .unwrap();
    let more = format!("ALTER ROLE {role} CONNECTION LIMIT 20");
    admin.take(&more).await.unwrap();
    opening.join_next().await.unwrap().unwrap().unwrap();

    for sql in ["DROP OWNED BY", "DROP ROLE"] {
        admin.take(&format!("{sql} {role}")).await.unwrap();
    }
    drop(bench);
}
