use std::time::Duration;

use protocol::JsonObject;
use protocol::history::{HistoryFilters, HistorySearch};
use protocol::resources::{StateScope, StorageArea};
use serde_json::json;

use super::*;
use crate::testing::{FakeHost, FakeHostCall, TOKEN, resumable_host, resume, run_record};

const NOW: i64 = 1_795_291_200;
const CONVERSATION: StateScope = StateScope::Conversation;

async fn connected() -> (FakeHost, Host) {
    let fake = FakeHost::start().await.unwrap();
    let host = HostClient::new().host(fake.access(NOW), None, NOW);
    (fake, host)
}

fn last_call(fake: &FakeHost) -> FakeHostCall {
    fake.calls().pop().unwrap()
}

/// Checks the request of one host API call and its parsed response.
async fn check(fake: &FakeHost, expected: &str) {
    let call = last_call(fake);
    assert_eq!(format!("{} {}", call.method, call.path), expected);
    assert_eq!(call.headers["authorization"], format!("Bearer {TOKEN}"));
}

#[tokio::test]
async fn sends_state_calls_with_token() {
    let (fake, host) = connected().await;

    assert_eq!(host.run().await.unwrap().event_id, "m-1001");
    check(&fake, "GET /run").await;

    let text = fake.access(NOW);
    let context = crate::testing::run_request("plugin:a/b/c", "hi", &text)
        .unwrap()
        .context;
    fake.answer(200, serde_json::to_value(&context).unwrap());
    assert_eq!(host.context().await.unwrap(), context);
    check(&fake, "GET /context").await;

    fake.answer(200, json!({"value": [1], "version": 3}));
    let entry = host
        .state()
        .get(CONVERSATION, "a/b c?#.ä")
        .await
        .unwrap()
        .unwrap();
    assert_eq!((entry.value, entry.version), (json!([1]), 3));
    check(&fake, "GET /state/conversation/a%2Fb%20c%3F%23.%C3%A4").await;

    fake.answer(200, json!({"version": 4}));
    assert_eq!(
        host.state().put(StateScope::Actor, "k", 7).await.unwrap(),
        4
    );
    check(&fake, "PUT /state/actor/k").await;
    assert_eq!(last_call(&fake).body, json!({"value": 7}));
    assert!(!last_call(&fake).headers.contains_key("if-match"));

    fake.answer(200, json!({"version": 5}));
    assert_eq!(
        host.state()
            .put_if_version(CONVERSATION, "k", json!(null), 4)
            .await
            .unwrap(),
        5
    );
    assert_eq!(last_call(&fake).headers["if-match"], "4");

    let leased = json!({"value": 1, "lease_seconds": 60, "bodies": {"b": 2}, "body_ids": ["a"]});
    let entry = serde_json::from_value(leased.clone()).unwrap();
    fake.answer(200, json!({"version": 6}));
    let written = host.state().write(CONVERSATION, "k", &entry, Some(5)).await;
    assert_eq!(written.unwrap(), 6);
    assert_eq!(last_call(&fake).body, leased);
    assert_eq!(last_call(&fake).headers["if-match"], "5");
    fake.answer(200, json!([2]));
    let body = host.state().body(CONVERSATION, "k/1", "b").await.unwrap();
    assert_eq!(body, Some(json!([2])));
    check(&fake, "GET /state-bodies/conversation/b/k%2F1").await;

    fake.answer(204, json!(null));
    assert!(host.state().delete(CONVERSATION, "k").await.unwrap());
    check(&fake, "DELETE /state/conversation/k").await;

    fake.answer(200, json!({"keys": ["a.b"], "has_more": true}));
    assert!(
        host.state()
            .list(CONVERSATION, "a.", 1)
            .await
            .unwrap()
            .has_more
    );
    check(&fake, "GET /state/conversation?prefix=a.&limit=1").await;
}

#[tokio::test]
async fn sends_only_set_history_parameters() {
    let (fake, host) = connected().await;
    let page = json!({"items": [], "next_cursor": null, "prev_cursor": null, "has_more": false});
    fake.answer(200, page.clone());
    let query = HistoryPageQuery {
        limit: Some(5),
        direction: Some(PageDirection::Forward),
        include_attachments: true,
        ..HistoryPageQuery::default()
    };
    assert!(host.history().page(&query).await.unwrap().items.is_empty());
    check(
        &fake,
        "GET /history?limit=5&direction=forward&include_attachments=true",
    )
    .await;
    let query = HistoryPageQuery {
        conversation_id: Some("c-7".to_owned()),
        before_cursor: Some("b_".to_owned()),
        after_cursor: Some("a-".to_owned()),
        ..HistoryPageQuery::default()
    };
    fake.answer(200, page);
    host.history().page(&query).await.unwrap();
    check(
        &fake,
        "GET /history?conversation_id=c-7&before_cursor=b_&after_cursor=a-",
    )
    .await;

    fake.answer(200, json!({"items": [], "total_count": 0, "query": "天气"}));
    let search = HistorySearch {
        query: "天气".to_owned(),
        ..HistorySearch::default()
    };
    assert_eq!(host.history().search(&search).await.unwrap().query, "天气");
    check(&fake, "POST /history/search").await;
    assert_eq!(last_call(&fake).body, json!({"query": "天气"}));
    let search = HistorySearch {
        filters: Some(HistoryFilters {
            roles: vec!["user".to_owned()],
            before_cursor: Some("b_".to_owned()),
            ..HistoryFilters::default()
        }),
        top_k: Some(3),
        ..search
    };
    fake.answer(200, json!({"items": [], "total_count": 0, "query": "天气"}));
    host.history().search(&search).await.unwrap();
    let filters = json!({"roles": ["user"], "before_cursor": "b_"});
    assert_eq!(
        last_call(&fake).body,
        json!({"query": "天气", "filters": filters, "top_k": 3})
    );
}

#[tokio::test]
async fn returns_none_for_absent_entries() {
    let (fake, host) = connected().await;
    let absent = json!({"error": {"code": "not_found", "message": "there is no such key"}});
    fake.answer(404, absent.clone());
    assert_eq!(host.state().get(CONVERSATION, "k").await.unwrap(), None);
    fake.answer(404, absent);
    assert!(!host.state().delete(CONVERSATION, "k").await.unwrap());
}

#[tokio::test]
async fn keeps_error_fields_of_gateway() {
    let (fake, host) = connected().await;
    fake.answer(
        409,
        json!({"error": {"code": "conflict", "message": "somebody was first", "retryable": true,
                         "details": {"version": 9}}}),
    );
    let error = host
        .state()
        .put_if_version(CONVERSATION, "k", 1, 4)
        .await
        .unwrap_err();
    assert!(error.is_conflict() && error.retryable);
    assert_eq!(
        (error.message.as_str(), &error.details["version"]),
        ("somebody was first", &json!(9))
    );

    for (status, body, code, retryable) in [
        (502, json!("<html>"), "callback.http_error", true),
        (403, json!({"detail": "no"}), "callback.http_error", false),
        (307, json!(null), "callback.http_error", false),
        (200, json!({"keys": 1}), "callback.invalid_answer", false),
    ] {
        fake.answer(status, body);
        let error = host.state().list(CONVERSATION, "", 1).await.unwrap_err();
        assert_eq!(
            (error.code.as_str(), error.retryable),
            (code, retryable),
            "{status}"
        );
    }
}

#[tokio::test]
async fn rejects_keys_with_dot_segments() {
    let (fake, host) = connected().await;
    for key in ["", ".", ".."] {
        let error = host.state().get(CONVERSATION, key).await.unwrap_err();
        assert_eq!(error.code, "invalid_argument");
    }
    assert!(fake.calls().is_empty());
}

#[tokio::test]
async fn bounds_calls_by_timeout_and_deadline() {
    let fake = FakeHost::start().await.unwrap();
    let impatient = HostClient::new().with_call_timeout(Duration::from_millis(50));
    fake.stay_silent();
    let error = impatient
        .host(fake.access(NOW), None, NOW)
        .run()
        .await
        .unwrap_err();
    assert_eq!(
        (error.code.as_str(), error.retryable),
        ("callback.timeout", true)
    );

    let deadline = Some(1_795_291_200.05);
    fake.stay_silent();
    let host = HostClient::new().host(fake.access(NOW), deadline, NOW);
    assert_eq!(host.run().await.unwrap_err().code, "callback.timeout");
    let calls = fake.calls().len();
    assert_eq!(host.run().await.unwrap_err().code, "deadline_exceeded");
    assert_eq!(
        fake.calls().len(),
        calls,
        "nothing is sent once the run's time is over"
    );
}

#[tokio::test]
async fn reports_unreachable_gateway() {
    let (fake, host) = connected().await;
    drop(fake);
    let error = host.run().await.unwrap_err();
    assert_eq!(
        (error.code.as_str(), error.retryable),
        ("callback.unreachable", true)
    );
    assert!(!format!("{error:?} {host:?}").contains(TOKEN));
}

#[tokio::test]
async fn renews_expiring_token_once_for_all_clones() {
    let fake = FakeHost::start().await.unwrap();
    let mut access = fake.access(NOW);
    access.token_expires_at = NOW + 59;
    let host = HostClient::new().host(access, None, NOW);
    let clone = host.clone();

    fake.answer(
        200,
        json!({"token": "second-token", "token_expires_at": NOW + 900}),
    );
    fake.answer(200, run_record());
    host.run().await.unwrap();
    clone.run().await.unwrap();
    let seen: Vec<_> = fake
        .calls()
        .iter()
        .map(|call| format!("{} {:?}", call.path, call.headers["authorization"]))
        .collect();
    assert_eq!(
        seen,
        [
            r#"/token "Bearer test-run-token""#,
            r#"/run "Bearer second-token""#,
            r#"/run "Bearer second-token""#,
        ]
    );
}

#[tokio::test]
async fn renews_token_without_calls() {
    let fake = FakeHost::start().await.unwrap();
    let mut access = fake.access(NOW);
    access.token_expires_at = NOW + 60;
    let host = HostClient::new().host(access, None, NOW);
    fake.answer(
        200,
        json!({"token": "second-token", "token_expires_at": NOW + 900}),
    );
    let outcome = tokio::time::timeout(Duration::from_millis(500), host.keep_token_fresh()).await;
    assert!(outcome.is_err());
    assert_eq!(fake.calls().len(), 1);
    assert_eq!(host.0.credentials.access().token, "second-token");
}

#[tokio::test]
async fn sends_model_tool_and_knowledge_calls() {
    use protocol::model::{CountTokens, LlmRequest, Rerank};

    let (fake, host) = connected().await;
    let invoked =
        json!({"message": {"role": "assistant", "content": "hi"}, "usage": {"total_tokens": 3}});
    fake.answer(200, invoked);
    let request = LlmRequest::default();
    let invoked = host.models().invoke("a/b", &request).await.unwrap();
    assert_eq!(invoked.message.plain_text(), "hi");
    check(&fake, "POST /models/a%2Fb/invoke").await;

    fake.answer(200, json!({"tokens": 12}));
    let counted = host
        .models()
        .count_tokens("m", &CountTokens::default())
        .await;
    assert_eq!(counted.unwrap(), 12);
    check(&fake, "POST /models/m/count-tokens").await;

    fake.answer(
        200,
        json!({"results": [{"index": 1, "relevance_score": 0.5}]}),
    );
    let rerank = Rerank {
        query: "q".to_owned(),
        documents: vec!["a".to_owned(), "b".to_owned()],
        top_k: None,
        extra_args: protocol::JsonObject::new(),
    };
    assert_eq!(
        host.models().rerank("r", &rerank).await.unwrap()[0].index,
        1
    );
    check(&fake, "POST /models/r/rerank").await;

    fake.answer(200, json!({"vectors": [[0.5]]}));
    let embedded = host
        .models()
        .embed("e", vec!["a".to_owned()])
        .await
        .unwrap();
    assert_eq!(embedded.vectors.len(), 1);
    check(&fake, "POST /models/e/embed").await;

    fake.answer(200, json!({"result": {"ok": true}}));
    let result = host
        .tools()
        .call("look", JsonObject::new(), Some("k-1"))
        .await;
    assert_eq!(result.unwrap(), json!({"ok": true}));
    check(&fake, "POST /tools/look/call").await;
    assert_eq!(last_call(&fake).headers["idempotency-key"], "k-1");
    assert_eq!(last_call(&fake).body, json!({"parameters": {}}));

    fake.answer(200, json!({"results": []}));
    let query = protocol::knowledge::RetrievalQuery::default();
    assert_eq!(host.retrieve("docs", &query).await.unwrap(), []);
    check(&fake, "POST /knowledge-bases/docs/retrieve").await;

    fake.answer(
        404,
        json!({"error": {"code": "not_found", "message": "none"}}),
    );
    assert_eq!(host.prompt().await.unwrap(), None);
    check(&fake, "GET /prompt").await;

    fake.answer(200, json!({"items": []}));
    let pulled = host.pull_steering(protocol::host_api::SteeringMode::All, None);
    assert_eq!(pulled.await.unwrap(), []);
    check(&fake, "POST /steering/pull").await;
}

#[tokio::test]
async fn waits_for_interaction_until_final_state() {
    let (fake, host) = connected().await;
    fake.answer(200, json!({"status": "open"}));
    fake.answer(
        503,
        json!({"error": {"code": "unavailable", "message": "later", "retryable": true}}),
    );
    let actor = json!({"actor_type": "link"});
    let given =
        json!({"status": "submitted", "action_id": null, "values": {"a": 1}, "actor": actor});
    fake.answer(200, given.clone());
    let answer = host.interactions().wait("q/1").await.unwrap();
    assert_eq!(serde_json::to_value(answer).unwrap(), given);
    check(&fake, "GET /interactions/q%2F1?wait_seconds=25").await;
    assert_eq!(fake.calls().len(), 3);
    fake.answer(
        404,
        json!({"error": {"code": "not_found", "message": "none"}}),
    );
    let failed = host.interactions().wait("q").await.unwrap_err();
    assert!(failed.is_not_found());
}

#[tokio::test]
async fn requests_and_cancels_wakes() {
    let (fake, host) = connected().await;
    let wake = |status| json!({"key": "a/1", "at": 2, "status": status, "event_id": "wake/1", "created_at": 1});
    let request = json!({"key": "a/1", "after_seconds": 60, "data": {"step": 2}});
    fake.answer(200, wake("pending"));
    let body = serde_json::from_value(request.clone()).unwrap();
    let pending = host.wakes().request(&body).await.unwrap();
    check(&fake, "POST /schedules").await;
    assert_eq!(last_call(&fake).body, request);
    fake.answer(200, wake("cancelled"));
    let cancelled = host.wakes().cancel(&pending.key).await.unwrap();
    assert_eq!(cancelled.status.as_str(), "cancelled");
    check(&fake, "DELETE /schedules/a%2F1").await;
}

#[tokio::test]
async fn requests_platform_action_and_waits_for_outcome() {
    let (fake, host) = connected().await;
    let action = |status: &str| {
        json!({"id": "a/1", "run_id": "00000000-0000-0000-0000-000000000000", "agent_id": "00000000-0000-0000-0000-000000000000", "action": "group.leave",
            "target": {}, "payload": {}, "status": status, "created_at": 1, "expires_at": 2})
    };
    let request =
        json!({"action": "group.leave", "target": {}, "payload": {}, "idempotency_key": "k"});
    fake.answer(200, action("open"));
    let body = serde_json::from_value(request.clone()).unwrap();
    let opened = host.platform_actions().request(&body).await.unwrap();
    assert!(!opened.status.is_final());
    check(&fake, "POST /platform/actions").await;
    assert_eq!(last_call(&fake).body, request);
    fake.answer(200, action("claimed"));
    fake.answer(200, action("done"));
    let done = host.platform_actions().wait(&opened.id).await.unwrap();
    assert!(done.status.is_final());
    check(&fake, "GET /platform/actions/a%2F1?wait_seconds=25").await;
}

#[tokio::test]
async fn allows_long_calls_beyond_call_timeout() {
    let fake = FakeHost::start().await.unwrap();
    let client = HostClient::new().with_call_timeout(std::time::Duration::from_millis(50));
    #[expect(clippy::cast_precision_loss, reason = "epoch seconds")]
    let deadline = (NOW + 1) as f64;
    let host = client.host(fake.access(NOW), Some(deadline), NOW);
    fake.stay_silent();
    let started = tokio::time::Instant::now();
    let request = protocol::model::LlmRequest::default();
    let failed = host.models().invoke("m", &request).await.unwrap_err();
    assert_eq!(failed.code, "callback.timeout");
    assert!(
        started.elapsed() > std::time::Duration::from_millis(500),
        "the run's time, not the call's"
    );
}

#[tokio::test]
async fn sends_child_run_calls() {
    use protocol::child_run::ChildRunRequest;
    use protocol::context::AgentInput;
    use protocol::run::RunStatus;

    let (fake, host) = connected().await;
    let id = "01934f3e-0000-7000-8000-000000000001";
    let child = json!({"run_id": id, "parent_run_id": id, "agent_id": id, "status": "running",
        "status_reason": null, "created_at": NOW, "finished_at": null, "deadline_at": NOW + 60,
        "finish_reason": null, "outcome": null, "output": null, "error": null, "usage": null});
    let request = ChildRunRequest {
        agent_id: "writer".to_owned(),
        input: AgentInput {
            text: Some("hi".to_owned()),
            ..AgentInput::default()
        },
        context: JsonObject::new(),
        summary: None,
        grants: None,
        deadline_seconds: Some(60),
        idempotency_key: "k-1".to_owned(),
    };
    fake.answer(202, child.clone());
    let run = host.child_runs().spawn(&request).await.unwrap();
    assert_eq!(run.status, RunStatus::Running);
    check(&fake, "POST /child-runs").await;
    let body = last_call(&fake).body;
    assert_eq!(body["idempotency_key"], "k-1");
    assert!(body.get("grants").is_none() && body.get("context").is_none());

    fake.answer(200, child.clone());
    let found = host.child_runs().get(&run.run_id, 99).await.unwrap();
    assert_eq!(found, Some(run.clone()));
    check(&fake, &format!("GET /child-runs/{id}?wait_seconds=30")).await;
    let none = json!({"error": {"code": "not_found", "message": "none"}});
    fake.answer(404, none);
    assert_eq!(host.child_runs().get(&run.run_id, 0).await.unwrap(), None);

    let page = json!({"items": [], "next_cursor": null, "prev_cursor": null, "has_more": false});
    fake.answer(200, page);
    let query = RunEventsQuery {
        after_cursor: Some(7),
        ..RunEventsQuery::default()
    };
    host.child_runs().events(&run.run_id, &query).await.unwrap();
    check(
        &fake,
        &format!("GET /child-runs/{id}/events?after_cursor=7"),
    )
    .await;

    fake.answer(200, child.clone());
    let mut ended = child.clone();
    ended["status"] = json!("completed");
    fake.answer(200, ended);
    let waited = host.child_runs().wait(&run.run_id).await.unwrap();
    assert_eq!(waited.status, RunStatus::Completed);
    check(&fake, &format!("GET /child-runs/{id}?wait_seconds=25")).await;

    fake.answer(200, child);
    host.child_runs()
        .cancel(&run.run_id, "enough")
        .await
        .unwrap();
    check(&fake, &format!("POST /child-runs/{id}/cancel")).await;
    assert_eq!(last_call(&fake).body, json!({"reason": "enough"}));
}

#[tokio::test]
async fn keyed_calls_name_scope_and_approval() {
    use crate::host::CallOptions;
    use protocol::tool::KeyScope;

    let (fake, host) = connected().await;
    fake.answer(200, json!({"result": 7}));
    let options = CallOptions {
        key: "k",
        scope: KeyScope::Conversation,
        approved_by: Some("r/q"),
    };
    let called = host
        .tools()
        .call_once("look", JsonObject::new(), options)
        .await;
    assert_eq!(called.unwrap().result, json!(7));
    let call = last_call(&fake);
    assert_eq!(call.headers["idempotency-key"], "k");
    assert_eq!(call.headers["idempotency-key-scope"], "conversation");
    assert_eq!(call.headers["approved-by"], "r/q");
}

#[tokio::test]
async fn conditional_writes_send_their_condition() {
    let (fake, host) = connected().await;
    let blob = Blob {
        content_type: "text/plain".to_owned(),
        bytes: b"a".to_vec(),
    };
    for (condition, name, value) in [
        (PutCondition::Absent, "if-none-match", "*"),
        (
            PutCondition::Matches("\"ab\"".to_owned()),
            "if-match",
            "\"ab\"",
        ),
    ] {
        let failed = json!({"error": {"code": "precondition_failed", "message": "changed"}});
        fake.answer(412, failed);
        let put = host
            .storage()
            .put_if(StorageArea::Binding, "k", blob.clone(), condition);
        assert!(put.await.unwrap_err().is_conflict());
        check(&fake, "PUT /storage/binding/k").await;
        assert_eq!(last_call(&fake).headers[name], value);
    }
}

fn moved() -> serde_json::Value {
    json!({"error": {"code": "run_moved", "message": "another attempt has the run", "retryable": false}})
}

async fn resumable(within: Duration) -> (FakeHost, Host) {
    let fake = FakeHost::start().await.unwrap();
    let host = resumable_host(fake.access(NOW), within);
    (fake, host)
}

#[tokio::test]
async fn moved_call_repeats_with_token_of_resume() {
    let (old, host) = resumable(Duration::from_mins(1)).await;
    old.answer(401, moved());
    let new = FakeHost::start().await.unwrap();
    new.answer(200, json!({"result": 7}));
    let access = protocol::request::HostAccess {
        token: "second-token".to_owned(),
        ..new.access(NOW)
    };
    let resuming = async {
        while old.calls().is_empty() {
            tokio::task::yield_now().await;
        }
        resume(&host, access);
    };
    let calling = host.tools().call("look", JsonObject::new(), None);
    let (called, ()) = tokio::join!(calling, resuming);
    assert_eq!(called.unwrap(), json!(7));
    let call = last_call(&new);
    assert_eq!(call.path, "/tools/look/call");
    assert_eq!(call.headers["authorization"], "Bearer second-token");
    assert_eq!(call.body, json!({"parameters": {}}));
    assert_eq!((old.calls().len(), new.calls().len()), (1, 1));
}

#[tokio::test]
async fn moved_call_fails_without_resume() {
    let (fake, host) = resumable(Duration::from_millis(20)).await;
    fake.answer(401, moved());
    assert!(host.run().await.unwrap_err().is_run_moved());
    let (fake, host) = connected().await;
    fake.answer(401, moved());
    assert!(host.run().await.unwrap_err().is_run_moved());
}

#[tokio::test]
async fn repeats_broken_reads_but_no_effects() {
    let (fake, host) = resumable(Duration::from_mins(1)).await;
    fake.cut();
    assert_eq!(host.run().await.unwrap().event_id, "m-1001");
    fake.cut();
    fake.answer(200, json!({"result": 7}));
    let keyed = host.tools().call("look", JsonObject::new(), Some("k"));
    assert_eq!(keyed.await.unwrap(), json!(7));
    assert_eq!(fake.calls().len(), 4);
    fake.cut();
    let failed = host.tools().call("look", JsonObject::new(), None).await;
    assert_eq!(failed.unwrap_err().code, "callback.unreachable");
    assert_eq!(fake.calls().len(), 5);
}
