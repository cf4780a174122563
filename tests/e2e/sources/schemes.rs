//! Each scheme: signatures, timestamps, repetitions, and challenges.

use rstest::rstest;

use super::*;
use crate::support::{Postgres, Sqlite};

/// The schemes with their secrets.
const SCHEMES: [(&str, &str); 8] = [
    ("standard_webhooks", STANDARD),
    ("github", SECRET),
    ("slack", SECRET),
    ("stripe", SECRET),
    ("feishu", SECRET),
    ("dingtalk", SECRET),
    ("wecom", WECOM),
    ("hmac", SECRET),
];
/// Schemes that sign no time.
const WITHOUT_TIME: [&str; 2] = ["github", "hmac"];

fn body_of(scheme: &str, n: u32) -> String {
    if scheme == "wecom" {
        format!("<xml><MsgId>{n}</MsgId><n>{n}</n></xml>")
    } else {
        json!({"n": n, "id": format!("evt_{n}"), "event_id": format!("Ev{n}"), "msgId": format!("msg{n}"),
               "header": {"event_id": format!("f{n}")}})
        .to_string()
    }
}

async fn created(stage: &OwnStage, scheme: &str, secret: &str) -> Value {
    let mut more = json!({"secret": secret});
    if scheme == "hmac" {
        more["header"] = json!("X-Signature");
        more["prefix"] = json!("v1=");
        more["encoding"] = json!("base64");
    }
    create(&stage.admin, scheme, &more).await
}

#[rstest]
#[tokio::test]
async fn accepts_each_request_once(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    for (scheme, secret) in SCHEMES {
        let source = created(&stage, scheme, secret).await;
        let path = path_of(&source);
        let at = now();
        let first = signed(scheme, secret, &body_of(scheme, 1), at);
        // The same request again, and the same event signed at another time.
        let later = signed(scheme, secret, &body_of(scheme, 1), at - 7);
        for posted in [&first, &first, &later] {
            posted.to(&stage.client, path).await.expect(200);
        }
        let second = signed(scheme, secret, &body_of(scheme, 2), at);
        second.to(&stage.client, path).await.expect(200);
        let name = source["name"].as_str().unwrap();
        let events = events(&stage).await;
        let own = events
            .iter()
            .filter(|(id, _)| id.starts_with(&format!("{name}/")));
        let own: Vec<_> = own.collect();
        assert_eq!(own.len(), 2, "{scheme}: {own:?}");
        assert!(
            own.iter().all(|(_, count)| **count == 1),
            "{scheme}: {own:?}"
        );
    }
    let runs = stage.client.get("/v1/runs?limit=100").await.expect(200);
    let runs = runs.body["items"].as_array().unwrap().len();
    assert_eq!(runs, 2 * SCHEMES.len());
}

#[tokio::test]
async fn refuses_wrong_and_old_signatures() {
    let stage = stage_of(Sqlite).await.unwrap();
    for (scheme, secret) in SCHEMES {
        let source = created(&stage, scheme, secret).await;
        let path = path_of(&source);
        let body = body_of(scheme, 1);
        let other = match scheme {
            "standard_webhooks" => STANDARD.replace("MDEy", "MDEz"),
            "wecom" => WECOM.replace("QDG6eK", "QDG6eL"),
            _ => SECRET.replace('0', "1"),
        };
        let mut refused = vec![
            signed(scheme, &other, &body, now()),
            Posted {
                headers: Vec::new(),
                query: String::new(),
                ..signed(scheme, secret, &body, now())
            },
        ];
        if !WITHOUT_TIME.contains(&scheme) {
            refused.push(signed(scheme, secret, &body, now() - 310));
            refused.push(signed(scheme, secret, &body, now() + 310));
        }
        // DingTalk does not sign the body.
        if scheme != "dingtalk" {
            let mut changed = signed(scheme, secret, &body, now());
            changed.body = signed(scheme, secret, &body_of(scheme, 2), now() - 1).body;
            refused.push(changed);
        }
        for posted in refused {
            posted.to(&stage.client, path).await.expect(401);
        }
    }
    assert_eq!(events(&stage).await.len(), 0);
}

#[tokio::test]
async fn answers_challenges_of_platforms() {
    let stage = stage_of(Sqlite).await.unwrap();
    let check = json!({"type": "url_verification", "challenge": "c-1", "token": "t"}).to_string();
    let slack = created(&stage, "slack", SECRET).await;
    let posted = signed("slack", SECRET, &check, now());
    let answer = posted.to(&stage.client, path_of(&slack)).await.expect(200);
    assert_eq!(answer.body, json!({"challenge": "c-1"}));
    let unsigned = Posted {
        headers: Vec::new(),
        ..posted
    };
    unsigned
        .to(&stage.client, path_of(&slack))
        .await
        .expect(401);

    // Feishu does not sign its check, but encrypts it.
    let feishu = created(&stage, "feishu", SECRET).await;
    let unsigned = |body: &str| Posted {
        headers: Vec::new(),
        ..signed("feishu", SECRET, body, now())
    };
    let answer = unsigned(&check).to(&stage.client, path_of(&feishu)).await;
    assert_eq!(answer.expect(200).body, json!({"challenge": "c-1"}));
    let event = unsigned(&body_of("feishu", 1));
    event.to(&stage.client, path_of(&feishu)).await.expect(401);
    let plain = Posted {
        body: check.clone(),
        ..Posted::default()
    };
    plain.to(&stage.client, path_of(&feishu)).await.expect(401);

    let wecom_source = created(&stage, "wecom", WECOM).await;
    let (query, echo) = wecom(WECOM, "1616140317555161061", now());
    let echo: String = url::form_urlencoded::byte_serialize(echo.as_bytes()).collect();
    let get = |query: String| {
        let path = format!("{}{query}&echostr={echo}", path_of(&wecom_source));
        stage.client.anonymous(Method::GET, &path).send()
    };
    let answer = get(query.clone()).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.text().await.unwrap(), "1616140317555161061");
    let wrong = get(query.replace("nonce=nonce", "nonce=other")).await;
    assert_eq!(wrong.unwrap().status(), 401);
    assert_eq!(events(&stage).await.len(), 0);
}

#[tokio::test]
async fn accepts_examples_of_documentation() {
    let stage = stage_of(Sqlite).await.unwrap();
    let filter = r#"{event_type: "message.received", input: {text: .body}}"#;
    let more = json!({"secret": "It's a Secret to Everybody", "filter": filter});
    let github = create(&stage.admin, "github", &more).await;
    let sign = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let posted = Posted {
        headers: vec![("x-hub-signature-256", sign.to_owned())],
        query: String::new(),
        body: "Hello, World!".to_owned(),
    };
    let answer = posted.to(&stage.client, path_of(&github)).await.expect(200);
    let path = format!(
        "/v1/raw-payloads/{}",
        answer.body["event_id"].as_str().unwrap()
    );
    let raw = stage.admin.get(&path).await.expect(200);
    assert_eq!(raw.body, json!("Hello, World!"));
}

#[tokio::test]
async fn secret_paths_need_no_signature() {
    let stage = stage_of(Sqlite).await.unwrap();
    let source = create(&stage.admin, "none", &json!({})).await;
    let secret = source["secret"].as_str().unwrap();
    let path = format!("{}/{secret}", path_of(&source));
    let posted = signed("none", "", &body_of("none", 1), now());
    // Nothing tells a repetition from a second event.
    for _ in 0..2 {
        posted.to(&stage.client, &path).await.expect(200);
    }
    assert_eq!(events(&stage).await.len(), 2);
    let github = created(&stage, "github", SECRET).await;
    for path in [
        path_of(&source).to_owned(),
        format!("{}/wrong", path_of(&source)),
        format!("{}/{SECRET}", path_of(&github)),
    ] {
        posted.to(&stage.client, &path).await.expect(401);
    }
}
