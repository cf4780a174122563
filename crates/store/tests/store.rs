//! The store on its real databases: SQLite always, PostgreSQL when `RUNNEL_TEST_POSTGRES_URL` is set.
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{StoreFixture, audit, cancel_request, dispatch, on_both, plan_by};
use domain::normalize::{Reason, Rejection, RunQuestion, StateUpdate};
use domain::run::Run;
use protocol::id::WorkspaceId;
use protocol::principal::{Principal, PrincipalKind};
use protocol::resources::StateScope;
use protocol::run::RunStatus;
use serde_json::value::RawValue;
use store::{
    AnsweredBy, Append, Appended, CancelCause, CancelOutcome, Dispatch, Dispatched, DocumentParts,
    HistoryQuery, Ingest, IngestPlan, Ingested, LeaseFilter, LinkInteraction, NewInteraction,
    RunEnd, StateAccess, StateChange, StateWritten, Store, TranscriptWrite, Unanswerable, terms_of,
};
use tokio::task::JoinSet;
use uuid::Uuid;

/// Written, without a promoted run.
const WRITTEN: Appended = Appended::Written { next: Vec::new() };

on_both!(
    stores_event_once_and_replays_answer,
    refused_event_stores_nothing,
    append_requires_epoch_and_sequence,
    reads_events_in_order_across_segments,
    ends_run_once_with_output_and_transcript,
    state_write_requires_version_and_live_run,
    never_reuses_state_versions,
    bodies_commit_under_the_lease_of_a_live_run,
    records_first_cancel_of_live_run,
    refuses_answers_by_replaced_link_or_after_cancel,
    accepted_cancel_overrides_final_status,
    keeps_messages_in_order,
    takes_over_expired_run_once,
    distinguishes_dispatches_of_one_owner,
    bad_item_fails_alone,
    runner_id_belongs_to_one_endpoint,
    prunes_bounded_bytes_per_transaction,
);

async fn refuses_answers_by_replaced_link_or_after_cancel(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let question = NewInteraction {
        id: Uuid::now_v7(),
        sequence: 1,
        question: RunQuestion {
            interaction_id: "q".to_owned(),
            request: "{}".to_owned(),
            expires_at: 9_000,
            is_awaited: false,
        },
    };
    let id = question.id.to_string();
    let mut asking = bench.append(&run, 0, &["asks"]);
    asking.interactions.push(question);
    assert_eq!(bench.write(asking).await.unwrap(), WRITTEN);
    let link = async |token: &str| {
        let linked = LinkInteraction {
            workspace: bench.workspace.clone(),
            id: id.clone(),
            token_sha256: token.to_owned(),
        };
        bench.write(linked).await.unwrap();
    };
    let answer = async |event_id: &str, token: Option<&str>| {
        let mut event = bench.event(event_id, "body");
        event.answers = Some(AnsweredBy {
            interaction: id.clone(),
            token_sha256: token.map(str::to_owned),
        });
        let seen = Arc::new(Mutex::new(None));
        let saw = Arc::clone(&seen);
        let stored = IngestPlan::Keep {
            answer: event_id.to_owned(),
        };
        event.decide = plan_by(move |facts| {
            *saw.lock().unwrap() = facts.unanswerable;
            match facts.unanswerable {
                Some(_) => IngestPlan::Refuse,
                None => stored.clone(),
            }
        });
        let ingested = bench.ingest(event).await.unwrap();
        let seen = *seen.lock().unwrap();
        assert_eq!(ingested == Ingested::Refused, seen.is_some());
        seen
    };
    link("first").await;
    assert_eq!(answer("a-1", Some("first")).await, None);
    link("second").await;
    let replaced = Some(Unanswerable::LinkReplaced);
    assert_eq!(answer("a-2", Some("first")).await, replaced);
    assert_eq!(answer("a-3", Some("second")).await, None);
    assert_eq!(answer("a-4", None).await, None);
    let cancelled = bench
        .runs()
        .request_cancel(&bench.workspace, run.id, cancel_request(), 4_000);
    cancelled.await.unwrap();
    let gone = Some(Unanswerable::Cancelled);
    assert_eq!(answer("a-5", Some("second")).await, gone);
    assert_eq!(answer("a-6", None).await, gone);
}

async fn stores_event_once_and_replays_answer(bench: StoreFixture) {
    let event = bench.event("e-1", "body");
    let stored = bench.ingest(event.clone()).await.unwrap();
    assert_eq!(
        stored,
        Ingested::Stored {
            answer: "e-1".to_owned()
        }
    );
    let again = bench.ingest(event.clone()).await.unwrap();
    assert_eq!(
        again,
        Ingested::Replayed {
            answer: "e-1".to_owned()
        }
    );
    let other = Ingest {
        body_sha256: "other".to_owned(),
        ..event.clone()
    };
    assert_eq!(bench.ingest(other).await.unwrap(), Ingested::Mismatch);
    let other = Ingest {
        dedupe_key: "another key".to_owned(),
        ..event
    };
    assert_eq!(bench.ingest(other).await.unwrap(), Ingested::EventExists);
}

async fn refused_event_stores_nothing(bench: StoreFixture) {
    let mut event = bench.event("e-1", "body");
    let wanted = event.decide.clone();
    event.decide = plan_by(|_| IngestPlan::Refuse);
    assert_eq!(
        bench.ingest(event.clone()).await.unwrap(),
        Ingested::Refused
    );
    event.decide = wanted;
    let stored = bench.ingest(event).await.unwrap();
    assert!(matches!(stored, Ingested::Stored { .. }));
    let run = bench.only_run().await;
    let inputs = bench.runs().find_run_inputs(&run).await.unwrap().unwrap();
    assert_eq!(
        inputs.event_seq,
        Some(1),
        "the refused event was not counted"
    );
}

async fn append_requires_epoch_and_sequence(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let append = bench.append(&run, 0, &["a", "b"]);
    assert_eq!(bench.write(append.clone()).await.unwrap(), WRITTEN);
    assert_eq!(
        bench.write(append.clone()).await.unwrap(),
        Appended::Lost,
        "the same place"
    );
    let stale = Append {
        epoch: run.fencing_token - 1,
        from: 2,
        to: 4,
        ..append
    };
    assert_eq!(
        bench.write(stale).await.unwrap(),
        Appended::Lost,
        "an older epoch"
    );
    let lines = bench
        .runs()
        .read_lines(run.id, 0, 100, usize::MAX)
        .await
        .unwrap();
    assert_eq!(
        lines
            .iter()
            .map(|line| line.text.as_str())
            .collect::<Vec<_>>(),
        ["a", "b"]
    );
}

async fn reads_events_in_order_across_segments(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let mut from = 0;
    for size in [
        1, 3, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 5,
    ] {
        let texts: Vec<String> = (from + 1..=from + size)
            .map(|n| format!("{{\"n\":{n}}}"))
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let append = bench.append(&run, from, &texts);
        assert_eq!(bench.write(append).await.unwrap(), WRITTEN);
        from += size;
    }
    for after in 0..=from {
        for limit in [1, 2, 100] {
            let lines = bench
                .runs()
                .read_lines(run.id, after, limit, usize::MAX)
                .await
                .unwrap();
            let expected: Vec<u64> = (after + 1..=from).take(limit).collect();
            let found: Vec<u64> = lines.iter().map(|line| line.sequence).collect();
            assert_eq!(found, expected, "after {after}, limit {limit}");
            assert!(
                lines
                    .iter()
                    .all(|line| line.text == format!("{{\"n\":{}}}", line.sequence))
            );
        }
    }
}

async fn ends_run_once_with_output_and_transcript(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let terminal = RunEnd {
        status: RunStatus::Completed,
        reason: "stop".to_owned(),
        output: Some(r#"{"role":"assistant","content":"hi"}"#.to_owned()),
        error: None,
        usage: Some(r#"{"total_tokens":3}"#.to_owned()),
        metadata: r#"{"rejected":1}"#.to_owned(),
        promotion: None,
        transcript: vec![TranscriptWrite {
            id: Uuid::now_v7(),
            conversation_key: run.conversation_key.clone().unwrap(),
            event_id: run.event_id.clone(),
            role: "assistant",
            terms: terms_of(run.conversation_key.as_deref().unwrap(), Some("hi")),
            content: Some("hi".to_owned()),
            content_json: "{}".to_owned(),
            attachment_refs: "[]".to_owned(),
            author: None,
        }],
    };
    let append = Append {
        rejections: vec![Rejection::new(
            Reason::InvalidPayload,
            Some(u64::MAX),
            b"x\0y",
            "it is nothing",
        )],
        terminal: Some(terminal),
        ..bench.append(&run, 0, &["last"])
    };
    assert_eq!(bench.write(append.clone()).await.unwrap(), WRITTEN);
    let second = Append {
        from: 1,
        to: 2,
        ..append
    };
    assert_eq!(
        bench.write(second).await.unwrap(),
        Appended::Lost,
        "nothing after the end"
    );
    let ended = bench.only_run().await;
    assert_eq!(
        (ended.status, ended.last_sequence),
        (RunStatus::Completed, 1)
    );
    assert_eq!(ended.usage.unwrap().value()["total_tokens"], 3);
    let key = run.conversation_key.unwrap();
    let page = HistoryQuery {
        forward: true,
        limit: 10,
        ..HistoryQuery::default()
    };
    let items = bench
        .conversations()
        .page_history(&key, page)
        .await
        .unwrap()
        .items;
    let roles: Vec<_> = items
        .iter()
        .map(|item| (item.seq, item.role.as_str()))
        .collect();
    assert_eq!(roles, [(1, "user"), (2, "assistant")]);
    let rejections = bench
        .runs()
        .list_rejections(run.id, 0, 10)
        .await
        .unwrap()
        .items;
    assert_eq!(rejections[0].runner_sequence, Some(u64::MAX));
    assert_eq!(rejections[0].excerpt, "xy");
}

async fn never_reuses_state_versions(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let put = |key, value, if_match| bench.write(bench.put(&run, key, value, if_match));
    let written = put("k", Some("1"), None).await.unwrap();
    assert_eq!(written, StateWritten::Version(1));
    put("k", Some("2"), Some(1)).await.unwrap();
    put("other", Some("1"), None).await.unwrap();
    put("k", None, Some(2)).await.unwrap();
    put("other", None, None).await.unwrap();
    let written = put("k", Some("3"), None).await.unwrap();
    assert_eq!(written, StateWritten::Version(3));
    // Stale versions are refused.
    for read in [1, 2] {
        let refused = put("k", Some("4"), Some(read)).await.unwrap();
        assert_eq!(refused, StateWritten::Mismatch(3));
    }
}

async fn bodies_commit_under_the_lease_of_a_live_run(bench: StoreFixture) {
    let (run, other) = (bench.running("e-1").await, bench.running("e-2").await);
    let put = |run: &Run, if_match, ids: &[&str], stay: Option<&[&str]>| {
        let bodies = ids
            .iter()
            .map(|id| ((*id).to_owned(), format!("[\"{id}\"]")));
        let stay = stay.map(|ids| ids.iter().map(|id| (*id).to_owned()).collect());
        let change = StateChange {
            document: DocumentParts {
                summary: Some("{}".to_owned()),
                lease: Some(Duration::from_hours(1)),
                bodies: bodies.collect(),
                body_ids: stay,
            },
            ..bench.put(run, "k", Some("1"), if_match)
        };
        bench.write(change)
    };
    let access = bench.put(&run, "k", None, None).access;
    let body = async |id| {
        bench
            .state()
            .find_state_body(&access, "k", id)
            .await
            .unwrap()
    };
    let written = put(&run, None, &["a", "b", "c"], None).await.unwrap();
    assert_eq!(written, StateWritten::Version(1));
    let listed = bench.state().list_state_summaries(&access, "a", "z").await;
    let lease = listed.unwrap()[0].lease.unwrap();
    assert_eq!(lease.run, run.id);
    let refused = put(&other, Some(1), &[], None).await.unwrap();
    assert_eq!(refused, StateWritten::Leased(lease));
    let refused = put(&run, None, &["d"], Some(&["a", "x"])).await.unwrap();
    assert_eq!(refused, StateWritten::MissingBody(1));
    let written = put(&run, None, &["a", "d"], Some(&["b"])).await.unwrap();
    assert_eq!(written, StateWritten::Version(2));
    assert_eq!(body("c").await, None);
    for id in ["a", "b", "d"] {
        assert_eq!(body(id).await, Some(format!("[\"{id}\"]")));
    }
    bench.end(&run, 0).await;
    let refused = put(&other, None, &[], None).await.unwrap();
    assert_eq!(refused, StateWritten::NotLeased(2));
    let taken = put(&other, Some(2), &[], None).await.unwrap();
    assert_eq!(taken, StateWritten::Version(3));
    let gone = bench.put(&other, "k", None, None);
    assert_eq!(bench.write(gone).await.unwrap(), StateWritten::Deleted);
    assert_eq!(body("b").await, None);
}

async fn state_write_requires_version_and_live_run(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let access = StateAccess {
        scope: StateScope::Conversation,
        identity: "c".to_owned(),
    };
    let put = bench.put(&run, "k/1", Some("1"), None);
    assert_eq!(bench.write(put).await.unwrap(), StateWritten::Version(1));
    for expected in [StateWritten::Version(2), StateWritten::Mismatch(2)] {
        let put = bench.put(&run, "k/1", Some("2"), Some(1));
        assert_eq!(bench.write(put).await.unwrap(), expected);
    }
    let update = StateUpdate {
        scope: StateScope::Conversation,
        identity: "c".to_owned(),
        key: "k/2".to_owned(),
        value: "true".to_owned(),
    };
    let append = Append {
        states: vec![update],
        ..bench.append(&run, 0, &["x"])
    };
    bench.write(append).await.unwrap();
    let part = bench.state().read_state(&access, 10, 1000).await.unwrap();
    assert!(part.is_complete);
    let found: Vec<_> = part
        .entries
        .iter()
        .map(|e| (e.key.as_str(), e.value.as_str(), e.version))
        .collect();
    assert_eq!(found, [("k/1", "2", 2), ("k/2", "true", 1)]);
    // A value that does not fit is skipped, and later ones are included.
    let long = bench.put(&run, "k/0", Some("[1,2,3,4]"), None);
    bench.write(long).await.unwrap();
    for (limit, bytes, expected) in [(10, 6, vec!["k/1", "k/2"]), (2, 1000, vec!["k/0", "k/1"])] {
        let part = bench
            .state()
            .read_state(&access, limit, bytes)
            .await
            .unwrap();
        let keys: Vec<_> = part.entries.iter().map(|entry| &entry.key).collect();
        assert_eq!(keys, expected);
        assert!(!part.is_complete);
    }
    let gone = bench.put(&run, "k/0", None, None);
    bench.write(gone).await.unwrap();
    for (prefix, after, limit, expected) in [
        ("k/", "", 1, vec!["k/1"]),
        ("k/", "k/1", 9, vec!["k/2"]),
        ("x", "", 9, vec![]),
        ("", "", 9, vec!["k/1", "k/2"]),
    ] {
        let keys = bench
            .state()
            .list_state_keys(&access, prefix, after, limit)
            .await
            .unwrap();
        assert_eq!(keys, expected, "{prefix}");
    }
    for expected in [StateWritten::Deleted, StateWritten::Absent] {
        let gone = bench.put(&run, "k/1", None, None);
        assert_eq!(bench.write(gone).await.unwrap(), expected);
    }
    bench.end(&run, 1).await;
    let late = bench.put(&run, "k/3", Some("1"), None);
    assert_eq!(bench.write(late).await.unwrap(), StateWritten::RunEnded);
}

async fn records_first_cancel_of_live_run(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let cancel = async |at: i64| {
        let by = Principal::identified(PrincipalKind::Event, at.to_string());
        bench
            .runs()
            .request_cancel(&bench.workspace, run.id, by.into(), at)
            .await
            .unwrap()
    };
    let CancelOutcome::Requested(first) = cancel(7).await else {
        panic!("it lives")
    };
    let CancelOutcome::Requested(second) = cancel(8).await else {
        panic!("it lives")
    };
    assert_eq!(
        (first.cancel_requested_at, second.cancel_requested_at),
        (Some(7), Some(7))
    );
    let by = Some(Principal::identified(PrincipalKind::Event, "7"));
    assert_eq!((&first.cancelled_by, &second.cancelled_by), (&by, &by));
    bench.end(&run, 0).await;
    assert!(matches!(cancel(9).await, CancelOutcome::Ended(_)));
    let other_workspace = WorkspaceId("other".to_owned());
    let unknown = bench
        .runs()
        .request_cancel(&other_workspace, run.id, cancel_request(), 1)
        .await
        .unwrap();
    assert!(matches!(unknown, CancelOutcome::Unknown));
}

fn terminal(status: RunStatus, transcript: Vec<TranscriptWrite>) -> RunEnd {
    RunEnd {
        status,
        reason: "stop".to_owned(),
        output: None,
        error: None,
        usage: None,
        metadata: "{}".to_owned(),
        promotion: None,
        transcript,
    }
}

/// Also when the run's owner has not seen the cancel.
async fn accepted_cancel_overrides_final_status(bench: StoreFixture) {
    let rejected = || Rejection::new(Reason::InvalidPayload, None, b"x", "it is nothing");
    for (event, reason, rejections) in [
        ("e-1", None, vec![]),
        ("e-2", Some("enough"), vec![rejected()]),
    ] {
        let run = bench.running(event).await;
        let request = CancelCause {
            reason: reason.map(str::to_owned),
            ..cancel_request()
        };
        let cancel = bench
            .runs()
            .request_cancel(&bench.workspace, run.id, request, 7);
        cancel.await.unwrap();
        for status in [RunStatus::Completed, RunStatus::Failed, RunStatus::Timeout] {
            let append = Append {
                rejections: rejections.clone(),
                terminal: Some(terminal(status, Vec::new())),
                ..bench.append(&run, 0, &["last"])
            };
            let written = bench.write(append).await.unwrap();
            assert_eq!(written == WRITTEN, status == RunStatus::Completed);
        }
        let found = bench
            .runs()
            .find_run(&bench.workspace, run.id)
            .await
            .unwrap();
        let found = found.unwrap();
        assert_eq!(found.status, RunStatus::Cancelled);
        let reason_text = found.status_reason.as_deref();
        assert_eq!(reason_text, Some(reason.unwrap_or("cancelled")));
        assert_eq!(found.error.unwrap().value()["code"], "cancelled");
    }
}

async fn keeps_messages_in_order(bench: StoreFixture) {
    let mut expected = Vec::<&str>::new();
    for (event, texts) in [("e-1", &["one", "two", "three"][..]), ("e-2", &["four"])] {
        let run = bench.running(event).await;
        let key = run.conversation_key.clone().unwrap();
        let items = texts.iter().map(|text| TranscriptWrite {
            id: Uuid::now_v7(),
            conversation_key: key.clone(),
            event_id: run.event_id.clone(),
            role: "assistant",
            terms: terms_of(&key, Some(text)),
            content: Some((*text).to_owned()),
            content_json: "{}".to_owned(),
            attachment_refs: "[]".to_owned(),
            author: None,
        });
        let append = Append {
            terminal: Some(terminal(RunStatus::Completed, items.collect())),
            ..bench.append(&run, 0, &["last"])
        };
        assert_eq!(bench.write(append).await.unwrap(), WRITTEN);
        expected.extend(texts);
        let all = HistoryQuery {
            forward: true,
            limit: 100,
            ..HistoryQuery::default()
        };
        let page = bench.conversations().page_history(&key, all).await.unwrap();
        let answers = page.items.iter().filter(|item| item.role == "assistant");
        let texts: Vec<_> = answers
            .map(|item| item.content.as_deref().unwrap())
            .collect();
        assert_eq!(texts, expected);
    }
}

/// Two tasks of one process may take the run concurrently: one to call its runner, one after a queue timeout.
async fn distinguishes_dispatches_of_one_owner(bench: StoreFixture) {
    let run = bench.created("e").await;
    let ends = dispatch(&run);
    let goes_on = Dispatch {
        context: RawValue::from_string("{}".to_owned()).unwrap().into(),
        ..dispatch(&run)
    };
    for _ in 0..2 {
        let taken = bench.write(ends.clone()).await.unwrap();
        assert!(matches!(taken, Dispatched::Owned(_)), "also sent again");
        let other = bench.write(goes_on.clone()).await.unwrap();
        assert!(matches!(other, Dispatched::Lost));
    }
}

async fn takes_over_expired_run_once(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let ids = |runs: Vec<Run>| runs.iter().map(|run| run.id).collect::<Vec<_>>();
    let minute = Duration::from_mins(1);
    let hold = |lease| bench.leases().renew_leases("me", vec![run.id], lease);
    assert!(hold(minute).await.unwrap().held.contains_key(&run.id));
    for (leases, expected) in [
        (LeaseFilter::All, vec![run.id]),
        (LeaseFilter::Own, vec![run.id]),
        (LeaseFilter::Expired, vec![]),
        (LeaseFilter::None, vec![]),
    ] {
        let expired = bench.leases().expired_runs("me", leases, 10).await.unwrap();
        assert_eq!(ids(expired), expected, "{leases:?}: its lease holds");
    }
    let renewed = bench
        .leases()
        .take_over(&run, "o", minute, LeaseFilter::Expired);
    assert_eq!(renewed.await.unwrap(), None, "its lease holds");
    let foreign = bench
        .leases()
        .take_over(&run, "o", minute, LeaseFilter::Own);
    assert_eq!(foreign.await.unwrap(), None, "its lease is another's");
    hold(Duration::ZERO).await.unwrap();
    // By the database clock, whose millisecond may not have changed yet.
    let lapsed = async {
        let store = &bench.store;
        while (store
            .leases()
            .expired_runs("me", LeaseFilter::Expired, 10)
            .await
            .unwrap())
        .is_empty()
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(minute, lapsed)
        .await
        .expect("the lease lapses");
    let left = bench
        .leases()
        .take_over(&run, "o", minute, LeaseFilter::None);
    assert_eq!(left.await.unwrap(), None, "none may be taken");
    let takers = (0..64).map(|n| {
        let (bench, run) = (&bench, &run);
        async move {
            let (store, taker) = (&bench.store, format!("o-{n}"));
            if n % 2 == 0 {
                let taking = store
                    .leases()
                    .take_over(run, &taker, minute, LeaseFilter::Expired);
                return taking.await.unwrap();
            }
            let taking =
                store
                    .leases()
                    .take_over_batch(vec![run.id], &taker, minute, LeaseFilter::Expired);
            taking.await.unwrap().first().map(|run| run.fencing_token)
        }
    });
    let taken = futures_util::future::join_all(takers).await;
    assert_eq!(taken.iter().flatten().count(), 1);
    let append = bench.append(&run, 0, &["zombie"]);
    assert_eq!(bench.write(append).await.unwrap(), Appended::Lost);
}

async fn bad_item_fails_alone(bench: StoreFixture) {
    let runs = [
        bench.running("e-1").await,
        bench.running("e-2").await,
        bench.running("e-3").await,
    ];
    // The second item violates a unique key inside the shared transaction.
    let doubled = vec![audit(Uuid::nil()), audit(Uuid::nil())];
    let writes = runs.iter().enumerate().map(|(index, run)| {
        let audits = if index == 1 {
            doubled.clone()
        } else {
            Vec::new()
        };
        bench.write(Append {
            audits,
            ..bench.append(run, 0, &["x"])
        })
    });
    let outcomes = futures_util::future::join_all(writes).await;
    let written: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(written, [true, false, true]);
    for (run, expected) in runs.iter().zip([1, 0, 1]) {
        assert_eq!(
            bench
                .runs()
                .read_lines(run.id, 0, 10, usize::MAX)
                .await
                .unwrap()
                .len(),
            expected
        );
    }
}

async fn prunes_bounded_bytes_per_transaction(bench: StoreFixture) {
    let large = "x".repeat(3 << 20);
    for (n, word) in [(1, large.as_str()), (2, &large), (3, "x"), (4, "x")] {
        let run = bench.running(&format!("e-{n}")).await;
        let append = bench.append(&run, 0, &[word]);
        bench.write(append).await.unwrap();
        let id = run.id;
        let end =
            format!("UPDATE runs SET status = 'completed', finished_at = {n} WHERE id = '{id}'");
        bench.tamper(&end).await;
    }
    let age = Duration::from_secs(1);
    for expected in [1, 3, 0] {
        assert_eq!(bench.retention().prune_runs(age).await.unwrap(), expected);
    }
    // Small runs are limited by their number of events, because measuring would read them.
    for n in 5..8 {
        let run = bench.running(&format!("e-{n}")).await;
        let id = run.id;
        let end = format!(
            "UPDATE runs SET status = 'completed', finished_at = {n}, last_sequence = 6000 WHERE id = '{id}'"
        );
        bench.tamper(&end).await;
    }
    for expected in [1, 1, 1, 0] {
        assert_eq!(bench.retention().prune_runs(age).await.unwrap(), expected);
    }
}

async fn runner_id_belongs_to_one_endpoint(bench: StoreFixture) {
    let (first, second) = (
        bench.endpoint("first").await,
        bench.endpoint("second").await,
    );
    assert_eq!(bench.discover(first, None).await, []);
    assert_eq!(
        bench.discover(first, None).await,
        [],
        "again is no conflict"
    );
    let runner = "plugin:a/b/c".parse().unwrap();
    assert_eq!(bench.discover(second, None).await, [(runner, Some(first))]);
    assert_eq!(bench.discover(second, Some(first)).await, []);
    let found = bench
        .endpoints()
        .list_runners(&bench.workspace, None, 10)
        .await
        .unwrap()
        .items;
    assert_eq!(
        found
            .iter()
            .map(|runner| runner.endpoint_id)
            .collect::<Vec<_>>(),
        [second]
    );
}

/// Another gateway may store an event while this one waits for its conversation. The run that causes the refusal
/// is then its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replays_event_stored_concurrently() {
    let Some(bench) = StoreFixture::postgres().await else {
        return;
    };
    let (other, work) = Store::open(&bench.url()).await.unwrap();
    let mut writing = JoinSet::new();
    writing.spawn(work);
    // Without a conversation, so neither gateway waits for a lock.
    let first = Ingest {
        conversation: None,
        ..bench.event("e-1", "body")
    };
    let mut second = first.clone();
    let runtime = tokio::runtime::Handle::current();
    second.decide = plan_by(move |_| {
        let storing = other.events().ingest(first.clone());
        let stored = tokio::task::block_in_place(|| runtime.block_on(storing));
        assert!(stored.ingested.is_ok(), "{stored:?}");
        IngestPlan::Refuse
    });
    let answer = "e-1".to_owned();
    let ingested = bench.ingest(second).await.unwrap();
    assert_eq!(ingested, Ingested::Replayed { answer });
    bench.database.clone().unwrap().drop().await;
}

/// Two dispatches in one epoch would let two replicas POST the same run.
#[tokio::test]
async fn dispatches_created_run_once() {
    let bench = StoreFixture::sqlite().await;
    bench.ingest(bench.event("e-1", "body")).await.unwrap();
    let run = bench.only_run().await;
    let by = |owner: &str| Dispatch {
        owner: owner.to_owned(),
        ..dispatch(&run)
    };
    let (one, two) = tokio::join!(bench.write(by("one")), bench.write(by("two")));
    let owned = [one.unwrap(), two.unwrap()];
    assert_eq!(
        owned
            .iter()
            .filter(|one| matches!(one, Dispatched::Owned(_)))
            .count(),
        1
    );
}
