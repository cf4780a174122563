//! All exported metrics and their help texts.

use ::metrics::{describe_counter, describe_gauge, describe_histogram};

/// Prometheus type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

impl MetricKind {
    /// Name in the exposition format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric, as documentation and dashboards may use it.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    /// Label names. Histogram buckets also have `le`.
    pub labels: &'static [&'static str],
    /// One line, without `|`.
    pub help: &'static str,
}

impl Metric {
    pub(super) fn describe(&self) {
        match self.kind {
            MetricKind::Counter => describe_counter!(self.name, self.help),
            MetricKind::Gauge => describe_gauge!(self.name, self.help),
            MetricKind::Histogram => describe_histogram!(self.name, self.help),
        }
    }
}

macro_rules! metrics {
    ($($kind:ident $name:expr, [$($label:literal),*], $help:literal;)+) => {
        /// All metrics, including those of the process.
        pub const METRICS: &[Metric] = &[$(Metric {
            name: $name,
            kind: MetricKind::$kind,
            labels: &[$($label),*],
            help: $help,
        }),+];
    };
}

metrics!(
    Gauge super::READY, [],
        "1 while new runs are accepted, as in /readyz; updated once a second";
    Gauge super::BUILD_INFO, ["version"],
        "Always 1; the label is the running version";
    Gauge super::RUNS, ["status"],
        "Unfinished runs in the database, at most 10000 per status; equal on all replicas";
    Gauge super::PAUSES, ["mode"],
        "Pauses by operators: hold, freeze, stop or resuming; equal on all replicas";
    Gauge super::LIVE_RUNS, [],
        "Runs that this replica drives";
    Gauge super::OPEN_STREAMS, [],
        "Open event streams of clients on this replica";
    Counter super::EVENTS_INGESTED, ["result"],
        "Answered events: accepted, no_agent, duplicate, or the reason of the refusal";
    Histogram super::INGEST_SECONDS, [],
        "Time from a valid event to its answer, including the commit";
    Counter super::RUNS_STARTED, [],
        "Runs first dispatched by this replica";
    Counter super::RUNS_ENDED, ["status", "code"],
        "Runs ended by this replica: ok, runner.failed for failures reported by a runner, else a gateway code";
    Histogram super::RUN_SECONDS, [],
        "Time from the event to the end of its run";
    Counter super::DISPATCH_ATTEMPTS, ["outcome"],
        "Dispatch attempts: started, deferred for an answer of 202, or the error code";
    Counter super::EVENTS_APPENDED, [],
        "Events committed to the ledger";
    Counter super::EVENT_BYTES_APPENDED, [],
        "Bytes of these events";
    Histogram super::RELAY_SECONDS, [],
        "Time from reading the oldest byte of a batch from a runner until it is visible to clients";
    Counter super::RESULTS_REJECTED, ["reason"],
        "Rejected runner results";
    Counter super::INPUTS_TOLERATED, ["peer", "kind"],
        "Accepted inputs that deviate from their protocol, by source (provider, runner, tool_server, knowledge_server, document, client)";
    Histogram super::COMMIT_SECONDS, [],
        "Duration of writer transactions, from begin to commit";
    Histogram super::COMMIT_ITEMS, [],
        "Items per writer transaction";
    Counter super::COMMITS_FAILED, [],
        "Failed writer transactions; their items are retried or refused";
    Gauge super::QUEUED_WRITES, [],
        "Queued writes: at most 4096 and 64 MiB";
    Counter super::DOORBELL_RINGS, ["way"],
        "Notifications between replicas: sent, lost before sending, heard (received), or missed during an outage";
    Counter super::SWEPT_RUNS, ["why"],
        "Runs recovered by the sweep: orphaned, continued because their runner answered 202 or is resumable, dispatched, or overdue in a queue";
    Counter super::LEASES_LOST, [],
        "Leases lost to another replica during a run";
    Counter super::DISCOVERIES, ["endpoint", "outcome"],
        "Discoveries of runner endpoints: ok, unreachable or unhealthy";
    Gauge super::BREAKER_STATE, ["endpoint"],
        "Circuit breakers of endpoints, exported once opened. 0: closed, 1: half-open, 2: open";
    Counter super::HOST_CALLS, ["route", "outcome"],
        "Host API calls by response status: allowed, denied, not_found, limited, refused or failed";
    Counter super::BUDGET_WAITS, ["outcome"],
        "Calls that waited for a raise of a budget, at the end of the wait: continued, refused, or aborted";
    Counter super::CHANGES_EXPORTED, ["outcome"],
        "Administrative changes that were sent to the receiver of audit.export: exported, or failed and sent again";
    Counter super::SOURCE_REQUESTS, ["result"],
        "Requests to sources: accepted, duplicate, ignored by the filter, challenge, refused for the signature, faulty event, or not_accepted";
    Counter super::WEBHOOK_TRIES, ["outcome"],
        "Tries to deliver a message to a webhook: delivered, failed, dead after the last try, or gone for an answer of 410";
    Counter super::HOOK_CALLS, ["moment", "outcome"],
        "Calls of hooks: allowed, denied, replaced, or failed_open and failed_closed for hooks without a valid answer";
    Counter super::SCHEDULE_TRIES, ["outcome"],
        "Tries to trigger an occurrence of a schedule: triggered, no_agent, refused for now, or failed";
    Gauge super::SCHEDULE_LATE, [],
        "Occurrences of schedules that are due and wait for a try, at most 10000; equal on all replicas";
    Gauge super::WEBHOOK_PENDING, [],
        "Pending deliveries of webhooks, at most 10000; equal on all replicas";
    Counter super::MODEL_CALLS, ["model", "outcome"],
        "Model calls: ok, abandoned, or the error code";
    Counter super::MODEL_TOKENS, ["model", "direction"],
        "Prompt and completion tokens of models, counted by the provider or estimated here";
    Counter super::MODEL_TOKEN_PARTS, ["model", "part"],
        "Tokens of models by price: input, cache_read, cache_write_5m, cache_write_1h, output, reasoning";
    Counter super::MODEL_COST, ["model"],
        "Cost of models by the configured prices, in millionths of the currency";
    Counter super::TOOL_CALLS, ["source", "outcome"],
        "Tool calls by kind of source (gateway, http, mcp): ok, abandoned, or the reason of the failure";
    Histogram super::TOOL_CALL_SECONDS, ["source"],
        "Time from a tool call to its result";
    Counter super::SPANS, ["outcome"],
        "Spans for the trace collector: taken, failed, or dropped because the queue was full";
    Counter super::LOG_RECORDS, ["outcome"],
        "Log records for the collector: taken, failed, or dropped because the queue was full";
    Counter super::HTTP_REQUESTS, ["method", "route", "status"],
        "Answered requests, by route template and status class";
    Histogram super::HTTP_REQUEST_SECONDS, ["face"],
        "Time from a request's head to the head of its response: of clients and operators (api), runners (host), others";
    Counter super::PANICS, ["task"],
        "Panics, each limited to one run, request, connection or batch of writes, or to a second of background work";
    Gauge "process_resident_memory_bytes", [],
        "Resident memory of the process";
    Gauge "process_open_fds", [],
        "Open file descriptors";
    Gauge "process_max_fds", [],
        "Maximum number of open file descriptors";
    Gauge "process_threads", [],
        "Threads of the process";
    Counter "process_cpu_seconds_total", [],
        "CPU time of the process";
    Gauge "process_start_time_seconds", [],
        "Start time of the process, in seconds since 1970";
);
