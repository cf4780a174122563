//! Summary of a preview's decisions, for a terminal.

use std::collections::BTreeMap;

use domain::authorization::{Decision, Layer};

/// Kinds with resources, which are listed by name. Other kinds have operations only.
const NAMED: [&str; 6] = ["model", "tool", "skill", "knowledge_base", "file", "agent"];
/// Kinds that depend only on the event.
const OF_EVENT: [&str; 4] = ["runs", "run", "prompt", "event_artifact"];

/// A line of rights that runs get, one of kinds that the manifest does not ask for, and one of rights that another
/// layer removes. Empty ones are left out.
pub(super) fn summary(decisions: &[Decision]) -> Vec<String> {
    let mut granted: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut unasked: Vec<&str> = Vec::new();
    let mut removed: Vec<String> = Vec::new();
    let of_runs = |one: &&Decision| !OF_EVENT.contains(&one.kind.as_ref());
    for one in decisions.iter().filter(of_runs) {
        let kind = one.kind.as_ref();
        let name = name(one);
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
    // A kind that is granted in part is not offered once more.
    unasked.retain(|kind| !granted.contains_key(kind));
    let granted: Vec<_> = granted
        .iter()
        .map(|(kind, names)| format!("{} {}", words(kind), names.join(", ")))
        .collect();
    let granted = if granted.is_empty() {
        "nothing".to_owned()
    } else {
        granted.join("; ")
    };
    let unasked: Vec<_> = unasked.into_iter().map(words).collect();
    let mut lines = vec![format!("may use {granted}")];
    if !unasked.is_empty() {
        lines.push(format!("could ask for {}", unasked.join(", ")));
    }
    if !removed.is_empty() {
        lines.push(format!("does not get {}", removed.join(", ")));
    }
    lines
}

/// The resource of a decision, or its operation.
fn name(decision: &Decision) -> String {
    match (decision.kind.as_ref(), decision.operation.as_ref()) {
        (kind, _) if NAMED.contains(&kind) => decision.id.clone(),
        ("state" | "storage", "binding") => "binding (of this agent)".to_owned(),
        (_, operation) => operation.to_owned(),
    }
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
    fn summarises_grants_by_kind() {
        let (manifest, policy, event) = (Layer::Manifest, Layer::AgentPolicy, Layer::EventScope);
        let decisions = [
            decision(["model", "m", "invoke"], true, event),
            decision(["model", "m", "stream"], true, event),
            decision(["model", "n", "count_tokens"], false, manifest),
            decision(["tool", "t", "call"], true, event),
            decision(["tool", "s", "call"], true, event),
            decision(["state", "binding", "binding"], true, event),
            decision(["tool", "u", "call"], false, policy),
            decision(["knowledge_base", "k", "retrieve"], false, manifest),
            decision(["history", "conversation", "page"], true, event),
            decision(["prompt", "effective", "get"], false, event),
        ];
        assert_eq!(
            summary(&decisions),
            [
                "may use history page; model m; state binding (of this agent); tool t, s",
                "could ask for knowledge base",
                "does not get tool u (the rule)",
            ]
        );
        assert_eq!(summary(&[]), ["may use nothing"]);
    }
}
