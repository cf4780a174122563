//! Latency and memory that the gateway adds to calls with large prompts.

use serde_json::{Value, json};

use super::post;
use crate::figures::percentile;
use crate::model::ItemLatencies;
use crate::process::{peak_resident, resident};

/// Concurrent streams.
const STREAMS: usize = 32;
/// Sizes of a prompt in tokens of four bytes.
const PROMPTS: [usize; 2] = [50_000, 100_000];

/// Milliseconds to the first item compared with the direct model in the same round, and memory of a call as a ratio to
/// its body.
pub(super) async fn measure(
    rounds: usize,
    (target, gateway, pid): (&str, &str, u32),
    model: &str,
    tokens: &[String],
) -> anyhow::Result<Value> {
    let mut figures = Vec::new();
    for size in PROMPTS {
        let (mut direct, mut through, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..rounds {
            let body = body(size, round);
            let request = post("/v1/chat/completions", "none", &body);
            direct.extend(first_items(model, vec![request; STREAMS]).await?);
            let requests = tokens.iter().take(STREAMS);
            let path = "/host/v1/openai/v1/chat/completions";
            let requests = requests.map(|token| post(path, token, &body)).collect();
            let before = resident(pid)?;
            let peak = peak_resident(pid, first_items(gateway, requests));
            let (items, peak) = peak.await?;
            through.extend(items);
            let used = peak.saturating_sub(before) as f64 / STREAMS as f64;
            memory.push(used / body.len() as f64);
        }
        let [p50, p99] = [50.0, 99.0].map(|at| (percentile(&through, at), percentile(&direct, at)));
        let memory = percentile(&memory, 50.0);
        println!(
            "{target:<12} {size:>7} tokens +{:.2} ms p50, +{:.2} ms p99 to the first item over the direct model \
             ({:.2} and {:.2} ms), {STREAMS} streams at once; memory of a call {memory:.1} of its body",
            p50.0 - p50.1,
            p99.0 - p99.1,
            p50.1,
            p99.1,
        );
        figures.push(json!({
            "prompt_tokens": size, "added_p50_ms": p50.0 - p50.1, "added_p99_ms": p99.0 - p99.1,
            "direct_p50_ms": p50.1, "direct_p99_ms": p99.1, "memory_per_body": memory,
        }));
    }
    Ok(figures.into())
}

async fn first_items(address: &str, requests: Vec<Vec<u8>>) -> anyhow::Result<Vec<f64>> {
    let items = ItemLatencies::at_once(address, requests).await?;
    Ok(items.iter().map(|items| items.first).collect())
}

/// A conversation that grows: an unchanged prefix, and a last message of this round.
fn body(tokens: usize, round: usize) -> String {
    let prefix = "let x = 1; // a line of code\n".repeat(tokens * 4 / 29);
    let messages = json!([
        {"role": "user", "content": prefix},
        {"role": "user", "content": format!("round {round}")},
    ]);
    json!({"model": "bench", "messages": messages, "stream": true}).to_string()
}
