//! Batch operations: each item has the same result as in a batch of one.

use crate::support::{StoreFixture, TestEvent, dispatch, on_both, plan_by, together};
use store::{
    Append, Appended, Dispatched, HistoryQuery, Ingest, IngestPlan, Ingested, RunEnd, RunFilter,
    RunWindow, TranscriptWrite, terms_of,
};
use uuid::Uuid;

on_both!(
    batched_events_match_single_results,
    refused_event_does_not_affect_its_batch,
    capacity_counts_batched_events,
    runs_complete_in_batches,
);

fn in_conversation(mut event: TestEvent, conversation: &str) -> TestEvent {
    let identity = event.conversation.as_mut().unwrap();
    conversation.clone_into(&mut identity.conversation_id);
    event
}

async fn batched_events_match_single_results(bench: StoreFixture) {
    let stored = |id: &str| Ingested::Stored {
        answer: id.to_owned(),
    };
    let stored_event = in_conversation(bench.event("known", "a"), "c-0");
    assert_eq!(
        bench.ingest(stored_event.clone()).await.unwrap(),
        stored("known")
    );

    let first = in_conversation(bench.event("first", "a"), "c-1");
    let again = first.clone();
    let other_body = Ingest {
        body_sha256: "b".to_owned(),
        ..first.clone()
    };
    let other_key = Ingest {
        dedupe_key: "another key".to_owned(),
        ..in_conversation(bench.event("first", "a"), "c-9")
    };
    let same_conversation = in_conversation(bench.event("second", "a"), "c-1");
    let alone = in_conversation(bench.event("third", "a"), "c-3");
    let without = Ingest {
        conversation: None,
        ..bench.event("fourth", "a")
    };
    let events = vec![
        stored_event,
        first,
        again,
        other_body,
        other_key,
        same_conversation,
        alone,
        without,
    ];
    let ingests = events.into_iter().map(|event| bench.ingest(event));
    let taken = together(&bench, ingests).await;
    let taken: Vec<_> = taken.into_iter().map(Result::unwrap).collect();
    let expected = [
        Ingested::Replayed {
            answer: "known".to_owned(),
        },
        stored("first"),
        Ingested::Replayed {
            answer: "first".to_owned(),
        },
        Ingested::Mismatch,
        Ingested::EventExists,
        stored("second"),
        stored("third"),
        stored("fourth"),
    ];
    assert_eq!(taken, expected);

    for (conversation, event, seq) in [
        ("c-1", "first", 1),
        ("c-1", "second", 2),
        ("c-3", "third", 1),
    ] {
        let run = bench.run_of(conversation, event).await.unwrap();
        let inputs = bench.runs().find_run_inputs(&run).await.unwrap().unwrap();
        assert_eq!(inputs.event_seq, Some(seq), "{event}");
    }
    assert_eq!(runs(&bench).await.len(), 5);
}

async fn refused_event_does_not_affect_its_batch(bench: StoreFixture) {
    let refuse = |id: &str| Ingest {
        decide: plan_by(|_| IngestPlan::Refuse),
        ..in_conversation(bench.event(id, "a"), id)
    };
    let take = |id: &str| in_conversation(bench.event(id, "a"), id);
    let events = [take("e-1"), refuse("e-2"), take("e-3")];
    let taken = together(&bench, events.map(|event| bench.ingest(event))).await;
    let refused = taken
        .into_iter()
        .map(|taken| taken.unwrap() == Ingested::Refused);
    assert_eq!(refused.collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(runs(&bench).await.len(), 2);
    // The refused event leaves no rows, not even its conversation.
    bench.ingest(take("e-2")).await.unwrap();
    let run = bench.run_of("e-2", "e-2").await.unwrap();
    let inputs = bench.runs().find_run_inputs(&run).await.unwrap().unwrap();
    assert_eq!((inputs.event_seq, inputs.transcript_before), (Some(1), 0));
}

async fn capacity_counts_batched_events(bench: StoreFixture) {
    let events: Vec<_> = (0..6)
        .map(|n| {
            let event = in_conversation(bench.event(&format!("e-{n}"), "a"), &format!("c-{n}"));
            let take = event.decide.clone();
            Ingest {
                max_live_runs: Some(4),
                decide: plan_by(move |facts| match facts.capacities.workspace.reached() {
                    Some(_) => IngestPlan::Refuse,
                    None => take.plan(facts),
                }),
                ..event
            }
        })
        .collect();
    let taken = together(&bench, events.into_iter().map(|event| bench.ingest(event))).await;
    let refused = taken
        .into_iter()
        .filter(|taken| *taken.as_ref().unwrap() == Ingested::Refused);
    assert_eq!(refused.count(), 2);
    assert_eq!(runs(&bench).await.len(), 4);
}

async fn runs_complete_in_batches(bench: StoreFixture) {
    const RUNS: usize = 70;
    let events = (0..RUNS).map(|n| {
        let name = format!("n-{n}");
        bench.ingest(in_conversation(bench.event(&name, "a"), &name))
    });
    for taken in together(&bench, events).await {
        assert!(matches!(taken, Ok(Ingested::Stored { .. })), "{taken:?}");
    }
    let created = runs(&bench).await;
    let dispatched = created.iter().map(|run| bench.write(dispatch(run)));
    let mut running = Vec::new();
    for dispatched in together(&bench, dispatched).await {
        let Dispatched::Owned(run) = dispatched.unwrap() else {
            panic!("nobody else has it");
        };
        running.push(*run);
    }
    let written = running
        .iter()
        .map(|run| bench.write(bench.append(run, 0, &["one", "two"])));
    for written in together(&bench, written).await {
        assert_eq!(written.unwrap(), Appended::Written { next: Vec::new() });
    }
    // One of them has another owner.
    let stale = running[3].id;
    let ends = running.iter().map(|run| {
        let content = Some(format!("hello {}", run.event_id));
        let transcript = TranscriptWrite {
            terms: terms_of(run.conversation_key.as_deref().unwrap(), content.as_deref()),
            id: Uuid::now_v7(),
            conversation_key: run.conversation_key.clone().unwrap(),
            event_id: run.event_id.clone(),
            role: "assistant",
            content,
            content_json: "{}".to_owned(),
            attachment_refs: "[]".to_owned(),
            author: None,
        };
        bench.write(Append {
            epoch: run.fencing_token - i64::from(run.id == stale),
            terminal: Some(RunEnd {
                transcript: vec![transcript],
                ..bench.terminal(None)
            }),
            ..bench.append(run, 2, &["end"])
        })
    });
    let ended = together(&bench, ends).await;
    for (run, ended) in running.iter().zip(ended) {
        let expected = if run.id == stale {
            Appended::Lost
        } else {
            Appended::Written { next: Vec::new() }
        };
        assert_eq!(ended.unwrap(), expected);
        let lines = bench
            .runs()
            .read_lines(run.id, 0, 10, usize::MAX)
            .await
            .unwrap();
        let items = bench
            .conversations()
            .page_history(
                run.conversation_key.as_deref().unwrap(),
                HistoryQuery {
                    forward: true,
                    limit: 10,
                    ..HistoryQuery::default()
                },
            )
            .await
            .unwrap()
            .items;
        let (events, messages) = if run.id == stale { (2, 1) } else { (3, 2) };
        assert_eq!((lines.len(), items.len()), (events, messages));
    }
}

#[tokio::test]
async fn opens_one_file_for_escaped_names() {
    let bench = StoreFixture::sqlite().await;
    let directory = std::env::temp_dir().join(format!("runnel-{}", Uuid::now_v7()));
    std::fs::create_dir(&directory).unwrap();
    let url = format!("sqlite://{}/my%20own.db", directory.display());
    let (store, writer) = store::Store::open(&url).await.unwrap();
    let mut writing = tokio::task::JoinSet::new();
    writing.spawn(writer);
    let stored = store
        .events()
        .ingest(bench.event("e-1", "a"))
        .await
        .ingested
        .unwrap();
    assert!(matches!(stored, Ingested::Stored { .. }), "{stored:?}");
    assert!(directory.join("my own.db").is_file());
    assert!(!directory.join("my%20own.db").exists());
    store.close().await;
    writing.join_next().await.unwrap().unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}

async fn runs(bench: &StoreFixture) -> Vec<domain::run::Run> {
    let window = RunWindow {
        limit: 100,
        bytes: usize::MAX,
        ..RunWindow::default()
    };
    let all = RunFilter::default();
    let found = bench.runs().list_runs(&bench.workspace, &all, &window);
    found.await.unwrap().runs
}
