//! Signatures of the Standard Webhooks specification.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{hmac, rand};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use secrecy::{ExposeSecret as _, SecretString};

/// Tolerated clock difference between signer and verifier, in seconds.
pub const TOLERANCE_SECONDS: u64 = 300;

const PREFIX: &str = "whsec_";
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
const GENERATED_BYTES: usize = 32;

/// Invalid signing secret. The message does not contain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a signing secret is `whsec_` and the base64 of 24 to 64 bytes")]
pub struct InvalidSecret;

/// Cause of a rejected signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("header {0} is missing or not text")]
    MissingHeader(&'static str),
    #[error("header {0} is repeated")]
    RepeatedHeader(&'static str),
    #[error("header webhook-id is empty or holds a dot")]
    InvalidId,
    #[error("header webhook-timestamp is not a number of seconds")]
    InvalidTimestamp,
    #[error("header webhook-timestamp is more than five minutes away")]
    OutsideTolerance,
    #[error("no signature in header webhook-signature is of this request")]
    Mismatch,
}

/// Shared key of a runner endpoint and the gateway. Its `Debug` output is empty.
#[derive(Clone)]
pub struct SigningSecret(hmac::Key);

impl fmt::Debug for SigningSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SigningSecret([redacted])")
    }
}

impl FromStr for SigningSecret {
    type Err = InvalidSecret;

    /// Parses `whsec_<base64>`.
    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(InvalidSecret)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| InvalidSecret)?;
        if SECRET_BYTES.contains(&bytes.len()) {
            Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
        } else {
            Err(InvalidSecret)
        }
    }
}

/// Three headers of a signed request, unparsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedHeaders<'a> {
    pub id: &'a str,
    /// Epoch seconds.
    pub timestamp: &'a str,
    /// One or more signatures, separated by spaces.
    pub signature: &'a str,
}

impl<'a> SignedHeaders<'a> {
    /// Reads the three headers of a request.
    pub fn of(headers: &'a HeaderMap) -> Result<Self, SignatureError> {
        let text = |name| {
            // A proxy or another reader may take the other one.
            let mut values = headers.get_all(name).iter();
            let value = values.next().and_then(|value| value.to_str().ok());
            match values.next() {
                Some(_) => Err(SignatureError::RepeatedHeader(name)),
                None => value.ok_or(SignatureError::MissingHeader(name)),
            }
        };
        Ok(Self {
            id: text("webhook-id")?,
            timestamp: text("webhook-timestamp")?,
            signature: text("webhook-signature")?,
        })
    }

    /// Timestamp, if id and timestamp are well formed and within the tolerance of `now_seconds`.
    ///
    /// Does not check the signature: it serves to reject requests before their body is read.
    pub fn fresh_timestamp(&self, now_seconds: i64) -> Result<i64, SignatureError> {
        // A dot in the id could be taken for the separator after it.
        if self.id.is_empty() || self.id.contains('.') {
            return Err(SignatureError::InvalidId);
        }
        // The parser also accepts a sign.
        let digits = self.timestamp.bytes().all(|byte| byte.is_ascii_digit());
        let timestamp = digits.then(|| self.timestamp.parse::<i64>().ok()).flatten();
        let timestamp = timestamp.ok_or(SignatureError::InvalidTimestamp)?;
        if timestamp.abs_diff(now_seconds) > TOLERANCE_SECONDS {
            return Err(SignatureError::OutsideTolerance);
        }
        Ok(timestamp)
    }
}

impl SigningSecret {
    /// Parses `whsec_<base64>` of a stored secret.
    pub fn parse(text: &SecretString) -> Result<Self, InvalidSecret> {
        text.expose_secret().parse()
    }

    /// A new secret in the format of [`SigningSecret::parse`].
    pub fn generate() -> String {
        let mut bytes = [0; GENERATED_BYTES];
        rand::fill(&mut bytes).expect("the system's random source does not fail once it is seeded");
        format!("{PREFIX}{}", STANDARD.encode(bytes))
    }

    /// The value of `webhook-signature` for a request with this id, timestamp and body.
    pub fn sign(&self, id: &str, timestamp_seconds: i64, body: &[u8]) -> String {
        let tag = self.tag(id, &timestamp_seconds.to_string(), body);
        format!("v1,{}", STANDARD.encode(tag))
    }

    /// Succeeds when one signature matches this id, timestamp and body. Takes the same time for every wrong
    /// byte.
    pub fn verify(
        &self,
        headers: SignedHeaders<'_>,
        body: &[u8],
        now_seconds: i64,
    ) -> Result<(), SignatureError> {
        headers.fresh_timestamp(now_seconds)?;
        // Computed once: a request with a thousand signatures costs one pass over the body.
        let expected = self.tag(headers.id, headers.timestamp, body);
        headers
            .signature
            .split(' ')
            .filter_map(|signature| signature.strip_prefix("v1,"))
            .filter_map(|encoded| STANDARD.decode(encoded).ok())
            // Constant time: a comparison that stops early would reveal the expected bytes.
            .find(|tag| verify_slices_are_equal(expected.as_ref(), tag).is_ok())
            .map(|_| ())
            .ok_or(SignatureError::Mismatch)
    }

    fn tag(&self, id: &str, timestamp: &str, body: &[u8]) -> hmac::Tag {
        let mut content = hmac::Context::with_key(&self.0);
        // Hashed in parts, so that the body is not copied.
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            content.update(part);
        }
        content.sign()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    const SIGNED: SignedHeaders<'static> = SignedHeaders {
        id: "list_01a1ffb1ba007c3a9b1e5f0c2a7d4e61",
        timestamp: "1795291200",
        signature: "v1,dSOfZVEacqpM+fy6+hUiHSOnD7J5vpwvq1QHcy4M8vs=",
    };
    const BODY: &[u8] = br#"{"action":"list_runners"}"#;
    const NOW: i64 = 1_795_291_200;

    fn check(
        headers: SignedHeaders<'_>,
        body: &[u8],
        now: i64,
        expected: Result<(), SignatureError>,
    ) {
        let secret: SigningSecret = SECRET.parse().unwrap();
        assert_eq!(
            secret.verify(headers, body, now),
            expected,
            "{headers:?} at {now}"
        );
    }

    #[test]
    fn matches_published_signature_vector() {
        let secret: SigningSecret = SECRET.parse().unwrap();
        assert_eq!(secret.sign(SIGNED.id, NOW, BODY), SIGNED.signature);
        check(SIGNED, BODY, NOW, Ok(()));
    }

    #[test]
    fn accepts_one_valid_signature_of_several() {
        let several = format!("v1a,xyz v1,AAAA {} v1,!!", SIGNED.signature);
        check(
            SignedHeaders {
                signature: &several,
                ..SIGNED
            },
            BODY,
            NOW,
            Ok(()),
        );
    }

    #[test]
    fn rejects_tampered_requests() {
        let wrong = Err(SignatureError::Mismatch);
        check(SIGNED, b"{\"action\":\"run\"}", NOW, wrong);
        check(SIGNED, b"", NOW, wrong);
        check(
            SignedHeaders {
                id: "list_02",
                ..SIGNED
            },
            BODY,
            NOW,
            wrong,
        );
        check(
            SignedHeaders {
                timestamp: "1795291201",
                ..SIGNED
            },
            BODY,
            NOW,
            wrong,
        );
        for signature in [
            "",
            "v1,",
            "v2,dSOfZVEacqpM+fy6+hUiHSOnD7J5vpwvq1QHcy4M8vs=",
            "v1",
        ] {
            check(
                SignedHeaders {
                    signature,
                    ..SIGNED
                },
                BODY,
                NOW,
                wrong,
            );
        }
        let other: SigningSecret = SECRET.replace("MDEy", "MDEz").parse().unwrap();
        assert_eq!(other.verify(SIGNED, BODY, NOW), wrong);
    }

    #[test]
    fn accepts_signatures_within_five_minutes() {
        check(SIGNED, BODY, NOW + 300, Ok(()));
        check(SIGNED, BODY, NOW - 300, Ok(()));
        check(
            SIGNED,
            BODY,
            NOW + 301,
            Err(SignatureError::OutsideTolerance),
        );
        check(
            SIGNED,
            BODY,
            NOW - 301,
            Err(SignatureError::OutsideTolerance),
        );
        for timestamp in [
            "",
            "soon",
            "1795291200.5",
            "99999999999999999999",
            "+1795291200",
            "-1",
            " 1795291200",
        ] {
            let headers = SignedHeaders {
                timestamp,
                ..SIGNED
            };
            check(headers, BODY, NOW, Err(SignatureError::InvalidTimestamp));
        }
        for id in ["", "a.b"] {
            let headers = SignedHeaders { id, ..SIGNED };
            check(headers, BODY, NOW, Err(SignatureError::InvalidId));
        }
    }

    #[test]
    fn generates_distinct_valid_secrets() {
        let (first, second) = (SigningSecret::generate(), SigningSecret::generate());
        assert_ne!(first, second);
        assert!(first.parse::<SigningSecret>().is_ok() && second.parse::<SigningSecret>().is_ok());
    }

    #[test]
    fn bounds_secret_length_and_hides_debug_output() {
        let of_length = |length| format!("{PREFIX}{}", STANDARD.encode(vec![7; length]));
        for (length, good) in [(23, false), (24, true), (64, true), (65, false)] {
            assert_eq!(
                of_length(length).parse::<SigningSecret>().is_ok(),
                good,
                "{length}"
            );
        }
        for bad in ["", "whsec_", "whsec_!!!!", &SECRET[PREFIX.len()..]] {
            assert_eq!(bad.parse::<SigningSecret>().unwrap_err(), InvalidSecret);
        }
        let secret: SigningSecret = SECRET.parse().unwrap();
        assert_eq!(format!("{secret:?}"), "SigningSecret([redacted])");
    }
}
