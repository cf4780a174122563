//! Budgets that the API sets, which replace those of the configuration.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{chat_request, scripted_in, scripted_with};
use crate::isolation::admin_key_of;
use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::{Engine, Postgres, Sqlite, TempDirectory, until};

const BUDGET: &str = "[[budgets]]\nname = \"run-calls\"\nscope = \"run\"\ncalls = 1\n";
const PATH: &str = "/v1/budgets/run-calls";

async fn invoke(host: &Client) -> ApiResponse {
    let request = host.request(Method::POST, "/models/talker/invoke");
    send(request.json(&chat_request("hello"))).await.unwrap()
}

async fn set(admin: &Client, spec: &Value) -> ApiResponse {
    admin.call(Method::PUT, PATH, spec).await
}

#[rstest]
#[tokio::test]
async fn set_budget_applies_to_next_call(#[values(Sqlite, Postgres)] engine: Engine) {
    let (stage, run) = or_skip!(scripted_with(engine, BUDGET).await);
    let admin = stage.admin.clone();
    let configured = admin.get(PATH).await.expect(200).body;
    assert_members!(configured, {"source": "configuration", "scope": "run", "window": "whole"});
    invoke(&run.host).await.expect(200);
    invoke(&run.host)
        .await
        .assert_detail(429, "budget", "run-calls");

    // Budgets of another workspace do not count here.
    let other = Client::new(&admin.url, &admin_key_of(&stage, "other").await);
    set(&other, &json!({"scope": "run", "calls": 9}))
        .await
        .expect(200);
    invoke(&run.host).await.expect(429);

    let raised = set(&admin, &json!({"scope": "run", "calls": 2}))
        .await
        .expect(200);
    assert_members!(raised.body, {
        "name": "run-calls", "source": "api", "most": json!({"calls": 2}), "configured": json!({"calls": 1}),
    });
    assert_eq!(raised.body["updated_by"]["kind"], "api_key");
    assert!(
        raised.body["updated_by"]["name"].is_string(),
        "{}",
        raised.body
    );
    assert_eq!(raised.body["used"][0]["calls"], 1);
    invoke(&run.host).await.expect(200);
    invoke(&run.host).await.expect(429);

    // Below the use: the use stays, and further calls are refused.
    let lowered = set(&admin, &json!({"scope": "run", "calls": 1}))
        .await
        .expect(200);
    assert_eq!(lowered.body["used"][0]["left"]["calls"], 0);
    let refused = invoke(&run.host).await;
    assert_eq!(
        (refused.detail("most"), refused.detail("used")),
        (&json!(1), &json!(2))
    );

    set(&admin, &json!({"scope": "run", "calls": 9}))
        .await
        .expect(200);
    assert_eq!(admin.delete(PATH).await.status, 204);
    assert_eq!(admin.get(PATH).await.body["source"], "configuration");
    invoke(&run.host).await.expect(429);
    assert_eq!(admin.delete(PATH).await.status, 404, "it is reset already");
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn reached_budget_is_one_message(#[values(Sqlite, Postgres)] engine: Engine) {
    let (stage, run) = or_skip!(scripted_with(engine, BUDGET).await);
    let spec = json!({"name": "feed", "events": ["budget.reached"]});
    stage.admin.create("/v1/webhooks", &spec).await.expect(201);
    invoke(&run.host).await.expect(200);
    for _ in 0..3 {
        invoke(&run.host).await.expect(429);
    }
    let mut items = Value::Null;
    let feed = async |count: usize, items: &mut Value| {
        let page = stage.client.get("/v1/feed?after=0").await.expect(200);
        *items = page.body["items"].clone();
        items.as_array().unwrap().len() == count
    };
    until("the message", async || feed(1, &mut items).await).await;
    assert_members!(items[0], {
        "type": "budget.reached", "budget": "run-calls", "run_id": run.run_id,
    });
    // Another limit of the same window is another message.
    set(&stage.admin, &json!({"scope": "run", "calls": 2}))
        .await
        .expect(200);
    invoke(&run.host).await.expect(200);
    invoke(&run.host).await.expect(429);
    until("the second message", async || feed(2, &mut items).await).await;
    run.end(&stage).await;
}

#[tokio::test]
async fn set_budget_applies_on_every_replica() {
    let directory = TempDirectory::new();
    let staged = scripted_in(&directory, Postgres, |config| {
        // Replicas share the public URL that issues tokens.
        "public_url = \"http://runnel.test\"".clone_into(&mut config.server);
        config.rest += BUDGET;
    });
    let (stage, run) = or_skip!(staged.await);
    let replica = stage.gateway.start_replica().await;
    let there = Client::new(&format!("{}/host/v1", replica.client.url), &run.token);
    invoke(&there).await.expect(200);
    invoke(&there).await.expect(429);
    set(&stage.admin, &json!({"scope": "run", "calls": 2}))
        .await
        .expect(200);
    until("the other replica to read it", async || {
        invoke(&there).await.status == 200
    })
    .await;
    invoke(&there).await.expect(429);
    run.end(&stage).await;
}

#[tokio::test]
async fn budget_of_api_needs_no_configured_one() {
    let (stage, run) = scripted_with(Sqlite, "").await.unwrap();
    let spec = json!({"scope": "workspace", "window": "month", "tokens": 1});
    set(&stage.admin, &spec).await.expect(200);
    invoke(&run.host)
        .await
        .assert_detail(429, "limit", "tokens");
    let dry_run = stage
        .admin
        .create("/v1/agents/dry-run", &message("dry"))
        .await;
    let budgets = &dry_run.expect(200).body["agent"]["budgets"];
    let expected = json!([{
        "name": "run-calls", "source": "api", "scope": "workspace", "window": "month",
        "most": {"tokens": 1}, "on_reached": "refuse",
    }]);
    assert_eq!(*budgets, expected);
    assert_eq!(stage.admin.delete(PATH).await.status, 204);
    assert_eq!(stage.admin.get(PATH).await.status, 404);
    invoke(&run.host).await.expect(200);
    run.end(&stage).await;
}

#[tokio::test]
async fn invalid_budgets_are_refused_by_pointer() {
    let (stage, run) = scripted_with(Sqlite, BUDGET).await.unwrap();
    let admin = &stage.admin;
    for (spec, pointer) in [
        (json!({"calls": 1}), "/scope"),
        (json!({"scope": "team", "calls": 1}), "/scope"),
        (json!({"scope": "run"}), "/calls"),
        (
            json!({"scope": "run", "window": "day", "calls": 1}),
            "/window",
        ),
        (json!({"scope": "agent", "calls": 1}), "/window"),
        (json!({"scope": "run", "calls": -1}), "/calls"),
        (json!({"scope": "run", "tokens": 1.5}), "/tokens"),
        (json!({"scope": "run", "cost": -0.5}), "/cost"),
        (json!({"scope": "run", "cost": "NaN"}), "/cost"),
        (json!({"scope": "run", "seconds": 1e10}), "/seconds"),
        (json!({"scope": "run", "calls": 1, "only": "main"}), "/only"),
        (json!({"scope": "run", "calls": 1, "most": 1}), "/most"),
    ] {
        let refused = set(admin, &spec).await;
        assert_eq!(
            (refused.status, refused.detail("pointer")),
            (400, &json!(pointer)),
            "{spec}"
        );
    }
    let valid = json!({"scope": "run", "calls": 1});
    for name in ["%20", "a%0Ab", &"n".repeat(256)] {
        let path = format!("/v1/budgets/{name}");
        let refused = admin.call(Method::PUT, &path, &valid).await;
        refused.assert_error(400, "code", "invalid_argument");
    }
    let client = stage.client.call(Method::PUT, PATH, &valid).await;
    client.assert_error(403, "code", "unauthorized");
    assert_eq!(admin.get(PATH).await.body["source"], "configuration");
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn number_of_set_budgets_is_bounded(#[values(Sqlite, Postgres)] engine: Engine) {
    let (stage, run) = or_skip!(scripted_with(engine, "").await);
    let spec = json!({"scope": "run", "calls": 100});
    let path = |n: u32| format!("/v1/budgets/b-{n}");
    for n in 0..100 {
        stage
            .admin
            .call(Method::PUT, &path(n), &spec)
            .await
            .expect(200);
    }
    let full = stage.admin.call(Method::PUT, &path(100), &spec).await;
    full.assert_detail(409, "reason", "too_many_budgets");
    stage
        .admin
        .call(Method::PUT, &path(99), &spec)
        .await
        .expect(200);
    invoke(&run.host).await.expect(200);
    run.end(&stage).await;
}
