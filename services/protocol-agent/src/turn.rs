//! The turn loop: observe, ask the model, accept or repair, drive, until an answer, a wait or a limit.

mod declare;
mod plain;

use action_graph::accept::{AfterRefusal, Repair, Verdict, accept};
use action_graph::code::Code;
use action_graph::declaration::{Payload, ReplyOutcome};
use action_graph::graph::Status;
use action_graph::output::ModelOutput;
use action_graph::report::render_report;
use action_graph::schedule::Why;
use action_graph::transcript::{Notice, Turn, notice};
use action_graph::validate::{Accepted, Context};
use protocol::result::RunOutcome;

use crate::ending::{Ended, Limit};
use crate::failpoint::reach;
use crate::failure::{Failure, Halt, PROTOCOL};
use crate::host::AgentHost;
use crate::live::Need;
use crate::model::{ModelFailure, Stream};
use crate::prompt::Prompt;
use crate::session::{RunGraphs, Session};
use action_graph::rules::CarrierMode;

pub(crate) use plain::converse as converse_plainly;

/// Requests with less of the transcript after the model's window was too small.
const SHRINKS: u32 = 3;

/// The next step after an output of the model.
pub(crate) enum Next {
    /// The run ends.
    End(Ended),
    /// Graphs move, or the model is asked again.
    GoOn,
}

impl<H: AgentHost> Session<H> {
    /// Runs to the end.
    pub(crate) async fn converse(&mut self) -> Result<Ended, Halt> {
        loop {
            self.driver.advance(&mut self.transcript).await?;
            self.take_steering().await?;
            if !self.driver.graphs.work.events.is_empty()
                || !self.driver.graphs.work.commands.is_empty()
            {
                continue;
            }
            if let Some(ended) = self.report().await {
                return Ok(ended);
            }
            if !self.transcript.needs_model {
                return Ok(self.wait().await);
            }
            if self.driver.graphs.hands.is_spent() {
                return Ok(self.end_at(Limit::Tokens).await);
            }
            let output = self.ask_model().await?;
            reach("answer.before_accept").await;
            match self.judge(output).await? {
                Next::End(ended) => return Ok(ended),
                Next::GoOn => {}
            }
        }
    }

    /// A report of a graph that is complete ends the run without the model. A missing part is the model's to judge.
    async fn report(&mut self) -> Option<Ended> {
        for place in 0..self.driver.graphs.lives.len() {
            let live = &self.driver.graphs.lives[place];
            let is_complete =
                live.why == Some(Why::Finished) && live.graph.aggregate() == Status::Completed;
            let spec = live
                .graph
                .info
                .report
                .as_ref()
                .filter(|_| is_complete && !live.is_closed);
            let Some(spec) = spec else { continue };
            match render_report(&live.graph, spec) {
                Ok(text) => return Some(self.answer(&text, RunOutcome::Ok).await),
                Err(missing) => {
                    self.driver.graphs.lives[place].graph.info.report = None;
                    self.transcript.push(say(&missing.to_string()));
                }
            }
        }
        None
    }

    /// Asks the model with what fits into its window.
    async fn ask_model(&mut self) -> Result<ModelOutput, Halt> {
        reach("observe.made").await;
        self.transcript.needs_model = false;
        let stream = match self.driver.rules.carrier {
            CarrierMode::Flat | CarrierMode::Strict => Stream::Answer,
            CarrierMode::Fenced => Stream::Nothing,
        };
        let mut most = self.driver.graphs.hands.config.budgets.request();
        for shrink in 0..=SHRINKS {
            let waiting = self.driver.graphs.waiting_line();
            let prompt = Prompt {
                role: &self.prompt,
                catalog: &self.driver.graphs.hands.catalog,
                rules: &self.driver.rules,
                turns: &self.transcript.turns,
                replay: self.driver.graphs.hands.config.replay,
                most,
                waiting: waiting.as_deref(),
                left: Some(
                    self.driver
                        .rules
                        .limits
                        .declarations
                        .saturating_sub(self.declarations),
                ),
            };
            let request = prompt.request();
            let host = self.driver.graphs.hands.host.clone();
            let asking = self
                .models
                .ask(&host, &request, stream, &mut self.driver.graphs.speaker);
            let end = self.driver.graphs.hands.end;
            let asked = tokio::select! {
                biased;
                () = self.driver.cancel.cancelled() => return Err(Halt::Cancelled),
                asked = asking => asked,
                () = tokio::time::sleep_until(end) => return Err(Halt::Deadline),
            };
            match asked {
                Ok(asked) => {
                    self.driver.graphs.hands.usage.add(asked.usage.as_ref());
                    return Ok(asked.output);
                }
                Err(ModelFailure::Overflow(error)) if shrink < SHRINKS => {
                    tracing::info!(
                        "the request was too large for the model, asking with half of it: {error}"
                    );
                    most /= 2;
                }
                Err(failed) => return Err(failed.into()),
            }
        }
        Err(Halt::Deadline)
    }

    /// Judges an output: an answer, a declaration, or a repair.
    async fn judge(&mut self, output: ModelOutput) -> Result<Next, Halt> {
        let raw = output.raw();
        let most = self.driver.rules.limits.open_graphs;
        self.driver.graphs.make_room(most).await;
        let known = self.known(&raw).await?;
        let context = Context {
            catalog: &self.driver.graphs.hands.catalog,
            known: &known,
            rules: &self.driver.rules,
        };
        let verdict = accept(&output, context);
        tracing::info!(adherence = ?verdict.adherence(), "model output judged");
        match verdict {
            Verdict::Content(text) => Ok(Next::End(self.answer(&text, RunOutcome::Ok).await)),
            Verdict::Accepted(accepted) => {
                self.repairs.next_turn();
                self.accepted(*accepted, &raw, &known).await
            }
            Verdict::Repair(repair) => self.refused(&repair).await,
        }
    }

    /// A refused output: nothing ran. The model is told why, or the run ends.
    async fn refused(&mut self, repair: &Repair) -> Result<Next, Halt> {
        let is = |code| repair.diagnostics.iter().any(|one| one.code == code);
        if is(Code::TurnLimit) {
            return Ok(Next::End(self.end_at(Limit::Declarations).await));
        }
        if is(Code::BudgetExhausted) {
            return Ok(Next::End(self.end_at(Limit::Tokens).await));
        }
        match self.repairs.refuse(repair) {
            AfterRefusal::Repair => {
                self.transcript.push(Turn::Notice(notice(repair)));
                Ok(Next::GoOn)
            }
            AfterRefusal::Answer(text) => Ok(Next::End(self.answer(&text, RunOutcome::Ok).await)),
            AfterRefusal::Fail => {
                let first = repair.diagnostics.first();
                let why = first.map_or_else(String::new, |one| {
                    format!(" ({} at {}: {})", one.code, one.pointer, one.message)
                });
                tracing::warn!(
                    raw = repair.raw.len(),
                    "the model did not keep to the protocol"
                );
                let message =
                    format!("The model did not declare its actions as the protocol has it{why}");
                Err(Halt::Failed(Failure::new(PROTOCOL, message).retryable()))
            }
        }
    }

    async fn accepted(
        &mut self,
        accepted: Accepted,
        raw: &str,
        known: &action_graph::rules::Known,
    ) -> Result<Next, Halt> {
        use action_graph::declaration::Intent;
        let declaration = &accepted.declaration;
        let outcome = outcome_of(declaration.outcome);
        let text = match &declaration.payload {
            Payload::Message { text } => text.clone(),
            _ => declaration.message.clone(),
        };
        match declaration.intent {
            Intent::Respond => return Ok(Next::End(self.answer(&text, outcome).await)),
            Intent::Stop => return Ok(Next::End(self.end_silently(&text, outcome).await)),
            _ => {}
        }
        self.declare(accepted, raw, known).await
    }
}

impl<H: AgentHost> RunGraphs<H> {
    fn waiting_line(&self) -> Option<String> {
        let waiting = self.lives.iter().filter(|live| live.need() == Need::User);
        let ids: Vec<_> = waiting
            .map(|live| format!("the user was asked in {}", live.id()))
            .collect();
        (!ids.is_empty()).then(|| ids.join(", "))
    }
}

fn outcome_of(outcome: ReplyOutcome) -> RunOutcome {
    match outcome {
        ReplyOutcome::Ok => RunOutcome::Ok,
        ReplyOutcome::NotDone => RunOutcome::NotDone,
        ReplyOutcome::NeedInput => RunOutcome::NeedInput,
    }
}

/// A notice of one sentence.
pub(crate) fn say(sentence: &str) -> Turn {
    Turn::Notice(Notice {
        sentence: sentence.to_owned(),
        lines: Vec::new(),
    })
}
