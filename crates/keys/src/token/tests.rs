use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const NOW: i64 = 1_795_291_200;

struct Bench {
    tokens: RunTokens,
    key: EncodingKey,
    kid: String,
}

fn bench() -> Bench {
    let (kid, pkcs8) = generate_key().unwrap();
    let tokens = RunTokens::new("http://gateway", std::slice::from_ref(&pkcs8)).unwrap();
    Bench {
        tokens,
        key: EncodingKey::from_ed_der(&pkcs8),
        kid,
    }
}

fn subject(runner_id: &RunnerId) -> TokenSubject<'_> {
    TokenSubject {
        runner_id,
        run_id: RunId(Uuid::nil()),
        attempt: 1,
        workspace: "default",
        scope: "history:page".to_owned(),
        res: "abc",
        deadline_at: NOW + 300,
    }
}

fn good_claims() -> Value {
    json!({
        "iss": "http://gateway", "aud": "http://gateway/host/v1", "sub": "plugin:a/b/c",
        "jti": Uuid::nil(), "run_id": Uuid::nil(), "attempt": 1, "ws": "default", "scope": "",
        "res": "abc", "iat": NOW, "nbf": NOW, "exp": NOW + 300,
    })
}

impl Bench {
    /// Signs any header and payload with the right key.
    fn signed(&self, header: &str, payload: &str) -> String {
        let message = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(header),
            URL_SAFE_NO_PAD.encode(payload)
        );
        let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &self.key, Algorithm::EdDSA);
        format!("{message}.{}", signature.unwrap())
    }

    fn header(&self) -> Value {
        json!({"alg": "EdDSA", "typ": "run+jwt", "kid": self.kid})
    }

    fn check_claims(&self, change: &Value, expected: Option<TokenFault>) {
        let mut claims = good_claims();
        for (key, value) in change.as_object().unwrap() {
            if value == "-" {
                claims.as_object_mut().unwrap().remove(key);
            } else {
                claims[key] = value.clone();
            }
        }
        let token = self.signed(&self.header().to_string(), &claims.to_string());
        assert_eq!(self.tokens.verify(&token, NOW).err(), expected, "{change}");
    }
}

#[test]
fn token_is_valid_until_its_expiry() {
    let bench = bench();
    let runner_id: RunnerId = "plugin:a/b/c".parse().unwrap();
    let minted = bench.tokens.mint(&subject(&runner_id), NOW).unwrap();
    assert_eq!(minted.expires_at, NOW + 300);
    let claims = bench.tokens.verify(&minted.token, NOW).unwrap();
    assert_eq!((claims.attempt, claims.res.as_str()), (1, "abc"));
    assert!(bench.tokens.verify(&minted.token, NOW + 304).is_ok());
    assert_eq!(
        bench.tokens.verify(&minted.token, NOW + 305),
        Err(TokenFault::Time)
    );
}

#[test]
fn limits_token_lifetime_to_fifteen_minutes() {
    let bench = bench();
    let runner_id: RunnerId = "plugin:a/b/c".parse().unwrap();
    let long = TokenSubject {
        deadline_at: NOW + 86_400,
        ..subject(&runner_id)
    };
    assert_eq!(bench.tokens.mint(&long, NOW).unwrap().expires_at, NOW + 900);
}

#[test]
fn every_claim_is_required_typed_and_exact() {
    let bench = bench();
    bench.check_claims(&json!({}), None);
    for claim in good_claims().as_object().unwrap().keys() {
        bench.check_claims(&json!({claim.as_str(): "-"}), Some(TokenFault::Signature));
    }
    bench.check_claims(&json!({"admin": true}), Some(TokenFault::Signature));
    bench.check_claims(
        &json!({"aud": ["http://gateway/host/v1"]}),
        Some(TokenFault::Signature),
    );
    bench.check_claims(
        &json!({"aud": "http://gateway/HOST/v1"}),
        Some(TokenFault::Audience),
    );
    bench.check_claims(&json!({"iss": "http://other"}), Some(TokenFault::Audience));
    for bad in [
        json!("1"),
        json!(1.5),
        json!(1e18),
        Value::Null,
        json!(true),
    ] {
        bench.check_claims(&json!({"exp": bad}), Some(TokenFault::Signature));
    }
    bench.check_claims(&json!({"exp": -1}), Some(TokenFault::Time));
    bench.check_claims(&json!({"exp": NOW - 5}), Some(TokenFault::Time));
    bench.check_claims(&json!({"exp": NOW + 901}), Some(TokenFault::Time));
    bench.check_claims(&json!({"nbf": NOW + 6}), Some(TokenFault::Time));
    bench.check_claims(&json!({"iat": NOW + 6}), Some(TokenFault::Time));
}

#[test]
fn rejects_headers_with_other_members() {
    let bench = bench();
    let check = |header: String, expected| {
        let token = bench.signed(&header, &good_claims().to_string());
        assert_eq!(
            bench.tokens.verify(&token, NOW).err(),
            Some(expected),
            "{header}"
        );
    };
    for (key, value) in [
        ("jku", json!("http://x")),
        ("crit", json!(["x"])),
        ("b64", json!(false)),
    ] {
        let mut header = bench.header();
        header[key] = value;
        check(header.to_string(), TokenFault::Header);
    }
    for (key, value) in [("alg", "none"), ("alg", "HS256"), ("typ", "JWT")] {
        let mut header = bench.header();
        header[key] = json!(value);
        check(header.to_string(), TokenFault::Header);
    }
    // Only a well-formed key id causes a lookup.
    let (other, _) = generate_key().unwrap();
    for (kid, expected) in [
        (other.as_str(), TokenFault::UnknownKey),
        ("../../dev/null", TokenFault::Header),
        ("' OR 1=1--", TokenFault::Header),
        ("", TokenFault::Header),
        (&"A".repeat(42), TokenFault::Header),
        (&"A".repeat(44), TokenFault::Header),
        (&format!("{}+", &other[1..]), TokenFault::Header),
    ] {
        let mut header = bench.header();
        header["kid"] = json!(kid);
        check(header.to_string(), expected);
    }
    let twice = format!(
        r#"{{"alg":"EdDSA","alg":"EdDSA","typ":"run+jwt","kid":"{}"}}"#,
        bench.kid
    );
    check(twice, TokenFault::Header);
}

#[test]
fn rejects_tampered_unsigned_and_foreign_tokens() {
    let (ours, other) = (bench(), bench());
    let runner_id: RunnerId = "plugin:a/b/c".parse().unwrap();
    let good = ours.tokens.mint(&subject(&runner_id), NOW).unwrap().token;
    let (unsigned, _) = good.rsplit_once('.').unwrap();
    let twice = good_claims()
        .to_string()
        .replacen('{', r#"{"attempt":2,"#, 1);
    let bad = [
        String::new(),
        unsigned.to_owned(),
        format!("{unsigned}."),
        format!("{good}="),
        format!("{good}.x"),
        format!(" {good}"),
        good.replacen('A', "B", 1) + "x",
        ours.signed(&ours.header().to_string(), &twice),
        other.tokens.mint(&subject(&runner_id), NOW).unwrap().token,
        "x".repeat(3000),
    ];
    for token in bad {
        assert!(ours.tokens.verify(&token, NOW).is_err(), "{token}");
    }
}

#[test]
fn first_key_signs_and_all_keys_verify() {
    let [(old, old_key), (new, new_key)] = [generate_key().unwrap(), generate_key().unwrap()];
    let tokens = RunTokens::new("http://gateway", std::slice::from_ref(&old_key)).unwrap();
    let runner_id: RunnerId = "plugin:a/b/c".parse().unwrap();
    let mint = || tokens.mint(&subject(&runner_id), NOW).unwrap().token;
    let kids = || {
        let keys = serde_json::to_value(tokens.jwks()).unwrap()["keys"].clone();
        let keys = keys.as_array().unwrap().clone();
        let kids = keys
            .iter()
            .map(|key| key["kid"].as_str().unwrap().to_owned());
        kids.collect::<Vec<_>>()
    };
    let before = mint();
    assert_eq!(kids(), std::slice::from_ref(&old));

    // Published, not signing yet.
    tokens.replace(&[old_key.clone(), new_key.clone()]).unwrap();
    assert_eq!(read_header(&mint()).unwrap(), old);
    assert_eq!(kids(), [old.clone(), new.clone()]);
    // Signing; the old key still verifies.
    tokens.replace(&[new_key.clone(), old_key]).unwrap();
    let after = mint();
    assert_eq!(read_header(&after).unwrap(), new);
    assert!(tokens.verify(&before, NOW).is_ok() && tokens.verify(&after, NOW).is_ok());
    // Expired.
    tokens.replace(std::slice::from_ref(&new_key)).unwrap();
    assert_eq!(tokens.verify(&before, NOW), Err(TokenFault::UnknownKey));
    assert!(tokens.verify(&after, NOW).is_ok());
    assert_eq!(kids(), [new]);
    // A failed replacement changes nothing.
    assert!(tokens.replace(&[]).is_err() && tokens.replace(&[vec![1]]).is_err());
    assert!(tokens.verify(&after, NOW).is_ok());
}

static BENCH: LazyLock<(Bench, String)> = LazyLock::new(|| {
    let bench = bench();
    let runner: RunnerId = "plugin:a/b/c".parse().unwrap();
    let minted = bench.tokens.mint(&subject(&runner), NOW).unwrap();
    (bench, minted.token)
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn rejects_every_variation_of_a_token(
        text in "[A-Za-z0-9_.=-]{0,80}",
        part in "[A-Za-z0-9_.=+/ -]{0,4}",
        from in any::<prop::sample::Index>(),
        length in 0..4_usize,
    ) {
        let (bench, minted) = &*BENCH;
        prop_assert!(bench.tokens.verify(&text, NOW).is_err());
        let from = from.index(minted.len() + 1);
        let to = minted.len().min(from + length);
        let bent = format!("{}{part}{}", &minted[..from], &minted[to..]);
        prop_assert_eq!(bench.tokens.verify(&bent, NOW).is_ok(), bent == *minted, "{}", bent);
    }
}
