//! Conditional writes of storage objects.

use reqwest::Method;
use reqwest::header::ETAG;
use rstest::rstest;
use serde_json::json;

use crate::support::client::{ApiResponse, message, send};
use crate::support::gateway::Agent;
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::{Engine, Postgres, Sqlite, Stage};

const PATH: &str = "/storage/binding/head";
/// More than one database chunk.
const LARGE: usize = 600 * 1024;

async fn stage(engine: Engine) -> Option<Stage> {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"]["storage"] = json!(["binding"]);
    let runner = StubRunner::start_as(manifest).await;
    Stage::of(engine, runner, |config| {
        config.agents = vec![Agent {
            resources: r#"storage = ["binding"]"#,
            ..Agent::default()
        }];
    })
    .await
}

async fn put(run: &HeldRun, condition: (&'static str, &str), bytes: Vec<u8>) -> ApiResponse {
    let request = run.request(Method::PUT, PATH).body(bytes);
    send(request.header(condition.0, condition.1))
        .await
        .unwrap()
}

fn tag(answer: &ApiResponse) -> String {
    assert_eq!(answer.status, 204, "{}", answer.body);
    answer.headers[ETAG].to_str().unwrap().to_owned()
}

/// Entity tag and content length.
async fn head(run: &HeldRun) -> (String, String) {
    let answer = send(run.request(Method::HEAD, PATH)).await.unwrap();
    let header = |name: &str| answer.headers[name].to_str().unwrap().to_owned();
    assert_eq!(answer.status, 200);
    (header("etag"), header("content-length"))
}

#[track_caller]
fn assert_unmet(answer: &ApiResponse) {
    answer.assert_error(412, "code", "precondition_failed");
}

#[rstest]
#[tokio::test]
async fn writes_only_while_the_condition_holds(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let none = format!("\"{}\"", "0".repeat(64));
    assert_unmet(&put(&run, ("if-match", &none), b"a".to_vec()).await);
    assert_eq!(run.get(PATH).await.status, 404, "nothing is there");

    let first = tag(&put(&run, ("if-none-match", "*"), b"a".to_vec()).await);
    assert_eq!(head(&run).await, (first.clone(), "1".to_owned()));
    assert_unmet(&put(&run, ("if-none-match", "*"), b"b".to_vec()).await);
    assert_unmet(&put(&run, ("if-match", &none), b"b".to_vec()).await);
    assert_eq!(head(&run).await.0, first, "nothing has changed");

    let large = tag(&put(&run, ("if-match", &first), vec![7; LARGE]).await);
    assert_eq!(head(&run).await, (large.clone(), LARGE.to_string()));
    assert_unmet(&put(&run, ("if-match", &first), vec![8; LARGE]).await);
    assert_eq!(
        head(&run).await.0,
        large,
        "an upload by parts changes nothing"
    );
    for (name, value) in [("if-match", "*"), ("if-none-match", &*large)] {
        let refused = put(&run, (name, value), b"b".to_vec()).await;
        assert_eq!(refused.status, 400, "{name}: {}", refused.body);
    }
    let plain = send(run.request(Method::PUT, PATH).body("c"))
        .await
        .unwrap();
    assert_ne!(tag(&plain), large);
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn one_of_two_creations_wins(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let absent = ("if-none-match", "*");
    let (one, other) = tokio::join!(
        put(&run, absent, vec![1; LARGE]),
        put(&run, absent, vec![2; LARGE])
    );
    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [204, 412], "{} {}", one.body, other.body);
    run.end(&stage).await;
}
