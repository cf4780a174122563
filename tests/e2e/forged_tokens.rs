//! Invalid tokens on every route of the host API, all refused with the same response.
//!
//! The forger has the gateway's own key, so its tokens are refused for their content, not their signature.
#![expect(
    clippy::too_many_lines,
    reason = "a table of tokens is as long as it is"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use futures_util::StreamExt as _;
use futures_util::stream;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client as Http, Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{Client, message};
use crate::support::database::rows;
use crate::support::forger::{Forger, encode, part};
use crate::support::held::HeldRun;
use crate::support::routes::{Face, Operation, operations};
use crate::support::runner::SECRET;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, number, within};

/// A request with an invalid credential.
struct InvalidCredential {
    what: String,
    headers: HeaderMap,
    query: String,
}

impl InvalidCredential {
    fn header(what: impl Into<String>, name: &str, value: impl AsRef<[u8]>) -> Self {
        let mut headers = HeaderMap::new();
        let name = HeaderName::try_from(name).unwrap();
        headers.append(name, HeaderValue::from_bytes(value.as_ref()).unwrap());
        Self {
            what: what.into(),
            headers,
            query: String::new(),
        }
    }

    fn bearer(what: impl Into<String>, token: &str) -> Self {
        Self::header(what, "authorization", format!("Bearer {token}"))
    }
}

/// Invalid headers: algorithm, key id, members that a library might obey.
fn invalid_headers(forger: &Forger) -> Vec<InvalidCredential> {
    let mut all = Vec::new();
    let mut add = |what: String, token: &str| all.push(InvalidCredential::bearer(what, token));
    for alg in ["none", "None", "nOnE", "NONE", "", "eddsa", "EDDSA"] {
        let token = forger.with_header(&json!({"alg": alg}));
        add(format!("alg {alg:?}"), &token);
        let unsigned = token.rsplit_once('.').unwrap().0;
        add(format!("alg {alg:?}, unsigned"), &format!("{unsigned}."));
    }
    for alg in [
        "HS256", "HS384", "HS512", "RS256", "PS256", "ES256", "Ed25519",
    ] {
        let token = forger.with_header(&json!({"alg": alg}));
        add(format!("alg {alg}"), &token);
    }
    for alg in [Value::Null, json!(1), json!(["EdDSA"]), json!("-")] {
        add(
            format!("alg {alg}"),
            &forger.with_header(&json!({"alg": alg})),
        );
    }
    let kids = [
        "../../dev/null",
        "' OR 1=1--",
        "http://127.0.0.1/key",
        "/etc/passwd",
        "\0",
        "a\0b",
        "",
        "unknown",
        &"k".repeat(1500),
        &encode([7; 32]),
        &format!("{}=", forger.kid),
        &forger.kid.to_uppercase(),
        &forger.kid[1..],
    ];
    for kid in kids {
        let short: String = kid.chars().take(20).collect();
        add(
            format!("kid {short:?}"),
            &forger.with_header(&json!({"kid": kid})),
        );
    }
    for kid in [
        json!(0),
        Value::Null,
        json!([forger.kid]),
        json!({"kid": 1}),
        json!("-"),
    ] {
        add(
            format!("kid {kid}"),
            &forger.with_header(&json!({"kid": kid})),
        );
    }
    for (name, value) in [
        ("jku", json!("http://127.0.0.1/jwks.json")),
        ("x5u", json!("http://127.0.0.1/cert.pem")),
        (
            "jwk",
            json!({"kty": "OKP", "crv": "Ed25519", "x": encode([9; 32])}),
        ),
        ("x5c", json!(["MIIB"])),
        ("x5t", json!("AA")),
        ("crit", json!(["exp"])),
        ("crit", json!(["unknown"])),
        ("crit", json!([])),
        ("b64", json!(false)),
        ("zip", json!("DEF")),
        ("cty", json!("JWT")),
        ("ours", json!(true)),
    ] {
        add(
            format!("{name} in the header"),
            &forger.with_header(&json!({name: value})),
        );
    }
    for typ in [
        "JWT",
        "at+jwt",
        "id+jwt",
        "RUN+JWT",
        "application/run+jwt",
        "ticket+jwt",
        "",
    ] {
        add(
            format!("typ {typ:?}"),
            &forger.with_header(&json!({"typ": typ})),
        );
    }
    for typ in [json!("-"), Value::Null, json!(1)] {
        add(
            format!("typ {typ}"),
            &forger.with_header(&json!({"typ": typ})),
        );
    }
    let claims = forger.claims.to_string();
    let kid = &forger.kid;
    for header in [
        format!(r#"{{"alg":"none","alg":"EdDSA","typ":"run+jwt","kid":"{kid}"}}"#),
        format!(r#"{{"alg":"EdDSA","alg":"EdDSA","typ":"run+jwt","kid":"{kid}"}}"#),
        format!(r#"{{"alg":"EdDSA","typ":"run+jwt","kid":"x","kid":"{kid}"}}"#),
        format!(r#"["EdDSA","run+jwt","{kid}"]"#),
        "null".to_owned(),
        String::new(),
        "{".to_owned(),
    ] {
        add(format!("header {header}"), &forger.sign(&header, &claims));
    }
    all
}

/// Claims that are missing, of a wrong type, of another run, or out of time.
fn invalid_claims(forger: &Forger) -> Vec<InvalidCredential> {
    let mut all = Vec::new();
    let mut add = |change: Value| {
        all.push(InvalidCredential::bearer(
            change.to_string(),
            &forger.with_claims(&change),
        ));
    };
    for claim in forger.claims.as_object().unwrap().keys() {
        add(json!({claim: "-"}));
        add(json!({claim: null}));
    }
    let (aud, iss) = (
        forger.claims["aud"].as_str().unwrap(),
        forger.claims["iss"].as_str().unwrap(),
    );
    for other in [
        json!("http://other.example/host/v1"),
        json!(format!("{iss}/v1")),
        json!(iss),
        json!(aud.to_uppercase()),
        json!(format!("{aud}/")),
        json!([aud]),
        json!([aud, "http://other.example"]),
        json!(""),
    ] {
        add(json!({"aud": other}));
    }
    for other in [
        "http://other.example",
        "",
        &iss.to_uppercase(),
        &format!("{iss}/"),
    ] {
        add(json!({"iss": other}));
    }
    for (claim, other) in [
        ("sub", json!("plugin:test/other/default")),
        ("sub", json!("*")),
        ("ws", json!("other")),
        ("ws", json!("Default")),
        ("ws", json!("")),
        ("run_id", json!("00000000-0000-7000-8000-000000000000")),
        ("run_id", json!("*")),
        ("run_id", json!(["x"])),
        ("attempt", json!(0)),
        ("attempt", json!(2)),
        ("attempt", json!(-1)),
        ("attempt", json!("1")),
        ("attempt", json!(4_294_967_297_u64)),
        ("res", json!("")),
        ("res", json!("0".repeat(64))),
        ("jti", json!("1")),
        ("scope", json!(["state:actor"])),
        ("admin", json!(true)),
        ("resources", json!(["*"])),
    ] {
        add(json!({claim: other}));
    }
    let now = forger.claims["iat"].as_i64().unwrap();
    // Expired by so many seconds, with an allowed lifetime.
    for ago in [310, 330, 3900] {
        add(json!({"iat": now - ago, "nbf": now - ago, "exp": now - ago + 300}));
    }
    for ahead in [60, 3600, 86_400] {
        add(json!({"nbf": now + ahead}));
        add(json!({"iat": now + ahead, "exp": now + ahead + 60}));
    }
    for exp in [
        json!((now + 60).to_string()),
        json!(1.5),
        json!(now.to_string() + ".5"),
        json!(1e18),
        json!(-1),
        json!(0),
        json!(true),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(now + 901),
        json!(now + 86_400),
    ] {
        add(json!({"exp": exp}));
    }
    let claims = forger.claims.to_string();
    let header = forger.header().to_string();
    for twice in ["run_id", "exp", "aud", "attempt"] {
        let again = format!("{{\"{twice}\":{},", forger.claims[twice]);
        let token = forger.sign(&header, &claims.replacen('{', &again, 1));
        all.push(InvalidCredential::bearer(format!("{twice} twice"), &token));
    }
    for payload in ["", "{}", "null", "[]", "{", "\"x\""] {
        all.push(InvalidCredential::bearer(
            format!("claims {payload}"),
            &forger.sign(&header, payload),
        ));
    }
    let trailing = forger.sign(&header, &format!("{claims}{{}}"));
    all.push(InvalidCredential::bearer("claims twice", &trailing));
    all
}

/// Signatures by other keys, truncated and modified ones, and oversized tokens.
fn invalid_signatures(forger: &Forger, good: &str, other: &str) -> Vec<InvalidCredential> {
    let mut all = Vec::new();
    let mut add = |what: &str, token: &str| all.push(InvalidCredential::bearer(what, token));
    let public = forger.public_key();
    let mut der = vec![
        0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
    ];
    der.extend_from_slice(public);
    let base64 = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, &der);
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{base64}\n-----END PUBLIC KEY-----\n");
    add("the public key as a secret", &forger.with_hmac(public));
    add("its DER as a secret", &forger.with_hmac(&der));
    add("its PEM as a secret", &forger.with_hmac(pem.as_bytes()));
    add(
        "its text as a secret",
        &forger.with_hmac(encode(public).as_bytes()),
    );
    add("no secret", &forger.with_hmac(b""));
    add(
        "the secret of cursors",
        &forger.with_hmac(&forger.cursor_secret),
    );
    add(
        "the secret of the endpoint",
        &forger.with_hmac(SECRET.as_bytes()),
    );
    add(
        "another key under our id",
        &forger.with_another_key(&forger.kid),
    );
    add(
        "another key under its own id",
        &forger.with_another_key(&encode([3; 32])),
    );

    let (unsigned, signature) = good.rsplit_once('.').unwrap();
    let (header, claims) = unsigned.split_once('.').unwrap();
    add("no signature", unsigned);
    add("an empty signature", &format!("{unsigned}."));
    add(
        "half a signature",
        &format!("{unsigned}.{}", &signature[..43]),
    );
    add("most of a signature", &good[..good.len() - 1]);
    add("more than a signature", &format!("{good}A"));
    add(
        "a signature of zeros",
        &format!("{unsigned}.{}", encode([0; 64])),
    );
    add("padding", &format!("{good}=="));
    add("a fourth part", &format!("{good}.x"));
    add("an empty fourth part", &format!("{good}."));
    add("an empty first part", &format!(".{good}"));
    add("a space within", &format!("{header}. {claims}.{signature}"));
    add("a tab within", &format!("{header}.{claims}\t.{signature}"));
    add("no header", &format!(".{claims}.{signature}"));
    add("no claims", &format!("{header}..{signature}"));
    add("only dots", "..");
    add("nothing", "");
    add("one word", "token");
    add("percent encoding", &good.replace('.', "%2E"));
    let mut bytes = crate::support::forger::decode(signature);
    for bit in [0, 255, 256, 511] {
        bytes[bit / 8] ^= 1 << (bit % 8);
        add(
            &format!("bit {bit} of the signature"),
            &format!("{unsigned}.{}", encode(&bytes)),
        );
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    // The last character has four unused bits: accepting another one would give a token two encodings.
    let last = signature.chars().last().unwrap();
    let alphabet: Vec<char> = ('A'..='Z')
        .chain('a'..='z')
        .chain('0'..='9')
        .chain(['-', '_'])
        .collect();
    let index = alphabet.iter().position(|letter| *letter == last).unwrap();
    let twin = format!("{}{}", &good[..good.len() - 1], alphabet[index + 1]);
    add("bits that say nothing", &twin);
    let standard = forger.with_header(&json!({"kid": forger.kid}));
    add("two tokens", &format!("{standard} {standard}"));
    let mut widened = part(good, 1);
    widened["scope"] = json!("models:invoke tools:call");
    let widened = encode(widened.to_string());
    add(
        "other claims, our signature",
        &format!("{header}.{widened}.{signature}"),
    );
    let other: Vec<&str> = other.split('.').collect();
    add(
        "claims of another run",
        &format!("{header}.{}.{signature}", other[1]),
    );
    add(
        "signature of another run",
        &format!("{unsigned}.{}", other[2]),
    );
    for length in [1_000, 10_000, 20_000] {
        let long = forger.with_claims(&json!({"scope": "s".repeat(length)}));
        assert!(long.len() > if length == 1_000 { 1_500 } else { 2_048 });
        if long.len() > 2_048 {
            add(&format!("{length} bytes more"), &long);
        }
    }
    all
}

/// The valid token in other places, and credentials of other kinds.
fn misplaced_tokens(good: &str, keys: &[&str]) -> Vec<InvalidCredential> {
    let mut all = Vec::new();
    for (name, value) in [
        (
            "cookie",
            format!("token={good}; access_token={good}; authorization=Bearer {good}"),
        ),
        ("x-api-key", good.to_owned()),
        ("x-authorization", format!("Bearer {good}")),
        ("proxy-authorization", format!("Bearer {good}")),
        ("referer", format!("http://127.0.0.1/?access_token={good}")),
        ("x-forwarded-authorization", format!("Bearer {good}")),
        ("authorization", good.to_owned()),
        ("authorization", format!("bearer {good}")),
        ("authorization", format!("BEARER {good}")),
        ("authorization", format!("Bearer  {good}")),
        ("authorization", format!("Bearer\t{good}")),
        ("authorization", format!("Bearer:{good}")),
        ("authorization", format!("Bearer={good}")),
        ("authorization", format!("Bearer \"{good}\"")),
        ("authorization", format!("Bearer {good},")),
        ("authorization", format!("Bearer {good}, Bearer {good}")),
        ("authorization", format!("Bearer token={good}")),
        ("authorization", format!("Basic {good}")),
        ("authorization", format!("DPoP {good}")),
        ("authorization", format!("Token {good}")),
        ("authorization", "Bearer".to_owned()),
        ("authorization", "Bearer null".to_owned()),
        ("authorization", "Bearer undefined".to_owned()),
    ] {
        let shown = value.replace(good, "…");
        all.push(InvalidCredential::header(
            format!("{name}: {shown}"),
            name,
            value,
        ));
    }
    let bytes = |tail: &[u8]| [b"Bearer ", good.as_bytes(), tail].concat();
    all.push(InvalidCredential::header(
        "a byte beyond ASCII",
        "authorization",
        bytes(b"\xff"),
    ));
    all.push(InvalidCredential::header(
        "a letter beyond ASCII",
        "authorization",
        bytes("é".as_bytes()),
    ));
    for name in ["access_token", "token", "authorization", "run_id"] {
        all.push(InvalidCredential {
            what: format!("{name} in the query"),
            headers: HeaderMap::new(),
            query: format!("?{name}={good}"),
        });
    }
    all.push(InvalidCredential {
        what: "nothing at all".to_owned(),
        headers: HeaderMap::new(),
        query: String::new(),
    });
    for key in keys {
        all.push(InvalidCredential::bearer("an API key", key));
        all.push(InvalidCredential::bearer("half an API key", &key[..20]));
    }
    all.push(InvalidCredential::bearer(
        "a key that nobody has",
        &format!("rnl_aaaaaaaa_{}", "A".repeat(43)),
    ));
    all.push(InvalidCredential::bearer(
        "the secret of the endpoint",
        SECRET,
    ));
    all
}

/// A refusal from the caller's view.
#[derive(Debug, PartialEq)]
struct RefusedResponse {
    status: StatusCode,
    headers: Vec<(String, String)>,
    body: String,
}

async fn call(
    http: &Http,
    url: &str,
    route: &Operation,
    bad: &InvalidCredential,
) -> RefusedResponse {
    let path = route.path_with(|name| match name {
        "scope" => "conversation".to_owned(),
        "area" => "plugin".to_owned(),
        "run_id" => "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61".to_owned(),
        _ => "x".to_owned(),
    });
    let request = http
        .request(route.method.clone(), format!("{url}{path}{}", bad.query))
        .headers(bad.headers.clone());
    let response = within("an answer", request.send()).await.unwrap();
    let status = response.status();
    let mut headers: Vec<_> = response
        .headers()
        .iter()
        .filter(|(name, _)| *name != "date")
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    headers.retain(|(name, _)| name != "request-id");
    headers.sort();
    let body = within("its body", response.text()).await.unwrap();
    let body = without_request_id(body);
    RefusedResponse {
        status,
        headers,
        body,
    }
}

/// The body without the random request id of Anthropic's error format.
fn without_request_id(body: String) -> String {
    match body.split_once("\"req_") {
        Some((before, id)) => format!("{before}{}", id.split_once('"').unwrap().1),
        None => body,
    }
}

/// Error format of a route: compatible APIs use the members of their originals.
fn form(route: &Operation) -> &'static str {
    if route.path.starts_with("/host/v1/anthropic/") {
        "anthropic"
    } else if route.path.starts_with("/host/v1/gemini/") {
        "gemini"
    } else if route.path.starts_with("/host/v1/openai/v1/responses") {
        "responses"
    } else if route.path.starts_with("/host/v1/openai/") {
        "openai"
    } else {
        "gateway"
    }
}

fn connections() -> Http {
    Http::builder().no_proxy().build().unwrap()
}

const MANY: &str = "refused_credentials = 1000000";

#[tokio::test]
async fn host_routes_reject_invalid_tokens_with_same_response() {
    let stage = OwnStage::with(|config| MANY.clone_into(&mut config.limits)).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let mut elsewhere = message("m-2");
    elsewhere["conversation"]["conversation_id"] = json!("c-8");
    let other = HeldRun::start(&stage, &elsewhere).await;
    let ended = HeldRun::start(&stage, &message("m-3")).await;
    ended.end(&stage).await;
    let admin = stage.admin.clone();
    let forger = Forger::of(&stage, &run.token).await;
    // The forger can sign valid tokens, so the ones below are refused for their content.
    for token in [&run.token, &forger.with_claims(&json!({}))] {
        let host = Client::new(&run.host.url, token);
        assert_eq!(host.get("/run").await.status, 200);
    }

    let mut bad = invalid_headers(&forger);
    bad.extend(invalid_claims(&forger));
    bad.extend(invalid_signatures(&forger, &run.token, &other.token));
    bad.extend(misplaced_tokens(
        &run.token,
        &[&stage.client.key, &admin.key],
    ));
    bad.push(InvalidCredential::bearer(
        "of a run that has ended",
        &ended.token,
    ));
    assert!(bad.len() >= 100, "{}", bad.len());

    let mut routes = operations(&stage.client).await;
    routes.retain(|route| route.face == Face::Host);
    let host = |route: &Operation| route.path.starts_with("/host/v1/");
    assert!(routes.iter().all(host) && routes.len() >= 20, "{routes:?}");
    let (http, url) = (connections(), stage.client.url.as_str());
    let mut expected = BTreeMap::new();
    for route in &routes {
        if !expected.contains_key(form(route)) {
            let refusal = call(&http, url, route, &bad[0]).await;
            assert_eq!(refusal.status, 401);
            expected.insert(form(route), refusal);
        }
    }
    let wrong: Vec<_> = stream::iter(
        routes
            .iter()
            .flat_map(|route| bad.iter().map(move |bad| (route, bad)))
            // Anthropic's clients send their key in this header.
            .filter(|(route, bad)| {
                form(route) != "anthropic" || !bad.what.starts_with("x-api-key")
            }),
    )
    .map(async |(route, bad)| (route, bad, call(&http, url, route, bad).await))
    .buffer_unordered(16)
    .filter(|(route, _, refusal)| std::future::ready(*refusal != expected[form(route)]))
    .map(|(route, bad, refusal)| format!("{} {}: {refusal:?}", route.id, bad.what))
    .collect()
    .await;
    assert_eq!(wrong, Vec::<String>::new(), "of {} tokens", bad.len());

    // Two headers are an invalid request, and a header of 1 MiB is not read to the end.
    let bearer = HeaderValue::try_from(format!("Bearer {}", run.token)).unwrap();
    for route in &routes {
        let mut twice = InvalidCredential::bearer("twice", &run.token);
        twice.headers.append(AUTHORIZATION, bearer.clone());
        assert_eq!(
            call(&http, url, route, &twice).await.status,
            400,
            "{}",
            route.id
        );
    }
    let huge = http
        .get(format!("{url}/host/v1/run"))
        .bearer_auth("x".repeat(1024 * 1024));
    // A connection reset during the upload is a refusal, too.
    if let Ok(answer) = within("an answer", huge.send()).await {
        assert_eq!(answer.status(), 431);
    }
    assert_eq!(run.get("/run").await.status, 200, "the good one still is");
    let log = stage.gateway.log();
    for token in [&run.token, &other.token, &ended.token] {
        let signature = token.rsplit_once('.').unwrap().1;
        assert!(!log.contains(signature), "a token was logged");
    }
    run.end(&stage).await;
    other.end(&stage).await;
}

/// Minimum number of calls that start after the terminal is committed.
const MIN_LATE_CALLS: usize = 20;

/// Calls with the token before and after the end of its run. Returns the number of calls that started after the
/// terminal was committed and were still accepted.
async fn accepted_late_calls(
    stage: &OwnStage,
    urls: &[String],
    round: usize,
    max_cases: usize,
) -> usize {
    let run = HeldRun::start(stage, &message(&format!("m-{round}"))).await;
    let database = stage.gateway.database_url();
    let sql = format!("SELECT status FROM runs WHERE id = '{}'", run.run_id);
    let (http, answered) = (connections(), AtomicUsize::new(0));
    let (has_ended, after) = (AtomicBool::new(false), AtomicUsize::new(0));
    let calls = stream::iter(0..).take_while(|number| {
        let goes_on = *number < max_cases || after.load(Ordering::SeqCst) < MIN_LATE_CALLS;
        std::future::ready(goes_on)
    });
    let calls = calls.map(async |number| {
        let url = format!("{}/host/v1/run", urls[number % urls.len()]);
        if has_ended.load(Ordering::SeqCst) {
            after.fetch_add(1, Ordering::SeqCst);
        }
        let began = Instant::now();
        let call = http.get(url).bearer_auth(&run.token).send();
        let status = within("an answer", call).await.unwrap().status();
        answered.fetch_add(1, Ordering::Relaxed);
        (began, status.as_u16())
    });
    let calling = calls.buffer_unordered(8).collect::<Vec<_>>();
    let ending = async {
        // Start in the middle of the calls, at another point in each round.
        while answered.load(Ordering::Relaxed) < 10 + round % 40 {
            tokio::task::yield_now().await;
        }
        run.release();
        within("the end in the table", async {
            while rows(&database, &sql).await[0] == "running" {}
        })
        .await;
        let ended = Instant::now();
        has_ended.store(true, Ordering::SeqCst);
        ended
    };
    let (calls, ended) = tokio::join!(calling, ending);
    let statuses: BTreeSet<u16> = calls.iter().map(|(_, status)| *status).collect();
    // The rate limit of the run refuses some of the calls.
    assert!(
        statuses
            .iter()
            .all(|status| [200, 401, 429].contains(status)),
        "{statuses:?}"
    );
    stage.outcome(&run.run_id).await;
    for url in urls {
        let host = Client::new(&format!("{url}/host/v1"), &run.token);
        assert_eq!(host.get("/run").await.status, 401);
    }
    let after: Vec<_> = calls.iter().filter(|(began, _)| *began > ended).collect();
    assert!(after.len() >= MIN_LATE_CALLS, "{} calls", after.len());
    let late = after.iter().filter(|(_, status)| *status != 401);
    late.count()
}

#[rstest]
#[tokio::test]
async fn replicas_refuse_calls_after_committed_terminal(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let configured = OwnStage::on(engine, |config| {
        "public_url = \"http://runnel.test\"".clone_into(&mut config.server);
        MANY.clone_into(&mut config.limits);
    });
    let stage = or_skip!(configured.await);
    let mut urls = vec![stage.client.url.clone()];
    let replica = match engine {
        Postgres => Some(stage.gateway.start_replica().await),
        // SQLite allows one gateway only.
        Sqlite => None,
    };
    urls.extend(replica.as_ref().map(|replica| replica.client.url.clone()));
    let rounds = number("RUNNEL_TEST_TOKEN_CALLS", 400).div_ceil(200);
    for round in 0..rounds {
        let late = accepted_late_calls(&stage, &urls, round, 200).await;
        assert_eq!(late, 0, "round {round} of {rounds}");
    }
}

#[tokio::test]
async fn rate_limits_guesses_but_admits_valid_credentials() {
    let stage =
        OwnStage::with(|config| "refused_credentials = 20".clone_into(&mut config.limits)).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let http = connections();
    let guess = async |path: &str, key: String| {
        let request = http
            .get(format!("{}{path}", stage.client.url))
            .bearer_auth(key);
        within("an answer", request.send()).await.unwrap()
    };
    let mut counts = [0, 0];
    for n in 0..number("RUNNEL_TEST_GUESSES", 300) {
        let answer = match n % 2 {
            0 => guess("/v1/runs", format!("rnl_{n:08}_{}", encode([7; 32]))).await,
            _ => guess("/host/v1/run", format!("{}A", run.token)).await,
        };
        match answer.status().as_u16() {
            401 => counts[0] += 1,
            429 => {
                assert_eq!(answer.headers()["retry-after"], "10");
                counts[1] += 1;
            }
            status => panic!("{status}"),
        }
        // Valid credentials from the same address: above the limit they wait in the same queue, which is empty
        // here.
        if n % 50 == 0 {
            assert_eq!(stage.client.get("/v1/runs").await.status, 200);
            assert_eq!(run.get("/run").await.status, 200);
        }
    }
    // The rate limit window may restart once or twice, and each window allows the limit.
    assert!(counts[0] >= 20 && counts[1] > counts[0], "{counts:?}");
    let log = stage.gateway.log();
    assert_contains!(log, "an address sent too many wrong credentials");
    run.end(&stage).await;
}

#[tokio::test]
async fn host_routes_serve_only_documented_methods() {
    let stage = Stage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let routes = operations(&stage.client).await;
    let paths: BTreeSet<_> = routes.iter().map(|route| route.path.clone()).collect();
    let http = connections();
    for path in paths {
        let of_path = |route: &&Operation| route.path == path;
        let documented: Vec<_> = routes
            .iter()
            .filter(of_path)
            .map(|route| route.method.clone())
            .collect();
        for method in [
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
            Method::OPTIONS,
            Method::TRACE,
        ] {
            if documented.contains(&method) {
                continue;
            }
            let url = format!("{}{}", stage.client.url, path.replace(['{', '}'], ""));
            let request = http.request(method.clone(), url).bearer_auth(&run.token);
            let answer = within("an answer", request.send()).await.unwrap();
            assert_eq!(answer.status(), 405, "{method} {path}");
            for header in [
                "access-control-allow-origin",
                "access-control-allow-methods",
            ] {
                assert!(!answer.headers().contains_key(header), "{method} {path}");
            }
        }
    }
    run.end(&stage).await;
}
