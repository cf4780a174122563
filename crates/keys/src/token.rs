//! The run token: a JWS that lives as long as its run (contracts §10, host API §3).

// By its path: the fuzz targets compile this file once more, under another name.
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

/// The longest life of one token, in seconds.
pub const LIFETIME_SECONDS: i64 = 900;
const LEEWAY_SECONDS: i64 = 5;
// A key that signs no more verifies until the last of its tokens is over, on a slow clock, too.
const _: () =
    assert!(KeyPurpose::RunToken.overlap_ms() > (LIFETIME_SECONDS + LEEWAY_SECONDS) * 1000);
const MOST_BYTES: usize = 2048;
const TOKEN_TYPE: &str = "run+jwt";

/// What a token says. All claims are required, none other is taken.
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
    /// The SHA-256 of the authorization snapshot.
    pub res: String,
    pub iat: i64,
    pub nbf: i64,
    pub exp: i64,
}

/// What a token is minted from.
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

/// A fresh token and its end in epoch seconds. Its `Debug` shows no token.
pub struct Minted {
    pub token: String,
    pub expires_at: i64,
}

/// Why a token opens nothing. Callers all get the same 401; this goes to the audit alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFault {
    TooLong,
    Header,
    UnknownKey,
    Signature,
    Audience,
    Time,
}

/// The maker and judge of run tokens. Its keys change while it works.
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

/// The key that signs, opened once, and the head of all that it signs.
struct Signing {
    pair: Ed25519KeyPair,
    /// Encoded, with the dot behind it.
    header: String,
}

impl Signing {
    fn new(kid: &str, pair: Ed25519KeyPair) -> Result<Self, KeyFault> {
        let mut header = Header::new(Algorithm::EdDSA);
        header.typ = Some(TOKEN_TYPE.to_owned());
        header.kid = Some(kid.to_owned());
        let header = serde_json::to_vec(&header).map_err(|_| KeyFault)?;
        let mut header = URL_SAFE_NO_PAD.encode(header);
        header.push('.');
        Ok(Self { pair, header })
    }

    /// The compact form of RFC 7515.
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

/// A signing key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the key is unusable")]
pub struct KeyFault;

/// A new key: its id and its PKCS#8 document.
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
            let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).map_err(|_| KeyFault)?;
            verifying.insert(
                kid.clone(),
                DecodingKey::from_ed_der(pair.public_key().as_ref()),
            );
            jwks.push(jwk);
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
    /// Opens the keys, PKCS#8 documents: the first one signs, all verify. `public_url` has no slash at
    /// its end.
    pub fn new(public_url: &str, keys: &[Vec<u8>]) -> Result<Self, KeyFault> {
        Ok(Self {
            issuer: public_url.to_owned(),
            audience: format!("{public_url}/host/v1"),
            keys: RwLock::new(Arc::new(TokenKeys::open(keys)?)),
        })
    }

    /// From now on these keys and no others: the first one signs, all verify.
    pub fn replace(&self, keys: &[Vec<u8>]) -> Result<(), KeyFault> {
        let keys = Arc::new(TokenKeys::open(keys)?);
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    fn keys(&self) -> Arc<TokenKeys> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&keys)
    }

    /// The base URL of the host API: the token's audience.
    pub fn audience(&self) -> &str {
        &self.audience
    }

    /// The public keys of all that verify.
    pub fn jwks(&self) -> JwkSet {
        self.keys().jwks.clone()
    }

    /// Mints a token that ends with the deadline, 15 minutes from now at the latest.
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

    /// Verifies everything that the token itself can show. Whether its run lives is asked elsewhere.
    ///
    /// A signature is verified once for each set of keys; the time is looked at with every call.
    pub fn verify(&self, token: &str, now: i64) -> Result<Arc<Claims>, TokenFault> {
        if token.len() > MOST_BYTES {
            return Err(TokenFault::TooLong);
        }
        let keys = self.keys();
        let hash = TokenHash::of(token);
        let claims = if let Some(claims) = keys.verified.find(hash) {
            claims
        } else {
            let claims = Arc::new(self.verify_signed(&keys, token)?);
            keys.verified.remember(hash, &claims, now);
            claims
        };
        if is_timely(&claims, now) {
            Ok(claims)
        } else {
            Err(TokenFault::Time)
        }
    }

    /// What is true of a token for ever, under these keys.
    fn verify_signed(&self, keys: &TokenKeys, token: &str) -> Result<Claims, TokenFault> {
        let kid = read_header(token).ok_or(TokenFault::Header)?;
        let key = keys.verifying.get(&kid).ok_or(TokenFault::UnknownKey)?;
        let mut validation = Validation::new(Algorithm::EdDSA);
        // Every claim is checked by us, strictly: the library's own checks let absent ones pass.
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

/// The key id of a header that holds `alg`, `typ` and `kid`, as we write them, and nothing else. What
/// cannot be a thumbprint is no key id: nobody goes and looks for it.
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
