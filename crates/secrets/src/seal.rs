//! Encryption of secrets at rest: AES-256-GCM under the master key.
//!
//! A sealed text is `v1.` and the unpadded base64url of nonce, ciphertext and tag. The purpose is authenticated
//! data, so a text sealed for one column does not open in another.

use std::fmt::{self, Write as _};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::{hmac, rand};
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, URL_SAFE_NO_PAD};
use base64::{Engine, alphabet};
use secrecy::{ExposeSecret, SecretString};

const KEY_BYTES: usize = 32;
const VERSION: &str = "v1.";

/// Sample keys of documentation and test suites. They protect nothing.
const SAMPLE_KEYS: [&[u8; KEY_BYTES]; 3] = [
    b"0123456789abcdef0123456789abcdef",
    b"abcdefghijklmnopqrstuvwxyz012345",
    b"change-me-change-me-change-me-32",
];

/// Errors of a key or a sealed text. They never show its content.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    #[error("the master key must be 32 bytes, written as 64 hex digits or as base64")]
    Malformed,
    #[error("the master key is a well-known sample; make one with `openssl rand -hex 32`")]
    Weak,
    #[error("the sealed text is in a format that this version does not know")]
    UnknownFormat,
    #[error("the sealed text was made with another key or for another purpose, or is damaged")]
    Unopenable,
}

/// The key that seals every secret in the tables. `Debug` shows nothing of it.
pub struct MasterKey {
    sealing: RandomizedNonceKey,
    marking: hmac::Key,
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("MasterKey([redacted])")
    }
}

impl MasterKey {
    /// Parses 64 hex digits, or base64 of 32 bytes (either alphabet, padded or not). Surrounding white space is
    /// ignored, since key files end in a newline.
    pub fn parse(text: &SecretString) -> Result<Self, SealError> {
        let text = text.expose_secret().trim();
        let bytes = decode_hex(text)
            .or_else(|| decode_base64(text))
            .ok_or(SealError::Malformed)?;
        // A sample key from documentation is public.
        if is_weak(&bytes) {
            return Err(SealError::Weak);
        }
        Ok(Self::from_bytes(&bytes))
    }

    /// A new key and its hex form for [`MasterKey::parse`].
    pub fn generate() -> (Self, String) {
        let mut bytes = [0; KEY_BYTES];
        rand::fill(&mut bytes).expect("the system's random source does not fail once it is seeded");
        (Self::from_bytes(&bytes), encode_hex(&bytes))
    }

    /// Seals `plain` so that only the same key and the same `purpose` open it.
    pub fn seal(&self, purpose: &str, plain: &[u8]) -> String {
        let mut sealed = plain.to_vec();
        let nonce = self
            .sealing
            // The purpose is authenticated, not stored: a text copied to another column does not open there.
            .seal_in_place_append_tag(Aad::from(purpose.as_bytes()), &mut sealed)
            .expect("AES-GCM seals anything under 64 GiB");
        // The nonce is not secret; it precedes the ciphertext for `open`.
        let mut sealed_bytes = nonce.as_ref().to_vec();
        sealed_bytes.append(&mut sealed);
        format!("{VERSION}{}", URL_SAFE_NO_PAD.encode(sealed_bytes))
    }

    /// Opens a text that was sealed for this `purpose`.
    pub fn open(&self, purpose: &str, sealed: &str) -> Result<Vec<u8>, SealError> {
        let encoded = sealed
            .strip_prefix(VERSION)
            .ok_or(SealError::UnknownFormat)?;
        let sealed_bytes = URL_SAFE_NO_PAD
            .decode(encoded)
            .map_err(|_| SealError::Unopenable)?;
        let (nonce, body) = sealed_bytes
            .split_at_checked(NONCE_LEN)
            .ok_or(SealError::Unopenable)?;
        // Unique because `seal` drew it at random.
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Unopenable)?;

        let mut body = body.to_vec();
        let plain = self
            .sealing
            .open_in_place(nonce, Aad::from(purpose.as_bytes()), &mut body)
            .map_err(|_| SealError::Unopenable)?;
        Ok(plain.to_vec())
    }

    /// An HMAC of `purpose` as 32 hex digits. Equal for all processes with the same key, unpredictable for
    /// others.
    pub fn fingerprint(&self, purpose: &str) -> String {
        // Domain separation from other uses of the master key.
        let purpose = format!("runnel mark: {purpose}");
        let tag = hmac::sign(&self.marking, purpose.as_bytes());
        let mut hex = String::new();
        for byte in &tag.as_ref()[..16] {
            let _ = write!(hex, "{byte:02x}");
        }
        hex
    }

    fn from_bytes(bytes: &[u8; KEY_BYTES]) -> Self {
        Self {
            sealing: RandomizedNonceKey::new(&AES_256_GCM, bytes).expect("AES-256 takes 32 bytes"),
            marking: hmac::Key::new(hmac::HMAC_SHA256, bytes),
        }
    }
}

fn is_weak(bytes: &[u8; KEY_BYTES]) -> bool {
    let constant = bytes.iter().all(|byte| *byte == bytes[0]);
    let counting = bytes
        .windows(2)
        .all(|pair| pair[1] == pair[0].wrapping_add(1));
    constant || counting || SAMPLE_KEYS.contains(&bytes)
}

fn encode_hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16);
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .flatten()
        .collect()
}

fn decode_hex(text: &str) -> Option<[u8; KEY_BYTES]> {
    let digits: Vec<u8> = text
        .chars()
        .map(|digit| {
            digit
                .to_digit(16)
                .and_then(|value| u8::try_from(value).ok())
        })
        .collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
    if rest.is_empty() {
        bytes.try_into().ok()
    } else {
        None
    }
}

fn decode_base64(text: &str) -> Option<[u8; KEY_BYTES]> {
    // Key files come from several tools, with and without padding.
    let lenient =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    [&alphabet::STANDARD, &alphabet::URL_SAFE]
        .into_iter()
        .find_map(|alphabet| GeneralPurpose::new(alphabet, lenient).decode(text).ok())
        .and_then(|bytes| bytes.try_into().ok())
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    fn parse(text: &str) -> Result<MasterKey, SealError> {
        MasterKey::parse(&SecretString::from(text))
    }

    #[test]
    fn sealed_text_opens_with_the_reloaded_key() {
        let (key, stored) = MasterKey::generate();
        let sealed = key.seal("signing_keys.secret", b"plain");

        let read_back = parse(&format!("{stored}\n")).unwrap();
        assert_eq!(
            read_back.open("signing_keys.secret", &sealed).unwrap(),
            b"plain"
        );
        assert_ne!(
            sealed,
            key.seal("signing_keys.secret", b"plain"),
            "the nonce is fresh"
        );
        assert_eq!(key.open("empty", &key.seal("empty", b"")).unwrap(), b"");
    }

    #[test]
    fn refuses_other_purposes_and_keys() {
        let (key, _) = MasterKey::generate();
        let (other, _) = MasterKey::generate();
        let sealed = key.seal("one", b"plain");

        assert_eq!(key.open("two", &sealed), Err(SealError::Unopenable));
        assert_eq!(other.open("one", &sealed), Err(SealError::Unopenable));
    }

    #[test]
    fn rejects_tampered_and_truncated_text() {
        let (key, _) = MasterKey::generate();
        let sealed = key.seal("purpose", b"plain");
        let bytes = URL_SAFE_NO_PAD
            .decode(sealed.strip_prefix(VERSION).unwrap())
            .unwrap();

        for position in 0..bytes.len() {
            let mut tampered = bytes.clone();
            tampered[position] ^= 1;
            let tampered = format!("{VERSION}{}", URL_SAFE_NO_PAD.encode(tampered));
            assert_eq!(
                key.open("purpose", &tampered),
                Err(SealError::Unopenable),
                "byte {position}"
            );
        }
        for end in [VERSION.len(), VERSION.len() + 4, sealed.len() - 1] {
            assert_eq!(
                key.open("purpose", &sealed[..end]),
                Err(SealError::Unopenable),
                "{end}"
            );
        }
        assert_eq!(
            key.open("purpose", "v2.AAAA"),
            Err(SealError::UnknownFormat)
        );
        assert_eq!(key.open("purpose", ""), Err(SealError::UnknownFormat));
    }

    #[test]
    fn parses_hex_and_base64_of_32_bytes_only() {
        let bytes: [u8; 32] = std::array::from_fn(|i| u8::try_from(i * 7 % 256).unwrap() ^ 0xfb);
        let base64 = STANDARD.encode(bytes);
        let url_safe = URL_SAFE_NO_PAD.encode(bytes);
        let hex = encode_hex(&bytes);
        let sealed = parse(&hex).unwrap().seal("purpose", b"plain");
        for text in [
            hex.as_str(),
            &hex.to_uppercase(),
            &base64,
            base64.trim_end_matches('='),
            &url_safe,
        ] {
            assert_eq!(
                parse(text).unwrap().open("purpose", &sealed).unwrap(),
                b"plain",
                "{text}"
            );
        }
        for text in [
            "",
            "secret",
            &hex[..62],
            &format!("{hex}00"),
            &STANDARD.encode([7; 31]),
        ] {
            assert_eq!(parse(text).unwrap_err(), SealError::Malformed, "{text}");
        }
    }

    #[test]
    fn refuses_sample_keys_and_hides_keys() {
        let counting: [u8; 32] = std::array::from_fn(|i| u8::try_from(i).unwrap());
        for bytes in [[0; 32], [0xff; 32], counting, *SAMPLE_KEYS[0]] {
            assert_eq!(parse(&encode_hex(&bytes)).unwrap_err(), SealError::Weak);
        }
        let (key, stored) = MasterKey::generate();
        assert!(!format!("{key:?}").contains(&stored[..8]));
    }
}
