use jsonwebtoken::{EncodingKey, Header};
use serde_json::json;

use super::*;
use crate::token::generate_key;

const NOW: i64 = 1_000_000;

/// A key pair of a provider.
struct ProviderKey {
    signing: EncodingKey,
    public: Jwk,
}

impl ProviderKey {
    fn new() -> Self {
        let (kid, pkcs8) = generate_key().unwrap();
        let signing = EncodingKey::from_ed_der(&pkcs8);
        let mut public = Jwk::from_encoding_key(&signing, Algorithm::EdDSA).unwrap();
        public.common.key_id = Some(kid);
        Self { signing, public }
    }

    fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid.clone_from(&self.public.common.key_id);
        jsonwebtoken::encode(&header, claims, &self.signing).unwrap()
    }
}

fn rules() -> SignInRules {
    let rule = |value: &str, role, agents: Option<&str>| RoleRule {
        claim: "groups".to_owned(),
        value: value.to_owned(),
        role,
        agents: agents.map(|agent| vec![agent.to_owned()]),
    };
    SignInRules {
        issuer: "https://id.example".to_owned(),
        audience: "runnel".to_owned(),
        client_id: Some("terminal".to_owned()),
        scopes: Vec::new(),
        workspace: WorkspaceId("default".to_owned()),
        session: Duration::from_hours(1),
        roles: vec![
            rule("admins", KeyRole::Admin, None),
            rule("support", KeyRole::Approver, Some("helper")),
        ],
    }
}

fn claims() -> Value {
    json!({"iss": "https://id.example", "aud": "runnel", "sub": "u-1", "exp": NOW + 300, "iat": NOW,
        "email": "ana@example.com", "groups": ["staff", "support"]})
}

#[test]
fn first_matching_rule_gives_the_role() {
    let key = ProviderKey::new();
    let signed = rules()
        .verify(&key.sign(&claims()), &key.public, NOW)
        .unwrap();
    assert_eq!(signed.subject, "u-1");
    assert_eq!(
        (signed.key.name.as_str(), signed.key.role),
        ("ana@example.com", KeyRole::Approver)
    );
    assert_eq!(signed.key.expires_at, Some(NOW + 3600));
    assert_eq!(signed.key.agents, Some(vec!["helper".to_owned()]));
    let mut both = claims();
    both["groups"] = json!(["support", "admins"]);
    let signed = rules().verify(&key.sign(&both), &key.public, NOW).unwrap();
    assert_eq!((signed.key.role, signed.key.agents), (KeyRole::Admin, None));
}

#[test]
fn refuses_tokens_with_other_claims() {
    let key = ProviderKey::new();
    for (name, value, fault) in [
        ("iss", json!("https://id.example/"), SignInFault::Issuer),
        ("iss", Value::Null, SignInFault::Issuer),
        ("aud", json!("other"), SignInFault::Audience),
        ("aud", json!(["other"]), SignInFault::Audience),
        ("aud", Value::Null, SignInFault::Audience),
        ("exp", json!(NOW - 61), SignInFault::Time),
        ("exp", json!("2000000"), SignInFault::Time),
        ("exp", Value::Null, SignInFault::Time),
        ("nbf", json!(NOW + 61), SignInFault::Time),
        ("iat", json!(NOW + 61), SignInFault::Time),
        ("iat", json!("soon"), SignInFault::Time),
        ("sub", json!(""), SignInFault::Subject),
        ("sub", json!(7), SignInFault::Subject),
        ("groups", json!(["staff"]), SignInFault::NoRole),
        ("groups", json!("support, admins"), SignInFault::NoRole),
        ("groups", Value::Null, SignInFault::NoRole),
    ] {
        let mut claims = claims();
        claims[name] = value.clone();
        let refused = rules().verify(&key.sign(&claims), &key.public, NOW);
        assert_eq!(refused, Err(fault), "{name} {value}");
    }
}

#[test]
fn tolerates_small_clock_differences() {
    let key = ProviderKey::new();
    for (name, value) in [("exp", NOW - 59), ("nbf", NOW + 60), ("iat", NOW + 60)] {
        let mut claims = claims();
        claims[name] = json!(value);
        assert!(
            rules().verify(&key.sign(&claims), &key.public, NOW).is_ok(),
            "{name}"
        );
    }
}

#[test]
fn refuses_forged_signatures() {
    let (key, other) = (ProviderKey::new(), ProviderKey::new());
    let token = key.sign(&claims());
    assert_eq!(
        rules().verify(&token, &other.public, NOW),
        Err(SignInFault::Signature)
    );
    let [_, body, signature] = token.split('.').collect::<Vec<_>>()[..] else {
        panic!("three parts");
    };
    // {"alg":"none"}, and the public key as the secret of an HMAC.
    let unsigned = format!("eyJhbGciOiJub25lIn0.{body}.");
    assert_eq!(key_id(&unsigned), Err(SignInFault::Malformed));
    let AlgorithmParameters::OctetKeyPair(pair) = &key.public.algorithm else {
        panic!("an Ed25519 key");
    };
    let secret = EncodingKey::from_secret(pair.x.as_bytes());
    let confused =
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims(), &secret).unwrap();
    assert_eq!(
        rules().verify(&confused, &key.public, NOW),
        Err(SignInFault::Signature)
    );
    let empty = format!("{}.{body}.", token.split('.').next().unwrap());
    assert_eq!(
        rules().verify(&empty, &key.public, NOW),
        Err(SignInFault::Signature)
    );
    assert!(!signature.is_empty());
}

#[test]
fn keys_verify_by_their_own_algorithm_only() {
    let key = ProviderKey::new();
    let mut encryption = key.public.clone();
    encryption.common.public_key_use = Some(PublicKeyUse::Encryption);
    let mut other = key.public.clone();
    other.common.key_algorithm = Some(KeyAlgorithm::HS256);
    let secret: Jwk = serde_json::from_value(json!({"kty": "oct", "k": "c2VjcmV0"})).unwrap();
    for unusable in [encryption, other, secret] {
        let refused = rules().verify(&key.sign(&claims()), &unusable, NOW);
        assert_eq!(refused, Err(SignInFault::UnusableKey));
    }
}

#[test]
fn tokens_without_key_id_need_a_single_key() {
    let keys = |count: usize| JwkSet {
        keys: (0..count).map(|_| ProviderKey::new().public).collect(),
    };
    assert!(key_of(&keys(1), None).is_some());
    assert!(key_of(&keys(2), None).is_none());
    assert!(key_of(&keys(0), None).is_none());
    let set = keys(2);
    let kid = set.keys[1].common.key_id.clone();
    assert_eq!(key_of(&set, kid.as_deref()), Some(&set.keys[1]));
    assert!(key_of(&set, Some("other")).is_none());
    assert_eq!(key_id(&"a".repeat(17_000)), Err(SignInFault::Malformed));
}
