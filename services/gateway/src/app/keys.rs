//! Keys at rest: run token keys and the cursor key, sealed.

use anyhow::Context as _;
use aws_lc_rs::rand;
use store::{SigningKeyRecord, Store};

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

fn random_bytes<const LENGTH: usize>() -> anyhow::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    rand::fill(&mut bytes)
        .ok()
        .context("the system gives no random bytes")?;
    Ok(bytes)
}
