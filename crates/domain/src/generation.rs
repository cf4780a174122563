//! Generations of a conversation: an idle conversation begins anew for agents with `conversation_idle_seconds`.

use protocol::admin::AgentSpec;
use serde::{Deserialize, Serialize};

/// A generation of a conversation for one agent. Its runs see neither history nor state of earlier generations.
/// The fields are in name order, as canonical snapshots need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationGeneration {
    /// Events of the conversation up to this sequence belong to earlier generations.
    pub events_after: i64,
    /// From 1. Generation 0 begins with the conversation and is not stored.
    pub number: i64,
    /// Items of the transcript up to this sequence belong to earlier generations.
    pub transcript_after: i64,
}

/// Generation of a new run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GenerationStep {
    /// Generation 0, or an agent without generations.
    #[default]
    First,
    Stay(ConversationGeneration),
    /// The event of the run begins this generation.
    Begin(ConversationGeneration),
}

impl GenerationStep {
    pub fn generation(self) -> Option<ConversationGeneration> {
        match self {
            Self::First => None,
            Self::Stay(generation) | Self::Begin(generation) => Some(generation),
        }
    }

    /// Returns the generation if the event begins it.
    pub fn begun(self) -> Option<ConversationGeneration> {
        match self {
            Self::Begin(generation) => Some(generation),
            Self::First | Self::Stay(_) => None,
        }
    }

    /// Generation of a run that begins none.
    pub fn staying(agent: &AgentSpec, current: Option<ConversationGeneration>) -> Self {
        // An agent without the setting ignores generations of the time when it had one.
        let current = current.filter(|_| agent.conversation_idle_seconds.is_some());
        current.map_or(Self::First, Self::Stay)
    }
}

/// A quiet conversation at an event.
#[derive(Clone, Copy, Debug)]
pub struct QuietConversation {
    /// Sequence of the event.
    pub event_seq: i64,
    /// Newest sequence of the transcript before the event; 0 for none.
    pub transcript_before: i64,
    /// Epoch milliseconds of that item; absent if retention has removed it.
    pub last_message_at: Option<i64>,
}

/// Returns the generation of an event without live runs of the agent. `now`: epoch milliseconds.
pub fn next_generation(
    agent: &AgentSpec,
    current: Option<ConversationGeneration>,
    quiet: QuietConversation,
    now: i64,
) -> GenerationStep {
    let Some(idle) = agent.conversation_idle_seconds else {
        return GenerationStep::First;
    };
    // A huge setting means never, so it saturates instead of failing the event.
    let idle = i64::try_from(idle).unwrap_or(i64::MAX).saturating_mul(1000);
    // Without a time, retention has removed the message, which was thus older than any idle time.
    let is_idle = quiet
        .last_message_at
        .is_none_or(|last| now.saturating_sub(last) >= idle);
    // An empty generation would only raise the number: events without messages begin none.
    let has_messages =
        quiet.transcript_before > current.map_or(0, |current| current.transcript_after);
    if !is_idle || !has_messages {
        return GenerationStep::staying(agent, current);
    }
    GenerationStep::Begin(ConversationGeneration {
        // The event itself belongs to the new generation.
        events_after: quiet.event_seq - 1,
        number: current.map_or(0, |current| current.number) + 1,
        transcript_after: quiet.transcript_before,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn begins_generation_only_after_idle_time() {
        let agent = |idle: Option<u64>| -> AgentSpec {
            let spec = json!({"name": "a", "event_types": ["*"], "runner_id": "plugin:a/b/c",
                "conversation_idle_seconds": idle});
            serde_json::from_value(spec).unwrap()
        };
        let quiet = |transcript_before, last_message_at| QuietConversation {
            event_seq: 9,
            transcript_before,
            last_message_at,
        };
        let generation = |number, transcript_after| ConversationGeneration {
            events_after: 8,
            number,
            transcript_after,
        };
        let check = |idle, current, quiet, expected| {
            let found = next_generation(&agent(idle), current, quiet, 100_000);
            assert_eq!(found, expected, "{idle:?} {current:?} {quiet:?}");
        };
        let (first, begun) = (generation(1, 4), GenerationStep::Begin);
        check(Some(60), None, quiet(4, Some(40_000)), begun(first));
        check(
            Some(60),
            None,
            quiet(4, Some(40_001)),
            GenerationStep::First,
        );
        check(Some(60), None, quiet(4, None), begun(first));
        check(Some(60), None, quiet(0, None), GenerationStep::First);
        check(None, Some(first), quiet(4, Some(0)), GenerationStep::First);
        check(
            Some(60),
            Some(first),
            quiet(6, Some(0)),
            begun(generation(2, 6)),
        );
        let stays = GenerationStep::Stay(first);
        check(Some(60), Some(first), quiet(4, Some(0)), stays);
        check(Some(60), Some(first), quiet(6, Some(99_000)), stays);
    }
}
