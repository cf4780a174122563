//! The call of an application on Model Studio.

use protocol::JsonObject;
use serde_json::json;

use crate::dashscope_agent::config::{Config, DashScopeAppType};
use crate::request::{PlatformRequest, ResponseFraming, below};
use crate::run::ConnectorRun;
use crate::upstream::json::object;

/// `POST /apps/{id}/completion`, within a session or with a new one.
pub(super) fn call(config: &Config, run: &ConnectorRun) -> PlatformRequest {
    let turn = &run.turn;
    let mut input = object(json!({"prompt": run.query(&turn.text)}));
    if let Some(id) = run.conversation.id() {
        input.insert("session_id".to_owned(), json!(id));
    }
    let mut params = match config.app {
        DashScopeAppType::Agent => JsonObject::new(),
        DashScopeAppType::Workflow => turn.params.clone(),
    };
    params.extend(turn.host_tools(config.host_tools.as_ref()));
    if !params.is_empty() {
        input.insert("biz_params".to_owned(), json!(params));
    }
    let parameters = match config.app {
        DashScopeAppType::Agent => {
            json!({"incremental_output": true, "has_thoughts": true, "enable_thinking": true})
        }
        DashScopeAppType::Workflow => {
            json!({"incremental_output": true, "flow_stream_mode": "message_format"})
        }
    };
    let url = below(&config.base, &["apps", &config.app_id, "completion"]);
    let body = object(json!({"input": input, "parameters": parameters}));
    PlatformRequest::post(url, body)
        .bearer(&config.key)
        .header("x-dashscope-sse", "enable")
        .framed(ResponseFraming::Sse)
}
