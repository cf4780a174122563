//! How much a request may be answered: what a provider is told of it, and what a budget holds it to.

use serde_json::{Value, json};

use super::{remote, says};
use crate::support::held::HeldRun;
use crate::support::upstream::{Reply, Upstream};

const CHAT: &str = "/openai/v1/chat/completions";

/// What its provider was asked by a run that says this.
async fn asked_by(run: &HeldRun, upstream: &Upstream, model: &str, more: &Value) -> Value {
    let said = json!({"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]});
    upstream.reply(Reply::Json(200, said));
    let answered = run.call(CHAT, &asking(model, more)).await;
    assert_eq!(answered.status, 200, "{more}: {}", answered.body);
    upstream.asked().pop().unwrap().body
}

fn asking(model: &str, more: &Value) -> Value {
    let mut body = says("hello");
    let members = body.as_object_mut().unwrap();
    members.insert("model".to_owned(), json!(model));
    members.extend(more.as_object().unwrap().clone());
    body
}

/// A bound by a name that the provider does not read would bound nothing.
#[tokio::test]
async fn a_provider_is_told_the_bound_by_the_name_that_it_reads() {
    let [of_openai, of_others] = ["max_completion_tokens", "max_tokens"];
    for (read, other) in [(of_openai, of_others), (of_others, of_openai)] {
        let (stage, run, upstream) = remote(&format!("max_tokens_name = \"{read}\"")).await;
        for (more, bound) in [
            (json!({other: 16}), 16),
            (json!({other: 16, read: 40}), 16),
            (json!({other: 40, read: 16}), 16),
            (json!({other: 4000}), 50),
            (json!({other: null}), 50),
        ] {
            let asked = asked_by(&run, &upstream, "remote", &more).await;
            assert_eq!(asked[read], bound, "{more}: {asked}");
            assert_eq!(asked.get(other), None, "{more}: {asked}");
        }
        run.end(&stage).await;
    }
}
