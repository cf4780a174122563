use http::HeaderValue;

use super::*;

/// Headers of a request.
fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

type Check = fn(&str, InboundRequest<'_>) -> Result<(), InboundError>;

struct Signed {
    check: Check,
    secret: &'static str,
    headers: Vec<(&'static str, String)>,
    body: &'static str,
    now_seconds: i64,
}

impl Signed {
    fn verify(&self) -> Result<(), InboundError> {
        let pairs: Vec<_> = self
            .headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let headers = headers(&pairs);
        let request = InboundRequest {
            headers: &headers,
            body: self.body.as_bytes(),
            now_seconds: self.now_seconds,
        };
        (self.check)(self.secret, request)
    }
}

fn owned(pairs: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    let pairs = pairs.iter();
    pairs
        .map(|(name, value)| (*name, (*value).to_owned()))
        .collect()
}

/// The example of GitHub's documentation.
fn github() -> Signed {
    Signed {
        check: |secret, request| hmac_header(secret, GITHUB, request),
        secret: "It's a Secret to Everybody",
        headers: owned(&[(
            "x-hub-signature-256",
            "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
        )]),
        body: "Hello, World!",
        now_seconds: 0,
    }
}

/// The example of Slack's documentation.
fn slack_example() -> Signed {
    Signed {
        check: slack,
        secret: "8f742231b10e8888abcd99yyyzzz85a5",
        headers: owned(&[
            ("x-slack-request-timestamp", "1531420618"),
            (
                "x-slack-signature",
                "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
            ),
        ]),
        body: "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V\
               &channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=\
               &response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554\
               %2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
        now_seconds: 1_531_420_618,
    }
}

fn stripe_example() -> Signed {
    let tag = tag("whsec_test", &[b"1492774577.{\"id\": \"evt_1\"}"]);
    let hex = crate::digest::hex(tag.as_ref());
    Signed {
        check: stripe,
        secret: "whsec_test",
        headers: vec![(
            "stripe-signature",
            format!("t=1492774577,v1=00ff,v1={hex},v0=6ffb"),
        )],
        body: "{\"id\": \"evt_1\"}",
        now_seconds: 1_492_774_577,
    }
}

fn feishu_example() -> Signed {
    let signed = sha256_hex("1700000000nonce-1encrypt-key{\"encrypt\":\"x\"}");
    let mut headers = owned(&[
        ("x-lark-request-timestamp", "1700000000"),
        ("x-lark-request-nonce", "nonce-1"),
    ]);
    headers.push((FEISHU_SIGNATURE, signed));
    Signed {
        check: feishu,
        secret: "encrypt-key",
        headers,
        body: "{\"encrypt\":\"x\"}",
        now_seconds: 1_700_000_000,
    }
}

use crate::digest::sha256_hex;

#[test]
fn accepts_documented_examples() {
    for signed in [
        github(),
        slack_example(),
        stripe_example(),
        feishu_example(),
    ] {
        assert_eq!(signed.verify(), Ok(()), "{:?}", signed.headers);
    }
}

#[test]
fn rejects_other_bodies_secrets_and_absent_signatures() {
    for example in [github, slack_example, stripe_example, feishu_example] {
        let mut body = example();
        body.body = "{}";
        assert_eq!(body.verify(), Err(InboundError::Mismatch));
        let mut secret = example();
        secret.secret = "another";
        assert_eq!(secret.verify(), Err(InboundError::Mismatch));
        let mut twice = example();
        let signature = twice.headers.last().cloned().unwrap();
        twice.headers.push(signature);
        assert!(twice.verify().is_err());
        let mut without = example();
        without.headers.pop();
        assert!(without.verify().is_err());
        let mut empty = example();
        empty.headers.last_mut().unwrap().1.clear();
        assert!(empty.verify().is_err());
    }
}

#[test]
fn tolerates_five_minutes() {
    for example in [slack_example, stripe_example, feishu_example] {
        for (shift, expected) in [
            (300, Ok(())),
            (-300, Ok(())),
            (301, Err(InboundError::OutsideTolerance)),
            (-301, Err(InboundError::OutsideTolerance)),
        ] {
            let mut shifted = example();
            shifted.now_seconds += shift;
            assert_eq!(shifted.verify(), expected, "{:?} {shift}", shifted.headers);
        }
    }
}

#[test]
fn reads_prefix_and_encoding_of_headers() {
    let tag = tag("secret", &[b"body"]);
    let [hex, base64] = [
        crate::digest::hex(tag.as_ref()),
        STANDARD.encode(tag.as_ref()),
    ];
    let check = |sent: &str, prefix: &str, encoding: TagEncoding| {
        let headers = headers(&[("x-signature", sent)]);
        let header = HmacHeader {
            name: "x-signature",
            prefix,
            encoding,
        };
        let request = InboundRequest {
            headers: &headers,
            body: b"body",
            now_seconds: 0,
        };
        hmac_header("secret", header, request).is_ok()
    };
    assert!(check(&hex, "", TagEncoding::Hex));
    assert!(check(&hex.to_uppercase(), "", TagEncoding::Hex));
    assert!(check(&base64, "", TagEncoding::Base64));
    assert!(check(&format!("v1={hex}"), "v1=", TagEncoding::Hex));
    assert!(!check(&hex, "v1=", TagEncoding::Hex));
    assert!(!check(&base64, "", TagEncoding::Hex));
    assert!(!check(&hex[1..], "", TagEncoding::Hex));
    assert!(!check(&format!("{hex}00"), "", TagEncoding::Hex));
}

#[test]
fn dingtalk_signs_time_only() {
    let expected = tag("app-secret", &[b"1700000000123\napp-secret"]);
    let sign = STANDARD.encode(expected.as_ref());
    let headers = headers(&[("timestamp", "1700000000123"), ("sign", &sign)]);
    let at = |secret: &str, now_seconds| {
        let request = InboundRequest {
            headers: &headers,
            body: b"any",
            now_seconds,
        };
        dingtalk(secret, request)
    };
    assert_eq!(at("app-secret", 1_700_000_000), Ok(()));
    assert_eq!(at("other", 1_700_000_000), Err(InboundError::Mismatch));
    assert_eq!(
        at("app-secret", 1_700_000_301),
        Err(InboundError::OutsideTolerance)
    );
}

#[test]
fn decrypts_documented_content_of_feishu() {
    let encrypted = "P37w+VZImNgPEO1RBhJ6RtKl7n6zymIbEG1pReEzghk=";
    assert_eq!(
        feishu_decrypt("test key", encrypted).unwrap(),
        b"hello world"
    );
    for (key, content) in [
        ("other key", encrypted),
        ("test key", "AAAA"),
        ("test key", "!"),
        ("test key", ""),
    ] {
        assert_eq!(
            feishu_decrypt(key, content),
            Err(InboundError::Undecipherable)
        );
    }
}

/// The secret of `WeCom`'s sample code.
const WECOM: &str = "QDG6eK:jWmYm7qr5nMoAUwZRjGtBxmz3KA1tkAj3ykkR6q2B2C";
const ECHO: &str =
    "P9nAzCzyDtyTWESHep1vC5X9xho/qYX3Zpb4yKa9SKld1DsH3Iyt3tP3zNdtp+4RPcs8TgAE7OaBO+FZXvnaqQ==";

#[test]
fn opens_samples_of_wecom() {
    let query = WecomQuery {
        msg_signature: "5c45ff5e21c57e6ad56bac8758b79b1d9ac89fd3",
        timestamp: "1409659589",
        nonce: "263014780",
    };
    let secret = WecomSecret::parse(WECOM).unwrap();
    let opened = secret.open(query, ECHO, 1_409_659_589);
    assert_eq!(opened.unwrap(), b"1616140317555161061");
    let late = secret.open(query, ECHO, 1_409_659_890);
    assert_eq!(late, Err(InboundError::OutsideTolerance));
    let nonce = WecomQuery {
        nonce: "263014781",
        ..query
    };
    let other = secret.open(nonce, ECHO, 1_409_659_589);
    assert_eq!(other, Err(InboundError::Mismatch));
    let token = WecomSecret::parse("other:jWmYm7qr5nMoAUwZRjGtBxmz3KA1tkAj3ykkR6q2B2C").unwrap();
    let other = token.open(query, ECHO, 1_409_659_589);
    assert_eq!(other, Err(InboundError::Mismatch));
}

#[test]
fn requires_token_and_key_of_wecom() {
    for wrong in ["", ":", "token", "token:short", &WECOM[6..], &WECOM[..49]] {
        assert!(WecomSecret::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn secret_paths_must_be_equal() {
    assert_eq!(secret_path("s3cret", "s3cret"), Ok(()));
    for wrong in ["", "s3cre", "s3crets", "S3cret"] {
        assert_eq!(secret_path("s3cret", wrong), Err(InboundError::Mismatch));
    }
}
