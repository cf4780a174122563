//! Signatures of other systems' requests: GitHub, Slack, Stripe, Feishu, `DingTalk`, `WeCom`, and plain HMAC headers.
//!
//! Verification only. Every comparison takes constant time, and every timestamp has the tolerance of
//! [`TOLERANCE_SECONDS`]. Those of Standard Webhooks are in [`crate::signature`].

mod encrypted;
#[cfg(test)]
mod tests;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;

use crate::signature::{SignatureError, TOLERANCE_SECONDS};

pub use encrypted::{
    FEISHU_SIGNATURE, InvalidWecomSecret, WecomQuery, WecomSecret, feishu, feishu_decrypt,
};

/// Maximum signatures of one header that are compared.
const MAX_SIGNATURES: usize = 16;

/// Cause of a refused request. It is for the log only: the sender learns nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InboundError {
    #[error("the header or parameter {0} is missing, repeated or not text")]
    Missing(&'static str),
    #[error("the signature header is missing, repeated or not text")]
    NoSignature,
    #[error("the timestamp is not a number")]
    InvalidTimestamp,
    #[error("the timestamp is more than five minutes away")]
    OutsideTolerance,
    #[error("the signature does not match")]
    Mismatch,
    #[error("the content cannot be decrypted")]
    Undecipherable,
    #[error(transparent)]
    Standard(#[from] SignatureError),
}

/// A request, as far as signatures cover it.
#[derive(Clone, Copy)]
pub struct InboundRequest<'a> {
    pub headers: &'a HeaderMap,
    pub body: &'a [u8],
    pub now_seconds: i64,
}

/// Encoding of a signature in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagEncoding {
    Hex,
    Base64,
}

/// A header with the HMAC-SHA256 of the body.
#[derive(Clone, Copy, Debug)]
pub struct HmacHeader<'a> {
    pub name: &'a str,
    /// Text before the signature, such as `sha256=`.
    pub prefix: &'a str,
    pub encoding: TagEncoding,
}

/// The header of GitHub.
pub const GITHUB: HmacHeader<'static> = HmacHeader {
    name: "x-hub-signature-256",
    prefix: "sha256=",
    encoding: TagEncoding::Hex,
};

impl InboundRequest<'_> {
    fn header(&self, name: &'static str) -> Result<&str, InboundError> {
        single(self.headers, name).ok_or(InboundError::Missing(name))
    }
}

/// The value of a header. A repeated one counts as absent: a proxy or another reader may take the other value.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    match values.next() {
        None => value.to_str().ok(),
        Some(_) => None,
    }
}

/// Checks a header with the HMAC-SHA256 of the body.
pub fn hmac_header(
    secret: &str,
    header: HmacHeader<'_>,
    request: InboundRequest<'_>,
) -> Result<(), InboundError> {
    let sent = single(request.headers, header.name).ok_or(InboundError::NoSignature)?;
    let sent = sent.strip_prefix(header.prefix);
    let sent = sent.and_then(|sent| decoded(sent, header.encoding));
    is_same(tag(secret, &[request.body]), sent)
}

/// Checks Slack's signature: `v0=` and the hex HMAC of `v0:{timestamp}:{body}`.
pub fn slack(secret: &str, request: InboundRequest<'_>) -> Result<(), InboundError> {
    let timestamp = request.header("x-slack-request-timestamp")?;
    let sent = request.header("x-slack-signature")?.strip_prefix("v0=");
    check_fresh(timestamp, 1, request.now_seconds)?;
    let parts = [b"v0:", timestamp.as_bytes(), b":", request.body];
    let sent = sent.and_then(|sent| decoded(sent, TagEncoding::Hex));
    is_same(tag(secret, &parts), sent)
}

/// Checks Stripe's signature: one of the `v1` is the hex HMAC of `{t}.{body}`.
pub fn stripe(secret: &str, request: InboundRequest<'_>) -> Result<(), InboundError> {
    let header = request.header("stripe-signature")?;
    let values = |key: &'static str| {
        let pairs = header.split(',').filter_map(|pair| pair.split_once('='));
        pairs.filter_map(move |(name, value)| (name.trim() == key).then_some(value.trim()))
    };
    let timestamp = values("t").next().ok_or(InboundError::InvalidTimestamp)?;
    check_fresh(timestamp, 1, request.now_seconds)?;
    let expected = tag(secret, &[timestamp.as_bytes(), b".", request.body]);
    let sent = values("v1").take(MAX_SIGNATURES);
    let mut sent = sent.filter_map(|sent| decoded(sent, TagEncoding::Hex));
    sent.find(|sent| verify_slices_are_equal(expected.as_ref(), sent).is_ok())
        .map(|_| ())
        .ok_or(InboundError::Mismatch)
}

/// Checks the signature of a `DingTalk` robot: the base64 HMAC of `{timestamp}\n{secret}`, with milliseconds. It does
/// not cover the body.
pub fn dingtalk(secret: &str, request: InboundRequest<'_>) -> Result<(), InboundError> {
    let timestamp = request.header("timestamp")?;
    let sent = request.header("sign")?;
    check_fresh(timestamp, 1000, request.now_seconds)?;
    let expected = tag(secret, &[timestamp.as_bytes(), b"\n", secret.as_bytes()]);
    is_same(expected, decoded(sent, TagEncoding::Base64))
}

/// Checks a secret that is a part of the path.
pub fn secret_path(secret: &str, sent: &str) -> Result<(), InboundError> {
    let (secret, sent) = (secret.as_bytes(), sent.as_bytes());
    verify_slices_are_equal(secret, sent).map_err(|_| InboundError::Mismatch)
}

fn tag(secret: &str, parts: &[&[u8]]) -> hmac::Tag {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let mut content = hmac::Context::with_key(&key);
    for part in parts {
        content.update(part);
    }
    content.sign()
}

fn is_same(expected: hmac::Tag, sent: Option<Vec<u8>>) -> Result<(), InboundError> {
    let sent = sent.ok_or(InboundError::Mismatch)?;
    verify_slices_are_equal(expected.as_ref(), &sent).map_err(|_| InboundError::Mismatch)
}

/// Fails unless the timestamp is within the tolerance. `per_second`: its unit.
fn check_fresh(timestamp: &str, per_second: i64, now_seconds: i64) -> Result<(), InboundError> {
    // The parser also accepts a sign.
    let is_number = timestamp.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number
        .then(|| timestamp.parse::<i64>().ok())
        .flatten()
        .ok_or(InboundError::InvalidTimestamp)?;
    if (number / per_second).abs_diff(now_seconds) > TOLERANCE_SECONDS {
        return Err(InboundError::OutsideTolerance);
    }
    Ok(())
}

fn decoded(text: &str, encoding: TagEncoding) -> Option<Vec<u8>> {
    match encoding {
        TagEncoding::Base64 => STANDARD.decode(text).ok(),
        TagEncoding::Hex => from_hex(text),
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| {
        let byte = digit(*high)? * 16 + digit(*low)?;
        u8::try_from(byte).ok()
    });
    rest.is_empty().then(|| bytes.collect()).flatten()
}
