//! What is counted, for whoever watches from outside: names and labels stand here and nowhere else
//! (those of the writer in [`store::meter`]), and so does the table that docs and dashboards are held to.
//!
//! Without [`install`] nothing is kept and every call is a no-op. A label is a name of ours, a route
//! template, the id of a model as the configuration has it, or the name of an endpoint, of which [`ENDPOINTS`]
//! at most are told apart: never the id of a run or a person, never what a client or a runner wrote. What
//! happens for each batch of events has its handle ready; what happens once for a run or a request looks it up.

mod calls;
mod table;

use std::collections::BTreeSet;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use base::metric_names::PANICS;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use crate::spans::Told;

pub use calls::{ModelCall, ToolCall, model_called};
pub use table::{Kind, METRICS, Metric};

/// Endpoints that are told apart; those beyond are `other`.
pub const ENDPOINTS: usize = 50;

const OPEN_STREAMS: &str = "runnel_open_streams";
const EVENTS_APPENDED: &str = "runnel_events_appended_total";
const EVENT_BYTES_APPENDED: &str = "runnel_event_bytes_appended_total";
const RELAY_SECONDS: &str = "runnel_relay_seconds";
const INGEST_SECONDS: &str = "runnel_ingest_seconds";
const RUNS_STARTED: &str = "runnel_runs_started_total";
const RUNS_ENDED: &str = "runnel_runs_ended_total";
const RUN_SECONDS: &str = "runnel_run_seconds";
const EVENTS_INGESTED: &str = "runnel_events_ingested_total";
const RESULTS_REJECTED: &str = "runnel_results_rejected_total";
const INPUTS_TOLERATED: &str = "runnel_inputs_tolerated_total";
const DISPATCH_ATTEMPTS: &str = "runnel_dispatch_attempts_total";
const DOORBELL_RINGS: &str = "runnel_doorbell_rings_total";
const SWEPT_RUNS: &str = "runnel_swept_runs_total";
const LEASES_LOST: &str = "runnel_leases_lost_total";
const DISCOVERIES: &str = "runnel_discoveries_total";
const BREAKER_STATE: &str = "runnel_breaker_state";
const HOST_CALLS: &str = "runnel_host_calls_total";
const MODEL_CALLS: &str = "runnel_model_calls_total";
const MODEL_TOKENS: &str = "runnel_model_tokens_total";
const MODEL_COST: &str = "runnel_model_cost_total";
const TOOL_CALLS: &str = "runnel_tool_calls_total";
const TOOL_CALL_SECONDS: &str = "runnel_tool_call_seconds";
const SPANS: &str = "runnel_spans_total";
const HTTP_REQUESTS: &str = "runnel_http_requests_total";
const HTTP_REQUEST_SECONDS: &str = "runnel_http_request_seconds";
const LIVE_RUNS: &str = "runnel_live_runs";
const RUNS: &str = "runnel_runs";
const READY: &str = "runnel_ready";
const QUEUED_WRITES: &str = "runnel_writer_queue_items";
const BUILD_INFO: &str = "runnel_build_info";

/// From half a millisecond to half a minute.
const LATENCIES: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];
const RUN_TIMES: [f64; 11] = [
    0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0,
];
/// The writer commits 1,024 items at once at most.
const BATCHES: [f64; 9] = [1.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0];

/// What is needed for every batch of events, looked up once.
struct Hot {
    open_streams: Gauge,
    events_appended: Counter,
    event_bytes_appended: Counter,
    relay_seconds: Histogram,
    ingest_seconds: Histogram,
    rings: [(Ringing, Counter); 4],
}

static HOT: LazyLock<Hot> = LazyLock::new(|| Hot {
    open_streams: gauge!(OPEN_STREAMS),
    events_appended: counter!(EVENTS_APPENDED),
    event_bytes_appended: counter!(EVENT_BYTES_APPENDED),
    relay_seconds: histogram!(RELAY_SECONDS),
    ingest_seconds: histogram!(INGEST_SECONDS),
    rings: [
        Ringing::Sent,
        Ringing::Lost,
        Ringing::Heard,
        Ringing::Missed,
    ]
    .map(|way| (way, counter!(DOORBELL_RINGS, "way" => way.as_str()))),
});

/// Keeps what is counted from now on. To be called once, before anything is counted.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &LATENCIES)?
        .set_buckets_for_metric(Matcher::Full(RUN_SECONDS.to_owned()), &RUN_TIMES)?
        .set_buckets_for_metric(
            Matcher::Full(base::metric_names::COMMIT_ITEMS.to_owned()),
            &BATCHES,
        )?
        .install_recorder()?;
    for metric in METRICS {
        metric.describe();
    }
    LazyLock::force(&HOT);
    // Those begin at 0 and not with their first event: a rise from nothing is no rise.
    counter!(RUNS_STARTED).absolute(0);
    counter!(LEASES_LOST).absolute(0);
    for task in [Task::Run, Task::Handler, Task::Connection, Task::Upkeep] {
        counter!(PANICS, "task" => task.as_str()).absolute(0);
    }
    for why in [
        Swept::Orphaned,
        Swept::Continued,
        Swept::Dispatched,
        Swept::Overdue,
    ] {
        counter!(SWEPT_RUNS, "why" => why.as_str()).absolute(0);
    }
    for outcome in Told::ALL {
        counter!(SPANS, "outcome" => outcome.as_str()).absolute(0);
    }
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(handle)
}

/// How a ring of the doorbell went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ringing {
    /// Handed over to be sent to the other replicas.
    Sent,
    /// Too many waited to be sent.
    Lost,
    /// Came from another replica.
    Heard,
    /// The connection was away or new: anything may have been rung.
    Missed,
}

impl Ringing {
    fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Lost => "lost",
            Self::Heard => "heard",
            Self::Missed => "missed",
        }
    }
}

/// Why the sweep took a run up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swept {
    /// Its lease had run out.
    Orphaned,
    /// The same, but its runner appends its results.
    Continued,
    /// It was stored and never dispatched.
    Dispatched,
    /// It had waited behind others for too long.
    Overdue,
}

impl Swept {
    fn as_str(self) -> &'static str {
        match self {
            Self::Orphaned => "orphaned",
            Self::Continued => "continued",
            Self::Dispatched => "dispatched",
            Self::Overdue => "overdue",
        }
    }
}

/// What panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Run,
    Handler,
    Connection,
    /// What goes on beside the requests.
    Upkeep,
}

impl Task {
    fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Handler => "handler",
            Self::Connection => "connection",
            Self::Upkeep => "upkeep",
        }
    }
}

/// Whether an endpoint is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaker {
    /// As usual.
    Closed,
    /// One call at a time, to see.
    HalfOpen,
    /// Not at all for now.
    Open,
}

/// A stream that somebody reads, until it is dropped.
#[derive(Debug)]
pub struct OpenStream(());

impl OpenStream {
    pub fn enter() -> Self {
        HOT.open_streams.increment(1.0);
        Self(())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        HOT.open_streams.decrement(1.0);
    }
}

/// Events of runs that are committed, and their bytes in the ledger.
pub fn appended(events: u64, bytes: usize) {
    HOT.events_appended.increment(events);
    HOT.event_bytes_appended.increment(bytes as u64);
}

/// From the oldest byte of a batch that was read to the moment at which clients may see it.
pub fn relayed(after: Duration) {
    HOT.relay_seconds.record(after);
}

/// An event was answered after this time. `result`: `accepted`, `no_agent`, `duplicate`, or why it was not taken.
pub fn ingested(result: &'static str, after: Duration) {
    HOT.ingest_seconds.record(after);
    counter!(EVENTS_INGESTED, "result" => result).increment(1);
}

/// A ring of the doorbell.
pub fn rang(way: Ringing) {
    if let Some((_, counter)) = HOT.rings.iter().find(|(one, _)| *one == way) {
        counter.increment(1);
    }
}

/// A run is dispatched for the first time.
pub fn run_started() {
    counter!(RUNS_STARTED).increment(1);
}

/// A run ended. `code`: `ok`, `runner.failed` for what a runner says of itself, or the gateway's own.
pub fn run_ended(status: &'static str, code: &'static str, after_ms: i64) {
    counter!(RUNS_ENDED, "status" => status, "code" => code).increment(1);
    let after = Duration::from_millis(u64::try_from(after_ms).unwrap_or(0));
    histogram!(RUN_SECONDS).record(after);
}

/// A result of a runner was not taken.
pub fn result_rejected(reason: &'static str) {
    counter!(RESULTS_REJECTED, "reason" => reason).increment(1);
}

/// Input that departs from its protocol was accepted all the same: see [`crate::tolerance`].
pub(super) fn input_tolerated(peer: &'static str, kind: &'static str) {
    counter!(INPUTS_TOLERATED, "peer" => peer, "kind" => kind).increment(1);
}

/// A runner was asked to run. `outcome`: `started` or the code of the failure.
pub fn dispatch_attempted(outcome: &'static str) {
    counter!(DISPATCH_ATTEMPTS, "outcome" => outcome).increment(1);
}

/// The sweep took a run up.
pub fn swept(why: Swept) {
    counter!(SWEPT_RUNS, "why" => why.as_str()).increment(1);
}

/// What became of spans for a collector of traces.
pub fn spans_told(outcome: Told, count: u64) {
    counter!(SPANS, "outcome" => outcome.as_str()).increment(count);
}

/// A run that lived here is somebody else's by now.
pub fn lease_lost() {
    counter!(LEASES_LOST).increment(1);
}

/// An endpoint was asked for its runners. `outcome`: `ok`, `unreachable` or `unhealthy`.
pub fn discovered(endpoint: &str, outcome: &'static str) {
    let endpoint = told_apart(endpoint);
    counter!(DISCOVERIES, "endpoint" => endpoint, "outcome" => outcome).increment(1);
}

/// Whether an endpoint is called from now on.
pub fn breaker_is(endpoint: &str, state: Breaker) {
    let value = match state {
        Breaker::Closed => 0.0,
        Breaker::HalfOpen => 1.0,
        Breaker::Open => 2.0,
    };
    gauge!(BREAKER_STATE, "endpoint" => told_apart(endpoint)).set(value);
}

/// Something panicked, and only that.
pub fn panicked(task: Task) {
    counter!(PANICS, "task" => task.as_str()).increment(1);
}

/// A request was answered, or its stream began. `route`: the template, `None` when there is none;
/// `method`: `None` when the route does not serve it; `status`: the code.
pub fn answered(route: Option<&str>, method: Option<&str>, status: u16, after: Duration) {
    let face = match route {
        Some(route) if route.starts_with("/host/v1/") => "host",
        Some(route) if route.starts_with("/v1/") => "api",
        _ => "other",
    };
    if let (Some(route), "host") = (route, face) {
        let outcome = outcome_of(status);
        counter!(HOST_CALLS, "route" => route.to_owned(), "outcome" => outcome).increment(1);
    }
    let labels = [
        ("method", method.unwrap_or("other").to_owned()),
        ("route", route.unwrap_or("none").to_owned()),
        ("status", format!("{}xx", status / 100)),
    ];
    counter!(HTTP_REQUESTS, &labels).increment(1);
    histogram!(HTTP_REQUEST_SECONDS, "face" => face).record(after);
}

fn outcome_of(status: u16) -> &'static str {
    match status {
        100..400 => "allowed",
        401 | 403 => "denied",
        404 => "not_found",
        429 => "limited",
        400..500 => "refused",
        _ => "failed",
    }
}

/// What is known only by looking, at the moment of looking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// Runs that this process drives.
    pub live_runs: usize,
    /// Writes that wait for their commit.
    pub queued_writes: usize,
}

impl Here {
    pub fn show(self) {
        #[expect(clippy::cast_precision_loss, reason = "bounded far below 2^52")]
        let number = |count: usize| count as f64;
        gauge!(LIVE_RUNS).set(number(self.live_runs));
        gauge!(QUEUED_WRITES).set(number(self.queued_writes));
    }
}

/// Whether new runs are taken, as `/readyz` says it.
pub fn ready_is(ready: bool) {
    gauge!(READY).set(f64::from(u8::from(ready)));
}

/// How many runs of the database have not ended, by status. All replicas tell the same number.
pub fn runs_are(status: &'static str, count: u32) {
    gauge!(RUNS, "status" => status).set(f64::from(count));
}

/// The endpoint's name, or `other` once there are too many.
fn told_apart(endpoint: &str) -> String {
    static KNOWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    told_apart_among(
        &mut KNOWN.lock().unwrap_or_else(PoisonError::into_inner),
        endpoint,
    )
}

fn told_apart_among(known: &mut BTreeSet<String>, endpoint: &str) -> String {
    if !known.contains(endpoint) {
        if known.len() >= ENDPOINTS {
            return "other".to_owned();
        }
        known.insert(endpoint.to_owned());
    }
    endpoint.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_beyond_the_most_are_not_told_apart() {
        let mut known = BTreeSet::new();
        let names: BTreeSet<_> = (0..ENDPOINTS * 3)
            .map(|n| told_apart_among(&mut known, &format!("endpoint {n}")))
            .collect();
        assert_eq!(names.len(), ENDPOINTS + 1);
        assert!(names.contains("other"));
        assert_eq!(told_apart_among(&mut known, "endpoint 0"), "endpoint 0");
    }

    #[test]
    fn each_metric_stands_once_in_the_table_of_the_docs() {
        let page = include_str!("../../../docs/metrics.md");
        for Metric {
            name,
            kind,
            labels,
            help,
        } in METRICS
        {
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            let row = format!(
                "| `{name}` | {} | {} | {help} |",
                kind.as_str(),
                labels.join(", ")
            );
            assert_eq!(
                page.matches(&row).count(),
                1,
                "docs/metrics.md lacks\n{row}"
            );
        }
        let rows = page.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, METRICS.len(), "the page names a metric that is none");
    }
}
