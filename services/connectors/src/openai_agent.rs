//! Agents with an API of OpenAI: Chat Completions or Responses.

mod chat;
mod config;
mod reply;
mod request;
mod responses;

use crate::catalogue::Platform;
use crate::machine::{HistoryMessage, Machine, MachineInput, MachineOutput, OutputQueue};
use crate::openai_agent::config::{Config, ConversationOrigin, OpenAiApi};
use crate::openai_agent::reply::OpenAiReply;
use crate::turn::ConnectorTurn;
use crate::upstream::config::ConfigReader;
use crate::upstream::conversation::PlatformConversation;
use crate::upstream::failure::{ConnectorFailure, ErrorStatus, TransportError};
use crate::upstream::json::filled;
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "openai-agent",
    prefix: "openai",
    label: "OpenAI-compatible agent",
    description: "Any server that answers Chat Completions or Responses: FastGPT, RAGFlow, MaxKB, vLLM, agent servers",
    legacy: &[],
    takes_files: true,
    asks: false,
    form: include_str!("openai_agent/form.json"),
    start,
};

const CONVERSATION: &str = "external.conversation_id";

fn start(
    turn: ConnectorTurn,
    reader: &mut ConfigReader<'_>,
) -> Result<Box<dyn Machine>, ConnectorFailure> {
    let config = Config::read(reader)?;
    Ok(Box::new(OpenAiAgent {
        conversation: PlatformConversation::of(&turn, CONVERSATION, |_| {
            config.keeps_conversation()
        }),
        reply: OpenAiReply::new(&turn),
        history: Vec::new(),
        turn,
        config,
    }))
}

struct OpenAiAgent {
    config: Config,
    turn: ConnectorTurn,
    conversation: PlatformConversation,
    history: Vec<HistoryMessage>,
    reply: OpenAiReply,
}

impl Machine for OpenAiAgent {
    fn on(&mut self, input: MachineInput, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match input {
            MachineInput::Begin => self.begin(out),
            MachineInput::History(messages) => {
                self.history = messages;
                self.call(out)
            }
            MachineInput::Event(event) => self.event(&event, out),
            // The answer is complete, so a later failure does not matter.
            MachineInput::Ended | MachineInput::Failed(_) if self.reply.is_complete() => {
                self.complete(out)
            }
            MachineInput::Ended => Err(ConnectorFailure::ended_early()),
            MachineInput::Refused(refusal) => self.refused(refusal, out),
            MachineInput::Failed(error) => self.failed(error, out),
            MachineInput::Opened(_) | MachineInput::Answered(_) => Ok(()),
        }
    }
}

impl OpenAiAgent {
    /// Reads the history first, unless the server stores the conversation.
    fn begin(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        if self.config.keeps_conversation() || self.config.history == 0 {
            return self.call(out);
        }
        out.push(MachineOutput::History(self.config.history));
        Ok(())
    }

    fn call(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        let is_ours = self
            .config
            .conversation
            .as_ref()
            .is_some_and(|field| field.origin == ConversationOrigin::Ours);
        if is_ours && self.conversation.id().is_none() {
            let id = format!("runnel_{}", self.turn.run_id);
            self.conversation.learn(&id, out);
        }
        let id = self.conversation.id();
        out.call(request::request(
            &self.config,
            &self.turn,
            &self.history,
            id,
        )?);
        Ok(())
    }

    fn event(
        &mut self,
        event: &UpstreamEvent,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        if event.text.trim() == "[DONE]" {
            self.reply.is_done = true;
        } else {
            let payload = event.json()?;
            if let Some(failure) = reply::error_in(event.name.as_deref(), &payload) {
                return self.lost(failure, out);
            }
            self.learn(&payload, out);
            match self.config.api {
                OpenAiApi::Chat => chat::event(&mut self.reply, event, &payload, out)?,
                OpenAiApi::Responses => responses::event(&mut self.reply, event, &payload, out)?,
            }
        }
        if self.reply.is_done {
            return self.complete(out);
        }
        Ok(())
    }

    /// Learns the conversation's id from the configured member.
    fn learn(&mut self, payload: &serde_json::Value, out: &mut OutputQueue) {
        let field = self.config.conversation.as_ref();
        if let Some(id) = field.and_then(|field| filled(&payload[field.name.as_str()])) {
            self.conversation.learn(id, out);
        }
    }

    fn complete(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        if let Some(id) = self
            .reply
            .response_id
            .take()
            // Only a complete response can be continued.
            .filter(|_| self.config.chains_responses)
        {
            self.conversation.learn(&id, out);
        }
        self.reply.complete(out)
    }

    fn refused(
        &mut self,
        refusal: ErrorStatus,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let code = reply::code_of(&refusal.json()["error"]);
        let failure = ConnectorFailure::from(refusal);
        self.lost(
            match code {
                Some(code) => failure.detail("code", code),
                None => failure,
            },
            out,
        )
    }

    fn failed(
        &mut self,
        error: TransportError,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        if error == TransportError::Idle
            && self.conversation.start_over(
                self.reply.has_begun(),
                "the server was silent about a stored conversation",
                out,
            )
        {
            return self.restart(out);
        }
        Err(error.into())
    }

    /// Starts over if the server lost the stored conversation; otherwise returns the failure.
    fn lost(
        &mut self,
        failure: ConnectorFailure,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let is_lost = failure
            .details
            .get("status")
            .is_some_and(|status| *status == 404)
            || failure
                .details
                .get("code")
                .is_some_and(|code| *code == "previous_response_not_found");
        if is_lost
            && self.conversation.start_over(
                self.reply.has_begun(),
                "the server does not know the stored conversation",
                out,
            )
        {
            return self.restart(out);
        }
        Err(failure)
    }

    /// Repeats the call in a new conversation, with the last messages.
    fn restart(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        self.reply = OpenAiReply::new(&self.turn);
        if self.config.history == 0 {
            return self.call(out);
        }
        out.push(MachineOutput::History(self.config.history));
        Ok(())
    }
}
