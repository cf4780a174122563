//! Take-over of graphs by a later run, decided only from stored facts (rule 16).

use action_graph::Graph;
use action_graph::action::Class;
use action_graph::graph::StopReason;
use action_graph::node::{NodeState, Sent, Wait};
use action_graph::schedule::{
    ActionFailure, ActionOutcome, Command, GraphEvent, RecoveredAttempt, Suspension, step,
};
use action_graph::transcript::TranscriptTurn;
use protocol::run::RunStatus;
use serde_json::{Value, json};

use super::support::{
    NOW, action, asks, begun, finish, load, load_at, names, next_run, started, state,
};
use crate::records::{
    Adoption, PendingQuestion, QuestionSubject, RecordsError, Resumed, Submission,
};
use crate::testing::memory::Memory;

const HOUR: u64 = 3_600_000;

fn one(tool: &str) -> Vec<Value> {
    vec![action("a", tool, json!({}))]
}

fn ask(graph: &Graph, id: &str) -> PendingQuestion {
    let node = graph.node(&id.into()).unwrap();
    PendingQuestion {
        interaction: format!("{}.{id}.{}", graph.id, node.attempt),
        about: vec![QuestionSubject {
            id: id.into(),
            attempt: node.attempt,
            hash: node.approval.clone(),
        }],
        expires_at: NOW + HOUR,
        run: String::new(),
    }
}

/// A graph of this tool whose run ended so, taken over by the next run.
async fn resumed(tool: &str, status: RunStatus) -> Resumed {
    let (first, _, _) = started(&one(tool)).await;
    first.end(status);
    let (_, mut loaded) = load(&first.begin("r2")).await;
    loaded.mine.pop().unwrap()
}

fn answer(text: &str) -> TranscriptTurn {
    TranscriptTurn::Answer {
        text: text.to_owned(),
    }
}

#[tokio::test]
async fn live_runs_keep_their_graphs() {
    let (first, mut records, graph) = started(&one("look")).await;
    let second = first.begin("r2");
    let (mut other, loaded) = load(&second).await;
    assert!(loaded.mine.is_empty());
    assert_eq!(loaded.busy, [(graph.id.clone(), "r1".to_owned())]);
    let facts = other.graph_facts("").await.unwrap();
    assert!(facts[0].open && facts[0].actions.contains_key(&"a".into()));
    let adopted = other.adopt(&graph.id).await.unwrap();
    assert!(matches!(adopted, Adoption::Busy { run } if run == "r1"));
    records.driven.save(&graph).await.unwrap();
    first.end(RunStatus::Completed);
    let adopted = other.adopt(&graph.id).await.unwrap();
    assert!(matches!(adopted, Adoption::Mine(_)));
    assert!(other.graph_facts("").await.unwrap().is_empty());
}

#[tokio::test]
async fn stale_owners_lose_their_lease() {
    let (first, mut records, mut graph) = started(&one("look")).await;
    let (mut other, loaded) = next_run(&first, RunStatus::Failed).await;
    first.world().lax = true;
    finish(&mut graph, "a", json!("late"));
    let stale = records.driven.save(&graph).await;
    assert!(matches!(stale, Err(RecordsError::LeaseLost { run, .. }) if run == "r2"));
    assert!(!records.driven.holds(&graph.id));
    records.driven.save(&graph).await.unwrap();
    let mut graph = loaded.mine.into_iter().next().unwrap().graph;
    finish(&mut graph, "a", json!("mine"));
    other.driven.save(&graph).await.unwrap();
    assert_eq!(other.driven.runs(&graph.id), ["r1", "r2"]);
}

#[tokio::test(start_paused = true)]
async fn lost_answers_lose_no_lease() {
    let (host, mut records, mut graph) = started(&one("look")).await;
    finish(&mut graph, "a", json!(1));
    host.lose("put_document", 2);
    records.driven.save(&graph).await.unwrap();
    records.driven.save(&graph).await.unwrap();
    assert!(records.driven.holds(&graph.id));
}

#[tokio::test]
async fn removed_runs_count_as_ended() {
    let (first, _, _) = started(&one("look")).await;
    let second = first.begin("r2");
    first.world().runs.remove("r1");
    let (_, loaded) = load(&second).await;
    assert_eq!(loaded.mine.len(), 1);
}

#[tokio::test]
async fn running_attempts_follow_their_class() {
    for (tool, class, to) in [
        ("look", Class::Replayable, NodeState::Running),
        ("write", Class::Keyed, NodeState::Running),
        ("notify", Class::AtMostOnce, NodeState::Uncertain),
    ] {
        let resumed = resumed(tool, RunStatus::Failed).await;
        let mut graph = resumed.graph;
        let key = graph.node(&"a".into()).unwrap().attempts[0].key.clone();
        assert_eq!(graph.node(&"a".into()).unwrap().class(), class);
        let [event] = &resumed.found.events[..] else {
            panic!("{tool}: {:?}", resumed.found.events)
        };
        let commands = step(&mut graph, event.clone(), NOW);
        assert_eq!(state(&graph, "a"), to, "{tool}");
        let again = commands.iter().find_map(|command| match command {
            Command::Execute(execute) => Some((execute.attempt, execute.key.clone())),
            _ => None,
        });
        let expected = (to == NodeState::Running).then_some((1, key));
        assert_eq!(again, expected, "{tool}: the same attempt and key");
    }
}

#[tokio::test]
async fn outputs_of_earlier_iterations_end_nothing() {
    let first = Memory::new("r1");
    let (mut records, _) = load(&first).await;
    let until = json!({"ref": "own#/done", "equals": true});
    let repeated = action("a", "look", json!({"repeat": {"max": 3, "until": until}}));
    let mut graph = begun(&mut records, "g_1", &[repeated]).await;
    finish(&mut graph, "a", json!({"done": false}));
    records.driven.save(&graph).await.unwrap();
    let (_, loaded) = next_run(&first, RunStatus::Failed).await;
    let event = &loaded.mine[0].found.events[0];
    let is_nothing = matches!(
        event,
        GraphEvent::Recovered {
            attempt: 2,
            found: RecoveredAttempt::Nothing,
            ..
        }
    );
    assert!(is_nothing, "{event:?}");
}

#[tokio::test]
async fn recovers_child_runs() {
    let (first, mut records, mut graph) = started(&one("helper")).await;
    let on = Suspension::Child {
        run: "child-1".to_owned(),
    };
    let id = || "a".into();
    step(
        &mut graph,
        GraphEvent::Suspended {
            id: id(),
            attempt: 1,
            on,
        },
        NOW,
    );
    records.driven.save(&graph).await.unwrap();
    let (_, loaded) = next_run(&first, RunStatus::Completed).await;
    let resumed = &loaded.mine[0];
    assert_eq!(resumed.found.children, [(id(), 1, "child-1".to_owned())]);
    assert!(resumed.found.events.is_empty());
}

#[tokio::test]
async fn unnamed_children_are_started_with_the_same_key() {
    let resumed = resumed("helper", RunStatus::Failed).await;
    let mut graph = resumed.graph;
    let key = graph.node(&"a".into()).unwrap().attempts[0].key.clone();
    let commands = step(&mut graph, resumed.found.events[0].clone(), NOW);
    let spawned = commands.iter().find_map(|command| match command {
        Command::SpawnChild(execute) => Some(execute.key.clone()),
        _ => None,
    });
    assert_eq!(spawned, Some(key));
}

#[tokio::test]
async fn retries_keep_their_time() {
    let first = Memory::new("r1");
    let (mut records, _) = load(&first).await;
    let policy = json!({"mode": "retry", "max_attempts": 3, "backoff_ms": 20_000});
    let retried = action("a", "look", json!({"failure_policy": policy}));
    let mut graph = begun(&mut records, "g_1", &[retried]).await;
    let mut failure = ActionFailure::new(action_graph::code::Code::ToolError, "no", Sent::Yes);
    failure.retryable = true;
    let outcome = ActionOutcome::Err(failure);
    let id = || "a".into();
    step(
        &mut graph,
        GraphEvent::Finished {
            id: id(),
            attempt: 1,
            outcome,
        },
        NOW,
    );
    assert_eq!(state(&graph, "a"), NodeState::Waiting(Wait::Retry));
    records.driven.save(&graph).await.unwrap();
    first.end(RunStatus::Failed);
    let second = first.begin("r2");
    let (_, loaded) = load_at(&second, NOW + 1_000).await;
    assert_eq!(loaded.mine[0].found.timers, [(id(), 1, NOW + 20_000)]);
    second.end(RunStatus::Failed);
    let (_, loaded) = load_at(&first.begin("r3"), NOW + 20_000).await;
    let due = GraphEvent::TimerFired {
        id: id(),
        attempt: 1,
    };
    assert_eq!(loaded.mine[0].found.events, [due]);
}

#[tokio::test]
async fn open_questions_wait_until_they_expire() {
    let (first, mut records, graph) = started(&one("mail")).await;
    assert_eq!(state(&graph, "a"), NodeState::Waiting(Wait::Approval));
    let question = ask(&graph, "a");
    asks(&mut records, &graph, question.clone()).await;
    first.end(RunStatus::Completed);
    let second = first.begin("r2");
    let (records, loaded) = load(&second).await;
    let resumed = &loaded.mine[0];
    assert_eq!(resumed.found.asks.len(), 1);
    assert!(resumed.found.events.is_empty() && resumed.found.unsent.is_empty());
    let (found, ask) = records.driven.ask(&question.interaction).unwrap();
    assert_eq!((found, ask.about), (graph.id.clone(), question.about));
    second.end(RunStatus::Completed);
    let (_, loaded) = load_at(&first.begin("r3"), NOW + HOUR).await;
    let mut graph = loaded.mine[0].graph.clone();
    step(
        &mut graph,
        loaded.mine[0].found.events[0].clone(),
        NOW + HOUR,
    );
    let error = graph.node(&"a".into()).unwrap().error.clone().unwrap();
    assert_eq!(error.code.as_str(), "interaction_expired");
}

#[tokio::test]
async fn unsent_questions_are_sent_again() {
    let (first, mut records, graph) = started(&one("mail")).await;
    asks(&mut records, &graph, ask(&graph, "a")).await;
    let (_, loaded) = next_run(&first, RunStatus::Failed).await;
    let resumed = &loaded.mine[0];
    let [request] = &resumed.found.unsent[..] else {
        panic!("{:?}", resumed.found.unsent)
    };
    let node = graph.node(&"a".into()).unwrap();
    assert_eq!(Some(&request.hash), node.approval.as_ref());
    assert_eq!(Some(&request.input), node.input.as_ref());
}

#[tokio::test]
async fn sends_questions_again_after_crash() {
    let (first, mut records, graph) = started(&one("mail")).await;
    asks(&mut records, &graph, ask(&graph, "a")).await;
    first.end(RunStatus::Completed);
    let second = first.begin("r2");
    let (_, loaded) = load(&second).await;
    assert!(loaded.mine[0].found.unsent.is_empty());
    second.end(RunStatus::Failed);
    let (records, loaded) = load(&first.begin("r3")).await;
    assert_eq!(
        loaded.mine[0].found.unsent.len(),
        1,
        "the dead run may have had the answer"
    );
    let earlier = ask(&graph, "a").interaction;
    assert!(
        records.driven.ask(&earlier).is_some(),
        "an answer to the earlier one counts, too"
    );
}

#[tokio::test]
async fn answered_questions_are_forgotten() {
    let (_, mut records, mut graph) = started(&one("mail")).await;
    let question = ask(&graph, "a");
    asks(&mut records, &graph, question.clone()).await;
    let hash = question.about[0].hash.clone().unwrap();
    let ids = vec![("a".into(), hash)];
    step(&mut graph, GraphEvent::Approved { ids, by: None }, NOW);
    records.driven.save(&graph).await.unwrap();
    assert_eq!(records.driven.ask(&question.interaction), None);
}

#[tokio::test]
async fn answers_wait_for_a_graph_that_is_driven() {
    let (first, _, _) = started(&one("mail")).await;
    let second = first.begin("r2");
    let (other, _) = load(&second).await;
    let submission = Submission {
        interaction: "g_1.a.0".to_owned(),
        action: Some("yes".to_owned()),
        values: protocol::JsonObject::new(),
        at: NOW,
    };
    other.leave_answer(&submission).await.unwrap();
    let (third, loaded) = load(&first.begin("r3")).await;
    assert_eq!(loaded.inbox, [submission]);
    third.forget_answer("g_1.a.0").await.unwrap();
    let (_, loaded) = load(&first.begin("r4")).await;
    assert!(loaded.inbox.is_empty());
}

#[tokio::test]
async fn unclaimed_answers_go_after_7_days() {
    let host = Memory::new("r1");
    let (records, _) = load(&host).await;
    let submission = Submission {
        interaction: "g_1.a.0".to_owned(),
        action: None,
        values: protocol::JsonObject::new(),
        at: NOW,
    };
    records.leave_answer(&submission).await.unwrap();
    let (_, loaded) = load_at(&host, NOW + 8 * 24 * HOUR).await;
    assert!(loaded.inbox.is_empty());
    assert!(host.world().documents.is_empty());
}

#[tokio::test]
async fn graphs_end_after_7_days() {
    let (first, _, _) = started(&one("mail")).await;
    first.end(RunStatus::Completed);
    let second = first.begin("r2");
    let (_, loaded) = load_at(&second, NOW + 7 * 24 * HOUR).await;
    assert!(!loaded.mine[0].found.events.contains(&GraphEvent::Deadline));
    second.end(RunStatus::Completed);
    let (_, loaded) = load_at(&first.begin("r3"), NOW + 8 * 24 * HOUR).await;
    assert!(loaded.mine[0].found.events.contains(&GraphEvent::Deadline));
}

#[tokio::test]
async fn decision_points_have_one_observation() {
    let (first, mut records, mut graph) = started(&one("look")).await;
    finish(&mut graph, "a", json!(1));
    records.driven.save(&graph).await.unwrap();
    let made = records
        .driven
        .observed(&mut graph, |_| answer("first"))
        .await
        .unwrap();
    assert_eq!(made, answer("first"));
    first.end(RunStatus::Failed);
    let second = first.begin("r2");
    let (mut records, mut loaded) = load(&second).await;
    let mut resumed = loaded.mine.pop().unwrap();
    assert!(resumed.observations.is_empty(), "it is the next one");
    assert!(resumed.graph.node(&"a".into()).unwrap().delivered.is_some());
    let again = records
        .driven
        .observed(&mut resumed.graph, |_| panic!("made twice"));
    assert_eq!(again.await.unwrap(), answer("first"));
    let stored = names(&second, "g_1");
    let stored = stored
        .iter()
        .filter(|name| name.starts_with("observation."));
    assert_eq!(stored.count(), 1);
}

#[tokio::test]
async fn observations_of_runs_without_turns_are_given() {
    let first = Memory::new("r1");
    let (mut records, _) = load(&first).await;
    let actions = [
        action("a", "look", json!({})),
        action("b", "mail", json!({"depends_on": ["a"]})),
    ];
    let mut graph = begun(&mut records, "g_1", &actions).await;
    finish(&mut graph, "a", json!(1));
    records
        .driven
        .observed(&mut graph, |_| answer("waits"))
        .await
        .unwrap();
    step(&mut graph, GraphEvent::Cancel, NOW);
    records.driven.save(&graph).await.unwrap();
    first.end(RunStatus::Failed);
    let second = first.begin("r2");
    let (mut records, loaded) = load(&second).await;
    assert_eq!(loaded.mine[0].observations, [answer("waits")]);
    assert_eq!(loaded.mine[0].graph.stop, Some(StopReason::Canceled));
    records.driven.save(&loaded.mine[0].graph).await.unwrap();
    second.end(RunStatus::Failed);
    first.set("r1", RunStatus::Running);
    let (mut records, _) = load(&first).await;
    records.finish(vec![answer("waits")], NOW).await.unwrap();
    first.end(RunStatus::Completed);
    let (_, loaded) = load(&first.begin("r3")).await;
    assert!(loaded.mine[0].observations.is_empty());
}

#[tokio::test]
async fn stored_outputs_survive_their_run() {
    let (first, mut records, mut graph) = started(&one("notify")).await;
    step(&mut graph, GraphEvent::Cancel, NOW);
    finish(&mut graph, "a", json!({"sent": true}));
    records.driven.save(&graph).await.unwrap();
    let (_, loaded) = next_run(&first, RunStatus::Cancelled).await;
    let node = loaded.mine[0].graph.node(&"a".into()).unwrap().clone();
    assert_eq!(node.output.unwrap().value, json!({"sent": true}));
}

#[tokio::test]
async fn attempts_in_their_grace_are_not_repeated() {
    for (tool, to) in [
        ("look", NodeState::Canceled),
        ("notify", NodeState::Uncertain),
    ] {
        let (first, mut records, mut graph) = started(&one(tool)).await;
        step(&mut graph, GraphEvent::Cancel, NOW);
        records.driven.save(&graph).await.unwrap();
        let (_, mut loaded) = next_run(&first, RunStatus::Cancelled).await;
        let resumed = loaded.mine.pop().unwrap();
        let mut graph = resumed.graph;
        step(&mut graph, resumed.found.events[0].clone(), NOW);
        assert_eq!(state(&graph, "a"), to, "{tool}");
    }
}

#[tokio::test]
async fn closed_graphs_hold_all_transitions() {
    let host = Memory::new("r1");
    let (mut records, _) = load(&host).await;
    let each = json!({"for_each": {"items": "input:event#/list", "max": 7}, "input": {"of": {"$ref": "item"}}});
    let mut graph = begun(&mut records, "g_1", &[action("a", "look", each)]).await;
    for at in 0..7 {
        finish(&mut graph, &format!("a[{at}]"), json!(at));
        records.driven.save(&graph).await.unwrap();
    }
    let record = super::support::record(&graph, Vec::new(), NOW);
    records.close(&graph, &record).await.unwrap();
    let world = host.world();
    let closed = &world.documents["apd.g.g_1"].bodies["closed"];
    let list = closed["transitions"].as_array().unwrap().iter();
    let seqs: Vec<_> = list.map(|one| one["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=graph.seq).collect::<Vec<_>>(), "dense from 1");
}
