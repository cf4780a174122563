//! API keys and signing keys on both databases.
use crate::support::{StoreFixture, on_both};
use domain::signing_key::{
    KeyPhase, KeyPurpose, KeyTimes, LEAD_MS, RotationCause, RotationPlan, key_phases,
};
use protocol::api_key::KeyRole;
use protocol::id::ApiKeyId;
use store::{
    ApiKeyRecord, DeleteExpiredKeys, KEY_USE_RESOLUTION_MS, LastAdmin, RecordKeyUses, RevokeApiKey,
    Revoked, RotateKey, StoreError,
};
use uuid::Uuid;

on_both!(
    mutual_revocation_keeps_one_admin,
    public_part_belongs_to_one_key,
    records_a_use_once_a_minute,
    replicas_create_one_due_key,
    rotates_deletes_and_replaces_keys,
    sweep_deletes_old_sessions_only,
);

async fn api_key(
    bench: &StoreFixture,
    prefix: &str,
    role: KeyRole,
) -> Result<ApiKeyId, StoreError> {
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
        expires_at: None,
        last_used_at: None,
        agents: None,
        limits: None,
        is_session: false,
    };
    bench.write(record).await.map(|()| id)
}

async fn mutual_revocation_keeps_one_admin(bench: StoreFixture) {
    let one = api_key(&bench, "one", KeyRole::Admin).await.unwrap();
    let two = api_key(&bench, "two", KeyRole::Admin).await.unwrap();
    api_key(&bench, "three", KeyRole::Client).await.unwrap();
    let revoke = |id| RevokeApiKey {
        workspace: bench.workspace.clone(),
        id,
        last_admin: LastAdmin::Stays,
        at: 2_000,
    };
    let (first, second) = tokio::join!(bench.write(revoke(one)), bench.write(revoke(two)));
    let ends = [first.unwrap(), second.unwrap()];
    let refused = ends.iter().filter(|end| **end == Revoked::LastAdmin);
    assert_eq!(refused.count(), 1, "{ends:?}");
    let mut live = Vec::new();
    for prefix in ["one", "two", "three"] {
        live.extend(bench.access().find_api_key(prefix).await.unwrap());
    }
    let admins = live.iter().filter(|key| key.role == KeyRole::Admin);
    assert_eq!((admins.count(), live.len()), (1, 2));
}

async fn public_part_belongs_to_one_key(bench: StoreFixture) {
    let id = api_key(&bench, "same", KeyRole::Client).await.unwrap();
    let again = api_key(&bench, "same", KeyRole::Admin).await;
    assert!(matches!(again, Err(StoreError::Taken)), "{again:?}");
    let found = bench.access().find_api_key("same").await.unwrap().unwrap();
    assert_eq!((found.id, found.role), (id, KeyRole::Client));
}

async fn records_a_use_once_a_minute(bench: StoreFixture) {
    let one = api_key(&bench, "one", KeyRole::Client).await.unwrap();
    let two = api_key(&bench, "two", KeyRole::Client).await.unwrap();
    let last_use = async |prefix| {
        let found = bench.access().find_api_key(prefix).await.unwrap();
        found.unwrap().last_used_at
    };
    let minute = KEY_USE_RESOLUTION_MS;
    for (keys, expected) in [
        (vec![(one, 5_000)], (Some(5_000), None)),
        (vec![(one, 5_001), (two, 5_001)], (Some(5_000), Some(5_001))),
        (vec![(one, 4_999 + minute)], (Some(5_000), Some(5_001))),
        (
            vec![(one, 5_000 + minute)],
            (Some(5_000 + minute), Some(5_001)),
        ),
        (vec![(one, 5_000)], (Some(5_000 + minute), Some(5_001))),
    ] {
        let keys = keys.into_iter().collect();
        bench.write(RecordKeyUses { keys }).await.unwrap();
        assert_eq!((last_use("one").await, last_use("two").await), expected);
    }
}

const MONTH_MS: i64 = 30 * 24 * 3_600_000;
const AGE: RotationCause = RotationCause::Age(MONTH_MS);

fn rotate_key(kid: &str, occasion: RotationCause, at: i64) -> RotateKey {
    RotateKey {
        purpose: KeyPurpose::RunToken,
        kid: kid.to_owned(),
        secret: format!("sealed {kid}"),
        occasion,
        at,
    }
}

/// The keys of run tokens, oldest first.
async fn run_token_keys(bench: &StoreFixture) -> Vec<KeyTimes> {
    let keys = bench.access().list_signing_keys().await.unwrap();
    let own = keys
        .into_iter()
        .filter(|key| key.purpose == KeyPurpose::RunToken);
    own.map(|key| key.times).collect()
}

async fn replicas_create_one_due_key(bench: StoreFixture) {
    let other = match &bench.database {
        // A second writer on the same database, like another replica.
        Some(database) => Some(store::Store::open(&database.url()).await.unwrap()),
        None => None,
    };
    let mut tasks = tokio::task::JoinSet::new();
    let second = other.map_or(bench.store.clone(), |(store, writer)| {
        tasks.spawn(writer);
        store
    });
    for (at, expected) in [(1, 1), (1 + MONTH_MS, 2)] {
        let kid = |name: &str| format!("{name} {at}");
        let (a, b) = (kid("a"), kid("b"));
        let (one, two) = tokio::join!(
            bench.write(rotate_key(&a, AGE, at)),
            second.write(rotate_key(&b, AGE, at))
        );
        let plans = [one.unwrap(), two.unwrap()];
        let idle = plans.iter().filter(|plan| **plan == RotationPlan::NotDue);
        assert_eq!(idle.count(), 1, "{plans:?}");
        assert_eq!(run_token_keys(&bench).await.len(), expected);
    }
    second.close().await;
}

async fn rotates_deletes_and_replaces_keys(bench: StoreFixture) {
    use KeyPhase::{Expired, Signing, Verifying, Waiting};
    let write = |kid, occasion, at| bench.write(rotate_key(kid, occasion, at));
    write("a", AGE, 1_000).await.unwrap();
    let cursor = RotateKey {
        purpose: KeyPurpose::Cursor,
        ..rotate_key("c", AGE, 1_000)
    };
    bench.write(cursor).await.unwrap();

    let requested_at = 5_000;
    let plan = write("b", RotationCause::Requested, requested_at)
        .await
        .unwrap();
    assert!(
        matches!(plan, RotationPlan::ScheduleSuccessor { .. }),
        "{plan:?}"
    );
    let signs_from = requested_at + LEAD_MS;
    let again = write("never", RotationCause::Requested, requested_at + 1)
        .await
        .unwrap();
    let kid = "b".to_owned();
    assert_eq!(again, RotationPlan::AlreadyScheduled { kid, signs_from });

    let keys = run_token_keys(&bench).await;
    let kids: Vec<_> = keys.iter().map(|key| key.kid.as_str()).collect();
    assert_eq!(kids, ["a", "b"]);
    let over = signs_from + KeyPurpose::RunToken.overlap_ms();
    for (at, phases) in [
        (requested_at, [Signing, Waiting]),
        (signs_from - 1, [Signing, Waiting]),
        (signs_from, [Verifying, Signing]),
        (over - 1, [Verifying, Signing]),
        (over, [Expired, Signing]),
    ] {
        assert_eq!(key_phases(&keys, at), phases, "{at}");
    }
    // The database clock decides, regardless of replica clocks.
    let verify_until = async |end: &str| {
        let sql = format!("UPDATE signing_keys SET verify_until = {end} WHERE kid = 'a'");
        bench.tamper(&sql).await;
    };
    verify_until("9000000000000").await;
    bench.write(DeleteExpiredKeys).await.unwrap();
    assert_eq!(run_token_keys(&bench).await.len(), 2);
    verify_until(&over.to_string()).await;
    bench.write(DeleteExpiredKeys).await.unwrap();
    assert_eq!(run_token_keys(&bench).await, keys[1..]);

    // A slow clock does not sort the new key before the old one.
    let plan = write("d", RotationCause::Requested, 2).await.unwrap();
    assert!(
        matches!(plan, RotationPlan::ScheduleSuccessor { .. }),
        "{plan:?}"
    );
    let keys = run_token_keys(&bench).await;
    assert_eq!(
        (keys[1].kid.as_str(), keys[1].created_at),
        ("d", requested_at + 1)
    );
    let plan = write("e", RotationCause::Compromised, over).await.unwrap();
    let withdrawn = vec!["b".to_owned(), "d".to_owned()];
    assert_eq!(plan, RotationPlan::Replace { withdrawn });
    let left = bench.access().list_signing_keys().await.unwrap();
    let mut left: Vec<_> = left.iter().map(|key| key.times.kid.as_str()).collect();
    left.sort_unstable();
    assert_eq!(left, ["c", "e"], "another purpose is another matter");
}

async fn sweep_deletes_old_sessions_only(bench: StoreFixture) {
    let one = api_key(&bench, "key", KeyRole::Client).await.unwrap();
    let found = bench.access().find_api_key_by_id(&bench.workspace, one);
    let key = found.await.unwrap().unwrap();
    for (prefix, expires_at, is_session) in [
        ("old", 1_999, true),
        ("recent", 2_000, true),
        ("expired", 1_999, false),
    ] {
        let record = ApiKeyRecord {
            id: ApiKeyId(Uuid::now_v7()),
            prefix: prefix.to_owned(),
            expires_at: Some(expires_at),
            is_session,
            ..key.clone()
        };
        bench.write(record).await.unwrap();
    }
    let sweep = || bench.retention().sweep_sessions(2_000);
    assert_eq!(sweep().await.unwrap(), 1);
    assert_eq!(sweep().await.unwrap(), 0);
    for (prefix, is_left) in [
        ("key", true),
        ("old", false),
        ("recent", true),
        ("expired", true),
    ] {
        let found = bench.access().find_api_key(prefix).await.unwrap();
        assert_eq!(found.is_some(), is_left, "{prefix}");
    }
}
