//! Execution of scheduler commands.

use action_graph::action::{Class, ExecutorKind};
use action_graph::code::Code;
use action_graph::node::{ActionOutput, Node, NodeState, Sent, Wait};
use action_graph::policy::Visibility;
use action_graph::schedule::{
    ActionOutcome, ApprovalRequest, Command, Denial, Execute, GraphEvent,
};
use action_graph::validate::check_bound;
use protocol::interaction::InteractionRequest;
use protocol::result::{ResultType, ToolCallStartedPayload};
use protocol::tool::KeyScope;
use runner_kit::results;
use serde_json::{Value, json};

use crate::catalog::KNOWLEDGE;
use crate::execute::tool::{ToolJob, call, search};
use crate::execute::{AttemptReport, agent, human, remote};
use crate::failpoint::reach;
use crate::failure::Halt;
use crate::host::GraphAgentHost;
use crate::plan_approval;
use crate::records::{PendingQuestion, QuestionSubject};
use crate::session::{GraphDriver, RunGraphs};
use crate::work::AttemptKey;
use crate::writer::within_limit;

impl<H: GraphAgentHost> GraphDriver<H> {
    pub(super) async fn execute_command(
        &mut self,
        position: usize,
        command: Command,
    ) -> Result<(), Halt> {
        let graph = self.graphs.live_graphs[position].id().clone();
        match command {
            Command::Execute(execute) => self.execute(position, execute).await,
            Command::SpawnChild(execute) => self.spawn_child(position, &execute).await,
            Command::Ask(execute) => self.graphs.ask(position, &execute).await,
            Command::AskApproval(requests) => self.graphs.ask_approval(position, requests).await,
            Command::Abort { id, attempt, .. } => {
                let key = AttemptKey { graph, id, attempt };
                self.abort(position, &key).await;
                Ok(())
            }
            Command::SetTimer { id, attempt, at } => {
                reach("retry.waiting").await;
                self.graphs
                    .work
                    .set_timer(at, AttemptKey { graph, id, attempt });
                Ok(())
            }
            // The timer of a `wait` has fired.
            Command::Resume { id, attempt } => {
                let key = AttemptKey { graph, id, attempt };
                self.graphs.work.finish(
                    &key,
                    ActionOutcome::done(ActionOutput::json(json!({"waited": true}))),
                );
                Ok(())
            }
            Command::Note(_) | Command::Persist(_) | Command::Count(_) | Command::Quiescent(_) => {
                Ok(())
            }
        }
    }

    /// Starts an attempt after a second check of its arguments.
    async fn execute(&mut self, position: usize, mut execute: Execute) -> Result<(), Halt> {
        let live = &self.graphs.live_graphs[position];
        let key = AttemptKey::new(live.id(), &execute);
        let Some(node) = live.graph.node(&execute.id) else {
            return Ok(());
        };
        if execute.approved_by.is_none() {
            execute.approved_by = plan_approval::approval_of(&live.graph, node);
        }
        // The declaration was validated before its references had values; validate the bound values now.
        let faults = check_bound(&node.action, &execute.input, &self.graphs.env.catalog);
        if let Some(fault) = faults.first() {
            let message = format!("{}: {}", fault.pointer, fault.message);
            self.graphs.work.finish(
                &key,
                ActionOutcome::failed(Code::ArgsSchema, &message, Sent::No),
            );
            return Ok(());
        }
        let (kind, is_durable) = (node.kind(), live.graph.is_durable());
        if kind == ExecutorKind::Runtime {
            return self.word(position, execute).await;
        }
        let limit_ms = self.rules.limits.timeout_ms(kind, execute.timeout_ms);
        let time = self.graphs.env.time_of(limit_ms);
        // A later run repeats the call under the same key only if both share its scope.
        let scope = if is_durable && self.graphs.records.can_persist() {
            KeyScope::Conversation
        } else {
            KeyScope::Run
        };
        // Private outputs must not reach the summarizer model.
        let may_summarize = node.visibility() == Visibility::Model;
        self.graphs.report_start(position, &key, &execute).await;
        reach("effect.before_call").await;
        let env = self.graphs.env.clone();
        // A host tool with the built-in name takes precedence.
        if kind == ExecutorKind::Tool
            && execute.target == KNOWLEDGE
            && !self.graphs.env.has_host_tool(KNOWLEDGE)
        {
            let work =
                async move { AttemptReport::Finished(search(&env, &execute.input, time).await) };
            self.graphs.work.start(key, work);
            return Ok(());
        }
        let job = match remote::find(&self.graphs.env.config.remotes, kind, &execute.target) {
            Some(remote) => remote::job(remote, &execute, scope, time),
            None => ToolJob {
                tool: execute.target.clone(),
                parameters: execute.input.as_object().cloned().unwrap_or_default(),
                key: execute.key.clone(),
                scope,
                approved_by: execute.approved_by.clone(),
                time,
                may_summarize,
            },
        };
        self.graphs.work.start(key, async move {
            AttemptReport::Finished(call(&env, job).await)
        });
        Ok(())
    }

    async fn spawn_child(&mut self, position: usize, execute: &Execute) -> Result<(), Halt> {
        let live = &self.graphs.live_graphs[position];
        let key = AttemptKey::new(live.id(), execute);
        let limit_ms = self
            .rules
            .limits
            .timeout_ms(ExecutorKind::Agent, execute.timeout_ms);
        let request = match agent::request(&self.graphs.env, &live.graph, execute, limit_ms) {
            Ok(request) => request,
            Err(failure) => {
                let outcome = ActionOutcome::Err(failure);
                self.graphs.work.finish(&key, outcome);
                return Ok(());
            }
        };
        self.graphs.report_start(position, &key, execute).await;
        reach("effect.before_call").await;
        let env = self.graphs.env.clone();
        self.graphs
            .work
            .start(key, async move { agent::spawn(&env, &request).await });
        Ok(())
    }

    /// Ends an attempt, immediately or after its grace period.
    async fn abort(&mut self, position: usize, key: &AttemptKey) {
        let Some(node) = self.graphs.live_graphs[position].graph.node(&key.id) else {
            return;
        };
        let (kind, class, is_running) = (node.kind(), node.class(), node.aborting);
        match kind {
            ExecutorKind::Agent => {
                // Without an entry, the spawn request is still open; its report ends the new child run.
                if let Some(run) = self.graphs.work.children.remove(key) {
                    let host = self.graphs.env.host.clone();
                    self.graphs.work.end_child(host, run);
                    self.graphs.work.abort(key);
                }
            }
            // A question has no task; a late answer finds no waiting action.
            ExecutorKind::Human => {}
            // Not repeatable: its outcome may still arrive within the grace period.
            _ if class == Class::AtMostOnce && is_running => reach("cancel.grace").await,
            _ => {
                self.graphs.work.abort(key);
                if is_running {
                    self.graphs.work.finish(
                        key,
                        ActionOutcome::failed(Code::Canceled, "it was cancelled", Sent::Maybe),
                    );
                }
            }
        }
    }
}

impl<H: GraphAgentHost> RunGraphs<H> {
    /// Sends the question of an action to a person.
    async fn ask(&mut self, position: usize, execute: &Execute) -> Result<(), Halt> {
        let live = &self.live_graphs[position];
        let key = AttemptKey::new(live.id(), execute);
        let waits = |node: &Node| {
            node.state == NodeState::Waiting(Wait::User) && node.attempt == execute.attempt
        };
        if !live.graph.node(&execute.id).is_some_and(waits) {
            // An earlier question about it has been answered in the meantime.
            return Ok(());
        }
        let id = format!("{}.{}.{}", key.graph, key.id, key.attempt);
        match human::question(id, execute, self.env.until()) {
            Ok(request) => {
                let about = vec![QuestionSubject {
                    id: key.id,
                    attempt: key.attempt,
                    hash: None,
                }];
                self.send_question(position, request, about).await
            }
            Err(failure) => {
                self.work.finish(&key, ActionOutcome::Err(failure));
                Ok(())
            }
        }
    }

    /// Sends the questions for pending approvals. Actions that no question can display completely are denied.
    async fn ask_approval(
        &mut self,
        position: usize,
        mut requests: Vec<ApprovalRequest>,
    ) -> Result<(), Halt> {
        let graph = &self.live_graphs[position].graph;
        // Approvals that were given in the meantime need no question.
        requests.retain(|one| {
            let node = graph.node(&one.id);
            node.is_some_and(|node| node.state == NodeState::Waiting(Wait::Approval))
        });
        let (id, seq) = (graph.id.clone(), graph.seq);
        let questions = human::grouped(requests);
        if !questions.too_long.is_empty() {
            let (ids, why) = (questions.too_long, Denial::TooLong);
            let event = GraphEvent::Denied { ids, why };
            self.work.push(&id, event);
        }
        for requests in questions.groups {
            let id = format!("{id}.{}.approve.{seq}", requests[0].id);
            self.ask_together(position, id, &requests).await?;
        }
        Ok(())
    }

    /// Sends one question for several approvals.
    async fn ask_together(
        &mut self,
        position: usize,
        id: String,
        requests: &[ApprovalRequest],
    ) -> Result<(), Halt> {
        let graph = &self.live_graphs[position].graph;
        let about = requests.iter().map(|one| QuestionSubject {
            id: one.id.clone(),
            attempt: graph.node(&one.id).map_or(0, |node| node.attempt),
            hash: Some(one.hash.clone()),
        });
        let about = about.collect();
        let request = human::approvals(id, requests, self.env.until());
        self.send_question(position, request, about).await
    }

    /// Stores a question and sends it.
    pub(crate) async fn send_question(
        &mut self,
        position: usize,
        request: InteractionRequest,
        about: Vec<QuestionSubject>,
    ) -> Result<(), Halt> {
        let ask = PendingQuestion {
            interaction: request.interaction_id.clone(),
            about,
            expires_at: self.env.until(),
            run: String::new(),
        };
        // Stored first: otherwise an early answer would find no action.
        let graph = &self.live_graphs[position].graph;
        if let Err(error) = self.records.driven.store_question(graph, ask).await {
            return self.handle_records_error(position, error);
        }
        reach("ask.stored").await;
        self.writer.send(human::question_result(&request)).await;
        reach("ask.sent").await;
        Ok(())
    }

    async fn report_start(&mut self, position: usize, key: &AttemptKey, execute: &Execute) {
        let Some(node) = self.live_graphs[position].graph.node(&key.id) else {
            return;
        };
        let parameters = match &execute.input {
            // Arguments bound to private results must not reach the user.
            Value::Object(input) if node.taint < Visibility::RuntimeOnly => input.clone(),
            _ => protocol::JsonObject::new(),
        };
        let payload = ToolCallStartedPayload {
            tool_call_id: call_id(key),
            tool_name: execute.target.clone(),
            parameters: within_limit(self.writer.line_limit(), parameters),
        };
        self.writer
            .send(results::typed(ResultType::ToolCallStarted, &payload))
            .await;
    }
}

/// Id of a call in results: graph, action and attempt.
pub(super) fn call_id(key: &AttemptKey) -> String {
    format!("{}/{}/{}", key.graph, key.id, key.attempt)
}

/// True if attempts of an action appear as tool calls.
pub(super) fn is_reported(node: &Node) -> bool {
    !matches!(node.kind(), ExecutorKind::Runtime | ExecutorKind::Human)
}

/// True if the user may see the result of an action.
pub(super) fn may_see(node: &Node) -> bool {
    node.visibility() < Visibility::RuntimeOnly
}
