//! Every metric that is exported, with its help.

use ::metrics::{describe_counter, describe_gauge, describe_histogram};

/// What a metric is to Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// As the exposition format calls it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric, as docs and dashboards may name it.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    /// The names of its labels; buckets of a histogram have `le` beside them.
    pub labels: &'static [&'static str],
    /// One line, without `|`.
    pub help: &'static str,
}

impl Metric {
    pub(super) fn describe(&self) {
        match self.kind {
            Kind::Counter => describe_counter!(self.name, self.help),
            Kind::Gauge => describe_gauge!(self.name, self.help),
            Kind::Histogram => describe_histogram!(self.name, self.help),
        }
    }
}

macro_rules! metrics {
    ($($kind:ident $name:expr, [$($label:literal),*], $help:literal;)+) => {
        /// All of them, those of the process included.
        pub const METRICS: &[Metric] = &[$(Metric {
            name: $name,
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
        }),+];
    };
}

metrics!(
    Gauge super::READY, [],
        "1 while new runs are taken: what /readyz says, looked at once a second";
    Gauge super::BUILD_INFO, ["version"],
        "Always 1: which version runs";
    Gauge super::RUNS, ["status"],
        "Runs of the database that have not ended, at most 10000 of each status; the same on every replica";
    Gauge super::LIVE_RUNS, [],
        "Runs that this replica drives";
    Gauge super::OPEN_STREAMS, [],
        "Event streams that somebody reads from this replica";
    Counter super::EVENTS_INGESTED, ["result"],
        "Events that were answered: accepted, no_agent for those that nobody wants, duplicate, or why not";
    Histogram super::INGEST_SECONDS, [],
        "From a sound event to its answer, its commit included";
    Counter super::RUNS_STARTED, [],
        "Runs whose first attempt began on this replica";
    Counter super::RUNS_ENDED, ["status", "code"],
        "Runs that this replica ended: ok, runner.failed for what a runner says of itself, else the code of the gateway";
    Histogram super::RUN_SECONDS, [],
        "From the event to the end of its run";
    Counter super::DISPATCH_ATTEMPTS, ["outcome"],
        "Requests to runners to run something: started, deferred for an answer of 202, or the code of the failure";
    Counter super::EVENTS_APPENDED, [],
        "Events that were committed to the ledger";
    Counter super::EVENT_BYTES_APPENDED, [],
        "Bytes of these events";
    Histogram super::RELAY_SECONDS, [],
        "From the oldest byte of a batch that was read from a runner to the moment at which clients may see it";
    Counter super::RESULTS_REJECTED, ["reason"],
        "Results of runners that were not taken";
    Counter super::INPUTS_TOLERATED, ["peer", "kind"],
        "Inputs that depart from their protocol and were accepted, by source (provider, runner, tool_server, knowledge_server, document, client)";
    Histogram base::metric_names::COMMIT_SECONDS, [],
        "Transactions of the writer, from begin to commit";
    Histogram base::metric_names::COMMIT_ITEMS, [],
        "Items that one transaction of the writer holds";
    Counter base::metric_names::COMMITS_FAILED, [],
        "Transactions of the writer that did not commit; their items are tried again or refused";
    Gauge super::QUEUED_WRITES, [],
        "Writes that wait for the writer: at most 4096, and fewer where they are large, since 64 MiB may wait";
    Counter super::DOORBELL_RINGS, ["way"],
        "Rings between replicas: sent, lost before sending, heard, or possibly missed while the connection was away";
    Counter super::SWEPT_RUNS, ["why"],
        "Runs that the sweep took up: orphaned, continued because their runner answered 202, dispatched because nobody had, or \
         overdue in a queue";
    Counter super::LEASES_LOST, [],
        "Runs that were taken from this replica while it drove them";
    Counter super::DISCOVERIES, ["endpoint", "outcome"],
        "Answers of runner endpoints to the question for their runners: ok, unreachable or unhealthy";
    Gauge super::BREAKER_STATE, ["endpoint"],
        "0: the endpoint is called, 1: one call at a time, 2: not for now; told of those that were left alone once";
    Counter super::HOST_CALLS, ["route", "outcome"],
        "Calls of runners by the status of the answer: allowed, denied, not_found, limited, refused or failed";
    Counter super::MODEL_CALLS, ["model", "outcome"],
        "Calls of models: ok, abandoned, or the code of the error";
    Counter super::MODEL_TOKENS, ["model", "direction"],
        "Tokens of models, prompt and completion, as their providers count or else as we do";
    Counter super::MODEL_COST, ["model"],
        "What models cost by the prices of the configuration, in millionths of its currency";
    Counter super::TOOL_CALLS, ["source", "outcome"],
        "Calls of tools by the kind of their source (gateway, http, mcp): ok, abandoned, or why there was no result";
    Histogram super::TOOL_CALL_SECONDS, ["source"],
        "From the call of a tool to its result";
    Counter super::SPANS, ["outcome"],
        "Spans for the collector of traces: taken, failed, or dropped because too many waited";
    Counter super::HTTP_REQUESTS, ["method", "route", "status"],
        "Requests that were answered, by template and class of status";
    Histogram super::HTTP_REQUEST_SECONDS, ["face"],
        "From a request's head to the head of its answer: of clients and operators (api), of runners (host), of others";
    Counter super::PANICS, ["task"],
        "Panics that cost one run, one request, one connection, one batch of writes, or a second of what goes on beside them";
    Gauge "process_resident_memory_bytes", [],
        "Memory of the process that is in RAM";
    Gauge "process_open_fds", [],
        "File descriptors that are open";
    Gauge "process_max_fds", [],
        "File descriptors that may be open";
    Gauge "process_threads", [],
        "Threads of the process";
    Counter "process_cpu_seconds_total", [],
        "Processor time of the process";
    Gauge "process_start_time_seconds", [],
        "When the process began, in seconds since 1970";
);
