//! Simulated runners: their answers to a POST, and the bytes and results that follow.

use bytes::Bytes;
use domain::retry::AttemptFailure;
use domain::run::{Failure, FailureCode};
use http::StatusCode;
use protocol::id::RunId;
use serde_json::{Value, json};

use super::random::Random;
use super::settings::millis;
use crate::relay::source::SourceRead;

/// Answer of a runner to a POST.
pub(super) enum PostAnswer {
    Stream,
    Deferred,
    Failed(AttemptFailure, Failure),
    /// Answer to a resume with this status.
    Refused(StatusCode),
}

/// Behaviour of a runner in one attempt.
pub(super) struct Script {
    /// `None`: it never answers.
    pub(super) answer: Option<PostAnswer>,
    /// Pieces of the body, each with the pause before it.
    pub(super) body: Vec<(u64, SourceRead)>,
    /// Results that are appended, each with the pause before it.
    pub(super) appends: Vec<(u64, String)>,
}

fn result(run: RunId, kind: &str, data: &Value, sequence: u64) -> String {
    json!({"run_id": run, "type": kind, "data": data, "sequence": sequence}).to_string()
}

fn delta(run: RunId, number: u64) -> String {
    delta_of(run, number, number)
}

fn delta_of(run: RunId, number: u64, text: u64) -> String {
    let data = json!({"chunk": {"role": "assistant", "content": format!("text-{text}.")}});
    result(run, "message.delta", &data, number)
}

/// Results in the order in which they are sent, with the terminal if there is one.
fn results(random: &mut Random, run: RunId) -> Vec<String> {
    let count = random.between(0, 7);
    let mut all: Vec<_> = (1..=count).map(|number| delta(run, number)).collect();
    if random.chance(75) {
        let (kind, data) = if random.chance(75) {
            ("run.completed", json!({"finish_reason": "stop"}))
        } else {
            ("run.failed", json!({"code": "own.code", "error": "failed"}))
        };
        all.push(result(run, kind, &data, count + 1));
    }
    all
}

fn stream(random: &mut Random, run: RunId) -> Vec<(u64, SourceRead)> {
    let mut lines = results(random, run);
    // Dense, because a new start may keep them.
    let next = lines.len() as u64 + 1;
    if random.chance(15) && !lines.is_empty() {
        let at = random.index(lines.len());
        // A repetition, a malformed line, or a result of another run.
        let extra = match random.between(0, 2) {
            0 => lines[at].clone(),
            1 => "{\"broken".to_owned(),
            _ => delta(RunId(uuid::Uuid::nil()), 3),
        };
        lines.insert(at + 1, extra);
    }
    if random.chance(20) {
        // Late results, after the terminal if there was one.
        lines.extend([delta(run, next), delta(run, next + 1)]);
    }
    let mut bytes = lines.join("\n").into_bytes();
    bytes.push(b'\n');
    if random.chance(10) {
        let cut = random.index(bytes.len());
        bytes.truncate(cut);
    }
    let mut body = Vec::new();
    let mut rest = Bytes::from(bytes);
    while !rest.is_empty() {
        let half = rest.len().div_ceil(2);
        let size = if random.chance(50) { rest.len() } else { half };
        let pause = if random.chance(7) {
            random.between(1_000, 3_500)
        } else {
            random.between(0, 200)
        };
        body.push((pause, SourceRead::Chunk(rest.split_to(size))));
    }
    match random.between(0, 9) {
        0 => {}
        1..=2 => body.push((random.between(0, 300), SourceRead::Broken)),
        _ => body.push((random.between(0, 300), SourceRead::End)),
    }
    body
}

/// Draws the work of a resumable runner after `before` deltas: its results, each with the pause before it.
pub(super) fn draw_work(random: &mut Random, run: RunId, before: usize) -> Vec<(u64, String)> {
    let count = random.between(1, 12);
    let texts = before as u64 + 1..;
    let numbered = (1..=count).zip(texts);
    let mut all: Vec<_> = numbered
        .map(|(number, text)| delta_of(run, number, text))
        .collect();
    let data = json!({"finish_reason": "stop"});
    all.push(result(run, "run.completed", &data, count + 1));
    let paced = all
        .into_iter()
        .map(|line| (random.between(0, 700), line + "\n"));
    paced.collect()
}

/// Draws the behaviour of the runner of `run`.
pub(super) fn draw(random: &mut Random, run: RunId) -> Script {
    let mut script = Script {
        answer: None,
        body: Vec::new(),
        appends: Vec::new(),
    };
    match random.between(0, 99) {
        0..=54 => {
            script.answer = Some(PostAnswer::Stream);
            script.body = stream(random, run);
        }
        55..=79 => {
            script.answer = Some(PostAnswer::Deferred);
            for raw in results(random, run) {
                script.appends.push((random.between(50, 900), raw));
            }
        }
        80..=87 => {
            let failure = Failure::new(FailureCode::RunnerUnreachable, "not connected");
            script.answer = Some(PostAnswer::Failed(AttemptFailure::NotConnected, failure));
        }
        88..=92 => {
            let failure = Failure::new(FailureCode::RunnerHttpError, "throttled");
            let class = AttemptFailure::Throttled(millis(random.between(0, 800)));
            script.answer = Some(PostAnswer::Failed(class, failure));
        }
        93..=96 => {
            let failure = Failure::new(FailureCode::RunnerHttpError, "internal error");
            script.answer = Some(PostAnswer::Failed(AttemptFailure::Uncertain, failure));
        }
        _ => {}
    }
    script
}
