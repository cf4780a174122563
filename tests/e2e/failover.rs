//! Failover of real `PostgreSQL` servers: read-only sessions, a promoted standby, a connection pooler.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rstest::rstest;
use tokio::process::Command;

use crate::support::client::message;
use crate::support::database::rows;
use crate::support::postgres_servers::{Pooler, PostgresServer, url_at};
use crate::support::programs::runnel;
use crate::support::proxy::Proxy;
use crate::support::repository::repository_file;
use crate::support::script::{Run, ScriptStep, sse};
use crate::support::template::master_key;
use crate::support::{OwnStage, Sqlite, TempDirectory, run, until};

/// Maximum time from a primary that takes writes to an accepted event.
const MAX_RECOVERY: Duration = Duration::from_secs(10);

fn talk(run: &Run) -> Vec<ScriptStep> {
    sse(run.talk(2).concat())
}

/// A gateway on the database `runnel` at this address, after a first run.
async fn stage(address: SocketAddr) -> OwnStage {
    stage_at(url_at(address, "runnel")).await
}

async fn stage_at(url: String) -> OwnStage {
    let stage = OwnStage::on(Sqlite, |config| {
        config.has_fresh_database = true;
        config.database_at = Some(Box::new(move |_| url.clone()));
    });
    let stage = stage.await.unwrap();
    stage.runner.answer_all(talk);
    let run_id = stage.client.post(&message("before")).await.run_id();
    stage.outcome(&run_id).await;
    stage
}

/// The gateway reports this state, without a request before, and rejects events.
async fn rejects_events(stage: &OwnStage, state: &str) {
    until(state, async || stage.readiness().await == state).await;
    for event in ["during", "during", "during"] {
        stage.client.post(&message(event)).await.expect(503);
    }
    assert_eq!(stage.readiness().await, state);
}

async fn accepts_events_in_time(stage: &OwnStage) {
    let since = Instant::now();
    let mut run_id = None;
    until("an accepted event", async || {
        let answer = stage.client.post(&message("during")).await;
        run_id = (answer.status < 300).then(|| answer.run_id());
        run_id.is_some()
    })
    .await;
    until("readiness", async || stage.readiness().await == "ok").await;
    let took = since.elapsed();
    assert!(took < MAX_RECOVERY, "{took:?}");
    let outcome = stage.outcome(&run_id.unwrap()).await;
    assert_eq!(outcome.ending(), "completed");
    // Each of the pool's sessions takes writes again.
    for n in 0..8 {
        let answer = stage.client.post(&message(&format!("after-{n}"))).await;
        assert!(answer.status < 300, "{}", answer.body);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    Direct,
    SessionPooler,
}

#[rstest]
#[case::direct(Route::Direct)]
#[case::pooler(Route::SessionPooler)]
#[tokio::test]
async fn replaces_sessions_that_stayed_read_only(#[case] route: Route) {
    let server = or_skip!(PostgresServer::start().await);
    let mut address = server.address;
    let pooler = match route {
        Route::Direct => None,
        Route::SessionPooler => match Pooler::start(address, "session").await {
            Some(pooler) => Some(pooler),
            None => return,
        },
    };
    if let Some(pooler) = &pooler {
        address = pooler.address;
    }
    let stage = stage(address).await;
    let set = "ALTER DATABASE runnel SET default_transaction_read_only = on";
    server.execute(set).await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'runnel'";
    server.execute(end).await;
    rejects_events(&stage, "database_takes_no_writes").await;
    let reset = "ALTER DATABASE runnel RESET default_transaction_read_only";
    server.execute(reset).await;
    accepts_events_in_time(&stage).await;
}

#[tokio::test]
async fn recovers_from_demoted_primary() {
    let server = or_skip!(PostgresServer::start().await);
    let stage = stage(server.address).await;
    server.demote();
    rejects_events(&stage, "database_takes_no_writes").await;
    server.promote();
    accepts_events_in_time(&stage).await;
}

/// The old primary during the failover.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OldPrimary {
    Killed,
    /// Connections to it stay open.
    Demoted,
}

#[rstest]
#[case::killed(OldPrimary::Killed, "database_unreachable")]
#[case::demoted(OldPrimary::Demoted, "database_takes_no_writes")]
#[tokio::test]
async fn follows_promoted_standby(#[case] old: OldPrimary, #[case] state: &str) {
    let primary = or_skip!(PostgresServer::start().await);
    // Synchronous, so that no acknowledged commit is lost.
    let standby = primary.standby();
    let wait = "ALTER SYSTEM SET synchronous_standby_names = '*'";
    primary.execute(wait).await;
    primary.execute("SELECT pg_reload_conf()").await;
    let proxy = Proxy::to(&primary.address.to_string()).await;
    let stage = stage(proxy.address).await;
    match old {
        OldPrimary::Killed => primary.kill(),
        OldPrimary::Demoted => primary.demote(),
    }
    rejects_events(&stage, state).await;
    standby.promote();
    standby.execute("ALTER SYSTEM RESET ALL").await;
    standby.execute("SELECT pg_reload_conf()").await;
    proxy.retarget(standby.address);
    accepts_events_in_time(&stage).await;
}

#[rstest]
#[case::preferred("prefer")]
#[case::required("require")]
#[case::verified("verify-ca")]
#[tokio::test]
async fn encrypts_all_database_sessions(#[case] mode: &str) {
    let server = or_skip!(PostgresServer::start().await);
    server.encrypt("good").await;
    let authority = repository_file("tests/fixtures/tls/authority.pem");
    let (address, authority) = (server.address, authority.display());
    let url =
        format!("postgres://postgres@{address}/runnel?sslmode={mode}&sslrootcert={authority}");
    let stage = stage_at(url).await;
    let sessions = "SELECT CASE WHEN ssl THEN 'encrypted' ELSE 'plain' END FROM pg_stat_ssl \
                    JOIN pg_stat_activity USING (pid) WHERE datname = 'runnel'";
    let sessions = rows(&server.url("postgres"), sessions).await;
    assert!(sessions.len() > 2, "{sessions:?}");
    assert!(sessions.iter().all(|session| session == "encrypted"));
    let log = stage.gateway.log();
    assert!(!log.contains("direct database connection failed"), "{log}");
}

#[rstest]
#[case::transaction("transaction")]
#[case::statement("statement")]
#[tokio::test]
async fn start_refuses_poolers_without_session_mode(#[case] mode: &str) {
    let server = or_skip!(PostgresServer::start().await);
    let pooler = or_skip!(Pooler::start(server.address, mode).await);
    let directory = TempDirectory::new();
    let key = directory.write("master.key", &master_key());
    let url = url_at(pooler.address, "runnel");
    let key = key.display();
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[auth]\nmaster_key = \"file:{key}\"\n\
         [database]\nurl = \"{url}\"\n"
    );
    let file = directory.write("runnel.toml", &text);
    for arguments in [&["serve"] as &[&str], &["check-config", "--probe"]] {
        let mut command = Command::new(runnel());
        let refused = run(command.args(arguments).arg("--config").arg(&file)).await;
        assert!(!refused.status.success(), "{arguments:?}");
        let printed = refused.stdout + &refused.stderr;
        assert!(printed.contains("pool_mode = session"), "{printed}");
    }
}
