//! Sections that occur once.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use secrecy::ExposeSecret as _;
use serde_json::Value;
use url::Url;

use super::fault::ConfigFault;
use super::limits::{bytes, small};
use super::oidc::read_sign_in;
use super::secret_ref::{SecretRef, SecretRefError};
use super::table::{Reported, Table, integer, parsed, seconds, text};
use egress::AllowRule;
use egress::parse_plain_url;
use keys::sign_in::SignInRules;

/// True if the binary contains the files of the console.
const HAS_CONSOLE: bool = cfg!(feature = "console");
const DAY_SECONDS: u64 = 24 * 60 * 60;

/// `[server]`: listener and public address.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub listen: SocketAddr,
    /// Origin for runners and tokens. Default: the listening address.
    pub public_url: Option<Url>,
    /// Further accepted host names, without ports.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may call the API.
    pub cors_origins: Vec<String>,
    /// True: `/console` is served. Default: true if the build has the feature `console`.
    pub has_console: bool,
    /// Silence on an event stream before a comment is sent.
    pub heartbeat: Duration,
    /// Maximum number of connections. Further ones wait. `None`: 10000, or as many as the file limit allows.
    pub connections: Option<usize>,
    /// Maximum number of connections per address; 0: no limit. `None`: a quarter of all; loopback is exempt.
    pub connections_per_peer: Option<usize>,
    /// Addresses of proxies, exempt from the limit per address.
    pub proxies: Vec<IpAddr>,
    /// Timeout for a request head, from the start of the connection or the last response.
    pub head: Duration,
    /// Timeout for a request body, from the end of the head.
    pub body: Duration,
    /// Timeout for writing to a client that reads nothing.
    pub write: Duration,
}

impl ServerConfig {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let listen = table.required("listen", listen_address);
        let public_url = table.optional("public_url", origin);
        let allowed_hosts = table.items("allowed_hosts", |pointer, value, faults| {
            host_name(value).map_err(|message| {
                faults.push(ConfigFault::new(pointer, message));
                Reported
            })
        });
        let cors_origins = table.items("cors_origins", |pointer, value, faults| {
            page_origin(value).map_err(|message| {
                faults.push(ConfigFault::new(pointer, message));
                Reported
            })
        });
        let has_console = table.optional("console", |value| console(&value));
        let heartbeat = table.required("heartbeat_seconds", seconds(0.05..=300.0));
        let connections = table.optional("connections", integer(1..=1_000_000));
        let connections_per_peer = table.optional("connections_per_peer", integer(0..=1_000_000));
        let proxies = table.items("proxies", |pointer, value, faults| {
            address(value).map_err(|message| {
                faults.push(ConfigFault::new(pointer, message));
                Reported
            })
        });
        let head = table.required("head_seconds", seconds(0.05..=300.0));
        let body = table.required("body_seconds", seconds(0.05..=3600.0));
        let write = table.required("write_seconds", seconds(0.05..=3600.0));
        table.close()?;
        Ok(Self {
            listen: listen?,
            public_url: public_url?,
            allowed_hosts: allowed_hosts?,
            cors_origins: cors_origins?,
            has_console: has_console?.unwrap_or(HAS_CONSOLE),
            heartbeat: heartbeat?,
            connections: connections?.map(bytes),
            connections_per_peer: connections_per_peer?.map(bytes),
            proxies: proxies?,
            head: head?,
            body: body?,
            write: write?,
        })
    }
}

fn console(value: &Value) -> Result<bool, &'static str> {
    match value.as_bool() {
        Some(true) if !HAS_CONSOLE => {
            Err("must be false: this build has no console; add the feature `console`")
        }
        Some(is_served) => Ok(is_served),
        None => Err("must be true or false"),
    }
}

fn listen_address(value: Value) -> Result<SocketAddr, &'static str> {
    let text = text(value)?;
    text.parse()
        .map_err(|_| "must be an address and a port, like 127.0.0.1:8700 or [::]:8700")
}

fn address(value: Value) -> Result<IpAddr, &'static str> {
    let address: IpAddr = text(value)?
        .parse()
        .map_err(|_| "must be an IP address, like 10.0.0.5; networks are not taken")?;
    // An IPv4 client on an IPv6 listener appears as a mapped address.
    Ok(address.to_canonical())
}

fn origin(value: Value) -> Result<Url, String> {
    let url = parse_plain_url(&text(value)?).map_err(|error| error.to_string())?;
    // Callbacks are built as `{public_url}/host/v1`, and tokens contain the origin.
    if url.path() != "/" || url.query().is_some() {
        return Err("must have no path and no query, like https://runnel.example".to_owned());
    }
    Ok(url)
}

/// The origin as browsers send it.
fn page_origin(value: Value) -> Result<String, String> {
    let text = text(value)?;
    let origin = text
        .parse::<Url>()
        .map(|url| url.origin().ascii_serialization());
    // Browsers send the serialized form, which is compared byte by byte.
    if origin.is_ok_and(|origin| origin == text) {
        return Ok(text);
    }
    Err(
        "must be one exact origin in lower case, without a path, like https://app.example"
            .to_owned(),
    )
}

fn host_name(value: Value) -> Result<String, &'static str> {
    let name = text(value)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_name = (1..=253).contains(&name.len()) && name.bytes().all(is_plain);
    is_name
        .then_some(name)
        .ok_or("must be a name without a port, like runnel.example")
}

/// `[auth]`.
#[derive(Clone, Debug)]
pub struct AuthConfig {
    /// The key that encrypts secrets in the tables. `serve` requires it.
    pub master_key: Option<SecretRef>,
    /// Age at which a signing key is replaced.
    pub signing_key_age: Duration,
    /// Sign-in of people.
    pub oidc: Option<SignInRules>,
}

impl AuthConfig {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let master_key = table.optional("master_key", parsed);
        let signing_key_days = table.required("signing_key_days", integer(1..=365));
        let oidc = table.section_if_any("oidc", read_sign_in);
        table.close()?;
        Ok(Self {
            master_key: master_key?,
            signing_key_age: Duration::from_secs(signing_key_days? * DAY_SECONDS),
            oidc: oidc?,
        })
    }
}

/// `[database]`. `Debug` omits the credentials of the URL.
#[derive(Clone)]
pub struct DatabaseConfig {
    pub url: String,
}

impl DatabaseConfig {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let url = table.required("url", database_url);
        table.close()?;
        Ok(Self { url: url? })
    }

    /// The URL without credentials and parameters.
    pub fn display_url(&self) -> String {
        let end = self.url.find(['?', '#']).unwrap_or(self.url.len());
        let (scheme, rest) = self.url[..end].split_once("://").unwrap_or_default();
        // The last `@`: a password may contain one.
        let location = rest.rsplit_once('@').map_or(rest, |(_, location)| location);
        format!("{scheme}://{location}")
    }
}

fn database_url(value: Value) -> Result<String, String> {
    let text = text(value)?;
    // The URL may be a secret reference, since it may hold a password. No database scheme is named `env` or
    // `file`.
    let url = match text.parse::<SecretRef>() {
        Err(SecretRefError::Literal) => text,
        Err(error) => return Err(error.to_string()),
        Ok(reference) => {
            let url = reference.resolve().map_err(|error| error.to_string())?;
            url.expose_secret().to_owned()
        }
    };
    plain_database_url(url).map_err(str::to_owned)
}

fn plain_database_url(url: String) -> Result<String, &'static str> {
    match url.split_once("://") {
        Some(("sqlite", path)) if path.contains(['?', '#']) => {
            Err("must be sqlite://PATH without parameters: there are none to set")
        }
        Some(("sqlite", ":memory:")) => Err("must name a file: a database in memory is lost"),
        Some(("sqlite", path)) if !path.is_empty() => Ok(url),
        Some(("postgres" | "postgresql", _)) if Url::parse(&url).is_ok() => Ok(url),
        _ => Err(
            "must be sqlite://PATH or postgres://USER:PASSWORD@HOST/DATABASE, or refer to one by env:NAME or file:PATH",
        ),
    }
}

impl fmt::Debug for DatabaseConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("DatabaseConfig")
            .field("url", &self.display_url())
            .finish()
    }
}

/// `[metrics]`: the Prometheus endpoint.
#[derive(Clone, Debug)]
pub struct MetricsConfig {
    /// Address of the endpoint, which needs no credential. `None`: metrics are off.
    pub listen: Option<SocketAddr>,
}

impl MetricsConfig {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let listen = table.optional("listen", listen_address);
        table.close()?;
        Ok(Self { listen: listen? })
    }
}

/// `[egress]`: destinations that are allowed besides public HTTPS.
#[derive(Clone, Debug)]
pub struct EgressConfig {
    pub allow: Vec<AllowRule>,
}

impl EgressConfig {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let allow = table.items("allow", |pointer, value, faults| {
            parsed(value).map_err(|message: String| {
                faults.push(ConfigFault::new(pointer, message));
                Reported
            })
        });
        table.close()?;
        Ok(Self { allow: allow? })
    }
}

/// `[ledger]`: retention of run events, audit records and changes.
#[derive(Clone, Debug)]
pub struct LedgerConfig {
    /// From the end of a run; `None`: unlimited.
    pub retention: Option<Duration>,
    /// From the call; `None`: unlimited.
    pub audit_retention: Option<Duration>,
    /// From the administrative change; `None`: unlimited.
    pub change_retention: Option<Duration>,
}

impl LedgerConfig {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let retention = table.required("retention_days", days(0.0..=36_500.0));
        let audit = table.required("audit_days", days(0.0..=36_500.0));
        let changes = table.required("changes_days", days(0.0..=36_500.0));
        table.close()?;
        let bounded = |days: Duration| (days > Duration::ZERO).then_some(days);
        Ok(Self {
            retention: bounded(retention?),
            audit_retention: bounded(audit?),
            change_retention: bounded(changes?),
        })
    }
}

/// A number of days.
fn days(range: RangeInclusive<f64>) -> impl Fn(Value) -> Result<Duration, String> {
    const DAY: f64 = 24.0 * 60.0 * 60.0;
    move |value| {
        let days = value.as_f64().filter(|number| range.contains(number));
        let (min, max) = (range.start(), range.end());
        days.map(|days| Duration::from_secs_f64(days * DAY))
            .ok_or_else(|| format!("must be a number of days from {min} to {max}"))
    }
}

/// `[runs]`: timeouts of runs.
#[derive(Clone, Debug)]
pub struct RunsConfig {
    /// From the cancel request to the forced end of the run.
    pub cancel_grace: Duration,
    /// Time for live runs to finish after a stop signal.
    pub shutdown_grace: Duration,
    /// Duration of a run's lease. The owner renews it.
    pub lease: Duration,
    /// Maximum duration of a run.
    pub max_deadline: Duration,
    /// Lifetime of a discovery result.
    pub discovery_ttl: Duration,
    /// Delay before discovery is retried after a failure.
    pub discovery_retry: Duration,
    /// Consecutive failures that open an endpoint's circuit breaker; 0: never.
    pub breaker_failures: u32,
    /// Initial time that the circuit stays open.
    pub breaker_wait: Duration,
    /// Maximum time that the circuit stays open.
    pub breaker_longest_wait: Duration,
    /// Maximum silence of a runner that appends its results.
    pub append_lease: Duration,
}

impl RunsConfig {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let cancel_grace = table.required("cancel_grace_seconds", seconds(0.0..=300.0));
        let shutdown_grace = table.required("shutdown_grace_seconds", seconds(0.0..=3600.0));
        let lease = table.required("lease_seconds", seconds(0.2..=300.0));
        let max_deadline = table.required("max_deadline_seconds", seconds(0.1..=604_800.0));
        let discovery_ttl = table.required("discovery_ttl_seconds", seconds(0.05..=86_400.0));
        let discovery_retry = table.required("discovery_retry_seconds", seconds(0.05..=3600.0));
        let breaker_failures = table.required("breaker_failures", integer(0..=10_000));
        let breaker_wait = table.required("breaker_wait_seconds", seconds(0.05..=3600.0));
        let longest = seconds(0.05..=86_400.0);
        let breaker_longest_wait = table.required("breaker_longest_wait_seconds", longest);
        let append_lease = table.required("append_lease_seconds", seconds(0.5..=86_400.0));
        let is_longer = !matches!((&breaker_wait, &breaker_longest_wait), (Ok(wait), Ok(longest)) if wait > longest);
        let message = "must not be less than runs.breaker_wait_seconds";
        let order = table.demand("breaker_longest_wait_seconds", is_longer, message);
        table.close()?;
        order?;
        Ok(Self {
            cancel_grace: cancel_grace?,
            shutdown_grace: shutdown_grace?,
            lease: lease?,
            max_deadline: max_deadline?,
            discovery_ttl: discovery_ttl?,
            discovery_retry: discovery_retry?,
            breaker_failures: small(breaker_failures?),
            breaker_wait: breaker_wait?,
            breaker_longest_wait: breaker_longest_wait?,
            append_lease: append_lease?,
        })
    }
}
