//! Properties over random graphs. `RUNNEL_GRAPHS` sets the number of graphs of each property.

use std::collections::BTreeMap;

use action_graph::code::Code;
use action_graph::declaration::{DecisionChoice, GraphDecision};
use action_graph::graph::{Graph, GraphStatus};
use action_graph::ids::{ActionId, GraphId};
use action_graph::node::{ActionOutput, NodeState, Sent};
use action_graph::schedule::{
    ActionFailure, ActionOutcome, Actor, Command, Denial, GraphEvent, RecoveredAttempt, Suspension,
    Why, step,
};
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use super::driver::{Dice, Player, end_in};
use super::oracle::ends;
use super::spec::{Spec, build_action, id, output_of, specs};
use crate::support::cases;

fn check(max: usize, modes: u8, test: impl Fn(&Spec)) {
    let config = Config {
        cases: cases(200),
        failure_persistence: None,
        ..Config::default()
    };
    let run = TestRunner::new(config).run(&specs(max, modes), |spec| {
        test(&spec);
        Ok(())
    });
    if let Err(error) = run {
        panic!("{error}");
    }
}

#[test]
fn every_order_and_width_ends_like_the_oracle() {
    check(8, 4, |spec| {
        let expected = ends(spec);
        for (order, parallel) in [(0, spec.parallel), (1, 5 - spec.parallel)] {
            let spec = &Spec {
                parallel,
                ..spec.clone()
            };
            let mut player = Player::new(spec, spec.seed.wrapping_add(order * 0x9E37_79B9));
            player.play();
            let found: Vec<_> = (0..spec.actions.len())
                .map(|one| end_in(&player.graph, one))
                .collect();
            assert_eq!(found, expected);
            assert!(matches!(player.last_why, Some(Why::Finished | Why::Decide)));
        }
    });
}

#[test]
fn nothing_starts_after_an_abort() {
    check(8, 5, |spec| Player::new(spec, spec.seed).play());
}

#[test]
fn nothing_starts_after_a_stop() {
    check(8, 4, |spec| {
        let mut dice = Dice::new(spec.seed);
        let mut player = Player::new(spec, spec.seed);
        player.send(GraphEvent::Begin);
        let stop = [
            GraphEvent::Cancel,
            GraphEvent::Deadline,
            GraphEvent::BudgetGone,
        ][dice.below(3)]
        .clone();
        player.send(stop);
        player.play();
        let all_end = |node: &action_graph::node::Node| {
            node.is_settled() || node.state == NodeState::Uncertain
        };
        assert!(player.graph.nodes.iter().all(all_end));
        assert!(matches!(
            player.graph.status(),
            GraphStatus::Canceled
                | GraphStatus::Failed
                | GraphStatus::Completed
                | GraphStatus::Blocked
        ));
    });
}

#[test]
fn step_is_total() {
    check(5, 5, |spec| {
        let mut dice = Dice::new(spec.seed);
        let mut graph = spec.graph();
        for now in 0..60 {
            let event = any_event(&mut dice, spec, &graph);
            let before = graph.clone();
            let commands = step(&mut graph, event.clone(), now);
            let is_count = |command: &Command| matches!(command, Command::Count(_));
            if !commands.is_empty() && commands.iter().all(is_count) {
                assert_eq!(graph, before, "{event:?}");
            }
            let seqs: Vec<_> = graph.transitions.iter().map(|one| one.seq).collect();
            assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]));
            for node in &graph.nodes {
                assert!(
                    !(node.satisfying
                        && matches!(node.state, NodeState::Pending | NodeState::Running))
                );
            }
        }
    });
}

fn any_event(dice: &mut Dice, spec: &Spec, graph: &Graph) -> GraphEvent {
    let node = &graph.nodes[dice.below(graph.nodes.len())];
    let id: ActionId = match dice.below(12) {
        0 => "nothing".into(),
        _ => node.action.id.clone(),
    };
    let attempt = node.attempt + u32::from(dice.below(6) == 0);
    let sent = [Sent::No, Sent::Maybe, Sent::Yes][dice.below(3)];
    let mut failure = ActionFailure::new(Code::Timeout, "late", sent);
    failure.retryable = dice.below(2) == 0;
    failure.retry_after = (dice.below(3) == 0).then_some(u32::MAX);
    let outcome = match dice.below(2) {
        0 => ActionOutcome::Err(failure),
        _ => ActionOutcome::Ok {
            output: ActionOutput::json(json!({"value": 1})),
            satisfying: dice.below(4) > 0,
        },
    };
    let choice = DecisionChoice::ALL[dice.below(DecisionChoice::ALL.len())];
    let decision = GraphDecision {
        graph: match dice.below(8) {
            0 => GraphId("g_other".to_owned()),
            _ => graph.id.clone(),
        },
        action: (dice.below(4) > 0).then(|| id.clone()),
        choice,
        reason: String::new(),
        input: (dice.below(4) == 0).then(serde_json::Map::new),
    };
    let by = [Actor::Model, Actor::Human, Actor::StatusTool][dice.below(3)];
    match dice.below(20) {
        0 | 1 => GraphEvent::Begin,
        2 => GraphEvent::Started { id, attempt },
        3..=7 => GraphEvent::Finished {
            id,
            attempt,
            outcome,
        },
        8 => GraphEvent::Suspended {
            id,
            attempt,
            on: Suspension::Timer { at: 5 },
        },
        9 => GraphEvent::Woken { id, attempt },
        10 => GraphEvent::TimerFired { id, attempt },
        11 => GraphEvent::Approved {
            ids: vec![(id, node.approval.clone().unwrap_or_default())],
            by: None,
        },
        12 => GraphEvent::Denied {
            ids: vec![id],
            why: Denial::Expired,
        },
        13..=15 => GraphEvent::Decide { decision, by },
        16 => {
            let index = dice.below(spec.actions.len());
            GraphEvent::Revise {
                actions: vec![build_action(index, &spec.actions[index])],
                constants: BTreeMap::new(),
            }
        }
        17 => GraphEvent::CancelAction { id },
        18 => {
            let found = [
                RecoveredAttempt::Nothing,
                RecoveredAttempt::Alive,
                RecoveredAttempt::Unknown,
                RecoveredAttempt::Ended(outcome),
            ];
            GraphEvent::Recovered {
                id,
                attempt,
                found: found[dice.below(4)].clone(),
            }
        }
        _ => [
            GraphEvent::Cancel,
            GraphEvent::Deadline,
            GraphEvent::BudgetGone,
        ][dice.below(3)]
        .clone(),
    }
}

#[test]
fn restored_graphs_have_the_same_future() {
    check(6, 5, |spec| {
        let mut dice = Dice::new(spec.seed);
        let mut graph = spec.graph();
        for now in 0..30 {
            let event = any_event(&mut dice, spec, &graph);
            if dice.below(3) > 0 {
                step(&mut graph, event, now);
                continue;
            }
            let text = serde_json::to_string(&graph).expect("it is stored");
            let mut restored: Graph = serde_json::from_str(&text).expect("it is restored");
            let commands = step(&mut graph, event.clone(), now);
            assert_eq!(step(&mut restored, event, now), commands);
            assert_eq!(restored, graph);
        }
    });
}

#[test]
fn revisions_never_touch_started_actions() {
    check(6, 4, |spec| {
        let mut dice = Dice::new(spec.seed);
        let mut graph = spec.graph();
        step(&mut graph, GraphEvent::Begin, 0);
        let fixed: Vec<_> = graph
            .nodes
            .iter()
            .filter(|node| !matches!(node.state, NodeState::Pending | NodeState::Blocked(_)))
            .cloned()
            .collect();
        let chosen = (0..spec.actions.len()).filter(|_| dice.below(2) == 0);
        let actions: Vec<_> = chosen
            .map(|index| build_action(index, &spec.actions[index]))
            .collect();
        let touches = actions.iter().any(|action| {
            graph
                .node(&action.id)
                .is_some_and(|node| fixed.contains(node))
        });
        let before = graph.generation;
        let constants = BTreeMap::new();
        step(&mut graph, GraphEvent::Revise { actions, constants }, 1);
        assert_eq!(graph.generation, before + u32::from(!touches));
        for node in &fixed {
            assert_eq!(
                graph
                    .node(&node.action.id)
                    .map(|one| (one.attempt, &one.action)),
                Some((node.attempt, &node.action))
            );
        }
    });
}

#[test]
fn at_most_once_runs_once_over_crashes() {
    check(6, 4, |spec| {
        let mut dice = Dice::new(spec.seed);
        let mut graph = spec.graph();
        let mut sent: Vec<(ActionId, String)> = Vec::new();
        let mut open: Vec<(ActionId, u32)> = Vec::new();
        let mut events = vec![GraphEvent::Begin];
        for now in 0..40 {
            let Some(event) = events.pop() else { break };
            for command in step(&mut graph, event, now) {
                match command {
                    Command::Execute(execute)
                    | Command::SpawnChild(execute)
                    | Command::Ask(execute) => {
                        let class = graph.node(&execute.id).expect("a node").class();
                        if class == action_graph::action::Class::AtMostOnce {
                            let call = (execute.id.clone(), execute.key.clone());
                            assert!(!sent.contains(&call), "{} is sent twice", execute.id);
                            sent.push(call);
                        }
                        open.push((execute.id, execute.attempt));
                    }
                    Command::AskApproval(all) => {
                        events.push(GraphEvent::Approved {
                            ids: all.into_iter().map(|one| (one.id, one.hash)).collect(),
                            by: None,
                        });
                    }
                    _ => {}
                }
            }
            if dice.below(3) == 0 {
                // A crash: nothing is known about open attempts.
                let lost: Vec<_> = graph
                    .open_attempts()
                    .map(|(id, attempt)| (id.clone(), attempt))
                    .collect();
                open.clear();
                events = lost
                    .into_iter()
                    .map(|(id, attempt)| GraphEvent::Recovered {
                        id,
                        attempt,
                        found: RecoveredAttempt::Nothing,
                    })
                    .collect();
            } else if !open.is_empty() {
                let (id, attempt) = open.swap_remove(dice.below(open.len()));
                let output = ActionOutput::json(json!({"value": 1, "done": true}));
                events.push(GraphEvent::Finished {
                    id,
                    attempt,
                    outcome: ActionOutcome::Ok {
                        output,
                        satisfying: true,
                    },
                });
            }
        }
    });
}

#[test]
fn bindings_keep_types_or_block() {
    check(8, 4, |spec| {
        let mut player = Player::new(spec, spec.seed);
        player.play();
        for (index, action) in spec.actions.iter().enumerate() {
            let Some((source, has_default)) = action.bind else {
                continue;
            };
            let node = player.graph.node(&id(index)).expect("a node");
            let Some(input) = node.input.as_ref().map(|input| &input["bound"]) else {
                continue;
            };
            match player.graph.value_of(&output_of(source), None) {
                Some(value) => assert_eq!(*input, value),
                None => assert!(has_default && *input == json!("default")),
            }
        }
    });
}
