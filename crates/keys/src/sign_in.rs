//! Sign-in of people: tokens of an `OpenID` provider, and the role that their claims give.

use std::time::Duration;

use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse,
};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode_header};
use protocol::JsonObject;
use protocol::api_key::{ApiKeySpec, KeyRole};
use protocol::id::WorkspaceId;
use serde_json::Value;

/// Difference between the clocks of provider and gateway.
const LEEWAY_SECONDS: i64 = 60;
/// Maximum bytes of a token of a provider.
const MAX_BYTES: usize = 16 * 1024;
/// Maximum bytes of a subject, which is recorded with changes.
const SUBJECT_BYTES: usize = 255;
/// Maximum bytes of the name of an API key.
const NAME_BYTES: usize = 128;

/// Sign-in with one `OpenID` provider.
#[derive(Clone, Debug)]
pub struct SignInRules {
    /// `iss` of the tokens, byte by byte.
    pub issuer: String,
    /// A value of `aud`.
    pub audience: String,
    /// Public client of the provider, for the terminal's device flow and the console's code flow; its ID tokens have it
    /// as `aud`. `None`: neither flow.
    pub client_id: Option<String>,
    /// Scopes of both flows.
    pub scopes: Vec<String>,
    pub workspace: WorkspaceId,
    /// Lifetime of a session.
    pub session: Duration,
    /// The first that matches decides. A person without a match is refused.
    pub roles: Vec<RoleRule>,
}

/// The role of people with a claim.
#[derive(Clone, Debug)]
pub struct RoleRule {
    /// Name of a claim: a text, a list of texts, or `true`.
    pub claim: String,
    pub value: String,
    pub role: KeyRole,
    /// Names or ids of the only agents. `None`: all.
    pub agents: Option<Vec<String>>,
}

/// A person who has signed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedIn {
    /// `sub`: the provider's id of the person.
    pub subject: String,
    /// The session as an API key.
    pub key: ApiKeySpec,
}

/// Cause of a refused token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignInFault {
    #[error("it is not a signed token of at most 16 KiB")]
    Malformed,
    #[error("its key is not among the keys of the provider")]
    UnknownKey,
    #[error("its key is not usable for signatures")]
    UnusableKey,
    #[error("its signature does not match")]
    Signature,
    #[error("it is of another issuer")]
    Issuer,
    #[error("it is for another audience")]
    Audience,
    #[error("it has expired, or is not valid yet")]
    Time,
    #[error("it names no subject")]
    Subject,
    /// The token is valid.
    #[error("no rule of auth.oidc.roles matches its claims")]
    NoRole,
}

impl SignInFault {
    /// True if the token is valid, and its subject has no role.
    pub fn is_of_valid_token(self) -> bool {
        self == Self::NoRole
    }
}

/// Key id in the header of a token. `None`: the provider has a single key.
pub fn key_id(token: &str) -> Result<Option<String>, SignInFault> {
    if token.len() > MAX_BYTES {
        return Err(SignInFault::Malformed);
    }
    let header = decode_header(token).map_err(|_| SignInFault::Malformed)?;
    Ok(header.kid)
}

/// The key of a token. `None`: the set does not have it.
pub fn key_of<'a>(keys: &'a JwkSet, kid: Option<&str>) -> Option<&'a Jwk> {
    match (kid, &keys.keys[..]) {
        (Some(kid), _) => keys.find(kid),
        (None, [only]) => Some(only),
        (None, _) => None,
    }
}

impl SignInRules {
    /// Verifies a token with the key that it names, and finds the role of its subject. `now`: epoch seconds.
    pub fn verify(&self, token: &str, key: &Jwk, now: i64) -> Result<SignedIn, SignInFault> {
        let algorithm = algorithm_of(key).ok_or(SignInFault::UnusableKey)?;
        let decoding = DecodingKey::from_jwk(key).map_err(|_| SignInFault::UnusableKey)?;
        // Of the key: the header of a token must not choose how it is checked.
        let mut validation = Validation::new(algorithm);
        // All claims are checked here: the library accepts absent ones.
        validation.validate_exp = false;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        let claims = jsonwebtoken::decode::<JsonObject>(token, &decoding, &validation);
        let claims = claims.map_err(|_| SignInFault::Signature)?.claims;
        self.check_claims(&claims, now)?;
        let subject = claims
            .get("sub")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if subject.is_empty() || subject.len() > SUBJECT_BYTES {
            return Err(SignInFault::Subject);
        }
        let rule = self.roles.iter().find(|rule| rule.matches(&claims));
        let rule = rule.ok_or(SignInFault::NoRole)?;
        let session = i64::try_from(self.session.as_secs()).unwrap_or(i64::MAX);
        Ok(SignedIn {
            subject: subject.to_owned(),
            key: ApiKeySpec {
                name: name_of(&claims, subject),
                role: rule.role,
                expires_at: Some(now.saturating_add(session)),
                agents: rule.agents.clone(),
                limits: None,
            },
        })
    }

    fn check_claims(&self, claims: &JsonObject, now: i64) -> Result<(), SignInFault> {
        if claims.get("iss").and_then(Value::as_str) != Some(&self.issuer) {
            return Err(SignInFault::Issuer);
        }
        let accepted = [Some(&self.audience), self.client_id.as_ref()];
        let mut accepted = accepted.into_iter().flatten();
        let audience = claims.get("aud").unwrap_or(&Value::Null);
        if !accepted.any(|name| contains(audience, name)) {
            return Err(SignInFault::Audience);
        }
        let time = |name: &str| claims.get(name).and_then(Value::as_i64);
        let is_live = time("exp").is_some_and(|expiry| expiry > now - LEEWAY_SECONDS);
        // Absent times do not bound the token, other than its expiry.
        let has_begun = ["nbf", "iat"].iter().all(|name| {
            let begins_at = if claims.contains_key(*name) {
                time(name)
            } else {
                Some(now)
            };
            begins_at.is_some_and(|at| at <= now + LEEWAY_SECONDS)
        });
        if is_live && has_begun {
            Ok(())
        } else {
            Err(SignInFault::Time)
        }
    }
}

impl RoleRule {
    fn matches(&self, claims: &JsonObject) -> bool {
        let claim = claims.get(&self.claim);
        claim.is_some_and(|claim| contains(claim, &self.value))
    }
}

/// True for this text, for a list with it, and for `true` if the text is "true".
fn contains(claim: &Value, value: &str) -> bool {
    match claim {
        Value::String(text) => text == value,
        Value::Bool(flag) => *flag && value == "true",
        Value::Array(list) => list.iter().any(|one| one.as_str() == Some(value)),
        _ => false,
    }
}

/// The only algorithm of a key. `None`: the key must not verify tokens.
fn algorithm_of(key: &Jwk) -> Option<Algorithm> {
    if !matches!(
        key.common.public_key_use,
        None | Some(PublicKeyUse::Signature)
    ) {
        return None;
    }
    let default = match &key.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(ec) => match ec.curve {
            EllipticCurve::P256 => Algorithm::ES256,
            EllipticCurve::P384 => Algorithm::ES384,
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(_) => Algorithm::EdDSA,
        // A shared secret is not in a public set of keys.
        _ => return None,
    };
    let Some(named) = key.common.key_algorithm else {
        return Some(default);
    };
    match (default, named) {
        (Algorithm::RS256, KeyAlgorithm::RS256) => Some(Algorithm::RS256),
        (Algorithm::RS256, KeyAlgorithm::RS384) => Some(Algorithm::RS384),
        (Algorithm::RS256, KeyAlgorithm::RS512) => Some(Algorithm::RS512),
        (Algorithm::RS256, KeyAlgorithm::PS256) => Some(Algorithm::PS256),
        (Algorithm::RS256, KeyAlgorithm::PS384) => Some(Algorithm::PS384),
        (Algorithm::RS256, KeyAlgorithm::PS512) => Some(Algorithm::PS512),
        (Algorithm::ES256, KeyAlgorithm::ES256)
        | (Algorithm::ES384, KeyAlgorithm::ES384)
        | (Algorithm::EdDSA, KeyAlgorithm::EdDSA) => Some(default),
        _ => None,
    }
}

/// Email, user name or subject, as the name of the session's key.
fn name_of(claims: &JsonObject, subject: &str) -> String {
    let named = ["email", "preferred_username", "name"].iter();
    let mut named = named.filter_map(|claim| claims.get(*claim).and_then(Value::as_str));
    let is_name = |text: &&str| {
        !text.is_empty() && text.len() <= NAME_BYTES && !text.chars().any(char::is_control)
    };
    let name = named.find(is_name).or(Some(subject).filter(is_name));
    name.unwrap_or("person").to_owned()
}

#[cfg(test)]
mod tests;
