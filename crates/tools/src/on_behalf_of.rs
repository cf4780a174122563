//! Calls on behalf of an actor: its token is exchanged (RFC 8693) for one that the tool accepts.
//!
//! Exchanged tokens stay in memory until shortly before their end. The cache key has workspace, actor, token and
//! settings, so that no actor gets the token of another.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clock::Clock;
use domain::actor_token::ActorToken;
use egress::discovery::{PROVIDER_TIMEOUT, discover};
use egress::redact::Redactor;
use egress::upstream::UpstreamError;
use egress::{Egress, EgressError, RequestBuilder, read_up_to};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method};
use protocol::context::CredentialType;
use protocol::id::WorkspaceId;
use protocol::peer_text::shown;
use secrecy::{ExposeSecret as _, SecretString};
use secrets::digest::sha256_hex;
use serde::Deserialize;
use serde_json::json;
use url::form_urlencoded::{self, Serializer};

const GRANT: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const TOKEN_TYPE: &str = "urn:ietf:params:oauth:token-type:";
/// Maximum exchanged tokens in memory. Full: the one that ends first is dropped.
const MAX_TOKENS: usize = 4096;
/// Maximum bytes of an answer of the token endpoint.
const ANSWER_BYTES: usize = 64 * 1024;
/// Time after which the metadata of an issuer is read again.
const FRESH_MS: i64 = 3600 * 1000;
/// Time before its end at which a token is exchanged anew; at most a tenth of its life.
const MARGIN_MS: i64 = 30 * 1000;
/// Time after the last use at which a token is forgotten.
const IDLE_MS: i64 = 5 * 60 * 1000;
/// Interval at which ended and idle tokens are forgotten.
pub(super) const FORGET_INTERVAL: Duration = Duration::from_mins(1);

/// `credential.on_behalf_of` of a tool or server. `Debug` omits the secret.
#[derive(Clone, Debug)]
pub struct OnBehalfOf {
    /// Issuer whose token endpoint exchanges the tokens.
    pub issuer: String,
    /// Service that accepts the exchanged token.
    pub audience: String,
    pub scopes: Vec<String>,
    /// The gateway as a client of the issuer.
    pub client_id: String,
    /// `None`: a public client.
    pub client_secret: Option<SecretString>,
}

/// The actor for whom a run calls tools.
#[derive(Clone, Copy)]
pub struct Behalf<'a> {
    pub workspace: &'a WorkspaceId,
    pub token: &'a ActorToken,
}

/// An exchanged token, as a header and for redaction.
pub(super) struct Bearer {
    pub(super) header: HeaderValue,
    pub(super) secret: SecretString,
    key: String,
}

/// Exchanges tokens, and caches them.
pub(super) struct TokenExchange {
    egress: Egress,
    clock: Clock,
    /// Token endpoints by issuer.
    endpoints: Mutex<HashMap<String, CachedMetadata>>,
    /// By a hash of everything that the token depends on.
    tokens: Mutex<HashMap<String, CachedToken>>,
}

#[derive(Clone)]
struct CachedMetadata {
    endpoint: TokenEndpoint,
    read_at: i64,
}

/// The used members of an issuer's metadata.
#[derive(Clone, Deserialize)]
struct TokenEndpoint {
    token_endpoint: String,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

struct CachedToken {
    token: SecretString,
    usable_until: i64,
    used_at: i64,
}

/// Answer of a token endpoint: a token or an error.
#[derive(Deserialize)]
struct TokenAnswer {
    access_token: Option<SecretString>,
    token_type: Option<String>,
    expires_in: Option<f64>,
    error: Option<String>,
    error_description: Option<String>,
}

impl TokenExchange {
    pub(super) fn new(egress: Egress, clock: Clock) -> Self {
        Self {
            egress,
            clock,
            endpoints: Mutex::default(),
            tokens: Mutex::default(),
        }
    }

    /// The token for a call, cached or exchanged now.
    pub(super) async fn bearer(
        &self,
        spec: &OnBehalfOf,
        behalf: Option<Behalf<'_>>,
        redactor: &Redactor,
    ) -> Result<Bearer, UpstreamError> {
        let behalf = behalf.ok_or_else(without_token)?;
        let key = cache_key(spec, behalf);
        if let Some(token) = self.find(&key) {
            return bearer(key, token);
        }
        let answer = self.exchange(spec, behalf.token).await?;
        // The issuer may repeat the token in its error.
        let redactor = redactor.with(behalf.token.token.as_str().into());
        let (token, lifetime) = token_of(spec, answer, &redactor)?;
        if let Some(lifetime) = lifetime {
            self.keep_token(&key, token.clone(), lifetime);
        }
        bearer(key, token)
    }

    /// Drops a token that the tool refused.
    pub(super) fn forget(&self, bearer: &Bearer) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.remove(&bearer.key);
    }

    /// Drops ended and idle tokens.
    pub(super) fn forget_idle(&self) {
        let now = self.clock.now_ms();
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.retain(|_, token| now < token.usable_until && now - token.used_at < IDLE_MS);
    }

    fn find(&self, key: &str) -> Option<SecretString> {
        let now = self.clock.now_ms();
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let found = tokens.get_mut(key);
        let found = found.filter(|token| now < token.usable_until)?;
        found.used_at = now;
        Some(found.token.clone())
    }

    fn keep_token(&self, key: &str, token: SecretString, lifetime_ms: i64) {
        let now = self.clock.now_ms();
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() >= MAX_TOKENS {
            let first = tokens.iter().min_by_key(|(_, token)| token.usable_until);
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                tokens.remove(&first);
            }
        }
        let cached = CachedToken {
            token,
            usable_until: now + lifetime_ms - MARGIN_MS.min(lifetime_ms / 10),
            used_at: now,
        };
        tokens.insert(key.to_owned(), cached);
    }

    async fn endpoint(&self, issuer: &str) -> Result<TokenEndpoint, UpstreamError> {
        let now = self.clock.now_ms();
        let cached = {
            let endpoints = self.endpoints.lock();
            let endpoints = endpoints.unwrap_or_else(PoisonError::into_inner);
            endpoints.get(issuer).cloned()
        };
        if let Some(cached) = cached.filter(|cached| now - cached.read_at < FRESH_MS) {
            return Ok(cached.endpoint);
        }
        let document = discover(&self.egress, issuer).await;
        let document = document.map_err(|error| away(issuer, &error.to_string()))?;
        let endpoint: TokenEndpoint = serde_json::from_value(document)
            .map_err(|_| away(issuer, "its discovery document has no token_endpoint"))?;
        let cached = CachedMetadata {
            endpoint: endpoint.clone(),
            read_at: now,
        };
        // Bounded by the issuers of the configuration.
        let mut endpoints = self
            .endpoints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        endpoints.insert(issuer.to_owned(), cached);
        Ok(endpoint)
    }

    async fn exchange(
        &self,
        spec: &OnBehalfOf,
        token: &ActorToken,
    ) -> Result<TokenAnswer, UpstreamError> {
        let issuer = &spec.issuer;
        let endpoint = self.endpoint(issuer).await?;
        let failed = |error: EgressError| away(issuer, &error.in_words());
        let url = self
            .egress
            .check_url(&endpoint.token_endpoint)
            .map_err(failed)?;
        let request = self.egress.request(Method::POST, &url).map_err(failed)?;
        let request = request
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .timeout(PROVIDER_TIMEOUT);
        let request = endpoint.with_form(request, spec, token);
        let response = self.egress.send(request).await.map_err(failed)?;
        let status = response.status();
        if status.is_server_error() || status.as_u16() == 429 {
            return Err(away(issuer, &format!("HTTP {}", status.as_u16())));
        }
        let body = read_up_to(response, ANSWER_BYTES).await.map_err(failed)?;
        let answer: Option<TokenAnswer> = serde_json::from_slice(&body).ok();
        let answer = answer.filter(|answer| status.is_success() || answer.error.is_some());
        answer.ok_or_else(|| {
            let status = status.as_u16();
            away(
                issuer,
                &format!("HTTP {status}, without a token or an error of OAuth"),
            )
        })
    }
}

impl TokenEndpoint {
    /// Adds the form of an exchange, and the client's credential.
    fn with_form(
        &self,
        request: RequestBuilder,
        spec: &OnBehalfOf,
        token: &ActorToken,
    ) -> RequestBuilder {
        let mut form = form(spec, token);
        let Some(secret) = &spec.client_secret else {
            form.append_pair("client_id", &spec.client_id);
            return request.body(form.finish());
        };
        let secret = secret.expose_secret();
        if self.takes_basic() {
            let id = form_encoded(&spec.client_id);
            let request = request.basic_auth(id, Some(form_encoded(secret)));
            return request.body(form.finish());
        }
        form.append_pair("client_id", &spec.client_id);
        form.append_pair("client_secret", secret);
        request.body(form.finish())
    }

    /// True if the endpoint takes the client's secret in a header, as it does by default (RFC 8414).
    fn takes_basic(&self) -> bool {
        let methods = self.token_endpoint_auth_methods_supported.as_ref();
        methods.is_none_or(|methods| methods.iter().any(|method| method == "client_secret_basic"))
    }
}

fn form(spec: &OnBehalfOf, token: &ActorToken) -> Serializer<'static, String> {
    let kind = match token.kind {
        CredentialType::AccessToken => "access_token",
        CredentialType::IdToken => "id_token",
        CredentialType::Jwt => "jwt",
    };
    let mut form = Serializer::new(String::new());
    form.append_pair("grant_type", GRANT)
        .append_pair("subject_token", &token.token)
        .append_pair("subject_token_type", &format!("{TOKEN_TYPE}{kind}"))
        .append_pair("requested_token_type", &format!("{TOKEN_TYPE}access_token"))
        .append_pair("audience", &spec.audience);
    if !spec.scopes.is_empty() {
        form.append_pair("scope", &spec.scopes.join(" "));
    }
    form
}

/// Id and secret of a client are form-encoded in a header (RFC 6749, section 2.3.1).
fn form_encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// The token and its lifetime in milliseconds. Without a lifetime it is used once.
fn token_of(
    spec: &OnBehalfOf,
    answer: TokenAnswer,
    redactor: &Redactor,
) -> Result<(SecretString, Option<i64>), UpstreamError> {
    if let Some(error) = answer.error {
        let why = answer.error_description.unwrap_or_default();
        return Err(refused(spec, &error, &shown(&redactor.redact(&why))));
    }
    let kind = answer.token_type.unwrap_or_default();
    let token = answer
        .access_token
        .filter(|token| !token.expose_secret().is_empty());
    match token {
        Some(token) if kind.eq_ignore_ascii_case("bearer") => {
            #[expect(clippy::cast_possible_truncation, reason = "bounded before the cast")]
            let lifetime = |seconds: f64| (seconds.clamp(0.0, 86_400.0) * 1000.0) as i64;
            Ok((token, answer.expires_in.map(lifetime)))
        }
        _ => Err(away(&spec.issuer, "its answer has no bearer token")),
    }
}

fn refused(spec: &OnBehalfOf, error: &str, why: &str) -> UpstreamError {
    let issuer = &spec.issuer;
    let mut cause = shown(error);
    if !why.is_empty() {
        cause = format!("{cause}: {why}");
    }
    match error {
        // Errors about the gateway as a client.
        "invalid_client"
        | "unauthorized_client"
        | "unsupported_grant_type"
        | "invalid_scope"
        | "invalid_target" => UpstreamError::Actor {
            reason: "token_exchange_refused",
            message: format!(
                "{issuer} refuses token exchanges of the gateway ({cause}); its operator must check \
                 credential.on_behalf_of of the tool, and its client there"
            ),
        },
        _ => UpstreamError::Actor {
            reason: "actor_token_refused",
            message: format!(
                "{issuer} refuses the token of the actor ({cause}); post the event again with a valid \
                 actor.credential"
            ),
        },
    }
}

pub(super) fn without_token() -> UpstreamError {
    UpstreamError::Actor {
        reason: "actor_token_missing",
        message: "the tool is called on behalf of the actor only, and the run has no token of its actor; post the \
                  event again with actor.credential (a retry and an answer to a question have none, and an event of \
                  another actor takes it away)"
            .to_owned(),
    }
}

/// Nothing is sent to the tool.
fn away(issuer: &str, why: &str) -> UpstreamError {
    UpstreamError::Away(format!(
        "its authorization server {issuer} exchanges no token: {}",
        shown(why)
    ))
}

fn bearer(key: String, token: SecretString) -> Result<Bearer, UpstreamError> {
    let header = HeaderValue::try_from(format!("Bearer {}", token.expose_secret()));
    let mut header = header.map_err(|_| {
        UpstreamError::Away("its authorization server issues no proper token".to_owned())
    })?;
    header.set_sensitive(true);
    Ok(Bearer {
        header,
        secret: token,
        key,
    })
}

fn cache_key(spec: &OnBehalfOf, behalf: Behalf<'_>) -> String {
    let token = behalf.token;
    // JSON separates the parts without ambiguity.
    let parts = json!([
        behalf.workspace,
        token.actor_type,
        token.actor_id,
        token.kind,
        token.token,
        spec.issuer,
        spec.audience,
        spec.scopes,
        spec.client_id,
    ]);
    sha256_hex(parts.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> OnBehalfOf {
        OnBehalfOf {
            issuer: "https://id.example.com".to_owned(),
            audience: "crm".to_owned(),
            scopes: vec!["read".to_owned(), "write".to_owned()],
            client_id: "gate way".to_owned(),
            client_secret: None,
        }
    }

    fn token(actor: &str, token: &str) -> ActorToken {
        ActorToken {
            actor_type: "user".to_owned(),
            actor_id: actor.to_owned(),
            kind: CredentialType::AccessToken,
            token: token.to_owned(),
        }
    }

    #[test]
    fn cache_keys_separate_actors_and_settings() {
        let workspaces = ["a", "b"].map(|name| WorkspaceId(name.to_owned()));
        let tokens = [token("ana", "1"), token("ana", "2"), token("bob", "1")];
        let mut specs = vec![spec(); 5];
        specs[1].audience = "erp".to_owned();
        specs[2].scopes = vec!["read write".to_owned()];
        specs[3].issuer = "https://id.example.org".to_owned();
        specs[4].client_id = "other".to_owned();
        let mut keys = std::collections::HashSet::new();
        for workspace in &workspaces {
            for token in &tokens {
                for spec in &specs {
                    keys.insert(cache_key(spec, Behalf { workspace, token }));
                }
            }
        }
        assert_eq!(keys.len(), workspaces.len() * tokens.len() * specs.len());
    }

    #[test]
    fn forms_name_subject_audience_and_scopes() {
        let form = form(&spec(), &token("ana", "a+b&c")).finish();
        let expected = "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange&subject_token=a%2Bb%26c\
            &subject_token_type=urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Aaccess_token\
            &requested_token_type=urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Aaccess_token&audience=crm\
            &scope=read+write";
        assert_eq!(form, expected);
        assert_eq!(form_encoded("gate way:x"), "gate+way%3Ax");
    }

    #[test]
    fn answers_become_tokens_or_reasons() {
        let read = |answer: serde_json::Value| {
            let answer = serde_json::from_value(answer).unwrap();
            let redactor = Redactor::default().with("actor-token".into());
            token_of(&spec(), answer, &redactor).map(|(_, lifetime)| lifetime)
        };
        let bearer = json!({"access_token": "t", "token_type": "bearer", "expires_in": 60});
        assert_eq!(read(bearer).unwrap(), Some(60_000));
        let once = json!({"access_token": "t", "token_type": "Bearer"});
        assert_eq!(read(once).unwrap(), None);
        for (answer, reason) in [
            (
                json!({"error": "invalid_grant", "error_description": "actor-token is old"}),
                "actor_token_refused",
            ),
            (json!({"error": "invalid_client"}), "token_exchange_refused"),
            (
                json!({"access_token": "t", "token_type": "DPoP"}),
                "upstream_unreachable",
            ),
            (json!({"token_type": "Bearer"}), "upstream_unreachable"),
        ] {
            let error = read(answer).unwrap_err();
            assert_eq!(error.reason(), reason);
            assert!(
                error.had_no_effect() && !error.to_string().contains("actor-token"),
                "{error}"
            );
        }
    }

    #[test]
    fn tokens_are_forgotten_at_their_end() {
        let egress = Egress::new(Vec::new(), Duration::from_secs(1)).unwrap();
        let exchange = TokenExchange::new(egress, Clock::system());
        for number in 0..=MAX_TOKENS {
            exchange.keep_token(
                &number.to_string(),
                "t".into(),
                60_000 + 100 * i64::try_from(number).unwrap(),
            );
        }
        assert!(
            exchange.find("0").is_none(),
            "the first one to end made way"
        );
        assert!(exchange.find("1").is_some());
        exchange.keep_token("ended", "t".into(), 0);
        assert!(exchange.find("ended").is_none());
        exchange.forget_idle();
        assert_eq!(exchange.tokens.lock().unwrap().len(), MAX_TOKENS - 1);
    }
}
