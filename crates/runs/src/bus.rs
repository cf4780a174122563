//! The notification bus between replicas. It reduces latency and carries no data.
//!
//! A notification may be lost, duplicated, late or forged. The tables are the truth, and waiting tasks also poll
//! them.

#[cfg(feature = "nats")]
mod nats;
mod no_bus;
mod notification;
mod postgres;

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use secrecy::SecretString;
use store::Store;
use tokio::sync::mpsc;

use no_bus::NoBus;
use postgres::PostgresBus;
use secrets::seal::MasterKey;

pub use notification::{Inbound, Notification};

/// Called for every received notification. It does not block.
pub type OnInbound<'a> = &'a (dyn Fn(Inbound) + Send + Sync);

/// A transport of notifications between replicas.
pub trait Bus: Send + Sync {
    /// Sends notifications from `outgoing` and calls `on_inbound` for those of other replicas, until dropped. It
    /// reconnects after an outage and then reports [`Inbound::Missed`].
    fn run<'a>(
        &'a self,
        outgoing: &'a mut mpsc::Receiver<Notification>,
        on_inbound: OnInbound<'a>,
    ) -> BoxFuture<'a, ()>;
}

/// The configured bus and its settings.
#[derive(Debug)]
pub enum BusSettings {
    /// No bus: there is a single replica, or replicas poll.
    Silent,
    /// LISTEN and NOTIFY of PostgreSQL.
    Postgres,
    Nats(NatsSettings),
}

/// A NATS server and its login.
#[derive(Clone, Debug)]
pub struct NatsSettings {
    /// `nats://` or `tls://`, without credentials.
    pub url: String,
    pub login: NatsLogin,
    /// PEM file of certificate authorities that replaces the system's.
    pub ca_file: Option<PathBuf>,
    /// `None`: a subject that is derived from the master key.
    pub subject: Option<String>,
}

/// Credentials for a NATS server.
#[derive(Clone, Debug)]
pub enum NatsLogin {
    Anonymous,
    User(String, SecretString),
    Token(SecretString),
    /// Contents of a credentials file: a JWT and the seed of its key.
    Credentials(SecretString),
}

/// The bus settings are unusable.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BusFault(pub &'static str);

/// Validates the settings without a connection.
#[cfg(feature = "nats")]
pub fn check(settings: &NatsSettings) -> Result<(), BusFault> {
    nats::options(settings).map(drop)
}

/// This binary is built without the `nats` feature.
#[cfg(not(feature = "nats"))]
pub fn check(_: &NatsSettings) -> Result<(), BusFault> {
    Err(BusFault(
        "this binary was built without NATS: build it with the feature `nats`, or take \"postgres\"",
    ))
}

/// Creates the configured bus. It connects when `run` is called.
pub fn open(
    settings: BusSettings,
    store: &Store,
    master_key: &MasterKey,
) -> Result<Box<dyn Bus>, BusFault> {
    Ok(match settings {
        BusSettings::Silent => Box::new(NoBus),
        BusSettings::Postgres => Box::new(PostgresBus::new(store.clone())),
        BusSettings::Nats(settings) => open_nats(&settings, master_key)?,
    })
}

#[cfg(feature = "nats")]
fn open_nats(settings: &NatsSettings, master_key: &MasterKey) -> Result<Box<dyn Bus>, BusFault> {
    check(settings)?;
    let own = || format!("runnel.{}", master_key.fingerprint("bus subject"));
    let subject = settings.subject.clone().unwrap_or_else(own);
    Ok(Box::new(nats::NatsBus::new(settings.clone(), subject)))
}

/// [`check`] refuses the settings of such a binary.
#[cfg(not(feature = "nats"))]
fn open_nats(settings: &NatsSettings, _: &MasterKey) -> Result<Box<dyn Bus>, BusFault> {
    check(settings)?;
    Ok(Box::new(NoBus))
}
