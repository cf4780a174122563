//! Permissions of a harness: decided by the agent's mode, by an earlier grant of the conversation, or by a person.

mod arguments;
mod open;
mod policy;
mod question;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::context::AgentRunContext;
use runner_kit::ResultSender;
use runner_kit::host::Host;
use serde_json::{Value, json};

use crate::config::{Config, PermissionMode};
pub(crate) use arguments::with_members;
pub(crate) use open::{Decided, OpenPermissions};
use policy::Ruling;
use question::QuestionOutcome;

/// Key of conversation state with the grants of the conversation. Deleting it revokes all of them.
pub(crate) const ALLOWED: &str = "harness.allowed";
/// Maximum grants of one conversation; the oldest are evicted.
const MAX_ALLOWED: usize = 100;

/// Action kind, in the vocabulary of ACP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActionKind {
    Read,
    Edit,
    Execute,
    Fetch,
    Other,
}

impl ActionKind {
    /// Maps a tool kind of ACP.
    pub(crate) fn of_acp(kind: &str) -> Self {
        match kind {
            "read" | "search" | "think" => Self::Read,
            "edit" | "delete" | "move" => Self::Edit,
            "execute" => Self::Execute,
            "fetch" => Self::Fetch,
            _ => Self::Other,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Edit => "edit",
            Self::Execute => "execute",
            Self::Fetch => "fetch",
            Self::Other => "other",
        }
    }
}

/// Action that needs permission.
#[derive(Clone, Debug)]
pub(crate) struct Permission {
    pub(crate) kind: ActionKind,
    pub(crate) title: String,
    /// Exact command, diff, or arguments.
    pub(crate) detail: String,
    /// Files that the action touches.
    pub(crate) paths: Vec<PathBuf>,
}

/// The decision on a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermissionDecision {
    Allowed,
    Refused,
    /// No answer in time.
    Expired,
    /// The surface cannot display questions.
    Unavailable,
    /// The turn has too many open permissions.
    TooMany,
    /// No question can show all of the command.
    TooLong,
    /// The run was cancelled, or its turn stops.
    Cancelled,
}

impl PermissionDecision {
    pub(crate) fn is_allowed(self) -> bool {
        self == Self::Allowed
    }

    /// Reason of a refusal, for harness and user; `None` when it needs no explanation.
    pub(crate) fn reason(self) -> Option<&'static str> {
        match self {
            Self::Allowed | Self::Cancelled => None,
            Self::Refused => Some("refused"),
            Self::Expired => Some("nobody answered in time"),
            Self::Unavailable => Some("refused, for this surface cannot ask"),
            Self::TooMany => Some("refused, for too many permissions are open"),
            Self::TooLong => Some(
                "refused, for a question cannot show all of it: use several shorter commands, each below 8,000 bytes",
            ),
        }
    }
}

/// Decides permissions of one run. Clones share the grants.
#[derive(Clone)]
pub(crate) struct PermissionDecider(Arc<PermissionMemory>);

struct PermissionMemory {
    mode: PermissionMode,
    workspace: PathBuf,
    /// Titles that harnesses use for granted tools of the MCP server `runnel`.
    granted: Vec<String>,
    question: question::RunQuestions,
    /// Grants of the conversation: objects with `key` and `title`.
    allowed: Mutex<Vec<Value>>,
}

impl PermissionDecider {
    pub(crate) fn new(
        config: &Config,
        workspace: &Path,
        context: &AgentRunContext,
        host: Host,
        out: ResultSender,
    ) -> Self {
        let allowed = context.state.conversation.get(ALLOWED);
        let allowed = allowed
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        Self(Arc::new(PermissionMemory {
            mode: config.mode,
            workspace: workspace.to_path_buf(),
            granted: granted(context),
            question: question::RunQuestions::new(context, config.approval, host, out),
            allowed: Mutex::new(allowed),
        }))
    }

    /// Decides one permission. Waits for a person if neither mode nor grants decide.
    pub(crate) async fn decide(self, permission: Permission) -> PermissionDecision {
        // The relay decides calls of granted tools itself; a second question would be redundant.
        if permission.kind == ActionKind::Other && self.0.granted.contains(&permission.title) {
            return PermissionDecision::Allowed;
        }
        match policy::rule(self.0.mode, &permission, &self.0.workspace) {
            Ruling::Allow => return PermissionDecision::Allowed,
            Ruling::Refuse => return PermissionDecision::Refused,
            Ruling::Ask => {}
        }
        // The policy comes first: a stored grant must not override a stricter mode.
        let key = policy::key(&permission, &self.0.workspace);
        if self.allowed().iter().any(|entry| entry["key"] == key) {
            return PermissionDecision::Allowed;
        }
        match self.0.question.ask(&permission).await {
            QuestionOutcome::Once => PermissionDecision::Allowed,
            QuestionOutcome::Conversation => {
                let allowed = self.remember(&key, &permission.title);
                self.0.question.remember(allowed).await;
                PermissionDecision::Allowed
            }
            QuestionOutcome::No => PermissionDecision::Refused,
            QuestionOutcome::Expired => PermissionDecision::Expired,
            QuestionOutcome::Unavailable => PermissionDecision::Unavailable,
            QuestionOutcome::TooLong => PermissionDecision::TooLong,
            QuestionOutcome::Cancelled => PermissionDecision::Cancelled,
        }
    }

    /// True if the mode refuses the permission without a question.
    pub(crate) fn refuses(&self, permission: &Permission) -> bool {
        policy::rule(self.0.mode, permission, &self.0.workspace) == Ruling::Refuse
    }

    fn remember(&self, key: &str, title: &str) -> Value {
        let mut allowed = self.allowed();
        allowed.push(json!({"key": key, "title": crate::shorten::cut(title, 200)}));
        let over = allowed.len().saturating_sub(MAX_ALLOWED);
        allowed.drain(..over);
        Value::Array(allowed.clone())
    }

    // A panic cannot leave the list inconsistent, so a poisoned lock is usable.
    fn allowed(&self) -> MutexGuard<'_, Vec<Value>> {
        self.0
            .allowed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Titles of granted tools, in the forms of the supported harnesses.
fn granted(context: &AgentRunContext) -> Vec<String> {
    // Safe to match by title: titles that a model can choose, such as commands, have another kind.
    let names = context.resources.tools.iter().map(|tool| &tool.tool_name);
    names
        .flat_map(|name| {
            [
                format!("mcp__runnel__{name}"),
                format!("runnel_{name}"),
                format!("{name} (runnel MCP Server)"),
            ]
        })
        .collect()
}
