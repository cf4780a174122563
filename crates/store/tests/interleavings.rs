//! Random interleavings of events and run ends in one conversation, compared with a naive model: same
//! admissions, and no run waits forever.
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::support::{AGENT, StoreFixture, TestRng, dispatch, new_run, plan_by, variable};
use domain::admission::{Admission, admit};
use domain::event::ConversationIdentity;
use protocol::admin::Concurrency;
use protocol::id::RunId;
use protocol::run::RunStatus;
use store::{Append, Appended, DecisionFacts, IngestPlan, Ingested, Promotion, occupancy};
use uuid::Uuid;

/// Interleavings per policy; `RUNNEL_TEST_ROUNDS` overrides it.
const ROUNDS: u64 = 100;
/// Steps of one interleaving, with two events.
const STEPS: u64 = 6;

/// The conversation as plain lists.
#[derive(Default)]
struct Model {
    active: Vec<String>,
    waiting: VecDeque<String>,
    absorbed: Vec<(String, String)>,
}

impl Model {
    fn arrive(&mut self, policy: Concurrency, event: &str) -> &'static str {
        let busy = !self.active.is_empty();
        match policy {
            Concurrency::Reject if busy => "busy",
            Concurrency::Enqueue | Concurrency::Interrupt if busy => {
                self.waiting.push_back(event.to_owned());
                "queued"
            }
            Concurrency::Steer if busy => {
                self.absorbed
                    .push((self.active[0].clone(), event.to_owned()));
                "absorbed"
            }
            _ => {
                self.active.push(event.to_owned());
                "started"
            }
        }
    }

    fn end(&mut self, event: &str) {
        self.active.retain(|active| active != event);
        let (left, others): (Vec<_>, Vec<_>) =
            self.absorbed.drain(..).partition(|(run, _)| run == event);
        self.absorbed = others;
        self.waiting
            .extend(left.into_iter().map(|(_, event)| event));
        if self.active.is_empty() {
            self.active.extend(self.waiting.pop_front());
        }
    }
}

async fn arrive(
    bench: &StoreFixture,
    policy: Concurrency,
    conversation: &str,
    event: &str,
) -> &'static str {
    let decided = Arc::new(Mutex::new("started"));
    let outcome = Arc::clone(&decided);
    let run = Box::new(new_run(RunId(Uuid::now_v7())));
    let mut ingest = bench.event(event, "body");
    ingest.conversation = Some(ConversationIdentity {
        bot_id: String::new(),
        conversation_id: conversation.to_owned(),
        thread_id: String::new(),
    });
    ingest.decide = plan_by(move |facts: &DecisionFacts| {
        let (run, message, answer) = (run.clone(), None, String::new());
        let (plan, word) = match admit(policy, &occupancy(&facts.live, AGENT)) {
            Admission::Start => (
                IngestPlan::Start {
                    run,
                    attempt: None,
                    message,
                    answer,
                },
                "started",
            ),
            Admission::Queue => (
                IngestPlan::Queue {
                    run,
                    message,
                    cancel: vec![],
                    answer,
                },
                "queued",
            ),
            Admission::Interrupt(cancel) => (
                IngestPlan::Queue {
                    run,
                    message,
                    cancel,
                    answer,
                },
                "queued",
            ),
            Admission::Absorb(run) => (
                IngestPlan::Absorb {
                    run,
                    message,
                    answer,
                },
                "absorbed",
            ),
            Admission::Busy(_) | Admission::QueueFull => (IngestPlan::Refuse, "busy"),
        };
        *outcome.lock().unwrap() = word;
        plan
    });
    let ingested = bench.ingest(ingest).await.unwrap();
    let word = *decided.lock().unwrap();
    assert_eq!(ingested == Ingested::Refused, word == "busy");
    word
}

/// Ends the run of an event, with promotion.
async fn end(bench: &StoreFixture, conversation: &str, event: &str) {
    let run = bench.run_of(conversation, event).await.unwrap();
    let append = Append {
        terminal: Some(bench.terminal(Some(Promotion {
            conversation_key: run.conversation_key.clone().unwrap(),
            promote_next: Arc::new(|_, _, _| Some(new_run(RunId(Uuid::now_v7())))),
        }))),
        ..bench.append(&run, 0, &["end"])
    };
    let written = bench.write(append).await.unwrap();
    assert!(matches!(written, Appended::Written { .. }), "{written:?}");
}

/// Dispatches created runs; returns the events of active and of queued runs.
async fn dispatch_all(
    bench: &StoreFixture,
    conversation: &str,
    events: &[String],
) -> (Vec<String>, Vec<String>) {
    let (mut active, mut waiting) = (Vec::new(), Vec::new());
    for event in events {
        let Some(run) = bench.run_of(conversation, event).await else {
            continue;
        };
        match run.status {
            RunStatus::Created => {
                bench.write(dispatch(&run)).await.unwrap();
                active.push(event.clone());
            }
            RunStatus::Running => active.push(event.clone()),
            RunStatus::Queued => waiting.push(event.clone()),
            _ => {}
        }
    }
    (active, waiting)
}

async fn interleave(policy: Concurrency) {
    let bench = StoreFixture::fast().await;
    let rounds = variable("RUNNEL_TEST_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
    for round in 0..rounds {
        let mut dice = TestRng(round * 7_919 + 1);
        let (mut model, mut events) = (Model::default(), Vec::new());
        let conversation = format!("c-{round}");
        for _ in 0..STEPS {
            if dice.below(2) == 0 && !model.active.is_empty() {
                let index = usize::try_from(dice.below(model.active.len() as u64)).unwrap();
                let event = model.active[index].clone();
                end(&bench, &conversation, &event).await;
                model.end(&event);
            } else if events.len() < 2 {
                let event = format!("e-{round}-{}", events.len());
                let word = arrive(&bench, policy, &conversation, &event).await;
                assert_eq!(
                    word,
                    model.arrive(policy, &event),
                    "{policy:?}, round {round}"
                );
                events.push(event);
            }
            let (mut active, waiting) = dispatch_all(&bench, &conversation, &events).await;
            active.sort();
            let mut expected = model.active.clone();
            expected.sort();
            assert_eq!(active, expected, "active, {policy:?}, round {round}");
            assert_eq!(
                waiting,
                Vec::from(model.waiting.clone()),
                "waiting, {policy:?}, round {round}"
            );
        }
    }
}

#[tokio::test]
async fn concurrent_events_match_the_model() {
    interleave(Concurrency::Concurrent).await;
}

#[tokio::test]
async fn rejected_events_match_the_model() {
    interleave(Concurrency::Reject).await;
}

#[tokio::test]
async fn enqueued_events_match_the_model() {
    interleave(Concurrency::Enqueue).await;
}

#[tokio::test]
async fn interrupting_events_match_the_model() {
    interleave(Concurrency::Interrupt).await;
}

#[tokio::test]
async fn steered_events_match_the_model() {
    interleave(Concurrency::Steer).await;
}
