//! Runs dispatched by the commit of their event.
use std::time::Duration;

use crate::support::{StoreFixture, TestEvent, dispatch, new_run, on_both, plan_by};
use protocol::id::RunId;
use protocol::run::RunStatus;
use store::{
    Appended, Dispatch, Dispatched, FirstAttempt, Ingest, IngestPlan, Ingested, LeaseFilter,
    ReadBudget, SharedParts,
};
use uuid::Uuid;

on_both!(
    dispatches_run_with_ingest_commit,
    takes_over_run_before_its_post,
);

/// An event with a run dispatched at ingest.
fn beginning(bench: &StoreFixture, id: &str, lease: Duration) -> TestEvent {
    let run = RunId(Uuid::now_v7());
    let answer = id.to_owned();
    Ingest {
        decide: plan_by(move |_| IngestPlan::Start {
            run: Box::new(new_run(run)),
            attempt: Some(Box::new(FirstAttempt {
                owner: "me".to_owned(),
                lease,
                context: SharedParts::default().apart(r#"{"told":1}"#),
            })),
            message: None,
            answer: answer.clone(),
        }),
        ..bench.event(id, "a")
    }
}

async fn dispatches_run_with_ingest_commit(bench: StoreFixture) {
    let event = beginning(&bench, "e-1", Duration::from_mins(1));
    let stored = bench.ingest(event).await.unwrap();
    assert!(matches!(stored, Ingested::Stored { .. }), "{stored:?}");
    let run = bench.only_run().await;
    assert_eq!(
        (run.status, run.attempt, run.fencing_token, run.started_at),
        (RunStatus::Running, 1, 1, Some(1_000))
    );
    let context = bench
        .runs()
        .find_context(run.id, ReadBudget::default())
        .await
        .unwrap();
    assert_eq!(context.as_deref(), Some(r#"{"told":1}"#));

    // No other owner gets it, neither as a created run nor by take-over.
    let created = bench.runs().created_runs(None, 10).await.unwrap();
    assert!(created.is_empty(), "{created:?}");
    let taken = bench
        .leases()
        .take_over(&run, "another", Duration::ZERO, LeaseFilter::Expired);
    assert_eq!(taken.await.unwrap(), None);
    let mut as_created = run.clone();
    (as_created.status, as_created.fencing_token) = (RunStatus::Created, 0);
    let by_another = Dispatch {
        owner: "another".to_owned(),
        ..dispatch(&as_created)
    };
    let again = bench.write(by_another).await.unwrap();
    assert!(matches!(again, Dispatched::Lost), "{again:?}");

    let append = bench.append(&run, 0, &["one"]);
    let written = bench.write(append).await.unwrap();
    assert_eq!(written, Appended::Written { next: Vec::new() });
}

async fn takes_over_run_before_its_post(bench: StoreFixture) {
    let event = beginning(&bench, "e-1", Duration::ZERO);
    bench.ingest(event).await.unwrap();
    let run = bench.only_run().await;
    let taken = bench.leases().take_over(
        &run,
        "another",
        Duration::from_mins(1),
        LeaseFilter::Expired,
    );
    assert_eq!(taken.await.unwrap(), Some(2));
    // The old owner is fenced.
    let append = bench.append(&run, 0, &["one"]);
    let written = bench.write(append).await.unwrap();
    assert_eq!(written, Appended::Lost);
}
