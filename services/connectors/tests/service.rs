//! The service over real sockets: platforms that misbehave, persons, files, and many runs at once.
#![expect(clippy::unwrap_used, reason = "a test states its precondition")]

#[path = "service/client.rs"]
mod client;
#[path = "service/transcripts.rs"]
mod transcripts;
#[path = "service/upstream.rs"]
mod upstream;

use std::sync::Arc;

use connectors::catalogue::{PLATFORMS, Platform};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio::sync::watch;

use client::{ConnectorsProcess, KEY, ending, of};
use transcripts::CompletedTranscript;
use upstream::{Act, FakePlatform, complete, stream};

/// Number of concurrent runs.
const RUNS: usize = 200;
/// Growth of the process between the first and the last of equal loads.
const GROWTH_BYTES: usize = 48 * 1024 * 1024;

const BEGUN: &str = "data: {\"event\": \"message\", \"task_id\": \"t-1\", \"answer\": \"Hello\", \"conversation_id\": \"11111111-2222-3333-4444-555555555555\"}\n\n";

fn dify(url: &str) -> Value {
    json!({"base-url": format!("{url}/v1"), "api-key": "env:CONNECTOR_DIFY", "app-type": "chat", "idle-timeout": 1})
}

/// A run of Dify against a platform that answers so.
async fn dify_against(
    answer: impl Fn() -> Vec<Act> + Send + Sync + 'static,
) -> (FakePlatform, Vec<Value>) {
    let connectors = ConnectorsProcess::start().await;
    let upstream = FakePlatform::start(move |request, _| {
        if request.line.contains("/stop") {
            return complete(200, "application/json", "{\"result\": \"success\"}");
        }
        answer()
    })
    .await;
    let results = connectors
        .run_with("dify-agent", &dify(&upstream.url()))
        .await;
    assert!(!json!(results).to_string().contains(KEY), "{results:?}");
    (upstream, results)
}

#[tokio::test]
async fn responses_without_content_time_out() {
    let pings = || vec![stream(""), Act::WriteForEver(b"event: ping\n\n".to_vec())];
    let slow_pings = || vec![stream("event: ping\n\n"), Act::Hang];
    let no_head = || vec![Act::Hang];
    let half_a_head = || vec![Act::Write(b"HTTP/1.1 200 OK\r\n".to_vec()), Act::Hang];
    let answers: [fn() -> Vec<Act>; 4] = [pings, slow_pings, no_head, half_a_head];
    for answer in answers {
        let (upstream, results) = dify_against(answer).await;
        assert_eq!(ending(&results), "dify.timeout", "{results:?}");
        upstream.has_lost(1).await;
    }
}

#[tokio::test]
async fn silence_within_an_answer_stops_the_platform() {
    let (upstream, results) = dify_against(|| vec![stream(BEGUN), Act::Hang]).await;
    assert_eq!(ending(&results), "dify.timeout");
    assert_eq!(of(&results, "message.delta").len(), 1);
    upstream.has_lost(1).await;
    let lines: Vec<_> = upstream
        .received()
        .into_iter()
        .map(|request| request.line)
        .collect();
    assert_eq!(
        lines,
        ["POST /v1/chat-messages", "POST /v1/chat-messages/t-1/stop"]
    );
}

#[tokio::test]
async fn answers_do_not_wait_for_a_second_end_mark() {
    let answer = || {
        let end = "data: {\"event\": \"message_end\", \"metadata\": {}}\n\n";
        let begun = "data: {\"event\": \"workflow_started\", \"data\": {}}\n\n";
        let pings = b"event: ping\n\n".to_vec();
        vec![
            stream(&format!("{begun}{BEGUN}{end}")),
            Act::WriteForEver(pings),
        ]
    };
    let connectors = ConnectorsProcess::start().await;
    let upstream = FakePlatform::start(move |_, _| answer()).await;
    let mut config = dify(&upstream.url());
    config["idle-timeout"] = json!(120);
    let results = connectors.run_with("dify-agent", &config).await;
    assert_eq!(ending(&results), "completed", "{results:?}");
    upstream.has_lost(1).await;
}

#[tokio::test]
async fn files_of_other_allowed_hosts_are_not_fetched() {
    let connectors = ConnectorsProcess::start().await;
    let other = FakePlatform::start(|_, _| complete(200, "text/plain", "secret")).await;
    let file = format!("{}/x", other.url());
    let upstream = FakePlatform::start(move |_, _| {
        let body = format!(
            "{BEGUN}data: {{\"event\": \"message_file\", \"id\": \"f-1\", \"type\": \"image\", \"belongs_to\": \"assistant\", \"url\": \"{file}\"}}\n\n\
             data: {{\"event\": \"message_end\", \"metadata\": {{}}}}\n\n"
        );
        complete(200, "text/event-stream", &body)
    })
    .await;
    let results = connectors
        .run_with("dify-agent", &dify(&upstream.url()))
        .await;
    assert_eq!(ending(&results), "completed", "{results:?}");
    let logs = json!(of(&results, "processor.log")).to_string();
    assert!(logs.contains("was not saved"), "{logs}");
    assert!(other.received().is_empty());
}

#[tokio::test]
async fn times_out_hanging_connections() {
    // A listener that accepts nothing, and whose queue is full.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    let fill = async {
        loop {
            waiting.push(tokio::net::TcpStream::connect(address).await);
        }
    };
    let full = tokio::time::timeout(std::time::Duration::from_millis(500), fill).await;
    assert!(full.is_err());
    let connectors = ConnectorsProcess::start().await;
    let results = connectors
        .run_with("dify-agent", &dify(&format!("http://{address}")))
        .await;
    assert_eq!(ending(&results), "dify.timeout", "{results:?}");
}

#[tokio::test]
async fn endless_answers_end_at_their_bounds() {
    let connectors = ConnectorsProcess::start().await;
    let upstream =
        FakePlatform::start(|_, _| vec![stream(""), Act::WriteForEver(BEGUN.into())]).await;
    let mut config = dify(&upstream.url());
    config["total-timeout"] = json!(1);
    let results = connectors.run_with("dify-agent", &config).await;
    let end = ending(&results);
    assert!(
        matches!(end, "dify.timeout" | "dify.response_invalid"),
        "{end}"
    );
    upstream.has_lost(1).await;
}

#[tokio::test]
async fn lines_of_20_mib_are_refused() {
    let answer = || {
        let mut line = b"data: ".to_vec();
        line.resize(20 * 1024 * 1024, b'x');
        vec![stream(""), Act::Write(line), Act::Hang]
    };
    let (upstream, results) = dify_against(answer).await;
    assert_eq!(ending(&results), "dify.response_invalid");
    upstream.has_lost(1).await;
}

#[tokio::test]
async fn maps_error_responses_to_codes() {
    let page = "<html><body>Log in</body></html>";
    for (status, code, retryable) in [
        (200, "dify.response_invalid", false),
        (302, "dify.http_error", false),
        (401, "dify.auth_error", false),
        (429, "dify.rate_limited", true),
        (503, "dify.http_error", true),
    ] {
        let (upstream, results) = dify_against(move || complete(status, "text/html", page)).await;
        let end = &results.last().unwrap()["data"];
        assert_eq!(
            (ending(&results), &end["retryable"]),
            (code, &json!(retryable)),
            "{status}"
        );
        assert_eq!(
            upstream.received().len(),
            1,
            "{status}: nothing is followed or repeated"
        );
        assert_eq!(end["details"]["excerpt"], page, "{status}");
    }
}

#[tokio::test]
async fn cut_answers_are_not_complete() {
    let cut = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\nconnection: close\r\n\r\n";
    let connectors = ConnectorsProcess::start().await;
    let upstream = FakePlatform::start(move |_, _| {
        vec![Act::Write(format!("{cut}{BEGUN}").into_bytes()), Act::Close]
    })
    .await;
    let results = connectors
        .run_with("dify-agent", &dify(&upstream.url()))
        .await;
    assert_eq!(ending(&results), "dify.response_invalid");
}

#[tokio::test]
async fn cancellation_stops_the_platform_and_closes_the_socket() {
    let connectors = ConnectorsProcess::start().await;
    let upstream = FakePlatform::start(|request, _| {
        if request.line.contains("/stop") {
            return complete(200, "application/json", "{}");
        }
        vec![stream(BEGUN), Act::Hang]
    })
    .await;
    let mut config = dify(&upstream.url());
    config["idle-timeout"] = json!(60);
    let request = connectors.request("dify-agent", &config);
    let mut results = connectors.begin(&request).await;
    results.until("message.delta").await;
    connectors.cancel(&request.context.run_id).await;
    let rest = results.rest().await;
    assert_eq!(ending(&rest), "cancelled");
    upstream.has_lost(1).await;
    let stop = &upstream.received()[1];
    assert_eq!(stop.line, "POST /v1/chat-messages/t-1/stop");
    assert!(
        stop.headers
            .contains(&format!("authorization: bearer {KEY}"))
    );
}

#[tokio::test]
async fn invalid_configurations_fail_before_the_network() {
    let connectors = ConnectorsProcess::start().await;
    let upstream = FakePlatform::start(|_, _| Vec::new()).await;
    let mut config = dify(&upstream.url());
    config["app-type"] = json!("nothing");
    let results = connectors.run_with("dify-agent", &config).await;
    assert_eq!(ending(&results), "dify.config_invalid");
    assert_eq!(results[0]["data"]["details"]["pointer"], "/app-type");
    assert!(upstream.received().is_empty() && connectors.host.calls().is_empty());
}

#[tokio::test]
async fn persons_answer_within_the_run() {
    let connectors = ConnectorsProcess::start().await;
    let platform = Platform::find("dify-agent").unwrap();
    let transcript = Arc::new(CompletedTranscript::named("dify-agent", "form"));
    connectors.host.answer(200, transcript.answer());
    let upstream = feed(&transcript, &watch::Sender::new(0), 1).await;
    let request = connectors.request("dify-agent", &transcript.config(platform, &upstream.url()));
    let results = connectors.run(&request).await;
    assert_eq!(ending(&results), "completed", "{results:?}");
    let questions = of(&results, "action.requested");
    assert_eq!(questions[0]["payload"]["await"], true);
    assert_eq!(
        of(&results, "message.completed")[0]["message"]["content"],
        *transcript.text()
    );
    assert!(
        connectors.host.calls()[0]
            .path
            .starts_with("/interactions/dify_form-1")
    );
}

#[tokio::test]
async fn files_go_both_ways() {
    let connectors = ConnectorsProcess::start().await;
    connectors.host.answer(200, json!("bytes of the artifact"));
    connectors.host.answer(201, json!({
        "artifact_id": "a-9", "name": "b.txt", "mime_type": "text/plain", "size": 4, "sha256": "", "origin": "runner",
    }));
    let upstream = FakePlatform::start(|request, number| match number {
        0 => complete(201, "application/json", "{\"id\": \"up-1\"}"),
        1 => {
            let host = request.headers.lines().find_map(|line| line.strip_prefix("host: "));
            let file = format!("http://{}/files/b.txt", host.unwrap());
            let body = format!(
                "{BEGUN}data: {{\"event\": \"message_file\", \"id\": \"f-1\", \"type\": \"image\", \"belongs_to\": \"assistant\", \"url\": \"{file}\"}}\n\n\
                 data: {{\"event\": \"message_end\", \"metadata\": {{}}}}\n\n"
            );
            complete(200, "text/event-stream", &body)
        }
        _ => complete(200, "text/plain", "file"),
    })
    .await;
    let mut request = connectors.request("dify-agent", &dify(&upstream.url()));
    request.context.input.attachments = serde_json::from_value(
        json!([{"type": "file", "id": "a-1", "name": "a.txt", "mime_type": "text/plain"}]),
    )
    .unwrap();
    let results = connectors.run(&request).await;
    assert_eq!(ending(&results), "completed", "{results:?}");
    let received = upstream.received();
    assert!(
        received[0].body.contains("bytes of the artifact"),
        "{}",
        received[0].body
    );
    assert_eq!(
        of(&results, "artifact.created"),
        [&json!({"artifact_id": "a-9"})]
    );
    assert_eq!(
        of(&results, "message.completed")[0]["file_ids"],
        json!(["a-9"])
    );
}

/// No platform answers before it has received the requests of all its runs.
#[tokio::test(flavor = "multi_thread")]
async fn all_platforms_keep_200_runs_apart() {
    let connectors = ConnectorsProcess::start().await;
    for platform in PLATFORMS {
        let transcript = Arc::new(CompletedTranscript::of(platform));
        let gate = watch::Sender::new(0);
        let upstreams = join_all((0..RUNS).map(|_| feed(&transcript, &gate, RUNS))).await;
        let runs = upstreams.iter().map(async |upstream| {
            let config = transcript.config(platform, &upstream.url());
            connectors.run_with(platform.name, &config).await
        });
        for results in join_all(runs).await {
            let context = format!("{}/{}: {results:?}", platform.name, transcript.name);
            assert_eq!(ending(&results), "completed", "{context}");
            let completed = of(&results, "message.completed");
            assert_eq!(completed.len(), 1, "{context}");
            assert_eq!(
                completed[0]["message"]["content"],
                *transcript.text(),
                "{context}"
            );
            let sequences = results
                .iter()
                .map(|result| result["sequence"].as_u64().unwrap());
            assert!(sequences.eq(1..=results.len() as u64), "{context}");
        }
    }
}

/// A platform that plays a transcript after `together` requests to its kind.
async fn feed(
    transcript: &Arc<CompletedTranscript>,
    gate: &watch::Sender<usize>,
    together: usize,
) -> FakePlatform {
    let (transcript, gate) = (Arc::clone(transcript), gate.clone());
    FakePlatform::start(move |request, number| {
        let host = request
            .headers
            .lines()
            .find_map(|line| line.strip_prefix("host: "));
        let url = format!("http://{}", host.unwrap());
        if number == 0 {
            gate.send_modify(|requests| *requests += 1);
        }
        let mut requests = gate.subscribe();
        let all = async move {
            requests
                .wait_for(|requests| *requests >= together)
                .await
                .unwrap();
        };
        let mut acts = vec![Act::After(Box::pin(all))];
        acts.extend(transcript.respond(number, &url));
        acts
    })
    .await
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn memory_is_flat_under_equal_loads() {
    let connectors = ConnectorsProcess::start().await;
    let together = |request: &upstream::ReceivedRequest, _: usize| {
        if request.line.contains("/stop") {
            return complete(200, "application/json", "{}");
        }
        let end = "data: {\"event\": \"message_end\", \"metadata\": {}}\n\n";
        vec![
            stream(&BEGUN.repeat(200)),
            Act::Until(RUNS),
            Act::Write(end.into()),
            Act::Close,
        ]
    };
    let mut sizes = Vec::new();
    for _ in 0..4 {
        let upstream = FakePlatform::start(together).await;
        let mut config = dify(&upstream.url());
        config["idle-timeout"] = json!(60);
        let runs = (0..RUNS).map(|_| connectors.run_with("dify-agent", &config));
        for results in join_all(runs).await {
            assert_eq!(ending(&results), "completed");
            assert_eq!(of(&results, "message.delta").len(), 200);
        }
        sizes.push(resident_bytes());
    }
    let growth = sizes[3].saturating_sub(sizes[0]);
    assert!(growth < GROWTH_BYTES, "{sizes:?}");
}

#[cfg(target_os = "linux")]
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB").trim();
    kib.parse::<usize>().unwrap() * 1024
}
