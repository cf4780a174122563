//! Signs arbitrary tokens and cursors with the gateway's signing and master keys, as an attacker could.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use serde_json::{Value, json};

use super::database::rows;
use super::stage::OwnStage;

pub struct Forger {
    key: Ed25519KeyPair,
    pub kid: String,
    /// The secret that signs cursors.
    pub cursor_secret: Vec<u8>,
    /// Claims of the copied token.
    pub claims: Value,
}

pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

pub fn decode(text: &str) -> Vec<u8> {
    BASE64_URL_SAFE_NO_PAD.decode(text).unwrap()
}

/// A decoded part of a token: 0 is the header, 1 the claims.
pub fn part(token: &str, index: usize) -> Value {
    serde_json::from_slice(&decode(token.split('.').nth(index).unwrap())).unwrap()
}

impl Forger {
    /// Reads the gateway's keys, and copies the claims of `token`.
    pub async fn of(stage: &OwnStage, token: &str) -> Self {
        let master = stage.gateway.master_key();
        let kid = part(token, 0)["kid"].as_str().unwrap().to_owned();
        let url = stage.gateway.database_url();
        let sealed = |purpose: &str, of: &str| {
            let sql = format!("SELECT secret FROM signing_keys WHERE purpose = '{purpose}'{of}");
            let (url, master, purpose) = (url.clone(), master.clone(), purpose.to_owned());
            async move { open(&master, &purpose, &rows(&url, &sql).await[0]) }
        };
        let document = sealed("run_token", &format!(" AND kid = '{kid}'")).await;
        Self {
            key: Ed25519KeyPair::from_pkcs8_maybe_unchecked(&document).unwrap(),
            kid,
            cursor_secret: sealed("cursor", "").await,
            claims: part(token, 1),
        }
    }

    pub fn public_key(&self) -> &[u8] {
        self.key.public_key().as_ref()
    }

    pub fn header(&self) -> Value {
        json!({"alg": "EdDSA", "typ": "run+jwt", "kid": self.kid})
    }

    /// Signs any header and claims as the gateway signs.
    pub fn sign(&self, header: &str, claims: &str) -> String {
        let message = format!("{}.{}", encode(header), encode(claims));
        let signature = self.key.sign(message.as_bytes());
        format!("{message}.{}", encode(signature.as_ref()))
    }

    /// A token with changed header members; `"-"` removes a member.
    pub fn with_header(&self, change: &Value) -> String {
        let header = changed(self.header(), change);
        self.sign(&header.to_string(), &self.claims.to_string())
    }

    /// A token with changed claims; `"-"` removes a claim.
    pub fn with_claims(&self, change: &Value) -> String {
        let claims = changed(self.claims.clone(), change);
        self.sign(&self.header().to_string(), &claims.to_string())
    }

    /// A token signed by HMAC-SHA-256 with a public key or a secret of another purpose.
    pub fn with_hmac(&self, secret: &[u8]) -> String {
        let header = changed(self.header(), &json!({"alg": "HS256"}));
        let message = format!(
            "{}.{}",
            encode(header.to_string()),
            encode(self.claims.to_string())
        );
        let tag = hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, secret),
            message.as_bytes(),
        );
        format!("{message}.{}", encode(tag))
    }

    /// The same header and claims, signed with an unknown key.
    pub fn with_another_key(&self, kid: &str) -> String {
        let other = Ed25519KeyPair::generate().unwrap();
        let forger = Self {
            key: other,
            kid: kid.to_owned(),
            cursor_secret: Vec::new(),
            claims: self.claims.clone(),
        };
        forger.with_claims(&json!({}))
    }
}

fn changed(mut value: Value, change: &Value) -> Value {
    for (name, to) in change.as_object().unwrap() {
        if to == "-" {
            value.as_object_mut().unwrap().remove(name);
        } else {
            value[name] = to.clone();
        }
    }
    value
}

fn open(master_key: &str, purpose: &str, sealed: &str) -> Vec<u8> {
    let key: Vec<u8> = (0..32)
        .map(|n| u8::from_str_radix(&master_key.trim()[2 * n..2 * n + 2], 16).unwrap())
        .collect();
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).unwrap());
    let sealed_bytes = decode(sealed.strip_prefix("v1.").unwrap());
    let (nonce, body) = sealed_bytes.split_at(NONCE_LEN);
    let mut body = body.to_vec();
    let nonce = Nonce::try_assume_unique_for_key(nonce).unwrap();
    key.open_in_place(nonce, Aad::from(purpose.as_bytes()), &mut body)
        .unwrap()
        .to_vec()
}
