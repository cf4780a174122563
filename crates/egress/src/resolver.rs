//! Name resolution for the client; rejects names with forbidden addresses.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::net::lookup_host;

use super::policy::Policy;

type Answer = BoxFuture<'static, io::Result<Vec<SocketAddr>>>;

/// Resolver function, replaced in tests.
#[derive(Clone)]
pub(super) struct Lookup(Arc<dyn Fn(&str) -> Answer + Send + Sync>);

impl Lookup {
    /// The operating system's resolver.
    pub(super) fn of_the_system() -> Self {
        Self::by(|name| {
            let name = name.to_owned();
            // Port 0: the client fills in the URL's port.
            Box::pin(async move { Ok(lookup_host((name.as_str(), 0)).await?.collect()) })
        })
    }

    pub(super) fn by(lookup: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        Self(Arc::new(lookup))
    }

    /// Addresses of a name, each with port 0.
    pub(super) async fn addresses(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        (self.0)(name).await
    }
}

impl fmt::Debug for Lookup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Lookup")
    }
}

/// Checks every address of a name before the first is dialled. Literal addresses do not pass through here.
pub(super) struct GuardedResolver(pub(super) Arc<Policy>, pub(super) Lookup);

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (policy, lookup) = (Arc::clone(&self.0), self.1.clone());
        Box::pin(async move {
            let addresses = lookup.addresses(name.as_str()).await?;
            if addresses.is_empty() {
                return Err(io::Error::from(io::ErrorKind::NotFound).into());
            }
            policy.check_resolved(name.as_str(), &addresses)?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}
