//! Limits of the store: unnamed contents, keys of a scope, bytes of a page.
use std::sync::Arc;
use std::time::Duration;

use crate::support::{StoreFixture, audit, on_both};
use domain::normalize::StateUpdate;
use domain::run::Run;
use domain::tool_call::RepeatedCallDecision;
use protocol::id::RunId;
use protocol::resources::{StateScope, StorageArea, ToolEffect};
use protocol::run::RunStatus;
use store::{
    Append, AppendResults, Appended, AppendsClosed, AreaAccess, AuditEntry, BeginToolCall,
    BeginUpload, BlobDeleted, CHUNK_BYTES, CloseAppends, DeleteBlob, EventFilter, FinishToolCall,
    FinishUpload, Heartbeat, Heartbeating, Ingested, InteractionFilter, InteractionOrder,
    InteractionStatus, KeyOf, NumberRange, OverBudget, PAGE_BYTES, PageBound, PageBudget, Quota,
    ReadBudget, ResultsAppended, RunFilter, RunWindow, STATE_KEYS, StartAsyncRun, StateWritten,
    StoreError, TOOL_CALLS, TicketKey, ToolCallBegun, ToolCallEnd, UploadStep, WriteChunk,
    result_digest,
};
use uuid::Uuid;

on_both!(
    replaced_blob_stays_readable,
    abandoned_upload_leaves_nothing,
    full_scope_accepts_existing_keys_only,
    limits_keys_per_run_and_agent,
    event_page_ends_at_its_bytes,
    page_counts_every_column_of_runs,
    ledger_page_ends_at_its_bytes,
    idempotency_key_expires_after_a_week,
    makes_tool_call_once_per_key,
    limits_tool_call_keys_per_run,
    replaces_only_the_unexecuted_call,
    counts_same_calls_without_key,
    start_from_checkpoint_repeats_no_included_call,
    counted_call_replaces_the_oldest_result,
    accepts_one_append_beyond_the_limit,
    closed_run_accepts_only_repeated_results,
    accepts_calls_with_their_events_unless_overtaken,
    cursors_reach_rare_runs_and_events,
    cursors_reach_runs_of_each_filter,
    cursors_reach_rare_interactions,
    lists_open_interactions_by_expiry,
    aggregates_denied_calls,
    deletes_old_audit_entries,
);

const AMPLE_QUOTA: Quota = Quota {
    bytes: 10_000_000,
    keys: 10,
};

fn area(bench: &StoreFixture) -> AreaAccess {
    AreaAccess {
        workspace: bench.workspace.clone(),
        area: StorageArea::Plugin,
        owner: "test/stub".to_owned(),
    }
}

fn finish(bench: &StoreFixture, run: &Run, key: &str, chunks: u64) -> FinishUpload {
    FinishUpload {
        condition: None,
        run_id: run.id,
        access: area(bench),
        quota: AMPLE_QUOTA,
        key: key.to_owned(),
        content_id: Uuid::now_v7(),
        last: chunks - 1,
        bytes: vec![7; 10],
        size: (chunks - 1) * CHUNK_BYTES as u64 + 10,
        sha256: String::new(),
        content_type: "a/b".to_owned(),
        audit: audit(Uuid::now_v7()),
        at: 1_000,
    }
}

/// Expires all contents to be deleted.
async fn expire_garbage(bench: &StoreFixture) {
    let passed = "UPDATE storage_garbage SET expires_at = expires_at - 600000";
    bench.tamper(passed).await;
}

/// Uploads all chunks.
async fn upload(bench: &StoreFixture, finish: FinishUpload) -> UploadStep {
    if finish.last > 0 {
        let begin = BeginUpload {
            run_id: finish.run_id,
            access: finish.access.clone(),
            quota: finish.quota,
            content_id: finish.content_id,
            reserved: finish.size,
            timeout: Duration::from_mins(9),
        };
        assert_eq!(bench.write(begin).await.unwrap(), UploadStep::Written);
    }
    for n in 0..finish.last {
        let (run_id, content_id) = (finish.run_id, finish.content_id);
        let bytes = vec![7; CHUNK_BYTES];
        let chunk = WriteChunk {
            run_id,
            content_id,
            n,
            bytes,
            timeout: Duration::from_mins(9),
        };
        assert_eq!(bench.write(chunk).await.unwrap(), UploadStep::Written);
    }
    bench.write(finish).await.unwrap()
}

async fn replaced_blob_stays_readable(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    assert_eq!(
        upload(&bench, finish(&bench, &run, "k", 3)).await,
        UploadStep::Written
    );
    let before = bench
        .state()
        .find_blob(&area(&bench), "k")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        upload(&bench, finish(&bench, &run, "k", 1)).await,
        UploadStep::Written
    );
    let after = bench
        .state()
        .find_blob(&area(&bench), "k")
        .await
        .unwrap()
        .unwrap();
    assert_ne!(before.content_id, after.content_id);

    // The old content stays until its expiry; the new one stays after it.
    for there in [true, false] {
        if !there {
            expire_garbage(&bench).await;
        }
        bench.state().sweep_storage().await.unwrap();
        for n in 0..3 {
            let chunk = bench
                .state()
                .read_chunk(before.content_id, n)
                .await
                .unwrap();
            assert_eq!(chunk.is_some(), there, "{n}");
        }
        let chunk = bench.state().read_chunk(after.content_id, 0).await.unwrap();
        assert_eq!(chunk, Some(vec![7; 10]));
    }
    let delete = DeleteBlob {
        run_id: run.id,
        access: area(&bench),
        key: "k".to_owned(),
        audit: audit(Uuid::now_v7()),
    };
    assert_eq!(bench.write(delete).await.unwrap(), BlobDeleted::Deleted);
    // A small content is read by one query, so no reader can be in between.
    assert_eq!(
        bench.state().read_chunk(after.content_id, 0).await.unwrap(),
        None
    );
}

async fn abandoned_upload_leaves_nothing(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let finish = finish(&bench, &run, "k", 2);
    let begin = BeginUpload {
        run_id: run.id,
        access: area(&bench),
        quota: AMPLE_QUOTA,
        content_id: finish.content_id,
        reserved: 9_000_000,
        timeout: Duration::from_mins(9),
    };
    assert_eq!(
        bench.write(begin.clone()).await.unwrap(),
        UploadStep::Written
    );
    // Reservations count.
    let second = BeginUpload {
        content_id: Uuid::now_v7(),
        ..begin
    };
    assert_eq!(bench.write(second.clone()).await.unwrap(), UploadStep::Full);
    let chunk = WriteChunk {
        run_id: run.id,
        content_id: finish.content_id,
        n: 0,
        bytes: vec![1; CHUNK_BYTES],
        timeout: Duration::from_mins(9),
    };
    assert_eq!(
        bench.write(chunk.clone()).await.unwrap(),
        UploadStep::Written
    );
    assert_eq!(bench.state().sweep_storage().await.unwrap(), 0);
    expire_garbage(&bench).await;
    assert_eq!(bench.state().sweep_storage().await.unwrap(), 1);
    assert_eq!(
        bench
            .state()
            .read_chunk(finish.content_id, 0)
            .await
            .unwrap(),
        None
    );
    // Too late: the upload has expired and its name has no content.
    assert_eq!(bench.write(chunk).await.unwrap(), UploadStep::Expired);
    assert_eq!(bench.write(finish).await.unwrap(), UploadStep::Expired);
    assert_eq!(
        bench.state().find_blob(&area(&bench), "k").await.unwrap(),
        None
    );
    assert_eq!(bench.write(second).await.unwrap(), UploadStep::Written);
}

async fn limits_keys_per_run_and_agent(bench: StoreFixture) {
    let (one, two) = (bench.running("e-0").await, bench.running("e-1").await);
    let other = bench.running("e-2").await;
    let agent =
        "UPDATE runs SET agent_id = '00000000-0000-0000-0000-000000000001' WHERE event_id = 'e-2'";
    bench.tamper(agent).await;
    let mut made = 0;
    let mut fill = async |run: &Run, scope: StateScope| {
        let mut keys = 0;
        loop {
            made += 1;
            let mut put = bench.put(run, &format!("k{made}"), Some("1"), None);
            put.access.scope = scope;
            match bench.write(put).await.unwrap() {
                StateWritten::Version(1) => keys += 1,
                full => return (keys, full),
            }
        }
    };
    // All agents of one runner share its scope; the other scopes have one agent.
    for (run, scope, keys, full) in [
        (&one, StateScope::Runner, 500, StateWritten::ShareFull),
        (&two, StateScope::Runner, 250, StateWritten::ShareFull),
        (&other, StateScope::Runner, 250, StateWritten::Full),
        (&one, StateScope::Conversation, 750, StateWritten::ShareFull),
        (&two, StateScope::Conversation, 250, StateWritten::Full),
    ] {
        assert_eq!(fill(run, scope).await, (keys, full), "{scope:?}");
    }
    // Existing keys stay writable for all.
    let mut put = bench.put(&two, "k1", Some("2"), None);
    put.access.scope = StateScope::Runner;
    assert_eq!(bench.write(put).await.unwrap(), StateWritten::Version(2));
}

async fn full_scope_accepts_existing_keys_only(bench: StoreFixture) {
    let (first, run) = (bench.running("e-0").await, bench.running("e-1").await);
    for n in 0..STATE_KEYS {
        let writer = if n < STATE_KEYS / 2 { &first } else { &run };
        let put = bench.put(writer, &format!("k{n}"), Some("1"), None);
        assert_eq!(bench.write(put).await.unwrap(), StateWritten::Version(1));
    }
    let put = |key| bench.put(&run, key, Some("2"), None);
    assert_eq!(bench.write(put("new")).await.unwrap(), StateWritten::Full);
    assert_eq!(
        bench.write(put("k7")).await.unwrap(),
        StateWritten::Version(2)
    );
    // As a result of a runner: the event is stored, the value is refused with an audit row.
    let mut append = bench.append(&run, 0, &["one"]);
    let update = |key: &str| StateUpdate {
        scope: StateScope::Conversation,
        identity: "c".to_owned(),
        key: key.to_owned(),
        value: "3".to_owned(),
    };
    append.states = vec![update("newer"), update("k7")];
    bench.write(append).await.unwrap();
    let access = put("").access;
    assert_eq!(
        bench.state().find_state(&access, "newer").await.unwrap(),
        None
    );
    let updated = bench
        .state()
        .find_state(&access, "k7")
        .await
        .unwrap()
        .unwrap();
    assert_eq!((updated.value.as_str(), updated.version), ("3", 3));
    let audit = bench
        .audit_log()
        .list_audit(run.id, None, 100)
        .await
        .unwrap()
        .items;
    let denied: Vec<_> = audit.iter().filter(|row| row.decision == "deny").collect();
    assert_eq!(denied.len(), 1);
    assert_eq!(denied[0].action, "state.updated");
    // A deleted key frees its slot.
    let gone = bench.put(&run, "k8", None, None);
    assert_eq!(bench.write(gone).await.unwrap(), StateWritten::Deleted);
    assert_eq!(
        bench.write(put("new")).await.unwrap(),
        StateWritten::Version(2)
    );
}

async fn event_page_ends_at_its_bytes(bench: StoreFixture) {
    for n in 0..5 {
        let mut event = bench.event(&format!("e-{n}"), "body");
        event.envelope = format!("{{\"x\":\"{}\"}}", "y".repeat(9_992));
        bench.ingest(event).await.unwrap();
    }
    let filter = EventFilter::default();
    // Each has 10,000 bytes of envelope, and a few hundred in other columns.
    for (limit, bytes, expected, more) in [
        (10, usize::MAX, 5, false),
        (5, 60_000, 5, false),
        (4, usize::MAX, 4, true),
        (10, 50_000, 4, true),
        (10, 30_000, 2, true),
        (10, 0, 1, true),
    ] {
        let bound = PageBound {
            bytes,
            ..limit.into()
        };
        let list = bench
            .events()
            .list_events(&bench.workspace, &filter, None, bound);
        let found = list.await.unwrap();
        assert_eq!(
            (found.records.len(), found.next.is_some()),
            (expected, more),
            "{limit} {bytes}"
        );
    }
}

/// Rows of an older gateway without column limits.
async fn page_counts_every_column_of_runs(bench: StoreFixture) {
    struct Small;
    impl PageBudget for Small {
        fn take(&self, bytes: usize) -> Result<(), OverBudget> {
            assert!((2 * 1_400_000..PAGE_BYTES).contains(&bytes), "{bytes}");
            Err(OverBudget {
                reason: "answer_bytes",
                message: "wait",
            })
        }
    }
    let large = format!("[{}0]", "0,".repeat(700_000));
    for (n, column) in ["status_reason", "usage", "error", "output", "metadata"]
        .into_iter()
        .enumerate()
    {
        let event = bench.event(&format!("e-{n}"), "body");
        bench.ingest(event).await.unwrap();
        let sql = format!("UPDATE runs SET {column} = '{large}' WHERE event_id = 'e-{n}'");
        bench.tamper(&sql).await;
    }
    let all = RunFilter::default();
    let mut window = RunWindow {
        limit: 100,
        bytes: PAGE_BYTES,
        ..RunWindow::default()
    };
    let found = bench.runs().list_runs(&bench.workspace, &all, &window);
    let found = found.await.unwrap();
    assert_eq!((found.runs.len(), found.next.is_some()), (2, true));
    window.budget = ReadBudget::of(&Small);
    let refused = bench.runs().list_runs(&bench.workspace, &all, &window);
    let refused = refused.await.unwrap_err();
    assert!(matches!(refused, StoreError::OverBudget(_)), "{refused}");
}

async fn ledger_page_ends_at_its_bytes(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    for (from, texts) in [
        (0, vec!["a", "b"]),
        (2, vec!["c"]),
        (3, vec!["d", "e", "f"]),
    ] {
        bench.write(bench.append(&run, from, &texts)).await.unwrap();
    }
    let all = bench
        .runs()
        .read_lines(run.id, 0, 10, usize::MAX)
        .await
        .unwrap();
    assert_eq!(all.len(), 6);
    let size = all[0].text.len();
    for (bytes, count) in [
        (0, 1),
        (size, 1),
        (2 * size, 2),
        (4 * size, 4),
        (100 * size, 6),
    ] {
        let forward = bench.runs().read_lines(run.id, 0, 10, bytes).await.unwrap();
        assert_eq!(forward, all[..count], "{bytes}");
        let mut back = bench
            .runs()
            .read_lines_back(run.id, 99, 0, 10, bytes)
            .await
            .unwrap();
        back.reverse();
        assert_eq!(back, all[6 - count..], "{bytes}");
    }
    let mut inner = bench
        .runs()
        .read_lines_back(run.id, 6, 2, 2, usize::MAX)
        .await
        .unwrap();
    inner.reverse();
    assert_eq!(inner, all[3..5]);
}

async fn idempotency_key_expires_after_a_week(bench: StoreFixture) {
    let week = 7 * 24 * 60 * 60 * 1000;
    let keyed = |event_id: &str, at: i64| {
        let mut event = bench.event(event_id, event_id);
        "key:k".clone_into(&mut event.dedupe_key);
        event.at = at;
        event
    };
    let stored = |event: &str| Ingested::Stored {
        answer: event.to_owned(),
    };
    let first = bench.ingest(keyed("e-1", 1_000)).await.unwrap();
    assert_eq!(first, stored("e-1"));
    let soon = bench.ingest(keyed("e-2", 1_000 + week - 1)).await.unwrap();
    assert_eq!(soon, Ingested::Mismatch);
    let late = bench.ingest(keyed("e-2", 1_000 + week)).await.unwrap();
    assert_eq!(late, stored("e-2"));
    // The event itself stays unchanged.
    let again = bench.ingest(keyed("e-1", 1_001 + week)).await.unwrap();
    assert_eq!(again, Ingested::Mismatch);
    let same = bench.event("e-1", "e-1");
    assert_eq!(bench.ingest(same).await.unwrap(), Ingested::EventExists);
}

/// A call of the process `owner` at `at` with a deadline of one second.
fn begin(run: &Run, key: &str, owner: &str, at: i64) -> BeginToolCall {
    BeginToolCall {
        key_of: KeyOf::Run,
        run_id: run.id,
        key: TicketKey::Given(key.to_owned()),
        call_id: Uuid::now_v7(),
        request_sha256: "one".to_owned(),
        effect: Some(ToolEffect::Write),
        owner: owner.to_owned(),
        goes_on: Arc::new(|_| true),
        at,
        expires_at: at + 1_000,
        replaces: None,
        approvals: None,
    }
}

fn called(key: &str) -> ToolCallBegun {
    let key = key.to_owned();
    ToolCallBegun::Call {
        key,
        approval: None,
    }
}

async fn makes_tool_call_once_per_key(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let begin_call = async |begin: BeginToolCall| bench.write(begin).await.unwrap();
    let refused = ToolCallBegun::Refused;

    let first = begin(&run, "k", "a", 0);
    let call_id = first.call_id;
    assert_eq!(begin_call(first).await, called("k"));
    // While it runs, in this process or another.
    assert_eq!(
        begin_call(begin(&run, "k", "a", 5_000)).await,
        refused(RepeatedCallDecision::InProgress)
    );
    assert_eq!(
        begin_call(begin(&run, "k", "b", 999)).await,
        ToolCallBegun::Elsewhere
    );
    let other = BeginToolCall {
        request_sha256: "two".to_owned(),
        ..begin(&run, "k", "b", 999)
    };
    assert_eq!(
        begin_call(other).await,
        refused(RepeatedCallDecision::Mismatch)
    );
    // The caller is gone: this process no longer runs the call, or the deadline of another process has passed.
    let gone = |owner: &str, at| BeginToolCall {
        goes_on: Arc::new(|_| false),
        ..begin(&run, "k", owner, at)
    };
    let unknown = ToolCallBegun::Unknown {
        key: "k".to_owned(),
        call_id,
    };
    assert_eq!(begin_call(gone("a", 10)).await, unknown);
    assert_eq!(begin_call(gone("b", 1_001)).await, unknown);

    let finish = |end| FinishToolCall {
        key_of: KeyOf::Run,
        run_id: run.id,
        call_id,
        end,
    };
    let done = ToolCallEnd::Done("{\"a\":1}".to_owned());
    bench.write(finish(done)).await.unwrap();
    let stored = ToolCallBegun::Stored {
        key: "k".to_owned(),
        result: "{\"a\":1}".to_owned(),
    };
    assert_eq!(begin_call(gone("b", 9_000)).await, stored);

    // A read-only call is repeated by any caller, and the late end of the first one has no effect.
    let reads = |owner: &str, at| BeginToolCall {
        effect: Some(ToolEffect::Read),
        ..begin(&run, "r", owner, at)
    };
    let first = reads("a", 0);
    let late = FinishToolCall {
        call_id: first.call_id,
        ..finish(ToolCallEnd::Undone)
    };
    assert_eq!(begin_call(first).await, called("r"));
    assert_eq!(begin_call(reads("b", 1_001)).await, called("r"));
    bench.write(late).await.unwrap();
    assert_eq!(
        begin_call(reads("c", 1_002)).await,
        ToolCallBegun::Elsewhere
    );
}

async fn replaces_only_the_unexecuted_call(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let again = |replaces| BeginToolCall {
        goes_on: Arc::new(|_| false),
        replaces,
        ..begin(&run, "k", "a", 10)
    };
    let first = begin(&run, "k", "a", 0);
    let call_id = first.call_id;
    assert_eq!(bench.write(first).await.unwrap(), called("k"));
    let unknown = ToolCallBegun::Unknown {
        key: "k".to_owned(),
        call_id,
    };
    let other = bench.write(again(Some(Uuid::now_v7()))).await;
    assert_eq!(other.unwrap(), unknown);
    let second = again(Some(call_id));
    let second_id = second.call_id;
    assert_eq!(bench.write(second).await.unwrap(), called("k"));
    // Two callers have found out the same: only one of them calls.
    let late = bench.write(again(Some(call_id))).await.unwrap();
    let unknown = ToolCallBegun::Unknown {
        key: "k".to_owned(),
        call_id: second_id,
    };
    assert_eq!(late, unknown);
}

/// The call of this process, without a key.
fn counted(run: &Run, request: &str, attempt: u32) -> BeginToolCall {
    BeginToolCall {
        key: TicketKey::Counted { attempt },
        request_sha256: request.to_owned(),
        goes_on: Arc::new(|_| false),
        ..begin(run, "", "a", 0)
    }
}

async fn counts_same_calls_without_key(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let begin_call = async |begin: BeginToolCall| bench.write(begin).await.unwrap();
    let done = async |call_id, result: &str| {
        let finish = FinishToolCall {
            key_of: KeyOf::Run,
            run_id: run.id,
            call_id,
            end: ToolCallEnd::Done(result.to_owned()),
        };
        bench.write(finish).await.unwrap();
    };
    for ordinal in 1..=2 {
        let call = counted(&run, "one", 1);
        let call_id = call.call_id;
        assert_eq!(begin_call(call).await, called(&format!("one\t{ordinal}")));
        done(call_id, &ordinal.to_string()).await;
    }
    assert_eq!(
        begin_call(counted(&run, "two", 1)).await,
        called("two\t1"),
        "another request"
    );
    // Its response was lost, so the next same call asks for it.
    let lost = counted(&run, "one", 1);
    let unknown = ToolCallBegun::Unknown {
        key: "one\t3".to_owned(),
        call_id: lost.call_id,
    };
    assert_eq!(begin_call(lost).await, called("one\t3"));
    assert_eq!(begin_call(counted(&run, "one", 1)).await, unknown);
    // A call of this process that goes on is another one.
    let parallel = BeginToolCall {
        goes_on: Arc::new(|_| true),
        ..counted(&run, "one", 1)
    };
    assert_eq!(begin_call(parallel).await, called("one\t4"));

    // A runner that begins anew gets the recorded results in their order.
    bench.tamper(&format!(
        "INSERT INTO run_attempts (run_id, attempt, intent_at, context) VALUES ('{}', 2, 0, '{{}}'), ('{}', 3, 0, 'null')",
        run.id, run.id
    ))
    .await;
    for ordinal in 1..=2 {
        let stored = ToolCallBegun::Stored {
            key: format!("one\t{ordinal}"),
            result: ordinal.to_string(),
        };
        assert_eq!(begin_call(counted(&run, "one", 3)).await, stored);
    }
    assert_eq!(begin_call(counted(&run, "one", 3)).await, unknown);
}

async fn start_from_checkpoint_repeats_no_included_call(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    for (ordinal, at) in [(1, 1_000), (2, 2_000)] {
        let call = BeginToolCall {
            at,
            ..counted(&run, "one", 1)
        };
        let finish = FinishToolCall {
            key_of: KeyOf::Run,
            run_id: run.id,
            call_id: call.call_id,
            end: ToolCallEnd::Done(ordinal.to_string()),
        };
        let begun = bench.write(call).await.unwrap();
        assert_eq!(begun, called(&format!("one\t{ordinal}")));
        bench.write(finish).await.unwrap();
    }
    // The checkpoint includes the first call.
    bench.leases().begin_start(run.id, 1_500).await.unwrap();
    bench
        .tamper(&format!(
            "INSERT INTO run_attempts (run_id, attempt, intent_at, context) VALUES ('{}', 2, 0, '{{}}')",
            run.id
        ))
        .await;
    let repeated = bench.write(counted(&run, "one", 2)).await.unwrap();
    let stored = ToolCallBegun::Stored {
        key: "one\t2".to_owned(),
        result: "2".to_owned(),
    };
    assert_eq!(repeated, stored);
    let next = bench.write(counted(&run, "one", 2)).await.unwrap();
    assert_eq!(next, called("one\t3"));
}

async fn limits_tool_call_keys_per_run(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let keys = (0..TOOL_CALLS).map(|n| bench.write(begin(&run, &n.to_string(), "a", 0)));
    for begun in futures_util::future::join_all(keys).await {
        assert!(matches!(begun, Ok(ToolCallBegun::Call { .. })), "{begun:?}");
    }
    let more = bench.write(begin(&run, "more", "a", 0)).await;
    assert_eq!(more.unwrap(), ToolCallBegun::TooMany);
    let repeated = bench.write(begin(&run, "7", "a", 0)).await;
    assert_eq!(
        repeated.unwrap(),
        ToolCallBegun::Refused(RepeatedCallDecision::InProgress)
    );
    bench.end(&run, 0).await;
    let late = bench.write(begin(&run, "7", "a", 0)).await;
    assert_eq!(late.unwrap(), ToolCallBegun::RunEnded);
}

async fn counted_call_replaces_the_oldest_result(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let first = counted(&run, "first", 1);
    let finish = FinishToolCall {
        key_of: KeyOf::Run,
        run_id: run.id,
        call_id: first.call_id,
        end: ToolCallEnd::Done("1".to_owned()),
    };
    bench.write(first).await.unwrap();
    bench.write(finish).await.unwrap();
    let keys = (1..TOOL_CALLS).map(|n| bench.write(begin(&run, &n.to_string(), "a", 0)));
    for begun in futures_util::future::join_all(keys).await {
        assert!(matches!(begun, Ok(ToolCallBegun::Call { .. })), "{begun:?}");
    }
    let next = bench.write(counted(&run, "next", 1)).await;
    assert_eq!(next.unwrap(), called("next\t1"));
    // No recorded result is left to replace.
    let last = bench.write(counted(&run, "last", 1)).await;
    assert_eq!(last.unwrap(), ToolCallBegun::TooMany);
}

fn append(run: &Run, sequence: u64, raw: String) -> AppendResults {
    AppendResults {
        run_id: run.id,
        attempt: run.attempt,
        lease: Duration::from_mins(1),
        digests: vec![result_digest(&raw)],
        results: vec![(sequence, raw)],
        max_bytes: 100,
        audit: audit(Uuid::now_v7()),
    }
}

/// An async run.
async fn deferred(bench: &StoreFixture) -> Run {
    let run = bench.running("e").await;
    let defer = StartAsyncRun {
        streamed_through: 0,
        run_id: run.id,
        attempt: run.attempt,
        fencing_token: run.fencing_token,
        lease: Duration::from_mins(1),
    };
    assert!(bench.write(defer).await.unwrap());
    run
}

async fn closed_run_accepts_only_repeated_results(bench: StoreFixture) {
    let run = deferred(&bench).await;
    let send = async |sequence: u64| {
        let append = append(&run, sequence, "1".to_owned());
        bench.write(append).await.unwrap()
    };
    let close = async |only_if_expired: bool, epoch: i64| {
        let close = CloseAppends {
            run_id: run.id,
            attempt: run.attempt,
            epoch,
            only_if_expired,
        };
        bench.write(close).await.unwrap()
    };
    let epoch = run.fencing_token;
    assert_eq!(send(1).await, ResultsAppended::Through(1));
    assert_eq!(close(true, epoch).await, AppendsClosed::Heartbeating);
    assert_eq!(
        close(false, epoch - 1).await,
        AppendsClosed::Lost,
        "another's"
    );
    assert_eq!(send(2).await, ResultsAppended::Through(2));
    let silent = "UPDATE run_deferrals SET lease_expires_at = 1";
    bench.tamper(silent).await;
    assert_eq!(
        close(true, epoch).await,
        AppendsClosed::Behind(2),
        "unheard"
    );
    assert_eq!(send(3).await, ResultsAppended::RunEnded);
    assert_eq!(send(2).await, ResultsAppended::Through(2), "sent again");
    let heartbeat = Heartbeat {
        run_id: run.id,
        attempt: run.attempt,
        lease: Duration::from_mins(1),
    };
    assert_eq!(
        bench.write(heartbeat).await.unwrap(),
        Heartbeating::RunEnded
    );
    // A new owner judges the accepted results and waits for no more.
    let minute = Duration::from_mins(1);
    let left_off = bench.leases().resume(run.id, run.attempt, minute).await;
    assert_eq!(left_off.unwrap().unwrap().accepted_through, 2);
    let heartbeat_remaining = bench
        .leases()
        .heartbeat_remaining(run.id, run.attempt)
        .await;
    assert_eq!(heartbeat_remaining.unwrap(), None);
    assert_eq!(close(false, epoch).await, AppendsClosed::Behind(2));
    bench.end(&run, 0).await;
    assert_eq!(close(false, epoch).await, AppendsClosed::Lost);
}

async fn accepts_calls_with_their_events_unless_overtaken(bench: StoreFixture) {
    let run = deferred(&bench).await;
    let call = |sequence: u64| append(&run, sequence, sequence.to_string());
    let with_call = |sequence: u64, from: u64| Append {
        accepted: call(sequence).accepted().into_iter().collect(),
        judged_through: Some(sequence),
        ..bench.append(&run, from, &["event"])
    };
    let written = Appended::Written { next: Vec::new() };
    assert_eq!(bench.write(with_call(1, 0)).await.unwrap(), written);
    // A repeat after a lost reply: the row of the run proves the commit.
    assert_eq!(bench.write(with_call(1, 0)).await.unwrap(), Appended::Lost);
    let again = bench.write(call(1)).await.unwrap();
    assert_eq!(again, ResultsAppended::Through(1));
    let other = bench.write(append(&run, 1, "2".to_owned())).await.unwrap();
    assert_eq!(other, ResultsAppended::Conflict { sequence: 1 });

    // Another replica accepts the same results first.
    let first = bench.write(call(2)).await.unwrap();
    assert_eq!(first, ResultsAppended::Through(2));
    let overtaken = bench.write(with_call(2, 1)).await.unwrap();
    assert_eq!(overtaken, Appended::Overtaken);
    let lines = bench.runs().read_lines(run.id, 0, 10, usize::MAX).await;
    assert_eq!(lines.unwrap().len(), 1);
    let minute = Duration::from_mins(1);
    let left_off = bench.leases().resume(run.id, run.attempt, minute).await;
    let left_off = left_off.unwrap().unwrap();
    assert_eq!((left_off.judged_through, left_off.accepted_through), (1, 2));
}

/// The runner could otherwise not end such a run.
async fn accepts_one_append_beyond_the_limit(bench: StoreFixture) {
    let run = deferred(&bench).await;
    let append = async |sequence: u64, bytes: usize| {
        let append = append(&run, sequence, format!("\"{}\"", "x".repeat(bytes - 2)));
        bench.write(append).await.unwrap()
    };
    assert_eq!(append(1, 60).await, ResultsAppended::Through(1));
    assert_eq!(append(2, 40).await, ResultsAppended::Through(2));
    assert_eq!(append(3, 90).await, ResultsAppended::Through(3));
    assert_eq!(append(4, 2).await, ResultsAppended::Full);
    // A repeat after a lost reply.
    assert_eq!(append(3, 90).await, ResultsAppended::Through(3));
    let (last, results) = bench
        .leases()
        .appended_results(run.id, 2)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((last, results.len(), results[0].len()), (3, 1, 90));
}

/// Inserts runs and events, one per millisecond. Only the oldest run failed, and only the oldest event has
/// another type.
async fn make_many(bench: &StoreFixture, count: i64) {
    let frozen = match bench.database {
        Some(_) => (", agent_spec, snapshot", ", '{}', '{}'"),
        None => ("", ""),
    };
    let numbers = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    );
    let id = "'00000000-0000-7000-8000-' || (100000000000 + i)";
    let (columns, values) = frozen;
    let runs = format!(
        "{numbers} INSERT INTO runs (id, workspace_id, event_id, agent_id, agent_version, runner_id, endpoint_id, \
         status, attempt, lease_epoch, last_sequence, deadline_at, snapshot_sha256, metadata, created_at, \
         finished_at{columns}) SELECT {id}, 'default', 'e' || i, '00000000-0000-0000-0000-000000000000', 1, \
         'plugin:a/b/c', '00000000-0000-0000-0000-000000000000', \
         CASE WHEN i = 1 THEN 'failed' ELSE 'completed' END, 1, 1, 1, 1, '', '{{}}', i, i{values} FROM n"
    );
    bench.tamper(&runs).await;
    let events = format!(
        "{numbers} INSERT INTO events (workspace_id, event_id, dedupe_key, body_sha256, answer, event_type, \
         source, bot_id, envelope, received_at) SELECT 'default', 'e' || i, 'd' || i, '', '{{}}', \
         CASE WHEN i = 1 THEN 'rare' ELSE 'often' END, 's', '', '{{}}', i FROM n"
    );
    bench.tamper(&events).await;
}

async fn cursors_reach_rare_runs_and_events(bench: StoreFixture) {
    make_many(&bench, 25_000).await;
    let filter = RunFilter {
        statuses: vec![RunStatus::Failed],
        ..RunFilter::default()
    };
    let (mut before, mut looked) = (None, Vec::new());
    let found = loop {
        let window = RunWindow {
            before,
            limit: 10,
            bytes: usize::MAX,
            ..RunWindow::default()
        };
        let found = bench.runs().list_runs(&bench.workspace, &filter, &window);
        let found = found.await.unwrap();
        let Some(next) = found.next else {
            break found.runs;
        };
        assert!(found.runs.is_empty());
        looked.push(next.created_at);
        before = Some(next);
    };
    assert_eq!(looked, [15_001, 5_001]);
    assert_eq!((found.len(), found[0].created_at), (1, 1));
    // A filter that matches many rows fills its page.
    let filter = RunFilter {
        statuses: vec![RunStatus::Completed],
        ..RunFilter::default()
    };
    let window = RunWindow {
        limit: 10,
        bytes: usize::MAX,
        ..RunWindow::default()
    };
    let found = bench.runs().list_runs(&bench.workspace, &filter, &window);
    let found = found.await.unwrap();
    assert_eq!(
        (found.runs.len(), found.next.unwrap().created_at),
        (10, 24_991)
    );
    let count = bench.runs().count_runs(&bench.workspace, &filter).await;
    assert_eq!(count.unwrap(), None);

    let filter = EventFilter {
        event_types: vec!["rare".to_owned()],
        ..EventFilter::default()
    };
    let (mut after, mut looked) = (None, Vec::new());
    let found = loop {
        let store = &bench.store;
        let found = store
            .events()
            .list_events(&bench.workspace, &filter, after.as_ref(), 10);
        let found = found.await.unwrap();
        let Some(next) = found.next else {
            break found.records;
        };
        looked.push(next.received_at);
        after = Some(next);
    };
    assert_eq!(looked, [15_001, 5_001]);
    assert_eq!((found.len(), found[0].event_id.as_str()), (1, "e1"));
}

/// Filters without an index scan a bounded number of rows for each page, and find the oldest run in the end.
async fn cursors_reach_runs_of_each_filter(bench: StoreFixture) {
    make_many(&bench, 25_000).await;
    let oldest =
        "UPDATE runs SET status_reason = 'ours.broken', started_at = -5000 WHERE created_at = 1";
    bench.tamper(oldest).await;
    let all = RunFilter::default();
    let begin = |text: &str| RunFilter {
        text: Some(text.to_owned()),
        ..all.clone()
    };
    let bounds = |min, max| NumberRange {
        min: Some(min),
        max: Some(max),
    };
    let with_error = RunFilter {
        error_code: Some("ours.broken".to_owned()),
        ..all.clone()
    };
    let slow = RunFilter {
        duration_ms: bounds(5001, 5001),
        ..all.clone()
    };
    let oldest_id = "00000000-0000-7000-8000-100000000001";
    for (filter, pages) in [
        (begin(oldest_id), 1),
        // Nine ids, found without a scan.
        (begin(&oldest_id[..35]), 1),
        (with_error, 3),
        (slow, 3),
    ] {
        let (mut before, mut found, mut read) = (None, Vec::new(), 0);
        loop {
            let window = RunWindow {
                before,
                limit: 10,
                bytes: usize::MAX,
                ..RunWindow::default()
            };
            let page = bench.runs().list_runs(&bench.workspace, &filter, &window);
            let page = page.await.unwrap();
            read += 1;
            found.extend(page.runs.iter().map(|run| run.created_at));
            let Some(next) = page.next else { break };
            before = Some(next);
        }
        assert_eq!((found.last(), read), (Some(&1), pages), "{filter:?}");
    }
    // Too many ids begin with it for a look-up, so the list scans.
    let window = RunWindow {
        limit: 10,
        bytes: usize::MAX,
        ..RunWindow::default()
    };
    let many = begin(&oldest_id[..24]);
    let found = bench.runs().list_runs(&bench.workspace, &many, &window);
    assert_eq!(found.await.unwrap().runs.len(), 10);
    // A page that compares costs reads half of the rows.
    let free = RunFilter {
        cost_micros: bounds(1, 2),
        ..all
    };
    let found = bench.runs().list_runs(&bench.workspace, &free, &window);
    let found = found.await.unwrap();
    assert_eq!(
        (found.runs.len(), found.next.unwrap().created_at),
        (0, 20_001)
    );
}

async fn cursors_reach_rare_interactions(bench: StoreFixture) {
    make_many(&bench, 25_000).await;
    let id = "'00000000-0000-7000-8000-' || (100000000000 + i)";
    let interactions = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 25000) \
         INSERT INTO interactions (id, workspace_id, run_id, sequence, interaction_id, request, expires_at, asked_at) \
         SELECT {id}, 'default', {id}, 1, 'q', '{{}}', CASE WHEN i = 1 THEN 9 ELSE 1 END, i FROM n"
    );
    bench.tamper(&interactions).await;
    let mut filter = InteractionFilter {
        status: Some(InteractionStatus::Open),
        now: 5,
        ..InteractionFilter::default()
    };
    let mut looked = Vec::new();
    let found = loop {
        let found = bench
            .interactions()
            .list_interactions(&bench.workspace, &filter, 10);
        let found = found.await.unwrap();
        let Some(next) = found.next else {
            break found.records;
        };
        assert!(found.records.is_empty());
        let InteractionOrder::Newest { before: Some(id) } = next else {
            panic!("{next:?}");
        };
        filter.order = next;
        looked.push(id.to_string()[24..].to_owned());
    };
    assert_eq!(looked, ["100000015001", "100000005001"]);
    assert_eq!((found.len(), found[0].asked_at), (1, 1));
    // Without a filter each page is full.
    let all = InteractionFilter::default();
    let found = bench
        .interactions()
        .list_interactions(&bench.workspace, &all, 10);
    let found = found.await.unwrap();
    assert_eq!(
        (found.records.len(), found.records[0].asked_at),
        (10, 25_000)
    );
    let last = found.records[9].id.parse().unwrap();
    assert_eq!(
        found.next,
        Some(InteractionOrder::Newest { before: Some(last) })
    );
}

/// Open questions come in the order of their expiry, each once, across answered ones and equal times.
async fn lists_open_interactions_by_expiry(bench: StoreFixture) {
    make_many(&bench, 12_000).await;
    let id = "'00000000-0000-7000-8000-' || (100000000000 + i)";
    // Every second question is closed. Three questions expire at each time, the oldest ones last.
    let interactions = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12000) \
         INSERT INTO interactions (id, workspace_id, run_id, sequence, interaction_id, request, expires_at, asked_at, \
             closed_at) \
         SELECT {id}, 'default', {id}, 1, 'q', '{{}}', 12000 - i / 6, i, CASE WHEN i % 2 = 0 THEN 1 END FROM n"
    );
    bench.tamper(&interactions).await;
    let mut filter = InteractionFilter {
        status: Some(InteractionStatus::Open),
        // The questions of the newest 1,200 rows have expired.
        now: 10_200,
        order: InteractionOrder::Expiry { after: None },
        ..InteractionFilter::default()
    };
    let mut seen = Vec::new();
    loop {
        let found = bench
            .interactions()
            .list_interactions(&bench.workspace, &filter, 100);
        let found = found.await.unwrap();
        seen.extend(
            found
                .records
                .iter()
                .map(|one| (one.expires_at, one.id.clone())),
        );
        let Some(next) = found.next else { break };
        filter.order = next;
    }
    assert!(seen.is_sorted());
    seen.dedup();
    let expected = (1..12_000).step_by(2).filter(|i| 12_000 - i / 6 > 10_200);
    assert_eq!(seen.len(), expected.count());
}

async fn aggregates_denied_calls(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let (id, own) = (Uuid::now_v7(), Uuid::now_v7());
    let entry = |id, at, is_shared| AuditEntry {
        run_id: run.id,
        allowed: false,
        at,
        is_shared,
        ..audit(id)
    };
    // Several share a batch.
    let entries = (0..50).map(|n| bench.audit_log().audit(entry(id, n, true)));
    for queued in futures_util::future::join_all(entries).await {
        queued.unwrap();
    }
    bench.audit_log().audit(entry(own, 1, false)).await.unwrap();
    let audit = loop {
        let audit = bench
            .audit_log()
            .list_audit(run.id, None, 10)
            .await
            .unwrap();
        if audit.items.iter().map(|entry| entry.calls).sum::<u64>() == 51 {
            break audit;
        }
        tokio::task::yield_now().await;
    };
    let seen: Vec<_> = audit
        .items
        .iter()
        .map(|entry| (entry.calls, entry.at))
        .collect();
    assert_eq!(seen, [(50, 49), (1, 1)]);
}

async fn deletes_old_audit_entries(bench: StoreFixture) {
    let old = Uuid::from_u128(1_000_u128 << 80);
    let now = Uuid::now_v7();
    for (run, at) in [(old, 1_000), (old, i64::MAX), (now, 1_000)] {
        let entry = AuditEntry {
            run_id: RunId(run),
            at,
            ..audit(Uuid::now_v7())
        };
        bench.audit_log().audit(entry).await.unwrap();
    }
    // Audit rows are written asynchronously.
    for (run, count) in [(old, 2), (now, 1)] {
        while bench
            .audit_log()
            .list_audit(RunId(run), None, 10)
            .await
            .unwrap()
            .items
            .len()
            < count
        {
            tokio::task::yield_now().await;
        }
    }
    let day = Duration::from_hours(24);
    assert_eq!(bench.audit_log().sweep_audit(day).await.unwrap(), 1);
    assert_eq!(bench.audit_log().sweep_audit(day).await.unwrap(), 0);
    let remaining = bench
        .audit_log()
        .list_audit(RunId(old), None, 10)
        .await
        .unwrap();
    assert_eq!(remaining.items.len(), 1);
}
