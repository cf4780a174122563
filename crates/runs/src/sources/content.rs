//! The content of a request as the input of the filters: `{body, headers, query}`.

use domain::json_text::check_json_text;
use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HeaderName, PROXY_AUTHORIZATION};
use protocol::admin::Fault;
use protocol::source::SourceSettings;
use serde_json::{Map, Value, json};

use super::xml::read_xml;

/// Maximum members of a form or a query.
const MAX_PAIRS: usize = 1_000;
/// Headers with credentials or signatures, which no event shall have.
const HIDDEN: [HeaderName; 9] = [
    AUTHORIZATION,
    COOKIE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("webhook-signature"),
    HeaderName::from_static("x-hub-signature"),
    HeaderName::from_static("x-hub-signature-256"),
    HeaderName::from_static("x-slack-signature"),
    HeaderName::from_static("stripe-signature"),
    HeaderName::from_static("x-lark-signature"),
];

/// A verified request: its body in plain text, and its head.
#[derive(Clone)]
pub struct SourceContent {
    pub body: Vec<u8>,
    pub headers: HeaderMap,
    pub query: String,
}

/// Input of the filters.
#[derive(Clone, Debug)]
pub struct SourceInput(pub(super) Value);

impl SourceContent {
    /// Reads the body as JSON, form, XML or text, by its type and its begin.
    pub fn input(&self, settings: &SourceSettings) -> Result<SourceInput, Fault> {
        let body = self.body_value()?;
        let hidden = settings.header.as_deref().unwrap_or_default();
        let mut headers = Map::new();
        for name in self.headers.keys() {
            // `sign` is that of DingTalk, too short a name to be hidden everywhere.
            let is_hidden = HIDDEN.contains(name)
                || name.as_str().eq_ignore_ascii_case(hidden)
                || name.as_str() == "sign";
            if !is_hidden {
                let values = self.headers.get_all(name).iter();
                let values: Vec<_> = values.filter_map(|value| value.to_str().ok()).collect();
                headers.insert(name.as_str().to_owned(), json!(values.join(", ")));
            }
        }
        Ok(SourceInput(json!({
            "body": body,
            "headers": headers,
            "query": pairs(self.query.as_bytes()),
        })))
    }

    fn body_value(&self) -> Result<Value, Fault> {
        let content_type = self.headers.get(CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        if content_type.is_some_and(|name| name.starts_with("application/x-www-form-urlencoded")) {
            return checked(pairs(&self.body));
        }
        let text = str::from_utf8(&self.body);
        let text = text.map_err(|_| Fault::new("", "the body is not UTF-8"))?;
        // Many senders announce JSON by no type or by another one.
        if let Ok(value) = serde_json::from_str(text) {
            return checked(value);
        }
        if text.trim_start().starts_with('<')
            && let Some(value) = read_xml(text)
        {
            return checked(value);
        }
        checked(json!(text))
    }
}

/// Fails for content that events cannot have, such as U+0000.
fn checked(value: Value) -> Result<Value, Fault> {
    match check_json_text(value.to_string().as_bytes()) {
        Ok(()) => Ok(value),
        Err(fault) => Err(Fault::new("", format!("the body {fault}"))),
    }
}

/// The members of a form. A repeated one has its last value.
fn pairs(text: &[u8]) -> Value {
    let pairs = url::form_urlencoded::parse(text).into_owned();
    let pairs = pairs.take(MAX_PAIRS);
    Value::Object(pairs.map(|(name, value)| (name, json!(value))).collect())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use protocol::source::SourceScheme;

    use super::*;

    fn input(content_type: &str, body: &str) -> Result<Value, Fault> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_str(content_type).unwrap());
        for name in ["authorization", "x-hub-signature-256", "x-own", "x-event"] {
            headers.insert(name, HeaderValue::from_static("v"));
        }
        let content = SourceContent {
            body: body.as_bytes().to_vec(),
            headers,
            query: "a=1&b=x%20y".to_owned(),
        };
        let settings = SourceSettings {
            scheme: SourceScheme::Hmac,
            header: Some("X-Own".to_owned()),
            prefix: None,
            encoding: None,
            filter: ".".to_owned(),
            dedupe: None,
        };
        content.input(&settings).map(|SourceInput(input)| input)
    }

    #[test]
    fn reads_json_forms_xml_and_text() {
        let form = "application/x-www-form-urlencoded";
        for (content_type, body, expected) in [
            ("application/json", r#"{"a": [1]}"#, json!({"a": [1]})),
            ("text/plain", r#"{"a": 1}"#, json!({"a": 1})),
            (
                form,
                "text=hi+there&x=%C3%BC",
                json!({"text": "hi there", "x": "ü"}),
            ),
            ("text/xml", "<xml><A>1</A></xml>", json!({"A": "1"})),
            ("text/plain", "Hello, World!", json!("Hello, World!")),
        ] {
            assert_eq!(input(content_type, body).unwrap()["body"], expected);
        }
        assert!(input("application/json", "{\"a\": \"\\u0000\"}").is_err());
        let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
        assert!(input("application/json", &deep).is_err());
    }

    #[test]
    fn hides_credentials_and_signatures() {
        let input = input("application/json", "{}").unwrap();
        let expected = json!({"content-type": "application/json", "x-event": "v"});
        assert_eq!(input["headers"], expected);
        assert_eq!(input["query"], json!({"a": "1", "b": "x y"}));
    }
}
