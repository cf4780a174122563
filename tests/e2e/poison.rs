//! Values that one database stores and the other refuses: the same answer before both. F60, S27.

use std::fmt::Write;

use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::json;

use crate::support::client::{message, send};
use crate::support::held::HeldRun;
use crate::support::script::{Run, sse};
use crate::support::{Engine, Postgres, Sqlite, Stage};

/// JSON values as they are written, bytes and all.
const VALUES: [&[u8]; 31] = [
    br#""plain""#,
    br#""\u0000""#,
    br#""a\u0000b""#,
    br#""a\\u0000b""#,
    b"\"a\x00b\"",
    br#""\ud800""#,
    br#""\udc00 backward \ud800""#,
    br#""\ud83c\udf89""#,
    "\"\u{1F389} \u{FFFE} \u{FFFF} \u{10FFFF}\"".as_bytes(),
    b"\"\xed\xa0\x80\"",
    b"\"\xff\"",
    b"\"\xc0\x80\"",
    br#""\u0001\u001f\u007f\u0085\u2028""#,
    b"\"\x01\"",
    b"0",
    b"-0",
    b"-0.0",
    b"1e308",
    b"1e309",
    b"1e999",
    b"-1e400000",
    b"1e-400",
    b"18446744073709551615",
    b"18446744073709551616",
    b"340282366920938463463374607431768211456.00000000000000000001",
    b"0.1000000000000000055511151231257827021181583404541015625",
    br#"{"a":1,"a":2}"#,
    br#"{"":0}"#,
    br#"{"\u0000":1}"#,
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
    b"NaN",
];

/// `text` with `value` for its marker.
fn around(text: &str, value: &[u8]) -> Vec<u8> {
    let (before, after) = text.split_once("\"VALUE\"").unwrap();
    [before.as_bytes(), value, after.as_bytes()].concat()
}

/// What became of each value: in an event, in an event's text, as state, in a result.
async fn verdicts(engine: Engine) -> Option<Vec<String>> {
    let stage = Stage::on(engine, |_| {}).await?;
    let held = HeldRun::start(&stage, &message("held")).await;
    let mut verdicts = Vec::new();
    for (n, value) in VALUES.into_iter().enumerate() {
        let mut told = String::from_utf8_lossy(value).into_owned();
        for (place, pointer) in [("data", "/data"), ("raw", "/raw"), ("text", "/input/text")] {
            let event_id = format!("{place}-{n}");
            stage
                .runner
                .answer(&event_id, |run| sse(run.talk(1).concat()));
            let mut event = message(&event_id);
            event["data"] = json!({});
            event["raw"] = json!({});
            *event.pointer_mut(pointer).unwrap() = match place {
                "text" => json!("VALUE"),
                _ => json!({"v": "VALUE"}),
            };
            let body = around(&event.to_string(), value);
            let request = stage.client.request(Method::POST, "/v1/events");
            let request = request.header(CONTENT_TYPE, "application/json").body(body);
            let answer = send(request).await.unwrap();
            let code = answer.error("code").as_str().unwrap_or("taken").to_owned();
            write!(told, " | {place} {} {code}", answer.status).unwrap();
            if answer.status == 202 {
                let outcome = stage.outcome(&answer.run_id()).await;
                let stored = stage.client.get(&format!("/v1/events/{event_id}")).await;
                write!(
                    told,
                    " {} {}",
                    outcome.ending(),
                    stored.body["input"]["text"]
                )
                .unwrap();
            } else {
                assert_eq!(answer.status, 400, "{told}");
            }
        }
        let body = around(r#"{"value":"VALUE"}"#, value);
        let request = held.request(Method::PUT, "/state/conversation/k");
        let request = request.header(CONTENT_TYPE, "application/json").body(body);
        let put = send(request).await.unwrap();
        write!(told, " | state {}", put.status).unwrap();
        if put.status == 200 {
            told += &held.get("/state/conversation/k").await.body["value"].to_string();
        }
        write!(told, " | result {}", result_with(&stage, value).await).unwrap();
        verdicts.push(told);
    }
    held.end(&stage).await;
    Some(verdicts)
}

async fn result_with(stage: &Stage, value: &'static [u8]) -> String {
    let script = move |run: &Run| {
        let state = r#"{"scope":"conversation","key":"r","value":"VALUE"}"#;
        let bent = [
            run.result(2, "vendor.thing", r#"{"v":"VALUE"}"#),
            run.result(3, "state.updated", state),
        ];
        let bent = bent.map(|frame| around(&frame, value)).concat();
        sse([
            run.delta(1, "a").into_bytes(),
            bent,
            run.completed(4).into_bytes(),
        ]
        .concat())
    };
    let outcome = stage.play(script).await;
    let reasons: Vec<_> = outcome
        .rejections
        .iter()
        .map(|row| &row["reason"])
        .collect();
    let types = outcome.ledger.types();
    // What stands between the word and the end, byte for byte.
    let data: Vec<_> = outcome
        .ledger
        .events()
        .iter()
        .map(|event| event["data"].clone())
        .collect();
    format!("{} {types:?} {reasons:?} {data:?}", outcome.ending())
}

#[tokio::test]
async fn what_one_database_would_refuse_is_answered_the_same_before_both() {
    let Some(on_postgres) = verdicts(Postgres).await else {
        return;
    };
    let on_sqlite = verdicts(Sqlite).await.unwrap();
    for (one, other) in on_sqlite.iter().zip(&on_postgres) {
        assert_eq!(one, other);
        assert!(!one.contains(" 500 ") && !one.contains("orphaned"), "{one}");
    }
    let verdict = |n: usize| on_sqlite[n].split(" | ").nth(1).unwrap().to_owned();
    assert!(verdict(0).starts_with("data 202"), "{}", verdict(0));
    for refused in [1, 2, 4, 5, 6, 9, 10, 11, 13, 19, 28, 30] {
        assert!(
            verdict(refused).starts_with("data 400"),
            "{}",
            on_sqlite[refused]
        );
    }
}
