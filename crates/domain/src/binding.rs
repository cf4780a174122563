//! Resolution of an event to one agent (`docs/protocol.md`, Binding).

mod hint;

use protocol::admin::{AgentSpec, ScopeKind};
use protocol::event::EventEnvelope;

pub use hint::no_match_hint;

/// Result of a resolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution<'a, A> {
    Winner(&'a A),
    /// No agent matches.
    NoMatch,
    /// Several agents match with equal precedence: their names, sorted.
    Tie(Vec<String>),
}

/// Result of one agent in a resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentMatch {
    Wins,
    /// Matches with the same precedence as another agent, so that no agent gets the event.
    Ties,
    Loses(MismatchReason),
}

/// Reason for which an agent does not get an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MismatchReason {
    Disabled,
    EventType,
    Scope,
    /// A filter does not match.
    Source,
    Bot,
    Actor,
    Pipeline,
    /// An agent of a more specific scope also matches.
    WiderScope,
    /// An agent of the same scope with a higher priority also matches.
    LowerPriority,
}

impl MismatchReason {
    /// Returns the name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::EventType => "event_type",
            Self::Scope => "scope",
            Self::Source | Self::Bot | Self::Actor | Self::Pipeline => "filter",
            Self::WiderScope => "less_specific_scope",
            Self::LowerPriority => "lower_priority",
        }
    }

    /// Returns a message with the agent's and the event's values.
    pub fn detail(self, spec: &AgentSpec, event: &EventEnvelope) -> String {
        let filter = |name: &str, value: Option<&str>| match value {
            Some(value) => format!("filters.{name} lacks {value}"),
            None => format!("filters.{name} is set and the event has no {name}"),
        };
        match self {
            Self::Disabled => "the agent is disabled".to_owned(),
            Self::EventType => format!(
                "event_types {} do not cover {}",
                spec.event_types.join(", "),
                event.event_type
            ),
            Self::Scope => format!(
                "the event is not of {}",
                match spec.scope.kind {
                    ScopeKind::Bot => "the bot of its scope",
                    _ => "the bot and conversation of its scope",
                }
            ),
            Self::Source => filter("source", Some(&event.source)),
            Self::Bot => filter("bot_id", event.bot_id.as_deref()),
            Self::Actor => filter("actor_id", actor_id(event)),
            Self::Pipeline => filter("pipeline_id", pipeline_id(event)),
            Self::WiderScope => format!(
                "scope {} is wider than that of another matching agent",
                spec.scope.kind.as_str()
            ),
            Self::LowerPriority => format!(
                "priority {} is lower than that of another matching agent",
                spec.priority
            ),
        }
    }
}

/// Finds the agent of an event: the most specific scope, then the highest priority.
pub fn resolve<'a, A>(
    agents: &'a [A],
    spec: impl Fn(&A) -> &AgentSpec,
    event: &EventEnvelope,
) -> Resolution<'a, A> {
    let agent_matches = agent_matches(agents, &spec, event);
    let ranked = agents.iter().zip(agent_matches);
    let mut first = ranked
        .filter(|(_, agent_match)| !matches!(agent_match, AgentMatch::Loses(_)))
        .map(|(agent, _)| agent);
    // Two items decide between one winner and a tie; the others are read only to name them.
    match (first.next(), first.next()) {
        (None, _) => Resolution::NoMatch,
        (Some(winner), None) => Resolution::Winner(winner),
        (one, two) => {
            let tied = one.into_iter().chain(two).chain(first);
            let mut names: Vec<_> = tied.map(|agent| spec(agent).name.clone()).collect();
            // Sorted, so that the error text does not depend on the order of the database.
            names.sort();
            Resolution::Tie(names)
        }
    }
}

/// Returns the result of each agent, in input order. Either one agent wins, or agents tie, or all lose.
pub fn agent_matches<A>(
    agents: &[A],
    spec: impl Fn(&A) -> &AgentSpec,
    event: &EventEnvelope,
) -> Vec<AgentMatch> {
    // The order of `ScopeKind` is its precedence; priorities compare only within one scope.
    let rank = |agent: &A| (spec(agent).scope.kind, spec(agent).priority);
    let refusals: Vec<_> = agents
        .iter()
        .map(|agent| refusal(spec(agent), event))
        .collect();
    let wanting = agents.iter().zip(&refusals);
    let ranks: Vec<_> = wanting
        .filter(|(_, refusal)| refusal.is_none())
        .map(|(agent, _)| rank(agent))
        .collect();
    let best = ranks.iter().copied().max();
    // Priorities of wider scopes never break a tie of the most specific scope.
    let is_shared = ranks.iter().filter(|rank| Some(**rank) == best).count() > 1;
    let outcome = |(agent, refusal): (&A, &Option<MismatchReason>)| match (refusal, best) {
        (Some(loss), _) => AgentMatch::Loses(*loss),
        (None, Some(best)) if rank(agent).0 < best.0 => {
            AgentMatch::Loses(MismatchReason::WiderScope)
        }
        (None, Some(best)) if rank(agent) < best => {
            AgentMatch::Loses(MismatchReason::LowerPriority)
        }
        (None, _) if is_shared => AgentMatch::Ties,
        (None, _) => AgentMatch::Wins,
    };
    agents.iter().zip(&refusals).map(outcome).collect()
}

fn pipeline_id(event: &EventEnvelope) -> Option<&str> {
    let adapter = event.adapter.as_ref();
    // The adapter reads the pipeline from the platform's own query; it wins over the client's claim.
    let adapted = adapter.and_then(|adapter| adapter.pipeline_id.as_deref());
    adapted.or(event.pipeline_id.as_deref())
}

fn actor_id(event: &EventEnvelope) -> Option<&str> {
    event
        .actor
        .as_ref()
        .and_then(|actor| actor.actor_id.as_deref())
}

/// Returns the reason for which an agent does not match. `None`: it matches.
fn refusal(spec: &AgentSpec, event: &EventEnvelope) -> Option<MismatchReason> {
    let filters = &spec.filters;
    let checks = [
        (spec.enabled, MismatchReason::Disabled),
        (takes(spec, &event.event_type), MismatchReason::EventType),
        (in_scope(spec, event), MismatchReason::Scope),
        (
            passes(filters.source.as_deref(), Some(&event.source)),
            MismatchReason::Source,
        ),
        (
            passes(filters.bot_id.as_deref(), event.bot_id.as_deref()),
            MismatchReason::Bot,
        ),
        (
            passes(filters.actor_id.as_deref(), actor_id(event)),
            MismatchReason::Actor,
        ),
        (
            passes(filters.pipeline_id.as_deref(), pipeline_id(event)),
            MismatchReason::Pipeline,
        ),
    ];
    let failed = checks.into_iter().find(|(holds, _)| !holds);
    failed.map(|(_, loss)| loss)
}

/// Returns true if the agent takes events of this type.
pub fn takes(spec: &AgentSpec, event_type: &str) -> bool {
    let mut patterns = spec.event_types.iter();
    patterns.any(|pattern| covers(pattern, event_type))
}

fn covers(pattern: &str, event_type: &str) -> bool {
    // `message.*` covers by the prefix `message.`; `*` by an empty prefix.
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
            // Ids of conversations are unique only per bot.
            scope.bot_id == event.bot_id && scope.conversation_id.as_ref() == conversation_id
        }
    }
}

fn passes(listed: Option<&[String]>, value: Option<&str>) -> bool {
    // A filter never matches an absent value: an event without a bot fails every bot filter.
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
        // A pipeline's Query and a posted event name the pipeline in different members.
        for pipeline in [
            json!({"adapter": {"pipeline_id": "p"}}),
            json!({"pipeline_id": "p"}),
        ] {
            check_event(agents, &pipeline, expected);
        }
    }

    fn check_event(
        agents: &[AgentSpec],
        pipeline: &Value,
        expected: &Result<Option<&str>, Vec<&str>>,
    ) {
        let mut event = json!({
            "event_type": "message.received", "source": "webui", "bot_id": "b",
            "conversation": {"conversation_id": "c"}, "actor": {"actor_type": "user", "actor_id": "u"},
        });
        event
            .as_object_mut()
            .unwrap()
            .extend(pipeline.as_object().unwrap().clone());
        let event: EventEnvelope = serde_json::from_value(event).unwrap();
        let found = match resolve(agents, |agent| agent, &event) {
            Resolution::Winner(agent) => Ok(Some(agent.name.as_str())),
            Resolution::NoMatch => Ok(None),
            Resolution::Tie(ref names) => {
                assert_eq!(expected, &Err(names.iter().map(String::as_str).collect()));
                return;
            }
        };
        assert_eq!(&found, expected);
    }

    #[test]
    fn resolves_by_scope_then_priority_and_reports_ties() {
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
    fn matches_all_filters_and_skips_disabled_agents() {
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

    #[test]
    fn reports_mismatch_reason_of_every_agent() {
        let event: EventEnvelope = serde_json::from_value(json!({
            "event_type": "message.received", "source": "webui", "bot_id": "b",
            "conversation": {"conversation_id": "c"},
        }))
        .unwrap();
        let bot = json!({"kind": "bot", "bot_id": "b"});
        let check = |agents: &[AgentSpec], expected: &[AgentMatch]| {
            assert_eq!(agent_matches(agents, |agent| agent, &event), expected);
        };
        let lost = |loss| AgentMatch::Loses(loss);
        check(
            &[
                agent("off", json!({"enabled": false})),
                agent("type", json!({"event_types": ["group.*"]})),
                agent("scope", json!({"scope": {"kind": "bot", "bot_id": "x"}})),
                agent("source", json!({"filters": {"source": ["api"]}})),
                agent("bot", json!({"filters": {"bot_id": ["x"]}})),
                agent("actor", json!({"filters": {"actor_id": ["u"]}})),
                agent("wide", json!({"priority": 9})),
                agent("low", json!({"scope": bot})),
                agent("high", json!({"scope": bot, "priority": 1})),
            ],
            &[
                lost(MismatchReason::Disabled),
                lost(MismatchReason::EventType),
                lost(MismatchReason::Scope),
                lost(MismatchReason::Source),
                lost(MismatchReason::Bot),
                lost(MismatchReason::Actor),
                lost(MismatchReason::WiderScope),
                lost(MismatchReason::LowerPriority),
                AgentMatch::Wins,
            ],
        );
        let twins = [agent("one", json!({})), agent("two", json!({}))];
        check(&twins, &[AgentMatch::Ties, AgentMatch::Ties]);
        check(&[], &[]);
        let spec = agent("actor", json!({"filters": {"actor_id": ["u"]}}));
        let detail = MismatchReason::Actor.detail(&spec, &event);
        assert_eq!(
            detail,
            "filters.actor_id is set and the event has no actor_id"
        );
        let detail = MismatchReason::EventType.detail(&spec, &event);
        assert_eq!(
            detail,
            "event_types message.* do not cover message.received"
        );
    }
}
