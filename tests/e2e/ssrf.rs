//! Server-side request forgery: permitted addresses of outbound requests, and details in errors. O1–O5, O7–O16.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::support::client::Client;
use crate::support::gateway::{Agent, unused_loopback_address};
use crate::support::programs::runnel;
use crate::support::repository::repository_file;
use crate::support::runner::{SECRET, StubRunner, manifest};
use crate::support::script::{answer, sse};
use crate::support::{OwnStage, Sqlite, Stage, TempDirectory, run};

const CORPUS: &str = include_str!("../fixtures/ssrf.txt");
const ENDPOINTS: &str = "/v1/runner-endpoints";

fn corpus() -> Vec<String> {
    let lines = CORPUS.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A server that sends one fixed response to each connection, and counts connections.
struct CountingServer {
    address: std::net::SocketAddr,
    count: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl CountingServer {
    async fn sending(words: &'static [u8]) -> Self {
        Self::with(move |mut stream| async move {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(words).await;
        })
        .await
    }

    async fn with<F: Future<Output = ()> + Send + 'static>(
        serve: impl Fn(TcpStream) -> F + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                open.spawn(serve(stream));
            }
        });
        Self {
            address,
            count,
            _tasks: tasks,
        }
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

/// An address without a listener. It is unique, so that no other test listens there.
async fn closed_port() -> std::net::SocketAddr {
    let listener = TcpListener::bind(unused_loopback_address()).await.unwrap();
    listener.local_addr().unwrap()
}

/// A stage that may reach its stub runner and the listed addresses.
async fn stage_allowing(more: &[String]) -> Stage {
    let runner = StubRunner::start().await;
    let stub = runner.url.trim_start_matches("http://").to_owned();
    let rules: Vec<_> = more
        .iter()
        .chain([&stub])
        .map(|rule| format!("{rule:?}"))
        .collect();
    let egress = format!("allow = [{}]", rules.join(", "));
    Stage::of(Sqlite, runner, |config| config.egress = egress)
        .await
        .unwrap()
}

async fn endpoint_names(admin: &Client) -> Vec<Value> {
    let list = admin.get(ENDPOINTS).await.body;
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["name"].clone()).collect()
}

#[tokio::test]
async fn rejects_every_hostile_url_of_the_corpus() {
    let stage = stage_allowing(&[]).await;
    let admin = stage.admin.clone();
    let urls = corpus();
    for url in &urls {
        for path in [ENDPOINTS, "/v1/runner-endpoints?dry_run=true"] {
            let refused = admin
                .create(path, &json!({"name": "x", "base_url": url}))
                .await;
            let outcome = (refused.status, refused.detail("pointer"));
            assert_eq!(
                outcome,
                (400, &json!("/base_url")),
                "{url:?}: {}",
                refused.body
            );
            assert_lacks!(refused.body.to_string(), "secret@");
        }
    }
    assert_eq!(endpoint_names(&admin).await, ["stub"]);

    for (table, key) in [
        ("runner_endpoints", "base_url"),
        ("tools", "url"),
        ("mcp_servers", "url"),
    ] {
        // URLs are validated first, then the resolved addresses.
        let mut left = urls.clone();
        loop {
            let outcome = check_config_with(table, key, &left).await;
            let mut index = 0..;
            let before = left.len();
            left.retain(|_| {
                let key_path = format!("{table}[{}].{key}", index.next().unwrap());
                !outcome.contains(&key_path)
            });
            if left.len() == before {
                break;
            }
        }
        assert!(left.is_empty(), "is allowed in {table}: {left:?}");
    }
}

/// The output of `check-config` for a file with these URLs.
async fn check_config_with(table: &str, key: &str, urls: &[String]) -> String {
    let directory = TempDirectory::new();
    let secret = directory.write("secret", SECRET);
    let mut file = String::new();
    for (index, url) in urls.iter().enumerate() {
        // A JSON string is a TOML string, except for DEL.
        let url = json!(url).to_string().replace('\u{7f}', "\\u007f");
        let secret = secret.display();
        let identity = if table == "tools" {
            "tool_name"
        } else {
            "name"
        };
        let more = if table == "runner_endpoints" {
            format!("secret = \"file:{secret}\"\n")
        } else {
            String::new()
        };
        let entry = format!("[[{table}]]\n{identity} = \"e{index}\"\n{key} = {url}\n{more}");
        file.push_str(&entry);
    }
    let file = directory.write("runnel.toml", &file);
    let checked = run(Command::new(runnel())
        .args(["check-config", "--config"])
        .arg(file))
    .await;
    checked.stdout + &checked.stderr
}

/// The gateway's own address, even if all of loopback is allowed.
#[tokio::test]
async fn rejects_own_address_as_endpoint() {
    let stage = Stage::new().await;
    let admin = stage.admin.clone();
    let spec = json!({"name": "own", "base_url": stage.client.url});
    for path in [ENDPOINTS, "/v1/runner-endpoints?dry_run=true"] {
        let refused = admin.create(path, &spec).await;
        assert_eq!(refused.status, 400, "{path}: {}", refused.body);
        assert_eq!(refused.detail("pointer"), "/base_url");
    }
    let listen = stage.client.url.trim_start_matches("http://");
    let directory = TempDirectory::new();
    let secret = directory.write("secret", SECRET);
    let file = format!(
        "[server]\nlisten = \"{listen}\"\n[egress]\nallow = [\"127.0.0.0/8\"]\n[[runner_endpoints]]\n\
         name = \"own\"\nbase_url = \"http://{listen}\"\nsecret = \"file:{}\"\n",
        secret.display()
    );
    let file = directory.write("runnel.toml", &file);
    let checked = run(Command::new(runnel())
        .args(["check-config", "--config"])
        .arg(file))
    .await;
    let output = checked.stdout + &checked.stderr;
    assert!(output.contains("runner_endpoints[0].base_url"), "{output}");
    assert_contains!(output, "the gateway listens there itself");
}

#[tokio::test]
async fn ignores_proxy_of_the_environment() {
    let trap =
        CountingServer::sending(b"HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\n\r\n").await;
    let proxy = format!("http://{}", trap.address);
    let stage = Stage::with(|config| {
        for name in [
            "http_proxy",
            "HTTP_PROXY",
            "https_proxy",
            "HTTPS_PROXY",
            "all_proxy",
            "ALL_PROXY",
        ] {
            config.environment.push((name, proxy.clone()));
        }
        config.environment.push(("no_proxy", String::new()));
    })
    .await;
    let outcome = stage.play(|run| sse(run.talk(1).concat())).await;
    assert_eq!(outcome.ending(), "completed");
    let admin = stage.admin.clone();
    // With a proxy, the proxy would resolve this invalid name.
    let https = format!("https://{}.invalid", "a".repeat(64));
    let answer = admin
        .create(ENDPOINTS, &json!({"name": "gone", "base_url": https}))
        .await;
    assert_eq!(answer.body["health"], "unreachable", "{}", answer.body);
    assert_eq!(trap.count(), 0);
}

/// The response details of registering and refreshing an endpoint at this address.
async fn probe(admin: &Client, name: &str, base_url: &str) -> Vec<Value> {
    let without_ids = |mut body: Value| {
        let members = [
            "id",
            "name",
            "base_url",
            "discovered_at",
            "next_check_at",
            "secret",
        ];
        for member in members {
            body[member] = Value::Null;
        }
        body
    };
    let registered = admin
        .create(ENDPOINTS, &json!({"name": name, "base_url": base_url}))
        .await;
    assert_eq!(registered.status, 201, "{}", registered.body);
    let path = format!("{ENDPOINTS}/{}", registered.body["id"].as_str().unwrap());
    let refreshed = admin.create(&format!("{path}/refresh"), &json!({})).await;
    let history = admin.get(&format!("{path}/health")).await;
    let reason = history.body["items"][0]["reason"].clone();
    vec![
        without_ids(registered.body),
        without_ids(refreshed.body),
        reason,
    ]
}

#[tokio::test]
async fn probe_errors_reveal_no_port_state() {
    let closed = closed_port().await;
    let ssh = CountingServer::sending(b"SSH-2.0-OpenSSH_9.9\r\n").await;
    let mute = CountingServer::sending(b"").await;
    let redis = CountingServer::sending(b"-ERR unknown command 'GET'\r\n").await;
    let stage = OwnStage::new().await;
    let admin = stage.admin.clone();
    let expected = probe(&admin, "closed", &format!("http://{closed}")).await;
    assert_eq!(expected[0]["health"], "unreachable");
    for (name, address) in [
        ("ssh", ssh.address),
        ("mute", mute.address),
        ("redis", redis.address),
    ] {
        for scheme in ["http", "https"] {
            let url = format!("{scheme}://{address}");
            let probe_result = probe(&admin, &format!("{name}-{scheme}"), &url).await;
            assert_eq!(probe_result, expected, "{name} {scheme}");
        }
    }
    assert!(ssh.count() > 0 && mute.count() > 0 && redis.count() > 0);
    // The operator's log has the cause.
    let log = stage.gateway.log();
    assert_contains!(log, "could not connect", "the exchange failed");
}

#[tokio::test]
async fn responses_of_internal_services_are_not_returned() {
    const CANARY: &str = "the-services-own-secret";
    let stage = OwnStage::new().await;
    let admin = stage.admin.clone();
    for (status, content_type) in [
        ("200 OK", "text/html"),
        ("200 OK", "text/plain"),
        ("200 OK", "application/xml"),
        ("200 OK", "application/octet-stream"),
        ("200 OK", "text/event-stream-not"),
        ("401 Unauthorized", "text/event-stream"),
        ("403 Forbidden", "application/json"),
        ("500 Oops", "text/event-stream"),
        ("302 Found", "text/event-stream"),
    ] {
        let headers = format!(
            "content-type: {content_type}\r\nlocation: http://127.0.0.1:1/{CANARY}\r\n\
             refresh: 0;url=http://127.0.0.1:1/{CANARY}\r\nx-secret: {CANARY}\r\n\
             set-cookie: session={CANARY}\r\n"
        );
        let outcome = stage
            .play(move |_| {
                answer(
                    status,
                    &headers,
                    format!("data: {{\"password\":\"{CANARY}\"}}\n\n"),
                )
            })
            .await;
        assert_eq!(outcome.run["status"], "failed", "{status} {content_type}");
        let message = format!(
            "{} {:?} {:?}",
            outcome.run, outcome.ledger, outcome.rejections
        );
        assert!(
            !message.contains(CANARY),
            "{status} {content_type}: {message}"
        );
    }
    let page =
        format!("HTTP/1.1 200 OK\r\nx: {CANARY}\r\nconnection: close\r\n\r\n<p>{CANARY}</p>");
    let page: &'static [u8] = page.leak().as_bytes();
    let other = CountingServer::sending(page).await;
    let url = format!("http://{}", other.address);
    let answer = admin
        .create(ENDPOINTS, &json!({"name": "page", "base_url": url}))
        .await;
    assert_eq!(answer.body["health"], "unhealthy", "{}", answer.body);
    assert!(!answer.body.to_string().contains(CANARY), "{}", answer.body);
    assert!(!stage.gateway.log().contains(CANARY));
}

#[tokio::test]
async fn rejects_configured_framing_headers() {
    let names = [
        "Host",
        "content-length",
        "Transfer-Encoding",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "proxy-authorization",
        "proxy-connection",
        "content-type",
        "accept-encoding",
        "http2-settings",
        "webhook-id",
        "webhook-signature",
        "runnel-run-id",
        "sec-fetch-mode",
        "a b",
        "a:b",
        "x\\r\\ny",
        "",
        "\u{fc}",
    ];
    let headers = names.map(|name| (name, "GOOD"));
    let output = check_headers(&headers, &[("GOOD", "fine")]).await;
    for (index, name) in names.iter().enumerate() {
        assert!(
            output.contains(&format!("runner_endpoints[{index}].headers")),
            "{name}: {output}"
        );
    }
}

#[tokio::test]
async fn rejects_header_values_with_line_ends() {
    let values = [
        ("LF", "a\nx-injected: 1"),
        ("CR", "a\rx-injected: 1"),
        ("CRLF", "a\r\n\r\nGET / HTTP/1.1"),
        ("UNIT", "a\u{1f}b"),
    ];
    let headers = values.map(|(variable, _)| ("x-value", variable));
    let output = check_headers(&headers, &values).await;
    for (index, (name, _)) in values.iter().enumerate() {
        assert!(
            output.contains(&format!("runner_endpoints[{index}].headers.x-value")),
            "{name}: {output}"
        );
    }
    assert!(!output.contains("x-injected"), "{output}");
}

/// The output of `check-config` for endpoints with one header each, whose value comes from a variable.
async fn check_headers(headers: &[(&str, &str)], environment: &[(&str, &str)]) -> String {
    let directory = TempDirectory::new();
    let secret = directory.write("secret", SECRET);
    let mut file = String::new();
    for (index, (header, variable)) in headers.iter().enumerate() {
        let entry = format!(
            "[[runner_endpoints]]\nname = \"e{index}\"\nbase_url = \"https://runner.example\"\n\
             secret = \"file:{}\"\nheaders = {{ \"{header}\" = \"env:{variable}\" }}\n",
            secret.display()
        );
        file.push_str(&entry);
    }
    let file = directory.write("runnel.toml", &file);
    let mut command = Command::new(runnel());
    command.args(["check-config", "--config"]).arg(file);
    let checked = run(command.envs(environment.iter().copied())).await;
    checked.stdout + &checked.stderr
}

// --- TLS ---

fn fixture(name: &str) -> PathBuf {
    repository_file("tests/fixtures/tls").join(name)
}

/// A TLS server that lists one runner to clients which trust its certificate.
async fn tls_runner(certificate: &str, runner_id: &str) -> CountingServer {
    let chain = CertificateDer::pem_file_iter(fixture(&format!("{certificate}.pem"))).unwrap();
    let chain: Vec<_> = chain.map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(fixture(&format!("{certificate}.key"))).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let body = json!({"runners": [manifest(runner_id)]}).to_string();
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    CountingServer::with(move |stream| {
        let (acceptor, answer) = (acceptor.clone(), answer.clone());
        async move {
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn rejects_invalid_certificates() {
    let authority = fixture("authority.pem").display().to_string();
    let stage = Stage::with(|config| config.environment.push(("SSL_CERT_FILE", authority))).await;
    let admin = stage.admin.clone();
    for certificate in [
        "good",
        "expired",
        "early",
        "elsewhere",
        "nameless",
        "client",
        "self-signed",
    ] {
        let runner = tls_runner(certificate, "plugin:test/tls/default").await;
        let url = format!("https://{}", runner.address);
        let answer = admin
            .create(ENDPOINTS, &json!({"name": certificate, "base_url": url}))
            .await;
        let expected = if certificate == "good" {
            "healthy"
        } else {
            "unreachable"
        };
        assert_eq!(
            answer.body["health"], expected,
            "{certificate}: {}",
            answer.body
        );
        assert!(runner.count() > 0, "{certificate}: no connection");
    }
    // Without the CA in the configuration, the valid certificate is rejected.
    let stage = Stage::new().await;
    let admin = stage.admin.clone();
    let runner = tls_runner("good", "plugin:test/tls/default").await;
    let url = format!("https://{}", runner.address);
    let answer = admin
        .create(ENDPOINTS, &json!({"name": "good", "base_url": url}))
        .await;
    assert_eq!(answer.body["health"], "unreachable", "{}", answer.body);
}

// --- details in client errors ---

#[tokio::test]
async fn client_errors_reveal_no_address() {
    let closed = closed_port().await;
    let ssh = CountingServer::sending(b"SSH-2.0-OpenSSH_9.9\r\n").await;
    let tls = tls_runner("self-signed", "plugin:test/tls/default").await;
    let stage = Stage::with(|config| {
        let endpoints = [
            ("closed", format!("http://{closed}")),
            ("ssh", format!("http://{}", ssh.address)),
            ("tls", format!("https://{}", tls.address)),
        ];
        for ((name, url), runner_id) in endpoints.into_iter().zip([
            "plugin:test/closed/default",
            "plugin:test/ssh/default",
            "plugin:test/tls/default",
        ]) {
            let entry = format!(
                "[[runner_endpoints]]\nname = \"{name}\"\nbase_url = \"{url}\"\nsecret = \"env:SECRET\"\n\
                 manifests = [{{ id = \"{runner_id}\", name = \"default\", label = {{ en_US = \"x\" }}, \
                 permissions = {{ history = [\"page\"] }} }}]\n",
            );
            config.rest.push_str(&entry);
        }
        config.environment.push(("SECRET", SECRET.to_owned()));
        for (name, event, runner_id) in [
            ("a-closed", "probe.closed", "plugin:test/closed/default"),
            ("a-ssh", "probe.ssh", "plugin:test/ssh/default"),
            ("a-tls", "probe.tls", "plugin:test/tls/default"),
        ] {
            config.agents.push(Agent { name, event_types: event, runner_id, ..Agent::default() });
        }
    })
    .await;
    for (event, code, address) in [
        ("probe.closed", "runner.unreachable", closed),
        ("probe.tls", "runner.unreachable", tls.address),
        // Bytes were sent, so the run may have started; the error reports only that.
        ("probe.ssh", "runner.stream_truncated", ssh.address),
    ] {
        let posted = stage.client.post(&json!({"event_type": event})).await;
        let outcome = stage.outcome(&posted.run_id()).await;
        assert_eq!(outcome.ending(), format!("failed {code}"));
        let mut run = outcome.run.clone();
        let [ip, port] = [address.ip().to_string(), address.port().to_string()];
        // Check these members only, because ids and times also contain digits.
        for member in ["error", "output", "metadata"] {
            let member_text = run[member].take().to_string();
            assert_lacks!(member_text, &port, &ip);
            assert_lacks!(member_text.to_lowercase(), "certificate");
        }
    }
}
