//! `[limits]`.

use std::time::Duration;

use super::table::{Reported, Table, integer, seconds};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// Maximum size of one state value. The wire contract allows no more.
const MAX_STATE_VALUE_BYTES: u64 = 256 * KIB;
/// Maximum size of one blob in the host API.
const MAX_BLOB_BYTES: u64 = 10 * MIB;
/// Maximum for counts of runs and events in one workspace.
const MAX_RUNS: u64 = 1_000_000;

/// `[limits]`: bounds of runners, runs and values.
#[derive(Clone, Debug)]
pub struct LimitsConfig {
    /// One line of a runner's stream.
    pub line_bytes: usize,
    /// One event of a runner's stream.
    pub event_bytes: usize,
    /// All events of one run together.
    pub run_bytes: u64,
    pub run_events: u64,
    /// Number of denied calls after which a run ends.
    pub run_denied_calls: u64,
    /// One state value, as JSON.
    pub state_value_bytes: usize,
    /// One blob of storage.
    pub storage_blob_bytes: u64,
    /// All blobs of one owner in one storage area.
    pub storage_area_bytes: u64,
    /// Timeout for opening a connection.
    pub connect: Duration,
    /// Timeout from the request to the first response byte.
    pub first_byte: Duration,
    /// Timeout between two bytes of a stream.
    pub silence: Duration,
    /// Concurrent runs of one workspace; 0: no limit.
    pub workspace_runs: u64,
    /// 0: no limit.
    pub workspace_events_per_second: u32,
    /// 0: the number of events per second.
    pub workspace_event_burst: u32,
    /// Failed authentications of one address in ten seconds.
    pub refused_credentials: u32,
    /// Memory budget for large model requests, in bytes.
    pub model_bytes: usize,
    /// Maximum size of the body of an event or a Query.
    pub event_body_bytes: usize,
    /// Memory budget for other request bodies, in bytes.
    pub body_bytes: usize,
    /// Memory budget for responses, in bytes.
    pub answer_bytes: usize,
}

impl LimitsConfig {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let line_bytes = table.required("line_bytes", integer(4 * KIB..=16 * MIB));
        let event_bytes = table.required("event_bytes", integer(4 * KIB..=64 * MIB));
        let run_bytes = table.required("run_bytes", integer(64 * KIB..=4096 * MIB));
        let run_events = table.required("run_events", integer(10..=10_000_000));
        let run_denied_calls = table.required("run_denied_calls", integer(10..=1_000_000));
        let state_value_bytes =
            table.required("state_value_bytes", integer(KIB..=MAX_STATE_VALUE_BYTES));
        let storage_blob_bytes = table.required("storage_blob_bytes", integer(1..=MAX_BLOB_BYTES));
        let storage_area_bytes = table.required("storage_area_bytes", integer(KIB..=GIB * KIB));
        let connect = table.required("connect_seconds", seconds(0.05..=60.0));
        let first_byte = table.required("first_byte_seconds", seconds(0.05..=600.0));
        let silence = table.required("silence_seconds", seconds(0.05..=3600.0));
        let workspace_runs = table.required("workspace_runs", integer(0..=MAX_RUNS));
        let per_second = table.required("workspace_events_per_second", integer(0..=MAX_RUNS));
        let burst = table.required("workspace_event_burst", integer(0..=MAX_RUNS));
        let refused_credentials = table.required("refused_credentials", integer(10..=1_000_000));
        let model_bytes = table.required("model_bytes", integer(64 * MIB..=64 * GIB));
        let event_body_bytes = table.required("event_body_bytes", integer(MIB..=32 * MIB));
        let body_bytes = table.required("body_bytes", integer(64 * MIB..=64 * GIB));
        let answer_bytes = table.required("answer_bytes", integer(64 * MIB..=64 * GIB));
        let order = check_order(&mut table, &line_bytes, &event_bytes, &run_bytes);
        // A single blob must fit within its area.
        let holds_one = !matches!((&storage_blob_bytes, &storage_area_bytes), (Ok(blob), Ok(area)) if blob > area);
        let message = "must not be less than limits.storage_blob_bytes";
        let area = table.demand("storage_area_bytes", holds_one, message);
        let has_rate = !matches!((&per_second, &burst), (Ok(0), Ok(1..)));
        let message = "has no meaning without limits.workspace_events_per_second; set both";
        let rate = table.demand("workspace_event_burst", has_rate, message);
        table.close()?;
        order.and(area).and(rate)?;
        Ok(Self {
            line_bytes: bytes(line_bytes?),
            event_bytes: bytes(event_bytes?),
            run_bytes: run_bytes?,
            run_events: run_events?,
            run_denied_calls: run_denied_calls?,
            state_value_bytes: bytes(state_value_bytes?),
            storage_blob_bytes: storage_blob_bytes?,
            storage_area_bytes: storage_area_bytes?,
            connect: connect?,
            first_byte: first_byte?,
            silence: silence?,
            workspace_runs: workspace_runs?,
            workspace_events_per_second: small(per_second?),
            workspace_event_burst: small(burst?),
            refused_credentials: small(refused_credentials?),
            model_bytes: bytes(model_bytes?),
            event_body_bytes: bytes(event_body_bytes?),
            body_bytes: bytes(body_bytes?),
            answer_bytes: bytes(answer_bytes?),
        })
    }
}

// The range was checked.
pub(super) fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

pub(super) fn bytes(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

// A limit of a part that exceeds the total would have no effect.
fn check_order(
    table: &mut Table<'_>,
    line_bytes: &Result<u64, Reported>,
    event_bytes: &Result<u64, Reported>,
    run_bytes: &Result<u64, Reported>,
) -> Result<(), Reported> {
    let (Ok(line_bytes), Ok(event_bytes), Ok(run_bytes)) = (line_bytes, event_bytes, run_bytes)
    else {
        return Err(Reported);
    };
    let (of_lines, of_events) = (
        "must not be less than limits.line_bytes",
        "must not be less than limits.event_bytes",
    );
    let lines = table.demand("event_bytes", line_bytes <= event_bytes, of_lines);
    let events = table.demand("run_bytes", event_bytes <= run_bytes, of_events);
    lines.and(events)
}
