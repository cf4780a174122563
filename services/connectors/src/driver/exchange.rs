//! One request and its response.

use egress::{Egress, EgressError, Response};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use url::{Origin, Url};

use crate::driver::multipart;
use crate::request::PlatformResponseHead;
use crate::request::{Method, PlatformRequest, RequestBody};
use crate::session::REFUSAL_BYTES;
use crate::turn::FILE_BYTES;
use crate::upstream::failure::TransportError;

/// Maximum bytes of response headers that are passed on.
const HEADER_BYTES: usize = 8 * 1024;

/// A response whose body is being read. Dropping it closes its connection unless the body was read to its end.
pub(super) struct ResponseExchange {
    response: Response,
    /// Bytes that may still be read of an error response's body.
    refusal_left: Option<usize>,
}

impl ResponseExchange {
    /// Sends a request and waits for the head of its response.
    async fn open(egress: &Egress, request: PlatformRequest) -> Result<Self, TransportError> {
        let response = send(egress, request).await?;
        let refusal_left = (!response.status().is_success()).then_some(REFUSAL_BYTES);
        Ok(Self {
            response,
            refusal_left,
        })
    }

    pub(super) fn head(&self) -> PlatformResponseHead {
        let mut left = HEADER_BYTES;
        let headers = self.response.headers().iter();
        let headers = headers.filter_map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            // Skip headers over the limit: they come from an untrusted platform.
            left = left.checked_sub(name.as_str().len() + value.len())?;
            Some((name.as_str().to_owned(), value))
        });
        PlatformResponseHead {
            status: self.response.status().as_u16(),
            headers: headers.collect(),
        }
    }

    /// The next bytes of the body; `None` at its proper end.
    pub(super) async fn next(&mut self) -> Result<Option<bytes::Bytes>, TransportError> {
        // More bytes of an error response would be discarded anyway.
        if self.refusal_left == Some(0) {
            return Ok(None);
        }
        let chunk = self.response.chunk().await;
        let chunk = chunk.map_err(|_| TransportError::Broken)?;
        if let (Some(left), Some(chunk)) = (&mut self.refusal_left, &chunk) {
            *left = left.saturating_sub(chunk.len());
        }
        Ok(chunk)
    }
}

/// The HTTP clients of one run.
pub(super) struct PlatformEgress<'a> {
    egress: &'a Egress,
    /// Origins of the platform: the targets of earlier requests.
    origins: Vec<Origin>,
    /// Client without the rules of `--allow`, created for the first file of another origin.
    public: Option<Egress>,
}

impl<'a> PlatformEgress<'a> {
    pub(super) fn new(egress: &'a Egress) -> Self {
        Self {
            egress,
            origins: Vec::new(),
            public: None,
        }
    }

    /// Sends a request and waits for the head of its response.
    pub(super) async fn open(
        &mut self,
        request: PlatformRequest,
    ) -> Result<ResponseExchange, TransportError> {
        let origin = request.url.origin();
        if !self.origins.contains(&origin) {
            self.origins.push(origin);
        }
        ResponseExchange::open(self.egress, request).await
    }

    /// Fetches a file of the answer from the platform itself, or from public HTTPS.
    pub(super) async fn fetch(&mut self, url: &str) -> Result<(Vec<u8>, Option<String>), String> {
        let url = Url::parse(url).map_err(|_| "its address is no URL".to_owned())?;
        if self.origins.contains(&url.origin()) {
            return fetch(self.egress, &url).await;
        }
        // The answer chooses this address: with the rules of `--allow` it could reach an internal host of another
        // agent.
        let public = match self.public.take() {
            Some(public) => public,
            None => self
                .egress
                .without_rules()
                .map_err(|error| error.to_string())?,
        };
        fetch(self.public.insert(public), &url).await
    }
}

async fn send(egress: &Egress, request: PlatformRequest) -> Result<Response, TransportError> {
    let method = match request.method {
        Method::Get => http::Method::GET,
        Method::Post => http::Method::POST,
        Method::Put => http::Method::PUT,
        Method::Patch => http::Method::PATCH,
        Method::Delete => http::Method::DELETE,
    };
    let builder = egress.request(method, &request.url);
    let mut builder = builder.map_err(transport)?;
    // A header of the configuration takes precedence over the default one.
    let has = |name: &HeaderName| request.headers.iter().any(|(other, _)| *name == **other);
    if !has(&ACCEPT) {
        builder = builder.header(ACCEPT, request.framing.accept());
    }
    for (name, value) in &request.headers {
        // Configurations with such values are refused before.
        let value = HeaderValue::from_bytes(value.as_bytes());
        let mut value = value.map_err(|_| TransportError::Broken)?;
        // Keeps the credential out of the HTTP client's logs.
        value.set_sensitive(*name == AUTHORIZATION.as_str());
        builder = builder.header(&**name, value);
    }
    builder = match request.body {
        RequestBody::Empty => builder,
        RequestBody::Json(body) => {
            if !has(&CONTENT_TYPE) {
                builder = builder.header(CONTENT_TYPE, "application/json");
            }
            builder.body(body.to_string())
        }
        RequestBody::Multipart { fields, file } => {
            let (content_type, body) = multipart::encode(&fields, &file);
            builder.header(CONTENT_TYPE, content_type).body(body)
        }
    };
    egress.send(builder).await.map_err(transport)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn transport(error: EgressError) -> TransportError {
    match error {
        EgressError::Blocked { .. } => TransportError::NotAllowed,
        EgressError::Connect(_) => TransportError::Connect,
        EgressError::Timeout => TransportError::Timeout,
        EgressError::Io(_) => TransportError::Broken,
    }
}

/// The bytes and the declared type of a file, or the reason that it cannot be fetched.
pub(super) async fn fetch(egress: &Egress, url: &Url) -> Result<(Vec<u8>, Option<String>), String> {
    let request = egress.request(http::Method::GET, url);
    let response = match request {
        Ok(request) => egress.send(request).await,
        Err(error) => Err(error),
    };
    let mut response = response.map_err(|error| error.to_string())?;
    if !response.status().is_success() {
        return Err(format!("its address answers {}", response.status()));
    }
    let declared = response.headers().get(CONTENT_TYPE);
    let declared = declared.and_then(|value| Some(value.to_str().ok()?.to_owned()));
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|_| "the connection broke")? {
        // Check each chunk: the platform may send no `content-length`, or a wrong one.
        if bytes.len() + chunk.len() > FILE_BYTES {
            return Err(format!("it is larger than {FILE_BYTES} bytes"));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok((bytes, declared))
}
