//! API keys and signing keys on both databases.

mod support;

use protocol::api_key::KeyRole;
use protocol::id::ApiKeyId;
use store::{ApiKeyRecord, LastAdmin, RevokeApiKey, Revoked, StoreError};
use support::{Bench, on_both};
use uuid::Uuid;

on_both!(
    two_admins_who_revoke_each_other_leave_one,
    a_public_part_belongs_to_one_key,
);

async fn api_key(bench: &Bench, prefix: &str, role: KeyRole) -> Result<ApiKeyId, StoreError> {
    let id = ApiKeyId(Uuid::now_v7());
    let record = ApiKeyRecord {
        id,
        workspace: bench.workspace.clone(),
        name: "key".to_owned(),
        role,
        prefix: prefix.to_owned(),
        hash: "hash".to_owned(),
        created_at: 1_000,
        revoked_at: None,
    };
    bench.store.write(record).await.map(|()| id)
}

async fn two_admins_who_revoke_each_other_leave_one(bench: Bench) {
    let one = api_key(&bench, "one", KeyRole::Admin).await.unwrap();
    let two = api_key(&bench, "two", KeyRole::Admin).await.unwrap();
    api_key(&bench, "three", KeyRole::Client).await.unwrap();
    let revoke = |id| RevokeApiKey {
        workspace: bench.workspace.clone(),
        id,
        last_admin: LastAdmin::Stays,
        at: 2_000,
    };
    let (first, second) = tokio::join!(
        bench.store.write(revoke(one)),
        bench.store.write(revoke(two))
    );
    let ends = [first.unwrap(), second.unwrap()];
    let refused = ends.iter().filter(|end| **end == Revoked::LastAdmin);
    assert_eq!(refused.count(), 1, "{ends:?}");
    let mut live = Vec::new();
    for prefix in ["one", "two", "three"] {
        live.extend(bench.store.find_api_key(prefix).await.unwrap());
    }
    let admins = live.iter().filter(|key| key.role == KeyRole::Admin);
    assert_eq!((admins.count(), live.len()), (1, 2));
}

async fn a_public_part_belongs_to_one_key(bench: Bench) {
    let id = api_key(&bench, "same", KeyRole::Client).await.unwrap();
    let again = api_key(&bench, "same", KeyRole::Admin).await;
    assert!(matches!(again, Err(StoreError::Taken)), "{again:?}");
    let found = bench.store.find_api_key("same").await.unwrap().unwrap();
    assert_eq!((found.id, found.role), (id, KeyRole::Client));
}
