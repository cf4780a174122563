//! Finds model servers of this machine at their usual ports. They are only offered: a model may load for minutes.

use std::time::Duration;

use futures_util::future::join_all;

use super::model::first_listed;

/// Default ports of common model servers.
pub(crate) const USUAL_PORTS: [u16; 3] = [11434, 1234, 8000];
/// Timeout of the search. It delays the start of the playground.
const TIMEOUT: Duration = Duration::from_millis(150);

/// A model server that listed a model.
pub(crate) struct LocalModel {
    pub(crate) base_url: String,
    pub(crate) model: String,
}

/// The first server that answers in time, in the order of the ports.
pub(super) async fn find(ports: &[u16]) -> Option<LocalModel> {
    // All ports at once; the result keeps their order.
    let found = join_all(ports.iter().map(|port| ask(*port))).await;
    found.into_iter().flatten().next()
}

async fn ask(port: u16) -> Option<LocalModel> {
    let base_url = format!("http://127.0.0.1:{port}/v1");
    let rule = format!("127.0.0.1:{port}");
    let listed = first_listed(base_url.parse().ok()?, Some(&rule), None);
    let model = tokio::time::timeout(TIMEOUT, listed).await.ok()?.ok()?;
    Some(LocalModel { base_url, model })
}
