//! Agents with an API of OpenAI: Chat Completions or Responses.

mod chat;
mod config;
mod reply;
mod request;
mod responses;

use serde_json::Value;

use crate::mapping::{FileReference, MappingStep, PlatformMapping};
use crate::openai_agent::config::{Config, ConversationOrigin, OpenAiApi};
use crate::openai_agent::reply::OpenAiReply;
use crate::platform::{ConversationKind, FileSupport, HistoryUse, Platform};
use crate::request::PlatformRequest;
use crate::run::ConnectorRun;
use crate::turn::TurnFile;
use crate::upstream::failure::{ConnectorFailure, Mapped};
use crate::upstream::json::filled;
use crate::upstream::reader::UpstreamEvent;

pub(crate) const PLATFORM: Platform = Platform {
    name: "openai-agent",
    prefix: "openai",
    label: "OpenAI-compatible agent",
    description: "Any server that answers Chat Completions or Responses: FastGPT, RAGFlow, MaxKB, vLLM, agent servers",
    legacy: &[],
    files: FileSupport::Accepted,
    asks: false,
    conversation: ConversationKind::new("external.conversation_id", "the server", "conversation")
        .hanging_if_lost(),
    history: HistoryUse::SentUnlessStored(20),
    form: include_str!("openai_agent/form.json"),
    start: |_, reader| {
        Ok(Box::new(OpenAiAgent {
            config: Config::read(reader)?,
            reply: OpenAiReply::default(),
        }))
    },
};

struct OpenAiAgent {
    config: Config,
    reply: OpenAiReply,
}

impl PlatformMapping for OpenAiAgent {
    fn request(&mut self, run: &mut ConnectorRun) -> Mapped<PlatformRequest> {
        let field = self.config.conversation.as_ref();
        if field.is_some_and(|field| field.origin == ConversationOrigin::Ours) {
            run.own_conversation();
        }
        Ok(request::request(&self.config, run))
    }

    fn event(&mut self, event: &UpstreamEvent, run: &mut ConnectorRun) -> Mapped<MappingStep> {
        if event.text.trim() == "[DONE]" {
            self.reply.is_done = true;
        } else {
            let payload = event.json()?;
            if let Some(failure) = reply::error_in(event.name.as_deref(), &payload) {
                return Err(failure);
            }
            // The configured member has the conversation's id.
            let field = self.config.conversation.as_ref();
            if let Some(id) = field.and_then(|field| filled(&payload[field.name.as_str()])) {
                run.learn(id);
            }
            let (reply, answer) = (&mut self.reply, &mut run.answer);
            match self.config.api {
                OpenAiApi::Chat => chat::event(reply, event, &payload, answer)?,
                OpenAiApi::Responses => responses::event(reply, event, &payload, answer)?,
            }
        }
        Ok(if self.reply.is_done {
            MappingStep::Complete
        } else {
            MappingStep::Read
        })
    }

    fn accepts(&self, _id: &str) -> bool {
        self.config.keeps_conversation()
    }

    fn file(&self, file: &TurnFile, _run: &ConnectorRun) -> Mapped<FileReference> {
        let part = match self.config.api {
            OpenAiApi::Chat => request::chat_part(file),
            OpenAiApi::Responses => request::responses_part(file),
        };
        part.map(FileReference::Inline)
    }

    fn refusal_code(&self, body: &Value) -> Option<String> {
        reply::code_of(&body["error"])
    }

    fn is_lost(&self, failure: &ConnectorFailure) -> bool {
        failure.has_status(404) || failure.code() == "previous_response_not_found"
    }

    fn reset(&mut self) {
        self.reply = OpenAiReply::default();
    }

    /// Servers may omit one of the two end marks.
    fn is_complete(&self) -> bool {
        self.reply.is_complete()
    }

    fn finish(&mut self, run: &mut ConnectorRun) -> Mapped {
        // Only a complete response can be continued.
        if let Some(id) = self.reply.response_id.take()
            && self.config.chains_responses
        {
            run.learn(&id);
        }
        self.reply.finish(&mut run.answer)
    }
}
