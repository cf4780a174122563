//! Plays transcripts of platforms against their machines: complete, cut at every byte, and ended at every byte.
//!
//! A transcript `transcripts/{platform}/{name}.json` has these members, all but `config` optional:
//!
//! - `config`: the agent's configuration. `secret-of-test` marks its secrets: no failure and no log may contain it.
//! - `turn`: `text`, `state`, `params`, `submission`, `run_token`, `deadline`, `streams`, `files` (`name`, `mime_type`,
//!   and `text` or `url`), `history` (`role`, `text`).
//! - `responses`: one of each call, in order. A file of raw HTTP, `{"file": …, "end": "idle"}`, or `{"failed": "idle"}`
//!   (`connect`, `timeout`, `broken`, `idle`). By default only `{name}.http`. Further calls find no connection.
//! - `answers`: one `AwaitedInteraction` of each question, in order. Further questions expire.
//! - `is_delimited`: false if a body that ends early looks complete, such as plain text.
//! - `fails_late`: true if a failure follows the first of two end marks: an end between them completes the answer.
//! - `results`: the outputs in short. `CONNECTORS_BLESS=1 cargo test -p connectors --test transcripts` writes them:
//!   review the difference.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use connectors::catalogue::{PLATFORMS, Platform};
use connectors::machine::{HistoryMessage, MachineOutput};
use connectors::request::{PlatformRequest, PlatformResponseHead, RequestBody};
use connectors::session::MachineSession;
use connectors::turn::{ConnectorTurn, FileContent, TurnFile};
use connectors::upstream::config::{SecretHosts, SecretSource};
use connectors::upstream::failure::TransportError;
use protocol::JsonObject;
use protocol::interaction::AwaitedInteraction;
use serde_json::{Value, json};

/// Calls and questions of one play.
const MAX_STEPS: usize = 50;
const SECRET: &str = "secret-of-test";

struct PlatformTranscript {
    name: String,
    path: PathBuf,
    platform: &'static Platform,
    document: JsonObject,
    responses: Vec<Response>,
}

enum Response {
    Http {
        head: PlatformResponseHead,
        body: Vec<u8>,
        end: Option<TransportError>,
    },
    Failed(TransportError),
}

/// The way in which the bodies are passed on.
#[derive(Clone, Copy, Debug)]
enum Delivery {
    Complete,
    Bytes,
    /// One body in two chunks.
    Cut {
        response: usize,
        at: usize,
    },
    /// One body without its rest. `is_broken`: the connection breaks; otherwise the end looks clean.
    Ended {
        response: usize,
        at: usize,
        is_broken: bool,
    },
}

#[test]
fn results_match_at_any_cut() {
    for transcript in &transcripts() {
        let complete = transcript.play(Delivery::Complete);
        transcript.check_invariants(&complete, Delivery::Complete);
        transcript.check_results(&complete);
        let cuts = transcript
            .cut_points()
            .map(|(response, at)| Delivery::Cut { response, at });
        for delivery in cuts.chain([Delivery::Bytes]) {
            let cut = transcript.play(delivery);
            assert!(
                cut == complete,
                "{}: {delivery:?}: {:?}",
                transcript.name,
                short(&cut)
            );
        }
    }
}

#[test]
fn early_ends_never_complete_half_answers() {
    for transcript in &transcripts() {
        let complete = messages(&transcript.play(Delivery::Complete));
        let ends = [true, false]
            .into_iter()
            .filter(|is_broken| *is_broken || transcript.is_delimited());
        for is_broken in ends {
            for (response, at) in transcript.cut_points() {
                let delivery = Delivery::Ended {
                    response,
                    at,
                    is_broken,
                };
                let outputs = transcript.play(delivery);
                transcript.check_invariants(&outputs, delivery);
                let is_complete = matches!(outputs.last(), Some(MachineOutput::Finish(_)));
                if is_complete && transcript.member("fails_late") != json!(true) {
                    assert_eq!(
                        messages(&outputs),
                        complete,
                        "{}: {delivery:?}",
                        transcript.name
                    );
                }
            }
        }
    }
}

#[test]
fn each_platform_has_transcripts() {
    let with: BTreeSet<_> = transcripts()
        .iter()
        .map(|transcript| transcript.platform.name)
        .collect();
    let all: BTreeSet<_> = PLATFORMS.iter().map(|platform| platform.name).collect();
    assert_eq!(with, all);
}

#[test]
fn each_response_belongs_to_a_transcript() {
    let used: BTreeSet<_> = transcripts()
        .iter()
        .flat_map(PlatformTranscript::files)
        .collect();
    for platform in PLATFORMS {
        for path in listed(&directory().join(platform.name), "http") {
            assert!(
                used.contains(&path),
                "{} is in no transcript",
                path.display()
            );
        }
    }
}

#[test]
fn unknown_keys_are_refused() {
    for transcript in &transcripts() {
        let mut config = transcript.config();
        if MachineSession::new(
            transcript.platform,
            ConnectorTurn::default(),
            &config,
            &source(),
        )
        .is_err()
        {
            continue;
        }
        config.insert("no-such-key".to_owned(), json!(1));
        let refused = MachineSession::new(
            transcript.platform,
            ConnectorTurn::default(),
            &config,
            &source(),
        )
        .err();
        let pointer = refused.map(|failure| failure.details["pointer"].clone());
        assert_eq!(pointer, Some(json!("/no-such-key")), "{}", transcript.name);
    }
}

impl PlatformTranscript {
    fn read(platform: &'static Platform, path: PathBuf) -> Self {
        let name = format!("{}/{}", platform.name, stem(&path));
        let text = fs::read_to_string(&path).expect("the transcript is readable");
        let document: JsonObject =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut transcript = Self {
            name,
            path,
            platform,
            document,
            responses: Vec::new(),
        };
        transcript.responses = transcript
            .stated()
            .iter()
            .map(|stated| transcript.response(stated))
            .collect();
        transcript
    }

    fn member(&self, key: &str) -> Value {
        self.document.get(key).cloned().unwrap_or_default()
    }

    fn config(&self) -> JsonObject {
        match self.member("config") {
            Value::Object(config) => config,
            _ => panic!("{}: config is no object", self.name),
        }
    }

    fn is_delimited(&self) -> bool {
        self.member("is_delimited") != json!(false)
    }

    fn stated(&self) -> Vec<Value> {
        match self.member("responses") {
            Value::Array(responses) => responses,
            _ => vec![json!(format!("{}.http", self.file_stem()))],
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let stated = self.stated();
        let files = stated
            .iter()
            .filter_map(|stated| stated.as_str().or_else(|| stated["file"].as_str()));
        files.map(|file| self.path.with_file_name(file)).collect()
    }

    fn response(&self, stated: &Value) -> Response {
        if let Some(error) = stated["failed"].as_str() {
            return Response::Failed(error_of(error));
        }
        let file = stated.as_str().or_else(|| stated["file"].as_str());
        let file = file.expect("a response names its file");
        let bytes = fs::read(self.path.with_file_name(file))
            .unwrap_or_else(|error| panic!("{file}: {error}"));
        let (head, body) = parse_http(&bytes);
        let end = stated["end"].as_str().map(error_of);
        Response::Http { head, body, end }
    }

    /// Each cut within the body of each response.
    fn cut_points(&self) -> impl Iterator<Item = (usize, usize)> {
        let bodies = self
            .responses
            .iter()
            .enumerate()
            .filter_map(|(number, response)| match response {
                Response::Http { body, .. } => Some((number, body.len())),
                Response::Failed(_) => None,
            });
        bodies.flat_map(|(number, length)| (0..length).map(move |at| (number, at)))
    }

    fn turn(&self) -> ConnectorTurn {
        let turn = self.member("turn");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = |value: &Value| value.as_object().cloned().unwrap_or_default();
        let files = turn["files"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|file| TurnFile {
                name: text(&file["name"]),
                mime_type: text(&file["mime_type"]),
                content: match file["url"].as_str() {
                    Some(url) => FileContent::Url(url.to_owned()),
                    None => FileContent::Bytes(text(&file["text"]).into_bytes().into()),
                },
            });
        ConnectorTurn {
            run_id: "00000000-0000-7000-8000-000000000001".to_owned(),
            user: "user_7".to_owned(),
            text: text(&turn["text"]),
            files: files.collect(),
            submission: serde_json::from_value(turn["submission"].clone()).unwrap_or_default(),
            state: object(&turn["state"]),
            params: object(&turn["params"]),
            run_token: turn["run_token"].as_str().map(Into::into),
            deadline: turn["deadline"].as_f64(),
            streams: turn["streams"] != json!(false),
            ..ConnectorTurn::default()
        }
    }

    fn history(&self) -> Vec<HistoryMessage> {
        let turn = self.member("turn");
        let messages = turn["history"].as_array().into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        messages
            .map(|message| HistoryMessage {
                role: text(&message["role"]),
                text: text(&message["text"]),
            })
            .collect()
    }

    fn play(&self, delivery: Delivery) -> Vec<MachineOutput> {
        let mut session =
            match MachineSession::new(self.platform, self.turn(), &self.config(), &source()) {
                Ok(session) => session,
                Err(failure) => return vec![MachineOutput::Fail(failure)],
            };
        let (mut all, mut calls, mut questions) = (Vec::new(), 0, 0);
        let mut outputs = session.begin();
        for _ in 0..MAX_STEPS {
            let next = outputs.iter().rfind(|output| is_step(output)).cloned();
            all.append(&mut outputs);
            match next {
                Some(MachineOutput::Call(_)) => {
                    outputs = self.respond(&mut session, calls, delivery, &mut all);
                    calls += 1;
                }
                Some(MachineOutput::History(_)) => outputs = session.history(self.history()),
                Some(MachineOutput::Ask(_)) => {
                    outputs = session.answered(self.answer(questions));
                    questions += 1;
                }
                _ => return all,
            }
        }
        panic!(
            "{}: {delivery:?}: no end after {MAX_STEPS} steps",
            self.name
        )
    }

    fn answer(&self, number: usize) -> AwaitedInteraction {
        let answers = self.member("answers");
        let answer = answers
            .get(number)
            .cloned()
            .unwrap_or(json!({"status": "expired"}));
        serde_json::from_value(answer).expect("an answer")
    }

    fn file_stem(&self) -> &str {
        stem(&self.path)
    }

    /// Passes one response to the machine, up to its next step.
    fn respond(
        &self,
        session: &mut MachineSession,
        number: usize,
        delivery: Delivery,
        all: &mut Vec<MachineOutput>,
    ) -> Vec<MachineOutput> {
        let (head, body, end) = match self.responses.get(number) {
            None => return session.failed(TransportError::Connect),
            Some(Response::Failed(error)) => return session.failed(*error),
            Some(Response::Http { head, body, end }) => (head, body.as_slice(), *end),
        };
        let (chunks, end): (Vec<&[u8]>, _) = match delivery {
            Delivery::Bytes => (body.chunks(1).collect(), end),
            Delivery::Cut { response, at } if response == number => {
                (vec![&body[..at], &body[at..]], end)
            }
            Delivery::Ended {
                response,
                at,
                is_broken,
            } if response == number => (
                vec![&body[..at]],
                is_broken.then_some(TransportError::Broken),
            ),
            _ => (vec![body], end),
        };
        let mut outputs = session.head(head.clone());
        for chunk in chunks {
            if outputs.iter().any(is_step) {
                return outputs;
            }
            all.append(&mut outputs);
            outputs = session.bytes(chunk);
        }
        if outputs.iter().any(is_step) {
            return outputs;
        }
        all.append(&mut outputs);
        match end {
            None => session.end(),
            Some(error) => session.failed(error),
        }
    }

    fn check_invariants(&self, outputs: &[MachineOutput], delivery: Delivery) {
        let context = format!("{}: {delivery:?}", self.name);
        let ends = outputs
            .iter()
            .filter(|output| matches!(output, MachineOutput::Finish(_) | MachineOutput::Fail(_)))
            .count();
        assert_eq!(ends, 1, "{context}");
        assert!(
            matches!(
                outputs.last(),
                Some(MachineOutput::Finish(_) | MachineOutput::Fail(_))
            ),
            "{context}"
        );
        assert!(messages(outputs).len() <= 1, "{context}");
        for output in outputs {
            match output {
                MachineOutput::Fail(failure) => {
                    let text = json!(failure.clone().into_result(self.platform.prefix)).to_string();
                    assert!(
                        !failure.message.is_empty() && !text.contains(SECRET),
                        "{context}: {text}"
                    );
                }
                MachineOutput::Tell(result) => {
                    assert!(!json!(result).to_string().contains(SECRET), "{context}");
                }
                _ => {}
            }
        }
    }

    fn check_results(&self, outputs: &[MachineOutput]) {
        let results = short(outputs).into_iter().map(|mut result| {
            if let Some(Value::String(code)) = result.pointer_mut("/fail/code") {
                *code = code.replace("PREFIX", self.platform.prefix);
            }
            result
        });
        let results = Value::Array(results.collect());
        if std::env::var_os("CONNECTORS_BLESS").is_some() && self.member("results") != results {
            let mut document = self.document.clone();
            document.insert("results".to_owned(), results);
            fs::write(&self.path, pretty(&document)).expect("the transcript is writable");
            return;
        }
        let expected = self.member("results");
        let (received, expected) = (pretty_list(&results), pretty_list(&expected));
        assert!(
            received == expected,
            "{}: results differ\n--- received\n{received}\n--- expected\n{expected}",
            self.name
        );
    }
}

/// The document with one line for each result.
fn pretty(document: &JsonObject) -> String {
    let members = document.iter().map(|(key, value)| {
        let value = if key == "results" {
            pretty_list(value)
        } else {
            value.to_string()
        };
        format!("  {}: {value}", json!(key))
    });
    format!("{{\n{}\n}}\n", members.collect::<Vec<_>>().join(",\n"))
}

fn pretty_list(list: &Value) -> String {
    let lines = list
        .as_array()
        .into_iter()
        .flatten()
        .map(|item| format!("    {item}"));
    format!("[\n{}\n  ]", lines.collect::<Vec<_>>().join(",\n"))
}

fn transcripts() -> Vec<PlatformTranscript> {
    let of = |platform: &'static Platform| {
        let paths = listed(&directory().join(platform.name), "json");
        paths
            .into_iter()
            .map(move |path| PlatformTranscript::read(platform, path))
    };
    PLATFORMS.iter().flat_map(of).collect()
}

fn stem(path: &Path) -> &str {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    stem.expect("a name of text")
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts")
}

fn listed(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|found| found == extension));
    paths.collect::<BTreeSet<_>>().into_iter().collect()
}

fn source() -> SecretSource {
    SecretSource {
        prefix: "CONNECTOR_".to_owned(),
        hosts: SecretHosts::Any,
        lookup: Arc::new(|name| name.starts_with("CONNECTOR_").then(|| SECRET.to_owned())),
    }
}

fn error_of(name: &str) -> TransportError {
    match name {
        "connect" => TransportError::Connect,
        "timeout" => TransportError::Timeout,
        "broken" => TransportError::Broken,
        "idle" => TransportError::Idle,
        other => panic!("no transport error {other}"),
    }
}

fn parse_http(bytes: &[u8]) -> (PlatformResponseHead, Vec<u8>) {
    let end = bytes
        .windows(2)
        .position(|pair| pair == b"\n\n")
        .expect("an empty line after the headers");
    let head = std::str::from_utf8(&bytes[..end]).expect("headers of text");
    let mut lines = head.lines();
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .expect("a status line");
    let headers = lines.map(|line| line.split_once(": ").expect("a header"));
    let head = PlatformResponseHead {
        status: status.parse().expect("a status"),
        headers: headers
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect(),
    };
    (head, bytes[end + 2..].to_vec())
}

/// True for outputs that continue or end the run.
fn is_step(output: &MachineOutput) -> bool {
    matches!(
        output,
        MachineOutput::Call(_)
            | MachineOutput::History(_)
            | MachineOutput::Ask(_)
            | MachineOutput::Finish(_)
            | MachineOutput::Fail(_)
    )
}

/// The texts of `message.completed`.
fn messages(outputs: &[MachineOutput]) -> Vec<String> {
    let texts = outputs.iter().filter_map(|output| match output {
        MachineOutput::Tell(result) if result.kind == "message.completed" => {
            Some(result.data["message"]["content"].to_string())
        }
        _ => None,
    });
    texts.collect()
}

fn short(outputs: &[MachineOutput]) -> Vec<Value> {
    outputs.iter().map(short_of).collect()
}

fn short_of(output: &MachineOutput) -> Value {
    match output {
        MachineOutput::Call(request) => json!({"call": short_request(request)}),
        MachineOutput::Notify(request) => json!({"notify": short_request(request)}),
        MachineOutput::History(messages) => json!({"history": messages}),
        MachineOutput::Ask(question) => json!({"ask": question}),
        MachineOutput::Tell(result) => short_result(&result.kind, &result.data),
        MachineOutput::Remember { key, value } => json!({"remember": [key, value]}),
        MachineOutput::Save(file) => {
            json!({"save": {"name": file.name, "mime_type": file.mime_type, "from": format!("{:?}", file.content)}})
        }
        MachineOutput::Finish(end) => json!({"finish": {"reason": end.reason, "usage": end.usage}}),
        MachineOutput::Fail(failure) => json!({"fail": {
            "code": failure.kind.code("PREFIX"), "message": failure.message, "retryable": failure.retryable, "details": failure.details,
        }}),
    }
}

fn short_request(request: &PlatformRequest) -> Value {
    let headers = request
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), json!(value)));
    let body = match &request.body {
        RequestBody::Empty => Value::Null,
        RequestBody::Json(body) => body.clone(),
        RequestBody::Multipart { fields, file } => {
            let fields: JsonObject = fields
                .iter()
                .map(|(name, value)| ((*name).to_owned(), json!(value)))
                .collect();
            json!({"fields": fields, "file": [file.field, file.name, file.mime_type, file.bytes.len()]})
        }
    };
    let line = format!("{:?} {}", request.method, request.url);
    json!({"request": line, "headers": headers.collect::<JsonObject>(), "body": body})
}

fn short_result(kind: &str, data: &JsonObject) -> Value {
    let chunk = &data.get("chunk").cloned().unwrap_or_default();
    match kind {
        // The full text next to an increment follows from the increments.
        "message.delta" if chunk["content"] == "" => json!({"replace": chunk["all_content"]}),
        "message.delta" => json!({"delta": chunk["content"]}),
        "message.completed" => json!({"completed": data["message"]["content"]}),
        kind => json!({kind: data}),
    }
}
