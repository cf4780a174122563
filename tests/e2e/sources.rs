//! Sources: events of other systems, by their own signatures.

#[path = "sources/comments.rs"]
mod comments;
#[path = "sources/schemes.rs"]
mod schemes;
#[path = "sources/settings.rs"]
mod settings;

use std::collections::BTreeMap;

use aws_lc_rs::cipher::{AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use chrono::Utc;
use reqwest::Method;
use runner_kit::signature::SigningSecret;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, Client, send};
use crate::support::gateway::{Agent, Config};
use crate::support::runner::StubRunner;
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, hex};

const SOURCES: &str = "/v1/sources";
/// An event of the agent `main`.
const FILTER: &str = r#"{event_type: "message.received", input: {text: "hi"}, data: {n: .body.n}}"#;
const SECRET: &str = "0123456789abcdef0123456789abcdef";
const STANDARD: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const WECOM: &str = "QDG6eK:jWmYm7qr5nMoAUwZRjGtBxmz3KA1tkAj3ykkR6q2B2C";

/// A stage of its own whose runner answers all runs. The agent `other` gets events of another type.
async fn stage_of(engine: Engine) -> Option<OwnStage> {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let configure = |config: &mut Config| {
        config.agents.push(Agent {
            name: "other",
            event_types: "test.other",
            ..Agent::default()
        });
    };
    OwnStage::of(engine, runner, configure).await
}

/// Creates a source with the filter of the agent `main`, and further members.
async fn create(admin: &Client, scheme: &str, more: &Value) -> Value {
    let mut spec = json!({"name": scheme.replace('_', "-"), "scheme": scheme, "filter": FILTER});
    let more = more.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(more);
    admin.create(SOURCES, &spec).await.expect(201).body
}

fn path_of(source: &Value) -> &str {
    source["path"].as_str().unwrap()
}

/// A request as a platform makes it.
#[derive(Clone, Debug, Default)]
struct Posted {
    headers: Vec<(&'static str, String)>,
    query: String,
    body: String,
}

impl Posted {
    async fn to(&self, client: &Client, path: &str) -> ApiResponse {
        let request = client.anonymous(Method::POST, &format!("{path}{}", self.query));
        let request = self.headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, value)
        });
        send(request.body(self.body.clone())).await.unwrap()
    }
}

fn now() -> i64 {
    Utc::now().timestamp()
}

fn tag(secret: &str, text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

/// The request of a scheme with this body at this time.
fn signed(scheme: &str, secret: &str, body: &str, at: i64) -> Posted {
    let posted = |headers: Vec<(&'static str, String)>| Posted {
        headers,
        query: String::new(),
        body: body.to_owned(),
    };
    match scheme {
        "standard_webhooks" => {
            let id = format!("msg_{}", hex(&tag("id", body)[..4]));
            let secret: SigningSecret = secret.parse().unwrap();
            posted(vec![
                ("webhook-signature", secret.sign(&id, at, body.as_bytes())),
                ("webhook-id", id),
                ("webhook-timestamp", at.to_string()),
            ])
        }
        "github" => posted(vec![(
            "x-hub-signature-256",
            format!("sha256={}", hex(&tag(secret, body))),
        )]),
        "slack" => {
            let sign = hex(&tag(secret, &format!("v0:{at}:{body}")));
            posted(vec![
                ("x-slack-signature", format!("v0={sign}")),
                ("x-slack-request-timestamp", at.to_string()),
            ])
        }
        "stripe" => {
            let sign = hex(&tag(secret, &format!("{at}.{body}")));
            posted(vec![("stripe-signature", format!("t={at},v1={sign}"))])
        }
        "feishu" => feishu(secret, body, at),
        "dingtalk" => {
            let at = at * 1000;
            let sign = BASE64_STANDARD.encode(tag(secret, &format!("{at}\n{secret}")));
            posted(vec![("sign", sign), ("timestamp", at.to_string())])
        }
        "wecom" => {
            let (query, encrypted) = wecom(secret, body, at);
            Posted {
                headers: Vec::new(),
                query,
                body: format!("<xml><Encrypt><![CDATA[{encrypted}]]></Encrypt></xml>"),
            }
        }
        "hmac" => posted(vec![(
            "x-signature",
            format!("v1={}", BASE64_STANDARD.encode(tag(secret, body))),
        )]),
        _ => posted(Vec::new()),
    }
}

fn encrypt(key: &[u8], iv: [u8; 16], plain: &[u8], block: usize) -> Vec<u8> {
    let padding = block - plain.len() % block;
    let mut bytes = plain.to_vec();
    bytes.extend(vec![u8::try_from(padding).unwrap(); padding]);
    let key = UnboundCipherKey::new(&AES_256, key).unwrap();
    let key = EncryptingKey::cbc(key).unwrap();
    let context = EncryptionContext::Iv128(FixedLength::from(iv));
    key.less_safe_encrypt(&mut bytes, context).unwrap();
    bytes
}

fn feishu(secret: &str, body: &str, at: i64) -> Posted {
    let key = digest(&SHA256, secret.as_bytes());
    // Another vector for each time, as in repeated requests.
    let iv: [u8; 16] = tag("iv", &at.to_string())[..16].try_into().unwrap();
    let encrypted = [iv.to_vec(), encrypt(key.as_ref(), iv, body.as_bytes(), 16)].concat();
    let body = json!({"encrypt": BASE64_STANDARD.encode(encrypted)}).to_string();
    let signed = digest(&SHA256, format!("{at}nonce{secret}{body}").as_bytes());
    Posted {
        headers: vec![
            ("x-lark-signature", hex(signed.as_ref())),
            ("x-lark-request-timestamp", at.to_string()),
            ("x-lark-request-nonce", "nonce".to_owned()),
        ],
        query: String::new(),
        body,
    }
}

/// Query and encrypted content.
fn wecom(secret: &str, body: &str, at: i64) -> (String, String) {
    let (token, key) = secret.split_once(':').unwrap();
    let key = base64::engine::GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        base64::engine::GeneralPurposeConfig::new()
            .with_decode_allow_trailing_bits(true)
            .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
    )
    .decode(key)
    .unwrap();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    let plain = [b"0123456789abcdef", &length[..], body.as_bytes(), b"corp"].concat();
    let iv: [u8; 16] = key[..16].try_into().unwrap();
    let encrypted = BASE64_STANDARD.encode(encrypt(&key, iv, &plain, 32));
    let at = at.to_string();
    let mut parts = [token, &at, "nonce", &encrypted];
    parts.sort_unstable();
    let sign = digest(&SHA1_FOR_LEGACY_USE_ONLY, parts.concat().as_bytes());
    let sign = hex(sign.as_ref());
    let query = format!("?msg_signature={sign}&timestamp={at}&nonce=nonce");
    (query, encrypted)
}

/// Number of events of each id that begins with the name of a source.
async fn events(stage: &OwnStage) -> BTreeMap<String, usize> {
    let page = stage.admin.get("/v1/events?limit=100").await.expect(200);
    let mut events = BTreeMap::new();
    for item in page.body["items"].as_array().unwrap() {
        let id = item["event_id"].as_str().unwrap();
        *events.entry(id.to_owned()).or_default() += 1;
    }
    events
}
