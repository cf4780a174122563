//! Requests to Langflow.

use protocol::JsonObject;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::langflow_agent::config::{Config, LangflowApi};
use crate::request::{PlatformRequest, ResponseFraming, below};
use crate::turn::ConnectorTurn;
use crate::upstream::json::object;

/// The call that runs the flow.
pub(super) fn run(
    config: &Config,
    api: LangflowApi,
    turn: &ConnectorTurn,
    session: &str,
) -> PlatformRequest {
    let request = match api {
        LangflowApi::V2 => v2(config, turn, session),
        LangflowApi::V1 => v1(config, turn, session),
    };
    request.header("x-api-key", config.key.expose_secret())
}

/// `POST /api/v2/workflows`.
fn v2(config: &Config, turn: &ConnectorTurn, session: &str) -> PlatformRequest {
    let body = json!({
        "flow_id": config.flow,
        "input_value": turn.text,
        "session_id": session,
        "tweaks": tweaks(config, turn),
        "mode": "stream",
    });
    let url = below(&config.base, &["api", "v2", "workflows"]);
    PlatformRequest::post(url, object(body)).framed(ResponseFraming::Sse)
}

/// `POST /api/v1/run/{flow}?stream=true`: one JSON object per line.
fn v1(config: &Config, turn: &ConnectorTurn, session: &str) -> PlatformRequest {
    let mut body = json!({
        "input_value": turn.text,
        "input_type": config.input_type,
        "output_type": config.output_type,
        "session_id": session,
    });
    let tweaks = tweaks(config, turn);
    if !tweaks.is_empty() {
        body["tweaks"] = Value::Object(tweaks);
    }
    let mut url = below(&config.base, &["api", "v1", "run", &config.flow]);
    url.query_pairs_mut().append_pair("stream", "true");
    PlatformRequest::post(url, object(body)).framed(ResponseFraming::Lines)
}

fn tweaks(config: &Config, turn: &ConnectorTurn) -> JsonObject {
    let mut tweaks = config.tweaks.clone();
    if let Some((name, token)) = turn.host_tools(config.host_tools.as_ref()) {
        tweaks.insert(name, json!({"input_value": token}));
    }
    tweaks
}
