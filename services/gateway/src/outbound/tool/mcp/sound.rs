//! Messages of a server, looked at before any value is built of them.

use bytes::{Bytes, BytesMut};
use domain::json_text::check_json_text;
use rmcp::model::RequestId;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio_util::codec::Decoder;

/// The code of the error that stands for an answer which nobody may read.
pub(super) const UNREADABLE: i32 = -31_999;

/// A message that may not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unsound {
    /// What to read instead: an error for whoever waits for it. Nobody may wait.
    pub(super) instead: Option<String>,
}

/// So much of a message as tells who waits for it. No value is built of the rest.
#[derive(Deserialize)]
struct Envelope {
    id: Option<RequestId>,
    method: Option<IgnoredAny>,
}

/// Looks at a message. What is no JSON at all is sound: the parser tells.
pub(super) fn look_at(message: &[u8]) -> Result<(), Unsound> {
    let Err(fault) = check_json_text(message) else {
        return Ok(());
    };
    let envelope: Option<Envelope> = serde_json::from_slice(message).ok();
    // An id beside a method is one of the server's own.
    let answered = envelope.filter(|envelope| envelope.method.is_none());
    let answered = answered.and_then(|envelope| envelope.id);
    let instead = answered.map(|id| {
        let error = json!({"code": UNREADABLE, "message": format!("it {fault}")});
        json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()
    });
    Err(Unsound { instead })
}

/// Lines of a process that are sound, or what is read instead. Lines that are longer than the most are dropped.
pub(super) struct SoundLines {
    most: usize,
    /// Bytes of an open line that were looked through.
    looked: usize,
    is_dropping: bool,
}

impl SoundLines {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            looked: 0,
            is_dropping: false,
        }
    }
}

impl Decoder for SoundLines {
    type Item = Bytes;
    type Error = std::io::Error;

    fn decode(&mut self, read: &mut BytesMut) -> Result<Option<Bytes>, Self::Error> {
        loop {
            let new = read.get(self.looked..).unwrap_or_default();
            let Some(end) = new.iter().position(|byte| *byte == b'\n') else {
                break;
            };
            let line = read.split_to(self.looked + end + 1);
            self.looked = 0;
            let is_dropped = std::mem::take(&mut self.is_dropping) || line.len() > self.most;
            if is_dropped {
                continue;
            }
            match look_at(&line) {
                Ok(()) => return Ok(Some(line.freeze())),
                Err(Unsound { instead: None }) => {}
                Err(Unsound {
                    instead: Some(error),
                }) => return Ok(Some(format!("{error}\n").into())),
            }
        }
        self.looked = read.len();
        if self.looked > self.most {
            read.clear();
            (self.looked, self.is_dropping) = (0, true);
        }
        Ok(None)
    }

    fn decode_eof(&mut self, read: &mut BytesMut) -> Result<Option<Bytes>, Self::Error> {
        let line = self.decode(read)?;
        if line.is_none() {
            // Nobody ends it any more.
            read.clear();
        }
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt as _;
    use serde_json::Value;
    use tokio_util::codec::FramedRead;

    use super::*;

    fn many(message: &str) -> String {
        message.replace("MANY", &format!("[{}0]", "0,".repeat(200_000)))
    }

    #[test]
    fn an_answer_that_may_not_be_read_is_an_error_of_its_call() {
        for (message, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":MANY}"#, json!(7)),
            (r#"{"result":MANY,"id":"a","jsonrpc":"2.0"}"#, json!("a")),
            (r#"{"id":7,"result":{"a":"\u0000"}}"#, json!(7)),
            (r#"{"id":7,"result":{"a":"\ud800"}}"#, json!(7)),
        ] {
            let unsound = look_at(many(message).as_bytes()).unwrap_err();
            let error: Value = serde_json::from_str(&unsound.instead.unwrap()).unwrap();
            assert_eq!(error["id"], id, "{message}");
            assert_eq!(error["error"]["code"], UNREADABLE, "{message}");
        }
        for nobody_waits in [
            r#"{"id":7,"method":"ping","params":MANY}"#,
            r#"{"method":"notifications/message","params":MANY}"#,
            "MANY",
        ] {
            let unsound = look_at(many(nobody_waits).as_bytes()).unwrap_err();
            assert_eq!(unsound.instead, None, "{nobody_waits}");
        }
        for sound in [r#"{"id":7,"result":{}}"#, "no JSON", ""] {
            assert!(look_at(sound.as_bytes()).is_ok());
        }
    }

    #[tokio::test]
    async fn a_process_is_heard_line_by_line() {
        let deep = format!(r#"{{"id":7,"result":{}}}"#, "[".repeat(70_000));
        let long = "x".repeat(100_001);
        let said = format!("{{\"id\":1}}\r\n\n{long}\nb\n{deep}\n{long}{long}\nc\nrest");
        let lines = FramedRead::new(said.as_bytes(), SoundLines::new(100_000));
        let lines: Vec<_> = lines.try_collect().await.unwrap();
        let lines: Vec<_> = lines
            .iter()
            .map(|line| String::from_utf8_lossy(line))
            .collect();
        assert_eq!(
            lines,
            ["{\"id\":1}\r\n", "\n", "b\n", "c\n"],
            "deep is no JSON"
        );
    }
}
