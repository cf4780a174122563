//! Properties of declarations: printing reads back, declared effects only tighten.

use std::cell::Cell;
use std::collections::BTreeSet;

use action_graph::accept::OutputVerdict;
use action_graph::action::{Effect, ExecutorKind, Idempotency};
use action_graph::catalog::{Catalog, CatalogEntry};
use action_graph::declaration::Declaration;
use action_graph::output::ModelOutput;
use action_graph::policy::{POLICY_NAMES, Return};
use action_graph::print::print;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

use crate::support::{cases, envelope, fenced, read_action, world};

/// Fields of an object; absent ones are `None`.
type GeneratedFields = Vec<(&'static str, Option<Value>)>;

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[^\\x00]{0,12}", "[a-z]{1,8}"]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9).prop_map(|number: f64| json!(number)),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::from),
            vec(("[a-z]{1,4}", inner), 0..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn some<T: Into<Value> + std::fmt::Debug>(
    strategy: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<Value>> {
    option::of(strategy.prop_map(Into::into))
}

fn filled(target: &mut Value, fields: GeneratedFields) {
    for (key, value) in fields {
        if let Some(value) = value {
            target[key] = value;
        }
    }
}

fn result_policy() -> impl Strategy<Value = Value> {
    let form = select(Return::ALL.map(Return::as_str).to_vec());
    let otherwise = select(vec!["truncate", "refuse", "provide_ref_and_summary"]);
    let object = (
        form.clone(),
        vec("[a-z]{1,5}", 0..3),
        option::of(1..9_000_u32),
        any::<bool>(),
        otherwise,
    );
    let object = object.prop_map(|(form, priority, max_tokens, store_full, otherwise)| {
        json!({"return_to_model": form, "priority": priority, "max_tokens": max_tokens,
            "store_full": store_full, "if_truncated": otherwise})
    });
    prop_oneof![form.prop_map(Value::from), object]
}

fn failure_policy() -> impl Strategy<Value = Value> {
    let mode = select(vec!["retry", "abort", "continue", "ask_model"]);
    let then = select(vec!["abort", "continue", "ask_model"]);
    let object = (mode.clone(), 1..6_u8, 0..60_000_u32, then);
    let object = object.prop_map(|(mode, attempts, backoff, then)| {
        json!({"mode": mode, "max_attempts": attempts, "backoff_ms": backoff, "then": then})
    });
    prop_oneof![mode.prop_map(Value::from), object]
}

fn condition(reference: &'static str) -> impl Strategy<Value = Value> {
    let test = prop_oneof![
        any::<bool>().prop_map(|exists| json!({"exists": exists})),
        value().prop_map(|one| json!({"equals": one})),
        vec(value(), 1..3).prop_map(|all| json!({"in": all})),
        (-1e6..1e6).prop_map(|number: f64| json!({"less": number})),
        (-1e6..1e6).prop_map(|number: f64| json!({"more": number})),
    ];
    (test, any::<bool>()).prop_map(move |(mut test, negate)| {
        test["ref"] = json!(reference);
        test["negate"] = json!(negate);
        test
    })
}

fn policies() -> impl Strategy<Value = Vec<(&'static str, Value)>> {
    subsequence(POLICY_NAMES.to_vec(), 0..=POLICY_NAMES.len()).prop_flat_map(|names| {
        names
            .into_iter()
            .map(|name| (Just(name), value()))
            .collect::<Vec<_>>()
    })
}

/// Actions in a row; each may depend on, bind from, or wait for the one before.
fn action(index: usize) -> impl Strategy<Value = Value> {
    let before = (index > 0).then(|| format!("a{}", index - 1));
    let texts = (text(), text(), text(), text());
    let bind = select(vec![
        json!("a"),
        json!({"$ref": "input:user.goal"}),
        json!({"$ref": "input:event#/message/text", "default": "x"}),
        before.as_ref().map_or(
            json!("b"),
            |id| json!({"$ref": format!("action:{id}.summary"), "default": "x"}),
        ),
    ]);
    let edges = (
        any::<bool>(),
        bind,
        some(vec(
            select(vec![
                "md:facts",
                "input:user.goal",
                "runtime://g_done/actions/found/summary",
            ]),
            0..3,
        )),
        some(Just("md:task")),
    );
    let forms = (
        some(result_policy()),
        some(failure_policy()),
        some(any::<bool>()),
        some(1..600_000_u32),
    );
    let when = some(prop_oneof![
        condition("input:event#/list/0"),
        Just(json!({"action": "a0", "is": "completed"}))
    ]);
    let each = some((1..65_u16, 0..4_u16, 0..9_u32, any::<bool>()).prop_map(
        |(max, failures, from, leaves)| {
            json!({"items": "input:event#/list", "max": max, "max_failures": failures,
            "from": from, "rest": if leaves { "leave" } else { "refuse" }})
        },
    ));
    let repeat = some(
        (1..9_u8, condition("own#/done"), 0..60_001_u32)
            .prop_map(|(max, until, delay)| json!({"max": max, "until": until, "delay_ms": delay})),
    );
    let effects = some(subsequence(Effect::ALL.map(Effect::as_str).to_vec(), 0..4));
    let resources = some(
        vec("[a-z]{1,4}", 0..2).prop_map(|names| json!({"read": names.clone(), "write": names})),
    );
    let loops = (when, each, repeat, effects, resources);
    (texts, edges, forms, loops, policies()).prop_map(move |(texts, edges, forms, loops, policies)| {
        let (title, description, reason, operation) = texts;
        let (depends, bind, context, prompt) = edges;
        let mut action = read_action(
            &format!("a{index}"),
            json!({"title": title, "description": description, "reason": reason, "operation": operation, "input": {"path": bind}}),
        );
        let depends = before.clone().filter(|_| depends).map(|id| json!([id]));
        filled(
            &mut action,
            vec![
                ("depends_on", depends),
                ("context_refs", context),
                ("prompt_ref", prompt),
                ("result_policy", forms.0),
                ("failure_policy", forms.1),
                ("persist", forms.2),
                ("timeout_ms", forms.3),
                ("when", loops.0.filter(|when| index > 0 || when.get("action").is_none())),
                ("for_each", loops.1),
                ("repeat", loops.2),
                ("effects", loops.3),
                ("resources", loops.4),
            ],
        );
        for (name, value) in policies {
            action[name] = value;
        }
        action
    })
}

fn declaration() -> impl Strategy<Value = Value> {
    let actions = (1..4_usize).prop_flat_map(|count| (0..count).map(action).collect::<Vec<_>>());
    let head = (
        some(text()),
        some(any::<bool>()),
        some(result_policy()),
        select(vec!["execute", "plan"]),
        some(value()),
    );
    let execution = some((any::<bool>(), any::<bool>(), 1..9_u8).prop_map(
        |(durable, row, max_parallel)| {
            json!({"mode": if durable { "durable" } else { "ephemeral" },
            "strategy": if row { "sequential" } else { "dag" }, "max_parallel": max_parallel})
        },
    ));
    (actions, head, execution, policies()).prop_map(|(actions, head, execution, policies)| {
        let mut value = envelope(actions.into(), json!({}));
        filled(
            &mut value,
            vec![
                ("title", head.0),
                ("persist", head.1),
                ("response_policy", head.2),
                ("intent", Some(head.3.into())),
                ("x_unknown", head.4),
                ("execution", execution),
            ],
        );
        for (name, one) in policies {
            value[name] = one;
        }
        value
    })
}

/// The declaration without the hash of its raw text and the lines of its sections.
fn without_pointers(mut declaration: Declaration) -> Declaration {
    declaration.source.raw_sha256.clear();
    let sections = declaration.source.sections.values_mut();
    sections.for_each(|section| section.line = 0);
    declaration
}

fn run<T: std::fmt::Debug>(cases: u32, all: impl Strategy<Value = T>, test: impl Fn(T)) {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&all, |one| {
        test(one);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn any_accepted_declaration_prints_and_reads_back() {
    let world = world();
    let (accepted, all) = (Cell::new(0_u32), Cell::new(0_u32));
    let behind = "## facts\n\nFacts.\n\n## task\n\nDo it.\n\n## user.visible\n\nI look.\n";
    run(cases(200), declaration(), |value| {
        all.set(all.get() + 1);
        let OutputVerdict::Accepted(first) = world.accept_output(&fenced(&value, behind)) else {
            return;
        };
        accepted.set(accepted.get() + 1);
        let first = first.declaration;
        let again = world.accepted(&ModelOutput::text(&print(&first)));
        assert_eq!(without_pointers(again.declaration), without_pointers(first));
    });
    let (accepted, all) = (accepted.get(), all.get());
    assert!(accepted > all / 2, "{accepted} of {all} are accepted");
}

#[test]
fn any_declared_effect_only_tightens() {
    let effects = || subsequence(Effect::ALL.to_vec(), 0..=Effect::ALL.len());
    let idempotency = select(vec![
        Idempotency::Safe,
        Idempotency::Keyed,
        Idempotency::Unsafe,
        Idempotency::Unknown,
    ]);
    run(
        cases(200),
        (effects(), idempotency, effects()),
        |(effects, idempotency, declared)| {
            let schema = json!({"type": "object"});
            let entry = CatalogEntry::new(ExecutorKind::Tool, "tool", "Acts.", schema);
            let mut world = world();
            world.catalog = Catalog::new(vec![entry.acting(&effects, idempotency)]);
            world.rules.forbid.clear();
            let words: Vec<_> = declared.iter().copied().map(Effect::as_str).collect();
            let resolve = |effects: Value| {
                let executor = json!({"type": "tool", "target": "tool"});
                let action = read_action("a", json!({"executor": executor, "effects": effects}));
                let accepted = world.accepted(&fenced(&envelope(json!([action]), json!({})), ""));
                accepted.declaration.actions()[0]
                    .resolved
                    .clone()
                    .expect("resolved")
            };
            let (alone, with) = (resolve(json!([])), resolve(json!(words)));
            assert!(
                with.class >= alone.class,
                "{:?} below {:?}",
                with.class,
                alone.class
            );
            assert!(with.approval >= alone.approval);
            let lost = |effect: &Effect| *effect != Effect::None && !with.effects.contains(effect);
            let lost: BTreeSet<_> = alone.effects.iter().filter(|&one| lost(one)).collect();
            assert!(lost.is_empty(), "{lost:?} are lost");
        },
    );
}
