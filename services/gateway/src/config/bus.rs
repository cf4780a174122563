//! `[bus]`: notifications between replicas on one database.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use url::Url;

use super::secret_ref::SecretRef;
use super::table::{Reported, Table, name, parsed, seconds, text};

const MAX_SUBJECT_BYTES: usize = 128;

/// `[bus]`.
#[derive(Clone, Debug)]
pub struct BusConfig {
    /// `None`: the default for the database.
    pub kind: Option<BusKind>,
    /// A NATS server, without credentials.
    pub url: Option<Url>,
    pub user: Option<String>,
    pub password: Option<SecretRef>,
    pub token: Option<SecretRef>,
    /// Contents of a NATS credentials file.
    pub credentials: Option<SecretRef>,
    /// PEM file of certificate authorities that replaces the system's.
    pub ca_file: Option<PathBuf>,
    /// Subject of notifications. `None`: derived from the master key.
    pub subject: Option<String>,
    /// Interval at which a replica polls the database for changes of other replicas.
    pub poll: Duration,
}

/// Transport of notifications between replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusKind {
    Postgres,
    Nats,
    None,
}

impl BusConfig {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let kind = table.optional("kind", kind);
        let url = table.optional("url", nats_url);
        let user = table.optional("user", name);
        let password = table.optional("password", parsed);
        let token = table.optional("token", parsed);
        let credentials = table.optional("credentials", parsed);
        let ca_file = table.optional("ca_file", |value| name(value).map(PathBuf::from));
        let subject = table.optional("subject", subject);
        let poll = table.required("poll_seconds", seconds(0.05..=60.0));
        table.close()?;
        Ok(Self {
            kind: kind?,
            url: url?,
            user: user?,
            password: password?,
            token: token?,
            credentials: credentials?,
            ca_file: ca_file?,
            subject: subject?,
            poll: poll?,
        })
    }
}

fn kind(value: Value) -> Result<BusKind, &'static str> {
    match text(value)?.as_str() {
        "postgres" => Ok(BusKind::Postgres),
        "nats" => Ok(BusKind::Nats),
        "none" => Ok(BusKind::None),
        _ => Err("must be \"postgres\", \"nats\" or \"none\"; the default depends on the database"),
    }
}

/// The error does not repeat the value, which may hold a password.
fn nats_url(value: Value) -> Result<Url, &'static str> {
    const SHAPE: &str = "must be nats://HOST:PORT, or tls://HOST:PORT";
    let url = Url::parse(&text(value)?).map_err(|_| SHAPE)?;
    // Credentials are secrets and must be references; a URL appears in logs.
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "must hold no credentials: name them in bus.user and bus.password, bus.token or bus.credentials",
        );
    }
    let is_plain =
        matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
    let has_host = url.host_str().is_some_and(|host| !host.is_empty());
    if matches!(url.scheme(), "nats" | "tls") && has_host && is_plain {
        Ok(url)
    } else {
        Err(SHAPE)
    }
}

/// Words separated by dots, without NATS wildcards.
fn subject(value: Value) -> Result<String, &'static str> {
    let subject = text(value)?;
    let is_word = |word: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !word.is_empty() && word.bytes().all(is_plain)
    };
    // Wildcards would subscribe to subjects of others.
    if subject.len() <= MAX_SUBJECT_BYTES && subject.split('.').all(is_word) {
        Ok(subject)
    } else {
        Err("must be words of letters, digits, `-` and `_` with dots between, 128 bytes at most")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn refuses_wildcard_subjects() {
        for good in ["runnel", "runnel.prod-1.rings", "A_b.9"] {
            assert_eq!(subject(json!(good)).unwrap(), good);
        }
        let long = "a".repeat(MAX_SUBJECT_BYTES + 1);
        for bad in [
            "",
            "*",
            ">",
            "a.*",
            "a.>",
            "a..b",
            ".a",
            "a.",
            "a b",
            "ä",
            "a\r\nPUB x",
            &long,
        ] {
            assert!(subject(json!(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn refuses_credentials_in_nats_urls() {
        for good in [
            "nats://127.0.0.1:4222",
            "nats://nats",
            "tls://nats.example:4443",
            "nats://[::1]:4222/",
        ] {
            assert!(nats_url(json!(good)).is_ok(), "{good}");
        }
        for bad in [
            "nats",
            "127.0.0.1:4222",
            "http://nats",
            "ws://nats",
            "nats://",
            "nats://u:hunter2@nats",
            "nats://hunter2@nats",
            "nats://nats/x",
            "nats://nats?tls=1",
            "nats://nats#x",
            "nats://a,nats://b",
        ] {
            let refused = nats_url(json!(bad)).unwrap_err();
            assert!(!refused.contains("hunter2"), "{bad}");
        }
    }
}
