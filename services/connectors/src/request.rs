//! HTTP requests as values.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use protocol::JsonObject;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use url::Url;

/// The header with a credential, and its complete value.
pub type Credential = (&'static str, SecretString);

/// A request to a platform. Debug output hides header values and bodies.
#[derive(Clone, PartialEq)]
pub struct PlatformRequest {
    pub method: Method,
    pub url: Url,
    /// Names in lower case; values may be secret. The driver adds `accept` and `content-type`.
    pub headers: Vec<(Cow<'static, str>, String)>,
    pub body: RequestBody,
    /// Framing of a response with a status from 200 to 299.
    pub framing: ResponseFraming,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RequestBody {
    Empty,
    Json(Value),
    /// `multipart/form-data`: text fields, then one file.
    Multipart {
        fields: Vec<(&'static str, String)>,
        file: FilePart,
    },
}

/// The file of a multipart body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePart {
    pub field: &'static str,
    pub name: String,
    pub mime_type: String,
    pub bytes: Arc<[u8]>,
}

/// Splitting of response bytes into events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// Server-sent events. A body that begins like JSON or HTML is one document.
    Sse,
    /// Lines without their ends; empty lines are skipped.
    Lines,
    /// Concatenated JSON objects and arrays. A body of other text is one document.
    JsonStream,
    /// The complete body is one document.
    Document,
}

impl ResponseFraming {
    /// The value of the header `accept`.
    pub fn accept(self) -> &'static str {
        match self {
            Self::Sse => "text/event-stream, application/json;q=0.5",
            Self::Lines | Self::JsonStream | Self::Document => "application/json, */*;q=0.5",
        }
    }
}

impl PlatformRequest {
    /// A `GET` whose response is one document.
    pub fn get(url: Url) -> Self {
        Self::new(Method::Get, url, RequestBody::Empty)
    }

    /// A `POST` of an object, whose response is one document.
    pub fn post(url: Url, body: JsonObject) -> Self {
        Self::new(Method::Post, url, RequestBody::Json(Value::Object(body)))
    }

    /// A `POST` of one file, whose response is one document.
    pub fn upload(url: Url, fields: Vec<(&'static str, String)>, file: FilePart) -> Self {
        Self::new(Method::Post, url, RequestBody::Multipart { fields, file })
    }

    fn new(method: Method, url: Url, body: RequestBody) -> Self {
        Self {
            method,
            url,
            headers: Vec::new(),
            body,
            framing: ResponseFraming::Document,
        }
    }

    /// Adds `authorization: Bearer` with this key.
    #[must_use]
    pub fn bearer(self, key: &SecretString) -> Self {
        let value = format!("Bearer {}", key.expose_secret());
        self.header("authorization", value)
    }

    /// Adds the header of a credential, if there is one.
    #[must_use]
    pub fn authorized(self, credential: Option<&Credential>) -> Self {
        match credential {
            None => self,
            Some((name, value)) => self.header(*name, value.expose_secret()),
        }
    }

    /// Adds a header; its name must be in lower case.
    #[must_use]
    pub fn header(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the framing of the response.
    #[must_use]
    pub fn framed(self, framing: ResponseFraming) -> Self {
        Self { framing, ..self }
    }
}

/// Status and headers of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlatformResponseHead {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
}

impl PlatformResponseHead {
    /// The value of the first header of that name, which is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl fmt::Debug for PlatformRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Header values and bodies hold credentials, so print names only.
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("url", &self.url.as_str())
            .field("headers", &names)
            .finish_non_exhaustive()
    }
}

/// Headers that the connection controls. A second length or host header would allow request smuggling.
const CONNECTION_HEADERS: [&str; 8] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// True if a configuration may set the header of this name in lower case.
pub fn is_settable(name: &str) -> bool {
    let is_name = http::HeaderName::from_bytes(name.as_bytes()).is_ok();
    is_name && !CONNECTION_HEADERS.contains(&name)
}

/// A URL below a base, with escaped segments.
pub fn below(base: &Url, segments: &[&str]) -> Url {
    let mut url = base.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        // A base with a trailing slash has an empty last segment, which would give a double slash.
        path.pop_if_empty()
            .extend(segments.iter().map(|segment| one_segment(segment)));
    }
    url
}

/// Escapes dot segments. The URL parser would remove them, and the path would be that of another route. The double
/// escape gives an id that no platform has.
fn one_segment(id: &str) -> &str {
    match id {
        "." => "%2E",
        ".." => "%2E%2E",
        id => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cannot_leave_the_base() {
        let base: Url = "https://a.example/v1/".parse().unwrap();
        let url = below(&base, &["chat", "a/../b?c", "stop"]);
        assert_eq!(
            url.as_str(),
            "https://a.example/v1/chat/a%2F..%2Fb%3Fc/stop"
        );
        for (id, escaped) in [
            ("..", "%252E%252E"),
            (".", "%252E"),
            ("%2e%2E", "%252e%252E"),
        ] {
            let url = below(&base, &["threads", id, "runs"]);
            let expected = format!("https://a.example/v1/threads/{escaped}/runs");
            assert_eq!(url.as_str(), expected);
        }
    }

    #[test]
    fn debug_output_hides_secrets() {
        let url: Url = "https://a.example".parse().unwrap();
        let request = PlatformRequest::get(url).bearer(&"secret-key".into());
        assert!(!format!("{request:?}").contains("secret-key"));
    }
}
