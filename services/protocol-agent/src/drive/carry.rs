//! Carries out the commands of the scheduler.

use action_graph::action::{Class, ExecutorKind};
use action_graph::code::Code;
use action_graph::node::{Node, Output, Sent, State, Wait};
use action_graph::policy::Visibility;
use action_graph::schedule::{ApprovalRequest, Command, Execute};
use action_graph::validate::check_bound;
use protocol::interaction::InteractionRequest;
use protocol::result::{ResultType, ToolCallStartedPayload};
use protocol::tool::KeyScope;
use serde_json::{Value, json};

use super::failed;
use crate::catalog::KNOWLEDGE;
use crate::execute::tool::{ToolJob, call, search};
use crate::execute::{Report, agent, human, remote, runtime};
use crate::failpoint::reach;
use crate::failure::Halt;
use crate::host::AgentHost;
use crate::keep::{Ask, Asked};
use crate::session::{GraphDriver, RunGraphs};
use crate::speaker::known;
use crate::work::Key;

impl<H: AgentHost> GraphDriver<H> {
    pub(super) async fn carry_out(&mut self, place: usize, command: Command) -> Result<(), Halt> {
        let graph = self.graphs.lives[place].id().clone();
        match command {
            Command::Execute(execute) => self.execute(place, execute).await,
            Command::SpawnChild(execute) => self.spawn_child(place, &execute).await,
            Command::Ask(execute) => self.graphs.ask(place, &execute).await,
            Command::AskApproval(requests) => self.graphs.ask_approval(place, requests).await,
            Command::Abort { id, attempt, .. } => {
                let key = Key { graph, id, attempt };
                self.abort(place, &key).await;
                Ok(())
            }
            Command::SetTimer { id, attempt, at } => {
                reach("retry.waiting").await;
                self.graphs.work.set_timer(at, Key { graph, id, attempt });
                Ok(())
            }
            Command::Resume { id, attempt } => {
                let key = Key { graph, id, attempt };
                self.graphs
                    .work
                    .finish(&key, runtime::done(Output::json(json!({"waited": true}))));
                Ok(())
            }
            Command::Note(_) | Command::Persist(_) | Command::Count(_) | Command::Quiescent(_) => {
                Ok(())
            }
        }
    }

    /// Runs an attempt, after a second check of its bound arguments.
    async fn execute(&mut self, place: usize, execute: Execute) -> Result<(), Halt> {
        let live = &self.graphs.lives[place];
        let key = key_of(live.id(), &execute);
        let Some(node) = live.graph.node(&execute.id) else {
            return Ok(());
        };
        let faults = check_bound(&node.action, &execute.input, &self.graphs.hands.catalog);
        if let Some(fault) = faults.first() {
            let message = format!("{}: {}", fault.pointer, fault.message);
            self.graphs
                .work
                .finish(&key, failed(Code::ArgsSchema, &message, Sent::No));
            return Ok(());
        }
        let (kind, is_durable) = (node.kind(), live.graph.is_durable());
        if kind == ExecutorKind::Runtime {
            return self.word(place, execute).await;
        }
        let most = self.rules.limits.timeout_ms(kind, execute.timeout_ms);
        let time = self.graphs.hands.time_of(most);
        let scope = if is_durable && self.graphs.keep.can_persist() {
            KeyScope::Conversation
        } else {
            KeyScope::Run
        };
        let may_summarize = node.visibility() == Visibility::Model;
        self.graphs.tell_start(place, &key, &execute).await;
        reach("effect.before_call").await;
        let hands = self.graphs.hands.clone();
        if kind == ExecutorKind::Tool
            && execute.target == KNOWLEDGE
            && !self.graphs.hands.has_host_tool(KNOWLEDGE)
        {
            let work = async move { Report::Finished(search(&hands, &execute.input, time).await) };
            self.graphs.work.start(key, work);
            return Ok(());
        }
        let job = match remote::find(&self.graphs.hands.config.remotes, kind, &execute.target) {
            Some(remote) => remote::job(remote, &execute, scope, time),
            None => ToolJob {
                tool: execute.target.clone(),
                parameters: execute.input.as_object().cloned().unwrap_or_default(),
                key: execute.key.clone(),
                scope,
                time,
                may_summarize,
            },
        };
        self.graphs.work.start(
            key,
            async move { Report::Finished(call(&hands, job).await) },
        );
        Ok(())
    }

    async fn spawn_child(&mut self, place: usize, execute: &Execute) -> Result<(), Halt> {
        let live = &self.graphs.lives[place];
        let key = key_of(live.id(), execute);
        let most = self
            .rules
            .limits
            .timeout_ms(ExecutorKind::Agent, execute.timeout_ms);
        let Some(request) = agent::request(&self.graphs.hands, &live.graph, execute, most) else {
            let message = "a reference of the request has no value, or the agent is not granted";
            self.graphs
                .work
                .finish(&key, failed(Code::InputUnresolved, message, Sent::No));
            return Ok(());
        };
        self.graphs.tell_start(place, &key, execute).await;
        reach("effect.before_call").await;
        let hands = self.graphs.hands.clone();
        self.graphs
            .work
            .start(key, async move { agent::spawn(&hands, &request).await });
        Ok(())
    }

    /// Ends an attempt. An attempt that may not be repeated keeps its grace, so that its outcome may still be known.
    async fn abort(&mut self, place: usize, key: &Key) {
        let Some(node) = self.graphs.lives[place].graph.node(&key.id) else {
            return;
        };
        let (kind, class, is_running) = (node.kind(), node.class(), node.aborting);
        match kind {
            ExecutorKind::Agent => {
                if let Some(run) = self.graphs.work.children.remove(key) {
                    let host = self.graphs.hands.host.clone();
                    self.graphs.work.end_child(host, run);
                    self.graphs.work.abort(key);
                }
            }
            ExecutorKind::Human => {}
            _ if class == Class::AtMostOnce && is_running => reach("cancel.grace").await,
            _ => {
                self.graphs.work.abort(key);
                if is_running {
                    self.graphs
                        .work
                        .finish(key, failed(Code::Canceled, "it was cancelled", Sent::Maybe));
                }
            }
        }
    }
}

impl<H: AgentHost> RunGraphs<H> {
    /// Asks a person. The question is stored before it is sent, so that its answer finds the action.
    async fn ask(&mut self, place: usize, execute: &Execute) -> Result<(), Halt> {
        let live = &self.lives[place];
        let key = key_of(live.id(), execute);
        let waits = |node: &Node| {
            node.state == State::Waiting(Wait::User) && node.attempt == execute.attempt
        };
        if !live.graph.node(&execute.id).is_some_and(waits) {
            // An earlier question about it was answered meanwhile.
            return Ok(());
        }
        let id = format!("{}.{}.{}", key.graph, key.id, key.attempt);
        match human::question(id, execute, self.hands.until()) {
            Ok(request) => {
                let about = vec![Asked {
                    id: key.id,
                    attempt: key.attempt,
                    hash: None,
                }];
                self.send_question(place, request, about).await
            }
            Err(failure) => {
                self.work
                    .finish(&key, action_graph::schedule::Outcome::Err(failure));
                Ok(())
            }
        }
    }

    /// Asks for approvals that wait together, in one question. Those that were given meanwhile are left out.
    async fn ask_approval(
        &mut self,
        place: usize,
        mut requests: Vec<ApprovalRequest>,
    ) -> Result<(), Halt> {
        let graph = &self.lives[place].graph;
        requests.retain(|one| {
            let node = graph.node(&one.id);
            node.is_some_and(|node| node.state == State::Waiting(Wait::Approval))
        });
        let Some(first) = requests.first() else {
            return Ok(());
        };
        let id = format!("{}.{}.approve.{}", graph.id, first.id, graph.seq);
        let about = requests.iter().map(|one| Asked {
            id: one.id.clone(),
            attempt: graph.node(&one.id).map_or(0, |node| node.attempt),
            hash: Some(one.hash.clone()),
        });
        let about = about.collect();
        let request = human::approvals(id, &requests, self.hands.until());
        self.send_question(place, request, about).await
    }

    /// Stores a question, then sends it.
    pub(crate) async fn send_question(
        &mut self,
        place: usize,
        request: InteractionRequest,
        about: Vec<Asked>,
    ) -> Result<(), Halt> {
        let ask = Ask {
            interaction: request.interaction_id.clone(),
            about,
            expires_at: self.hands.until(),
            run: String::new(),
        };
        if let Err(error) = self.keep.driven.asked(&self.lives[place].graph, ask).await {
            return self.kept(place, error);
        }
        reach("ask.stored").await;
        self.speaker.send(human::asking(&request)).await;
        reach("ask.sent").await;
        Ok(())
    }

    async fn tell_start(&mut self, place: usize, key: &Key, execute: &Execute) {
        let Some(node) = self.lives[place].graph.node(&key.id) else {
            return;
        };
        let parameters = match &execute.input {
            Value::Object(input) if node.taint < Visibility::RuntimeOnly => input.clone(),
            _ => protocol::JsonObject::new(),
        };
        let payload = ToolCallStartedPayload {
            tool_call_id: call_id(key),
            tool_name: execute.target.clone(),
            parameters: self.speaker.room().shown(parameters),
        };
        self.speaker
            .send(known(ResultType::ToolCallStarted, &payload))
            .await;
    }
}

fn key_of(graph: &action_graph::ids::GraphId, execute: &Execute) -> Key {
    Key {
        graph: graph.clone(),
        id: execute.id.clone(),
        attempt: execute.attempt,
    }
}

/// The id of a call in results: graph, action and attempt.
pub(super) fn call_id(key: &Key) -> String {
    format!("{}/{}/{}", key.graph, key.id, key.attempt)
}

/// Whether the attempts of an action are told as calls.
pub(super) fn is_told(node: &Node) -> bool {
    !matches!(node.kind(), ExecutorKind::Runtime | ExecutorKind::Human)
}

/// Whether the user may see the result of an action.
pub(super) fn may_see(node: &Node) -> bool {
    node.visibility() < Visibility::RuntimeOnly
}
