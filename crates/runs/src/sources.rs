//! Sources: systems that post events. Their settings and secrets, and the event of a request.

mod content;
mod filtering;
mod verifying;
mod xml;

use std::sync::Arc;

use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::source::check_source;
use egress::limiter::{KeyedLimiter, LimitRefusal, LimitSpec};
use jq_filter::Filter;
use protocol::admin::Fault;
use protocol::id::{AgentId, DEFAULT_WORKSPACE, SourceId, WorkspaceId};
use protocol::principal::{Principal, PrincipalKind};
use protocol::source::{SourceScheme, SourceSpec};
use secrets::inbound::WecomSecret;
use secrets::signature::SigningSecret;
use store::{ChangeStamp, SaveSource, SavedSource, SourceRecord, StoreError};
use uuid::Uuid;

use crate::deps::RunDeps;
use crate::named_agents::named_agents;
use telemetry::metrics;

pub use content::{SourceContent, SourceInput};
pub use filtering::SourceEvent;
pub use verifying::{ReceivedSource, SourceChallenge, SourceRefusal, SourceRequest};

const SECRET_PURPOSE: &str = "sources.secret";
/// Time for which the secret before a rotation is accepted, too.
const ROTATION_MS: i64 = 24 * 3600 * 1000;
/// Length of a secret, in bytes. Slack's have 32, `DingTalk`'s 64.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 16..=512;
/// Random bytes of a generated secret other than that of Standard Webhooks.
const GENERATED_BYTES: usize = 32;

/// No sender receives it: requests queue for a permit, and give up after a timeout.
const QUEUED: LimitRefusal = LimitRefusal::new("source_filters", "other filters of sources run");
/// Maximum filters that run at a time, and those of one source.
const FILTERS: LimitSpec = QUEUED.at(4);
const FILTERS_OF_SOURCE: LimitSpec = QUEUED.at(2);

/// Result of a request to a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceOutcome {
    Accepted,
    /// The event of the request exists.
    Duplicate,
    /// The filter yields nothing.
    Ignored,
    /// The platform checks the address.
    Challenge,
    /// No such source, or a wrong signature.
    Refused,
    /// The filter fails, or its value is no event.
    Faulty,
    /// The intake refuses the event.
    NotAccepted,
}

/// Counts a request.
pub fn count(outcome: SourceOutcome) {
    metrics::source_received(match outcome {
        SourceOutcome::Accepted => "accepted",
        SourceOutcome::Duplicate => "duplicate",
        SourceOutcome::Ignored => "ignored",
        SourceOutcome::Challenge => "challenge",
        SourceOutcome::Refused => "refused",
        SourceOutcome::Faulty => "faulty",
        SourceOutcome::NotAccepted => "not_accepted",
    });
}

/// Cause of a refused change.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("the source is invalid")]
    Faults(Vec<Fault>),
    #[error("a source of this name exists")]
    NameTaken,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A saved source, and its secret if the response shows it.
pub struct SavedSourceSecret {
    pub saved: SavedSource,
    pub secret: Option<String>,
}

/// The sources of all workspaces.
pub struct Sources {
    deps: Arc<RunDeps>,
    filters: KeyedLimiter<SourceId>,
}

impl Sources {
    pub(super) fn new(deps: Arc<RunDeps>) -> Self {
        Self {
            deps,
            filters: KeyedLimiter::new(FILTERS),
        }
    }

    /// Creates a source for the API. Its secret is in the result.
    pub async fn create(
        &self,
        workspace: &WorkspaceId,
        spec: SourceSpec,
        stamp: ChangeStamp,
    ) -> Result<SavedSourceSecret, SourceError> {
        // Each of an endless list of agents would be a query.
        let faults = source_faults(&spec);
        if !faults.is_empty() {
            return Err(SourceError::Faults(faults));
        }
        let agents = match &spec.agents {
            Some(named) => {
                let agents = named_agents(&self.deps.store, workspace, named).await?;
                Some(agents.map_err(SourceError::Faults)?)
            }
            None => None,
        };
        let secret = chosen_secret(spec.scheme, spec.secret.clone())?;
        let origin = Origin {
            name: "api",
            by: stamp.by.clone(),
        };
        let record = self.record(workspace, &spec, agents, origin);
        let record = SourceRecord {
            secret: self.seal(&secret),
            ..record
        };
        let create = SaveSource::Create(Box::new(record));
        let saved = self.save(stamp, create).await?;
        Ok(SavedSourceSecret {
            saved,
            secret: Some(secret),
        })
    }

    /// Replaces the secret of a source of the API. The previous one is accepted for another day.
    pub async fn rotate_secret(
        &self,
        record: &SourceRecord,
        secret: Option<String>,
        stamp: ChangeStamp,
    ) -> Result<SavedSourceSecret, SourceError> {
        let secret = chosen_secret(record.settings.scheme, secret)?;
        let at = self.deps.clock.now_ms();
        let rotate = SaveSource::Rotate {
            id: record.id,
            workspace: record.workspace.clone(),
            secret: self.seal(&secret),
            until: at + ROTATION_MS,
            by: stamp.by.clone(),
            at,
        };
        Ok(SavedSourceSecret {
            saved: self.save(stamp, rotate).await?,
            secret: Some(secret),
        })
    }

    /// Deletes a source of the API, and revokes its key.
    pub async fn delete(
        &self,
        workspace: &WorkspaceId,
        id: SourceId,
        stamp: ChangeStamp,
    ) -> Result<SavedSource, SourceError> {
        let delete = SaveSource::Delete {
            id,
            workspace: workspace.clone(),
            at: self.deps.clock.now_ms(),
        };
        self.save(stamp, delete).await
    }

    /// Applies the sources of the configuration; others of an earlier one are disabled. A changed secret is a
    /// rotation.
    pub async fn configure(
        &self,
        workspace: &WorkspaceId,
        specs: Vec<SourceSpec>,
    ) -> Result<(), SourceError> {
        let stored = self.deps.store.access().all_sources(workspace).await?;
        // A gateway without sources writes nothing at its start.
        if specs.is_empty() && stored.is_empty() {
            return Ok(());
        }
        let disable = SaveSource::DisableUnnamed {
            workspace: workspace.clone(),
            names: specs.iter().map(|spec| spec.name.clone()).collect(),
            at: self.deps.clock.now_ms(),
        };
        let stamp = || self.deps.stamp(PrincipalKind::Config);
        self.save(stamp(), disable).await?;
        for spec in specs {
            let agents = self.configured_agents(workspace, &spec).await?;
            let origin = Origin {
                name: "config",
                by: PrincipalKind::Config.into(),
            };
            let mut record = self.record(workspace, &spec, agents, origin);
            let secret = spec.secret.unwrap_or_default();
            record.secret = self.seal(&secret);
            if let Some(before) = stored.iter().find(|one| one.name == record.name) {
                if self.open(&before.secret).as_deref() == Some(secret.as_str()) {
                    record.secret.clone_from(&before.secret);
                    record.previous_secret.clone_from(&before.previous_secret);
                } else {
                    let until = self.deps.clock.now_ms() + ROTATION_MS;
                    record.previous_secret = Some((before.secret.clone(), until));
                }
            }
            // Another replica may start at the same time and be first: then the rows are equal.
            let configure = SaveSource::Configure(Box::new(record));
            match self.save(stamp(), configure.clone()).await {
                Err(SourceError::NameTaken) => self.save(stamp(), configure).await?,
                saved => saved?,
            };
        }
        Ok(())
    }

    async fn configured_agents(
        &self,
        workspace: &WorkspaceId,
        spec: &SourceSpec,
    ) -> Result<Option<Vec<AgentId>>, StoreError> {
        let Some(named) = &spec.agents else {
            return Ok(None);
        };
        let mut agents = Vec::new();
        for name in named {
            let found = self.deps.store.agents().find_agent_id(workspace, name);
            if let Some(agent) = found.await? {
                agents.push(agent);
            } else {
                tracing::warn!(
                    source.name = spec.name,
                    "source {} names agent {name}, which does not exist; its events do not reach that agent",
                    spec.name
                );
            }
        }
        Ok(Some(agents))
    }

    /// The source of a path, unless it is closed.
    pub async fn find_open(&self, named: &str) -> Result<Option<SourceRecord>, StoreError> {
        let workspace = WorkspaceId(DEFAULT_WORKSPACE.to_owned());
        let access = self.deps.store.access();
        let found = access.find_source_of_path(&workspace, named).await?;
        Ok(found.filter(|source| source.enabled && !source.is_revoked))
    }

    fn record(
        &self,
        workspace: &WorkspaceId,
        spec: &SourceSpec,
        agents: Option<Vec<AgentId>>,
        origin: Origin,
    ) -> SourceRecord {
        let now = self.deps.clock.now_ms();
        SourceRecord {
            id: SourceId(Uuid::now_v7()),
            workspace: workspace.clone(),
            name: spec.name.clone(),
            origin: origin.name.to_owned(),
            enabled: true,
            settings: spec.settings(),
            secret: String::new(),
            previous_secret: None,
            agents,
            is_revoked: false,
            version: 1,
            created_at: now,
            updated_at: now,
            updated_by: origin.by,
        }
    }

    async fn save(&self, stamp: ChangeStamp, save: SaveSource) -> Result<SavedSource, SourceError> {
        let saved = self.deps.store.change(stamp, save).await;
        saved.map_err(|error| match error {
            // The unique index decides: two sources of one name may be created at the same time.
            StoreError::Taken => SourceError::NameTaken,
            error => error.into(),
        })
    }

    fn seal(&self, secret: &str) -> String {
        self.deps.master_key.seal(SECRET_PURPOSE, secret.as_bytes())
    }

    fn open(&self, sealed: &str) -> Option<String> {
        let plain = self.deps.master_key.open(SECRET_PURPOSE, sealed);
        String::from_utf8(plain.ok()?).ok()
    }

    /// The secrets that are accepted now.
    fn secrets_of(&self, record: &SourceRecord) -> Vec<String> {
        let now = self.deps.clock.now_ms();
        let previous = record.previous_secret.as_ref();
        let previous = previous.filter(|(_, until)| *until > now);
        let sealed = [Some(&record.secret), previous.map(|(secret, _)| secret)];
        let sealed = sealed.into_iter().flatten();
        sealed.filter_map(|sealed| self.open(sealed)).collect()
    }
}

/// Origin of a source, and the principal that writes it.
struct Origin {
    name: &'static str,
    by: Principal,
}

/// All faults of a source, except those of its agents.
pub fn source_faults(spec: &SourceSpec) -> Vec<Fault> {
    let mut faults = check_source(spec);
    if let Some(header) = &spec.header
        && http::HeaderName::from_bytes(header.as_bytes()).is_err()
    {
        faults.push(Fault::new("/header", "is no header name"));
    }
    let filters = [
        ("/filter", Some(&spec.filter)),
        ("/dedupe", spec.dedupe.as_ref()),
    ];
    for (pointer, text) in filters {
        if let Some(Err(fault)) = text.map(|text| Filter::compile(text)) {
            faults.push(Fault::new(pointer, format!("is no filter: {fault}")));
        }
    }
    let secret = spec.secret.as_deref();
    let secret = secret.and_then(|secret| secret_fault(spec.scheme, secret));
    faults.extend(secret.map(|message| Fault::new("/secret", message)));
    faults
}

/// The fault of a secret. It does not show the secret.
fn secret_fault(scheme: SourceScheme, secret: &str) -> Option<String> {
    match scheme {
        SourceScheme::StandardWebhooks => {
            let parsed = secret.parse::<SigningSecret>();
            parsed.err().map(|error| format!("is not valid: {error}"))
        }
        SourceScheme::Wecom => {
            let parsed = WecomSecret::parse(secret);
            parsed.err().map(|error| format!("is not valid: {error}"))
        }
        // It must arrive unchanged as a part of a path.
        SourceScheme::None if !secret.bytes().all(is_of_path) => {
            Some("must have letters, digits, `-`, `_`, `.` and `~` only".to_owned())
        }
        _ if SECRET_BYTES.contains(&secret.len()) => None,
        _ => Some("must have 16 to 512 bytes".to_owned()),
    }
}

fn is_of_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)
}

/// The given secret, or a new one if the scheme lets the receiver choose it.
fn chosen_secret(scheme: SourceScheme, given: Option<String>) -> Result<String, SourceError> {
    let fault = |message: String| SourceError::Faults(vec![Fault::new("/secret", message)]);
    match (given, scheme) {
        (Some(given), _) => match secret_fault(scheme, &given) {
            None => Ok(given),
            Some(message) => Err(fault(message)),
        },
        (None, SourceScheme::StandardWebhooks) => Ok(SigningSecret::generate()),
        (None, SourceScheme::Github | SourceScheme::Hmac | SourceScheme::None) => {
            let mut bytes = [0; GENERATED_BYTES];
            rand::fill(&mut bytes)
                .expect("the system's random source does not fail once it is seeded");
            Ok(URL_SAFE_NO_PAD.encode(bytes))
        }
        (None, scheme) => {
            let scheme = scheme.as_str();
            Err(fault(format!(
                "is required: {scheme} shows it where the address is entered"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_filters_secret_and_header() {
        let spec = r#"{"name": "n", "scheme": "hmac", "header": "no header", "filter": ".a |", "dedupe": "env",
                       "secret": "short"}"#;
        let spec: SourceSpec = serde_json::from_str(spec).unwrap();
        let pointers: Vec<_> = source_faults(&spec)
            .into_iter()
            .map(|fault| fault.pointer)
            .collect();
        assert_eq!(pointers, ["/header", "/filter", "/dedupe", "/secret"]);
    }

    #[test]
    fn generates_secrets_that_the_receiver_chooses() {
        for scheme in SourceScheme::ALL {
            let is_chosen = matches!(
                scheme,
                SourceScheme::StandardWebhooks
                    | SourceScheme::Github
                    | SourceScheme::Hmac
                    | SourceScheme::None
            );
            let chosen = chosen_secret(scheme, None);
            assert_eq!(chosen.is_ok(), is_chosen, "{scheme:?}");
            if let Ok(secret) = chosen {
                assert_eq!(secret_fault(scheme, &secret), None);
            }
        }
    }
}
