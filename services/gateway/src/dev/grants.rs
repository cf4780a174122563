//! Summary of a preview's decisions on one line.

use std::collections::BTreeMap;

use domain::authorization::{Decision, Layer};

/// Kinds with resources, which are listed by name. Other kinds have operations only.
const NAMED: [&str; 6] = ["model", "tool", "skill", "knowledge_base", "file", "agent"];
/// Kinds that depend on the event alone.
const OF_EVENT: [&str; 4] = ["runs", "run", "prompt", "event_artifact"];

/// Rights that runs get, rights that the manifest does not ask for, and rights that another layer removes.
pub(super) fn summary(decisions: &[Decision]) -> String {
    let mut granted: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut unasked: Vec<&str> = Vec::new();
    let mut removed: Vec<String> = Vec::new();
    let of_runs = |one: &&Decision| !OF_EVENT.contains(&one.kind.as_ref());
    for one in decisions.iter().filter(of_runs) {
        let kind = one.kind.as_ref();
        let name = if NAMED.contains(&kind) {
            one.id.as_str()
        } else {
            one.operation.as_ref()
        };
        if one.granted {
            let names = granted.entry(kind).or_default();
            if !names.contains(&name) {
                names.push(name);
            }
            continue;
        }
        match one.layer {
            Layer::Manifest if !unasked.contains(&kind) => unasked.push(kind),
            Layer::AgentPolicy | Layer::ConfigSelector => {
                removed.push(format!("{} {name} ({})", words(kind), one.rule));
            }
            _ => {}
        }
    }
    unasked.retain(|kind| !granted.contains_key(kind));
    let granted: Vec<_> = granted
        .iter()
        .map(|(kind, names)| format!("{} {}", words(kind), names.join(" ")))
        .collect();
    let mut text = if granted.is_empty() {
        "granted nothing".to_owned()
    } else {
        format!("granted {}", granted.join(", "))
    };
    let unasked: Vec<_> = unasked.into_iter().map(words).collect();
    if !unasked.is_empty() {
        text.push_str("; its manifest does not ask for ");
        text.push_str(&unasked.join(", "));
    }
    if !removed.is_empty() {
        text.push_str("; removed ");
        text.push_str(&removed.join(", "));
    }
    text
}

fn words(kind: &str) -> String {
    kind.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(what: [&str; 3], granted: bool, layer: Layer) -> Decision {
        let [kind, id, operation] = what.map(str::to_owned);
        Decision {
            kind: kind.into(),
            id,
            operation: operation.into(),
            granted,
            layer,
            rule: "the rule".into(),
        }
    }

    #[test]
    fn summarises_grants_on_one_line() {
        let (manifest, policy, event) = (Layer::Manifest, Layer::AgentPolicy, Layer::EventScope);
        let decisions = [
            decision(["model", "m", "invoke"], true, event),
            decision(["model", "m", "stream"], true, event),
            decision(["model", "n", "count_tokens"], false, manifest),
            decision(["tool", "t", "call"], true, event),
            decision(["tool", "u", "call"], false, policy),
            decision(["knowledge_base", "k", "retrieve"], false, manifest),
            decision(["history", "conversation", "page"], true, event),
            decision(["prompt", "effective", "get"], false, event),
        ];
        assert_eq!(
            summary(&decisions),
            "granted history page, model m, tool t; its manifest does not ask for knowledge base; \
             removed tool u (the rule)"
        );
        assert_eq!(summary(&[]), "granted nothing");
    }
}
