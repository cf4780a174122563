//! Renders a dry run as text: the winning agent, the losing agents and reasons, grants, and removals by each
//! layer.

use serde_json::Value;

use crate::output;

/// The layers, in evaluation order.
const LAYERS: [(&str, &str); 4] = [
    ("manifest", "the runner's manifest"),
    ("agent_policy", "the agent's policy"),
    ("config_selector", "the agent's config"),
    ("event_scope", "the scope of the event"),
];

/// Detail of the output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ExplainDetail {
    /// The agent, its runner, and what a run would get.
    Verdict,
    /// Also each right that a layer removed.
    All,
}

/// The lines of a dry run.
pub(super) fn render(answer: &Value, amount: ExplainDetail) -> Vec<String> {
    let mut lines = vec![headline(answer)];
    if answer["known_event"] == true {
        lines.push(
            "note     this event_id was posted before; posting it again starts nothing".to_owned(),
        );
    }
    if let Some(message) = answer["error"]["message"].as_str() {
        lines.push(format!("refused  HTTP {}: {message}", answer["status"]));
    }
    render_candidates(answer, &mut lines);
    if answer["agent"].is_object() {
        render_agent(&answer["agent"], amount, &mut lines);
    }
    lines
}

fn headline(answer: &Value) -> String {
    let event = text(&answer["event_type"]);
    match (answer["winner"].as_str(), answer["outcome"].as_str()) {
        (Some(winner), Some("refused")) => format!("{event} goes to {winner}, and is refused now"),
        (Some(winner), Some("steered")) => {
            let run = text(&answer["steered_into"]);
            format!("{event} goes to {winner}, into run {run}")
        }
        (Some(winner), outcome) => {
            format!(
                "{event} goes to {winner}; the run is {}",
                outcome.unwrap_or_default()
            )
        }
        (None, Some("refused")) => format!("{event} has no agent"),
        (None, _) => format!("{event} has no agent: no agent matches it"),
    }
}

fn render_candidates(answer: &Value, lines: &mut Vec<String>) {
    let candidates = items(&answer["candidates"]);
    if candidates.is_empty() {
        lines.push("agents   there are none".to_owned());
    }
    for one in candidates {
        let word = match text(&one["standing"]) {
            "wins" => "wins",
            "ties" => "ties",
            _ => "loses",
        };
        let why = match one["detail"].as_str() {
            Some(detail) => detail.to_owned(),
            None => format!(
                "scope {}, priority {}",
                text(&one["scope"]["kind"]),
                one["priority"]
            ),
        };
        lines.push(format!("{word:<8} {}: {why}", text(&one["name"])));
    }
    if let Some(more) = answer["more_candidates"].as_u64().filter(|more| *more > 0) {
        let agents = output::counted(more, "more agent");
        lines.push(format!("         and {agents}"));
    }
}

fn render_agent(agent: &Value, amount: ExplainDetail, lines: &mut Vec<String>) {
    let wins = agent["standing"] == "wins";
    let condition = if wins { "" } else { ", if it won" };
    lines.push(String::new());
    lines.push(format!("agent    {}{condition}", text(&agent["name"])));
    let runner = &agent["runner"];
    lines.push(format!(
        "runner   {} is {}{}",
        text(&runner["id"]),
        text(&runner["status"]),
        reason_text(&runner["reason"])
    ));
    if let Some(endpoint) = runner["endpoint"].as_str() {
        let health = text(&runner["endpoint_health"]);
        let reason = reason_text(&runner["endpoint_health_reason"]);
        lines.push(format!("endpoint {endpoint} is {health}{reason}"));
    }
    for fault in items(&agent["faults"]) {
        lines.push(format!(
            "fault    {} {}",
            text(&fault["pointer"]),
            text(&fault["message"])
        ));
    }
    lines.push(format!("policy   {}", admission(&agent["admission"])));
    for (name, whose) in [("workspace", "the workspace"), ("endpoint", "the endpoint")] {
        let capacity = &agent["admission"][name];
        if let (Some(live), Some(max)) = (capacity["live"].as_u64(), capacity["most"].as_u64()) {
            lines.push(format!("limit    {live} of {max} runs of {whose} live"));
        }
    }
    for budget in items(&agent["budgets"]) {
        lines.push(budget_line(budget));
    }
    render_grants(agent, amount, lines);
}

/// A budget with its limits, its subject and its source.
fn budget_line(budget: &Value) -> String {
    let limits = ["calls", "tokens", "cost", "seconds"].map(|of| (of, &budget["most"][of]));
    let limits = limits.into_iter().filter(|(_, most)| !most.is_null());
    let limits: Vec<_> = limits.map(|(of, most)| format!("{most} {of}")).collect();
    let window = match text(&budget["window"]) {
        "whole" => String::new(),
        window => format!(" in a {window}"),
    };
    format!(
        "budget   {}: {} of the {}{window}, by the {}",
        text(&budget["name"]),
        limits.join(", "),
        text(&budget["scope"]),
        match text(&budget["source"]) {
            "api" => "API",
            source => source,
        },
    )
}

fn reason_text(reason: &Value) -> String {
    reason
        .as_str()
        .map_or_else(String::new, |reason| format!(": {reason}"))
}

fn admission(admission: &Value) -> String {
    let run = text(&admission["run_id"]);
    let cancels = items(&admission["cancels"]).len();
    let now = match text(&admission["decision"]) {
        "start" => "a run starts at once".to_owned(),
        "queue" => "the run waits until the active ones end".to_owned(),
        "interrupt" => {
            let runs = output::counted(cancels as u64, "active run");
            format!("the run starts after the cancel of {runs}")
        }
        "steer" => format!("run {run} takes the event up"),
        "reject" => format!("rejected, because run {run} is active"),
        _ => "rejected, because too many runs wait".to_owned(),
    };
    let active = items(&admission["active"]).len();
    format!(
        "{}: {now} ({active} active, {} waiting)",
        text(&admission["policy"]),
        admission["queued"]
    )
}

fn render_grants(agent: &Value, amount: ExplainDetail, lines: &mut Vec<String>) {
    if agent["resources"].is_null() {
        lines.push("granted  nothing: its runner cannot be called".to_owned());
        return;
    }
    let apis = agent["available_apis"].as_object();
    let apis: Vec<_> = apis
        .into_iter()
        .flatten()
        .filter(|(_, open)| **open == true)
        .map(|(name, _)| name.as_str())
        .collect();
    if amount == ExplainDetail::All {
        lines.push(format!("apis     {}", or_none(&apis.join(" "))));
    }
    let decisions = items(&agent["decisions"]);
    let granted: Vec<_> = decisions
        .iter()
        .filter(|one| one["granted"] == true)
        .collect();
    if granted.is_empty() {
        lines.push("granted  nothing".to_owned());
    }
    for one in granted {
        // Only rights that need no layer have an explanation.
        let why = match text(&one["kind"]) {
            "event_artifact" => format!(": {}", text(&one["rule"])),
            _ => String::new(),
        };
        lines.push(format!("granted  {}{why}", what(one)));
    }
    render_removed(decisions, amount, lines);
}

/// Rights that each layer removed: their number, or each with its rule.
fn render_removed(decisions: &[Value], amount: ExplainDetail, lines: &mut Vec<String>) {
    let mut counts = Vec::new();
    for (layer, name) in LAYERS {
        let removed = |one: &&Value| one["granted"] == false && one["layer"] == layer;
        let removed: Vec<_> = decisions.iter().filter(removed).collect();
        if amount == ExplainDetail::All {
            lines.extend(removed.iter().map(|one| {
                let rule = text(&one["rule"]);
                format!("removed  {}, by {name}: {rule}", what(one))
            }));
        } else if !removed.is_empty() {
            counts.push(format!("{} by {name}", removed.len()));
        }
    }
    if !counts.is_empty() {
        lines.push(format!("removed  {}; -v lists them", counts.join(", ")));
    }
}

/// A right in words.
pub(crate) fn what(decision: &Value) -> String {
    let (kind, id, operation) = (
        text(&decision["kind"]),
        text(&decision["id"]),
        text(&decision["operation"]),
    );
    // Kinds without resources are not repeated: `history page`, not `history history page`.
    if id == kind || id == operation {
        format!("{kind} {operation}")
    } else {
        format!("{kind} {id} {operation}")
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn renders_winner_grants_and_removals() {
        let answer = json!({
            "event_type": "message.received", "known_event": true, "status": 202,
            "outcome": "created", "winner": "hello", "more_candidates": 3,
            "candidates": [
                {"name": "hello", "standing": "wins", "scope": {"kind": "global"}, "priority": 2},
                {"name": "other", "standing": "loses", "detail": "the agent is disabled"},
            ],
            "agent": {
                "name": "hello", "standing": "wins",
                "runner": {"id": "plugin:a/b/c", "status": "accepted", "endpoint": "e",
                    "endpoint_health": "unreachable", "endpoint_health_reason": "closed"},
                "faults": [{"pointer": "/config/tone", "message": "must be a text"}],
                "admission": {"policy": "steer", "decision": "steer", "run_id": "r-1",
                    "cancels": [], "active": [{}], "queued": 0},
                "budgets": [
                    {"name": "day", "source": "api", "scope": "agent", "window": "day", "most": {"tokens": 9, "cost": 1.5}},
                    {"name": "one", "source": "configuration", "scope": "run", "window": "whole", "most": {"calls": 3}},
                ],
                "resources": {}, "available_apis": {"state": true, "run_get": true, "storage": false},
                "decisions": [
                    {"kind": "model", "id": "m", "operation": "invoke", "granted": true, "layer": "event_scope", "rule": ""},
                    {"kind": "history", "id": "history", "operation": "page", "granted": false, "layer": "event_scope", "rule": "no conversation"},
                    {"kind": "tool", "id": "t", "operation": "call", "granted": false, "layer": "manifest", "rule": "permissions.tools lacks call"},
                ],
            },
        });
        let expected = [
            "message.received goes to hello; the run is created",
            "note     this event_id was posted before; posting it again starts nothing",
            "wins     hello: scope global, priority 2",
            "loses    other: the agent is disabled",
            "         and 3 more agents",
            "",
            "agent    hello",
            "runner   plugin:a/b/c is accepted",
            "endpoint e is unreachable: closed",
            "fault    /config/tone must be a text",
            "policy   steer: run r-1 takes the event up (1 active, 0 waiting)",
            "budget   day: 9 tokens, 1.5 cost of the agent in a day, by the API",
            "budget   one: 3 calls of the run, by the configuration",
            "apis     run_get state",
            "granted  model m invoke",
            "removed  tool t call, by the runner's manifest: permissions.tools lacks call",
            "removed  history page, by the scope of the event: no conversation",
        ];
        assert_eq!(render(&answer, ExplainDetail::All), expected);
        let short = [
            &expected[..13],
            &[
                "granted  model m invoke",
                "removed  1 by the runner's manifest, 1 by the scope of the event; -v lists them",
            ],
        ]
        .concat();
        assert_eq!(render(&answer, ExplainDetail::Verdict), short);
    }

    #[test]
    fn shows_missing_agent_and_refusal_first() {
        let check = |answer: Value, expected: &[&str]| {
            assert_eq!(render(&answer, ExplainDetail::Verdict), expected);
        };
        check(
            json!({"event_type": "x", "outcome": "no_agent", "winner": null, "candidates": []}),
            &[
                "x has no agent: no agent matches it",
                "agents   there are none",
            ],
        );
        check(
            json!({
                "event_type": "x", "outcome": "refused", "status": 409, "winner": null,
                "error": {"message": "several agents"}, "candidates": [
                    {"name": "a", "standing": "ties", "scope": {"kind": "bot"}, "priority": 0}],
            }),
            &[
                "x has no agent",
                "refused  HTTP 409: several agents",
                "ties     a: scope bot, priority 0",
            ],
        );
    }
}
