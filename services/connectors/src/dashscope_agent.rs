//! Applications on Alibaba Cloud Model Studio (Bailian): agents and workflows.

mod config;
mod events;
mod references;
mod request;

use crate::catalogue::Platform;
use crate::dashscope_agent::config::Config;
use crate::dashscope_agent::events::{DashScopeProgress, failure_of, is_lost};
use crate::machine::{HistoryMessage, Machine, MachineInput, MachineOutput, OutputQueue};
use crate::turn::ConnectorTurn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::PlatformConversation;
use crate::upstream::failure::{ConnectorFailure, ErrorStatus, TransportError};
use crate::upstream::json::filled;
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "dashscope-agent",
    prefix: "dashscope",
    label: "DashScope",
    description: "An application on Alibaba Cloud Model Studio (Bailian): agent or workflow",
    legacy: &[
        "plugin:langbot/dashscope-agent/default",
        "plugin:langbot-team/DashScopeAgent/default",
    ],
    takes_files: false,
    asks: false,
    form: include_str!("dashscope_agent/form.json"),
    start,
};

const CONVERSATION: &str = "external.conversation_id";

fn start(
    turn: ConnectorTurn,
    reader: &mut ConfigReader<'_>,
) -> Result<Box<dyn Machine>, ConnectorFailure> {
    let config = Config::read(reader)?;
    turn.refuse_files("DashScope")?;
    Ok(Box::new(DashScope {
        session: PlatformConversation::of(&turn, CONVERSATION, |_| true),
        progress: DashScopeProgress::new(&turn, &config),
        history: Vec::new(),
        turn,
        config,
    }))
}

struct DashScope {
    config: Config,
    turn: ConnectorTurn,
    /// The session. Model Studio deletes it after an hour.
    session: PlatformConversation,
    progress: DashScopeProgress,
    history: Vec<HistoryMessage>,
}

impl Machine for DashScope {
    fn on(&mut self, input: MachineInput, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match input {
            MachineInput::Begin => {
                self.call(out);
                Ok(())
            }
            MachineInput::History(messages) => {
                self.history = messages;
                self.call(out);
                Ok(())
            }
            MachineInput::Event(event) => self.event(&event, out),
            MachineInput::Ended => Err(ConnectorFailure::ended_early()),
            MachineInput::Refused(refusal) => self.refused(refusal, out),
            MachineInput::Failed(TransportError::Idle) => {
                let reason = "DashScope was silent about a stored session";
                self.start_over(TransportError::Idle.into(), reason, out)
            }
            MachineInput::Failed(error) => Err(error.into()),
            MachineInput::Opened(_) | MachineInput::Answered(_) => Ok(()),
        }
    }
}

impl DashScope {
    fn call(&mut self, out: &mut OutputQueue) {
        let session = self.session.id();
        out.call(request::call(
            &self.config,
            &self.turn,
            &self.history,
            session,
        ));
    }

    fn event(
        &mut self,
        event: &UpstreamEvent,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let payload = event.json()?;
        if let Some(failure) = failure_of(event.name.as_deref(), &payload) {
            // Model Studio reports errors within the stream too.
            return self.lost(failure, out);
        }
        let output = &payload["output"];
        if event.is_document && !output.is_object() {
            return Err(ConnectorFailure::unreadable(&event.text));
        }
        // Compare before learning: after that the stored id is replaced.
        if let Some(id) = filled(&output["session_id"]) {
            if self.is_forgotten(id) {
                let reason = "DashScope began a new session instead of the stored one";
                return self.start_over(ConnectorFailure::ended_early(), reason, out);
            }
            self.session.learn(id, out);
        }
        self.progress.event(&payload, out);
        if event.is_document || self.progress.is_done() {
            return self.progress.complete(out);
        }
        Ok(())
    }

    /// True if the response names another session than the request: that session has no history.
    fn is_forgotten(&self, id: &str) -> bool {
        let is_other = self.session.id().is_some_and(|sent| sent != id);
        let can_start_over = self.session.is_unconfirmed() && !self.progress.has_begun();
        is_other && can_start_over && self.config.resend_history > 0
    }

    fn refused(
        &mut self,
        refusal: ErrorStatus,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let code = filled(&refusal.json()["code"]).map(str::to_owned);
        let failure = ConnectorFailure::from(refusal);
        let failure = match code {
            Some(code) => failure.detail("code", code),
            None => failure,
        };
        self.lost(failure, out)
    }

    /// Starts over if Model Studio lost the stored session; otherwise returns the failure.
    fn lost(
        &mut self,
        failure: ConnectorFailure,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        if is_lost(&failure) {
            let reason = "DashScope does not know the stored session";
            return self.start_over(failure, reason, out);
        }
        Err(failure)
    }

    fn start_over(
        &mut self,
        failure: ConnectorFailure,
        reason: &str,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let has_begun = self.progress.has_begun();
        if !self.session.start_over(has_begun, reason, out) {
            return Err(failure);
        }
        // Remains of the failed stream must not reach the new answer.
        self.progress = DashScopeProgress::new(&self.turn, &self.config);
        match self.config.resend_history {
            0 => self.call(out),
            messages => out.push(MachineOutput::History(messages)),
        }
        Ok(())
    }
}
