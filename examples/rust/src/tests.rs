use futures_util::StreamExt;
use runner_kit::testing::{FakeHost, run_record, run_request};
use runner_kit::{CancellationToken, HostClient};
use serde_json::{Value, json};

use super::*;

const NOW: i64 = 1_795_291_200;

struct EchoCase {
    fake: FakeHost,
    context: AgentRunContext,
    cancel: CancellationToken,
}

async fn case(text: &str) -> EchoCase {
    let fake = FakeHost::start().await.unwrap();
    let mut context = run_request(ID, text, &fake.access(NOW)).unwrap().context;
    context.context.available_apis.state = true;
    EchoCase {
        fake,
        context,
        cancel: CancellationToken::new(),
    }
}

impl EchoCase {
    /// Type and data of each result; of a failure its code only.
    async fn results(self) -> Vec<Value> {
        let host = HostClient::new().host(self.fake.access(NOW), None, NOW);
        let run = RunHandle {
            context: self.context,
            host,
            cancel: self.cancel,
        };
        echo()
            .run(run)
            .map(|result| match result {
                Ok(result) => json!([result.kind, result.data]),
                Err(failure) => json!(["failed", failure.code]),
            })
            .collect()
            .await
    }
}

fn delta(text: &str) -> Value {
    json!(["message.delta", {"chunk": {"role": "assistant", "content": text}}])
}

fn completed(text: &str) -> [Value; 2] {
    let message = json!({"role": "assistant", "content": text});
    [
        json!(["message.completed", {"message": message, "file_ids": []}]),
        json!(["run.completed", {"finish_reason": "stop"}]),
    ]
}

fn count(value: i64) -> Value {
    json!(["state.updated", {"scope": "conversation", "key": "echo.count", "value": value}])
}

#[tokio::test]
async fn echoes_words_and_counts_them() {
    let [message, end] = completed("hello big world");
    let words = [delta("hello "), delta("big "), delta("world")];
    let expected = [&words[..], &[count(1), message.clone(), end.clone()]].concat();
    assert_eq!(case("hello big world").await.results().await, expected);

    let mut again = case("hello big world").await;
    again
        .context
        .state
        .conversation
        .insert(COUNT.to_owned(), json!(41));
    let expected = [&words[..], &[count(42), message, end]].concat();
    assert_eq!(again.results().await, expected);
}

#[tokio::test]
async fn skips_count_without_conversation() {
    let mut alone = case("hello").await;
    alone.context.conversation = None;
    assert_eq!(
        alone.results().await,
        [&[delta("hello")][..], &completed("hello")].concat()
    );
}

#[tokio::test]
async fn without_state_nothing_is_counted() {
    let mut stateless = case("hello").await;
    stateless.context.context.available_apis.state = false;
    let expected = [&[delta("hello")][..], &completed("hello")].concat();
    assert_eq!(stateless.results().await, expected);
}

#[tokio::test]
async fn answers_empty_input() {
    for text in ["", " \n"] {
        let [message, end] = completed("(nothing to echo)");
        let words = [
            delta("(nothing "),
            delta("to "),
            delta("echo)"),
            count(1),
            message,
            end,
        ];
        assert_eq!(case(text).await.results().await, words);
    }
}

#[tokio::test]
async fn stops_cancelled_run() {
    let fired = case("hello").await;
    fired.cancel.cancel();
    assert_eq!(fired.results().await, [json!(["failed", "cancelled"])]);

    let requested = case("hello").await;
    let mut record = run_record();
    record["cancel_requested_at"] = json!(NOW);
    requested.fake.answer(200, record);
    assert_eq!(requested.results().await, [json!(["failed", "cancelled"])]);

    let waiting = case("hello").await;
    waiting.fake.stay_silent();
    let cancel = waiting.cancel.clone();
    let (results, ()) = tokio::join!(waiting.results(), async { cancel.cancel() });
    assert_eq!(results, [json!(["failed", "cancelled"])]);
}

#[tokio::test]
async fn fails_run_with_host_error_code() {
    let refused = case("hello").await;
    let error = json!({"error": {"code": "unauthorized", "message": "not for you"}});
    refused.fake.answer(403, error);
    assert_eq!(refused.results().await, [json!(["failed", "unauthorized"])]);
}

#[test]
fn joined_words_equal_text() {
    for text in ["a", " a  b\n", "你好 世界", "\u{3000}a\u{3000}"] {
        assert_eq!(words(text).collect::<String>(), text);
    }
    assert_eq!(words(" a  b\nc").collect::<Vec<_>>(), [" a  ", "b\n", "c"]);
}
