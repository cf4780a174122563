//! A platform: its names, its data, and the manifest of its runners.

use protocol::id::RunnerId;
use protocol::manifest::{
    AgentRunnerManifest, Capabilities, FormItem, I18n, Permissions, RunnerUsage,
};
use protocol::resources::{ArtifactOperation, HistoryOperation, InteractionOperation, StateScope};

use crate::mapping::PlatformMapping;
use crate::turn::ConnectorTurn;
use crate::upstream::config::ConfigReader;
use crate::upstream::failure::{ConnectorFailure, Mapped};

/// Creates the mapping of one run, and reads the platform's own keys of the configuration.
pub type Start = fn(&ConnectorTurn, &mut ConfigReader<'_>) -> Mapped<Box<dyn PlatformMapping>>;

/// A platform's conversation, as the loop stores it and reports its loss.
#[derive(Clone, Copy, Debug)]
pub struct ConversationKind {
    /// The key in the conversation's state.
    pub key: &'static str,
    /// The name in logs.
    pub owner: &'static str,
    pub noun: &'static str,
    /// The platform sends nothing for a lost conversation, so silence starts over as well.
    pub hangs_if_lost: bool,
}

impl ConversationKind {
    pub(crate) const fn new(key: &'static str, owner: &'static str, noun: &'static str) -> Self {
        Self {
            key,
            owner,
            noun,
            hangs_if_lost: false,
        }
    }

    pub(crate) const fn hanging_if_lost(self) -> Self {
        Self {
            hangs_if_lost: true,
            ..self
        }
    }
}

/// The use of earlier messages, with the default of the key that limits their number.
#[derive(Clone, Copy, Debug)]
pub enum HistoryUse {
    Unused,
    /// `resend-history`: sent with the first message of a new conversation that replaces a lost one.
    Resent(u64),
    /// `history`: sent with each message.
    Sent(u64),
    /// `history`: sent with each message, or resent if the platform stores the conversation.
    SentUnlessStored(u64),
}

/// The platform's support for files of the turn.
#[derive(Clone, Copy, Debug)]
pub enum FileSupport {
    Accepted,
    /// Runs with files fail for this reason.
    Refused(&'static str),
}

/// A platform in the catalogue.
#[derive(Debug)]
pub struct Platform {
    /// `dify-agent`: the middle part of the runner's id, and the directory of its transcripts.
    pub name: &'static str,
    /// The first part of its error codes.
    pub prefix: &'static str,
    pub label: &'static str,
    pub description: &'static str,
    /// The LangBot runners that it replaces, by id.
    pub legacy: &'static [&'static str],
    pub files: FileSupport,
    /// The platform can ask a person.
    pub asks: bool,
    pub conversation: ConversationKind,
    pub history: HistoryUse,
    /// The form's own items, a JSON list of [`FormItem`].
    pub form: &'static str,
    pub start: Start,
}

impl Platform {
    /// `dify`: also the page's name in `docs/connectors`.
    pub fn short_name(&self) -> &'static str {
        self.name.trim_end_matches("-agent")
    }

    /// Fails with `upload_error` if the turn has files and the platform accepts none.
    pub(crate) fn check_files(&self, turn: &ConnectorTurn) -> Mapped {
        match (self.files, turn.files.first()) {
            (FileSupport::Refused(reason), Some(file)) => {
                let fault = format!("cannot be handed over: {reason}");
                Err(ConnectorFailure::upload(&file.name, &fault))
            }
            _ => Ok(()),
        }
    }

    /// The runner id `plugin:runnel/{name}/default`.
    pub fn id(&self) -> RunnerId {
        let id = format!("plugin:runnel/{}/default", self.name).parse();
        id.expect("the name is one part of an id")
    }

    /// The manifest under a runner id, which may be a legacy one.
    pub fn manifest(&self, id: RunnerId) -> AgentRunnerManifest {
        AgentRunnerManifest {
            description: Some(in_english(self.description)),
            usages: vec![RunnerUsage::Agent],
            capabilities: Capabilities {
                streaming: true,
                multimodal_input: matches!(self.files, FileSupport::Accepted),
                interrupt: true,
                stateful_session: true,
                resumable: true,
                interactions: self.asks,
                ..Capabilities::default()
            },
            permissions: Permissions {
                history: vec![HistoryOperation::Page],
                artifacts: ArtifactOperation::ALL.to_vec(),
                // Without the permission the gateway refuses the question, so request it only for platforms that ask.
                interactions: if self.asks {
                    InteractionOperation::ALL.to_vec()
                } else {
                    Vec::new()
                },
                state: vec![StateScope::Conversation],
                ..Permissions::default()
            },
            config_schema: self.config_schema(),
            ..AgentRunnerManifest::new(id, in_english(self.label))
        }
    }

    /// The platform's own form items, then the common ones.
    pub fn config_schema(&self) -> Vec<FormItem> {
        let read = |text| serde_json::from_str::<Vec<FormItem>>(text);
        let mut items = read(self.form).expect("the embedded form is a list of fields");
        items.extend(
            read(include_str!("common_form.json")).expect("the embedded form is a list of fields"),
        );
        items
    }
}

fn in_english(text: &str) -> I18n {
    I18n::from_iter([("en_US".to_owned(), text.to_owned())])
}
