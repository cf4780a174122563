//! `runnel health`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use url::Url;

use crate::cli::config_argument::ConfigArgument;
use crate::config::{Config, reachable};
use cli::output::{self, OutputFormat};
use egress::{Egress, read_up_to};

/// Maximum size of the body that is read.
const MAX_BYTES: usize = 16 * 1024;
/// Timeout for the connection, and for the response.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
pub(super) struct HealthArguments {
    #[command(flatten)]
    config: ConfigArgument,
    /// The gateway. Default: this machine, at `server.listen` of the configuration.
    #[arg(long)]
    url: Option<String>,
}

/// Checks whether the gateway accepts new runs. For container health checks without curl.
pub(super) async fn health(
    arguments: &HealthArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let base = match &arguments.url {
        Some(url) => url.clone(),
        None => local_url(
            Config::load(arguments.config.path().as_deref())?
                .server
                .listen,
        )?,
    };
    let url = Url::parse(&base)
        .and_then(|base| base.join("/readyz"))
        .with_context(|| format!("{base} is no URL"))?;
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
        bail!("{base} names no host");
    };
    // The operator named this address, so it is the only allowed destination.
    let egress = Egress::new(vec![format!("{host}:{port}").parse()?], TIMEOUT)?;
    let asking = egress.send(egress.request(Method::GET, &url)?);
    // The client's timeout covers the connection; this one covers the response.
    let answer = tokio::time::timeout(TIMEOUT, asking).await;
    let answer = answer.map_err(|_| anyhow::anyhow!("{base} does not answer in time"))?;
    let answer = answer.with_context(|| format!("{base} does not answer"))?;
    let status = answer.status();
    let ready = status.is_success();
    let body = tokio::time::timeout(TIMEOUT, read_up_to(answer, MAX_BYTES)).await;
    // The status decides; the body only explains it.
    let body = body.ok().and_then(Result::ok).unwrap_or_default();
    let reason = serde_json::from_slice(&body).unwrap_or(Value::Null);
    if format.is_json() {
        output::document(&json!({
            "ready": ready, "http_status": status.as_u16(),
            "status": reason["status"], "detail": reason["detail"],
        }));
    } else if ready {
        output::line("ready");
    } else {
        output::fault(&not_ready(status, &reason));
    }
    Ok(if ready {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The status, and the reason in the body of `/readyz`. A proxy may answer without one.
fn not_ready(status: StatusCode, reason: &Value) -> String {
    let parts = ["status", "detail"].map(|key| reason[key].as_str());
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    let reason = match parts[..] {
        [] => String::new(),
        _ => format!(": {}", parts.join(", ")),
    };
    format!("not ready (HTTP {}){reason}", status.as_u16())
}

/// URL of a local listener.
fn local_url(listen: SocketAddr) -> anyhow::Result<String> {
    if listen.port() == 0 {
        bail!("server.listen leaves the port open; give --url");
    }
    Ok(format!("http://{}", reachable(listen)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_reason_of_body_if_any() {
        let check = |reason: Value, expected: &str| {
            assert_eq!(
                not_ready(StatusCode::SERVICE_UNAVAILABLE, &reason),
                expected
            );
        };
        check(Value::Null, "not ready (HTTP 503)");
        check(
            json!({"status": "database_takes_no_writes", "detail": "disk full"}),
            "not ready (HTTP 503): database_takes_no_writes, disk full",
        );
    }

    #[test]
    fn rejects_listeners_on_any_port() {
        assert!(local_url("127.0.0.1:0".parse().unwrap()).is_err());
    }
}
