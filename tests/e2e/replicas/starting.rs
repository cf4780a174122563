//! Many replicas start concurrently on an empty database.

use futures_util::future::join_all;
use sqlx::{Connection, PgConnection};

use crate::support::client::message;
use crate::support::script::sse;
use crate::support::{OwnStage, Postgres};

#[tokio::test]
async fn replicas_start_concurrently_on_empty_database() {
    let mut stage = or_skip!(OwnStage::on(Postgres, |_| {}).await);
    stage.gateway.kill().await;
    let url = stage.gateway.database_url();
    let mut database = PgConnection::connect(&url).await.unwrap();
    let nothing = "DROP SCHEMA public CASCADE; CREATE SCHEMA public";
    sqlx::raw_sql(nothing).execute(&mut database).await.unwrap();
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));

    let replicas = join_all((0..4).map(|_| stage.gateway.start_replica())).await;
    for (number, replica) in replicas.iter().enumerate() {
        let client = replica.client().await;
        let posted = client.post(&message(&format!("m-{number}"))).await;
        assert_eq!(posted.status, 202, "{}", posted.body);
        let run = client.finished(&posted.run_id()).await;
        assert_eq!(run["status"], "completed", "{run}");
        // Notices of the migrations, such as those of `IF NOT EXISTS`, are not logged.
        let log = replica.log();
        assert!(!log.contains("already exists"), "{log}");
    }
    let requests = stage.runner.requests();
    let requests = requests.iter().filter(|request| request.is_run()).count();
    assert_eq!(requests, replicas.len(), "each run was posted once");
}
