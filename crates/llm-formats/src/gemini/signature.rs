//! Provider members in the `thoughtSignature` of a part. Clients send signatures back unchanged, so the members return
//! with the next request, to the same model only.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use domain::json_text::check_json_text;
use protocol::JsonObject;
use serde_json::{Value, json};

/// Prefix of the gateway's own signatures.
const OWN: &[u8] = b"runnel:";
/// Member with the model.
const MODEL: &str = "model";

/// Members of a message and of one of its calls.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SignedMembers {
    pub(super) message: JsonObject,
    pub(super) call: JsonObject,
}

impl SignedMembers {
    /// Writes the signature. `None`: there is nothing to return.
    pub(super) fn sign(self, model: &str) -> Option<String> {
        if self.message.is_empty() && self.call.is_empty() {
            return None;
        }
        let members = json!({MODEL: model, "message": self.message, "call": self.call});
        let signed = [OWN, members.to_string().as_bytes()].concat();
        Some(STANDARD.encode(signed))
    }

    /// Reads a signature, each member with its model. `None`: it is not one of the gateway.
    pub(super) fn read(signature: &str) -> Option<Self> {
        // Python's client writes bytes in the alphabet of URLs.
        let is_of_urls = signature.contains(['-', '_']);
        let engine = if is_of_urls { URL_SAFE } else { STANDARD };
        let signed = engine.decode(signature).ok()?;
        let text = signed.strip_prefix(OWN)?;
        // A small text can expand to a large value.
        check_json_text(text).ok()?;
        let mut members: JsonObject = serde_json::from_slice(text).ok()?;
        let model = members.remove(MODEL)?;
        let mut of = |name: &str| match members.remove(name) {
            Some(Value::Object(mut found)) if !found.is_empty() => {
                found.insert(MODEL.to_owned(), model.clone());
                found
            }
            _ => JsonObject::new(),
        };
        Some(Self {
            message: of("message"),
            call: of("call"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> JsonObject {
        crate::object(value)
    }

    #[test]
    fn members_return_with_their_model() {
        let members = SignedMembers {
            message: object(json!({"reasoning_content": "h\u{fffd}m?>"})),
            call: JsonObject::new(),
        };
        let signature = members.sign("m").unwrap();
        let of_python = signature.replace('+', "-").replace('/', "_");
        for signature in [signature, of_python] {
            let read = SignedMembers::read(&signature).unwrap();
            assert_eq!(
                read.message,
                object(json!({"reasoning_content": "h\u{fffd}m?>", "model": "m"}))
            );
            assert!(read.call.is_empty());
        }
        assert_eq!(SignedMembers::default().sign("m"), None);
    }

    #[test]
    fn ignores_foreign_signatures() {
        let deep = format!("runnel:{}", "[".repeat(5000));
        for signature in [
            "",
            "AAAA",
            "?",
            &STANDARD.encode("runnel:{"),
            &STANDARD.encode(deep),
        ] {
            assert_eq!(SignedMembers::read(signature), None, "{signature:.40}");
        }
    }
}
