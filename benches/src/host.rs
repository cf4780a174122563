//! Host API calls of runners: small calls compared with `/healthz` of the same process, and the latency that the
//! gateway adds to a model's stream.

mod faces;
mod prompts;
mod runner;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::Options;
use crate::client::LoadConnection;
use crate::database::Database;
use crate::figures::{median, percentile, write};
use crate::load::LoadTarget;
use crate::model::{ItemLatencies, LatencySamples, ModelServer, print_waits};
use crate::process::machine;
use crate::stage::{BenchStage, ConfigAdditions};
use crate::stub::RUNNER_ID;
use runner::TokenRunner;

/// Concurrent connections.
const CONNECTIONS: usize = 64;
/// Runs that make calls, four on each connection, in turn. A run is limited to 500 calls a second.
const RUNS: usize = 4 * CONNECTIONS;
/// Words of the text in token counting.
const WORDS: usize = 200;
/// Sequential streams of one round, per target.
const STREAMS: usize = 20;

pub(crate) async fn run(options: &Options) -> anyhow::Result<()> {
    let stage = BenchStage::new(options).await?;
    println!("{}", machine());
    let mut figures = Vec::new();
    for database in stage.databases() {
        figures.push(measure(&stage, &database).await?);
    }
    write(options, &json!({"machine": machine(), "host": figures}))
}

/// One kind of request, sent repeatedly.
struct RepeatedRequest {
    name: &'static str,
    /// By run, because each holds the run's credential.
    requests: Vec<Vec<u8>>,
}

async fn measure(stage: &BenchStage, database: &Database) -> anyhow::Result<Value> {
    let (runner, model) = (TokenRunner::start().await?, ModelServer::start()?);
    let allow = format!("\"{}\"", model.address);
    let tables = tables(&model.address);
    let extra = ConfigAdditions {
        allow: &allow,
        tables: &tables,
        ..ConfigAdditions::default()
    };
    let name = database.name;
    let (_gateway, target) = stage
        .gateway(name, database, &runner.address, extra)
        .await?;
    let tokens = begin_runs(&target, &runner).await?;
    let repeated_requests = repeated_requests(&tokens);
    let mut rates = vec![Vec::new(); repeated_requests.len()];
    let (mut direct, mut through) = (LatencySamples::default(), LatencySamples::default());
    for _ in 0..stage.options.rounds {
        for (asking, rates) in repeated_requests.iter().zip(&mut rates) {
            rates.push(measure_rate(&target.address, asking, stage.options.seconds).await?);
        }
        for _ in 0..STREAMS {
            direct.add(vec![
                ItemLatencies::of(&model.address, &direct_request()).await?,
            ]);
            through.add(vec![
                ItemLatencies::of(&target.address, &by_gateway(&tokens[0])).await?,
            ]);
        }
    }
    let calls = print_rates(name, &repeated_requests, &rates);
    let streams = print_waits(name, &direct, &through);
    let faces = faces::measure(
        stage.options.rounds,
        (name, &target.address),
        &model.address,
        &tokens,
    )
    .await?;
    let prompts = prompts::measure(
        stage.options.rounds,
        (name, &target.address, target.pid.context("a pid")?),
        &model.address,
        &tokens,
    )
    .await?;
    Ok(json!({
        "target": name, "runs": RUNS, "calls": calls, "stream": streams, "faces": faces, "prompts": prompts,
    }))
}

/// A model of the gateway, and an agent with access to it.
fn tables(model: &str) -> String {
    format!(
        "[limits]\nsilence_seconds = 3600.0\n\
         [[model_providers]]\nname = \"bench\"\nkind = \"openai\"\nbase_url = \"http://{model}/v1\"\n\
         [[models]]\nmodel_id = \"bench\"\nprovider = \"bench\"\n\
         [[agents]]\nname = \"host\"\nevent_types = [\"bench.requested\"]\n\
         scope = {{ kind = \"global\" }}\nrunner_id = \"{RUNNER_ID}\"\n\
         config = {{ timeout = 3600 }}\nresource_policy = {{ models = [\"bench\"] }}\n"
    )
}

/// Starts runs that the runner holds open, and returns their tokens.
async fn begin_runs(target: &LoadTarget, runner: &TokenRunner) -> anyhow::Result<Vec<String>> {
    let mut posting = LoadConnection::open(&target.address).await?;
    for number in 0..RUNS {
        let request = target.request(number, "application/json", "bench.requested");
        posting.send(&request).await?;
        let status = posting.answer(|_| {}).await?;
        ensure!(status == 202, "HTTP {status}");
    }
    runner.tokens(RUNS).await
}

fn repeated_requests(tokens: &[String]) -> [RepeatedRequest; 3] {
    let text = "word ".repeat(WORDS);
    let body = json!({"messages": [{"role": "user", "content": text}]}).to_string();
    let of_all = |name, request: &dyn Fn(&String) -> Vec<u8>| RepeatedRequest {
        name,
        requests: tokens.iter().map(request).collect(),
    };
    [
        of_all("/healthz", &|_| get("/healthz", "")),
        of_all("run", &|token| get("/host/v1/run", token)),
        of_all("count-tokens", &|token| {
            post("/host/v1/models/bench/count-tokens", token, &body)
        }),
    ]
}

/// A request for one stream, sent to the model without the gateway.
pub(crate) fn direct_request() -> Vec<u8> {
    let message = json!({"role": "user", "content": "go"});
    let body = json!({"model": "bench", "messages": [message], "stream": true});
    post("/v1/chat/completions", "none", &body.to_string())
}

fn by_gateway(token: &str) -> Vec<u8> {
    let body = json!({"messages": [{"role": "user", "content": "go"}]});
    post("/host/v1/models/bench/stream", token, &body.to_string())
}

fn get(path: &str, token: &str) -> Vec<u8> {
    let bearer = if token.is_empty() {
        String::new()
    } else {
        format!("authorization: Bearer {token}\r\n")
    };
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{bearer}\r\n").into_bytes()
}

fn post(path: &str, token: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Responses per second over all runs. Fails on the first error.
async fn measure_rate(
    address: &str,
    asking: &RepeatedRequest,
    seconds: f64,
) -> anyhow::Result<f64> {
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(seconds);
    let mut asking_now = JoinSet::new();
    for first in 0..CONNECTIONS {
        let (address, name) = (address.to_owned(), asking.name);
        let own = asking.requests.iter().skip(first).step_by(CONNECTIONS);
        let own: Vec<_> = own.cloned().collect();
        asking_now.spawn(async move {
            let mut connection = LoadConnection::open(&address).await?;
            let mut requests = own.iter().cycle();
            let mut answers = 0_u64;
            while Instant::now() < end
                && let Some(request) = requests.next()
            {
                connection.send(request).await?;
                let status = connection.answer(|_| {}).await?;
                ensure!(status == 200, "{name} answered HTTP {status}");
                answers += 1;
            }
            Ok(answers)
        });
    }
    let mut answers = 0;
    while let Some(done) = asking_now.join_next().await {
        answers += done??;
    }
    Ok(answers as f64 / begin.elapsed().as_secs_f64())
}

fn print_rates(target: &str, repeated_requests: &[RepeatedRequest], rates: &[Vec<f64>]) -> Value {
    let yardstick = &rates[0];
    let mut figures = Vec::new();
    for (asking, rates) in repeated_requests.iter().zip(rates) {
        let pairs = rates.iter().zip(yardstick);
        let ratios: Vec<_> = pairs.map(|(one, other)| one / other).collect();
        let [min, half, max] = [0.0, 50.0, 100.0].map(|at| percentile(&ratios, at));
        let name = asking.name;
        println!(
            "{target:<12} {name:<14} {:>8.0}/s  {half:.2} of /healthz ({min:.2}–{max:.2})",
            median(rates)
        );
        figures.push(json!({
            "name": name, "per_second": median(rates), "ratio": half, "ratios": ratios,
        }));
    }
    figures.into()
}

/// Reads the run token from a request to a runner.
fn token_in(body: &[u8]) -> anyhow::Result<String> {
    let request: Value = serde_json::from_slice(body)?;
    let token = request["host"]["token"].as_str().context("a token")?;
    Ok(token.to_owned())
}
