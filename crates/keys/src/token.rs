//! Run token: a JWS that expires with its run.

// With a path, because the fuzz targets include this file under another name.
#[path = "token/verified.rs"]
mod verified;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::signing_key::KeyPurpose;
use jsonwebtoken::jwk::{Jwk, JwkSet, KeyAlgorithm, PublicKeyUse, ThumbprintHash};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use protocol::id::{RunId, RunnerId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use verified::{TokenHash, Verified};

/// Maximum lifetime of a token, in seconds.
pub const LIFETIME_SECONDS: i64 = 900;
const LEEWAY_SECONDS: i64 = 5;
// A retired key verifies until its last token has expired, clock differences included.
const _: () =
    assert!(KeyPurpose::RunToken.overlap_ms() > (LIFETIME_SECONDS + LEEWAY_SECONDS) * 1000);
const MAX_BYTES: usize = 2048;
const TOKEN_TYPE: &str = "run+jwt";

/// Claims of a run token. All are required, others are rejected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    pub iss: String,
    pub aud: String,
    pub sub: RunnerId,
    pub jti: Uuid,
    pub run_id: RunId,
    pub attempt: u32,
    pub ws: String,
    pub scope: String,
    /// SHA-256 of the authorization snapshot.
    pub res: String,
    pub iat: i64,
    pub nbf: i64,
    pub exp: i64,
}

/// Input of a new token.
#[derive(Clone, Debug)]
pub struct TokenSubject<'a> {
    pub runner_id: &'a RunnerId,
    pub run_id: RunId,
    pub attempt: u32,
    pub workspace: &'a str,
    pub scope: String,
    pub res: &'a str,
    /// Epoch seconds, rounded up.
    pub deadline_at: i64,
}

/// New token with its expiry in epoch seconds. `Debug` does not show the token.
pub struct Minted {
    pub token: String,
    pub expires_at: i64,
}

/// Cause of an invalid token, for the audit only: every caller gets the same 401.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFault {
    TooLong,
    Header,
    UnknownKey,
    Signature,
    Audience,
    Time,
}

/// Issuer and verifier of run tokens. Keys may be replaced at any time.
pub struct RunTokens {
    issuer: String,
    audience: String,
    keys: RwLock<Arc<TokenKeys>>,
}

struct TokenKeys {
    signing: Signing,
    verifying: HashMap<String, DecodingKey>,
    jwks: JwkSet,
    verified: Verified,
}

/// Opened signing key with its token header.
struct Signing {
    pair: Ed25519KeyPair,
    /// Encoded, with the dot after it.
    header: String,
}

impl Signing {
    fn new(kid: &str, pair: Ed25519KeyPair) -> Result<Self, KeyFault> {
        let mut header = Header::new(Algorithm::EdDSA);
        header.typ = Some(TOKEN_TYPE.to_owned());
        header.kid = Some(kid.to_owned());
        // Encoded once: the header is equal in all tokens of a key.
        let header = serde_json::to_vec(&header).map_err(|_| KeyFault)?;
        let mut header = URL_SAFE_NO_PAD.encode(header);
        header.push('.');
        Ok(Self { pair, header })
    }

    /// Compact serialisation of RFC 7515.
    fn sign(&self, claims: &Claims) -> Result<String, KeyFault> {
        let claims = serde_json::to_vec(claims).map_err(|_| KeyFault)?;
        let mut token = self.header.clone();
        URL_SAFE_NO_PAD.encode_string(claims, &mut token);
        let signature = self.pair.sign(token.as_bytes());
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }
}

/// Unusable signing key.
#[derive(Debug, thiserror::Error)]
#[error("the key is unusable")]
pub struct KeyFault;

/// Generates a key: its id and its PKCS#8 document.
pub fn generate_key() -> Result<(String, Vec<u8>), KeyFault> {
    let document = Ed25519KeyPair::generate_pkcs8v1(&SystemRandom::new())
        .map_err(|_| KeyFault)?
        .as_ref()
        .to_vec();
    let (kid, _) = open_key(&document)?;
    Ok((kid, document))
}

fn open_key(pkcs8: &[u8]) -> Result<(String, Jwk), KeyFault> {
    let key = EncodingKey::from_ed_der(pkcs8);
    let mut jwk = Jwk::from_encoding_key(&key, Algorithm::EdDSA).map_err(|_| KeyFault)?;
    let kid = jwk
        .thumbprint(ThumbprintHash::SHA256)
        .map_err(|_| KeyFault)?;
    jwk.common.key_id = Some(kid.clone());
    jwk.common.public_key_use = Some(PublicKeyUse::Signature);
    jwk.common.key_algorithm = Some(KeyAlgorithm::EdDSA);
    Ok((kid, jwk))
}

impl TokenKeys {
    fn open(keys: &[Vec<u8>]) -> Result<Self, KeyFault> {
        let mut signing = None;
        let mut verifying = HashMap::new();
        let mut jwks = Vec::new();
        for pkcs8 in keys {
            let (kid, jwk) = open_key(pkcs8)?;
            // PKCS#8 version 1 contains no public key to compare with.
            let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).map_err(|_| KeyFault)?;
            verifying.insert(
                kid.clone(),
                DecodingKey::from_ed_der(pair.public_key().as_ref()),
            );
            jwks.push(jwk);
            // The first key signs, the others only verify.
            if signing.is_none() {
                signing = Some(Signing::new(&kid, pair)?);
            }
        }
        Ok(Self {
            signing: signing.ok_or(KeyFault)?,
            verifying,
            jwks: JwkSet { keys: jwks },
            verified: Verified::default(),
        })
    }
}

impl RunTokens {
    /// Opens PKCS#8 keys: the first signs, all verify. `public_url` has no slash at its end.
    pub fn new(public_url: &str, keys: &[Vec<u8>]) -> Result<Self, KeyFault> {
        Ok(Self {
            issuer: public_url.to_owned(),
            audience: format!("{public_url}/host/v1"),
            keys: RwLock::new(Arc::new(TokenKeys::open(keys)?)),
        })
    }

    /// Replaces all keys: the first signs, all verify.
    pub fn replace(&self, keys: &[Vec<u8>]) -> Result<(), KeyFault> {
        // Opened before the lock is taken: opening takes long, and each request reads the keys.
        let keys = Arc::new(TokenKeys::open(keys)?);
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    fn keys(&self) -> Arc<TokenKeys> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&keys)
    }

    /// Base URL of the host API: the token's audience.
    pub fn audience(&self) -> &str {
        &self.audience
    }

    /// Public keys of all verifying keys.
    pub fn jwks(&self) -> JwkSet {
        self.keys().jwks.clone()
    }

    /// Issues a token that expires at the deadline, at most 15 minutes from now.
    pub fn mint(&self, subject: &TokenSubject<'_>, now: i64) -> Result<Minted, KeyFault> {
        let expires_at = subject.deadline_at.clamp(now + 1, now + LIFETIME_SECONDS);
        let claims = Claims {
            iss: self.issuer.clone(),
            aud: self.audience.clone(),
            sub: subject.runner_id.clone(),
            jti: Uuid::now_v7(),
            run_id: subject.run_id,
            attempt: subject.attempt,
            ws: subject.workspace.to_owned(),
            scope: subject.scope.clone(),
            res: subject.res.to_owned(),
            iat: now,
            nbf: now,
            exp: expires_at,
        };
        let keys = self.keys();
        let token = keys.signing.sign(&claims)?;
        Ok(Minted { token, expires_at })
    }

    /// Verifies signature, claims and time. The caller checks that the run is live.
    ///
    /// A signature is verified once per set of keys; time is checked on every call.
    pub fn verify(&self, token: &str, now: i64) -> Result<Arc<Claims>, TokenFault> {
        // Before the hash and the parser: unauthenticated callers must not cause much work.
        if token.len() > MAX_BYTES {
            return Err(TokenFault::TooLong);
        }
        let keys = self.keys();
        let hash = TokenHash::of(token);
        let claims = if let Some(claims) = keys.verified.find(hash) {
            claims
        } else {
            let claims = Arc::new(self.verify_signed(&keys, token)?);
            // Only after the signature check: forged tokens must not fill the cache.
            keys.verified.remember(hash, &claims, now);
            claims
        };
        // The time is not cached: a token may expire between two calls.
        if is_timely(&claims, now) {
            Ok(claims)
        } else {
            Err(TokenFault::Time)
        }
    }

    /// Checks that do not depend on time, under these keys.
    fn verify_signed(&self, keys: &TokenKeys, token: &str) -> Result<Claims, TokenFault> {
        let kid = read_header(token).ok_or(TokenFault::Header)?;
        let key = keys.verifying.get(&kid).ok_or(TokenFault::UnknownKey)?;
        let mut validation = Validation::new(Algorithm::EdDSA);
        // All claims are checked here: the library accepts absent ones.
        validation.validate_exp = false;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        let claims = jsonwebtoken::decode::<Claims>(token, key, &validation)
            .map_err(|_| TokenFault::Signature)?
            .claims;
        if claims.iss != self.issuer || claims.aud != self.audience {
            return Err(TokenFault::Audience);
        }
        Ok(claims)
    }
}

fn is_timely(claims: &Claims, now: i64) -> bool {
    let lifetime = claims.exp.checked_sub(claims.iat);
    claims.exp > now - LEEWAY_SECONDS
        && claims.nbf <= now + LEEWAY_SECONDS
        && claims.iat <= now + LEEWAY_SECONDS
        && lifetime.is_some_and(|lifetime| (0..=LIFETIME_SECONDS).contains(&lifetime))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StrictHeader {
    alg: String,
    typ: String,
    kid: String,
}

/// Key id of a header with exactly `alg`, `typ` and `kid` in our form. Other values than thumbprints are
/// rejected without a lookup.
fn read_header(token: &str) -> Option<String> {
    let bytes = URL_SAFE_NO_PAD.decode(token.split('.').next()?).ok()?;
    let header: StrictHeader = serde_json::from_slice(&bytes).ok()?;
    let is_thumbprint = header.kid.len() == 43
        && URL_SAFE_NO_PAD
            .decode(&header.kid)
            .is_ok_and(|hash| hash.len() == 32);
    (header.alg == "EdDSA" && header.typ == TOKEN_TYPE && is_thumbprint).then_some(header.kid)
}

#[cfg(test)]
mod tests;
