//! `[telemetry]`: export of traces, metrics and log records.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tracing::Level;
use url::Url;

use super::endpoint::read_headers;
use super::models::number;
use super::secret_ref::SecretRef;
use super::table::{Reported, Table, name, seconds, text};
use egress::parse_plain_url;

/// `[telemetry]`.
#[derive(Clone, Debug)]
pub struct TelemetryConfig {
    /// OTLP/HTTP base URL of a collector, without `/v1/traces`. `None`: nothing is exported.
    pub otlp_endpoint: Option<Url>,
    /// Headers added to every request, by lower-case name.
    pub headers: BTreeMap<String, SecretRef>,
    /// Fraction of traces to export, unless the caller has made a sampling decision.
    pub sample_ratio: f64,
    /// Service name of the exports.
    pub service_name: String,
    /// Time between two exports of metrics. `None`: none are exported.
    pub metrics_interval: Option<Duration>,
    /// Least level of exported log records. `None`: none are exported.
    pub log_level: Option<Level>,
}

impl TelemetryConfig {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let otlp_endpoint = table.optional("otlp_endpoint", endpoint);
        let headers = read_headers(&mut table);
        let sample_ratio = table.optional("sample_ratio", number(0.0, 1.0));
        let service_name = table.optional("service_name", name);
        let metrics_interval = table.optional("metrics_interval_seconds", seconds(1.0..=3600.0));
        let log_level = table.optional("logs", log_level);
        let idle = refuse_unused_keys(
            &mut table,
            &otlp_endpoint,
            [
                ("headers", headers.as_ref().is_ok_and(|all| !all.is_empty())),
                ("sample_ratio", matches!(sample_ratio, Ok(Some(_)))),
                ("service_name", matches!(service_name, Ok(Some(_)))),
                (
                    "metrics_interval_seconds",
                    matches!(metrics_interval, Ok(Some(_))),
                ),
                ("logs", matches!(log_level, Ok(Some(_)))),
            ],
        );
        table.close()?;
        idle?;
        Ok(Self {
            otlp_endpoint: otlp_endpoint?,
            headers: headers?,
            sample_ratio: sample_ratio?.unwrap_or(1.0),
            service_name: service_name?.unwrap_or_else(|| "runnel".to_owned()),
            metrics_interval: metrics_interval?,
            log_level: log_level?,
        })
    }
}

fn log_level(value: Value) -> Result<Level, String> {
    // Less severe events include those of the export itself, which would never end.
    match text(value)?.as_str() {
        "error" => Ok(Level::ERROR),
        "warn" => Ok(Level::WARN),
        "info" => Ok(Level::INFO),
        _ => Err("must be \"error\", \"warn\" or \"info\"".to_owned()),
    }
}

/// Paths are appended to it, which would drop a query.
fn endpoint(value: Value) -> Result<Url, String> {
    let url = parse_plain_url(&text(value)?).map_err(|error| error.to_string())?;
    if url.query().is_some() {
        return Err("must have no query".to_owned());
    }
    if url.path().trim_end_matches('/').ends_with("/v1/traces") {
        return Err("must not end with /v1/traces, which is appended".to_owned());
    }
    Ok(url)
}

/// Refuses export keys that have no effect without a collector.
fn refuse_unused_keys(
    table: &mut Table<'_>,
    endpoint: &Result<Option<Url>, Reported>,
    settings: [(&str, bool); 5],
) -> Result<(), Reported> {
    if !matches!(endpoint, Ok(None)) {
        return Ok(());
    }
    let idle: Vec<_> = settings.into_iter().filter(|(_, is_set)| *is_set).collect();
    for (key, _) in &idle {
        table.fault(
            key,
            "has no effect without telemetry.otlp_endpoint; set both",
        );
    }
    if idle.is_empty() {
        Ok(())
    } else {
        Err(Reported)
    }
}
