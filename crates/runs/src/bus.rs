//! What carries rings between replicas: latency hangs on it, never data (runs §2).
//!
//! A ring may be lost, doubled, late, or forged by whoever reaches the bus: what holds is what the
//! tables say, and whoever waits also looks there by itself.

#[cfg(feature = "nats")]
mod nats;
mod postgres;
mod ring;
mod silent;

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use secrecy::SecretString;
use store::Store;
use tokio::sync::mpsc;

use base::seal::MasterKey;
use postgres::PostgresBus;
use silent::SilentBus;

pub use ring::{Heard, Ring};

/// Called for everything that is heard. Does not wait.
pub type Hear<'a> = &'a (dyn Fn(Heard) + Send + Sync);

/// A way to ring other replicas.
pub trait Bus: Send + Sync {
    /// Sends what comes out of `rings` and calls `hear` for what other replicas send, until dropped.
    /// Waits out every outage by itself, and says [`Heard::Missed`] when it is over.
    fn attend<'a>(
        &'a self,
        rings: &'a mut mpsc::Receiver<Ring>,
        hear: Hear<'a>,
    ) -> BoxFuture<'a, ()>;
}

/// Which bus the configuration wants, with all that it needs.
#[derive(Debug)]
pub enum BusSettings {
    /// There are no other replicas, or they look by themselves.
    Silent,
    /// LISTEN and NOTIFY of the database.
    Postgres,
    Nats(NatsSettings),
}

/// A NATS server and how to log in.
#[derive(Debug)]
pub struct NatsSettings {
    /// `nats://` or `tls://`, without credentials.
    pub url: String,
    pub login: NatsLogin,
    /// Authorities in PEM, in place of those of the system.
    pub ca_file: Option<PathBuf>,
    /// `None`: one that only gateways with the same master key know.
    pub subject: Option<String>,
}

/// Who we are to a NATS server.
#[derive(Debug)]
pub enum NatsLogin {
    Nobody,
    User(String, SecretString),
    Token(SecretString),
    /// The text of a credentials file: a JWT and the seed of its key.
    Credentials(SecretString),
}

/// The settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BusFault(pub &'static str);

/// Says what of the settings cannot be used, without a connection.
#[cfg(feature = "nats")]
pub fn check(settings: &NatsSettings) -> Result<(), BusFault> {
    nats::options(settings).map(drop)
}

/// This binary was built without.
#[cfg(not(feature = "nats"))]
pub fn check(_: &NatsSettings) -> Result<(), BusFault> {
    Err(BusFault(
        "this binary was built without NATS: build it with the feature `nats`, or take \"postgres\"",
    ))
}

/// The bus that `settings` name. Nothing is connected before it is attended.
pub fn open(
    settings: BusSettings,
    store: &Store,
    master_key: &MasterKey,
) -> Result<Box<dyn Bus>, BusFault> {
    Ok(match settings {
        BusSettings::Silent => Box::new(SilentBus),
        BusSettings::Postgres => Box::new(PostgresBus::new(store.clone())),
        BusSettings::Nats(settings) => open_nats(settings, master_key)?,
    })
}

#[cfg(feature = "nats")]
fn open_nats(settings: NatsSettings, master_key: &MasterKey) -> Result<Box<dyn Bus>, BusFault> {
    check(&settings)?;
    let own = || format!("runnel.{}", master_key.mark("bus subject"));
    let subject = settings.subject.clone().unwrap_or_else(own);
    Ok(Box::new(nats::NatsBus::new(settings, subject)))
}

#[cfg(not(feature = "nats"))]
fn open_nats(settings: NatsSettings, _: &MasterKey) -> Result<Box<dyn Bus>, BusFault> {
    check(&settings)?;
    Err(BusFault("there is no NATS here"))
}
