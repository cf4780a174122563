//! Serves the bytes of an artifact, complete or by range. Browsers never render them as a page of the gateway.

use std::ops::Range;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use domain::artifact::{RequestedRange, requested_range};
use futures_util::Stream;
use http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, ETAG, HeaderName, IF_RANGE, RANGE,
};
use http::{HeaderMap, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use protocol::host_api::ArtifactMetadata;

use crate::error::ApiResult;
use crate::error::artifact::no_such_range;
use crate::query::single_header;

/// Characters of a file name that stay unescaped in a header.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_');

/// The byte range and status for one request.
pub struct ServedRange {
    status: StatusCode,
    range: Range<u64>,
}

impl ServedRange {
    /// Reads `Range`, and `If-Range` against the `ETag`.
    pub fn of(headers: &HeaderMap, artifact: &ArtifactMetadata) -> ApiResult<Self> {
        let range = single_header(headers, RANGE.as_str())?;
        let same = single_header(headers, IF_RANGE.as_str())?;
        let is_same = same.is_none_or(|tag| tag == etag(artifact));
        // `If-Range` with another version: the client must get the complete new content, no part of it.
        match requested_range(range.filter(|_| is_same), artifact.size) {
            RequestedRange::Full => Ok(Self {
                status: StatusCode::OK,
                range: 0..artifact.size,
            }),
            RequestedRange::Part(range) => Ok(Self {
                status: StatusCode::PARTIAL_CONTENT,
                range,
            }),
            RequestedRange::Nothing => Err(no_such_range(artifact.size)),
        }
    }

    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Builds the response for these bytes.
    pub fn answer(
        &self,
        artifact: &ArtifactMetadata,
        bytes: impl Stream<Item = Result<Bytes, std::io::Error>> + Send + 'static,
    ) -> Response {
        let name = utf8_percent_encode(&artifact.name, PLAIN);
        let mut headers: Vec<(HeaderName, String)> = vec![
            (CONTENT_TYPE, artifact.mime_type.clone()),
            (ETAG, etag(artifact)),
            (ACCEPT_RANGES, "bytes".to_owned()),
            (
                CONTENT_LENGTH,
                (self.range.end - self.range.start).to_string(),
            ),
            // The content is untrusted: browsers must not render it in the gateway's origin.
            (
                CONTENT_DISPOSITION,
                format!("attachment; filename*=UTF-8''{name}"),
            ),
            (
                CONTENT_SECURITY_POLICY,
                "sandbox; default-src 'none'".to_owned(),
            ),
        ];
        if self.status == StatusCode::PARTIAL_CONTENT {
            // `Content-Range` names the last byte; the range is half-open and never empty here.
            let (first, last) = (self.range.start, self.range.end - 1);
            let range = format!("bytes {first}-{last}/{}", artifact.size);
            headers.push((CONTENT_RANGE, range));
        }
        let mut response = (self.status, Body::from_stream(bytes)).into_response();
        for (name, value) in headers {
            // Stored types are valid header values; skip any other.
            if let Ok(value) = value.parse() {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}

fn etag(artifact: &ArtifactMetadata) -> String {
    format!("\"{}\"", artifact.sha256)
}
