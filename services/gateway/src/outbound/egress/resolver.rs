//! Resolves names for the client and refuses those that lead inside.

use std::io;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::net::lookup_host;

use super::policy::Policy;

/// Judges every address of a name before the first one is dialled. Names only: literal addresses
/// never come here.
pub(super) struct GuardedResolver(pub(super) Arc<Policy>);

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = Arc::clone(&self.0);
        Box::pin(async move {
            // Port 0: the client puts in the port of the URL.
            let addresses: Vec<_> = lookup_host((name.as_str(), 0)).await?.collect();
            if addresses.is_empty() {
                return Err(io::Error::from(io::ErrorKind::NotFound).into());
            }
            policy.check_resolved(name.as_str(), &addresses)?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}
