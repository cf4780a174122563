//! Direct `PostgreSQL` connection of the writer: statements are pipelined.
//!
//! A statement without result rows is sent with the next query or with the commit, which await its answer. So the
//! writes of a batch and its commit take one round trip.

use std::collections::HashMap;
use std::future::{poll_fn, ready};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, try_join};
use futures_util::{FutureExt as _, TryStreamExt as _};
use sea_orm::{DbBackend, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex as AsyncMutex;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Connection, Error, Row, Statement};

use crate::error::StoreError;
use crate::postgres_sessions::{CHECK_TIMEOUT, END_SESSION};
use crate::sql::{Sql, SqlRow, over_arrays};

/// Maximum prepared statements. The writer has about 60; at the bound it prepares them anew.
const STATEMENTS: usize = 256;
/// A session that was idle for longer is checked before its next transaction, as it may be dead.
const MAX_UNCHECKED_IDLE: Duration = Duration::from_secs(1);

/// A socket, or TLS over one.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

type SessionIo = Connection<Box<dyn ByteStream>, NoTlsStream>;
type Answer = BoxFuture<'static, Result<Vec<Row>, Error>>;
type Parameter = Box<dyn ToSql + Sync + Send>;

/// One session.
pub(crate) struct PostgresDirect {
    client: Arc<Client>,
    /// Polled by the task that awaits an answer, which saves a switch between tasks. `None`: closed.
    io: Mutex<Option<SessionIo>>,
    /// Answers of queued statements, oldest first.
    pending: Mutex<Vec<Answer>>,
    statements: Mutex<HashMap<String, Statement>>,
    /// Held by a statement until it is sent. Fair, so statements are sent in the order of their calls.
    sending: AsyncMutex<()>,
    /// True after a failed statement of the open transaction.
    has_failed: AtomicBool,
    answered_at: Mutex<Instant>,
}

// Valid after a panic: each change is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PostgresDirect {
    /// Applies the settings of a session, and ends it if it is read-only.
    pub(crate) async fn open(
        client: Client,
        io: SessionIo,
        settings: &str,
    ) -> Result<Self, StoreError> {
        let direct = Self {
            client: Arc::new(client),
            io: Mutex::new(Some(io)),
            pending: Mutex::default(),
            statements: Mutex::default(),
            sending: AsyncMutex::default(),
            has_failed: AtomicBool::default(),
            answered_at: Mutex::new(Instant::now()),
        };
        direct.run(settings).await?;
        let setting = "SELECT current_setting('transaction_read_only') AS setting";
        let setting = direct.query_sql(setting.to_owned(), Vec::new()).await?;
        let setting = setting.first().map(|row| row.text("setting")).transpose()?;
        if setting.as_deref() != Some("off") {
            direct.run(END_SESSION).await?;
        }
        Ok(direct)
    }

    /// Queues the begin of a transaction. False when the session is dead.
    pub(crate) async fn begin(&self) -> bool {
        // Reads what the server sent meanwhile, such as the end of the session.
        self.poll_io(&mut Context::from_waker(Waker::noop()));
        if lock(&self.io).is_none() {
            return false;
        }
        self.has_failed.store(false, Ordering::Relaxed);
        self.queue("BEGIN");
        if lock(&self.answered_at).elapsed() <= MAX_UNCHECKED_IDLE {
            return true;
        }
        let begun = tokio::time::timeout(CHECK_TIMEOUT, self.answers(ready(Ok(()))));
        matches!(begun.await, Ok(Ok(())))
    }

    /// Sends the queued statements with a commit and awaits all answers.
    pub(crate) async fn commit(&self) -> Result<(), StoreError> {
        if self.has_failed.load(Ordering::Relaxed) {
            // The server would answer the commit with a rollback, which is no error.
            return Err(StoreError::Refused);
        }
        self.queue("COMMIT");
        self.answers(ready(Ok(()))).await
    }

    /// Rolls back after this error. False when the session must not be used again.
    pub(crate) async fn roll_back(&self, error: &StoreError) -> bool {
        // The answers are of no use any more; the session skips them.
        lock(&self.pending).clear();
        let rolling_back = async {
            self.run("ROLLBACK").await?;
            if error.is_read_only() {
                // A session from a failover stays read-only.
                self.run(END_SESSION).await?;
            }
            Ok::<_, StoreError>(())
        };
        matches!(
            tokio::time::timeout(CHECK_TIMEOUT, rolling_back).await,
            Ok(Ok(()))
        )
    }

    /// Runs statements without parameters.
    async fn run(&self, sql: &str) -> Result<(), StoreError> {
        self.answers(self.client.batch_execute(sql)).await
    }

    fn queue(&self, sql: &'static str) {
        let client = Arc::clone(&self.client);
        self.push(started(async move {
            client.batch_execute(sql).await?;
            Ok(Vec::new())
        }));
    }

    fn push(&self, answer: Answer) {
        lock(&self.pending).push(answer);
    }

    /// Queues a prepared statement and returns its future answer.
    async fn send(
        &self,
        sql: &str,
        types: &[Type],
        parameters: Vec<Parameter>,
    ) -> Result<Answer, StoreError> {
        // A statement that must be prepared first would otherwise be overtaken by the next one.
        let _sending = self.sending.lock().await;
        let statement = self.prepared(sql, types).await?;
        let client = Arc::clone(&self.client);
        Ok(started(async move {
            let rows = client.query_raw(&statement, parameters).await?;
            rows.try_collect().await
        }))
    }

    async fn prepared(&self, sql: &str, types: &[Type]) -> Result<Statement, StoreError> {
        if let Some(statement) = lock(&self.statements).get(sql) {
            return Ok(statement.clone());
        }
        // Boxed: it is rare, and would enlarge the future of each statement.
        let preparing = Box::pin(self.client.prepare_typed(sql, types));
        let statement = Box::pin(self.answers(preparing)).await?;
        let mut statements = lock(&self.statements);
        if statements.len() >= STATEMENTS {
            statements.clear();
        }
        statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Awaits the answers of all queued statements, then `own`. The first error is that of the transaction.
    async fn answers<T>(
        &self,
        own: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StoreError> {
        // Their answers arrive first, and the session stops reading while one of them is not taken.
        let pending = std::mem::take(&mut *lock(&self.pending));
        let all = async {
            for answer in pending {
                answer.await?;
            }
            own.await
        };
        let answered = self.drive(all).await;
        *lock(&self.answered_at) = Instant::now();
        if answered.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        Ok(answered?)
    }

    /// Awaits `work` and moves the bytes of the session meanwhile.
    async fn drive<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let done @ Poll::Ready(_) = work.as_mut().poll(context) {
                return done;
            }
            let lost = self.poll_io(context);
            match (work.as_mut().poll(context), lost) {
                // The server's reason, rather than the closed connection that follows it.
                (Poll::Ready(Err(error)), Some(lost)) if error.as_db_error().is_none() => {
                    Poll::Ready(Err(lost))
                }
                (Poll::Pending, Some(lost)) => Poll::Ready(Err(lost)),
                (polled, _) => polled,
            }
        })
        .await
    }

    /// Sends and receives. Returns the error that closed the session.
    fn poll_io(&self, context: &mut Context<'_>) -> Option<Error> {
        let mut slot = lock(&self.io);
        let io = slot.as_mut()?;
        let lost = loop {
            match io.poll_message(context) {
                // A notice, which the settings limit to warnings.
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => break Some(error),
                Poll::Ready(None) => break None,
                Poll::Pending => return None,
            }
        };
        *slot = None;
        lost
    }
}

/// Polls an answer once, which queues its statement after earlier ones.
fn started(answer: impl Future<Output = Result<Vec<Row>, Error>> + Send + 'static) -> Answer {
    let mut answer = answer.boxed();
    match (&mut answer).now_or_never() {
        Some(done) => ready(done).boxed(),
        None => answer,
    }
}

impl Sql for PostgresDirect {
    fn backend(&self) -> DbBackend {
        DbBackend::Postgres
    }

    async fn execute_sql(&self, sql: String, values: Vec<Value>) -> Result<(), StoreError> {
        let (types, parameters) = single(values)?;
        let answer = self.send(&sql, &types, parameters).await?;
        self.push(answer);
        Ok(())
    }

    async fn query_sql(&self, sql: String, values: Vec<Value>) -> Result<Vec<SqlRow>, StoreError> {
        let (types, parameters) = single(values)?;
        self.rows(&sql, &types, parameters).await
    }

    async fn in_order<A: Send, B: Send>(
        &self,
        first: impl Future<Output = Result<A, StoreError>> + Send,
        second: impl Future<Output = Result<B, StoreError>> + Send,
    ) -> Result<(A, B), StoreError> {
        try_join(Box::pin(first), Box::pin(second)).await
    }

    // One array for each column: a single prepared statement serves all row counts.
    async fn execute_rows<const N: usize>(
        &self,
        text: &str,
        rows: Vec<[Value; N]>,
    ) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let (sql, types, parameters) = arrays(text, rows)?;
        let answer = self.send(&sql, &types, parameters).await?;
        self.push(answer);
        Ok(())
    }

    async fn query_rows<const N: usize>(
        &self,
        text: &str,
        rows: Vec<[Value; N]>,
    ) -> Result<Vec<SqlRow>, StoreError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let (sql, types, parameters) = arrays(text, rows)?;
        self.rows(&sql, &types, parameters).await
    }
}

impl PostgresDirect {
    async fn rows(
        &self,
        sql: &str,
        types: &[Type],
        parameters: Vec<Parameter>,
    ) -> Result<Vec<SqlRow>, StoreError> {
        let answer = self.send(sql, types, parameters).await?;
        // Boxed: a transaction awaits many of these futures, some of them together.
        let rows = Box::pin(self.answers(answer)).await?;
        Ok(rows.into_iter().map(SqlRow::PostgresDirect).collect())
    }
}

/// Types and parameters of a statement.
fn single(values: Vec<Value>) -> Result<(Vec<Type>, Vec<Parameter>), StoreError> {
    let (mut types, mut parameters) = (Vec::new(), Vec::new());
    for value in values {
        let (r#type, parameter): (_, Parameter) = match value {
            Value::String(text) => (Type::TEXT, Box::new(text)),
            Value::BigInt(number) => (Type::INT8, Box::new(number)),
            Value::Bool(flag) => (Type::BOOL, Box::new(flag)),
            other => return Err(unsupported(&other)),
        };
        types.push(r#type);
        parameters.push(parameter);
    }
    Ok((types, parameters))
}

/// A column of rows.
enum ColumnArray {
    Texts(Vec<Option<String>>),
    Numbers(Vec<Option<i64>>),
    Flags(Vec<Option<bool>>),
}

impl ColumnArray {
    fn of(first: &Value) -> Result<Self, StoreError> {
        match first {
            Value::String(_) => Ok(Self::Texts(Vec::new())),
            Value::BigInt(_) => Ok(Self::Numbers(Vec::new())),
            Value::Bool(_) => Ok(Self::Flags(Vec::new())),
            other => Err(unsupported(other)),
        }
    }

    fn push(&mut self, value: Value) -> Result<(), StoreError> {
        match (self, value) {
            (Self::Texts(texts), Value::String(text)) => texts.push(text),
            (Self::Numbers(numbers), Value::BigInt(number)) => numbers.push(number),
            (Self::Flags(flags), Value::Bool(flag)) => flags.push(flag),
            (_, other) => return Err(unsupported(&other)),
        }
        Ok(())
    }

    fn into_parameter(self) -> (Type, &'static str, Parameter) {
        match self {
            Self::Texts(texts) => (Type::TEXT_ARRAY, "text[]", Box::new(texts)),
            Self::Numbers(numbers) => (Type::INT8_ARRAY, "bigint[]", Box::new(numbers)),
            Self::Flags(flags) => (Type::BOOL_ARRAY, "boolean[]", Box::new(flags)),
        }
    }
}

type ArrayStatement = (String, Vec<Type>, Vec<Parameter>);

/// A statement over rows as one over an array for each column.
fn arrays<const N: usize>(text: &str, rows: Vec<[Value; N]>) -> Result<ArrayStatement, StoreError> {
    let first = rows.first().into_iter().flatten();
    let mut columns = first.map(ColumnArray::of).collect::<Result<Vec<_>, _>>()?;
    for row in rows {
        for (column, value) in columns.iter_mut().zip(row) {
            column.push(value)?;
        }
    }
    let (mut types, mut names, mut parameters) = (Vec::new(), Vec::new(), Vec::new());
    for (r#type, name, parameter) in columns.into_iter().map(ColumnArray::into_parameter) {
        types.push(r#type);
        names.push(name);
        parameters.push(parameter);
    }
    Ok((over_arrays(text, &names), types, parameters))
}

fn unsupported(value: &Value) -> StoreError {
    StoreError::Corrupt {
        column: "of a parameter",
        row: format!("{value:?}"),
    }
}
