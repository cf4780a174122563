//! Server-sent events of a result stream.

use bytes::Bytes;
use protocol::result::AgentRunResult;

/// First bytes of every stream: they tell the gateway that the runner has started.
pub(crate) const GREETING: Bytes = Bytes::from_static(b": hi\n\n");
/// Heartbeat of a silent runner.
pub(crate) const HEARTBEAT: Bytes = Bytes::from_static(b": heartbeat\n\n");

/// Result as a server-sent event. A type with line breaks appears only in `data`.
pub(crate) fn event(result: &AgentRunResult) -> Bytes {
    let data = serde_json::to_string(result).expect("a result holds nothing but JSON");
    let mut frame = String::with_capacity(data.len() + 64);
    if !result.kind.contains(char::is_control) {
        frame.extend(["event: ", &result.kind, "\n"]);
    }
    if let Some(sequence) = result.sequence {
        frame.extend(["id: ", &sequence.to_string(), "\n"]);
    }
    frame.extend(["data: ", &data, "\n\n"]);
    frame.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results;

    #[test]
    fn writes_type_sequence_and_data_lines() {
        let mut result = results::run_completed();
        result.run_id = "r-1".to_owned();
        result.sequence = Some(4);
        assert_eq!(
            event(&result),
            "event: run.completed\nid: 4\ndata: {\"run_id\":\"r-1\",\"type\":\"run.completed\",\
             \"data\":{\"finish_reason\":\"stop\"},\"sequence\":4}\n\n"
        );
    }

    #[test]
    fn escapes_line_breaks_in_data() {
        let mut result = results::custom("x\ndata: y", protocol::JsonObject::new());
        result
            .data
            .insert("text".to_owned(), "a\n\nevent: run.failed\r\n".into());
        let frame = event(&result);
        assert!(frame.starts_with(b"data: {") && frame.ends_with(b"}\n\n"));
        assert_eq!(
            frame
                .iter()
                .filter(|byte| matches!(byte, b'\n' | b'\r'))
                .count(),
            2
        );
    }
}
