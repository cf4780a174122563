//! Latency that each model API adds to a stream's first item, with many concurrent streams.

use serde_json::{Value, json};

use super::{direct_request, post};
use crate::figures::percentile;
use crate::model::ItemLatencies;

/// Concurrent streams.
const CONCURRENT_STREAMS: usize = 64;

type BuildRequest = fn(&str) -> Vec<u8>;

const MODEL_APIS: [(&str, BuildRequest); 3] = [
    ("chat", chat),
    ("messages", messages),
    ("responses", responses),
];

/// Milliseconds to the first item by API, compared with the direct model in the same round.
pub(super) async fn measure(
    rounds: usize,
    (target, gateway): (&str, &str),
    model: &str,
    tokens: &[String],
) -> anyhow::Result<Value> {
    let mut figures = Vec::new();
    for (name, request) in MODEL_APIS {
        let (mut direct, mut through) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            direct.extend(first_items(model, vec![direct_request(); CONCURRENT_STREAMS]).await?);
            let requests = tokens
                .iter()
                .take(CONCURRENT_STREAMS)
                .map(|token| request(token));
            through.extend(first_items(gateway, requests.collect()).await?);
        }
        let [p50, p99] = [50.0, 99.0].map(|at| (percentile(&through, at), percentile(&direct, at)));
        println!(
            "{target:<12} {name:<14} +{:.2} ms p50, +{:.2} ms p99 to the first item over the direct model \
             ({:.2} and {:.2} ms), {CONCURRENT_STREAMS} streams at once",
            p50.0 - p50.1,
            p99.0 - p99.1,
            p50.1,
            p99.1,
        );
        figures.push(json!({
            "face": name, "added_p50_ms": p50.0 - p50.1, "added_p99_ms": p99.0 - p99.1,
            "direct_p50_ms": p50.1, "direct_p99_ms": p99.1,
        }));
    }
    Ok(figures.into())
}

async fn first_items(address: &str, requests: Vec<Vec<u8>>) -> anyhow::Result<Vec<f64>> {
    let items = ItemLatencies::at_once(address, requests).await?;
    Ok(items.iter().map(|items| items.first).collect())
}

fn chat(token: &str) -> Vec<u8> {
    let messages = json!([{"role": "user", "content": "go"}]);
    let body = json!({"model": "bench", "messages": messages, "stream": true});
    post(
        "/host/v1/openai/v1/chat/completions",
        token,
        &body.to_string(),
    )
}

fn messages(token: &str) -> Vec<u8> {
    let messages = json!([{"role": "user", "content": "go"}]);
    let body = json!({"model": "bench", "messages": messages, "max_tokens": 1000, "stream": true});
    post("/host/v1/anthropic/v1/messages", token, &body.to_string())
}

fn responses(token: &str) -> Vec<u8> {
    let body = json!({"model": "bench", "input": "go", "store": false, "stream": true});
    post("/host/v1/openai/v1/responses", token, &body.to_string())
}
