//! The rules of the scheduler one by one, and the commands that a service sees.

use action_graph::action::{Class, Effect};
use action_graph::code::Code;
use action_graph::declaration::DecisionChoice;
use action_graph::graph::{Graph, GraphStatus, StopReason};
use action_graph::ids::ActionId;
use action_graph::node::{ActionOutput, BlockReason, NodeState, Sent, Wait};
use action_graph::rules::StandingApproval;
use action_graph::schedule::{
    ActionFailure, ActionOutcome, Actor, Command, Denial, Execute, GraphEvent, IgnoredEvent,
    PersistLevel, RecoveredAttempt, Suspension, Why, step,
};
use serde_json::{Value, json};

use crate::support::{
    a_then_b, act, block, decision, denied, done, envelope, failed, fenced, finish, go_on,
    graph_of, node, ok, play, read, read_action, read_call, reads, recovered, states, timer,
    unsatisfying, why_of, world,
};

fn full(actions: Value, more: Value) -> Graph {
    graph_of(&world(), &fenced(&envelope(actions, more), ""))
}

fn calls(calls: Value) -> Graph {
    graph_of(&world(), &act(calls))
}

fn state(graph: &Graph, id: &str) -> NodeState {
    graph.node(&id.into()).expect("a node").state
}

/// A graph of these calls that has begun, and the commands of its begin.
fn begun(all: Value) -> (Graph, Vec<Command>) {
    let mut graph = graph_of(&world(), &act(all));
    let commands = step(&mut graph, GraphEvent::Begin, 0);
    (graph, commands)
}

fn agent(id: &str) -> Value {
    json!({"id": id, "type": "agent", "name": "code-reviewer", "args": {"prompt": "p"}})
}

fn mail(to: &str) -> Value {
    json!([{"id": "a", "type": "tool", "name": "send_mail", "args": {"to": to, "text": "y"}}])
}

const REFUSED: [Command; 1] = [Command::Count(IgnoredEvent::Refused)];

fn lost(sent: Sent, retryable: bool) -> ActionOutcome {
    let mut failure = ActionFailure::new(Code::Timeout, "no answer", sent);
    failure.retryable = retryable;
    ActionOutcome::Err(failure)
}

fn started(commands: &[Command]) -> Vec<&Execute> {
    let all = commands.iter().filter_map(|command| match command {
        Command::Execute(one) | Command::SpawnChild(one) | Command::Ask(one) => Some(one),
        _ => None,
    });
    all.collect()
}

fn decide(
    graph: &mut Graph,
    action: Option<&str>,
    choice: DecisionChoice,
    by: Actor,
) -> Vec<Command> {
    let decision = decision(graph, action, choice);
    step(graph, GraphEvent::Decide { decision, by }, 9)
}

#[test]
fn commands_come_in_the_order_of_safety() {
    let mut graph = full(json!([reads("a")]), json!({"persist": true}));
    let commands = step(&mut graph, GraphEvent::Begin, 1);
    assert!(matches!(commands[0], Command::Note(_)));
    assert_eq!(commands[1], Command::Persist(PersistLevel::Effect));
    assert!(matches!(commands[2], Command::Execute(_)));
    let commands = step(&mut graph, finish("a", 1, done("done")), 2);
    assert_eq!(
        commands[1..],
        [
            Command::Persist(PersistLevel::Closed),
            Command::Quiescent(Why::Finished)
        ]
    );
}

#[test]
fn ephemeral_graphs_store_nothing() {
    let mut graph = calls(json!([read("a")]));
    let commands = step(&mut graph, GraphEvent::Begin, 1);
    assert!(
        !commands
            .iter()
            .any(|one| matches!(one, Command::Persist(_)))
    );
}

#[test]
fn failures_follow_their_four_policies() {
    let run = |policy: &str| {
        let mut graph = full(
            json!([
                read_action(
                    "a",
                    json!({"failure_policy": {"mode": policy, "max_attempts": 2, "backoff_ms": 0}})
                ),
                read_action("b", json!({"depends_on": ["a"]})),
                reads("c"),
            ]),
            json!({"execution": {"strategy": "sequential"}}),
        );
        let why = play(&mut graph, &|id| match id {
            "a" => Some(lost(Sent::No, true)),
            _ => ok(json!(1)),
        });
        let node = node(&graph, "a");
        (
            node.attempt,
            state(&graph, "b"),
            state(&graph, "c"),
            graph.aggregate(),
            why,
        )
    };
    let blocked = NodeState::Blocked(BlockReason::Dependency);
    let (completed, canceled) = (NodeState::Completed, NodeState::Canceled);
    #[rustfmt::skip]
    let rows = [
        ("ask_model", (1, blocked, completed, GraphStatus::Failed, Some(Why::Decide))),
        ("retry", (2, blocked, completed, GraphStatus::Failed, Some(Why::Decide))),
        ("continue", (1, completed, completed, GraphStatus::Completed, Some(Why::Finished))),
        ("abort", (1, canceled, canceled, GraphStatus::Failed, Some(Why::Canceled))),
    ];
    for (policy, expected) in rows {
        assert_eq!(run(policy), expected, "{policy}");
    }
}

#[test]
fn retries_keep_the_key_and_double_the_delay() {
    let mut graph = full(
        json!([read_action(
            "a",
            json!({"failure_policy": {"mode": "retry", "max_attempts": 4, "backoff_ms": 100}})
        )]),
        json!({}),
    );
    let first = step(&mut graph, GraphEvent::Begin, 0);
    let key = started(&first)[0].key.clone();
    let mut delays = Vec::new();
    for attempt in 1..4 {
        let commands = step(&mut graph, finish("a", attempt, lost(Sent::Maybe, true)), 0);
        let at = commands.iter().find_map(|one| match one {
            Command::SetTimer { at, .. } => Some(*at),
            _ => None,
        });
        delays.extend(at);
        let commands = step(&mut graph, timer("a", attempt), at.expect("a timer"));
        assert_eq!(started(&commands)[0].key, key);
    }
    assert_eq!(delays, [100, 200, 400]);
}

#[test]
fn retry_after_and_jitter_stay_within_bounds() {
    let delay = |retry_after, jitter| {
        let mut graph = full(
            json!([read_action(
                "a",
                json!({"failure_policy": {"mode": "retry", "max_attempts": 2, "backoff_ms": 1000}})
            )]),
            json!({}),
        );
        step(&mut graph, GraphEvent::Begin, 0);
        let mut failure = ActionFailure::new(Code::RateLimited, "slow down", Sent::No);
        failure.retryable = true;
        failure.retry_after = retry_after;
        failure.jitter = jitter;
        step(&mut graph, finish("a", 1, ActionOutcome::Err(failure)), 0);
        graph.node(&"a".into()).and_then(|node| node.due)
    };
    assert_eq!(delay(None, 200), Some(1_200));
    assert_eq!(delay(None, -999), Some(800));
    assert_eq!(delay(Some(5_000), -200), Some(5_000));
    assert_eq!(delay(Some(u32::MAX), 200), Some(60_000));
}

#[test]
fn uncertain_effects_need_a_person() {
    let run = || {
        let (mut graph, _) = begun(
            json!([{"id": "a", "type": "tool", "name": "mystery"}, read_call("b", json!({"depends": "a"}))]),
        );
        let commands = step(&mut graph, finish("a", 1, lost(Sent::Maybe, true)), 1);
        assert_eq!(state(&graph, "a"), NodeState::Uncertain);
        assert_eq!(commands.last(), Some(&Command::Quiescent(Why::Decide)));
        graph
    };
    let mut graph = run();
    for choice in [
        DecisionChoice::Continue,
        DecisionChoice::Retry,
        DecisionChoice::Skip,
    ] {
        let commands = decide(&mut graph, Some("a"), choice, Actor::Model);
        assert_eq!(commands, REFUSED);
    }
    assert_eq!(graph.aggregate(), GraphStatus::Blocked);
    decide(
        &mut graph,
        Some("a"),
        DecisionChoice::Continue,
        Actor::Human,
    );
    assert_eq!(
        states(&graph, ["a", "b"]),
        [NodeState::Completed, NodeState::Running]
    );
    let mut graph = run();
    decide(&mut graph, Some("a"), DecisionChoice::Skip, Actor::Human);
    assert_eq!(state(&graph, "a"), NodeState::Failed);
    let mut graph = run();
    let commands = decide(
        &mut graph,
        Some("a"),
        DecisionChoice::Retry,
        Actor::StatusTool,
    );
    assert_eq!(started(&commands)[0].attempt, 2);
    let mut graph = run();
    decide(&mut graph, None, DecisionChoice::Abort, Actor::Model);
    assert_eq!(
        (state(&graph, "a"), graph.stop),
        (NodeState::Uncertain, Some(StopReason::Aborted))
    );
}

#[test]
fn approvals_cover_exactly_their_bytes() {
    let (mut graph, commands) = begun(mail("x"));
    let Some(Command::AskApproval(requests)) = commands
        .iter()
        .find(|one| matches!(one, Command::AskApproval(_)))
    else {
        panic!("an approval in {commands:?}")
    };
    assert_eq!(requests[0].input, json!({"to": "x", "text": "y"}));
    assert_eq!(requests[0].effects, [Effect::Send]);
    assert_eq!(
        commands.last(),
        Some(&Command::Quiescent(Why::PermissionNeeded))
    );
    let hash = requests[0].hash.clone();
    let wrong = GraphEvent::Approved {
        ids: vec![("a".into(), "other".to_owned())],
        by: None,
    };
    assert_eq!(step(&mut graph, wrong, 1), REFUSED);
    let right = GraphEvent::Approved {
        ids: vec![("a".into(), hash)],
        by: Some("q".to_owned()),
    };
    let commands = step(&mut graph, right, 2);
    let started = started(&commands);
    assert_eq!(started.len(), 1);
    assert_eq!(started[0].approved_by.as_deref(), Some("q"));
}

#[test]
fn refused_expired_and_unavailable_differ() {
    let call = mail("x");
    for (why, code) in [
        (Denial::Refused, Code::ApprovalDenied),
        (Denial::Expired, Code::InteractionExpired),
        (Denial::Unavailable, Code::ApprovalUnavailable),
    ] {
        let (mut graph, _) = begun(call.clone());
        step(&mut graph, denied("a", why), 1);
        let node = node(&graph, "a");
        assert_eq!((node.state, node.why), (NodeState::Failed, Some(code)));
    }
    let mut world = world();
    world.known.can_ask = false;
    let mut graph = graph_of(&world, &act(call));
    step(&mut graph, GraphEvent::Begin, 0);
    let why = why_of(&graph, "a");
    assert_eq!(why, Some(Code::ApprovalUnavailable));
}

#[test]
fn denied_approvals_are_final() {
    let (mut graph, _) = begun(
        json!([{"id": "a", "type": "tool", "name": "delete_all"}, read_call("b", json!({"depends": "a"}))]),
    );
    step(&mut graph, denied("a", Denial::Refused), 1);
    for choice in [
        DecisionChoice::Retry,
        DecisionChoice::Continue,
        DecisionChoice::Skip,
    ] {
        assert_eq!(decide(&mut graph, Some("a"), choice, Actor::Model), REFUSED);
    }
}

#[test]
fn standing_approvals_cover_their_pattern() {
    let standing = StandingApproval {
        id: "s1".to_owned(),
        target: "send_mail".to_owned(),
        effects: [Effect::Send].into(),
        arguments: [("/to".to_owned(), json!("x"))].into(),
        free: ["/text".to_owned()].into(),
        given_by: Some("q".to_owned()),
    };
    let run = |to: &str| {
        let world = world();
        let accepted = world.accepted(&act(mail(to)));
        let id = action_graph::ids::GraphId("g_test".to_owned());
        let mut graph = Graph::new(
            id,
            accepted,
            &world.rules,
            &world.known,
            vec![standing.clone()],
        );
        let commands = step(&mut graph, GraphEvent::Begin, 0);
        let started = started(&commands);
        let approved_by = started.first().and_then(|one| one.approved_by.clone());
        (state(&graph, "a"), approved_by)
    };
    assert_eq!(run("x"), (NodeState::Running, Some("q".to_owned())));
    assert_eq!(run("z"), (NodeState::Waiting(Wait::Approval), None));
}

#[test]
fn model_retries_end_after_three_decisions() {
    let mut graph = calls(a_then_b());
    play(&mut graph, &|_| failed(Code::ToolError, "no"));
    for decision in 0..4_u32 {
        let commands = decide(&mut graph, Some("a"), DecisionChoice::Retry, Actor::Model);
        assert_eq!(
            commands.contains(&Command::Count(IgnoredEvent::Refused)),
            decision == 3
        );
        if decision < 3 {
            assert_eq!(state(&graph, "b"), NodeState::Pending);
            step(
                &mut graph,
                finish("a", decision + 2, lost(Sent::Yes, false)),
                1,
            );
        }
    }
}

#[test]
fn skipping_a_failure_opens_its_edges() {
    for choice in [DecisionChoice::Skip, DecisionChoice::Continue] {
        let mut graph = calls(a_then_b());
        play(&mut graph, &|_| failed(Code::ToolError, "no"));
        decide(&mut graph, Some("a"), choice, Actor::Model);
        assert_eq!(
            states(&graph, ["a", "b"]),
            [NodeState::Failed, NodeState::Running]
        );
    }
}

#[test]
fn delivered_work_need_not_satisfy() {
    let mut graph = calls(json!([agent("a"), read_call("b", json!({"depends": "a"}))]));
    let outcome = unsatisfying("I could not.");
    let why = play(&mut graph, &|_| Some(outcome.clone()));
    assert_eq!(why, Some(Why::Decide));
    let node = node(&graph, "a");
    assert_eq!(
        (node.state, node.satisfying, node.why),
        (NodeState::Completed, false, Some(Code::ChildUnsatisfying))
    );
    assert_eq!(
        state(&graph, "b"),
        NodeState::Blocked(BlockReason::Dependency)
    );
}

#[test]
fn refused_questions_say_so() {
    let (mut graph, _) = begun(
        json!([{"id": "q", "type": "tool", "name": "human.approve", "args": {"title": "Sure?"}}, read_call("b", json!({"depends": "q"}))]),
    );
    let outcome = ActionOutcome::Ok {
        output: ActionOutput::json(json!({"declined": true})),
        satisfying: false,
    };
    step(&mut graph, finish("q", 1, outcome), 1);
    let node = node(&graph, "q");
    assert_eq!(
        (node.state, node.why),
        (NodeState::Completed, Some(Code::ApprovalDenied))
    );
}

#[test]
fn each_attempt_of_an_agent_has_its_key() {
    let mut graph = calls(json!([agent("a")]));
    let first = started(&step(&mut graph, GraphEvent::Begin, 0))[0]
        .key
        .clone();
    let (id, attempt) = ("a".into(), 1);
    let found = RecoveredAttempt::Nothing;
    let again = step(&mut graph, GraphEvent::Recovered { id, attempt, found }, 1);
    assert_eq!(
        started(&again)[0].key,
        first,
        "the same child after a restart"
    );
    let failure = ActionFailure::new(Code::ChildFailed, "it broke", Sent::Yes);
    step(&mut graph, finish("a", 1, ActionOutcome::Err(failure)), 2);
    let retried = decide(&mut graph, Some("a"), DecisionChoice::Retry, Actor::Model);
    assert_ne!(
        started(&retried)[0].key,
        first,
        "another child after a failure"
    );
}

#[test]
fn conditions_wait_for_ends_not_for_success() {
    let graph = |outcome: fn() -> Option<ActionOutcome>| {
        let cleanup = read_action(
            "cleanup",
            json!({"when": {"action": "a", "is": "failed"}, "input": {"path": {"$ref": "action:a.error", "default": "x"}}}),
        );
        let mut graph = full(json!([cleanup, reads("a")]), json!({}));
        play(&mut graph, &|id| match id {
            "a" => outcome(),
            _ => ok(json!(1)),
        });
        let node = node(&graph, "cleanup");
        (node.state, node.input.clone())
    };
    let (state, input) = graph(|| failed(Code::ToolError, "disk full"));
    assert_eq!(
        (state, input),
        (NodeState::Completed, Some(json!({"path": "disk full"})))
    );
    assert_eq!(graph(|| ok(json!(1))).0, NodeState::Skipped);
}

#[test]
fn value_conditions_pass_closed_tests() {
    for (test, runs) in [
        (json!({"equals": 3}), true),
        (json!({"in": [1, 2]}), false),
        (json!({"less": 4}), true),
        (json!({"more": 4}), false),
        (json!({"less": 3}), false),
        (json!({"more": 3}), false),
        (json!({"exists": true}), true),
        (json!({"exists": false}), false),
        (json!({"equals": 3, "negate": true}), false),
    ] {
        let mut when = test.clone();
        when["ref"] = json!("action:a.output#/n");
        let mut graph = full(
            json!([reads("a"), read_action("b", json!({"when": when}))]),
            json!({}),
        );
        play(&mut graph, &|_| ok(json!({"n": 3})));
        let expected = if runs {
            NodeState::Completed
        } else {
            NodeState::Skipped
        };
        assert_eq!(state(&graph, "b"), expected, "{test}");
    }
}

#[test]
fn for_each_collects_in_item_order() {
    let each = |max_failures: u16| {
        let action = read_action(
            "a",
            json!({"input": {"path": {"$ref": "item#/p"}}, "for_each": {"items": "action:list.output#/all", "max": 5, "max_failures": max_failures}}),
        );
        let mut graph = full(
            json!([action, reads("list")]),
            json!({"execution": {"max_parallel": 2}}),
        );
        play(&mut graph, &|id| match id {
            "list" => ok(json!({"all": [{"p": "x"}, {"p": "y"}, {"p": "z"}]})),
            "a[1]" => failed(Code::ToolError, "no"),
            id => ok(json!(id)),
        });
        graph
    };
    let graph = each(1);
    let node = node(&graph, "a");
    assert_eq!(
        node.output.as_ref().map(|one| &one.value),
        Some(&json!(["a[0]", null, "a[2]"]))
    );
    assert_eq!(
        graph.node(&"a[2]".into()).and_then(|one| one.input.clone()),
        Some(json!({"path": "z"}))
    );
    assert_eq!(graph.aggregate(), GraphStatus::Completed);
    let mut graph = each(0);
    assert_eq!(state(&graph, "a"), NodeState::Failed);
    decide(&mut graph, Some("a"), DecisionChoice::Retry, Actor::Model);
    assert_eq!(
        states(&graph, ["a[0]", "a[1]"]),
        [NodeState::Completed, NodeState::Running]
    );
}

#[test]
fn empty_fan_outs_complete() {
    let action = read_action(
        "a",
        json!({"for_each": {"items": "action:list.output", "max": 5}}),
    );
    let mut graph = full(json!([reads("list"), action.clone()]), json!({}));
    play(&mut graph, &|_| ok(json!([])));
    assert_eq!(
        graph
            .node(&"a".into())
            .and_then(|node| node.output.clone())
            .map(|one| one.value),
        Some(json!([]))
    );
    let mut graph = full(json!([reads("list"), action]), json!({}));
    play(&mut graph, &|_| ok(json!([1, 2, 3, 4, 5, 6])));
    let why = why_of(&graph, "a");
    assert_eq!(why, Some(Code::FanOutTooLarge));
}

#[test]
fn repeat_ends_by_condition_or_maximum() {
    let run = |done_at: u64| {
        let until = json!({"ref": "own#/n", "equals": done_at});
        let mut graph = full(
            json!([read_action(
                "a",
                json!({"repeat": {"max": 3, "until": until, "delay_ms": 10}})
            )]),
            json!({}),
        );
        let count = std::cell::Cell::new(0_u64);
        play(&mut graph, &|_| {
            count.set(count.get() + 1);
            ok(json!({"n": count.get()}))
        });
        (state(&graph, "a"), count.get())
    };
    assert_eq!(run(2), (NodeState::Completed, 2));
    assert_eq!(run(9), (NodeState::Completed, 3));
}

#[test]
fn cancel_aborts_and_waits_for_the_grace() {
    let (mut graph, _) = begun(json!([
        {"id": "a", "type": "tool", "name": "mystery"},
        read("b"),
        agent("c"),
        read_call("d", json!({"depends": "a"})),
    ]));
    step(
        &mut graph,
        GraphEvent::Suspended {
            id: "c".into(),
            attempt: 1,
            on: Suspension::Child {
                run: "r".to_owned(),
            },
        },
        1,
    );
    let commands = step(&mut graph, GraphEvent::Cancel, 2);
    let aborted: Vec<_> = commands
        .iter()
        .filter_map(|one| match one {
            Command::Abort { id, .. } => Some(id.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(aborted, ["a", "b", "c"]);
    assert_eq!(
        states(&graph, ["c", "d"]),
        [NodeState::Canceled, NodeState::Canceled]
    );
    step(&mut graph, finish("b", 1, lost(Sent::No, false)), 3);
    let commands = step(&mut graph, timer("a", 1), 5_002);
    assert_eq!(
        states(&graph, ["a", "b"]),
        [NodeState::Uncertain, NodeState::Canceled]
    );
    assert_eq!(commands.last(), Some(&Command::Quiescent(Why::Canceled)));
    assert_eq!(graph.status(), GraphStatus::Canceled);
}

#[test]
fn used_up_budgets_let_running_actions_end() {
    let (mut graph, _) = begun(a_then_b());
    step(&mut graph, GraphEvent::BudgetGone, 1);
    assert_eq!(
        states(&graph, ["a", "b"]),
        [NodeState::Running, NodeState::Canceled]
    );
    let commands = step(&mut graph, finish("a", 1, done("done")), 2);
    assert_eq!(commands.last(), Some(&Command::Quiescent(Why::Canceled)));
    assert_eq!(why_of(&graph, "b"), Some(Code::BudgetExhausted));
}

#[test]
fn take_over_follows_the_class() {
    for (name, args, class, expected) in [
        (
            "read",
            json!({"path": "a"}),
            Class::Replayable,
            NodeState::Running,
        ),
        (
            "write_file",
            json!({"path": "a", "text": "b"}),
            Class::Keyed,
            NodeState::Running,
        ),
        (
            "mystery",
            json!({}),
            Class::AtMostOnce,
            NodeState::Uncertain,
        ),
    ] {
        let mut graph = calls(json!([{"id": "a", "type": "tool", "name": name, "args": args}]));
        let key = started(&step(&mut graph, GraphEvent::Begin, 0))[0]
            .key
            .clone();
        assert_eq!(
            graph.node(&"a".into()).map(action_graph::node::Node::class),
            Some(class)
        );
        let lost = recovered("a", 1, RecoveredAttempt::Nothing);
        let commands = step(&mut graph, lost, 1);
        assert_eq!(state(&graph, "a"), expected, "{name}");
        for again in started(&commands) {
            assert_eq!((again.attempt, &again.key), (1, &key));
        }
        let stored = recovered("a", 1, RecoveredAttempt::Ended(done("done")));
        if expected == NodeState::Running {
            step(&mut graph, stored, 2);
            assert_eq!(state(&graph, "a"), NodeState::Completed);
        }
    }
}

#[test]
fn questions_wait_and_wake() {
    let (mut graph, commands) = begun(
        json!([{"id": "q", "type": "tool", "name": "human.ask", "args": {"kind": "confirmation", "title": "Continue?"}}, read_call("b", json!({"depends": "q"}))]),
    );
    assert!(commands.iter().any(|one| matches!(one, Command::Ask(_))));
    assert_eq!(commands.last(), Some(&Command::Quiescent(Why::UserNeeded)));
    assert!(graph.is_durable());
    let unknown = recovered("q", 1, RecoveredAttempt::Unknown);
    assert_eq!(started(&step(&mut graph, unknown, 1))[0].attempt, 2);
    step(&mut graph, finish("q", 2, done("done")), 2);
    assert_eq!(state(&graph, "b"), NodeState::Running);
}

#[test]
fn timers_resume_suspended_attempts() {
    let (mut graph, _) =
        begun(json!([{"id": "w", "type": "tool", "name": "runtime.wait", "args": {"ms": 10}}]));
    let commands = step(
        &mut graph,
        GraphEvent::Suspended {
            id: "w".into(),
            attempt: 1,
            on: Suspension::Timer { at: 10 },
        },
        0,
    );
    assert_eq!(commands.last(), Some(&Command::Quiescent(Why::Waiting)));
    let commands = step(&mut graph, timer("w", 1), 10);
    assert!(commands.contains(&Command::Resume {
        id: "w".into(),
        attempt: 1
    }));
}

#[test]
fn plans_start_by_decision() {
    let mut graph = full(json!([reads("a")]), json!({"intent": "plan"}));
    assert_eq!(graph.status(), GraphStatus::Pending);
    let commands = decide(&mut graph, None, DecisionChoice::Execute, Actor::Human);
    assert_eq!(started(&commands).len(), 1);
}

#[test]
fn revisions_replace_what_has_not_started() {
    let mut graph = full(
        json!([reads("a"), read_action("b", json!({"depends_on": ["a"]}))]),
        json!({}),
    );
    step(&mut graph, GraphEvent::Begin, 0);
    let world = world();
    let new = block(json!([reads("c")]));
    let actions = world.accepted(&new).declaration.actions().to_vec();
    step(
        &mut graph,
        GraphEvent::Revise {
            actions: actions.clone(),
            constants: [].into(),
        },
        1,
    );
    assert_eq!(graph.generation, 2);
    assert!(graph.node(&"b".into()).is_none());
    assert_eq!(state(&graph, "c"), NodeState::Running);
    assert_eq!(
        step(
            &mut graph,
            GraphEvent::Revise {
                actions,
                constants: [].into()
            },
            2
        ),
        REFUSED
    );
}

#[test]
fn private_values_taint_their_consumers() {
    let mut graph = calls(json!([
        {"id": "s", "type": "tool", "name": "salaries"},
        {"id": "l", "type": "tool", "name": "list", "args": {"of": {"$ref": "action:s.output#/sum"}}},
    ]));
    play(&mut graph, &|_| ok(json!({"sum": 7})));
    let node = node(&graph, "l");
    assert_eq!(node.input, Some(json!({"of": 7})));
    assert_eq!(
        node.visibility(),
        action_graph::policy::Visibility::RuntimeOnly
    );
}

#[test]
fn outputs_above_the_bound_fail() {
    let mut world = world();
    world.rules.limits.stored_output_bytes = 10;
    let mut graph = graph_of(&world, &act(json!([read("a")])));
    play(&mut graph, &|_| ok(json!("more than ten bytes")));
    assert_eq!(why_of(&graph, "a"), Some(Code::OutputTooLarge));
}

#[test]
fn one_action_cancels_alone() {
    let (mut graph, _) = begun(json!([
        read("a"),
        read("b"),
        read_call("c", json!({"depends": "a"}))
    ]));
    step(&mut graph, GraphEvent::CancelAction { id: "a".into() }, 1);
    let id: ActionId = "a".into();
    go_on(&mut graph, finish("a", 1, lost(Sent::No, false)), &|_| None);
    assert_eq!(
        graph.node(&id).map(|node| node.state),
        Some(NodeState::Canceled)
    );
    assert_eq!(
        states(&graph, ["b", "c"]),
        [
            NodeState::Running,
            NodeState::Blocked(BlockReason::Dependency)
        ]
    );
}

#[test]
fn timeouts_can_only_be_lowered() {
    use action_graph::action::ExecutorKind;
    let limits = action_graph::limits::GraphLimits::default();
    assert_eq!(limits.timeout_ms(ExecutorKind::Tool, None), 120_000);
    assert_eq!(limits.timeout_ms(ExecutorKind::Tool, Some(5)), 5);
    assert_eq!(
        limits.timeout_ms(ExecutorKind::Service, Some(u32::MAX)),
        60_000
    );
}

#[test]
fn unsafe_retries_have_keys_of_their_own() {
    let action = read_action(
        "a",
        json!({"executor": {"type": "tool", "target": "mystery"}, "failure_policy": {"mode": "retry", "max_attempts": 2}}),
    );
    let mut graph = full(json!([action]), json!({}));
    let first = started(&step(&mut graph, GraphEvent::Begin, 0))[0]
        .key
        .clone();
    step(&mut graph, finish("a", 1, lost(Sent::No, true)), 1);
    let commands = step(&mut graph, timer("a", 1), 900);
    assert_ne!(started(&commands)[0].key, first);
}

#[test]
fn items_that_may_fail_abort_nothing() {
    let run = |max_failures: u16| {
        let each = json!({"items": "action:list.output", "max": 5, "max_failures": max_failures});
        let action = read_action("a", json!({"failure_policy": "abort", "for_each": each}));
        let mut graph = full(json!([reads("list"), action]), json!({}));
        play(&mut graph, &|id| match id {
            "list" => ok(json!([1, 2])),
            "a[0]" => failed(Code::ToolError, "no"),
            _ => ok(json!(1)),
        });
        graph.stop
    };
    assert_eq!((run(1), run(0)), (None, Some(StopReason::Aborted)));
}

#[test]
fn waived_actions_survive_a_cancel() {
    let bound = json!({"input": {"path": {"$ref": "action:a.output#/none"}}});
    let mut graph = full(
        json!([
            reads("a"),
            read_action("b", bound),
            read_action("c", json!({"depends_on": ["b"]}))
        ]),
        json!({}),
    );
    play(&mut graph, &|id| {
        (id == "a").then(|| ok(json!({}))).flatten()
    });
    decide(&mut graph, Some("b"), DecisionChoice::Skip, Actor::Model);
    assert_eq!(state(&graph, "c"), NodeState::Running);
    step(&mut graph, GraphEvent::Cancel, 9);
    assert_eq!(state(&graph, "b"), NodeState::Blocked(BlockReason::Input));
}

#[test]
fn outputs_of_failed_fan_outs_are_not_bound() {
    let each = read_action(
        "each",
        json!({"failure_policy": "continue", "for_each": {"items": "input:event#/list", "max": 5}}),
    );
    let bound = read_action(
        "b",
        json!({"input": {"path": {"$ref": "action:each.output#/1"}}}),
    );
    let mut graph = full(json!([each, bound]), json!({}));
    play(&mut graph, &|id| match id {
        "each[0]" => failed(Code::ToolError, "no"),
        _ => ok(json!("x")),
    });
    assert_eq!(
        states(&graph, ["each", "b"]),
        [NodeState::Failed, NodeState::Blocked(BlockReason::Input)]
    );
}
