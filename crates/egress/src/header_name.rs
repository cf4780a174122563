//! Header names that an operator may add to requests to runners.

use http::HeaderName;
use http::header;

/// Prefixes that are reserved for the gateway or are hop-by-hop.
const RESERVED_PREFIXES: [&str; 4] = ["webhook-", "runnel-", "proxy-", "sec-"];

/// Headers that frame the message, control its connection or describe its body.
const RESERVED: [HeaderName; 14] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::EXPECT,
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("http2-settings"),
];

/// Cause of a refused header name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderNameError {
    #[error("is not a header name")]
    Malformed,
    #[error("is a header that only the gateway sets")]
    Reserved,
}

/// Parses a header name for requests to runners. `authorization` and vendor headers are allowed. Framing
/// headers, hop-by-hop headers and the gateway's own are refused.
pub fn outgoing_header_name(text: &str) -> Result<HeaderName, HeaderNameError> {
    let name: HeaderName = text.parse().map_err(|_| HeaderNameError::Malformed)?;
    let has_reserved_prefix = RESERVED_PREFIXES
        .iter()
        .any(|prefix| name.as_str().starts_with(prefix));
    if has_reserved_prefix || RESERVED.contains(&name) {
        return Err(HeaderNameError::Reserved);
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allows_credential_headers_and_refuses_framing_headers() {
        for name in [
            "authorization",
            "X-Api-Key",
            "x-tenant",
            "cookie",
            "traceparent",
        ] {
            assert!(outgoing_header_name(name).is_ok(), "{name}");
        }
        for name in [
            "Host",
            "content-length",
            "Content-Type",
            "Transfer-Encoding",
            "connection",
            "keep-alive",
            "te",
            "trailer",
            "upgrade",
            "proxy-authorization",
            "Webhook-Signature",
            "runnel-run-id",
        ] {
            assert_eq!(
                outgoing_header_name(name),
                Err(HeaderNameError::Reserved),
                "{name}"
            );
        }
        for name in ["", "a b", "a:b", "a\r\nb", "ü"] {
            assert_eq!(
                outgoing_header_name(name),
                Err(HeaderNameError::Malformed),
                "{name:?}"
            );
        }
    }
}
