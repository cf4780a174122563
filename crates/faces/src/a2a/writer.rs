//! Writes the stream of a task. Each frame has an id, by which a client continues a cut stream.

use domain::run::Run;
use domain::usage::TokenParts;
use protocol::run::AgentRunEvent;
use serde_json::{Value, json};

use super::binding::A2aBinding;
use super::fold::TaskFold;
use super::task::TaskState;
use crate::follow::FaceWriter;
use crate::frame_position::FramePosition;
use web::error::ApiError;

/// The first frames of a stream, and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamPart {
    /// The task as of this sequence, then its updates.
    TaskAt(u64),
    /// The updates after this frame.
    After(FramePosition),
    /// No updates: the task as of this sequence is the answer.
    Snapshot(u64),
}

/// Writer of one stream, or of one task. It reads all events of the run, because the text of an artifact and the
/// ids of frames depend on the earlier ones.
pub(super) struct TaskWriter {
    fold: TaskFold,
    binding: A2aBinding,
    part: StreamPart,
    /// Ids of the questions that were open at the begin.
    open_questions: Vec<String>,
    /// Sequence of the last event.
    read: u64,
    /// The client must answer before the task continues.
    waits: bool,
}

impl TaskWriter {
    pub(super) fn new(fold: TaskFold, binding: A2aBinding, part: StreamPart) -> Self {
        Self {
            fold,
            binding,
            part,
            open_questions: Vec::new(),
            read: 0,
            waits: false,
        }
    }

    /// For a stream that begins in the middle.
    pub(super) fn with_open_questions(self, open_questions: Vec<String>) -> Self {
        Self {
            open_questions,
            ..self
        }
    }

    /// The task after all read events. `open`: ids of the open questions of its run.
    pub(super) fn task(self, open: &[String]) -> Value {
        self.fold.task(open)
    }

    /// The task of a run without events.
    pub(super) fn pruned_task(mut self, run: &Run) -> Value {
        self.fold.restore(run);
        self.fold.task(&[])
    }

    fn frame(&self, id: &str, result: &Value) -> String {
        format!("id: {id}\ndata: {}\n\n", self.binding.result(result))
    }

    fn is_shown(&self, at: FramePosition) -> bool {
        match self.part {
            StreamPart::TaskAt(sequence) => at.sequence > sequence,
            StreamPart::After(position) => at > position,
            StreamPart::Snapshot(_) => false,
        }
    }

    fn first_task(&self) -> String {
        match self.part {
            StreamPart::TaskAt(sequence) if sequence == self.read => {
                let task = json!({"task": self.fold.task(&self.open_questions)});
                self.frame(&sequence.to_string(), &task)
            }
            _ => String::new(),
        }
    }
}

impl FaceWriter for TaskWriter {
    fn begin(&mut self) -> String {
        self.first_task()
    }

    fn write(&mut self, event: &AgentRunEvent) -> String {
        // Hidden frames count, so that ids do not depend on the begin of a stream.
        let updates = self.fold.apply(event);
        self.read = event.sequence;
        let mut frames = String::new();
        for (number, update) in (1..).zip(&updates) {
            let at = FramePosition::of(event.sequence, number);
            if self.is_shown(at) {
                frames += &self.frame(&at.to_string(), update);
                self.waits = self.fold.status.state == TaskState::InputRequired;
            }
        }
        frames + &self.first_task()
    }

    fn has_ended(&self) -> bool {
        let is_read = matches!(self.part, StreamPart::Snapshot(sequence) if self.read >= sequence);
        self.fold.has_ended() || self.waits || is_read
    }

    fn finish(&mut self, _: Option<TokenParts>) -> String {
        String::new()
    }

    fn cut(&mut self) -> String {
        let message = "the gateway stops, or the API key was revoked; subscribe to the task again";
        self.binding.error_frame(ApiError::unavailable(message))
    }

    fn bytes(&self) -> usize {
        self.fold.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::task::TaskHead;
    use super::*;

    fn events() -> Vec<AgentRunEvent> {
        let question =
            json!({"interaction_id": "q", "title": "t", "fallback_text": "Which?", "await": true});
        let events = [
            (
                "message.delta",
                json!({"chunk": {"role": "assistant", "content": "a"}}),
                json!({}),
            ),
            (
                "message.delta",
                json!({"chunk": {"role": "assistant", "all_content": "b"}}),
                json!({}),
            ),
            (
                "action.requested",
                json!({"action": "interaction.requested", "payload": question}),
                json!({"interaction": {"id": "i-1"}}),
            ),
            ("artifact.created", json!({"artifact_id": "f-1"}), json!({})),
            ("run.completed", json!({"finish_reason": "stop"}), json!({})),
        ];
        let events = (1..).zip(events).map(|(sequence, (kind, data, metadata))| {
            let event = json!({"run_id": "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61", "sequence": sequence, "type": kind,
                "data": data, "metadata": metadata, "created_at": 1, "source": "runner"});
            serde_json::from_value(event).unwrap()
        });
        events.collect()
    }

    fn writer(part: StreamPart) -> TaskWriter {
        let head = TaskHead {
            run: "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61"
                .parse()
                .map(protocol::id::RunId)
                .unwrap(),
            context: Some("c".to_owned()),
            root: "https://gateway".to_owned(),
        };
        TaskWriter::new(TaskFold::new(head, 0), A2aBinding::JsonRpc(json!(1)), part)
    }

    /// All frames up to the end of the stream, and their ids.
    fn stream(part: StreamPart) -> Vec<(String, Value)> {
        let mut writer = writer(part);
        let mut text = writer.begin();
        for event in events() {
            if writer.has_ended() {
                break;
            }
            text += &writer.write(&event);
        }
        let frames = text.split_terminator("\n\n").map(|frame| {
            let (id, data) = frame.split_once("\ndata: ").unwrap();
            let body: Value = serde_json::from_str(data).unwrap();
            (id.replace("id: ", ""), body["result"].clone())
        });
        frames.collect()
    }

    fn states(frames: &[(String, Value)]) -> Vec<&str> {
        let updates = frames
            .iter()
            .map(|(_, update)| &update["statusUpdate"]["status"]["state"]);
        updates.filter_map(Value::as_str).collect()
    }

    #[test]
    fn streams_end_at_awaited_questions() {
        let first = stream(StreamPart::TaskAt(0));
        let ids: Vec<_> = first.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["0", "1.1", "1.2", "2.1", "2.2", "3.1"]);
        assert_eq!(
            states(&first),
            ["TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED"]
        );
        let parts = &first[5].1["statusUpdate"]["status"]["message"]["parts"];
        assert_eq!(
            (&parts[0]["text"], &parts[1]["data"]["question"]),
            (&json!("Which?"), &json!("i-1"))
        );
        let rest = stream(StreamPart::TaskAt(3));
        assert_eq!(
            states(&rest),
            ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]
        );
    }

    #[test]
    fn any_cut_continues_after_its_last_frame() {
        let full: Vec<_> = stream(StreamPart::TaskAt(0)).into_iter().skip(1).collect();
        for at in 0..full.len() {
            let position = FramePosition::parse(&full[at].0).unwrap();
            let rest = stream(StreamPart::After(position));
            let expected = &full[at + 1..];
            assert_eq!(&rest[..expected.len()], expected, "after {position:?}");
        }
        let rest = stream(StreamPart::After(FramePosition::after(3)));
        assert_eq!(rest[0].0, "4.1");
        assert_eq!(stream(StreamPart::TaskAt(3))[1..], rest);
    }

    #[test]
    fn superseded_text_is_replaced() {
        let frames = stream(StreamPart::After(FramePosition::parse("1.1").unwrap()));
        let artifacts: Vec<_> = frames
            .iter()
            .map(|(_, update)| &update["artifactUpdate"])
            .filter(|update| update.is_object())
            .map(|update| {
                (
                    update["append"].as_bool().unwrap(),
                    update["artifact"].clone(),
                )
            })
            .collect();
        let message = |text: &str| json!({"artifactId": "message-1", "parts": [{"text": text}]});
        let expected = [(false, "a"), (false, ""), (true, "b")];
        let expected = expected.map(|(appends, text)| (appends, message(text)));
        assert_eq!(artifacts, expected);
    }

    #[test]
    fn snapshots_have_files_and_open_questions() {
        let mut writer = writer(StreamPart::Snapshot(5));
        for event in events() {
            assert_eq!(writer.write(&event), "");
        }
        assert!(writer.has_ended());
        let task = writer.task(&[]);
        assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
        assert_eq!(
            task["artifacts"][1]["parts"][0]["url"],
            "https://gateway/v1/artifacts/f-1/content"
        );
        let mut writer = super::tests::writer(StreamPart::Snapshot(4));
        for event in &events()[..4] {
            writer.write(event);
        }
        let task = writer.task(&["i-1".to_owned()]);
        assert_eq!(task["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    }
}
