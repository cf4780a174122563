//! Parses provider responses: validates them first and redacts secrets afterwards.

use std::borrow::Cow;
use std::collections::BTreeMap;

use domain::json_repair::{JsonPart, SurrogateHalves, repair_json_part, repair_json_text};
use domain::json_text::check_json_text;
use protocol::JsonObject;
use serde_json::Value;

use crate::deviations::{DeviationCounts, ResponseDeviations};
use egress::redact::Redactor;
use egress::upstream::UpstreamError;

/// Parser for responses of one provider. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ResponseParser {
    /// Knows the secrets that were sent, because responses may echo them.
    redactor: Redactor,
    deviations: DeviationCounts,
}

impl ResponseParser {
    pub(super) fn new(redactor: Redactor, deviations: DeviationCounts) -> Self {
        Self {
            redactor,
            deviations,
        }
    }

    /// Records deviations of one response.
    pub(super) fn noted(&self) -> ResponseDeviations {
        self.deviations.of_answer()
    }

    /// Number of responses by kind of deviation.
    pub(super) fn deviations(&self) -> BTreeMap<String, u64> {
        self.deviations.counts()
    }

    /// Parses a text. A secret that is split across two events is not redacted.
    pub(super) fn value(
        &self,
        text: &[u8],
        noted: &ResponseDeviations,
    ) -> Result<Value, UpstreamError> {
        let text = repair_json_text(text);
        let is_repaired = matches!(text, Cow::Owned(_));
        self.parse(&text, is_repaired, noted)
    }

    /// Parses the data of one event. Its texts may begin or end with half a surrogate pair.
    pub(super) fn part(
        &self,
        text: &[u8],
        noted: &ResponseDeviations,
    ) -> Result<(Value, SurrogateHalves), UpstreamError> {
        let JsonPart { text, halves } = repair_json_part(text);
        let is_repaired = matches!(text, Cow::Owned(_));
        Ok((self.parse(&text, is_repaired, noted)?, halves))
    }

    fn parse(
        &self,
        text: &[u8],
        is_repaired: bool,
        noted: &ResponseDeviations,
    ) -> Result<Value, UpstreamError> {
        let malformed = |what: String| UpstreamError::Malformed(what);
        // Check nesting and size before parsing: a small text can expand to a large value.
        check_json_text(text).map_err(|fault| malformed(format!("it {fault}")))?;
        let mut value =
            serde_json::from_slice(text).map_err(|_| malformed("it is no JSON".to_owned()))?;
        if is_repaired {
            noted.note("text_repaired");
        }
        // Redact after parsing: in the text, escapes could hide a secret.
        self.redactor.redact_registered_in(&mut value);
        Ok(value)
    }

    pub(super) fn object(&self, text: &[u8]) -> Result<JsonObject, UpstreamError> {
        match self.value(text, &self.noted())? {
            Value::Object(members) => Ok(members),
            _ => Err(UpstreamError::Malformed("it is no JSON object".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reader() -> ResponseParser {
        ResponseParser::new(
            Redactor::new(["key-of-ours".into()]),
            DeviationCounts::new("p"),
        )
    }

    #[test]
    fn refuses_expanding_responses_before_parsing() {
        let many = format!("{{\"data\":[{}0]}}", "{\"\":0},".repeat(60_000));
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        for text in [many.as_str(), &deep, "nope"] {
            let refused = reader().object(text.as_bytes());
            assert!(
                matches!(refused, Err(UpstreamError::Malformed(_))),
                "{text:.40}: {refused:?}"
            );
        }
        let parsed = reader().object(b"{\"a\":[1]}").unwrap();
        assert_eq!(Value::Object(parsed), json!({"a": [1]}));
        let repaired = reader().object(br#"{"a":"\u0000\ud83d"}"#).unwrap();
        assert_eq!(Value::Object(repaired), json!({"a": "\u{FFFD}\u{FFFD}"}));
    }

    #[test]
    fn redacts_secrets_echoed_by_the_provider() {
        let text = json!({"choices": [{"message": {"content": "it is key-of-ours, twice: key-of-ours"}}],
            "key-of-ours": {"key-of-ours": "other"}, "n": 1});
        let parsed = reader().object(text.to_string().as_bytes()).unwrap();
        let clean = json!({"choices": [{"message": {"content": "it is [redacted], twice: [redacted]"}}],
            "[redacted]": {"[redacted]": "other"}, "n": 1});
        assert_eq!(Value::Object(parsed), clean);
    }
}
