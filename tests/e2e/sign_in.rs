//! Sign-in of people, with tokens of a real `OpenID` provider.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;

use reqwest::Method;
use reqwest::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderMap};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::support::client::{ApiResponse, Client, send};
use crate::support::listening::ChildServer;
use crate::support::node::NodeProject;
use crate::support::programs::runnel;
use crate::support::runner::StubRunner;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, TempDirectory, within};

static OIDC: NodeProject = NodeProject::at("tests/clients/oidc");

/// A gateway with a provider.
struct SignInStage {
    stage: OwnStage,
    provider: ChildServer,
    /// Programs of the provider and of a person.
    project: PathBuf,
}

impl SignInStage {
    async fn of(engine: Engine) -> Option<Self> {
        let project = OIDC.built("node").await?;
        let mut node = Command::new("node");
        node.arg(project.join("provider.mjs"));
        let provider = ChildServer::spawn(&mut node).await.unwrap();
        let rest = format!(
            "[auth.oidc]\nissuer = \"{}\"\naudience = \"runnel\"\nclient_id = \"terminal\"\n\
             scopes = [\"openid\", \"email\", \"groups\"]\nroles = [\n\
             {{ claim = \"groups\", value = \"runnel-admins\", role = \"admin\" }},\n\
             {{ claim = \"groups\", value = \"support\", role = \"approver\", agents = [\"main\"] }},\n]\n",
            provider.url
        );
        let runner = StubRunner::start().await;
        let stage = OwnStage::of(engine, runner, |config| config.rest = rest).await?;
        Some(Self {
            stage,
            provider,
            project: project.to_owned(),
        })
    }

    /// An access token of the provider for a client of its own.
    async fn token(&self, client: &str, resource: &str) -> String {
        let request = reqwest::Client::new()
            .post(format!("{}/token", self.provider.url))
            .basic_auth(client, Some("secret"))
            .header("content-type", "application/x-www-form-urlencoded")
            .body(format!(
                "grant_type=client_credentials&scope=api&resource={resource}"
            ));
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        answer["access_token"]
            .as_str()
            .unwrap_or_else(|| panic!("{answer}"))
            .to_owned()
    }

    async fn sign_in(&self, token: &str) -> ApiResponse {
        let request = self.stage.client.anonymous(Method::POST, "/v1/sessions");
        send(request.bearer_auth(token)).await.unwrap()
    }

    async fn page_headers(&self, path: &str) -> HeaderMap {
        let request = self.stage.client.anonymous(Method::GET, path);
        let page = within("the page", request.send()).await.unwrap();
        page.headers().clone()
    }
}

#[rstest]
#[tokio::test]
async fn tokens_of_the_provider_open_sessions(#[values(Sqlite, Postgres)] engine: Engine) {
    let on = or_skip!(SignInStage::of(engine).await);
    let (stage, admin) = (&on.stage, &on.stage.admin);
    let token = on.token("machine", "runnel:api").await;
    let session = on.sign_in(&token).await.expect(201).body;
    assert_members!(session, {"name": "machine", "role": "approver"});
    let lifetime =
        session["expires_at"].as_i64().unwrap() - session["created_at"].as_i64().unwrap();
    assert!(
        (43_190..=43_210).contains(&lifetime),
        "12 hours: {lifetime}"
    );
    let person = Client::new(&stage.client.url, session["key"].as_str().unwrap());
    let own = person.get("/v1/whoami").await.expect(200).body;
    assert_eq!(
        (&own["id"], &own["agents"]),
        (&session["id"], &session["agents"])
    );
    assert_eq!(own["agents"].as_array().unwrap().len(), 1);
    person.get("/v1/interactions").await.expect(200);
    person.get("/v1/agents").await.expect(403);
    let path = format!(
        "/v1/changes?kind=api_key&object_id={}",
        session["id"].as_str().unwrap()
    );
    let change = &admin.get(&path).await.expect(200).body["items"][0];
    assert_members!(change["changed_by"], {"kind": "person", "id": "machine"});
    let key = format!("/v1/api-keys/{}", session["id"].as_str().unwrap());
    send(admin.request(Method::DELETE, &key))
        .await
        .unwrap()
        .expect(204);
    person.get("/v1/whoami").await.expect(401);
}

#[tokio::test]
async fn refuses_foreign_and_forged_tokens() {
    let on = or_skip!(SignInStage::of(Sqlite).await);
    let token = on.token("machine", "runnel:api").await;
    let [head, body, signature] = token.split('.').collect::<Vec<_>>()[..] else {
        panic!("three parts");
    };
    let other = on.token("stranger", "runnel:api").await;
    for refused in [
        on.token("machine", "other:api").await,
        format!("{head}.{body}."),
        format!("{head}.{}.{signature}", other.split('.').nth(1).unwrap()),
        format!("eyJhbGciOiJub25lIn0.{body}."),
        on.stage.client.key.clone(),
        on.stage.admin.key.clone(),
        "x".repeat(20_000),
    ] {
        on.sign_in(&refused).await.expect(401);
    }
    let stranger = on.sign_in(&other).await.expect(403).body;
    let message = stranger["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("auth.oidc.roles"), "{stranger}");
    let keys = on.stage.admin.get("/v1/api-keys").await.body.to_string();
    assert!(
        !keys.contains("stranger") && !keys.contains("machine"),
        "{keys}"
    );
}

/// Only the page at the redirect URI may connect to the provider.
#[tokio::test]
async fn console_may_exchange_codes_at_its_return() {
    let on = or_skip!(SignInStage::of(Sqlite).await);
    let settings = on.stage.client.anonymous(Method::GET, "/v1/sign-in");
    let settings = send(settings).await.unwrap().expect(200).body;
    let endpoint = format!("{}/auth", on.provider.url);
    assert_eq!(settings["authorization_endpoint"], json!(endpoint));
    for (path, sources) in [
        (
            "/console/sign-in?code=a&state=b",
            format!("connect-src 'self' {};", on.provider.url),
        ),
        ("/console/", "connect-src 'self';".to_owned()),
        ("/console/runs", "connect-src 'self';".to_owned()),
        ("/docs/", "connect-src 'self';".to_owned()),
    ] {
        let headers = on.page_headers(path).await;
        let policy = headers[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.contains(&sources), "{path}: {policy}");
        assert!(policy.contains("default-src 'none';"), "{path}: {policy}");
        let is_stored = headers[CACHE_CONTROL] != "no-store";
        assert_eq!(is_stored, !path.contains("code="), "{path}");
    }
}

#[tokio::test]
async fn sessions_open_during_an_outage_of_the_provider() {
    let mut on = or_skip!(SignInStage::of(Sqlite).await);
    let token = on.token("machine", "runnel:api").await;
    on.sign_in(&token).await.expect(201);
    on.provider.kill().await;
    on.sign_in(&token).await.expect(201);
}

#[tokio::test]
async fn provider_that_is_away_gets_503() {
    let mut on = or_skip!(SignInStage::of(Sqlite).await);
    let token = on.token("machine", "runnel:api").await;
    on.provider.kill().await;
    // The second one comes before the provider is read again.
    for _ in 0..2 {
        let refused = on.sign_in(&token).await.expect(503);
        assert_eq!(refused.body["error"]["retryable"], json!(true));
    }
    let settings = on.stage.client.anonymous(Method::GET, "/v1/sign-in");
    send(settings).await.unwrap().expect(503);
    let headers = on.page_headers("/console/sign-in").await;
    let policy = headers[CONTENT_SECURITY_POLICY].to_str().unwrap();
    assert!(policy.contains("connect-src 'self';"), "{policy}");
}

/// A person signs in at the provider's pages while the command waits.
#[tokio::test]
async fn terminal_signs_in_by_the_device_flow() {
    let on = or_skip!(SignInStage::of(Sqlite).await);
    let home = TempDirectory::new();
    let directory = home.file("");
    let command = |arguments: &[&str]| {
        let mut command = Command::new(runnel());
        command
            .args(arguments)
            .args(["--url", &on.stage.client.url])
            .env("XDG_CONFIG_HOME", &directory)
            .env_remove("RUNNEL_API_KEY")
            .current_dir(&directory)
            .kill_on_drop(true);
        command
    };
    let mut login = command(&["login"]);
    let mut login = login
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(login.stderr.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap_or_default();
    let page = line.split(' ').find(|word| word.starts_with("http://"));
    let mut person = Command::new("node");
    person
        .arg(on.project.join("person.mjs"))
        .args([page.expect(&line), "ana"]);
    assert!(
        within("the person", person.status())
            .await
            .unwrap()
            .success()
    );
    let output = within("the session", login.wait_with_output())
        .await
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        printed.contains("as ana@example.com, role admin"),
        "{printed}"
    );
    let file = home.file("runnel/session.json");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only its owner reads the session");
    let listed = command(&["agents", "list"]).output().await.unwrap();
    assert!(
        String::from_utf8_lossy(&listed.stdout).contains("main"),
        "{listed:?}"
    );
    let mut logout = Command::new(runnel());
    let logout = logout
        .arg("logout")
        .env("XDG_CONFIG_HOME", &directory)
        .output();
    assert!(logout.await.unwrap().status.success() && !file.exists());
}
