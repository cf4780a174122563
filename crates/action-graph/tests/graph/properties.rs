//! Declared effects only tighten the rules of a tool.

use std::collections::BTreeSet;

use action_graph::action::{Effect, ExecutorKind, Idempotency};
use action_graph::catalog::{Catalog, CatalogEntry};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use crate::support::{block, cases, read_action, resolved, world};

fn effects() -> impl Strategy<Value = Vec<Effect>> {
    subsequence(Effect::ALL.to_vec(), 0..=Effect::ALL.len())
}

fn idempotency() -> impl Strategy<Value = Idempotency> {
    select(vec![
        Idempotency::Safe,
        Idempotency::Keyed,
        Idempotency::Unsafe,
        Idempotency::Unknown,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(200), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_declared_effect_only_tightens(effects in effects(), idempotency in idempotency(), declared in effects()) {
        let entry = CatalogEntry::new(ExecutorKind::Tool, "tool", "Acts.", json!({"type": "object"}));
        let mut world = world();
        world.catalog = Catalog::new(vec![entry.acting(&effects, idempotency)]);
        world.rules.forbid.clear();
        let words: Vec<_> = declared.iter().copied().map(Effect::as_str).collect();
        let resolve = |effects: Value| {
            let executor = json!({"type": "tool", "target": "tool"});
            let action = read_action("a", json!({"executor": executor, "effects": effects}));
            resolved(&world.accepted(&block(json!([action]))))
        };
        let (alone, with) = (resolve(json!([])), resolve(json!(words)));
        prop_assert!(with.class >= alone.class, "{:?} below {:?}", with.class, alone.class);
        prop_assert!(with.approval >= alone.approval);
        let lost = |effect: &Effect| *effect != Effect::None && !with.effects.contains(effect);
        let lost: BTreeSet<_> = alone.effects.iter().filter(|&one| lost(one)).collect();
        prop_assert!(lost.is_empty(), "{lost:?} are lost");
    }
}
