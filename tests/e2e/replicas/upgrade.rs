//! A newer replica migrates the tables while an older one serves.

use crate::support::client::message;
use crate::support::database::rows;
use crate::support::held::HeldRun;
use crate::support::script::sse;
use crate::support::{OwnStage, Postgres, Stage};

/// A migration that is compatible with an older replica: it adds columns.
const ADD_COLUMNS: &str = "DO $$ DECLARE t text; BEGIN \
    FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP \
        EXECUTE format('ALTER TABLE %I ADD COLUMN of_a_newer_one BIGINT NOT NULL DEFAULT 0', t); \
    END LOOP; END $$";

/// Uses everything that runs repeatedly and therefore as a prepared statement.
async fn use_prepared_statements(stage: &Stage, round: usize) {
    let (held, talk) = (format!("held-{round}"), format!("talk-{round}"));
    let run = HeldRun::start(stage, &message(&held)).await;
    for path in ["/run", "/context", "/run/events"] {
        let answer = run.get(path).await;
        assert_eq!(answer.status, 200, "{round} {path}: {}", answer.body);
    }
    run.end(stage).await;

    stage.runner.answer(&talk, |run| sse(run.talk(1).concat()));
    let posted = stage.client.post(&message(&talk)).await;
    assert_eq!(posted.status, 202, "{round}: {}", posted.body);
    let ended = stage.client.finished(&posted.run_id()).await;
    assert_eq!(ended["status"], "completed", "{round}: {ended}");
    let found = format!("/v1/events/{talk}");
    for path in ["/v1/runs", "/v1/events", found.as_str()] {
        let answer = stage.client.get(path).await;
        assert_eq!(answer.status, 200, "{round} {path}: {}", answer.body);
    }
    let admin = stage.admin.clone();
    for path in [
        "/v1/agents",
        "/v1/runners",
        "/v1/runner-endpoints",
        "/v1/api-keys",
    ] {
        let answer = admin.get(path).await;
        assert_eq!(answer.status, 200, "{round} {path}: {}", answer.body);
    }
}

#[tokio::test]
async fn older_replica_serves_after_columns_are_added() {
    let stage = or_skip!(OwnStage::on(Postgres, |_| {}).await);
    for round in 0..3 {
        use_prepared_statements(&stage, round).await;
    }
    rows(&stage.gateway.database_url(), ADD_COLUMNS).await;
    for round in 3..6 {
        use_prepared_statements(&stage, round).await;
    }
    let log = stage.gateway.log();
    assert!(!log.contains("cached plan"), "{log}");
}
