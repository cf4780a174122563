//! Random graphs: the needs of each action and the outcomes of its attempts.

use std::collections::{BTreeMap, BTreeSet};

use action_graph::action::{
    Action, ActionEnding, ChosenBy, Class, Condition, Effect, Executor, ExecutorKind, FailureMode,
    FailurePolicy, ForEach, Repeat, Resolved, Rest, Test,
};
use action_graph::declaration::{Declaration, Execution, Intent, Payload};
use action_graph::graph::Graph;
use action_graph::ids::{ActionId, GraphId};
use action_graph::node::Sent;
use action_graph::policy::Visibility;
use action_graph::reference::{Reference, ResultPart};
use action_graph::rules::{AgentRules, KnownFacts};
use action_graph::validate::AcceptedDeclaration;
use proptest::prelude::*;
use serde_json::json;

/// End of one attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AttemptEnd {
    Ok,
    Unsatisfying,
    Err { retryable: bool, sent: u8 },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SpecKind {
    Tool(u8),
    Agent,
    Human,
}

#[derive(Clone, Debug)]
pub(super) struct ActionSpec {
    pub(super) deps: Vec<usize>,
    /// An action and one of the four endings.
    pub(super) when: Option<(usize, u8)>,
    /// An action whose output is bound, and whether there is a default.
    pub(super) bind: Option<(usize, bool)>,
    pub(super) kind: SpecKind,
    /// 0 replayable, 1 keyed, 2 at most once.
    pub(super) class: u8,
    /// 0 ask, 1 continue, 2 retry then ask, 3 retry then continue, 4 abort.
    pub(super) mode: u8,
    pub(super) max_attempts: u8,
    pub(super) script: Vec<AttemptEnd>,
    /// Need and answer of an approval.
    pub(super) approval: Option<bool>,
    /// Items with the scripts of each, and failures that are survived.
    pub(super) each: Option<(Vec<Vec<AttemptEnd>>, u16)>,
    /// Iterations at most, and the one after which it is done.
    pub(super) repeat: Option<(u8, u8)>,
    pub(super) writes: Option<u8>,
}

impl ActionSpec {
    /// Dependencies and the source of the binding, which adds an edge.
    pub(super) fn needs(&self) -> BTreeSet<usize> {
        self.deps
            .iter()
            .copied()
            .chain(self.bind.map(|bind| bind.0))
            .collect()
    }

    pub(super) fn acts(&self) -> bool {
        self.class > 0
    }

    pub(super) fn rounds(&self) -> u8 {
        self.repeat.map_or(1, |(max, _)| max)
    }

    /// Attempts of one iteration at most.
    pub(super) fn tries(&self) -> u8 {
        match self.mode {
            2 | 3 => self.max_attempts,
            _ => 1,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) actions: Vec<ActionSpec>,
    /// Order of the declaration.
    pub(super) order: Vec<usize>,
    pub(super) parallel: u8,
    pub(super) seed: u64,
}

pub(super) fn id(index: usize) -> ActionId {
    format!("a{index}").as_str().into()
}

/// The action of an id, and the item of an instance.
pub(super) fn index_of(id: &ActionId) -> (usize, Option<usize>) {
    let (name, item) = match id.as_str().split_once('[') {
        Some((name, rest)) => (name, rest.trim_end_matches(']').parse().ok()),
        None => (id.as_str(), None),
    };
    (name[1..].parse().expect("an index"), item)
}

fn step() -> impl Strategy<Value = AttemptEnd> {
    prop_oneof![
        5 => Just(AttemptEnd::Ok),
        1 => Just(AttemptEnd::Unsatisfying),
        4 => (any::<bool>(), 0..3_u8).prop_map(|(retryable, sent)| AttemptEnd::Err { retryable, sent }),
    ]
}

fn script() -> impl Strategy<Value = Vec<AttemptEnd>> {
    prop::collection::vec(step(), 0..4)
}

fn rare<T: Clone + std::fmt::Debug>(
    strategy: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<T>> {
    prop::option::weighted(0.2, strategy)
}

fn action(modes: u8) -> impl Strategy<Value = ActionSpec> {
    let edges = (
        prop::collection::vec(any::<usize>(), 0..3),
        rare((any::<usize>(), 0..4_u8)),
        rare((any::<usize>(), any::<bool>())),
    );
    let kind = prop_oneof![6 => (0..3_u8).prop_map(SpecKind::Tool), 1 => Just(SpecKind::Agent), 1 => Just(SpecKind::Human)];
    let failure = (0..modes, 1..4_u8, script());
    let extras = (
        rare(any::<bool>()),
        rare((prop::collection::vec(script(), 0..4), 0..3_u16)),
        rare((1..4_u8, 1..5_u8)),
        rare(0..2_u8),
    );
    (edges, kind, 0..3_u8, failure, extras).prop_map(
        |((deps, when, bind), kind, class, (mode, max_attempts, script), extras)| {
            let (approval, each, repeat, writes) = extras;
            let is_human = kind == SpecKind::Human;
            ActionSpec {
                deps,
                when,
                bind,
                kind,
                class: if is_human { 0 } else { class },
                mode,
                max_attempts,
                script,
                approval: approval.filter(|_| !is_human),
                each,
                repeat,
                writes,
            }
        },
    )
}

/// Random graphs with failure modes below `modes`.
pub(super) fn specs(max: usize, modes: u8) -> impl Strategy<Value = Spec> {
    let actions = prop::collection::vec(action(modes), 1..=max);
    (actions, 1..5_u8, any::<u64>()).prop_map(|(mut actions, parallel, seed)| {
        for (index, action) in actions.iter_mut().enumerate() {
            let earlier = |one: usize| if index == 0 { None } else { Some(one % index) };
            let deps: BTreeSet<_> = action.deps.iter().filter_map(|&one| earlier(one)).collect();
            action.deps = deps.into_iter().collect();
            action.when = action.when.and_then(|(one, is)| Some((earlier(one)?, is)));
            action.bind = action
                .bind
                .and_then(|(one, default)| Some((earlier(one)?, default)));
        }
        let mut order: Vec<_> = (0..actions.len()).collect();
        order.sort_by_key(|&index| (index as u64 + 1).wrapping_mul(seed | 1));
        Spec {
            actions,
            order,
            parallel,
            seed,
        }
    })
}

fn failure(mode: u8, max_attempts: u8) -> FailurePolicy {
    let (mode, then) = match mode {
        0 => (FailureMode::AskModel, FailureMode::AskModel),
        1 => (FailureMode::Continue, FailureMode::AskModel),
        2 => (FailureMode::Retry, FailureMode::AskModel),
        3 => (FailureMode::Retry, FailureMode::Continue),
        _ => (FailureMode::Abort, FailureMode::AskModel),
    };
    FailurePolicy {
        mode,
        max_attempts,
        backoff_ms: 10,
        then,
    }
}

fn resolved(spec: &ActionSpec, settles: Vec<ActionId>) -> Resolved {
    let (kind, target) = match spec.kind {
        SpecKind::Tool(number) => (ExecutorKind::Tool, format!("t{number}")),
        SpecKind::Agent => (ExecutorKind::Agent, "agent".to_owned()),
        SpecKind::Human => (ExecutorKind::Human, "ask".to_owned()),
    };
    let (class, effect) = match spec.class {
        0 => (Class::Replayable, Effect::Read),
        1 => (Class::Keyed, Effect::Write),
        _ => (Class::AtMostOnce, Effect::Unknown),
    };
    Resolved {
        kind,
        target,
        chosen_by: ChosenBy::Model,
        effects: BTreeSet::from([effect]),
        class,
        approval: spec.approval.is_some(),
        visibility: Visibility::Model,
        max_parallel: None,
        settles,
    }
}

pub(super) fn build_action(index: usize, spec: &ActionSpec) -> Action {
    let mut action = Action::new(id(index).as_str(), Executor::default());
    action.depends_on = spec.needs().into_iter().map(id).collect();
    action.failure = failure(spec.mode, spec.max_attempts);
    action.when = spec.when.map(|(on, is)| Condition::Ending {
        action: id(on),
        is: [
            ActionEnding::Completed,
            ActionEnding::Failed,
            ActionEnding::Skipped,
            ActionEnding::Blocked,
        ][usize::from(is)],
    });
    if let Some((on, has_default)) = spec.bind {
        let mut binding = json!({"$ref": format!("action:{}.output#/value", id(on))});
        if has_default {
            binding["default"] = json!("default");
        }
        action.input.insert("bound".to_owned(), binding);
    }
    action.for_each = spec.each.as_ref().map(|(_, max_failures)| ForEach {
        items: Reference::Event(format!("/{index}")),
        max: 64,
        max_failures: *max_failures,
        from: 0,
        rest: Rest::default(),
    });
    action.repeat = spec.repeat.map(|(max, _)| Repeat {
        max,
        until: Condition::Value {
            reference: Reference::Own("/done".to_owned()),
            test: Test::Equals(json!(true)),
            negate: false,
        },
        delay_ms: 0,
    });
    action.resources.write = spec
        .writes
        .map(|number| format!("r{number}"))
        .into_iter()
        .collect();
    let settles = spec
        .when
        .map(|(on, _)| on)
        .filter(|on| !spec.needs().contains(on));
    action.resolved = Some(resolved(spec, settles.map(id).into_iter().collect()));
    action
}

impl Spec {
    pub(super) fn graph(&self) -> Graph {
        let actions = self
            .order
            .iter()
            .map(|&index| build_action(index, &self.actions[index]));
        let payload = Payload::ActionGraph {
            actions: actions.collect(),
            report: None,
        };
        let mut declaration = Declaration::new(Intent::Execute, payload);
        declaration.execution = Execution {
            max_parallel: Some(self.parallel),
            ..Execution::default()
        };
        let items = self
            .actions
            .iter()
            .enumerate()
            .filter_map(|(index, action)| {
                let items = action.each.as_ref()?.0.len();
                let list: Vec<_> = (0..items).collect();
                Some((Reference::Event(format!("/{index}")), json!(list)))
            });
        let accepted = AcceptedDeclaration {
            declaration,
            constants: items.collect::<BTreeMap<_, _>>(),
            diagnostics: Vec::new(),
            repeats: None,
        };
        let facts = KnownFacts {
            can_ask: true,
            ..KnownFacts::default()
        };
        let id = GraphId("g_test".to_owned());
        Graph::new(id, accepted, &AgentRules::default(), &facts, Vec::new())
    }

    /// Attempts of all actions and items at most; an action without items counts once.
    pub(super) fn max_attempts(&self) -> usize {
        let attempts = self.actions.iter().map(|action| {
            let items = action.each.as_ref().map_or(1, |(items, _)| items.len() + 1);
            items * usize::from(action.rounds()) * usize::from(action.tries())
        });
        attempts.sum()
    }

    /// End of an attempt, by its number over all attempts of the node.
    pub(super) fn step(&self, id: &ActionId, attempt: u32) -> AttemptEnd {
        let (index, item) = index_of(id);
        let spec = &self.actions[index];
        let script = match (item, &spec.each) {
            (Some(item), Some((scripts, _))) => &scripts[item],
            _ => &spec.script,
        };
        script
            .get(attempt as usize - 1)
            .copied()
            .unwrap_or(AttemptEnd::Ok)
    }
}

pub(super) fn sent_of(sent: u8) -> Sent {
    [Sent::No, Sent::Maybe, Sent::Yes][usize::from(sent)]
}

/// The reference to the output that a binding reads.
pub(super) fn output_of(index: usize) -> Reference {
    Reference::Action {
        id: id(index),
        part: ResultPart::Output,
        pointer: "/value".to_owned(),
    }
}
