//! Questions awaited by a live run: an answer goes to the run or becomes an event, never both.

use std::time::Duration;

use domain::normalize::RunQuestion;
use domain::platform_action::ApprovalVerdict;
use domain::run::Run;
use futures_util::future::join_all;
use protocol::id::RunId;
use store::{
    AnswerDelivery, AnsweredBy, AwaitedRecord, CloseAwaited, DeliverAnswer, Dispatched, IngestPlan,
    Ingested, NewInteraction, Store, TakenAs, Unanswerable, answer_event_id,
};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::{
    StoreFixture, TestRng, audit, cancel_request, dispatch, new_run, on_both, plan_by,
};

on_both!(
    delivers_answer_to_run_or_as_event,
    accepts_one_answer_while_run_is_live,
    refuses_answer_after_expiry_notification,
);

/// Expiry of the questions here, in epoch milliseconds.
const EXPIRES_AT: i64 = 9_000_000;

/// A run with an open question; returns the run and the question's id.
async fn asking(bench: &StoreFixture, event_id: &str) -> (Run, String) {
    let run_id = RunId(Uuid::now_v7());
    let mut event = bench.event(event_id, "body");
    event.conversation = None;
    event.decide = plan_by(move |_| IngestPlan::Start {
        run: Box::new(new_run(run_id)),
        attempt: None,
        message: None,
        answer: run_id.to_string(),
    });
    bench.ingest(event).await.unwrap();
    let run = bench.runs().find_run(&bench.workspace, run_id).await;
    let run = run.unwrap().unwrap();
    let Dispatched::Owned(run) = bench.write(dispatch(&run)).await.unwrap() else {
        panic!("nobody else has it");
    };
    let question = NewInteraction {
        id: Uuid::now_v7(),
        sequence: 1,
        question: RunQuestion {
            interaction_id: "q".to_owned(),
            request: "{}".to_owned(),
            expires_at: EXPIRES_AT / 1000,
            is_awaited: true,
        },
    };
    let id = question.id.to_string();
    let mut asks = bench.append(&run, 0, &["asks"]);
    asks.interactions.push(question);
    bench.write(asks).await.unwrap();
    (*run, id)
}

fn given(bench: &StoreFixture, run: &Run, id: &str, answer: &str, at: i64) -> DeliverAnswer {
    DeliverAnswer {
        workspace: bench.workspace.clone(),
        id: id.to_owned(),
        run_id: run.id,
        token_sha256: None,
        raised_to: None,
        verdict: ApprovalVerdict::Declined,
        approval: None,
        answer: answer.to_owned(),
        answer_sha256: format!("hash of {answer}"),
        audit: audit(Uuid::now_v7()),
        at,
    }
}

/// Destination of an answer.
#[derive(Debug, PartialEq)]
enum Destination {
    ToRun,
    ToEvent,
    /// The question already had this or another answer.
    Nowhere,
}

/// Order of the run's end and the two answers. Each batch of races has all of them.
#[derive(Clone, Copy)]
enum Order {
    EndFirst,
    AnswersFirst,
    Race,
}

impl Order {
    fn of(number: usize) -> Self {
        match number % 5 {
            0 => Self::EndFirst,
            1 => Self::AnswersFirst,
            _ => Self::Race,
        }
    }
}

async fn answer(
    bench: &StoreFixture,
    store: &Store,
    (run, id): (&Run, &str),
    answer: &str,
) -> Destination {
    let give = given(bench, run, id, answer, 4_000);
    match store.write(give).await.unwrap() {
        AnswerDelivery::Stored => Destination::ToRun,
        AnswerDelivery::Same | AnswerDelivery::Other => Destination::Nowhere,
        AnswerDelivery::Refused(why) => panic!("{why:?}"),
        AnswerDelivery::RunEnded => {
            let mut event = bench.event(&answer_event_id(id), answer);
            event.dedupe_key = answer_event_id(id);
            event.conversation = None;
            event.answers = Some(AnsweredBy {
                interaction: id.to_owned(),
                token_sha256: None,
            });
            event.decide = plan_by(|facts| {
                assert_eq!(facts.unanswerable, None);
                IngestPlan::Keep {
                    answer: "{}".to_owned(),
                }
            });
            match store.events().ingest(event).await.ingested.unwrap() {
                Ingested::Stored { .. } => Destination::ToEvent,
                Ingested::Replayed { .. } | Ingested::Mismatch => Destination::Nowhere,
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Demands that one of the answers went to one destination; true if this is the run.
async fn is_given_to_run(
    bench: &StoreFixture,
    (run, id): (&Run, &str),
    answers: [&Destination; 2],
) -> bool {
    let stored = answers
        .into_iter()
        .find(|went| **went != Destination::Nowhere);
    let nowhere = answers.map(|went| *went == Destination::Nowhere);
    assert_ne!(nowhere[0], nowhere[1], "{answers:?}");
    let awaited = bench
        .interactions()
        .find_awaited(run.id, "q")
        .await
        .unwrap()
        .unwrap();
    let event_id = answer_event_id(id);
    let event = bench.events().find_event(&bench.workspace, &event_id);
    let event = event.await.unwrap();
    let found = bench
        .interactions()
        .find_interaction(&bench.workspace, id)
        .await;
    let found = found.unwrap().unwrap().answered.unwrap();
    let is_given = *stored.unwrap() == Destination::ToRun;
    assert_eq!(
        (awaited.given.is_some(), event.is_some()),
        (is_given, !is_given)
    );
    assert_eq!(found.taken == TakenAs::AnswerDelivery, is_given);
    is_given
}

async fn delivers_answer_to_run_or_as_event(bench: StoreFixture) {
    const RACES: usize = 1_000;
    const AT_ONCE: usize = 50;
    let mut writers = JoinSet::new();
    // Two replicas, where the database has several writers.
    let other = match &bench.database {
        Some(_) => {
            let (store, writer) = Store::open(&bench.url()).await.unwrap();
            writers.spawn(writer);
            store
        }
        None => bench.store.clone(),
    };
    let race = async |number: usize| {
        let (run, id) = asking(&bench, &format!("e-{number}")).await;
        let mut dice = TestRng(0x9E37_79B9 + number as u64);
        // Spreads the writes over several batches: writes of one batch share a transaction and cannot race.
        let mut apart = || Duration::from_micros(dice.below(10_000));
        let [to_end, to_first, to_second] = [apart(), apart(), apart()];
        let end = async {
            tokio::time::sleep(to_end).await;
            bench.end(&run, 1).await;
        };
        let answers = async {
            let first = async {
                tokio::time::sleep(to_first).await;
                answer(&bench, &bench.store, (&run, &id), "a").await
            };
            let second = async {
                tokio::time::sleep(to_second).await;
                answer(&bench, &other, (&run, &id), "b").await
            };
            tokio::join!(first, second)
        };
        let order = Order::of(number);
        let (first, second) = match order {
            Order::EndFirst => {
                end.await;
                answers.await
            }
            Order::AnswersFirst => {
                let answers = answers.await;
                end.await;
                answers
            }
            Order::Race => tokio::join!(end, answers).1,
        };
        let is_given = is_given_to_run(&bench, (&run, &id), [&first, &second]).await;
        match order {
            Order::EndFirst => assert!(!is_given),
            Order::AnswersFirst => assert!(is_given),
            Order::Race => {}
        }
    };
    for first in (0..RACES).step_by(AT_ONCE) {
        join_all((first..first + AT_ONCE).map(race)).await;
    }
}

async fn accepts_one_answer_while_run_is_live(bench: StoreFixture) {
    let (run, id) = asking(&bench, "e-1").await;
    let store = &bench.store;
    let give = async |text: &str| {
        store
            .write(given(&bench, &run, &id, text, 4_000))
            .await
            .unwrap()
    };
    let late = given(&bench, &run, &id, "a", EXPIRES_AT);
    let expired = AnswerDelivery::Refused(Unanswerable::Expired);
    assert_eq!(store.write(late).await.unwrap(), expired);
    let mut replaced = given(&bench, &run, &id, "a", 4_000);
    replaced.token_sha256 = Some("old".to_owned());
    let gone = AnswerDelivery::Refused(Unanswerable::LinkReplaced);
    assert_eq!(store.write(replaced).await.unwrap(), gone);
    assert_eq!(give("a").await, AnswerDelivery::Stored);
    assert_eq!(give("a").await, AnswerDelivery::Same);
    assert_eq!(give("b").await, AnswerDelivery::Other);
    let awaited = store
        .interactions()
        .find_awaited(run.id, "q")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(awaited.given.as_deref(), Some("a"));
    assert_eq!(
        store
            .interactions()
            .find_awaited(run.id, "p")
            .await
            .unwrap(),
        None
    );
    let (cancelled, id) = asking(&bench, "e-2").await;
    let cancel =
        store
            .runs()
            .request_cancel(&bench.workspace, cancelled.id, cancel_request(), 4_000);
    cancel.await.unwrap();
    let give = given(&bench, &cancelled, &id, "a", 4_000);
    let gone = AnswerDelivery::Refused(Unanswerable::Cancelled);
    assert_eq!(store.write(give).await.unwrap(), gone);
}

async fn refuses_answer_after_expiry_notification(bench: StoreFixture) {
    let (run, id) = asking(&bench, "e-1").await;
    let close = |at: i64| CloseAwaited {
        workspace: bench.workspace.clone(),
        run_id: run.id,
        interaction_id: "q".to_owned(),
        at,
    };
    let find = async || {
        bench
            .interactions()
            .find_awaited(run.id, "q")
            .await
            .unwrap()
            .unwrap()
    };
    bench.write(close(EXPIRES_AT - 1)).await.unwrap();
    assert!(!find().await.is_closed, "its time is not over");
    bench.write(close(EXPIRES_AT)).await.unwrap();
    let closed = AwaitedRecord {
        is_awaited: true,
        expires_at: EXPIRES_AT,
        is_closed: true,
        given: None,
    };
    assert_eq!(find().await, closed);
    // Another replica's clock may be slow.
    let give = given(&bench, &run, &id, "a", EXPIRES_AT - 1);
    let expired = AnswerDelivery::Refused(Unanswerable::Expired);
    assert_eq!(bench.write(give).await.unwrap(), expired);
    assert_eq!(find().await, closed);
}
