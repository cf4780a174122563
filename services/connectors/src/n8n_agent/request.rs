//! The call of an n8n webhook.

use jsonwebtoken::{EncodingKey, Header, encode};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use crate::n8n_agent::config::{Auth, Config};
use crate::request::{PlatformRequest, ResponseFraming};
use crate::run::ConnectorRun;
use crate::turn::ConnectorTurn;
use crate::upstream::failure::{ConnectorFailure, Mapped};
use crate::upstream::json::object;

/// `POST` to the webhook. n8n stores no conversations, so workflows get two stable ids.
pub(super) fn call(config: &Config, run: &mut ConnectorRun) -> Mapped<PlatformRequest> {
    let session = run.stable_id("external.session_id", "n8n_session");
    let conversation = run.stable_id("external.conversation_id", "n8n_conversation");
    let turn = &run.turn;
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
    body.extend(turn.host_tools(config.host_tools.as_ref()));
    let request =
        PlatformRequest::post(config.url.clone(), body).framed(ResponseFraming::JsonStream);
    Ok(match &config.auth {
        Auth::None => request,
        Auth::Header { name, value } => request.header(name.clone(), value.expose_secret()),
        Auth::Jwt { secret, algorithm } => {
            let token = jwt(secret, &Header::new(*algorithm), turn)?;
            request.bearer(&token)
        }
    })
}

/// A token that expires at the run's deadline.
#[expect(
    clippy::cast_possible_truncation,
    reason = "casts of floats saturate, and epoch seconds are far below the bound"
)]
fn jwt(secret: &SecretString, header: &Header, turn: &ConnectorTurn) -> Mapped<SecretString> {
    let mut claims = object(json!({"sub": "n8n-webhook"}));
    if let Some(deadline) = turn.deadline {
        claims.insert("exp".to_owned(), json!(deadline.ceil() as i64));
    }
    let key = EncodingKey::from_secret(secret.expose_secret().as_bytes());
    let token = encode(header, &claims, &key);
    let token = token.map_err(|_| ConnectorFailure::config("jwt-secret", "makes no signature"))?;
    Ok(token.into())
}
