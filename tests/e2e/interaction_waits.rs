//! Interactions that a live run waits for, and the answer page that needs no key.

use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::interactions::{ask, asking_event, question, stage, stage_with};
use crate::support::client::{ApiResponse, Client, send};
use crate::support::held::HeldRun;
use crate::support::script::{Gate, ScriptStep, send as step, sse_head};
use crate::support::{Engine, Postgres, Sqlite, Stage, until, within};

/// A live run that has opened one interaction and waits.
struct WaitingInteraction {
    run_id: String,
    /// The gateway's id of the interaction; the runner's id is `q`.
    id: String,
    /// The host API with the run's token.
    host: Client,
    gate: Gate,
}

impl WaitingInteraction {
    async fn start(stage: &Stage, event_id: &str, more: &Value) -> Self {
        let gate = Gate::new();
        let hold = gate.clone();
        let mut interaction = question("q", &json!({"await": true}));
        interaction
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let data = json!({"action": "interaction.requested", "payload": interaction}).to_string();
        stage.runner.answer(event_id, move |run| {
            vec![
                sse_head(),
                step(run.result(1, "action.requested", &data)),
                ScriptStep::Hold(hold.clone()),
                step(run.delta(2, "done") + &run.completed(3)),
            ]
        });
        let run_id = stage.client.post(&asking_event(event_id)).await.run_id();
        let host = stage.host_of(&run_id).await;
        let path = format!("/v1/interactions?run_id={run_id}");
        let mut id = None;
        until("the question", async || {
            let listed = stage.client.get(&path).await.body;
            id = listed["items"][0]["id"].as_str().map(str::to_owned);
            id.is_some()
        })
        .await;
        Self {
            run_id,
            id: id.unwrap(),
            host,
            gate,
        }
    }

    async fn wait(&self, seconds: u64) -> ApiResponse {
        wait(&self.host, "q", seconds).await
    }

    async fn submit(&self, client: &Client, choice: &str) -> ApiResponse {
        let path = format!("/v1/interactions/{}/submit", self.id);
        client.create(&path, &answer(choice)).await
    }

    async fn end(&self, stage: &Stage) {
        self.gate.cancel();
        let run = stage.client.finished(&self.run_id).await;
        assert_eq!(run["status"], "completed");
    }

    async fn shown(&self, stage: &Stage) -> Value {
        let path = format!("/v1/interactions/{}", self.id);
        stage.client.get(&path).await.body
    }

    /// Creates a new link and returns the path of its page.
    async fn page(&self, stage: &Stage) -> String {
        let path = format!("/v1/interactions/{}/link", self.id);
        let made = stage.client.create(&path, &json!({})).await.body;
        let page = made["page_url"].as_str().unwrap();
        let token = made["token"].as_str().unwrap();
        let path = format!("/v1/interactions/{token}/page");
        assert!(page.ends_with(&path), "{page}");
        path
    }
}

async fn wait(host: &Client, id: &str, seconds: u64) -> ApiResponse {
    host.get(&format!("/interactions/{id}?wait_seconds={seconds}"))
        .await
}

fn answer(choice: &str) -> Value {
    json!({"interaction_id": "q", "action_id": "book", "values": {"room": choice}})
}

/// An HTML response.
struct Html {
    status: u16,
    headers: HeaderMap,
    text: String,
}

async fn html(request: reqwest::RequestBuilder) -> Html {
    let response = within("a page", request.send()).await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = within("its text", response.text()).await.unwrap();
    Html {
        status,
        headers,
        text,
    }
}

async fn get_page(client: &Client, path: &str) -> Html {
    html(client.anonymous(Method::GET, path)).await
}

/// Submits the form as a browser does, without following redirects.
async fn post_page(client: &Client, path: &str, form: &str) -> Html {
    let browser = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let request = browser
        .build()
        .unwrap()
        .post(format!("{}{path}", client.url));
    let request = request
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header("origin", &client.url);
    html(request.body(form.to_owned())).await
}

#[rstest]
#[tokio::test]
async fn returns_answer_to_waiting_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let asking = WaitingInteraction::start(&stage, "m-1", &json!({})).await;
    assert_eq!(asking.wait(0).await.body, json!({"status": "open"}));
    let (resolution, taken) = tokio::join!(asking.wait(30), asking.submit(&stage.client, "b"));
    assert_eq!(
        (taken.status, taken.is_replay()),
        (200, false),
        "{}",
        taken.body
    );
    assert_eq!(taken.body["status"], "submitted");
    assert_eq!(taken.body["submitted_run_id"], asking.run_id.as_str());
    assert_eq!(taken.body.get("submitted_event_id"), None);
    let answer = &taken.body["answer"];
    assert_eq!(answer["action_id"], "book");
    assert_eq!(answer["by"]["kind"], "api_key", "{answer}");
    let actor = &resolution.body["actor"];
    assert_eq!(actor["actor_type"], "api_key");
    assert!(actor["actor_id"].is_string());
    let expected = json!({"status": "submitted", "action_id": "book", "values": {"room": "b"}, "actor": actor});
    assert_eq!((resolution.status, &resolution.body), (200, &expected));
    assert_eq!(asking.wait(0).await.body, expected, "as often as it asks");

    let again = asking.submit(&stage.client, "b").await;
    assert!(again.is_replay());
    assert_eq!((again.status, &again.body), (200, &taken.body));
    let other = asking.submit(&stage.client, "a").await;
    assert_eq!(
        other.detail("reason"),
        "already_submitted",
        "{}",
        other.body
    );
    let audit = stage
        .client
        .get(&format!("/v1/runs/{}/audit", asking.run_id))
        .await
        .body;
    let calls = audit["items"].as_array().unwrap();
    for action in ["interaction_get", "interaction_answer"] {
        assert!(
            calls.iter().any(|call| call["action"] == action),
            "{action}: {audit}"
        );
    }

    asking.end(&stage).await;
    let again = asking.submit(&stage.client, "b").await;
    assert_eq!((again.status, &again.body), (200, &taken.body));
    let event = format!("/v1/events/interaction:{}", asking.id);
    assert_eq!(
        stage.client.get(&event).await.status,
        404,
        "no event is made"
    );
    let runs = stage.client.get("/v1/runs").await.body;
    assert_eq!(runs["items"].as_array().unwrap().len(), 1);
    assert_eq!(asking.wait(0).await.status, 401);
}

#[rstest]
#[tokio::test]
async fn late_answer_becomes_an_event(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let asking = WaitingInteraction::start(&stage, "m-1", &json!({})).await;
    asking.end(&stage).await;
    assert_eq!(asking.shown(&stage).await["status"], "open");
    let taken = asking.submit(&stage.client, "b").await.expect(202);
    let run_id = taken.run_id();
    stage.client.finished(&run_id).await;
    let request = stage.runner.run_request(&run_id).await.json();
    let context = &request["context"];
    assert_members!(context["input"]["interaction"], {"values": json!({"room": "b"})});
    let actor = &context["event"]["data"]["answered_by"];
    assert_eq!(actor["actor_type"], "api_key", "{context}");
    let shown = asking.shown(&stage).await;
    assert_eq!(shown["submitted_run_id"], run_id.as_str());
    assert!(asking.submit(&stage.client, "b").await.is_replay());
    let other = asking.submit(&stage.client, "a").await;
    assert_eq!(other.detail("reason"), "already_submitted");
}

#[rstest]
#[tokio::test]
async fn reports_expiry_to_waiting_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let soon = json!({"expires_at": now + 3});
    let asking = WaitingInteraction::start(&stage, "m-1", &soon).await;
    let page = asking.page(&stage).await;
    let began = Instant::now();
    let resolution = asking.wait(30).await;
    assert_eq!(
        (resolution.status, resolution.body),
        (200, json!({"status": "expired"}))
    );
    assert!(began.elapsed().as_secs() < 20, "not at the end of the wait");
    let late = asking.submit(&stage.client, "a").await;
    late.assert_detail(410, "reason", "expired");
    assert_eq!(asking.shown(&stage).await["status"], "expired");
    let shown = get_page(&stage.client, &page).await;
    assert_eq!(shown.status, 410);
    assert!(shown.text.contains("<h1>Expired</h1>"), "{}", shown.text);
    let late = post_page(&stage.client, &page, "action=book&field-0=a").await;
    assert_eq!(late.status, 410);
}

#[rstest]
#[tokio::test]
async fn reports_cancel_to_waiting_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let asking = WaitingInteraction::start(&stage, "m-1", &json!({})).await;
    let (resolution, cancelled) =
        tokio::join!(asking.wait(30), stage.client.cancel(&asking.run_id));
    assert_eq!(cancelled.status, 202);
    assert_eq!(
        (resolution.status, resolution.body),
        (200, json!({"status": "cancelled"}))
    );
    let late = asking.submit(&stage.client, "a").await;
    late.assert_detail(410, "reason", "cancelled");
}

#[rstest]
#[tokio::test]
async fn rejects_waits_on_foreign_or_unawaited_interactions(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(stage(engine).await);
    let asking = WaitingInteraction::start(&stage, "m-1", &json!({"interaction_id": "mine"})).await;
    let mut other = asking_event("m-2");
    other["conversation"]["conversation_id"] = json!("c-8");
    let other = HeldRun::start(&stage, &other).await;
    for id in ["mine", &asking.id] {
        let refused = wait(&other.host, id, 0).await;
        assert_eq!(refused.status, 404, "{id}: {}", refused.body);
    }
    assert_eq!(
        wait(&asking.host, &asking.id, 0).await.status,
        404,
        "not the gateway's id"
    );
    assert_eq!(wait(&asking.host, "mine", 31).await.status, 400);
    assert_eq!(wait(&asking.host, "mine", 0).await.status, 200);
    let mut unallowed = asking_event("m-3");
    unallowed["event_type"] = json!("test.unallowed");
    let unallowed = HeldRun::start(&stage, &unallowed).await;
    assert_eq!(wait(&unallowed.host, "mine", 30).await.status, 403);
    let plain = WaitingInteraction::start(&stage, "m-4", &json!({"await": false})).await;
    let refused = plain.wait(30).await;
    refused.assert_detail(409, "reason", "not_awaited");
    let taken = plain.submit(&stage.client, "a").await;
    assert_eq!(
        taken.status, 202,
        "an event, though its run lives: {}",
        taken.body
    );
}

#[tokio::test]
async fn limits_concurrent_waits_of_a_run() {
    let stage = stage(Sqlite).await.unwrap();
    let asking = WaitingInteraction::start(&stage, "m-1", &json!({})).await;
    // A wait that finds its slot taken by a probe below tries again.
    let wait = async |_| {
        loop {
            let resolution = asking.wait(30).await;
            if resolution.status != 429 {
                return resolution.status;
            }
        }
    };
    let waits = futures_util::future::join_all((0..8).map(wait));
    let end = async {
        let mut refused = Value::Null;
        until("a refusal", async || {
            let probe = asking.wait(0).await;
            refused = probe.body;
            probe.status == 429
        })
        .await;
        asking.submit(&stage.client, "a").await;
        refused
    };
    let (resolution, refused) = tokio::join!(waits, end);
    assert_eq!(refused["error"]["details"]["reason"], "interaction_waits");
    assert_eq!(resolution, [200; 8]);
}

#[tokio::test]
async fn reads_answers_by_mcp() {
    let stage = stage(Sqlite).await.unwrap();
    let asking = WaitingInteraction::start(&stage, "m-1", &json!({})).await;
    let call = async |method: &str, params: Value| {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let request = asking.host.request(Method::POST, "/mcp").json(&message);
        send(request).await.unwrap().body
    };
    let listed = call("tools/list", json!({})).await;
    assert_contains!(listed.to_string(), "wait_for_interaction");
    assert_eq!(asking.submit(&stage.client, "a").await.status, 200);
    let query = json!({"interaction_id": "q", "wait_seconds": 5});
    let read = json!({"name": "wait_for_interaction", "arguments": query});
    let read = call("tools/call", read).await;
    let state = &read["result"]["structuredContent"];
    assert_eq!(
        (&state["status"], &state["values"]["room"]),
        (&json!("submitted"), &json!("a")),
        "{read}"
    );
}

#[tokio::test]
async fn answers_waiting_run_across_replicas() {
    // A token is valid for one public URL, which replicas share.
    let stage = stage_with(Postgres, |config| {
        "public_url = \"http://runnel.invalid\"".clone_into(&mut config.server);
    });
    let stage = or_skip!(stage.await);
    let replica = stage.gateway.start_replica().await;
    let asking = WaitingInteraction::start(&stage, "m-1", &json!({})).await;
    let host = Client::new(&format!("{}/host/v1", replica.client.url), &asking.host.key);
    let (resolution, taken) = tokio::join!(wait(&host, "q", 30), asking.submit(&stage.client, "a"));
    assert_eq!(taken.status, 200, "{}", taken.body);
    assert_members!(resolution.body, {"status": "submitted"});

    let asking = WaitingInteraction::start(&stage, "m-2", &json!({})).await;
    let (resolution, taken) = tokio::join!(asking.wait(30), asking.submit(&replica.client, "b"));
    assert_eq!(taken.status, 200, "{}", taken.body);
    assert_members!(resolution.body, {"values": json!({"room": "b"})});
}

#[rstest]
#[tokio::test]
async fn answers_by_page_without_a_key(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let asking =
        WaitingInteraction::start(&stage, "m-1", &json!({"description": "rm -rf <all> && ls"}))
            .await;
    let old = asking.page(&stage).await;
    let page = asking.page(&stage).await;
    let client = &stage.client;
    let shown = get_page(client, &page).await;
    assert_eq!(shown.status, 200, "{}", shown.text);
    for part in [
        "<h1>Which room?</h1>",
        "<pre>\nrm -rf &lt;all&gt; &amp;&amp; ls</pre>",
        "<option value=\"b\">B</option>",
        "name=\"action\" value=\"book\">Book</button>",
    ] {
        assert!(shown.text.contains(part), "{part}: {}", shown.text);
    }
    let header = |name: &str| shown.headers[name].to_str().unwrap();
    assert_eq!(header("content-type"), "text/html; charset=utf-8");
    assert_eq!(header("cache-control"), "no-store");
    assert_eq!(header("referrer-policy"), "same-origin");
    let policy = header("content-security-policy");
    assert_starts_with!(policy, "default-src 'none'; style-src 'sha256-");
    for address in ["http:", "https:", "src=", "href="] {
        assert!(!shown.text.contains(address), "{address}: {}", shown.text);
    }

    let wrong = post_page(client, &page, "action=book&field-0=").await;
    assert_eq!(wrong.status, 400);
    assert_contains!(wrong.text, "<li>Room is required");
    let outdated = post_page(client, &old, "action=book&field-0=b").await;
    assert_eq!(outdated.status, 401);
    let (resolution, taken) = tokio::join!(
        asking.wait(30),
        post_page(client, &page, "action=book&field-0=b")
    );
    assert_eq!(
        (taken.status, &taken.headers["location"]),
        (303, &"page".parse().unwrap())
    );
    let expected = json!({"status": "submitted", "action_id": "book", "values": {"room": "b"},
        "actor": {"actor_type": "link"}});
    assert_eq!(resolution.body, expected);
    let again = post_page(client, &page, "action=book&field-0=b").await;
    assert_eq!(again.status, 303, "the same again is no fault");
    let other = post_page(client, &page, "action=book&field-0=a").await;
    assert_eq!(other.status, 409);
    assert_contains!(other.text, "<h1>Already answered</h1>");
    let shown = get_page(client, &page).await;
    assert!(
        shown.status == 200 && shown.text.contains("<h1>Answered</h1>"),
        "{}",
        shown.text
    );
    assert!(
        !stage
            .gateway
            .log()
            .contains(page.split('/').nth(3).unwrap()),
        "no log has the token"
    );
}

#[tokio::test]
async fn late_page_answer_becomes_an_event() {
    let stage = stage(Sqlite).await.unwrap();
    let run_id = ask(&stage, &asking_event("m-1"), &[question("q", &json!({}))]).await;
    let listed = stage
        .client
        .get(&format!("/v1/interactions?run_id={run_id}"))
        .await
        .body;
    let id = listed["items"][0]["id"].as_str().unwrap().to_owned();
    let (host, gate) = (stage.host_of(&run_id).await, Gate::new());
    let waiting = WaitingInteraction {
        run_id,
        id,
        host,
        gate,
    };
    let page = waiting.page(&stage).await;
    let posted = post_page(&stage.client, &page, "action=book&field-0=a").await;
    assert_eq!(posted.status, 303);
    let shown = waiting.shown(&stage).await;
    let run_id = shown["submitted_run_id"].as_str().unwrap();
    let request = stage.runner.run_request(run_id).await.json();
    let actor = &request["context"]["event"]["data"]["answered_by"];
    assert_eq!(*actor, json!({"actor_type": "link"}));
}

#[tokio::test]
async fn escapes_every_text_on_the_page() {
    let stage = stage(Sqlite).await.unwrap();
    let evil = "\"'><script>alert(1)</script><img src=x onerror=y>";
    let options = json!([{"value": evil, "label": evil, "description": evil}]);
    let field = |kind: &str| {
        json!({"id": format!("{kind}{evil}"), "label": evil, "type": kind, "options": options,
            "placeholder": evil, "default": evil})
    };
    let kinds = [
        "text",
        "textarea",
        "select",
        "multiselect",
        "boolean",
        "number",
        "file",
    ];
    let texts = json!({
        "title": evil, "description": format!("{evil}\u{202e}"), "fallback_text": evil,
        "fields": kinds.map(field), "actions": [{"id": evil, "label": evil}],
    });
    let asking = WaitingInteraction::start(&stage, "m-1", &texts).await;
    let page = asking.page(&stage).await;
    let shown = get_page(&stage.client, &page).await;
    let refused = post_page(
        &stage.client,
        &page,
        "action=%3Cscript%3E&field-5=%3Cscript%3E",
    )
    .await;
    assert_eq!((shown.status, refused.status), (200, 400));
    for text in [&shown.text, &refused.text] {
        assert_lacks!(text, "<script", "<img");
        assert!(text.contains("&lt;script&gt;alert(1)"), "{text}");
    }
    assert!(shown.text.contains("[U+202E]"), "{}", shown.text);
}

#[tokio::test]
async fn shows_no_page_to_unknown_links() {
    let stage = stage(Sqlite).await.unwrap();
    let asking = WaitingInteraction::start(&stage, "m-1", &json!({})).await;
    for token in [asking.id.as_str(), "x", "%00"] {
        let path = format!("/v1/interactions/{token}/page");
        let shown = get_page(&stage.client, &path).await;
        assert!(
            matches!(shown.status, 400 | 401),
            "{token}: {}",
            shown.status
        );
        assert_eq!(shown.headers["content-type"], "text/html; charset=utf-8");
    }
    let page = asking.page(&stage).await;
    let request = stage
        .client
        .anonymous(Method::POST, &page)
        .json(&answer("a"));
    assert_eq!(html(request).await.status, 400, "only a form");
    let foreign = stage.client.anonymous(Method::POST, &page);
    let foreign = foreign.header("origin", "https://elsewhere.example");
    assert_eq!(send(foreign).await.unwrap().status, 403);
}
