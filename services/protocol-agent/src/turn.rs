//! Turn loop: observe, call the model, accept or repair, drive, until an answer, a wait or a limit.

mod declare;
mod plain;

use action_graph::accept::{AfterRefusal, OutputVerdict, Repair, accept};
use action_graph::code::Code;
use action_graph::declaration::{Payload, ReplyOutcome};
use action_graph::graph::GraphStatus;
use action_graph::output::ModelOutput;
use action_graph::report::render_report;
use action_graph::schedule::Why;
use action_graph::transcript::{Notice, TranscriptTurn, notice};
use action_graph::validate::{AcceptedDeclaration, Context};
use agent_core::model::ModelFailure;
use protocol::result::RunOutcome;

use crate::ending::{Limit, SessionEnd};
use crate::failpoint::reach;
use crate::failure::{Halt, PROTOCOL, RunFailure};
use crate::host::GraphAgentHost;
use crate::live::{GraphWait, LiveGraph};
use crate::model::VisibleParts;
use crate::program;
use crate::prompt::ModelPrompt;
use crate::session::ProtocolSession;
use action_graph::rules::CarrierMode;

pub(crate) use plain::converse as converse_plainly;

/// Maximum retries with a smaller transcript after a context overflow.
const SHRINKS: u32 = 3;

/// Next step after an output of the model.
pub(crate) enum TurnStep {
    /// The run ends successfully.
    End(SessionEnd),
    /// The loop continues with graphs or another model call.
    GoOn,
}

impl<H: GraphAgentHost> ProtocolSession<H> {
    /// Runs turns until the run ends.
    pub(crate) async fn converse(&mut self) -> Result<SessionEnd, Halt> {
        loop {
            self.driver.advance(&mut self.transcript).await?;
            self.take_steering().await?;
            // A steering answer may have woken a graph that was quiescent.
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
            if let Some(ended) = program::end(self).await {
                return Ok(ended);
            }
            if self.driver.graphs.env.is_spent() {
                return Ok(self.end_at(Limit::Tokens).await);
            }
            let output = self.ask_model().await?;
            reach("answer.before_accept").await;
            match self.validate(output).await? {
                TurnStep::End(ended) => return Ok(ended),
                TurnStep::GoOn => {}
            }
        }
    }

    /// Ends the run with the declared report of a completed graph, without another model call.
    async fn report(&mut self) -> Option<SessionEnd> {
        for position in 0..self.driver.graphs.live_graphs.len() {
            let live = &self.driver.graphs.live_graphs[position];
            let is_complete =
                live.why == Some(Why::Finished) && live.graph.aggregate() == GraphStatus::Completed;
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
                    // Dropped, so that the model decides about the missing part once.
                    self.driver.graphs.live_graphs[position].graph.info.report = None;
                    self.transcript.push(sentence_notice(&missing.to_string()));
                }
            }
        }
        None
    }

    /// Calls the model with a request that fits into its context window.
    async fn ask_model(&mut self) -> Result<ModelOutput, Halt> {
        reach("observe.made").await;
        // Reset before the call: turns that arrive during it need another one.
        self.transcript.needs_model = false;
        let stream = match self.driver.rules.carrier {
            CarrierMode::Flat => VisibleParts::Answer,
            CarrierMode::Fenced => VisibleParts::Nothing,
        };
        let mut max_tokens = self.driver.graphs.env.config.budgets.request();
        for shrink in 0..=SHRINKS {
            let waiting = waiting_line(&self.driver.graphs.live_graphs);
            let prompt = ModelPrompt {
                role: &self.prompt,
                catalog: &self.driver.graphs.env.catalog,
                rules: &self.driver.rules,
                turns: &self.transcript.turns,
                replay: self.driver.graphs.env.config.replay,
                max_tokens,
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
            let host = self.driver.graphs.env.host.clone();
            let call = self
                .models
                .ask(&host, &request, stream, &mut self.driver.graphs.writer);
            let end = self.driver.graphs.env.end;
            let reply = tokio::select! {
                biased;
                () = self.driver.cancel.cancelled() => return Err(Halt::Cancelled),
                reply = call => reply,
                () = tokio::time::sleep_until(end) => return Err(Halt::Deadline),
            };
            match reply {
                Ok(reply) => {
                    self.driver.graphs.env.usage.add(reply.usage.as_ref());
                    return Ok(reply.output);
                }
                Err(ModelFailure::Overflow(error)) if shrink < SHRINKS => {
                    tracing::info!(
                        "the request was too large for the model, asking with half of it: {error}"
                    );
                    // Estimates differ from the provider's tokenizer, so halve until the request fits.
                    max_tokens /= 2;
                }
                Err(failed) => return Err(failed.into()),
            }
        }
        Err(Halt::Deadline)
    }

    /// Validates an output: an answer, a declaration, or a repair.
    async fn validate(&mut self, output: ModelOutput) -> Result<TurnStep, Halt> {
        let raw = output.raw();
        // Before the validation, which counts open graphs.
        let max_open = self.driver.rules.limits.open_graphs;
        self.driver.graphs.evict_graphs(max_open).await;
        let facts = self.facts(&raw).await?;
        let context = Context {
            catalog: &self.driver.graphs.env.catalog,
            known: &facts,
            rules: &self.driver.rules,
        };
        let verdict = accept(&output, context);
        tracing::info!(adherence = ?verdict.adherence(), "model output validated");
        match verdict {
            OutputVerdict::Content(text) => {
                Ok(TurnStep::End(self.answer(&text, RunOutcome::Ok).await))
            }
            OutputVerdict::Accepted(accepted) => {
                self.repairs.next_turn();
                self.accepted(*accepted, &raw, &facts).await
            }
            OutputVerdict::Repair(repair) => self.refused(&repair).await,
        }
    }

    /// Handles a refused output, of which nothing ran: sends the faults to the model, or ends the run.
    async fn refused(&mut self, repair: &Repair) -> Result<TurnStep, Halt> {
        let is = |code| repair.diagnostics.iter().any(|one| one.code == code);
        if is(Code::TurnLimit) {
            return Ok(TurnStep::End(self.end_at(Limit::Declarations).await));
        }
        if is(Code::BudgetExhausted) {
            return Ok(TurnStep::End(self.end_at(Limit::Tokens).await));
        }
        match self.repairs.refuse(repair) {
            AfterRefusal::Repair => {
                self.transcript.push(TranscriptTurn::Notice(notice(repair)));
                Ok(TurnStep::GoOn)
            }
            AfterRefusal::Answer(text) => {
                Ok(TurnStep::End(self.answer(&text, RunOutcome::Ok).await))
            }
            AfterRefusal::Fail => {
                let first = repair.diagnostics.first();
                let why = first.map_or_else(String::new, |one| {
                    format!(" ({} at {}: {})", one.code, one.pointer, one.message)
                });
                tracing::warn!(
                    raw = repair.raw.len(),
                    "the model violated the protocol after all repairs, the run fails"
                );
                let message =
                    format!("The model did not declare its actions as the protocol has it{why}");
                Err(Halt::Failed(RunFailure::new(PROTOCOL, message).retryable()))
            }
        }
    }

    async fn accepted(
        &mut self,
        accepted: AcceptedDeclaration,
        raw: &str,
        facts: &action_graph::rules::KnownFacts,
    ) -> Result<TurnStep, Halt> {
        use action_graph::declaration::Intent;
        let declaration = &accepted.declaration;
        let outcome = outcome_of(declaration.outcome);
        let text = match &declaration.payload {
            Payload::Message { text } => text.clone(),
            _ => declaration.message.clone(),
        };
        match declaration.intent {
            Intent::Respond => return Ok(TurnStep::End(self.answer(&text, outcome).await)),
            Intent::Stop => return Ok(TurnStep::End(self.end_silently(&text, outcome).await)),
            _ => {}
        }
        self.declare(accepted, raw, facts).await
    }
}

fn waiting_line(graphs: &[LiveGraph]) -> Option<String> {
    let waiting = graphs.iter().filter(|live| live.need() == GraphWait::User);
    let ids: Vec<_> = waiting
        .map(|live| format!("the user was asked in {}", live.id()))
        .collect();
    (!ids.is_empty()).then(|| ids.join(", "))
}

fn outcome_of(outcome: ReplyOutcome) -> RunOutcome {
    match outcome {
        ReplyOutcome::Ok => RunOutcome::Ok,
        ReplyOutcome::NotDone => RunOutcome::NotDone,
        ReplyOutcome::NeedInput => RunOutcome::NeedInput,
    }
}

/// Notice with one sentence.
pub(crate) fn sentence_notice(sentence: &str) -> TranscriptTurn {
    TranscriptTurn::Notice(Notice {
        sentence: sentence.to_owned(),
        lines: Vec::new(),
    })
}
