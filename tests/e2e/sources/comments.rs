//! `examples/python/github_comments.py`: an issue starts a run, whose end becomes a comment.

use std::sync::Once;

use serde_json::json;
use tokio::process::Command;

use super::{SECRET, create, now, path_of, signed, stage_of};
use crate::support::listening::ChildServer;
use crate::support::peer::environment;
use crate::support::receiver::Receiver;
use crate::support::repository::repository_file;
use crate::support::{Sqlite, skipped};

const PACKAGE: &str = "standardwebhooks==1.1.0";
static NO_PYTHON: Once = Once::new();

/// The source of `docs/sources.md`.
fn filter() -> String {
    let page = std::fs::read_to_string(repository_file("docs/sources.md")).unwrap();
    let (_, filter) = page.split_once("filter = '''\n").unwrap();
    filter.split_once("'''").unwrap().0.to_owned()
}

#[tokio::test]
async fn answers_of_issues_become_comments() {
    let Some(installed) = environment(PACKAGE, &[PACKAGE]).await else {
        let why = "standardwebhooks could not be installed";
        return skipped(&NO_PYTHON, "python", why);
    };
    let stage = stage_of(Sqlite).await.unwrap();
    let github = Receiver::start().await;
    let secret = format!("whsec_{}", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=");
    let mut command = Command::new(installed.join("bin/python"));
    command
        .arg(repository_file("examples/python/github_comments.py"))
        .env("PORT", "0")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("WEBHOOK_SECRET", &secret)
        .env("GITHUB_TOKEN", "token-of-github")
        .env("GITHUB_API_URL", github.url.trim_end_matches("/hook"));
    let program = ChildServer::spawn(&mut command).await.unwrap();
    let hook = json!({
        "name": "comments", "url": program.url, "secret": secret, "payload": "full",
        "events": ["run.completed", "run.failed"],
    });
    stage.admin.create("/v1/webhooks", &hook).await.expect(201);
    let source = json!({"secret": SECRET, "filter": filter()});
    let source = create(&stage.admin, "github", &source).await;
    let issue = json!({
        "action": "opened", "issue": {"number": 7, "title": "Login fails", "body": null},
        "repository": {"full_name": "acme/shop"}, "sender": {"login": "ada"},
    });
    let mut posted = signed("github", SECRET, &issue.to_string(), now());
    posted.headers.push(("x-github-event", "issues".to_owned()));
    posted.to(&stage.client, path_of(&source)).await.expect(200);

    let comment = github.wait_for(1).await.remove(0);
    assert_eq!(comment.path, "/repos/acme/shop/issues/7/comments");
    assert_eq!(comment.headers["authorization"], "Bearer token-of-github");
    assert_eq!(comment.body["body"].as_str().unwrap().trim(), "1");
}
