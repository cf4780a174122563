//! The smallest turn loop: one declaration, its actions one by one, and an answer. It writes all that a real one
//! writes, in the same order, so that a test can let it die at any point.

use std::collections::VecDeque;

use action_graph::Graph;
use action_graph::action::ExecutorKind;
use action_graph::code::Code;
use action_graph::declaration::{Choice, Decision};
use action_graph::graph::Millis;
use action_graph::ids::ActionId;
use action_graph::node::{Output, Sent, State};
use action_graph::schedule::{
    Actor, ApprovalRequest, Command, Denial, Event, Execute, Failure, Found, Outcome, Suspension,
    Why, step,
};
use action_graph::transcript::Turn;
use serde_json::{Value, json};

use super::support::{CONVERSATION, NOW, declared, graph_of, me, record};
use crate::failpoint::reach;
use crate::keep::{Ask, Asked, Keep, KeepError, Resumed};
use crate::testing::memory::Memory;

const HOUR: Millis = 3_600_000;

/// The event that begins a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Said {
    Request,
    /// A person answers a question.
    Answer(String, bool),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ended {
    Answered,
    /// A person is asked.
    Asked(String),
    /// A child run works.
    Child(String),
    /// Another run drives the graph.
    Busy,
}

/// What happens in a test: the actions, and how often a tool fails first.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) actions: Vec<Value>,
    /// Actions that replace those that have not started, once the first one has ended.
    pub(super) revised: Option<Vec<Value>>,
    /// Actions that fail at their first attempt.
    pub(super) fails: Vec<&'static str>,
    /// The action at which a person gives up.
    pub(super) cancelled_at: Option<&'static str>,
}

impl Case {
    pub(super) fn of(actions: Vec<Value>) -> Self {
        Self {
            actions,
            revised: None,
            fails: Vec::new(),
            cancelled_at: None,
        }
    }
}

/// One run.
pub(super) async fn run(host: Memory, said: Said, case: Case) -> Result<Ended, KeepError> {
    let (keep, mut loaded) = Keep::load(host.clone(), me(&host), NOW).await?;
    let mut turn = Driver {
        host,
        keep,
        case,
        events: VecDeque::new(),
        requests: Vec::new(),
        why: None,
    };
    let graph = match loaded.mine.pop() {
        Some(resumed) => turn.resume(resumed, &said).await?,
        None if !loaded.busy.is_empty() => return Ok(Ended::Busy),
        None if !turn.keep.known("").await?.is_empty() => return Ok(Ended::Answered),
        None => turn.declare().await?,
    };
    turn.play(graph).await
}

struct Driver {
    host: Memory,
    keep: Keep<Memory>,
    case: Case,
    events: VecDeque<Event>,
    requests: Vec<ApprovalRequest>,
    why: Option<Why>,
}

impl Driver {
    /// Asks the model, and stores its graph.
    async fn declare(&mut self) -> Result<Graph, KeepError> {
        self.ask_model("declare").await?;
        let output = declared(&self.case.actions);
        let id = format!("g_{}", self.host.run());
        let (graph, source) = graph_of(&id, &output);
        reach("answer.before_accept").await;
        let raw = output.raw();
        self.keep.open(0, &graph, &source, &raw, &[], NOW).await?;
        self.events.push_back(Event::Begin);
        Ok(graph)
    }

    async fn resume(&mut self, resumed: Resumed, said: &Said) -> Result<Graph, KeepError> {
        self.events.extend(resumed.events);
        for (id, attempt, run) in resumed.children {
            let ended = self.host.world().child_ended(&run);
            let found = match ended {
                Some(answer) => Found::Ended(Outcome::Ok {
                    output: Output::json(answer),
                    satisfying: true,
                }),
                None => Found::Alive,
            };
            self.events
                .push_back(Event::Recovered { id, attempt, found });
        }
        for (id, attempt, _) in resumed.timers {
            self.events.push_back(Event::TimerFired { id, attempt });
        }
        self.requests.extend(resumed.unasked);
        match said {
            Said::Answer(interaction, yes) => {
                if let Some((_, ask)) = self.keep.ask(interaction) {
                    self.events.push_back(answered(ask, *yes));
                }
            }
            Said::Request => {}
        }
        self.events.push_back(Event::Begin);
        Ok(resumed.graph)
    }

    async fn play(&mut self, mut graph: Graph) -> Result<Ended, KeepError> {
        loop {
            self.drive(&mut graph).await?;
            if let Some(ended) = self.observe(&mut graph).await? {
                return Ok(ended);
            }
        }
    }

    async fn drive(&mut self, graph: &mut Graph) -> Result<(), KeepError> {
        while let Some(event) = self.events.pop_front() {
            let commands = step(graph, event, NOW);
            if commands
                .iter()
                .any(|one| matches!(one, Command::Persist(_)))
            {
                self.keep.save(graph).await?;
            }
            for command in commands {
                self.carry_out(graph, command).await?;
            }
        }
        Ok(())
    }

    async fn carry_out(&mut self, graph: &mut Graph, command: Command) -> Result<(), KeepError> {
        match command {
            Command::Execute(execute) => self.execute(graph, execute).await?,
            Command::SpawnChild(execute) => {
                let run = format!("child-{}", &execute.key[..8]);
                let name = "spawn";
                let run = self.host.call_tool(name, &execute.key, json!(run)).await?;
                reach("child.spawned").await;
                let on = Suspension::Child {
                    run: run.as_str().unwrap().to_owned(),
                };
                self.events.push_back(Event::Suspended {
                    id: execute.id,
                    attempt: execute.attempt,
                    on,
                });
            }
            Command::AskApproval(requests) => self.requests.extend(requests),
            Command::SetTimer { id, attempt, .. } => {
                reach("retry.waiting").await;
                self.events.push_back(Event::TimerFired { id, attempt });
            }
            Command::Abort { id, attempt, .. } => {
                reach("cancel.grace").await;
                let failure = Failure::new(Code::Canceled, "stopped", Sent::Maybe);
                let outcome = Outcome::Err(failure);
                self.finished(id, attempt, outcome);
            }
            Command::Quiescent(why) => self.why = Some(why),
            _ => {}
        }
        Ok(())
    }

    async fn execute(&mut self, graph: &Graph, execute: Execute) -> Result<(), KeepError> {
        reach("effect.before_call").await;
        let id = execute.id.as_str();
        if self.case.cancelled_at == Some(id) {
            // It goes on outside, and a person gives up meanwhile.
            self.host
                .call_tool(&execute.target, &execute.key, json!(null))
                .await?;
            self.events.push_back(Event::Cancel);
            return Ok(());
        }
        let fails = execute.attempt == 1 && self.case.fails.contains(&id);
        let outcome = if fails {
            let mut failure = Failure::new(Code::ToolError, "not now", Sent::Yes);
            failure.retryable = true;
            Outcome::Err(failure)
        } else {
            let answer = answer_of(id);
            let answer = self
                .host
                .call_tool(&execute.target, &execute.key, answer)
                .await?;
            reach("effect.answered").await;
            Outcome::Ok {
                output: Output::json(answer),
                satisfying: true,
            }
        };
        self.finished(execute.id, execute.attempt, outcome);
        if let Some(actions) = self.case.revised.take_if(|_| graph.generation == 1) {
            let (other, _) = graph_of("g_x", &declared(&actions));
            let actions = other.declared().map(|node| node.action.clone());
            self.events.push_back(Event::Revise {
                actions: actions.collect(),
                constants: other.constants.clone(),
            });
        }
        Ok(())
    }

    fn finished(&mut self, id: ActionId, attempt: u32, outcome: Outcome) {
        self.events.push_back(Event::Finished {
            id,
            attempt,
            outcome,
        });
    }

    /// The decision point: questions, the observation, and what follows.
    async fn observe(&mut self, graph: &mut Graph) -> Result<Option<Ended>, KeepError> {
        let why = self.why.take();
        let asked = self.ask_person(graph).await?;
        let seq = graph.seq;
        let text = format!("{CONVERSATION} at {seq}");
        let turn = self
            .keep
            .observed(graph, move |_| Turn::Answer { text })
            .await?;
        reach("observe.made").await;
        let child = graph.nodes.iter().find_map(|node| node.child.clone());
        match why {
            Some(Why::PermissionNeeded) => {
                self.keep.finish(vec![turn], NOW).await?;
                let open = self.keep.held[&graph.id].head.asks.last().cloned();
                let open = asked.or(open.map(|ask| ask.interaction));
                Ok(open.map(Ended::Asked))
            }
            Some(Why::Waiting) => {
                self.keep.finish(vec![turn], NOW).await?;
                Ok(child.map(Ended::Child))
            }
            Some(Why::Decide) => {
                self.events.extend(self.resolved(graph));
                Ok(None)
            }
            _ => {
                self.ask_model("answer").await?;
                reach("answer.sent").await;
                let runs = self.keep.runs(&graph.id);
                self.keep.close(graph, &record(graph, runs, NOW)).await?;
                self.keep.finish(vec![turn], NOW).await?;
                Ok(Some(Ended::Answered))
            }
        }
    }

    async fn ask_person(&mut self, graph: &Graph) -> Result<Option<String>, KeepError> {
        let requests = std::mem::take(&mut self.requests);
        let waiting = |one: &ApprovalRequest| {
            graph
                .node(&one.id)
                .is_some_and(|node| matches!(node.state, State::Waiting(_)))
        };
        let about: Vec<_> = requests
            .iter()
            .filter(|one| waiting(one))
            .map(|one| Asked {
                id: one.id.clone(),
                attempt: 0,
                hash: Some(one.hash.clone()),
            })
            .collect();
        if about.is_empty() {
            return Ok(None);
        }
        let interaction = format!("{}.{}.{}", graph.id, graph.seq, self.host.run());
        let ask = Ask {
            interaction: interaction.clone(),
            about,
            expires_at: NOW + HOUR,
            run: String::new(),
        };
        self.keep.asked(graph, ask).await?;
        reach("ask.stored").await;
        self.host.world().questions.push(interaction.clone());
        reach("ask.sent").await;
        Ok(Some(interaction))
    }

    /// A person says of each uncertain effect whether it happened, as the far side knows.
    fn resolved(&self, graph: &Graph) -> Vec<Event> {
        let uncertain = graph
            .nodes
            .iter()
            .filter(|node| node.state == State::Uncertain);
        let events = uncertain.map(|node| {
            let key = node.attempts.last().map(|one| one.key.clone());
            let happened = self.host.world().happened(&key.unwrap_or_default());
            let answer = answer_of(node.action.id.as_str());
            let (choice, input) = if happened {
                (Choice::Continue, answer.as_object().cloned())
            } else {
                (Choice::Retry, None)
            };
            assert_ne!(node.kind(), ExecutorKind::Agent, "children are found again");
            let decision = Decision {
                graph: graph.id.clone(),
                action: Some(node.action.id.clone()),
                choice,
                reason: String::new(),
                input,
            };
            let by = Actor::Human;
            Event::Decide { decision, by }
        });
        events.collect()
    }

    async fn ask_model(&self, what: &str) -> Result<(), KeepError> {
        let key = format!("{what} {}", self.host.run());
        self.host.call_tool("model", &key, json!(null)).await?;
        Ok(())
    }
}

/// The answer of every tool to this action.
fn answer_of(id: &str) -> Value {
    match id {
        "find" => json!({"list": [1, 2, 3, 4, 5, 6, 7]}),
        _ => json!({"did": id}),
    }
}

fn answered(ask: Ask, yes: bool) -> Event {
    let about = ask.about.into_iter();
    if yes {
        let ids = about.filter_map(|one| Some((one.id, one.hash?)));
        Event::Approved { ids: ids.collect() }
    } else {
        Event::Denied {
            ids: about.map(|one| one.id).collect(),
            why: Denial::Refused,
        }
    }
}
