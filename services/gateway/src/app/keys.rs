//! Keys at rest: run token keys and the cursor key, sealed; API keys, hashed.

use anyhow::Context as _;
use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use protocol::id::WorkspaceId;
use store::{ApiKeyRecord, SigningKeyRecord, Store, sha256_hex};
use uuid::Uuid;

use crate::clock::Clock;
use crate::runs::token::generate_key;
use crate::seal::MasterKey;

const RUN_TOKEN: &str = "run_token";
const CURSOR: &str = "cursor";

/// The run token keys, newest first; the first start makes one.
pub(super) async fn token_keys(
    store: &Store,
    master_key: &MasterKey,
    clock: &Clock,
) -> anyhow::Result<Vec<Vec<u8>>> {
    let known = open_keys(store, master_key, RUN_TOKEN).await?;
    if !known.is_empty() {
        return Ok(known);
    }
    let (kid, pkcs8) = generate_key()?;
    keep_key(store, master_key, clock, kid, RUN_TOKEN, &pkcs8).await?;
    open_keys(store, master_key, RUN_TOKEN).await
}

/// The key of cursors; the first start makes it.
pub(super) async fn cursor_key(
    store: &Store,
    master_key: &MasterKey,
    clock: &Clock,
) -> anyhow::Result<Vec<u8>> {
    if let Some(known) = open_keys(store, master_key, CURSOR).await?.pop() {
        return Ok(known);
    }
    let kid = CURSOR.to_owned();
    keep_key(
        store,
        master_key,
        clock,
        kid,
        CURSOR,
        &random_bytes::<32>()?,
    )
    .await?;
    open_keys(store, master_key, CURSOR)
        .await?
        .pop()
        .context("the cursor key is gone")
}

async fn open_keys(
    store: &Store,
    master_key: &MasterKey,
    purpose: &str,
) -> anyhow::Result<Vec<Vec<u8>>> {
    let records = store.list_signing_keys(purpose).await?;
    let open = |record: SigningKeyRecord| {
        master_key
            .open(purpose, &record.secret)
            .context("auth.master_key is not the one that this database was sealed with")
    };
    records.into_iter().map(open).collect()
}

async fn keep_key(
    store: &Store,
    master_key: &MasterKey,
    clock: &Clock,
    kid: String,
    purpose: &str,
    secret: &[u8],
) -> anyhow::Result<()> {
    let record = SigningKeyRecord {
        kid,
        purpose: purpose.to_owned(),
        secret: master_key.seal(purpose, secret),
        created_at: clock.now_ms(),
    };
    Ok(store.write(record).await?)
}

/// Makes an API key and stores its hash. Gives the id and the key, which nobody can show again.
pub(crate) async fn create_api_key(
    store: &Store,
    clock: &Clock,
    workspace: &WorkspaceId,
    role: &str,
    name: &str,
) -> anyhow::Result<(String, String)> {
    const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let prefix: String = random_bytes::<8>()?
        .iter()
        .map(|byte| char::from(BASE32[usize::from(byte % 32)]))
        .collect();
    let secret = URL_SAFE_NO_PAD.encode(random_bytes::<32>()?);
    let key = format!("rnl_{prefix}_{secret}");
    let id = Uuid::now_v7().to_string();
    let record = ApiKeyRecord {
        id: id.clone(),
        workspace: workspace.clone(),
        name: name.to_owned(),
        role: role.to_owned(),
        prefix,
        hash: sha256_hex(key.as_bytes()),
        created_at: clock.now_ms(),
    };
    store.write(record).await?;
    Ok((id, key))
}

fn random_bytes<const LENGTH: usize>() -> anyhow::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    rand::fill(&mut bytes)
        .ok()
        .context("the system gives no random bytes")?;
    Ok(bytes)
}
