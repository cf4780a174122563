//! The methods of A2A on runs.

use axum::response::Response;
use domain::run::Run;
use http::HeaderMap;
use protocol::event::EventConversation;
use protocol::id::AgentId;
use serde_json::{Value, json};
use store::CancelOutcome;

use super::answer::{answer_of_data, answer_of_texts};
use super::fold::TaskFold;
use super::message::{SendParams, SentMessage, TaskParams};
use super::rpc::{
    PUSH_NOTIFICATION_NOT_SUPPORTED, RpcMethod, RpcRequest, TASK_NOT_CANCELABLE,
    UNSUPPORTED_OPERATION, error_of, task_not_found,
};
use super::task::TaskHead;
use super::writer::{StreamPart, TaskWriter};
use crate::agent_runs::{
    cancel_run, conversation_of, find_run_of_agent, open_questions, request_of,
};
use crate::agents::public_url;
use crate::answer::GivenAnswer;
use crate::follow::{Follower, name_run};
use crate::frame_position::FramePosition;
use crate::start::{FaceMessage, RequestIdentity, start_run};
use client_api::client::body_files::ExtractedFiles;
use client_api::client::interactions::{ContinuedRun, answer_with_key};
use web::auth::ScopedCaller;
use web::error::{ApiError, ApiResult};
use web::state::ApiState;
use web::stream_limit::ConcurrencySlot;

const SURFACE: &str = "a2a";

/// One call of an agent.
pub(super) struct A2aCall<'a> {
    pub(super) state: &'a ApiState,
    pub(super) caller: &'a ScopedCaller,
    pub(super) agent: AgentId,
    pub(super) headers: &'a HeaderMap,
    pub(super) files: &'a ExtractedFiles,
    pub(super) request: RpcRequest<'a>,
}

impl A2aCall<'_> {
    pub(super) async fn answer(&self) -> ApiResult<Response> {
        match self.request.method {
            RpcMethod::SendMessage => self.send_message().await,
            RpcMethod::SendStreamingMessage => self.send_streaming_message().await,
            RpcMethod::GetTask => self.get_task().await,
            RpcMethod::CancelTask => self.cancel_task().await,
            RpcMethod::SubscribeToTask => self.subscribe_to_task().await,
            RpcMethod::PushConfig => Err(push_unsupported()),
            RpcMethod::Unserved => Err(unsupported("the agent card has no such capability")),
        }
    }

    async fn send_message(&self) -> ApiResult<Response> {
        let params = self.send_params()?;
        // Before anything is stored, so that a refused stream starts no run.
        let slot = self.slot()?;
        let started = self.start(&params).await?;
        let run = self.caller.find_run(self.state, started.run).await?;
        let configuration = params.configuration.unwrap_or_default();
        let is_immediate = configuration.return_immediately.unwrap_or(false);
        let task = if is_immediate || run.pruned_at.is_some() {
            self.snapshot(&run, slot).await?
        } else {
            let part = StreamPart::TaskAt(started.after);
            self.completed(&run, part, slot).await?
        };
        Ok(named(
            &run,
            self.request.binding.response(&json!({"task": task})),
        ))
    }

    async fn send_streaming_message(&self) -> ApiResult<Response> {
        let params = self.send_params()?;
        // Before anything is stored, so that a refused stream starts no run.
        let slot = self.slot()?;
        let started = self.start(&params).await?;
        let run = self.caller.find_run(self.state, started.run).await?;
        let writer = self.writer(&run, StreamPart::TaskAt(started.after)).await?;
        self.streamed(&run, writer, slot)
    }

    async fn get_task(&self) -> ApiResult<Response> {
        let slot = self.slot()?;
        let run = self.task_of_params().await?;
        let task = self.snapshot(&run, slot).await?;
        Ok(named(&run, self.request.binding.response(&task)))
    }

    async fn cancel_task(&self) -> ApiResult<Response> {
        let slot = self.slot()?;
        let run = self.task_of_params().await?;
        if run.status.is_terminal() {
            let message = "the task has ended; read it by GetTask";
            return Err(error_of(TASK_NOT_CANCELABLE, message));
        }
        match cancel_run(self.state, self.caller, run.id).await? {
            CancelOutcome::Requested(_) | CancelOutcome::Ended(_) => {}
            CancelOutcome::Unknown => return Err(task_not_found(&run.id.to_string())),
        }
        // The gateway ends a cancelled run within its grace time.
        let part = StreamPart::Snapshot(u64::MAX);
        let task = self.completed(&run, part, slot).await?;
        Ok(named(&run, self.request.binding.response(&task)))
    }

    async fn subscribe_to_task(&self) -> ApiResult<Response> {
        let slot = self.slot()?;
        let run = self.task_of_params().await?;
        let part = match FramePosition::of_header(self.headers)? {
            None if run.status.is_terminal() => {
                let message = "the task has ended; read it by GetTask, or send the Last-Event-ID of a cut stream";
                return Err(unsupported(message));
            }
            None => StreamPart::TaskAt(run.last_sequence),
            Some(position) => {
                position.check(&run, 0)?;
                StreamPart::After(position)
            }
        };
        // Read after the run: a later question is in the stream.
        let questions = open_questions(self.state, self.caller, run.id).await?;
        let ids = questions.into_iter().map(|record| record.id).collect();
        let writer = self.writer(&run, part).await?.with_open_questions(ids);
        self.streamed(&run, writer, slot)
    }

    /// The parameters of a message.
    fn send_params(&self) -> ApiResult<SendParams> {
        let params: SendParams = self.request.params()?;
        if let Some(fault) = params.faults() {
            return Err(ApiError::faults(&[fault]));
        }
        let configuration = params.configuration.as_ref();
        let push = configuration.and_then(|one| one.task_push_notification_config.as_ref());
        if push.is_some() {
            return Err(push_unsupported());
        }
        Ok(params)
    }

    /// The run of a message: a new one, or the one that continues after its answer.
    async fn start(&self, params: &SendParams) -> ApiResult<ContinuedRun> {
        let message = &params.message;
        if let Some(task) = message.task() {
            return self.answer_question(task, message).await;
        }
        // The same message of the same key is the same event.
        let identity = RequestIdentity::of(SURFACE, self.caller, self.agent, &message.message_id);
        let context = message.context().unwrap_or(identity.conversation());
        let input = message
            .input()
            .map_err(|fault| ApiError::faults(&[fault]))?;
        let event = FaceMessage {
            surface: SURFACE,
            event_id: Some(identity.event_id()),
            bot_id: None,
            conversation: Some(EventConversation {
                conversation_id: Some(context.to_owned()),
                ..EventConversation::default()
            }),
            actor: None,
            input,
            takes_questions: true,
            data: params.data(),
        };
        start_run(
            self.state,
            self.caller,
            self.headers,
            self.agent,
            event,
            self.files,
            member_of,
        )
        .await
    }

    async fn answer_question(&self, task: &str, message: &SentMessage) -> ApiResult<ContinuedRun> {
        let run = self.find_task(task).await?;
        let context = conversation_of(self.state, &run).await?;
        if message
            .context()
            .is_some_and(|named| context.as_deref() != Some(named))
        {
            let text = "must be the context of the task; leave one of them out";
            return Err(ApiError::invalid("/params/message/contextId", text));
        }
        let questions = open_questions(self.state, self.caller, run.id).await?;
        let fault = |fault| ApiError::faults(&[fault]);
        let given = answer_of_data(&message.parts).map_err(fault)?;
        let named = given.as_ref().and_then(|answer| answer.question.as_deref());
        // The newest question is the one that the task shows.
        let mut questions = questions.iter();
        let record = questions.find(|one| named.is_none_or(|named| named == one.id));
        let record = record.ok_or_else(|| {
            unsupported("the task waits for no such answer; leave taskId out to start the next task of the context")
        })?;
        let answer = match given {
            Some(answer) => answer,
            None => answer_of_texts(&message.parts, &request_of(record)?).map_err(fault)?,
        };
        let GivenAnswer {
            action_id, values, ..
        } = answer;
        answer_with_key(self.state, self.caller, &record.id, action_id, values).await
    }

    /// The run of a task of this agent.
    async fn task_of_params(&self) -> ApiResult<Run> {
        let TaskParams { id } = self.request.params()?;
        self.find_task(&id).await
    }

    async fn find_task(&self, id: &str) -> ApiResult<Run> {
        let found = find_run_of_agent(self.state, self.caller, self.agent, id).await?;
        found.ok_or_else(|| task_not_found(id))
    }

    async fn writer(&self, run: &Run, part: StreamPart) -> ApiResult<TaskWriter> {
        let head = TaskHead {
            run: run.id,
            context: conversation_of(self.state, run).await?,
            root: public_url(self.state).to_owned(),
        };
        let fold = TaskFold::new(head, run.created_at);
        Ok(TaskWriter::new(fold, self.request.binding.clone(), part))
    }

    fn slot(&self) -> ApiResult<ConcurrencySlot> {
        self.state.stream_limit().enter(self.caller.key)
    }

    fn follower(
        &self,
        run: &Run,
        writer: TaskWriter,
        slot: ConcurrencySlot,
    ) -> Follower<TaskWriter> {
        // From the first event: ids of artifacts count the messages.
        let from_begin = ContinuedRun {
            run: run.id,
            after: 0,
        };
        Follower::new(self.state, self.caller, &from_begin, slot, writer)
    }

    /// The task as of the last event of the run.
    async fn snapshot(&self, run: &Run, slot: ConcurrencySlot) -> ApiResult<Value> {
        if run.pruned_at.is_none() {
            let part = StreamPart::Snapshot(run.last_sequence);
            return self.completed(run, part, slot).await;
        }
        // Retention has deleted the events.
        let writer = self.writer(run, StreamPart::Snapshot(0)).await?;
        Ok(writer.pruned_task(run))
    }

    /// The task after the part of its run.
    async fn completed(
        &self,
        run: &Run,
        part: StreamPart,
        slot: ConcurrencySlot,
    ) -> ApiResult<Value> {
        let writer = self.writer(run, part).await?;
        let (writer, _) = self.follower(run, writer, slot).complete().await?;
        // The events do not have the answers.
        let questions = open_questions(self.state, self.caller, run.id).await?;
        let open: Vec<_> = questions.into_iter().map(|record| record.id).collect();
        Ok(writer.task(&open))
    }

    fn streamed(
        &self,
        run: &Run,
        writer: TaskWriter,
        slot: ConcurrencySlot,
    ) -> ApiResult<Response> {
        if run.pruned_at.is_some() {
            let message = "retention has deleted the events of the task; read it by GetTask";
            return Err(unsupported(message));
        }
        let response = self.follower(run, writer, slot).stream();
        Ok(named(run, response))
    }
}

fn named(run: &Run, mut response: Response) -> Response {
    name_run(response.headers_mut(), run.id);
    response
}

fn unsupported(message: &str) -> ApiError {
    error_of(UNSUPPORTED_OPERATION, message)
}

fn push_unsupported() -> ApiError {
    let message =
        "the gateway sends no push notifications; subscribe to the task, or create a webhook";
    error_of(PUSH_NOTIFICATION_NOT_SUPPORTED, message)
}

/// The member of the request that a part of the event comes from.
fn member_of(pointer: &str) -> &'static str {
    match pointer {
        "/conversation/conversation_id" => "/params/message/contextId",
        "/data" => "/params/metadata",
        _ => "/params/message/parts",
    }
}
