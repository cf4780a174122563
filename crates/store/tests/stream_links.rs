//! Links to the stream of one run on both databases.
use protocol::id::{ApiKeyId, RunId};
use store::{AuditEntry, CreateStreamLink, OpenStreamLink, StreamLink};
use uuid::Uuid;

use crate::support::{StoreFixture, audit, on_both};

on_both!(
    stream_link_expires_unopened,
    stream_link_is_opened_once,
    sweep_deletes_expired_links_only,
);

const TOKEN: &str = "hash of the token";

async fn create(bench: &StoreFixture) {
    let link = StreamLink {
        workspace: bench.workspace.clone(),
        run_id: RunId(Uuid::nil()),
        key: ApiKeyId(Uuid::nil()),
    };
    let create = CreateStreamLink {
        link,
        token_sha256: TOKEN.to_owned(),
        expires_at: 1_000,
        audit: entry(),
    };
    bench.write(create).await.unwrap();
}

fn entry() -> AuditEntry {
    audit(Uuid::now_v7())
}

async fn open(bench: &StoreFixture, at: i64) -> bool {
    let open = OpenStreamLink {
        token_sha256: TOKEN.to_owned(),
        resumable_until: 9_000,
        at,
        audit: entry(),
    };
    bench.write(open).await.unwrap()
}

async fn stream_link_expires_unopened(bench: StoreFixture) {
    create(&bench).await;
    assert!(!open(&bench, 1_000).await);
    assert!(open(&bench, 999).await);
}

async fn stream_link_is_opened_once(bench: StoreFixture) {
    create(&bench).await;
    assert!(open(&bench, 10).await);
    assert!(!open(&bench, 11).await);
    let stored = bench.runs().find_stream_link(TOKEN).await.unwrap();
    let stored = stored.unwrap();
    assert_eq!((stored.is_opened, stored.expires_at), (true, 9_000));
}

async fn sweep_deletes_expired_links_only(bench: StoreFixture) {
    create(&bench).await;
    let sweep = |at| bench.retention().sweep_stream_links(at);
    assert_eq!(sweep(1_000).await.unwrap(), 0);
    assert_eq!(sweep(1_001).await.unwrap(), 1);
    let found = bench.runs().find_stream_link(TOKEN).await.unwrap();
    assert_eq!(found, None);
}
