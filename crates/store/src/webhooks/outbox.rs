//! Messages to webhooks, inserted in the transaction of their cause. Without a filter that selects it, a message is not
//! written.

use domain::normalize::RunQuestion;
use protocol::id::{RunId, WorkspaceId};
use protocol::webhook::WebhookEventType;
use sea_orm::DatabaseTransaction;
use uuid::Uuid;

use crate::error::StoreError;
use crate::model::append::Append;
use crate::sql::{PLAN_FENCE, Sql, executed, text};

/// The type of the message about the end of a run `r`.
const END: &str = "CASE r.status WHEN 'completed' THEN 'run.completed' WHEN 'cancelled' THEN 'run.cancelled' \
     ELSE 'run.failed' END";

/// A message about a run.
pub(crate) struct OutboxRow<'a> {
    pub(crate) run: RunId,
    pub(crate) kind: WebhookEventType,
    /// Id of the question or action, or name of the budget.
    pub(crate) subject: &'a str,
    /// A further message with this key is not written.
    pub(crate) dedupe_key: Option<String>,
    /// Epoch milliseconds.
    pub(crate) at: i64,
}

/// A statement over rows of id, run and time, with further columns and their values.
fn insert(kind: &str, columns: &str, values: &str) -> String {
    // Ids increase, so the messages of a run are inserted in their order.
    format!(
        "INSERT INTO webhook_messages (id, workspace_id, event_type, run_id, agent_id, created_at{columns}) \
         SELECT ?1, r.workspace_id, {kind}, r.id, r.agent_id, ?3{values} FROM rows, runs r WHERE r.id = ?2 AND EXISTS \
         (SELECT 1 FROM webhook_filters f WHERE f.workspace_id = r.workspace_id AND f.event_type = {kind} \
         AND f.agent_id IN ('', r.agent_id) {PLAN_FENCE}) ORDER BY ?1"
    )
}

/// Notes the ends of runs. Their rows have the final status.
pub(crate) async fn note_ends(tx: &impl Sql, ends: &[&Append]) -> Result<(), StoreError> {
    let rows = ends.iter().map(|end| {
        [
            Uuid::now_v7().to_string().into(),
            text(end.run_id),
            end.at.into(),
        ]
    });
    executed(tx, rows.collect(), &insert(END, "", "")).await
}

/// Notes the questions of a commit.
pub(crate) async fn note_questions(tx: &impl Sql, appends: &[&Append]) -> Result<(), StoreError> {
    let ids: Vec<_> = appends
        .iter()
        .flat_map(|append| append.interactions.iter().map(move |new| (append, new)))
        .map(|(append, new)| (append, new, new.id.to_string()))
        .collect();
    // Of one statement: a run that asks and waits has both messages or none.
    let rows = ids.iter().flat_map(|(append, new, id)| {
        let kinds = question_kinds(&new.question);
        question(append.run_id, id, append.at, kinds)
    });
    note_rows(tx, rows.collect()).await
}

/// Messages about a question for which its run waits.
pub(crate) const AWAITED: &[WebhookEventType] = &[
    WebhookEventType::InteractionRequested,
    WebhookEventType::RunWaiting,
];

/// The messages about a question of a run.
pub(crate) fn question_kinds(question: &RunQuestion) -> &'static [WebhookEventType] {
    if question.is_awaited {
        AWAITED
    } else {
        &[WebhookEventType::InteractionRequested]
    }
}

/// A message of each kind about a question.
pub(crate) fn question<'a>(
    run: RunId,
    id: &'a str,
    at: i64,
    kinds: &'static [WebhookEventType],
) -> impl Iterator<Item = OutboxRow<'a>> {
    kinds.iter().map(move |kind| OutboxRow {
        run,
        kind: *kind,
        subject: id,
        dedupe_key: None,
        at,
    })
}

/// The message that an action can be claimed. It is sent once.
pub(crate) fn requested_action(run: RunId, id: &str, at: i64) -> OutboxRow<'_> {
    OutboxRow {
        run,
        kind: WebhookEventType::ActionRequested,
        subject: id,
        dedupe_key: Some(format!("action {id}")),
        at,
    }
}

/// Notes messages about runs.
pub(crate) async fn note_rows(tx: &impl Sql, rows: Vec<OutboxRow<'_>>) -> Result<(), StoreError> {
    let rows = rows.into_iter().map(|row| {
        [
            Uuid::now_v7().to_string().into(),
            text(row.run),
            row.at.into(),
            row.kind.as_str().into(),
            row.subject.into(),
            row.dedupe_key.into(),
        ]
    });
    let mut sql = insert("?4", ", subject, dedupe_key", ", ?5, ?6");
    sql.push_str(" ON CONFLICT (dedupe_key) DO NOTHING");
    executed(tx, rows.collect(), &sql).await
}

/// Notes that an endpoint is unhealthy.
pub(crate) async fn note_endpoint(
    tx: &DatabaseTransaction,
    workspace: &WorkspaceId,
    endpoint: &str,
    at: i64,
) -> Result<(), StoreError> {
    let kind = WebhookEventType::EndpointUnhealthy.as_str();
    let sql = format!(
        "INSERT INTO webhook_messages (id, workspace_id, event_type, subject, created_at) \
         SELECT CAST($1 AS TEXT), CAST($2 AS TEXT), '{kind}', CAST($3 AS TEXT), CAST($4 AS BIGINT) \
         WHERE EXISTS (SELECT 1 FROM webhook_filters WHERE workspace_id = $2 AND event_type = '{kind}' \
         AND agent_id = '')"
    );
    let values = vec![
        Uuid::now_v7().to_string().into(),
        workspace.as_str().into(),
        endpoint.into(),
        at.into(),
    ];
    tx.execute_sql(sql, values).await
}
