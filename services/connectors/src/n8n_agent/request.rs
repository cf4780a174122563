//! The call of an n8n webhook.

use jsonwebtoken::{EncodingKey, Header, encode};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};

use crate::machine::OutputQueue;
use crate::n8n_agent::config::{Auth, Config};
use crate::request::{PlatformRequest, ResponseFraming};
use crate::turn::ConnectorTurn;
use crate::upstream::failure::ConnectorFailure;
use crate::upstream::json::object;

/// `POST` to the webhook. n8n stores no conversations, so workflows get two stable ids.
pub(super) fn call(
    config: &Config,
    turn: &ConnectorTurn,
    out: &mut OutputQueue,
) -> Result<PlatformRequest, ConnectorFailure> {
    let session = stable_id(turn, "session", out);
    let conversation = stable_id(turn, "conversation", out);
    let mut body = object(json!({
        "chatInput": turn.text,
        "message": turn.text,
        "user_message_text": turn.text,
        // Chat triggers pass this one to their memory nodes.
        "sessionId": session,
    }));
    let params = turn.params.iter();
    // Ids after the parameters: a caller must not set the id of another session.
    body.extend(params.map(|(name, value)| (name.clone(), value.clone())));
    body.extend(object(json!({
        "conversation_id": conversation,
        "session_id": session,
        "user_id": turn.user,
    })));
    if let (Some(name), Some(token)) = (&config.host_tools, &turn.run_token) {
        body.insert(name.clone(), json!(token.expose_secret()));
    }
    let request =
        PlatformRequest::post(config.url.clone(), body).framed(ResponseFraming::JsonStream);
    Ok(match &config.auth {
        Auth::None => request,
        Auth::Header { name, value } => request.header(name.clone(), value.expose_secret()),
        Auth::Jwt { secret, algorithm } => {
            let token = jwt(secret, &Header::new(*algorithm), turn)?;
            request.bearer(Some(&token))
        }
    })
}

/// An id in the conversation's state, created by its first run.
fn stable_id(turn: &ConnectorTurn, kind: &str, out: &mut OutputQueue) -> String {
    let key = format!("external.{kind}_id");
    let stored = turn.state.get(&key).and_then(Value::as_str);
    if let Some(id) = stored.filter(|id| !id.is_empty()) {
        return id.to_owned();
    }
    let id = format!("n8n_{kind}_{}", turn.run_id.replace('-', ""));
    out.remember(&key, id.as_str());
    id
}

/// A token that expires at the run's deadline.
#[expect(
    clippy::cast_possible_truncation,
    reason = "casts of floats saturate, and epoch seconds are far below the bound"
)]
fn jwt(
    secret: &SecretString,
    header: &Header,
    turn: &ConnectorTurn,
) -> Result<SecretString, ConnectorFailure> {
    let mut claims = object(json!({"sub": "n8n-webhook"}));
    if let Some(deadline) = turn.deadline {
        claims.insert("exp".to_owned(), json!(deadline.ceil() as i64));
    }
    let key = EncodingKey::from_secret(secret.expose_secret().as_bytes());
    let token = encode(header, &claims, &key);
    let token = token.map_err(|_| ConnectorFailure::config("jwt-secret", "makes no signature"))?;
    Ok(token.into())
}
