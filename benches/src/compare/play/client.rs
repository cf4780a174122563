//! The user: posts messages, reads streams to their end, and answers approval requests.

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::client::LoadConnection;
use crate::compare::arms::Arm;
use crate::compare::seen::plain;

/// Answers of the user in one play.
const ANSWERS: usize = 3;

/// The user of one conversation.
pub(super) struct CompareUser<'a> {
    pub(super) address: &'a str,
    pub(super) key: &'a str,
    pub(super) arm: Arm,
    pub(super) conversation: String,
}

/// The outcome of a run, read from its stream.
#[derive(Debug, Default)]
pub(super) struct RunReply {
    messages: Vec<String>,
    pub(super) is_completed: bool,
    end: String,
}

impl RunReply {
    /// The answer of the run, or its error.
    pub(super) fn text(&self) -> String {
        if self.is_completed {
            self.messages.join("\n\n")
        } else {
            self.end.clone()
        }
    }

    fn read(stream: &str) -> Self {
        let mut reply = Self::default();
        for data in stream
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
        {
            let Ok(event) = serde_json::from_str::<Value>(data) else {
                continue;
            };
            match event["type"].as_str() {
                Some("message.completed") => {
                    reply
                        .messages
                        .push(plain(&event["data"]["message"]["content"]));
                }
                Some("run.completed") => reply.is_completed = true,
                Some("run.failed") => reply.end = event["data"].to_string(),
                _ => {}
            }
        }
        reply
    }
}

impl CompareUser<'_> {
    /// Posts a message and reads its run to the end.
    pub(super) async fn say(&self, text: &str) -> anyhow::Result<RunReply> {
        let body = json!({
            "event_type": "message.received", "input": {"text": text}, "bot_id": self.arm.name(),
            "conversation": {"conversation_id": self.conversation},
            "actor": {"actor_type": "user", "actor_id": "u-1"},
            "delivery": {"surface": "chat", "interactions": {
                "field_types": ["select", "text"], "action_styles": ["default", "primary", "danger"],
            }},
        });
        let stream = self.ask("POST", "/v1/events", Some(&body), true).await?;
        Ok(RunReply::read(&stream))
    }

    /// As `say`, and approves each request on the way.
    pub(super) async fn say_and_approve(&self, text: &str) -> anyhow::Result<String> {
        self.say_answering(text, "allow_once").await
    }

    /// As `say`, and answers that calls with an unknown outcome were not carried out.
    pub(super) async fn say_and_answer(&self, text: &str) -> anyhow::Result<String> {
        self.say_answering(text, "retry").await
    }

    async fn say_answering(&self, text: &str, action: &str) -> anyhow::Result<String> {
        let mut reply = self.say(text).await?.text();
        for _ in 0..ANSWERS {
            let Some(question) = self.open_question().await? else {
                break;
            };
            let id = question["id"].as_str().context("an id")?;
            let answer = json!({
                "interaction_id": question["request"]["interaction_id"], "action_id": action, "values": {},
            });
            let path = format!("/v1/interactions/{id}/submit");
            let taken = self.ask("POST", &path, Some(&answer), false).await?;
            let taken: Value = serde_json::from_str(&taken)?;
            let run = taken["run_id"]
                .as_str()
                .or(taken["runs"][0]["run_id"].as_str());
            let run = run.with_context(|| format!("no run came of an answer: {taken}"))?;
            let stream = self
                .ask("GET", &format!("/v1/runs/{run}/events"), None, true)
                .await?;
            reply = RunReply::read(&stream).text();
        }
        Ok(reply)
    }

    async fn open_question(&self) -> anyhow::Result<Option<Value>> {
        let path = format!(
            "/v1/interactions?status=open&bot_id={}&conversation_id={}",
            self.arm.name(),
            self.conversation
        );
        let page: Value = serde_json::from_str(&self.ask("GET", &path, None, false).await?)?;
        Ok(page["items"].get(0).cloned())
    }

    async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        is_stream: bool,
    ) -> anyhow::Result<String> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let accept = if is_stream {
            "text/event-stream"
        } else {
            "application/json"
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\naccept: {accept}\r\n\
             idempotency-key: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            self.key,
            Uuid::now_v7(),
            body.len()
        );
        let mut connection = LoadConnection::open(self.address).await?;
        connection.send(request.as_bytes()).await?;
        let mut answer = Vec::new();
        let status = connection
            .answer(|part| answer.extend_from_slice(part))
            .await?;
        let text = String::from_utf8(answer)?;
        ensure!(
            (200..300).contains(&status),
            "{method} {path} was answered with {status}: {text}"
        );
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_messages_and_end_from_streams() {
        let stream = ": run 1\n\nevent: message.completed\ndata: {\"type\":\"message.completed\",\"data\":{\"message\":\
            {\"role\":\"assistant\",\"content\":\"hi\"}}}\n\nevent: run.completed\ndata: {\"type\":\"run.completed\",\"data\":{}}\n\n";
        let reply = RunReply::read(stream);
        assert!(reply.is_completed);
        assert_eq!(reply.text(), "hi");
        let failed = RunReply::read("data: {\"type\":\"run.failed\",\"data\":{\"code\":\"x\"}}\n");
        assert!(!failed.is_completed);
        assert_eq!(failed.text(), "{\"code\":\"x\"}");
    }
}
