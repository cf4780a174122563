//! The request of a mapping. Pure.

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::http_agent::config::Config;
use crate::machine::HistoryMessage;
use crate::request::{Method, PlatformRequest, RequestBody};
use crate::turn::{ConnectorTurn, TurnFile};
use crate::upstream::failure::{ConnectorFailure, FailureKind};

/// The request with the first value of the filter `body` for this turn. `GET` has no body.
pub(super) fn request(
    config: &Config,
    turn: &ConnectorTurn,
    history: &[HistoryMessage],
    session: Option<&str>,
) -> Result<PlatformRequest, ConnectorFailure> {
    let mut request = PlatformRequest::get(config.url.clone()).framed(config.framing);
    request.method = config.method;
    for (name, value) in &config.headers {
        request = request.header(name.clone(), value.clone());
    }
    if config.method == Method::Get {
        return Ok(request);
    }
    let input = input(config, turn, history, session)?;
    let values = config.body.run(&input, None);
    let fault = |fault: &str| {
        let message = format!("/body gives no body for this event: {fault}");
        ConnectorFailure::new(FailureKind::ConfigInvalid, message).detail("pointer", "/body")
    };
    let first = values.map_err(|error| fault(&error))?.into_iter().next();
    request.body = RequestBody::Json(first.ok_or_else(|| fault("it has no value"))?);
    Ok(request)
}

fn input(
    config: &Config,
    turn: &ConnectorTurn,
    history: &[HistoryMessage],
    session: Option<&str>,
) -> Result<Value, ConnectorFailure> {
    let files = turn.files.iter().map(file).collect::<Result<Vec<_>, _>>()?;
    let history = history
        .iter()
        .map(|message| json!({"role": message.role, "text": message.text}));
    let mut state = turn.state.clone();
    // Show the session of this request, which may differ from the stored one after a retry.
    match session {
        Some(session) => state.insert(super::SESSION.to_owned(), json!(session)),
        None => state.remove(super::SESSION),
    };
    let mut input = json!({
        "run_id": turn.run_id,
        "user": turn.user,
        "session": session,
        "input": {"text": turn.text, "files": files},
        "actor": turn.actor,
        "conversation": turn.conversation,
        "state": {"conversation": state},
        "params": turn.params,
        "history": history.collect::<Vec<_>>(),
        "streams": turn.streams,
    });
    if let (Some(name), Some(token)) = (&config.host_tools, &turn.run_token) {
        input[name.as_str()] = json!(token.expose_secret());
    }
    Ok(input)
}

fn file(file: &TurnFile) -> Result<Value, ConnectorFailure> {
    Ok(json!({"name": file.name, "mime_type": file.mime_type, "url": file.url()?}))
}
