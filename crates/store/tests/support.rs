//! Test fixtures: a store on its own database, and initial rows.
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use domain::event::ConversationIdentity;
use domain::run::Run;
use futures_util::future::join_all;
use protocol::admin::{DeltaMode, EndpointMode};
use protocol::id::{AgentId, EndpointId, RunId, RunnerId, WorkspaceId};
use protocol::principal::{Principal, PrincipalKind};
use protocol::resources::StateScope;
use protocol::run::RunStatus;
use sea_orm::DatabaseTransaction;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use store::writer::Mutation;
use store::{
    Append, Appended, AuditEntry, CancelCause, ConversationsOf, DecideEvent, DecisionFacts,
    Dispatch, DispatchPurpose, Dispatched, DocumentParts, EndpointRecord, EventActor,
    EventDecision, FirstAttempt, FoundRunner, Ingest, IngestPlan, Ingested, NewRun, Promotion,
    RunEnd, RunFilter, RunWindow, SaveDiscovery, SaveEndpoint, ScopeState, SharedParts,
    StateAccess, StateChange, Store, StoreError, UserMessage,
};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use uuid::Uuid;

/// The agent of all test runs.
pub(crate) const AGENT: AgentId = AgentId(Uuid::nil());

/// Makes a test of each function, once per database.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test] async fn $name() { super::$name(super::StoreFixture::sqlite().await).await; })+
        }
        mod postgres {
            $(#[tokio::test] async fn $name() {
                if let Some(bench) = super::StoreFixture::postgres().await {
                    let database = bench.database.clone();
                    super::$name(bench).await;
                    database.unwrap().drop().await;
                }
            })+
        }
    };
}
pub(crate) use on_both;

pub(crate) struct StoreFixture {
    pub(crate) store: Store,
    pub(crate) workspace: WorkspaceId,
    pub(crate) database: Option<TestDatabase>,
    file: Option<String>,
    _writer: JoinSet<()>,
}

/// A decision by a closure.
#[derive(Clone)]
pub(crate) struct PlanBy {
    plan: Arc<dyn Fn(&DecisionFacts) -> IngestPlan + Send + Sync>,
    /// Set: the commit of the event dispatches its run.
    pub(crate) context_scopes: Option<Vec<StateAccess>>,
}

pub(crate) type TestEvent = Ingest<PlanBy>;

pub(crate) fn plan_by(
    plan: impl Fn(&DecisionFacts) -> IngestPlan + Send + Sync + 'static,
) -> PlanBy {
    PlanBy {
        plan: Arc::new(plan),
        context_scopes: None,
    }
}

impl PlanBy {
    pub(crate) fn plan(&self, facts: &DecisionFacts) -> IngestPlan {
        (self.plan)(facts)
    }
}

impl DecideEvent for PlanBy {
    type Effects = ();

    fn decide(&self, facts: &DecisionFacts) -> EventDecision<()> {
        EventDecision {
            plan: self.plan(facts),
            effects: (),
            context_scopes: self.context_scopes.clone(),
        }
    }

    fn dispatch(&self, (): &mut (), _: &[ScopeState]) -> Option<FirstAttempt> {
        Some(FirstAttempt {
            owner: "me".to_owned(),
            lease: Duration::from_mins(1),
            context: SharedParts::default().apart("null"),
        })
    }
}

impl Deref for StoreFixture {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Drop for StoreFixture {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm"] {
            if let Some(file) = &self.file {
                let _ = std::fs::remove_file(format!("{file}{end}"));
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "tests read their own variables")]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A PostgreSQL database of one test.
#[derive(Clone)]
pub(crate) struct TestDatabase {
    server: String,
    name: String,
}

impl TestDatabase {
    pub(crate) fn url(&self) -> String {
        let (server, _) = self.server.rsplit_once('/').unwrap();
        format!("{server}/{}", self.name)
    }

    /// Number of deadlocks. Waits until all connections have ended, because the server counts then.
    pub(crate) async fn deadlocks(&self) -> i64 {
        let mut admin = PgConnection::connect(&self.server).await.unwrap();
        let mut ask = async |sql: &str| -> i64 {
            let query = sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).bind(&self.name);
            query.fetch_one(&mut admin).await.unwrap()
        };
        while ask("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = $1").await > 0 {
            tokio::task::yield_now().await;
        }
        ask("SELECT deadlocks FROM pg_stat_database WHERE datname = $1").await
    }

    pub(crate) async fn drop(self) {
        let mut admin = PgConnection::connect(&self.server).await.unwrap();
        let drop = AssertSqlSafe(format!("DROP DATABASE {} WITH (FORCE)", self.name));
        sqlx::raw_sql(drop).execute(&mut admin).await.unwrap();
    }
}

/// `None` without a server, with a message.
pub(crate) async fn create_database() -> Option<TestDatabase> {
    let Some(server) = variable("RUNNEL_TEST_POSTGRES_URL") else {
        let demanded = variable("RUNNEL_TEST_REQUIRE").unwrap_or_default();
        assert!(
            !demanded.contains("postgres"),
            "RUNNEL_TEST_POSTGRES_URL is not set"
        );
        #[expect(clippy::print_stderr, reason = "reports a skipped test")]
        {
            eprintln!("SKIPPED (no RUNNEL_TEST_POSTGRES_URL)");
        }
        return None;
    };
    let name = format!("runnel_store_{}", Uuid::now_v7().simple());
    let mut admin = PgConnection::connect(&server).await.unwrap();
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    sqlx::raw_sql(create).execute(&mut admin).await.unwrap();
    Some(TestDatabase { server, name })
}

/// xorshift: deterministic random numbers.
pub(crate) struct TestRng(pub(crate) u64);

impl TestRng {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Blocks the writer until released, so that later writes share a batch.
struct WriterGate {
    is_blocked: Arc<Semaphore>,
    release: Arc<Semaphore>,
}

impl Mutation for WriterGate {
    type Output = ();

    async fn apply(&self, _tx: &DatabaseTransaction) -> Result<(), StoreError> {
        self.is_blocked.add_permits(1);
        self.release.acquire().await.unwrap().forget();
        Ok(())
    }
}

/// Blocks the writer; the semaphore releases it. Writes from now on share the next batch.
pub(crate) async fn busy(bench: &StoreFixture) -> Arc<Semaphore> {
    let [is_blocked, release] = [0, 0].map(|permits| Arc::new(Semaphore::new(permits)));
    let gate = WriterGate {
        is_blocked: Arc::clone(&is_blocked),
        release: Arc::clone(&release),
    };
    bench.write_later(gate).await.unwrap();
    is_blocked.acquire().await.unwrap().forget();
    release
}

/// Runs all work in one batch.
pub(crate) async fn together<T>(
    bench: &StoreFixture,
    work: impl IntoIterator<Item = impl Future<Output = T>>,
) -> Vec<T> {
    let gate = busy(bench).await;
    let work: Vec<_> = work.into_iter().collect();
    let count = work.len();
    let releasing = async {
        while bench.queued_writes() < count {
            tokio::task::yield_now().await;
        }
        gate.add_permits(1);
    };
    tokio::join!(join_all(work), releasing).0
}

/// Another replica that holds row locks.
pub(crate) struct LockHolder(PgConnection);

impl LockHolder {
    /// Begins a transaction that holds the locks of `sql`.
    pub(crate) async fn of(database: &TestDatabase, sql: &str) -> Self {
        let mut holder = Self(PgConnection::connect(&database.url()).await.unwrap());
        holder.take("BEGIN").await.unwrap();
        holder.take(sql).await.unwrap();
        holder
    }

    pub(crate) async fn take(&mut self, sql: &str) -> Result<(), sqlx::Error> {
        let sql = AssertSqlSafe(sql.to_owned());
        sqlx::raw_sql(sql).execute(&mut self.0).await.map(drop)
    }

    /// Waits until a session is blocked by this one.
    pub(crate) async fn wait_until_blocking(&mut self) {
        // Not `pg_stat_activity`, which shows a snapshot per transaction.
        let waiting = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted \
            AND pg_backend_pid() = ANY (pg_blocking_pids(pid))";
        let mut count = 0_i64;
        while count == 0 {
            tokio::task::yield_now().await;
            count = sqlx::query_scalar(waiting)
                .fetch_one(&mut self.0)
                .await
                .unwrap();
        }
    }

    pub(crate) async fn commit(mut self) {
        self.take("COMMIT").await.unwrap();
    }
}

/// A cancel request of the gateway itself, without a reason.
pub(crate) fn cancel_request() -> CancelCause {
    Principal::from(PrincipalKind::Gateway).into()
}

pub(crate) fn audit(id: Uuid) -> AuditEntry {
    AuditEntry {
        id,
        workspace: WorkspaceId("default".to_owned()),
        run_id: RunId(Uuid::nil()),
        action: "state_set",
        resource: "conversation".to_owned(),
        operation: "state",
        allowed: true,
        rule: "".into(),
        interaction_id: None,
        bytes: 1,
        at: 1,
        is_shared: false,
    }
}

/// A new file in the test directory of the build.
pub(crate) fn sqlite_url() -> String {
    format!(
        "sqlite://{}/store-{}.db",
        env!("CARGO_TARGET_TMPDIR"),
        Uuid::now_v7()
    )
}

impl StoreFixture {
    pub(crate) async fn open(url: &str, database: Option<TestDatabase>) -> Self {
        let (store, writer) = Store::open(url).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(writer);
        Self {
            store,
            workspace: WorkspaceId("default".to_owned()),
            database,
            file: None,
            _writer: tasks,
        }
    }

    pub(crate) async fn sqlite() -> Self {
        let url = sqlite_url();
        let mut bench = Self::open(&url, None).await;
        bench.file = url.strip_prefix("sqlite://").map(str::to_owned);
        bench
    }

    /// On a file in memory where possible, for long tests without disk requirements.
    pub(crate) async fn fast() -> Self {
        let memory = std::path::Path::new("/dev/shm");
        let directory = if memory.is_dir() {
            "/dev/shm"
        } else {
            env!("CARGO_TARGET_TMPDIR")
        };
        let file = format!("{directory}/runnel-{}.db", Uuid::now_v7());
        let mut bench = Self::open(&format!("sqlite://{file}"), None).await;
        bench.file = Some(file);
        bench
    }

    /// `None` without a server, with a message.
    pub(crate) async fn postgres() -> Option<Self> {
        let database = create_database().await?;
        let url = database.url();
        Some(Self::open(&url, Some(database)).await)
    }

    pub(crate) fn url(&self) -> String {
        match (&self.database, &self.file) {
            (Some(database), _) => database.url(),
            (None, file) => format!("sqlite://{}", file.as_deref().unwrap()),
        }
    }

    /// Executes SQL that no gateway issues.
    pub(crate) async fn tamper(&self, sql: &str) {
        let url = self.url();
        let database = sea_orm::Database::connect(url).await.unwrap();
        sea_orm::ConnectionTrait::execute_unprepared(&database, sql)
            .await
            .unwrap();
        database.close().await.unwrap();
    }

    /// An event that always starts a run; its answer is its id.
    pub(crate) fn event(&self, id: &str, body: &str) -> TestEvent {
        let answer = id.to_owned();
        let run_id = RunId(Uuid::now_v7());
        let message_id = Uuid::now_v7();
        Ingest {
            workspace: self.workspace.clone(),
            event_id: id.to_owned(),
            dedupe_key: format!("event:{id}"),
            body_sha256: body.to_owned(),
            event_type: "message.received".to_owned(),
            source: "api".to_owned(),
            bot_id: None,
            conversation: Some(ConversationIdentity {
                bot_id: String::new(),
                conversation_id: "c".to_owned(),
                thread_id: String::new(),
            }),
            new_conversation_key: Uuid::now_v7(),
            envelope: "{}".to_owned(),
            raw: None,
            actor: EventActor::default(),
            max_live_runs: None,
            at: 1_000,
            decide: plan_by(move |_| IngestPlan::Start {
                run: Box::new(new_run(run_id)),
                attempt: None,
                message: Some(user_message(message_id)),
                answer: answer.clone(),
            }),
            answers: None,
            parent: None,
        }
    }

    pub(crate) async fn ingest(&self, event: TestEvent) -> Result<Ingested, StoreError> {
        self.store.events().ingest(event).await.ingested
    }

    pub(crate) async fn only_run(&self) -> Run {
        let filter = RunFilter::default();
        let mut runs = self
            .store
            .runs()
            .list_runs(&self.workspace, &filter, &newest_first(10))
            .await
            .unwrap()
            .runs;
        assert_eq!(runs.len(), 1);
        runs.remove(0)
    }

    /// A newly dispatched run.
    pub(crate) async fn running(&self, event_id: &str) -> Run {
        let created = self.created(event_id).await;
        match self.store.write(dispatch(&created)).await.unwrap() {
            Dispatched::Owned(run) => *run,
            Dispatched::Lost => panic!("nobody else has it"),
        }
    }

    /// A run before its dispatch.
    pub(crate) async fn created(&self, event_id: &str) -> Run {
        self.ingest(self.event(event_id, "body")).await.unwrap();
        let filter = RunFilter {
            statuses: vec![RunStatus::Created],
            ..RunFilter::default()
        };
        let newest = newest_first(10);
        let created = self
            .store
            .runs()
            .list_runs(&self.workspace, &filter, &newest);
        created.await.unwrap().runs.swap_remove(0)
    }

    pub(crate) fn append(&self, run: &Run, from: u64, texts: &[&str]) -> Append {
        Append {
            run_id: run.id,
            workspace: self.workspace.clone(),
            epoch: run.fencing_token,
            from,
            to: from + texts.len() as u64,
            lines: texts.iter().flat_map(|text| [*text, "\n"]).collect(),
            states: Vec::new(),
            rejections: Vec::new(),
            first_rejection: 1,
            audits: Vec::new(),
            artifacts: Vec::new(),
            interactions: Vec::new(),
            actions: Vec::new(),
            announced: Vec::new(),
            amended: Vec::new(),
            judged_through: None,
            accepted: Vec::new(),
            terminal: None,
            at: 3_000,
        }
    }

    /// An end without messages.
    #[expect(clippy::unused_self, reason = "reads like the rest of the bench")]
    pub(crate) fn terminal(&self, promotion: Option<Promotion>) -> RunEnd {
        RunEnd {
            status: RunStatus::Failed,
            reason: "x".to_owned(),
            output: None,
            error: None,
            usage: None,
            metadata: "{}".to_owned(),
            transcript: Vec::new(),
            promotion,
        }
    }

    /// The newest run of an event.
    pub(crate) async fn run_of(&self, conversation: &str, event_id: &str) -> Option<Run> {
        let conversations = Some(ConversationsOf {
            conversation_id: conversation.to_owned(),
            ..ConversationsOf::default()
        });
        let newest = RunFilter {
            conversations,
            ..RunFilter::default()
        };
        let runs = self
            .store
            .runs()
            .list_runs(&self.workspace, &newest, &newest_first(6))
            .await
            .unwrap()
            .runs;
        runs.into_iter().find(|run| run.event_id == event_id)
    }

    /// Ends a run with `last` as its newest event.
    pub(crate) async fn end(&self, run: &Run, last: u64) {
        let append = Append {
            terminal: Some(self.terminal(None)),
            ..self.append(run, last, &["end"])
        };
        assert_eq!(
            self.store.write(append).await.unwrap(),
            Appended::Written { next: Vec::new() }
        );
    }

    pub(crate) fn put(
        &self,
        run: &Run,
        key: &str,
        value: Option<&str>,
        if_match: Option<i64>,
    ) -> StateChange {
        StateChange {
            run_id: run.id,
            workspace: self.workspace.clone(),
            access: StateAccess {
                scope: StateScope::Conversation,
                identity: "c".to_owned(),
            },
            key: key.to_owned(),
            value: value.map(str::to_owned),
            document: DocumentParts::default(),
            if_match,
            audit: audit(Uuid::now_v7()),
            at: 4_000,
        }
    }

    pub(crate) async fn endpoint(&self, name: &str) -> EndpointId {
        let record = EndpointRecord {
            id: EndpointId(Uuid::now_v7()),
            workspace: self.workspace.clone(),
            name: name.to_owned(),
            origin: "api".to_owned(),
            enabled: true,
            base_url: "http://127.0.0.1:1".to_owned(),
            mode: EndpointMode::Standard,
            delta_mode: DeltaMode::Increment,
            secret: String::new(),
            headers: String::new(),
            manifests: None,
            max_runs: None,
            health: "unknown".to_owned(),
            health_reason: None,
            findings: serde_json::json!({}),
            discovered_at: None,
            next_check_at: 0,
            version: 1,
            created_at: 1,
        };
        let id = record.id;
        self.store
            .write(SaveEndpoint::Create(Box::new(record)))
            .await
            .unwrap();
        id
    }

    pub(crate) async fn discover(
        &self,
        endpoint_id: EndpointId,
        replaces: Option<EndpointId>,
    ) -> Vec<(RunnerId, Option<EndpointId>)> {
        let save = SaveDiscovery {
            replaces,
            ..self.discovery(endpoint_id, &[("plugin:a/b/c", "{}")])
        };
        self.store.write(save).await.unwrap()
    }

    /// A discovery with these runners and manifests.
    pub(crate) fn discovery(
        &self,
        endpoint_id: EndpointId,
        runners: &[(&str, &str)],
    ) -> SaveDiscovery {
        let found = |(id, manifest): &(&str, &str)| FoundRunner {
            id: id.parse().unwrap(),
            incompatible: None,
            manifest: (*manifest).to_owned(),
        };
        SaveDiscovery {
            workspace: self.workspace.clone(),
            endpoint_id,
            version: 1,
            replaces: None,
            may_claim: true,
            found: runners.iter().map(found).collect(),
            rejected: 0,
            findings: serde_json::json!({}),
            asked_at: 1,
            latency_ms: Some(3),
            next_check_at: 100,
            at: 1,
        }
    }
}

fn newest_first(limit: u64) -> RunWindow<'static> {
    RunWindow {
        limit,
        bytes: usize::MAX,
        ..RunWindow::default()
    }
}

pub(crate) fn user_message(id: Uuid) -> UserMessage {
    UserMessage {
        id,
        content: Some("hello".to_owned()),
        content_json: "{}".to_owned(),
        attachment_refs: "[]".to_owned(),
        author: None,
    }
}

pub(crate) fn new_run(id: RunId) -> NewRun {
    NewRun {
        id,
        trace_parent: None,
        parent_run_id: None,
        retry_of: None,
        retry_from: None,
        begun: None,
        posted_by: None,
        agent_id: AGENT,
        agent_version: 1,
        runner_id: "plugin:a/b/c".parse().unwrap(),
        endpoint_id: EndpointId(Uuid::nil()),
        deadline_at: 9_000,
        agent_spec: SharedParts::default().apart("{}"),
        snapshot: SharedParts::default().apart("{}"),
        snapshot_sha256: "0".to_owned(),
        shared: SharedParts::default(),
    }
}

/// The first attempt of a created run.
pub(crate) fn dispatch(run: &Run) -> Dispatch {
    Dispatch {
        run: run.clone(),
        attempt: 1,
        owner: "me".to_owned(),
        // Expires at once.
        lease: Duration::ZERO,
        context: serde_json::value::RawValue::NULL.to_owned().into(),
        shared: SharedParts::default(),
        deadline_at: run.deadline_at,
        purpose: DispatchPurpose::Call,
        at: 2_000,
    }
}
