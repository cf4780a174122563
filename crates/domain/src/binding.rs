//! Which one agent wins an event (host API §2).

use protocol::admin::{AgentSpec, ScopeKind};
use protocol::event::EventEnvelope;

/// The outcome of a resolution over agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution<'a, A> {
    Winner(&'a A),
    /// Nobody wants the event.
    Nobody,
    /// Several want it with equal right: names in order.
    Tie(Vec<String>),
}

/// Finds the one agent for an event: the most specific scope, then the highest priority.
pub fn resolve<'a, A>(
    agents: &'a [A],
    spec: impl Fn(&A) -> &AgentSpec,
    event: &EventEnvelope,
) -> Resolution<'a, A> {
    let rank = |agent: &A| (spec(agent).scope.kind, spec(agent).priority);
    let wanting: Vec<&A> = agents
        .iter()
        .filter(|agent| wants(spec(agent), event))
        .collect();
    let Some(best) = wanting.iter().map(|agent| rank(agent)).max() else {
        return Resolution::Nobody;
    };
    let mut first = wanting.into_iter().filter(|agent| rank(agent) == best);
    match (first.next(), first.next()) {
        (Some(winner), None) => Resolution::Winner(winner),
        (one, two) => {
            let tied = one.into_iter().chain(two).chain(first);
            let mut names: Vec<_> = tied.map(|agent| spec(agent).name.clone()).collect();
            names.sort();
            Resolution::Tie(names)
        }
    }
}

fn wants(spec: &AgentSpec, event: &EventEnvelope) -> bool {
    let actor_id = event
        .actor
        .as_ref()
        .and_then(|actor| actor.actor_id.as_deref());
    let pipeline_id = event
        .adapter
        .as_ref()
        .and_then(|adapter| adapter.pipeline_id.as_deref());
    spec.enabled
        && spec
            .event_types
            .iter()
            .any(|pattern| covers(pattern, &event.event_type))
        && in_scope(spec, event)
        && passes(spec.filters.source.as_deref(), Some(&event.source))
        && passes(spec.filters.bot_id.as_deref(), event.bot_id.as_deref())
        && passes(spec.filters.actor_id.as_deref(), actor_id)
        && passes(spec.filters.pipeline_id.as_deref(), pipeline_id)
}

fn covers(pattern: &str, event_type: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => event_type.starts_with(prefix),
        None => pattern == event_type,
    }
}

fn in_scope(spec: &AgentSpec, event: &EventEnvelope) -> bool {
    let scope = &spec.scope;
    let conversation_id = event
        .conversation
        .as_ref()
        .and_then(|conversation| conversation.conversation_id.as_ref());
    match scope.kind {
        ScopeKind::Global | ScopeKind::Workspace => true,
        ScopeKind::Bot => scope.bot_id == event.bot_id,
        ScopeKind::Conversation => {
            scope.bot_id == event.bot_id && scope.conversation_id.as_ref() == conversation_id
        }
    }
}

fn passes(listed: Option<&[String]>, value: Option<&str>) -> bool {
    listed.is_none_or(|list| value.is_some_and(|value| list.iter().any(|item| item == value)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn agent(name: &str, changes: Value) -> AgentSpec {
        let mut body =
            json!({"name": name, "event_types": ["message.*"], "runner_id": "plugin:a/b/c"});
        let Value::Object(changes) = changes else {
            panic!("an object")
        };
        body.as_object_mut().unwrap().extend(changes);
        serde_json::from_value(body).unwrap()
    }

    fn check(agents: &[AgentSpec], expected: &Result<Option<&str>, Vec<&str>>) {
        let event: EventEnvelope = serde_json::from_value(json!({
            "event_type": "message.received", "source": "webui", "bot_id": "b",
            "conversation": {"conversation_id": "c"}, "actor": {"actor_type": "user", "actor_id": "u"},
            "adapter": {"pipeline_id": "p"},
        }))
        .unwrap();
        let found = match resolve(agents, |agent| agent, &event) {
            Resolution::Winner(agent) => Ok(Some(agent.name.as_str())),
            Resolution::Nobody => Ok(None),
            Resolution::Tie(ref names) => {
                assert_eq!(expected, &Err(names.iter().map(String::as_str).collect()));
                return;
            }
        };
        assert_eq!(&found, expected);
    }

    #[test]
    fn the_most_specific_scope_wins_then_priority_and_a_tie_names_both() {
        let wide = agent("wide", json!({"priority": 9}));
        let bot = agent("bot", json!({"scope": {"kind": "bot", "bot_id": "b"}}));
        let other = agent("other", json!({"scope": {"kind": "bot", "bot_id": "x"}}));
        let talk = agent(
            "talk",
            json!({"scope": {"kind": "conversation", "bot_id": "b", "conversation_id": "c"}}),
        );
        check(&[], &Ok(None));
        check(&[wide.clone(), other], &Ok(Some("wide")));
        check(&[wide.clone(), bot.clone()], &Ok(Some("bot")));
        check(&[wide.clone(), bot.clone(), talk], &Ok(Some("talk")));
        check(
            &[wide.clone(), agent("low", json!({"priority": 1}))],
            &Ok(Some("wide")),
        );
        check(
            &[wide, agent("also", json!({"priority": 9}))],
            &Err(vec!["also", "wide"]),
        );
    }

    #[test]
    fn filters_must_all_hold_and_a_disabled_agent_wants_nothing() {
        check(
            &[agent(
                "a",
                json!({"filters": {"source": ["webui"], "actor_id": ["u"]}}),
            )],
            &Ok(Some("a")),
        );
        check(
            &[agent(
                "a",
                json!({"filters": {"source": ["webui"], "actor_id": ["v"]}}),
            )],
            &Ok(None),
        );
        check(&[agent("a", json!({"filters": {"bot_id": []}}))], &Ok(None));
        check(
            &[agent("a", json!({"filters": {"pipeline_id": ["q", "p"]}}))],
            &Ok(Some("a")),
        );
        check(
            &[agent("a", json!({"filters": {"pipeline_id": ["q"]}}))],
            &Ok(None),
        );
        check(&[agent("a", json!({"enabled": false}))], &Ok(None));
        check(
            &[agent("a", json!({"event_types": ["message"]}))],
            &Ok(None),
        );
        check(&[agent("a", json!({"event_types": ["*"]}))], &Ok(Some("a")));
    }
}
