//! Services and pipelines, called through HTTP tools of the host. Only the gateway opens outside connections.

use std::time::Duration;

use action_graph::action::ExecutorKind;
use action_graph::schedule::{ActionOutcome, Execute};
use protocol::JsonObject;
use protocol::tool::KeyScope;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::config::Remote;
use crate::execute::ExecutorEnv;
use crate::execute::tool::{ToolJob, call};
use crate::host::GraphAgentHost;

/// Timeout of a status tool.
const STATUS_TIME: Duration = Duration::from_secs(20);

/// Finds a remote by class and name.
pub(crate) fn find<'a>(
    remotes: &'a [Remote],
    kind: ExecutorKind,
    name: &str,
) -> Option<&'a Remote> {
    let is_it = |remote: &&Remote| ExecutorKind::from(remote.kind) == kind && remote.name == name;
    remotes.iter().find(is_it)
}

/// Call of a remote's tool.
pub(crate) fn job(remote: &Remote, execute: &Execute, scope: KeyScope, time: Duration) -> ToolJob {
    let mut parameters = execute.input.as_object().cloned().unwrap_or_default();
    // Extended last: the operator's arguments override those of the model.
    parameters.extend(remote.arguments.clone());
    ToolJob {
        tool: remote.tool.clone(),
        parameters,
        key: execute.key.clone(),
        scope,
        approved_by: execute.approved_by.clone(),
        time,
        may_summarize: false,
    }
}

/// Queries the remote's status tool for a call of unknown outcome: true if it happened, and its output. `None` without
/// a tool or a usable response. The tool takes `{"key": …}` and returns `{"done": bool, "output"?: …}`.
pub(crate) async fn status(
    env: &ExecutorEnv<impl GraphAgentHost>,
    remote: &Remote,
    key: &str,
) -> Option<(bool, JsonObject)> {
    let tool = remote.status_tool.clone()?;
    let job = ToolJob {
        tool,
        parameters: JsonObject::from_iter([("key".to_owned(), json!(key))]),
        // A new key for each query: a repeated key would return the first response.
        key: format!("status.{}", Uuid::new_v4().simple()),
        scope: KeyScope::Run,
        approved_by: None,
        time: STATUS_TIME,
        may_summarize: false,
    };
    let ActionOutcome::Ok { output, .. } = call(env, job).await else {
        return None;
    };
    let is_done = output.value.get("done")?.as_bool()?;
    let found = output.value.get("output").and_then(Value::as_object);
    Some((is_done, found.cloned().unwrap_or_default()))
}
