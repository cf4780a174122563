//! Rate limit for wrong credentials by address. A credential cannot be guessed (256 random bits), but each guess
//! costs a query or a signature check.
//!
//! - An address over the limit shares one short queue with all such addresses, until the window ends.
//! - A valid credential of such an address (a proxy, for example) passes through the queue, too. It fails with
//!   429 after one second in the queue.
//! - Other addresses do not queue.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::ConnectInfo;
use http::request::Parts;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::ApiError;
use crate::error::limits::refused_too_often;
use crate::http_server::network_of;

/// Length of the counting window.
const WINDOW_SECONDS: i64 = 10;
/// Maximum number of counted addresses. Further addresses count by neighbourhood, with the same maximum; beyond
/// that they pass uncounted. Guesses are cheap to check, and an attack by many addresses must not lock out other
/// clients.
const MAX_SOURCES: usize = 4096;
/// Concurrent checks for addresses over the limit.
const QUEUE_PERMITS: usize = 2;
/// Maximum wait in the queue.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(1);

/// The network of a caller: an IPv4 address, or a /64 of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientNetwork(Option<IpAddr>);

impl ClientNetwork {
    pub fn of(parts: &Parts) -> Self {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        Self(peer.map(|ConnectInfo(peer)| network_of(peer.ip())))
    }
}

/// Counts of wrong credentials in this process.
pub struct AuthRateLimit {
    max_failures: u32,
    window: Mutex<CountingWindow>,
    /// The window in which some address went over the limit. In other windows no lookup is needed.
    busy_window: AtomicI64,
    queue: Semaphore,
}

#[derive(Default)]
struct CountingWindow {
    number: i64,
    counts: HashMap<ClientNetwork, u32>,
    neighbourhoods: HashMap<IpAddr, u32>,
}

impl CountingWindow {
    fn count(&self, source: ClientNetwork) -> u32 {
        // An own entry counts only that address; the shared one is for addresses that came after the table was full.
        let own_count = self.counts.get(&source);
        let shared = || self.neighbourhoods.get(&neighbourhood_of(source.0?));
        own_count.or_else(shared).copied().unwrap_or(0)
    }

    /// Counts one more and returns the count; `None` if the tables are full.
    fn add(&mut self, source: ClientNetwork) -> Option<u32> {
        let (counts, nearby) = (&mut self.counts, &mut self.neighbourhoods);
        // An entry that exists continues, so a full table does not reset counts.
        let count = if counts.len() < MAX_SOURCES || counts.contains_key(&source) {
            counts.entry(source).or_default()
        } else {
            let neighbourhood = neighbourhood_of(source.0?);
            if nearby.len() >= MAX_SOURCES && !nearby.contains_key(&neighbourhood) {
                return None;
            }
            nearby.entry(neighbourhood).or_default()
        };
        *count = count.saturating_add(1);
        Some(*count)
    }
}

/// The usual allocation of one network operator: a /24 of IPv4 or a /48 of IPv6.
fn neighbourhood_of(network: IpAddr) -> IpAddr {
    match network {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() >> 8 << 8).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 80 << 80).into(),
    }
}

impl AuthRateLimit {
    /// `max_failures`: wrong credentials allowed per address in ten seconds.
    pub fn new(max_failures: u32) -> Self {
        Self {
            max_failures,
            window: Mutex::default(),
            busy_window: AtomicI64::new(i64::MIN),
            queue: Semaphore::new(QUEUE_PERMITS),
        }
    }

    /// Waits for a queue permit if the address is over the limit; otherwise returns `None` at once.
    pub async fn pass(
        &self,
        source: ClientNetwork,
        now_seconds: i64,
    ) -> Result<Option<SemaphorePermit<'_>>, ApiError> {
        let number = now_seconds.div_euclid(WINDOW_SECONDS);
        // The atomic answers for nearly all requests without the lock.
        if self.busy_window.load(Ordering::Relaxed) != number || !self.has_too_many(source, number)
        {
            return Ok(None);
        }
        match tokio::time::timeout(QUEUE_TIMEOUT, self.queue.acquire()).await {
            Ok(Ok(permit)) => Ok(Some(permit)),
            // The same response as a wrong credential over the limit: the queue reveals nothing.
            _ => Err(refused_too_often()),
        }
    }

    fn has_too_many(&self, source: ClientNetwork, number: i64) -> bool {
        let window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.number == number && window.count(source) >= self.max_failures
    }

    /// Counts a wrong credential and returns the error. Beyond the limit nothing is logged.
    pub fn refuse(&self, source: ClientNetwork, now_seconds: i64, log: impl FnOnce()) -> ApiError {
        let number = now_seconds.div_euclid(WINDOW_SECONDS);
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        // A queued request may count one window late. A larger difference means that the clock was set back.
        if number != window.number && number != window.number - 1 {
            *window = CountingWindow {
                number,
                ..CountingWindow::default()
            };
        }
        let number = window.number;
        let count = window.add(source).unwrap_or(0);
        // All requests need this lock, so it is not held while a log line is written.
        drop(window);
        if count > self.max_failures {
            return refused_too_often();
        }
        log();
        if count == self.max_failures {
            // From now on, `pass` looks addresses up until the window ends.
            self.busy_window.store(number, Ordering::Relaxed);
            tracing::warn!(
                address = source.0.map(tracing::field::display),
                refused = count,
                "an address sent too many wrong credentials, its requests queue until the window ends"
            );
        }
        ApiError::unauthenticated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str) -> ClientNetwork {
        ClientNetwork(Some(network_of(address.parse().unwrap())))
    }

    fn status(error: ApiError) -> u16 {
        error.into_parts().0
    }

    #[tokio::test]
    async fn limits_only_addresses_over_limit_until_window_ends() {
        let auth_rate_limit = AuthRateLimit::new(3);
        let (bad, good) = (source("192.0.2.1"), source("192.0.2.2"));
        for _ in 0..3 {
            assert!(auth_rate_limit.pass(bad, 100).await.unwrap().is_none());
            assert_eq!(status(auth_rate_limit.refuse(bad, 100, || {})), 401);
        }
        let permit = auth_rate_limit.pass(bad, 109).await.unwrap();
        assert!(permit.is_some(), "it waits");
        assert_eq!(status(auth_rate_limit.refuse(bad, 109, || {})), 429);
        assert!(auth_rate_limit.pass(good, 109).await.unwrap().is_none());
        assert_eq!(status(auth_rate_limit.refuse(good, 109, || {})), 401);
        drop(permit);
        assert!(auth_rate_limit.pass(bad, 110).await.unwrap().is_none());
        assert_eq!(status(auth_rate_limit.refuse(bad, 110, || {})), 401);
    }

    #[tokio::test]
    async fn queue_is_short_and_times_out() {
        let auth_rate_limit = AuthRateLimit::new(1);
        let bad = source("192.0.2.1");
        auth_rate_limit.refuse(bad, 100, || {});
        let mut permits = Vec::new();
        for _ in 0..QUEUE_PERMITS {
            permits.push(auth_rate_limit.pass(bad, 100).await.unwrap().unwrap());
        }
        assert_eq!(
            status(auth_rate_limit.pass(bad, 100).await.unwrap_err()),
            429
        );
        permits.pop();
        assert!(auth_rate_limit.pass(bad, 100).await.unwrap().is_some());
    }

    #[test]
    fn counts_by_site_then_by_neighbourhood() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::2:0:0:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        let auth_rate_limit = AuthRateLimit::new(5);
        for number in 0..u32::try_from(MAX_SOURCES).unwrap() + 100 {
            let address = IpAddr::from(Ipv4Addr::from_bits(number));
            auth_rate_limit.refuse(ClientNetwork(Some(address)), 100, || {});
        }
        let number = 100 / WINDOW_SECONDS;
        let window = auth_rate_limit.window.lock().unwrap();
        assert_eq!(window.counts.len(), MAX_SOURCES);
        assert_eq!(window.neighbourhoods.len(), 1);
        drop(window);
        assert!(auth_rate_limit.has_too_many(source("0.0.16.250"), number));
        assert!(!auth_rate_limit.has_too_many(source("192.0.2.1"), number));
        assert!(!auth_rate_limit.has_too_many(source("2001:db8::1"), number));
    }

    #[test]
    fn late_refusals_keep_window_counts() {
        let auth_rate_limit = AuthRateLimit::new(2);
        let (bad, late) = (source("192.0.2.1"), source("192.0.2.2"));
        for _ in 0..2 {
            auth_rate_limit.refuse(bad, 110, || {});
        }
        auth_rate_limit.refuse(late, 109, || {});
        assert!(auth_rate_limit.has_too_many(bad, 11));
        auth_rate_limit.refuse(late, 50, || {});
        assert!(
            !auth_rate_limit.has_too_many(bad, 11),
            "the clock was set back"
        );
    }
}
