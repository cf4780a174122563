//! Lines of `egress.allow` for addresses without public HTTPS.

use std::collections::BTreeSet;
use std::time::Duration;

use egress::{Egress, EgressError, parse_plain_url};
use langbot::migrate::{MigrationTable, TableKind};
use serde_json::Value;

/// No connection is made.
const CONNECT: Duration = Duration::from_secs(1);

/// Rules that the gateway needs for these tables, without duplicates. Names are not resolved.
pub(super) fn lines_for_tables(tables: &[MigrationTable]) -> Result<Vec<String>, EgressError> {
    let urls = tables.iter().filter_map(|table| {
        let member = match table.kind {
            TableKind::RunnerEndpoint | TableKind::ModelProvider => "base_url",
            TableKind::McpServer => "url",
            _ => return None,
        };
        table.members.get(member).and_then(Value::as_str)
    });
    lines_for(urls)
}

/// Rules that a guarded client needs for these URLs.
pub(super) fn lines_for<'u>(
    urls: impl Iterator<Item = &'u str>,
) -> Result<Vec<String>, EgressError> {
    let egress = Egress::new(Vec::new(), CONNECT)?;
    let lines = urls.filter_map(|raw| {
        let url = parse_plain_url(raw).ok()?;
        // The URL was checked with its table.
        let (host, port) = url.host_str().zip(url.port_or_known_default())?;
        egress
            .check_url(raw)
            .is_err()
            .then(|| format!("{host}:{port}"))
    });
    // Sorted, so that a repeated migration writes the same lines.
    let lines: BTreeSet<_> = lines.collect();
    Ok(lines.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_https_needs_no_rule() {
        let urls = [
            "https://api.openai.com/v1",
            "http://127.0.0.1:9120",
            "http://127.0.0.1:9120/v1",
            "https://models.internal:8443",
            "no url",
        ];
        let lines = lines_for(urls.into_iter()).unwrap();
        assert_eq!(lines, ["127.0.0.1:9120", "models.internal:8443"]);
    }
}
