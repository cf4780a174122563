//! Runs of the agent of a face, their conversations and their questions.

use domain::run::Run;
use http::StatusCode;
use protocol::id::{AgentId, RunId};
use protocol::interaction::InteractionRequest;
use protocol::principal::Principal;
use store::{
    CancelOutcome, ConversationsOf, InteractionFilter, InteractionOrder, InteractionRecord,
    InteractionStatus, StoreError,
};

use client_api::client::interactions::ContinuedRun;
use web::auth::ScopedCaller;
use web::error::ApiResult;
use web::state::ApiState;

/// Open questions of a run that are read, newest first.
const OPEN_QUESTIONS: u64 = 100;

/// A run of this agent by its id. `None`: malformed, absent, or of another agent.
pub(crate) async fn find_run_of_agent(
    state: &ApiState,
    caller: &ScopedCaller,
    agent: AgentId,
    id: &str,
) -> ApiResult<Option<Run>> {
    let Ok(id) = id.parse() else {
        return Ok(None);
    };
    match caller.find_run(state, RunId(id)).await {
        Err(error) if error.status == StatusCode::NOT_FOUND => Ok(None),
        // Runs of other agents look like absent ones, also for keys that reach both.
        run => Ok(Some(run?).filter(|run| run.agent_id == agent)),
    }
}

/// The conversation of a run. `None`: its event has none.
pub(crate) async fn conversation_of(state: &ApiState, run: &Run) -> ApiResult<Option<String>> {
    let Some(key) = &run.conversation_key else {
        return Ok(None);
    };
    let runs = state.runs.store().runs();
    let one = std::slice::from_ref(run);
    let mut labels = runs.find_run_labels(&run.workspace, one, 1).await?;
    let conversation = labels.conversations.remove(key);
    Ok(conversation.map(|conversation| conversation.conversation_id))
}

/// The open questions of a run, newest first.
pub(crate) async fn open_questions(
    state: &ApiState,
    caller: &ScopedCaller,
    run: RunId,
) -> ApiResult<Vec<InteractionRecord>> {
    let filter = InteractionFilter {
        run_id: Some(run),
        ..InteractionFilter::default()
    };
    list_open(state, caller, filter).await
}

/// The open questions of runners in a conversation of the agent, newest first.
pub(crate) async fn open_questions_in(
    state: &ApiState,
    caller: &ScopedCaller,
    agent: AgentId,
    conversation: &str,
) -> ApiResult<Vec<InteractionRecord>> {
    let filter = InteractionFilter {
        agents: Some(vec![agent]),
        conversations: Some(ConversationsOf {
            conversation_id: conversation.to_owned(),
            // Faces post to conversations without a bot and a thread.
            bot_id: Some(String::new()),
            thread_id: Some(String::new()),
        }),
        // The index of this order has open questions only, and a conversation has few.
        order: InteractionOrder::Expiry { after: None },
        ..InteractionFilter::default()
    };
    let mut found = list_open(state, caller, filter).await?;
    // Administrators answer questions of the gateway, about budgets and calls.
    found.retain(|record| record.budget.is_none() && record.held_call.is_none());
    // Ids begin with their time.
    found.sort_by(|one, other| other.id.cmp(&one.id));
    Ok(found)
}

async fn list_open(
    state: &ApiState,
    caller: &ScopedCaller,
    filter: InteractionFilter,
) -> ApiResult<Vec<InteractionRecord>> {
    let (workspace, _) = caller.credential();
    let filter = InteractionFilter {
        status: Some(InteractionStatus::Open),
        now: state.runs.clock().now_ms(),
        ..filter
    };
    let page = caller.answer.page(OPEN_QUESTIONS);
    let interactions = state.runs.store().interactions();
    let found = interactions.list_interactions(workspace, &filter, page);
    Ok(found.await?.records)
}

/// A question of the agent by its id. `None`: absent, or of another agent.
pub(crate) async fn find_question_of_agent(
    state: &ApiState,
    caller: &ScopedCaller,
    agent: AgentId,
    id: &str,
) -> ApiResult<Option<InteractionRecord>> {
    match caller.find_interaction(state, id).await {
        Err(error) if error.status == StatusCode::NOT_FOUND => Ok(None),
        // Questions of other agents look like absent ones, also for keys that reach both.
        found => Ok(Some(found?.1).filter(|record| record.agent_id == agent)),
    }
}

/// Cancels a run that waits for the answer. An ended run, or one that waits no longer, only shows its end.
pub(crate) async fn cancel_question(
    state: &ApiState,
    caller: &ScopedCaller,
    record: &InteractionRecord,
) -> ApiResult<ContinuedRun> {
    let is_open = record.answered.is_none()
        && !record.is_closed
        && record.expires_at > state.runs.clock().now_ms();
    if is_open && record.is_awaited {
        cancel_run(state, caller, record.run_id).await?;
    }
    Ok(ContinuedRun {
        run: record.run_id,
        after: record.sequence,
    })
}

/// Requests the cancel of a run in the name of the key.
pub(crate) async fn cancel_run(
    state: &ApiState,
    caller: &ScopedCaller,
    run: RunId,
) -> ApiResult<CancelOutcome> {
    let (workspace, _) = caller.credential();
    let cause = Principal::from(caller.key).into();
    Ok(state
        .runs
        .cancellation
        .cancel(workspace, run, cause)
        .await?)
}

/// The question of an interaction.
pub(crate) fn request_of(record: &InteractionRecord) -> Result<InteractionRequest, StoreError> {
    serde_json::from_str(&record.request).map_err(|_| StoreError::Corrupt {
        column: "interactions.request",
        row: record.id.clone(),
    })
}
