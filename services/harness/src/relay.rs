//! The credentials relay: a loopback port through which harnesses reach models and the MCP server of their run.
//!
//! A harness holds a key of this relay, not the run token. The key opens the model faces and the MCP face alone, and
//! ends with the run. The relay puts the run token in its place, renewed as often as a long turn needs it.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse as _, Json, Response};
use futures_util::{StreamExt as _, TryStreamExt as _};
use runner_kit::host::Host;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::usage::{Reader, Spent, Usage};

/// Paths of the host API that a key opens, and the folders below which it opens everything.
const OPEN: [&str; 3] = ["/openai/v1/", "/anthropic/", MCP];
const MCP: &str = "/mcp";
/// Headers of one connection, or that this relay sets.
const OWN: [HeaderName; 4] = [HOST, CONNECTION, TRANSFER_ENCODING, AUTHORIZATION];
/// A refusal that is looked at.
const REFUSAL_BYTES: usize = 64 * 1024;
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The relay of one service. Clones share its keys.
#[derive(Clone)]
pub struct Relay(Arc<Shared>);

struct Shared {
    address: SocketAddr,
    runs: Mutex<HashMap<String, OpenRun>>,
    client: reqwest::Client,
}

/// What a key stands for.
#[derive(Clone)]
struct OpenRun {
    host: Host,
    usage: Usage,
    spent: Spent,
}

/// A key of one run. Dropping it closes the key.
pub(crate) struct Opened {
    relay: Relay,
    key: String,
    usage: Usage,
    spent: Spent,
}

impl Relay {
    /// Listens on a free loopback port until `stop` fires.
    pub async fn start(stop: CancellationToken) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(io::Error::other)?;
        let relay = Self(Arc::new(Shared {
            address: listener.local_addr()?,
            runs: Mutex::default(),
            client,
        }));
        let router = Router::new().fallback(forward).with_state(relay.clone());
        tokio::spawn(async move {
            let serving = axum::serve(listener, router);
            let _ = serving.with_graceful_shutdown(stop.cancelled_owned()).await;
        });
        Ok(relay)
    }

    /// The port that a harness may connect to.
    pub(crate) fn port(&self) -> u16 {
        self.0.address.port()
    }

    /// Opens a key for the run of this host.
    pub(crate) fn open(&self, host: Host) -> Opened {
        let key = format!("rk_{}", Uuid::new_v4().simple());
        let (usage, spent) = (Usage::default(), Spent::default());
        let run = OpenRun {
            host,
            usage: usage.clone(),
            spent: spent.clone(),
        };
        self.runs().insert(key.clone(), run);
        Opened {
            relay: self.clone(),
            key,
            usage,
            spent,
        }
    }

    // The map is whole after any panic.
    fn runs(&self) -> MutexGuard<'_, HashMap<String, OpenRun>> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Opened {
    /// The key, a secret of the run.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The tokens that were used under the key.
    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Tells that a budget of the run is used up.
    pub(crate) fn spent(&self) -> &Spent {
        &self.spent
    }

    /// The base URL of a face, such as `/openai/v1`.
    pub(crate) fn url(&self, face: &str) -> String {
        format!("http://{}{face}", self.relay.0.address)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.relay.runs().remove(&self.key);
    }
}

async fn forward(State(relay): State<Relay>, request: Request) -> Response {
    let run = key_of(request.headers()).and_then(|key| relay.runs().get(key).cloned());
    let Some(OpenRun { host, usage, spent }) = run else {
        return refusal(
            StatusCode::UNAUTHORIZED,
            "the key opens nothing: its run is over",
        );
    };
    let path = request.uri().path();
    let is_open = OPEN.iter().any(|open| match open.strip_suffix('/') {
        Some(_) => path.starts_with(open),
        None => path == *open,
    });
    if !is_open
        || path.contains("..")
        || path.contains('%') && path.to_ascii_lowercase().contains("%2e")
    {
        return refusal(
            StatusCode::NOT_FOUND,
            "a harness reaches model faces and the MCP server alone",
        );
    }
    let is_mcp = path == MCP;
    let path = request
        .uri()
        .path_and_query()
        .map_or(path, |path| path.as_str());
    let url = format!("{}{path}", host.base_url());
    let token = host.token().await;
    let (parts, body) = request.into_parts();
    let headers = passed(&parts.headers);
    let sent = relay
        .0
        .client
        .request(parts.method, url)
        .headers(headers)
        .bearer_auth(token)
        .body(reqwest::Body::wrap_stream(body.into_data_stream()))
        .send()
        .await;
    match sent {
        Ok(answer) => {
            let (status, headers) = (answer.status(), passed(answer.headers()));
            if status == StatusCode::TOO_MANY_REQUESTS {
                return refused((status, headers), answer, &spent).await;
            }
            if is_mcp && status.is_success() {
                usage.see_tools();
            }
            let mut reader = Reader::new(usage);
            let bytes = answer
                .bytes_stream()
                .inspect_ok(move |bytes| reader.read(bytes));
            (status, headers, Body::from_stream(bytes)).into_response()
        }
        Err(error) => {
            let error = error.without_url();
            tracing::warn!(%error, "the gateway cannot be reached for a harness");
            refusal(StatusCode::BAD_GATEWAY, "the gateway cannot be reached")
        }
    }
}

/// Passes a refusal on; a budget that is used up ends the run, for harnesses ask again and again.
async fn refused(
    (status, headers): (StatusCode, HeaderMap),
    answer: reqwest::Response,
    spent: &Spent,
) -> Response {
    let mut body = Vec::new();
    let mut bytes = answer.bytes_stream();
    while let Some(Ok(part)) = bytes.next().await {
        body.extend_from_slice(&part);
        if body.len() > REFUSAL_BYTES {
            break;
        }
    }
    spent.see(&body);
    (status, headers, body).into_response()
}

fn key_of(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
    bearer.or_else(|| headers.get(API_KEY)?.to_str().ok())
}

/// Headers that go through: all but those of one connection and of credentials.
fn passed(headers: &HeaderMap) -> HeaderMap {
    let kept = headers
        .iter()
        .filter(|(name, _)| !OWN.contains(name) && **name != API_KEY && **name != CONTENT_LENGTH);
    kept.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// An error that the clients of all faces read.
fn refusal(status: StatusCode, message: &str) -> Response {
    let error = json!({"type": "error", "error": {"type": "authentication_error", "code": "harness.refused", "message": message}});
    (status, Json(error)).into_response()
}
