//! API keys: `rnl_<8 base32>_<43 base64url>`. The gateway stores their hashes only.

use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use protocol::api_key::{ApiKey, ApiKeySpec, CreatedApiKey, KeyRole};
use protocol::id::{AgentId, ApiKeyId, WorkspaceId};
use protocol::principal::PrincipalKind;
use protocol::workspace::{CreatedWorkspace, Workspace, WorkspaceSpec};
use secrecy::{ExposeSecret, SecretString};
use store::{
    ApiKeyRecord, ChangeStamp, CreateWorkspace, Store, StoreError, WorkspaceRecord, sha256_hex,
};
use uuid::Uuid;

const START: &str = "rnl_";
const PREFIX_LENGTH: usize = 8;
const SECRET_BYTES: usize = 32;
/// Attempts for a free prefix. Prefixes are random; two collisions in a row are very unlikely.
const TRIES: u32 = 3;

/// Failure to create a key.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// With the position in the list of the key's agents.
    #[error("agent {} of the key does not exist in its workspace; name another one", .0 + 1)]
    UnknownAgent(usize),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Creates a key and stores its hash. The returned text cannot be shown again.
pub async fn issue(
    store: &Store,
    stamp: &ChangeStamp,
    workspace: &WorkspaceId,
    spec: &ApiKeySpec,
) -> Result<(ApiKeyRecord, SecretString), IssueError> {
    let agents = match &spec.agents {
        Some(named) => Some(find_agents(store, workspace, named).await?),
        None => None,
    };
    let mut tries = 1;
    loop {
        let (mut record, key) = fresh(stamp.at, workspace, spec, agents.clone());
        // Persons create keys by their sign-in only.
        record.is_session = stamp.by.kind == PrincipalKind::Person;
        match store.change(stamp.clone(), record.clone()).await {
            // The random prefix is taken: draw another key.
            Err(StoreError::Taken) if tries < TRIES => tries += 1,
            Err(error) => return Err(error.into()),
            Ok(()) => return Ok((record, key)),
        }
    }
}

/// Ids of named agents, each once. Ids stay valid when an agent gets another name.
async fn find_agents(
    store: &Store,
    workspace: &WorkspaceId,
    named: &[String],
) -> Result<Vec<AgentId>, IssueError> {
    let mut agents = Vec::with_capacity(named.len());
    for (position, name) in named.iter().enumerate() {
        let found = store.agents().find_agent_id(workspace, name).await?;
        let agent = found.ok_or(IssueError::UnknownAgent(position))?;
        // The list may hold an agent by name and by id.
        if !agents.contains(&agent) {
            agents.push(agent);
        }
    }
    Ok(agents)
}

/// Creates a workspace and its first key, of role admin. `None`: the id is taken.
pub async fn issue_workspace(
    store: &Store,
    stamp: &ChangeStamp,
    spec: &WorkspaceSpec,
) -> Result<Option<CreatedWorkspace>, StoreError> {
    let id = WorkspaceId(spec.id.clone());
    let workspace = WorkspaceRecord {
        name: spec.name.clone().unwrap_or_else(|| spec.id.clone()),
        created_at: stamp.at,
        id: id.clone(),
    };
    let first = ApiKeySpec {
        name: "first admin".to_owned(),
        role: KeyRole::Admin,
        expires_at: None,
        agents: None,
        limits: None,
    };
    let mut tries = 1;
    loop {
        let (record, key) = fresh(workspace.created_at, &id, &first, None);
        let create = CreateWorkspace {
            workspace: workspace.clone(),
            key: record.clone(),
        };
        match store.change(stamp.clone(), create).await {
            // The random prefix is taken: draw another key. A taken workspace id gives `Ok(false)`.
            Err(StoreError::Taken) if tries < TRIES => tries += 1,
            Err(error) => return Err(error),
            Ok(false) => return Ok(None),
            Ok(true) => {
                return Ok(Some(CreatedWorkspace {
                    workspace: shown_workspace(workspace),
                    api_key: CreatedApiKey {
                        api_key: shown(record),
                        key: key.expose_secret().to_owned(),
                    },
                }));
            }
        }
    }
}

/// The workspace in API form.
pub fn shown_workspace(record: WorkspaceRecord) -> Workspace {
    Workspace {
        id: record.id.0,
        name: record.name,
        created_at: record.created_at.div_euclid(1000),
    }
}

fn fresh(
    created_at: i64,
    workspace: &WorkspaceId,
    spec: &ApiKeySpec,
    agents: Option<Vec<AgentId>>,
) -> (ApiKeyRecord, SecretString) {
    let (prefix, key) = generate();
    let record = ApiKeyRecord {
        id: ApiKeyId(Uuid::now_v7()),
        workspace: workspace.clone(),
        name: spec.name.clone(),
        role: spec.role,
        prefix,
        // A plain hash suffices: the secret has 256 random bits, so guessing cannot work.
        hash: sha256_hex(key.expose_secret().as_bytes()),
        created_at,
        revoked_at: None,
        expires_at: spec.expires_at.map(|at| at.saturating_mul(1000)),
        last_used_at: None,
        agents,
        limits: spec.limits,
        is_session: false,
    };
    (record, key)
}

/// The public fields of a key.
pub fn shown(record: ApiKeyRecord) -> ApiKey {
    ApiKey {
        id: record.id,
        name: record.name,
        role: record.role,
        prefix: record.prefix,
        created_at: record.created_at.div_euclid(1000),
        expires_at: record.expires_at.map(|at| at.div_euclid(1000)),
        last_used_at: record.last_used_at.map(|at| at.div_euclid(1000)),
        agents: record.agents,
        limits: record.limits,
        revoked_at: record.revoked_at.map(|at| at.div_euclid(1000)),
    }
}

/// The prefix of a well-formed key.
pub fn prefix_of(key: &str) -> Option<&str> {
    let (prefix, secret) = key.strip_prefix(START)?.split_once('_')?;
    let plain = prefix
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    // Malformed keys end here, before any look-up in the database.
    let decoded = URL_SAFE_NO_PAD.decode(secret).ok()?;
    (prefix.len() == PREFIX_LENGTH && plain && decoded.len() == SECRET_BYTES).then_some(prefix)
}

/// A new key and its prefix.
fn generate() -> (String, SecretString) {
    const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let prefix: String = random_bytes::<PREFIX_LENGTH>()
        .iter()
        // 256 is a multiple of 32, so the remainder has no bias.
        .map(|byte| char::from(BASE32[usize::from(byte % 32)]))
        .collect();
    let mut key = format!("{START}{prefix}_");
    let secret = URL_SAFE_NO_PAD.encode(random_bytes::<SECRET_BYTES>());
    key.push_str(&secret);
    (prefix, SecretString::from(key))
}

/// The secret part of a link, a bearer token. The gateway stores its hash only.
pub fn link_token() -> String {
    URL_SAFE_NO_PAD.encode(random_bytes::<SECRET_BYTES>())
}

fn random_bytes<const LENGTH: usize>() -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    rand::fill(&mut bytes).expect("the system's random source does not fail once it is seeded");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_keys_are_well_formed_and_distinct() {
        let (prefix, key) = generate();
        assert_eq!(key.expose_secret().len(), 4 + 8 + 1 + 43);
        assert_eq!(prefix_of(key.expose_secret()), Some(prefix.as_str()));
        let (other, another) = generate();
        assert_ne!(prefix, other);
        assert_ne!(key.expose_secret(), another.expose_secret());
    }

    #[test]
    fn refuses_malformed_keys() {
        let good = format!("rnl_abcdefgh_{}", "A".repeat(43));
        assert_eq!(prefix_of(&good), Some("abcdefgh"));
        for bad in [
            "",
            "rnl_",
            "rnl_abcdefgh",
            "rnl_abcdefgh_",
            &good[..good.len() - 1],
            &format!("{good}A"),
            &good.replace("rnl_", "RNL_"),
            &good.replace("abcdefgh", "Abcdefgh"),
            &good.replace("abcdefgh", "abcdefg"),
            &good.replace('A', "+"),
        ] {
            assert_eq!(prefix_of(bad), None, "{bad}");
        }
    }
}
