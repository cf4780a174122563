//! The request of a mapping. Pure.

use serde_json::{Value, json};

use crate::http_agent::config::{Config, SESSION};
use crate::request::{Method, PlatformRequest, RequestBody};
use crate::run::ConnectorRun;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped};

/// The request with the first value of the filter `body` for this turn. `GET` has no body.
pub(super) fn request(config: &Config, run: &ConnectorRun) -> Mapped<PlatformRequest> {
    let mut request = PlatformRequest::get(config.url.clone()).framed(config.framing);
    request.method = config.method;
    for (name, value) in &config.headers {
        request = request.header(name.clone(), value.clone());
    }
    if config.method == Method::Get {
        return Ok(request);
    }
    let values = config.body.run(&input(config, run), None);
    let fault = |fault: &str| {
        let message = format!("/body gives no body for this event: {fault}");
        ConnectorFailure::new(FailureKind::ConfigInvalid, message).detail("pointer", "/body")
    };
    let first = values.map_err(|error| fault(&error))?.into_iter().next();
    request.body = RequestBody::Json(first.ok_or_else(|| fault("it has no value"))?);
    Ok(request)
}

fn input(config: &Config, run: &ConnectorRun) -> Value {
    let (turn, session) = (&run.turn, run.conversation.id());
    let history = run.history.iter();
    let history = history.map(|message| json!({"role": message.role, "text": message.text}));
    let mut state = turn.state.clone();
    // Show the session of this request, which may differ from the stored one after a retry.
    match session {
        Some(session) => state.insert(SESSION.to_owned(), json!(session)),
        None => state.remove(SESSION),
    };
    let mut input = json!({
        "run_id": turn.run_id,
        "user": turn.user,
        "session": session,
        "input": {"text": turn.text, "files": run.files},
        "actor": turn.actor,
        "conversation": turn.conversation,
        "state": {"conversation": state},
        "params": turn.params,
        "history": history.collect::<Vec<_>>(),
        "streams": turn.streams,
    });
    if let Some((name, token)) = turn.host_tools(config.host_tools.as_ref()) {
        input[name] = token;
    }
    input
}
