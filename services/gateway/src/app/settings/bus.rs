//! Selects and validates the notification bus.

use secrecy::SecretString;

use crate::config::{BusConfig, BusKind, Config, ConfigFault, SecretRef};
use runs::bus::{self, BusSettings, NatsLogin, NatsSettings};

/// `None`: the cause is in `faults`.
pub(super) fn bus(config: &Config, faults: &mut Vec<ConfigFault>) -> Option<BusSettings> {
    let is_sqlite = config.database.url.starts_with("sqlite:");
    let automatic = if is_sqlite {
        BusKind::None
    } else {
        BusKind::Postgres
    };
    let kind = config.bus.kind.unwrap_or(automatic);
    let before = faults.len();
    if is_sqlite && kind != BusKind::None {
        let message = "needs PostgreSQL: SQLite has a single replica; leave it out";
        faults.push(ConfigFault::new("bus.kind", message));
    }
    let settings = if kind == BusKind::Nats {
        nats(&config.bus, faults).map(BusSettings::Nats)
    } else {
        refuse_unused_keys(&config.bus, faults);
        Some(match kind {
            BusKind::Postgres => BusSettings::Postgres,
            _ => BusSettings::Silent,
        })
    };
    settings.filter(|_| faults.len() == before)
}

/// Refuses NATS keys that have no effect without NATS.
fn refuse_unused_keys(bus: &BusConfig, faults: &mut Vec<ConfigFault>) {
    for (key, is_there) in [
        ("url", bus.url.is_some()),
        ("user", bus.user.is_some()),
        ("password", bus.password.is_some()),
        ("token", bus.token.is_some()),
        ("credentials", bus.credentials.is_some()),
        ("ca_file", bus.ca_file.is_some()),
        ("subject", bus.subject.is_some()),
    ] {
        if is_there {
            let message = "is only for bus.kind = \"nats\"";
            faults.push(ConfigFault::new(format!("bus.{key}"), message));
        }
    }
}

fn nats(config: &BusConfig, faults: &mut Vec<ConfigFault>) -> Option<NatsSettings> {
    if config.url.is_none() {
        let message = "is required for bus.kind = \"nats\", like nats://127.0.0.1:4222";
        faults.push(ConfigFault::new("bus.url", message));
    }
    // Resolved before the first `?`, so that a missing URL does not hide a fault of the login.
    let login = login(config, faults);
    let settings = NatsSettings {
        url: config.url.as_ref()?.to_string(),
        login: login?,
        ca_file: config.ca_file.clone(),
        subject: config.subject.clone(),
    };
    if let Err(fault) = bus::check(&settings) {
        faults.push(ConfigFault::new("bus", fault));
        return None;
    }
    Some(settings)
}

fn login(config: &BusConfig, faults: &mut Vec<ConfigFault>) -> Option<NatsLogin> {
    let secret = |key: &str, reference: &SecretRef, faults: &mut Vec<ConfigFault>| {
        let resolved = reference.resolve();
        resolved.map_err(|error| faults.push(ConfigFault::new(format!("bus.{key}"), error)))
    };
    let has_user = config.user.is_some() || config.password.is_some();
    let ways = [
        has_user,
        config.token.is_some(),
        config.credentials.is_some(),
    ];
    if ways.iter().filter(|is_there| **is_there).count() > 1 {
        let message = "name one way to log in: user and password, token, or credentials";
        faults.push(ConfigFault::new("bus", message));
        return None;
    }
    if let Some(token) = &config.token {
        return secret("token", token, faults).ok().map(NatsLogin::Token);
    }
    if let Some(text) = &config.credentials {
        let credentials = secret("credentials", text, faults);
        return credentials.ok().map(NatsLogin::Credentials);
    }
    match (&config.user, &config.password) {
        (None, None) => Some(NatsLogin::Anonymous),
        (Some(user), Some(password)) => {
            let password: SecretString = secret("password", password, faults).ok()?;
            Some(NatsLogin::User(user.clone(), password))
        }
        _ => {
            let message = "bus.user and bus.password belong together";
            faults.push(ConfigFault::new("bus", message));
            None
        }
    }
}
