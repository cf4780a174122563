//! State machine of one streamed completion, without I/O and without a clock.

use std::collections::BTreeMap;

use domain::json_repair::{SurrogateHalves, SurrogateJoiner, replace_halves};
use llm_formats::chat::CallTracker;
use protocol::message::LlmTokenUsage;

use super::{
    CompletionPiece, JsonObject, ResponseDeviations, UpstreamError, Value, add_usage, json,
    usage_of,
};

/// Maximum number of answers in one completion.
const MAX_ANSWERS: usize = 128;
/// Maximum number of texts per answer that can wait for a surrogate half: message and tool call texts.
const MAX_TEXTS: usize = 128;
/// Texts of a delta that arrive incrementally.
const TEXTS: [&str; 4] = ["content", "reasoning_content", "reasoning", "refusal"];

/// Result of one piece.
pub(super) enum Step {
    Nothing,
    Give(JsonObject),
    /// The last step, with an optional item.
    Over(Option<Result<JsonObject, UpstreamError>>),
}

pub(super) struct CompletionNormalizer {
    /// Number of requested answers.
    answers: usize,
    choices: BTreeMap<u64, Choice>,
    usage: Option<LlmTokenUsage>,
    /// Fields of the newest chunk, for the closing chunk.
    head: JsonObject,
    noted: ResponseDeviations,
}

#[derive(Default)]
struct Choice {
    has_ended: bool,
    calls: CallTracker,
    joiners: BTreeMap<String, SurrogateJoiner>,
}

impl CompletionNormalizer {
    pub(super) fn new(answers: usize, noted: ResponseDeviations) -> Self {
        Self {
            answers,
            choices: BTreeMap::new(),
            usage: None,
            head: JsonObject::new(),
            noted,
        }
    }

    pub(super) fn note(&self, kind: &'static str) {
        self.noted.note(kind);
    }

    /// True if all requested answers have ended.
    pub(super) fn is_complete(&self) -> bool {
        self.choices.len() >= self.answers.max(1) && self.has_ended()
    }

    /// True if all started answers have ended.
    fn has_ended(&self) -> bool {
        !self.choices.is_empty() && self.choices.values().all(|choice| choice.has_ended)
    }

    /// Processes a piece; `None`: the end of the body.
    pub(super) fn step(&mut self, piece: Option<Result<CompletionPiece, UpstreamError>>) -> Step {
        match piece {
            Some(Ok(CompletionPiece::Chunk { chunk, halves })) => self.chunk(chunk, halves),
            Some(Ok(CompletionPiece::End)) => Step::Over(self.close().map(Ok)),
            Some(Err(failed)) if self.has_ended() => {
                self.note("failure_behind_answer");
                // The answer is complete, so its client must not see a failure.
                match failed {
                    // Token usage may still follow.
                    UpstreamError::Malformed(_) => Step::Nothing,
                    _ => Step::Over(None),
                }
            }
            Some(Err(failed)) => Step::Over(Some(Err(failed))),
            None if self.has_ended() => Step::Over(None),
            None => {
                let cut = "the stream ended before the answer did: with neither a finish_reason nor an end mark";
                Step::Over(Some(Err(UpstreamError::Malformed(cut.to_owned()))))
            }
        }
    }

    fn chunk(&mut self, mut chunk: JsonObject, halves: SurrogateHalves) -> Step {
        // Compare before and after: servers repeat the same usage in each chunk.
        let before = self.usage.clone();
        if let Some(usage) = usage_of(&chunk) {
            add_usage(&mut self.usage, usage);
            chunk.insert("usage".to_owned(), json!(self.usage));
        }
        let has_counted = self.usage != before;
        let received = match chunk.remove("choices") {
            Some(Value::Array(choices)) => choices,
            _ if has_counted => Vec::new(),
            _ => {
                self.note("chunk_without_choices");
                return Step::Nothing;
            }
        };
        let was_empty = received.is_empty();
        let choices: Vec<_> = received
            .into_iter()
            .enumerate()
            .filter_map(|(n, choice)| self.choice(n as u64, choice, halves))
            .collect();
        let is_silent = choices.is_empty() && !has_counted && (!was_empty || self.has_ended());
        if is_silent {
            return Step::Nothing;
        }
        chunk.insert("choices".to_owned(), Value::Array(choices));
        if halves == SurrogateHalves::Present {
            // The sent chunk must be valid text, and halves outside of the joined texts remain.
            let mut sealed = Value::Object(chunk);
            replace_halves(&mut sealed);
            chunk = llm_formats::object(sealed);
        }
        // The closing chunk of an end mark needs these members.
        self.head = ["id", "object", "created", "model"]
            .iter()
            .filter_map(|key| Some(((*key).to_owned(), chunk.get(*key)?.clone())))
            .collect();
        Step::Give(chunk)
    }

    /// `None`: the answer has ended, or the value is not a choice.
    fn choice(&mut self, n: u64, mut value: Value, halves: SurrogateHalves) -> Option<Value> {
        let index = value.get("index").and_then(Value::as_u64).unwrap_or(n);
        let is_started = self.choices.contains_key(&index);
        if !value.is_object() || (!is_started && self.choices.len() >= MAX_ANSWERS) {
            self.note("unreadable_choice");
            return None;
        }
        let choice = self.choices.entry(index).or_default();
        if choice.has_ended {
            // Content after the finish reason would follow the end that the client has seen.
            self.noted.note("more_behind_answer");
            return None;
        }
        let members = value.as_object_mut()?;
        let mut reason =
            llm_formats::chat::finish_reason(&Value::Object(reason_of(members))).map(str::to_owned);
        // The server sent a complete message instead of a delta.
        if !members.get("delta").is_some_and(Value::is_object)
            && let Some(message) = members.remove("message").filter(Value::is_object)
        {
            members.insert("delta".to_owned(), message);
            reason.get_or_insert_with(|| "stop".to_owned());
            self.noted.note("document_for_stream");
        }
        let delta = members.entry("delta").or_insert_with(|| json!({}));
        if !delta.is_object() {
            *delta = json!({});
        }
        choice.calls.settle(delta);
        choice.join(delta, halves);
        if reason.is_some() {
            choice.end(delta);
        }
        members.insert("finish_reason".to_owned(), json!(reason));
        Some(value)
    }

    /// The closing chunk of answers without a finish reason. The end mark replaces the reason.
    fn close(&mut self) -> Option<JsonObject> {
        // An end mark without any chunk is an empty answer.
        if self.choices.is_empty() {
            self.choices.entry(0).or_default();
        }
        let open = self
            .choices
            .iter_mut()
            .filter(|(_, choice)| !choice.has_ended);
        let ends: Vec<_> = open
            .map(|(index, choice)| {
                let mut delta = json!({});
                choice.end(&mut delta);
                let reason = if choice.calls.has_calls() {
                    "tool_calls"
                } else {
                    "stop"
                };
                json!({"index": index, "delta": delta, "finish_reason": reason})
            })
            .collect();
        if ends.is_empty() {
            return None;
        }
        self.note("end_without_reason");
        let mut chunk = std::mem::take(&mut self.head);
        chunk.insert("choices".to_owned(), Value::Array(ends));
        Some(chunk)
    }
}

fn reason_of(choice: &JsonObject) -> JsonObject {
    let reason = choice.get("finish_reason").cloned();
    reason
        .map(|reason| ("finish_reason".to_owned(), reason))
        .into_iter()
        .collect()
}

impl Choice {
    /// Joins surrogate halves in the texts of a delta.
    fn join(&mut self, delta: &mut Value, halves: SurrogateHalves) {
        if halves == SurrogateHalves::Absent && self.joiners.is_empty() {
            return;
        }
        for name in TEXTS {
            if let Some(Value::String(text)) = delta.get_mut(name) {
                self.push(name.to_owned(), text, halves);
            }
        }
        let calls = delta.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let key = call_key(call["index"].as_u64().unwrap_or_default());
            if let Some(Value::String(text)) = call.pointer_mut("/function/arguments") {
                self.push(key, text, halves);
            }
        }
    }

    fn push(&mut self, key: String, text: &mut String, halves: SurrogateHalves) {
        let mut joiner = self.joiners.remove(&key).unwrap_or_default();
        joiner.push(text, halves);
        // Keep joiners only while they hold a half, so that most deltas skip this work.
        if !joiner.is_waiting() {
            return;
        }
        if self.joiners.len() < MAX_TEXTS {
            self.joiners.insert(key, joiner);
        } else {
            text.extend(joiner.finish());
        }
    }

    /// Replaces halves that still wait, because nothing follows.
    fn end(&mut self, delta: &mut Value) {
        self.has_ended = true;
        for (key, mut joiner) in std::mem::take(&mut self.joiners) {
            let Some(rest) = joiner.finish().map(String::from) else {
                continue;
            };
            let Some(index) = key
                .strip_prefix(CALL)
                .and_then(|index| index.parse::<u64>().ok())
            else {
                let text = delta[&key].as_str().unwrap_or_default().to_owned() + &rest;
                delta[&key] = json!(text);
                continue;
            };
            let call = json!({"index": index, "function": {"arguments": rest}});
            match delta.get_mut("tool_calls").and_then(Value::as_array_mut) {
                Some(calls) => calls.push(call),
                None => delta["tool_calls"] = json!([call]),
            }
        }
    }
}

const CALL: &str = "call ";

fn call_key(index: u64) -> String {
    format!("{CALL}{index}")
}

#[cfg(test)]
mod tests {
    use super::super::super::deviations::DeviationCounts;
    use super::*;

    fn chunk(delta: &Value, reason: &Value) -> Value {
        json!({"id": "r", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
    }

    fn text(text: &str) -> Value {
        chunk(&json!({"content": text}), &Value::Null)
    }

    /// Results of pieces (JSON text, `[DONE]`, end of the body), up to the end or an error.
    fn settle_of(answers: usize, pieces: &[&str]) -> (Vec<Value>, Option<String>) {
        let mut settler = CompletionNormalizer::new(answers, DeviationCounts::new("p").of_answer());
        let parsed = pieces.iter().map(|piece| {
            if *piece == "[DONE]" {
                return Ok(CompletionPiece::End);
            }
            let part = domain::json_repair::repair_json_part(piece.as_bytes());
            let chunk = serde_json::from_slice(&part.text);
            let malformed = |_| UpstreamError::Malformed("it is no JSON".to_owned());
            let halves = part.halves;
            chunk
                .map(|chunk| CompletionPiece::Chunk { chunk, halves })
                .map_err(malformed)
        });
        let mut given = Vec::new();
        for parsed in parsed.map(Some).chain([None]) {
            match settler.step(parsed) {
                Step::Nothing => {}
                Step::Give(chunk) => given.push(Value::Object(chunk)),
                Step::Over(None) => return (given, None),
                Step::Over(Some(Ok(chunk))) => {
                    given.push(Value::Object(chunk));
                    return (given, None);
                }
                Step::Over(Some(Err(failed))) => return (given, Some(failed.to_string())),
            }
        }
        panic!("neither an end nor an error");
    }

    fn settle(pieces: &[Value]) -> (Vec<Value>, Option<String>) {
        let pieces: Vec<_> = pieces
            .iter()
            .map(|piece| {
                piece
                    .as_str()
                    .map_or_else(|| piece.to_string(), str::to_owned)
            })
            .collect();
        let pieces: Vec<_> = pieces.iter().map(String::as_str).collect();
        settle_of(1, &pieces)
    }

    fn joined(given: &[Value], pointer: &str) -> String {
        given
            .iter()
            .filter_map(|chunk| chunk.pointer(pointer)?.as_str())
            .collect()
    }

    const CONTENT: &str = "/choices/0/delta/content";
    const REASON: &str = "/choices/0/finish_reason";

    #[test]
    fn answers_end_by_reason_or_end_mark() {
        for (reason, mark, is_complete) in [
            (json!("stop"), None, true),
            (json!("length"), None, true),
            (json!(""), None, false),
            (json!("null"), None, false),
            (json!(null), None, false),
            (json!(null), Some("[DONE]"), true),
            (json!(""), Some("[DONE]"), true),
        ] {
            let mut pieces = vec![text("a"), chunk(&json!({}), &reason)];
            pieces.extend(mark.map(Value::from));
            let (given, failed) = settle(&pieces);
            assert_eq!(
                failed.is_none(),
                is_complete,
                "{reason} {mark:?}: {failed:?}"
            );
            assert_eq!(joined(&given, REASON).is_empty(), !is_complete, "{given:?}");
        }
    }

    #[test]
    fn only_usage_counts_after_complete_answers() {
        let usage = json!({"choices": [], "usage": {"prompt_tokens": 9}});
        let (given, failed) = settle(&[
            text("a"),
            chunk(&json!({}), &json!("stop")),
            text("more"),
            json!("garbage"),
            usage.clone(),
            json!({"id": "r"}),
            json!({"choices": [], "usage": {"prompt_tokens": 0}}),
        ]);
        assert_eq!(failed, None);
        assert_eq!(joined(&given, CONTENT), "a");
        assert_eq!((given.len(), &given[2]), (3, &usage));
    }

    #[test]
    fn garbage_before_the_reason_fails() {
        let (given, failed) = settle(&[
            text("a"),
            json!("garbage"),
            chunk(&json!({}), &json!("stop")),
        ]);
        assert_eq!(given.len(), 1);
        assert!(failed.unwrap().contains("it is no JSON"));
    }

    #[test]
    fn every_requested_answer_must_end() {
        let of = |index: u64, reason: Value| {
            json!({"choices": [{"index": index, "delta": {"content": "x"}, "finish_reason": reason}]}).to_string()
        };
        let (first, second, end) = (
            of(0, json!("stop")),
            of(1, Value::Null),
            of(1, json!("stop")),
        );
        let (given, failed) = settle_of(2, &[&first, &second, &end]);
        assert_eq!((given.len(), failed), (3, None));
        let (_, failed) = settle_of(2, &[&first, &second]);
        assert!(failed.is_some());
    }

    #[test]
    fn joins_surrogate_halves_in_all_delta_texts() {
        for name in ["content", "reasoning_content", "reasoning", "refusal"] {
            let half = |half: &str, end: &str| {
                format!(r#"{{"choices":[{{"index":0,"delta":{{"{name}":"{half}"}}{end}}}]}}"#)
            };
            let end = r#","finish_reason":"stop""#;
            for (pieces, expected) in [
                ([half("a\\ud83d", ""), half("\\ude00", end)], "a😀"),
                ([half("\\ud83d", ""), half("", end)], "\u{FFFD}"),
                ([half("\\u0000", ""), half("x", end)], "\u{FFFD}x"),
                ([half("x", ""), half("a\\ud83d", end)], "xa\u{FFFD}"),
            ] {
                let (given, failed) = settle_of(1, &[&pieces[0], &pieces[1]]);
                assert_eq!(failed, None);
                assert_eq!(
                    joined(&given, &format!("/choices/0/delta/{name}")),
                    expected,
                    "{pieces:?}"
                );
            }
        }
    }

    #[test]
    fn joins_argument_halves_and_replaces_stray_ones() {
        let call = |arguments: &str| {
            format!(
                r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":0,"function":{{"name":"f","arguments":"{arguments}"}}}}]}},
                "logprobs":{{"content":[{{"token":"\ud83d","top":["\ude00"]}}]}}}}]}}"#
            )
        };
        let (given, failed) =
            settle_of(1, &[&call("a\\ud83d"), &call("\\ude00b\\ud83d"), "[DONE]"]);
        assert_eq!(failed, None);
        assert_eq!(
            joined(&given, "/choices/0/delta/tool_calls/0/function/arguments"),
            "a😀b\u{FFFD}"
        );
        assert_eq!(
            given[0].pointer("/choices/0/logprobs/content").unwrap(),
            &json!([{"token": "\u{FFFD}", "top": ["\u{FFFD}"]}])
        );
        assert_eq!(joined(&given, REASON), "tool_calls");
    }

    #[test]
    fn converts_complete_document_to_one_chunk() {
        let message = json!({"role": "assistant", "content": "hi"});
        let document = json!({"id": "r", "choices": [{"index": 0, "message": message, "finish_reason": "length"}]});
        let (given, failed) = settle(&[document]);
        assert_eq!(failed, None);
        assert_eq!(
            (joined(&given, CONTENT), joined(&given, REASON)),
            ("hi".to_owned(), "length".to_owned())
        );
    }

    #[test]
    fn keeps_larger_token_counts() {
        let counted = |usage: Value| json!({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": null, "usage": usage}]});
        let (given, _) = settle(&[
            counted(json!({"prompt_tokens": 1200.0, "completion_tokens": 1})),
            counted(json!({"prompt_tokens": 0, "completion_tokens": 0})),
            json!({"choices": [], "x_groq": {"usage": {"output_tokens": 7}}}),
            json!("[DONE]"),
        ]);
        let last = given
            .iter()
            .filter_map(|chunk| chunk.get("usage"))
            .next_back()
            .unwrap();
        assert_eq!(
            (&last["prompt_tokens"], &last["completion_tokens"]),
            (&json!(1200), &json!(7))
        );
    }
}
