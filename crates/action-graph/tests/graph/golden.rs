//! Prompt texts, compared with golden files.

use action_graph::action::{Effect, ExecutorKind, Idempotency};
use action_graph::card::{carrier_tool, system_message};
use action_graph::catalog::{Catalog, CatalogEntry};
use action_graph::json::pretty;
use action_graph::rules::{AgentRules, CarrierMode};
use serde_json::json;

use crate::support::{entries, golden};

fn tools(count: usize) -> Catalog {
    let tool = |n: usize| {
        let schema = json!({"type": "object", "properties": {"q": {"type": "object", "properties": {"x": {"type": "string"}}}}});
        CatalogEntry::new(
            ExecutorKind::Tool,
            &format!("tool_{n:02}"),
            "Does a thing.",
            schema,
        )
        .acting(&[Effect::Read], Idempotency::Safe)
    };
    Catalog::new((0..count).map(tool).collect())
}

#[test]
fn protocol_card_for_each_size_of_catalogue() {
    let rules = AgentRules {
        enabled: true,
        ..AgentRules::default()
    };
    for count in [0, 3, 40] {
        let text = system_message("You help with code.", &tools(count), &rules);
        golden(&format!("card-{count}-tools.md"), &text);
    }
    golden(
        "card-catalogue.md",
        &system_message("You help.", &Catalog::new(entries()), &rules),
    );
}

#[test]
fn protocol_card_for_each_carrier() {
    let rules = AgentRules {
        enabled: true,
        carrier: CarrierMode::Fenced,
        delegated: true,
        ..AgentRules::default()
    };
    let fenced = system_message("You help.", &tools(0), &rules);
    golden("card-fenced.md", &fenced);
    let disabled = system_message("You help.", &tools(3), &AgentRules::default());
    golden("card-disabled.md", &disabled);
    assert!(!disabled.contains("AgentProtocolOutput"));
}

#[test]
fn carrier_schema_has_no_unions() {
    let schema = pretty(&carrier_tool(&AgentRules::default()).expect("a tool"));
    golden("carrier-flat.json", &format!("{schema}\n"));
    for word in [
        "anyOf",
        "oneOf",
        "allOf",
        "\"if\"",
        "$ref",
        "\"default\"",
        "maxLength",
    ] {
        assert!(!schema.contains(word), "{word}");
    }
    let fenced = AgentRules {
        carrier: CarrierMode::Fenced,
        ..AgentRules::default()
    };
    assert_eq!(carrier_tool(&fenced), None);
}
