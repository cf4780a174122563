//! Stored messages as receivers see them.

use protocol::webhook::{WebhookEventType, WebhookMessage};
use store::MessageRecord;

/// The thin form of a message.
pub fn thin(record: &MessageRecord) -> WebhookMessage {
    let subject = || record.subject.clone();
    let (mut interaction_id, mut action_id) = (None, None);
    let (mut budget, mut endpoint_id) = (None, None);
    match record.kind {
        WebhookEventType::RunWaiting | WebhookEventType::InteractionRequested => {
            interaction_id = subject();
        }
        WebhookEventType::ActionRequested => action_id = subject(),
        WebhookEventType::BudgetReached => budget = subject(),
        WebhookEventType::EndpointUnhealthy => {
            endpoint_id = subject().and_then(|id| id.parse().ok());
        }
        WebhookEventType::RunCompleted
        | WebhookEventType::RunFailed
        | WebhookEventType::RunCancelled
        | WebhookEventType::Test => {}
    }
    WebhookMessage {
        id: record.id.clone(),
        kind: record.kind,
        created_at: record.created_at.div_euclid(1000),
        workspace_id: record.workspace.to_string(),
        run_id: record.run_id,
        agent_id: record.agent_id,
        interaction_id,
        action_id,
        budget,
        endpoint_id,
        run: None,
    }
}

#[cfg(test)]
mod tests {
    use protocol::id::WorkspaceId;
    use serde_json::json;

    use super::*;

    #[test]
    fn subject_is_named_by_its_type() {
        let shown = |kind, subject: Option<&str>| {
            let message = thin(&MessageRecord {
                position: 1,
                id: "m".to_owned(),
                workspace: WorkspaceId("w".to_owned()),
                kind,
                run_id: None,
                agent_id: None,
                subject: subject.map(str::to_owned),
                created_at: 1999,
            });
            serde_json::to_value(message).unwrap()
        };
        assert_eq!(
            shown(WebhookEventType::BudgetReached, Some("day")),
            json!({"id": "m", "type": "budget.reached", "created_at": 1, "workspace_id": "w", "budget": "day"})
        );
        assert_eq!(
            shown(WebhookEventType::RunWaiting, Some("q"))["interaction_id"],
            "q"
        );
        assert_eq!(
            shown(WebhookEventType::ActionRequested, Some("a"))["action_id"],
            "a"
        );
        assert_eq!(
            shown(WebhookEventType::RunFailed, None),
            json!({"id": "m", "type": "run.failed", "created_at": 1, "workspace_id": "w"})
        );
    }
}
