//! The configuration of an n8n workflow.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::Algorithm;
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use crate::request::is_settable;
use crate::upstream::config::{ConfigReader, LEGACY_KEYS};
use crate::upstream::failure::{ConnectorFailure, Mapped};

/// The use of the workflow's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handling {
    Reply,
    /// The workflow answers by itself, and the run has no message.
    Ignore,
}

/// Authentication at the webhook.
#[derive(Debug)]
pub(super) enum Auth {
    None,
    Header {
        name: String,
        value: SecretString,
    },
    Jwt {
        secret: SecretString,
        algorithm: Algorithm,
    },
}

#[derive(Debug)]
pub(super) struct Config {
    pub(super) url: Url,
    pub(super) auth: Auth,
    /// The member of a JSON response that is the answer.
    pub(super) output_key: String,
    pub(super) handling: Handling,
    /// The body field for the run token.
    pub(super) host_tools: Option<String>,
}

impl Config {
    pub(super) fn read(reader: &mut ConfigReader<'_>) -> Mapped<Self> {
        reader.ignore(LEGACY_KEYS);
        let handlings = [("reply", Handling::Reply), ("ignore", Handling::Ignore)];
        Ok(Self {
            url: reader.url("webhook-url", "")?,
            auth: auth(reader)?,
            output_key: reader.text_or("output-key", "response")?,
            handling: reader.choice("response-handling", &handlings)?,
            host_tools: reader.host_tools()?,
        })
    }
}

#[derive(Clone, Copy)]
enum AuthKind {
    None,
    Basic,
    Jwt,
    Header,
}

#[derive(Clone, Copy)]
enum Encoding {
    Utf8,
    Latin1,
}

/// Reads the authentication. All keys are read: a form also stores those of the kinds that are not chosen.
fn auth(reader: &mut ConfigReader<'_>) -> Mapped<Auth> {
    let kinds = [
        ("none", AuthKind::None),
        ("basic", AuthKind::Basic),
        ("jwt", AuthKind::Jwt),
        ("header", AuthKind::Header),
    ];
    let encodings = [("utf-8", Encoding::Utf8), ("latin1", Encoding::Latin1)];
    let algorithms = [
        ("HS256", Algorithm::HS256),
        ("HS384", Algorithm::HS384),
        ("HS512", Algorithm::HS512),
    ];
    let kind = reader.choice("auth-type", &kinds)?;
    let user = reader.text("basic-username")?;
    let password = reader.secret("basic-password")?;
    let encoding = reader.choice("basic-encoding", &encodings)?;
    let secret = reader.secret("jwt-secret")?;
    let algorithm = reader.choice("jwt-algorithm", &algorithms)?;
    let name = reader.text("header-name")?.to_ascii_lowercase();
    let value = reader.secret("header-value")?;
    let needed = |key| move || ConnectorFailure::config(key, "is required by this `auth-type`");
    Ok(match kind {
        AuthKind::None => Auth::None,
        AuthKind::Basic => basic(
            &user,
            &password.ok_or_else(needed("basic-password"))?,
            encoding,
        )?,
        AuthKind::Jwt => Auth::Jwt {
            secret: secret.ok_or_else(needed("jwt-secret"))?,
            algorithm,
        },
        AuthKind::Header if !is_free_header(&name) => {
            let fault = "must be the name of a header that connectors do not set themselves";
            return Err(ConnectorFailure::config("header-name", fault));
        }
        AuthKind::Header => Auth::Header {
            name,
            value: value.ok_or_else(needed("header-value"))?,
        },
    })
}

fn basic(user: &str, password: &SecretString, encoding: Encoding) -> Mapped<Auth> {
    let text = format!("{user}:{}", password.expose_secret());
    let bytes = match encoding {
        Encoding::Utf8 => Some(text.into_bytes()),
        // A character outside of Latin-1 has no byte there, so fail instead of sending another password.
        Encoding::Latin1 => text
            .chars()
            .map(|letter| u8::try_from(u32::from(letter)).ok())
            .collect(),
    };
    let bytes = bytes.ok_or_else(|| {
        ConnectorFailure::config("basic-encoding", "must be utf-8 for this name and password")
    })?;
    Ok(Auth::Header {
        name: "authorization".to_owned(),
        value: format!("Basic {}", STANDARD.encode(bytes)).into(),
    })
}

/// True for headers that the driver does not set itself.
fn is_free_header(name: &str) -> bool {
    is_settable(name) && !matches!(name, "accept" | "content-type")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(user: &str, encoding: Encoding) -> Option<String> {
        match basic(user, &"pä".into(), encoding) {
            Ok(Auth::Header { value, .. }) => Some(value.expose_secret().to_owned()),
            _ => None,
        }
    }

    #[test]
    fn basic_credentials_keep_their_encoding() {
        assert_eq!(
            header("u", Encoding::Utf8).as_deref(),
            Some("Basic dTpww6Q=")
        );
        assert_eq!(
            header("u", Encoding::Latin1).as_deref(),
            Some("Basic dTpw5A==")
        );
        assert_eq!(header("名", Encoding::Latin1), None);
    }

    #[test]
    fn framing_headers_cannot_be_configured() {
        for name in ["", "host", "a b", "a\r\nb", "content-length"] {
            assert!(!is_free_header(name), "{name:?}");
        }
        assert!(is_free_header("x-api-key"));
    }
}
