//! Files that are embedded in the binary, for browsers: encodings, caching, and a policy that confines pages to this
//! gateway.

use std::io::Read as _;

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use flate2::read::GzDecoder;
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    HeaderName, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY, VARY,
};
use http::{HeaderMap, StatusCode};

use secrets::digest::sha256_hex;

/// Content security policy: own scripts, styles and requests to this gateway only.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

/// Time for which a browser may use a file without a request.
#[derive(Clone, Copy)]
pub(super) enum Caching {
    /// Five minutes.
    Short,
    /// None: each use asks, and 304 confirms an unchanged file.
    #[cfg(feature = "console")]
    Revalidated,
    /// A year. The name of the file changes with its content.
    #[cfg(feature = "console")]
    Immutable,
}

impl Caching {
    fn header(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Short => "public, max-age=300",
            #[cfg(feature = "console")]
            Self::Revalidated => "no-cache",
            #[cfg(feature = "console")]
            Self::Immutable => "public, max-age=31536000, immutable",
        })
    }
}

/// Content of a file.
pub(super) enum EmbeddedContent {
    Plain(Bytes),
    /// Packed when the binary was built. Unpacked for clients that accept neither encoding.
    Packed {
        gzip: Bytes,
        brotli: Option<Bytes>,
    },
}

impl EmbeddedContent {
    /// The smallest form that the client accepts, and its encoding.
    fn encoded(self, request: &HeaderMap) -> (Bytes, Option<&'static str>) {
        match self {
            Self::Plain(content) => (content, None),
            Self::Packed {
                brotli: Some(brotli),
                ..
            } if accepts(request, "br") => (brotli, Some("br")),
            Self::Packed { gzip, .. } if accepts(request, "gzip") => (gzip, Some("gzip")),
            packed @ Self::Packed { .. } => (packed.plain(), None),
        }
    }

    /// The content without an encoding.
    pub(super) fn plain(self) -> Bytes {
        match self {
            Self::Plain(content) => content,
            Self::Packed { gzip, .. } => {
                let mut content = Vec::new();
                let read = GzDecoder::new(&*gzip).read_to_end(&mut content);
                read.expect("the embedded files are gzip");
                content.into()
            }
        }
    }

    /// Weak, because it names the content in all encodings.
    fn tag(&self) -> HeaderValue {
        let (Self::Plain(bytes) | Self::Packed { gzip: bytes, .. }) = self;
        let tag = format!("W/\"{}\"", &sha256_hex(bytes)[..32]);
        HeaderValue::try_from(tag).expect("hex digits are ASCII")
    }
}

/// A file, ready to send.
pub(super) struct StaticFile {
    pub(super) content_type: HeaderValue,
    pub(super) caching: Caching,
    pub(super) content: EmbeddedContent,
}

impl StaticFile {
    /// Responds to a request with these headers: 200, or 304 if the client has this content.
    pub(super) fn respond(self, request: &HeaderMap) -> Response {
        let tag = self.content.tag();
        let mut response = if matches_tag(request, &tag) {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            let (body, encoding) = self.content.encoded(request);
            let mut response = ([(CONTENT_TYPE, self.content_type)], body).into_response();
            if let Some(encoding) = encoding {
                let encoding = HeaderValue::from_static(encoding);
                response.headers_mut().insert(CONTENT_ENCODING, encoding);
            }
            response
        };
        response.headers_mut().extend([
            (CACHE_CONTROL, self.caching.header()),
            (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
            (ETAG, tag),
            (OPENER_POLICY, HeaderValue::from_static("same-origin")),
            (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
            (VARY, HeaderValue::from_static("accept-encoding")),
        ]);
        response
    }
}

/// Entries of a list header.
fn entries(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(name).into_iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// True if the request lists this encoding with a weight above 0. `*` counts as absent: plain content is always right.
fn accepts(request: &HeaderMap, encoding: &str) -> bool {
    entries(request, ACCEPT_ENCODING).any(|entry| {
        let (name, parameters) = entry.split_once(';').unwrap_or((entry, "q=1"));
        let weight = parameters.trim().trim_start_matches(['q', 'Q', '=']);
        name.trim().eq_ignore_ascii_case(encoding)
            && weight.parse().is_ok_and(|weight: f32| weight > 0.0)
    })
}

/// True if the client has the content with this tag (RFC 9110 §13.1.2, weak comparison).
fn matches_tag(request: &HeaderMap, tag: &HeaderValue) -> bool {
    let opaque = |tag: &str| tag.trim_start_matches("W/").to_owned();
    let tag = opaque(tag.to_str().unwrap_or_default());
    entries(request, IF_NONE_MATCH).any(|entry| entry == "*" || opaque(entry) == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &HeaderName, values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn accepts_only_listed_encodings_with_weight() {
        for (lines, br, gzip) in [
            (&[][..], false, false),
            (&["gzip, deflate, br"], true, true),
            (&["gzip, deflate"], false, true),
            (&["br;q=0, GZIP ; q=0.5"], false, true),
            (&["br;q=0.000"], false, false),
            (&["deflate", "br"], true, false),
            (&["*", "identity;q=0"], false, false),
            (&["brotli, gzipped, br;q=x"], false, false),
        ] {
            let headers = request(&ACCEPT_ENCODING, lines);
            let found = (accepts(&headers, "br"), accepts(&headers, "gzip"));
            assert_eq!(found, (br, gzip), "{lines:?}");
        }
    }

    #[test]
    fn matches_listed_tags_weakly() {
        let tag = HeaderValue::from_static("W/\"a\"");
        for (lines, matches) in [
            (&[][..], false),
            (&["W/\"a\""], true),
            (&["\"a\""], true),
            (&["\"b\", \"a\""], true),
            (&["*"], true),
            (&["\"b\"", "a"], false),
        ] {
            assert_eq!(
                matches_tag(&request(&IF_NONE_MATCH, lines), &tag),
                matches,
                "{lines:?}"
            );
        }
    }
}
