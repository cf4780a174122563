//! Signs requests to runners as specified by Standard Webhooks.

use std::fmt;

use aws_lc_rs::{hmac, rand};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretString};

const PREFIX: &str = "whsec_";
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;
const GENERATED_BYTES: usize = 32;

/// The text is not a signing secret. The error does not show it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a signing secret is `whsec_` and the base64 of 24 to 64 bytes")]
pub struct SigningSecretError;

/// Secret key shared with a runner endpoint. `Debug` shows nothing of it.
#[derive(Clone)]
pub struct EndpointSecret(hmac::Key);

impl fmt::Debug for EndpointSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SigningSecret([redacted])")
    }
}

impl EndpointSecret {
    /// Parses `whsec_<base64>`.
    pub fn parse(text: &SecretString) -> Result<Self, SigningSecretError> {
        let encoded = text
            .expose_secret()
            .trim()
            .strip_prefix(PREFIX)
            .ok_or(SigningSecretError)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| SigningSecretError)?;
        if LENGTHS.contains(&bytes.len()) {
            Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
        } else {
            Err(SigningSecretError)
        }
    }

    /// A new secret in the format of [`SigningSecret::parse`].
    pub fn generate() -> String {
        let mut bytes = [0; GENERATED_BYTES];
        rand::fill(&mut bytes).expect("the system's random source does not fail once it is seeded");
        format!("{PREFIX}{}", STANDARD.encode(bytes))
    }

    /// The value of `webhook-signature` for a request with this `webhook-id`, `webhook-timestamp`
    /// (epoch seconds) and body.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        format!("v1,{}", STANDARD.encode(context.sign()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

    fn parse(text: &str) -> Result<EndpointSecret, SigningSecretError> {
        EndpointSecret::parse(&SecretString::from(text))
    }

    #[test]
    fn signs_the_published_test_vector() {
        let signature = parse(SECRET).unwrap().sign(
            "list_01a1ffb1ba007c3a9b1e5f0c2a7d4e61",
            1_795_291_200,
            br#"{"action":"list_runners"}"#,
        );
        assert_eq!(signature, "v1,dSOfZVEacqpM+fy6+hUiHSOnD7J5vpwvq1QHcy4M8vs=");
    }

    #[test]
    fn generates_distinct_valid_secrets() {
        let (first, second) = (EndpointSecret::generate(), EndpointSecret::generate());
        assert_ne!(first, second);
        assert!(parse(&first).is_ok() && parse(&second).is_ok());
    }

    #[test]
    fn refuses_secrets_outside_24_to_64_bytes() {
        let of_length = |length| format!("{PREFIX}{}", STANDARD.encode(vec![7; length]));
        for good in [24, 32, 64] {
            assert!(parse(&of_length(good)).is_ok(), "{good}");
        }
        for bad in [
            "",
            "whsec_",
            "whsec_!!!!",
            "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
        ] {
            assert_eq!(parse(bad).unwrap_err(), SigningSecretError, "{bad}");
        }
        assert!(parse(&of_length(23)).is_err() && parse(&of_length(65)).is_err());
    }

    #[test]
    fn debug_hides_secret() {
        assert_eq!(
            format!("{:?}", parse(SECRET).unwrap()),
            "SigningSecret([redacted])"
        );
    }
}
