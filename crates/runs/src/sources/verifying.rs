//! Verification of requests: signatures, timestamps, and the challenges of platforms.

use http::{HeaderMap, Method};
use protocol::source::{SignatureEncoding, SourceScheme, SourceSettings};
use secrets::inbound::{self, InboundError, InboundRequest, TagEncoding, WecomQuery, WecomSecret};
use secrets::signature::{SignedHeaders, SigningSecret};
use serde_json::{Value, json};
use store::SourceRecord;

use super::xml::read_xml;
use super::{SourceContent, Sources};

/// A request to a source, unverified.
#[derive(Clone, Copy)]
pub struct SourceRequest<'a> {
    pub method: &'a Method,
    pub headers: &'a HeaderMap,
    pub query: &'a str,
    pub body: &'a [u8],
    /// The secret of the scheme `none`.
    pub secret_in_path: Option<&'a str>,
}

/// Response to a platform that checks the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceChallenge {
    Json(Value),
    Text(String),
}

/// A verified request.
pub enum ReceivedSource {
    Challenge(SourceChallenge),
    Content(SourceContent),
}

/// Cause of a refused request, for the log only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceRefusal {
    #[error(transparent)]
    Signature(#[from] InboundError),
    #[error("the secret of the source cannot be opened")]
    Unopened,
    #[error("the path has a secret, which the scheme does not have")]
    SecretInPath,
    #[error("the method is not that of the scheme")]
    Method,
    #[error("the body has no encrypted content")]
    NotEncrypted,
}

impl Sources {
    /// Verifies a request by the secret of its source, or by the one before the last rotation.
    pub fn verify(
        &self,
        record: &SourceRecord,
        request: SourceRequest<'_>,
    ) -> Result<ReceivedSource, SourceRefusal> {
        let now = self.deps.clock.now_seconds();
        let mut refusal = SourceRefusal::Unopened;
        for secret in self.secrets_of(record) {
            match verify(&record.settings, &secret, request, now) {
                Ok(received) => return Ok(received),
                Err(refused) => refusal = refused,
            }
        }
        Err(refusal)
    }
}

fn verify(
    settings: &SourceSettings,
    secret: &str,
    request: SourceRequest<'_>,
    now_seconds: i64,
) -> Result<ReceivedSource, SourceRefusal> {
    let scheme = settings.scheme;
    if request.secret_in_path.is_some() != (scheme == SourceScheme::None) {
        return Err(SourceRefusal::SecretInPath);
    }
    if request.method != Method::POST && scheme != SourceScheme::Wecom {
        return Err(SourceRefusal::Method);
    }
    let signed = InboundRequest {
        headers: request.headers,
        body: request.body,
        now_seconds,
    };
    match scheme {
        SourceScheme::StandardWebhooks => {
            let secret: SigningSecret = secret.parse().map_err(|_| SourceRefusal::Unopened)?;
            let headers = SignedHeaders::of(request.headers).map_err(InboundError::from)?;
            let verified = secret.verify(headers, request.body, now_seconds);
            verified.map_err(InboundError::from)?;
        }
        SourceScheme::Github => inbound::hmac_header(secret, inbound::GITHUB, signed)?,
        SourceScheme::Slack => {
            inbound::slack(secret, signed)?;
            if let Some(challenge) = challenge_of(request.body) {
                return Ok(ReceivedSource::Challenge(challenge));
            }
        }
        SourceScheme::Stripe => inbound::stripe(secret, signed)?,
        SourceScheme::Feishu => return feishu(secret, request, signed),
        SourceScheme::Dingtalk => inbound::dingtalk(secret, signed)?,
        SourceScheme::Wecom => return wecom(secret, request, now_seconds),
        SourceScheme::Hmac => {
            let encoding = match settings.encoding.unwrap_or_default() {
                SignatureEncoding::Hex => TagEncoding::Hex,
                SignatureEncoding::Base64 => TagEncoding::Base64,
            };
            let header = inbound::HmacHeader {
                name: settings.header.as_deref().unwrap_or_default(),
                prefix: settings.prefix.as_deref().unwrap_or_default(),
                encoding,
            };
            inbound::hmac_header(secret, header, signed)?;
        }
        SourceScheme::None => {
            inbound::secret_path(secret, request.secret_in_path.unwrap_or_default())?;
        }
    }
    Ok(content(request, request.body.to_vec()))
}

fn content(request: SourceRequest<'_>, body: Vec<u8>) -> ReceivedSource {
    ReceivedSource::Content(SourceContent {
        body,
        headers: request.headers.clone(),
        query: request.query.to_owned(),
    })
}

/// The answer to Slack's and Feishu's check of an address; `None`: the body is another message.
fn challenge_of(body: &[u8]) -> Option<SourceChallenge> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let is_check = body["type"] == "url_verification";
    let challenge = body["challenge"].as_str().filter(|_| is_check)?;
    Some(SourceChallenge::Json(json!({"challenge": challenge})))
}

fn feishu(
    secret: &str,
    request: SourceRequest<'_>,
    signed: InboundRequest<'_>,
) -> Result<ReceivedSource, SourceRefusal> {
    let is_signed = request.headers.contains_key(inbound::FEISHU_SIGNATURE);
    if is_signed {
        inbound::feishu(secret, signed)?;
    }
    let body: Value = serde_json::from_slice(request.body).unwrap_or_default();
    let encrypted = body["encrypt"].as_str();
    let encrypted = encrypted.ok_or(SourceRefusal::NotEncrypted)?;
    let plain = inbound::feishu_decrypt(secret, encrypted)?;
    match challenge_of(&plain) {
        // Feishu does not sign the check of an address. Its encryption shows the same key.
        Some(challenge) => Ok(ReceivedSource::Challenge(challenge)),
        None if is_signed => Ok(content(request, plain)),
        None => Err(InboundError::NoSignature.into()),
    }
}

fn wecom(
    secret: &str,
    request: SourceRequest<'_>,
    now_seconds: i64,
) -> Result<ReceivedSource, SourceRefusal> {
    let secret = WecomSecret::parse(secret).map_err(|_| SourceRefusal::Unopened)?;
    let pairs: Vec<_> = url::form_urlencoded::parse(request.query.as_bytes())
        .take(16)
        .collect();
    let value = |name: &'static str| {
        let mut found = pairs.iter().filter(|(key, _)| key == name);
        let value = found.next().map(|(_, value)| &**value);
        value.ok_or(InboundError::Missing(name))
    };
    let query = WecomQuery {
        msg_signature: value("msg_signature")?,
        timestamp: value("timestamp")?,
        nonce: value("nonce")?,
    };
    if request.method == Method::GET {
        let echo = secret.open(query, value("echostr")?, now_seconds)?;
        let echo = String::from_utf8(echo).map_err(|_| InboundError::Undecipherable)?;
        return Ok(ReceivedSource::Challenge(SourceChallenge::Text(echo)));
    }
    let body = str::from_utf8(request.body).ok().and_then(read_xml);
    let encrypted = body.as_ref().and_then(|body| body["Encrypt"].as_str());
    let encrypted = encrypted.ok_or(SourceRefusal::NotEncrypted)?;
    let plain = secret.open(query, encrypted, now_seconds)?;
    Ok(content(request, plain))
}
