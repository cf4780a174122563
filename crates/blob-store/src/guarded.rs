//! Adapter of the guarded client to the `object_store` crate.

use std::time::Duration;

use http_body_util::BodyExt as _;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use url::Url;

use egress::{Egress, EgressError};

/// Timeout from a request to the head of its response.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Provides the guarded client as a connector.
#[derive(Debug)]
pub(super) struct GuardedConnector(pub(super) Egress);

impl HttpConnector for GuardedConnector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(GuardedHttpService(self.0.clone())))
    }
}

#[derive(Debug)]
struct GuardedHttpService(Egress);

#[async_trait::async_trait]
impl HttpService for GuardedHttpService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url = Url::parse(&parts.uri.to_string())
            .map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let request = self.0.request(parts.method, &url).map_err(http_error)?;
        let request = request
            .headers(parts.headers)
            .body(egress::Body::wrap(body));
        // Covers the head only: a large body may take longer than any fixed timeout.
        let sent = tokio::time::timeout(TIMEOUT, self.0.send(request));
        let sent = sent.await.unwrap_or(Err(EgressError::Timeout));
        let response: http::Response<egress::Body> = sent.map_err(http_error)?.into();
        let (parts, body) = response.into_parts();
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error));
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}

fn http_error(error: EgressError) -> HttpError {
    let kind = match &error {
        EgressError::Connect(_) => HttpErrorKind::Connect,
        EgressError::Timeout => HttpErrorKind::Timeout,
        EgressError::Io(_) => HttpErrorKind::Interrupted,
        EgressError::Blocked { .. } => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
