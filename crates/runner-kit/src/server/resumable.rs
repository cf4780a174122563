//! Resumable runs: their work outlives the connection to the gateway (`docs/protocol.md`, Resumable runners).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use protocol::id::RunnerId;
use protocol::request::ResumeRequest;
use protocol::result::AgentRunResult;
use tokio_util::sync::CancellationToken;

use crate::frame;
use crate::host::Host;
use crate::results;
use crate::runner::RunError;
use crate::server::buffer::{AttachRefusal, BufferBounds, BufferFull, BufferReader, ResultBuffer};
use crate::server::live::RunRegistration;
use crate::server::rejection::RequestRejection;
use crate::stream::is_terminal;

/// Ended runs that a gateway may resume. Full: the oldest are dropped.
const ENDED_RUNS: usize = 1024;
/// Bytes of their results.
const ENDED_BYTES: usize = 8 * 1024 * 1024;

/// Run whose results outlive a connection.
#[derive(Debug)]
pub(super) struct ResumableRun {
    run_id: String,
    runner_id: RunnerId,
    host: Host,
    /// Time without a connection after which the run ends.
    within: Duration,
    buffer: Arc<ResultBuffer>,
}

/// Resumable runs of this server: live ones, and ended ones whose last results the gateway may lack.
#[derive(Debug, Default)]
pub(super) struct ResumableRuns(Mutex<RunsById>);

#[derive(Debug, Default)]
struct RunsById {
    runs: HashMap<String, Arc<ResumableRun>>,
    /// Oldest first, with the bytes of each.
    ended: VecDeque<(Arc<ResumableRun>, usize)>,
    ended_bytes: usize,
}

impl ResumableRun {
    /// Run of a request, with the reader of its connection.
    pub(super) fn new(
        run_id: &str,
        runner_id: RunnerId,
        host: Host,
        within: Duration,
    ) -> (Arc<Self>, BufferReader) {
        let (buffer, reader) = ResultBuffer::new(BufferBounds::default(), host.attempt());
        let run = Arc::new(Self {
            run_id: run_id.to_owned(),
            runner_id,
            host,
            within,
            buffer,
        });
        (run, reader)
    }

    pub(super) fn id(&self) -> &str {
        &self.run_id
    }

    /// Attaches the connection of a resume, and gives its access to the host client of the run.
    pub(super) fn resume(&self, request: ResumeRequest) -> Result<BufferReader, RequestRejection> {
        let after = request.after.unwrap_or(0);
        let attached = self.buffer.attach(request.attempt, after);
        let reader = attached.map_err(|refused| match refused {
            AttachRefusal::StaleAttempt => RequestRejection::StaleAttempt(request.attempt),
            AttachRefusal::Lost => {
                // The gateway ends the run after this response, so the work has no reader.
                self.buffer.close();
                RequestRejection::NoRun(self.run_id.clone())
            }
        })?;
        self.host.resume(request.host, request.attempt);
        Ok(reader)
    }

    /// Produces the results, then waits until no gateway needs them. Drops the work of an abandoned run.
    pub(super) async fn work(
        self: Arc<Self>,
        results: BoxStream<'static, AgentRunResult>,
        live: RunRegistration,
        runs: Arc<ResumableRuns>,
        stop: CancellationToken,
    ) {
        let signal = live.signal().clone();
        let cancelled = async {
            signal.requested().cancelled().await;
            // An attached run ends by itself: its gateway waits for the terminal result.
            self.buffer.detached().await;
        };
        let has_ended = tokio::select! { biased;
            () = self.produce(results) => true,
            () = self.abandoned() => false,
            () = cancelled => {
                self.end(RunError::cancelled());
                true
            }
            never = self.host.keep_token_fresh() => match never {},
        };
        // Frees its slot, and cancels the remaining work of the run.
        drop(live);
        if has_ended {
            runs.end(&self);
            tokio::select! {
                () = self.abandoned() => {}
                () = stop.cancelled() => {}
            }
        } else {
            let (run_id, seconds) = (&self.run_id, self.within.as_secs());
            tracing::warn!(
                run.id = run_id,
                "no gateway resumed run {run_id} within {seconds} s or its deadline, its work is dropped"
            );
        }
        runs.remove(&self);
    }

    async fn produce(&self, mut results: BoxStream<'static, AgentRunResult>) {
        while let Some(result) = results.next().await {
            let frame = frame::event(&result);
            if is_terminal(&result) {
                self.buffer.end(frame);
                return;
            }
            if let Err(BufferFull) = self.buffer.push(frame).await {
                self.end(RunError::buffer_full());
                return;
            }
        }
    }

    fn end(&self, error: RunError) {
        let mut result = results::run_failed(error);
        result.run_id.clone_from(&self.run_id);
        result.sequence = Some(self.buffer.next_sequence());
        self.buffer.end(frame::event(&result));
    }

    async fn abandoned(&self) {
        self.buffer
            .abandoned(|| self.within.min(self.host.time_left()))
            .await;
    }
}

impl ResumableRuns {
    /// Adds a live run. Replaces an ended one of its id.
    pub(super) fn add(&self, run: &Arc<ResumableRun>) {
        self.lock().runs.insert(run.run_id.clone(), Arc::clone(run));
    }

    pub(super) fn find(&self, run_id: &str, runner_id: &RunnerId) -> Option<Arc<ResumableRun>> {
        let run = self.lock().runs.get(run_id).cloned();
        run.filter(|run| run.runner_id == *runner_id)
    }

    fn end(&self, run: &Arc<ResumableRun>) {
        let bytes = run.buffer.bytes();
        let mut all = self.lock();
        all.ended.push_back((Arc::clone(run), bytes));
        all.ended_bytes += bytes;
        while all.ended.len() > ENDED_RUNS || all.ended_bytes > ENDED_BYTES {
            let Some((oldest, bytes)) = all.ended.pop_front() else {
                break;
            };
            all.ended_bytes -= bytes;
            // Its task wakes and removes it.
            oldest.buffer.close();
        }
    }

    fn remove(&self, run: &Arc<ResumableRun>) {
        let mut all = self.lock();
        let is_same = |other: &Arc<ResumableRun>| Arc::ptr_eq(run, other);
        // A later run may have the id of an ended one.
        if all.runs.get(&run.run_id).is_some_and(is_same) {
            all.runs.remove(&run.run_id);
        }
        let ended = all.ended.iter().position(|(other, _)| is_same(other));
        if let Some((_, bytes)) = ended.and_then(|index| all.ended.remove(index)) {
            all.ended_bytes -= bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunsById> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
