//! How often one address has been refused. A credential cannot be guessed (256 random bits), but each
//! guess costs a look into a table or a signature: whoever guesses too often waits in one line with all
//! others who do, and is told so. A good credential of another address is judged at once. One of the same
//! address (a proxy's, say) waits in that line too until the window is over: it counts when its turn
//! comes, and is answered by 429 when that takes more than a second.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::ConnectInfo;
use http::request::Parts;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::api::error::ApiError;

/// Refusals are counted for so long.
const WINDOW_SECONDS: i64 = 10;
/// Addresses that are told apart; all further ones count as one.
const SOURCES: usize = 4096;
/// Credentials that are judged at the same time for those who were refused too often.
const LINE: usize = 2;
/// How long one of those waits for its turn.
const PATIENCE: Duration = Duration::from_secs(1);

/// The network of a caller: an IPv4 address, or the 64 bits of a network that one site has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Source(Option<IpAddr>);

impl Source {
    pub(super) fn of(parts: &Parts) -> Self {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        Self(peer.map(|ConnectInfo(peer)| network_of(peer.ip())))
    }
}

fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let network = address.to_bits() >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
    }
}

/// The refusals of this process.
pub(super) struct Refusals {
    most: u32,
    window: Mutex<Window>,
    /// The window in which somebody was refused too often: none other need be looked at.
    busy_window: AtomicI64,
    line: Semaphore,
}

#[derive(Default)]
struct Window {
    number: i64,
    counts: HashMap<Source, u32>,
}

impl Refusals {
    /// `most`: of one address in ten seconds, before it waits.
    pub(super) fn new(most: u32) -> Self {
        Self {
            most,
            window: Mutex::default(),
            busy_window: AtomicI64::new(i64::MIN),
            line: Semaphore::new(LINE),
        }
    }

    /// Before a credential is judged: a place in the line for who was refused too often, else `None`.
    pub(super) async fn pass(
        &self,
        source: Source,
        now_seconds: i64,
    ) -> Result<Option<SemaphorePermit<'_>>, ApiError> {
        let number = now_seconds.div_euclid(WINDOW_SECONDS);
        if self.busy_window.load(Ordering::Relaxed) != number || !self.has_too_many(source, number)
        {
            return Ok(None);
        }
        match tokio::time::timeout(PATIENCE, self.line.acquire()).await {
            Ok(Ok(place)) => Ok(Some(place)),
            _ => Err(ApiError::refused_too_often()),
        }
    }

    fn has_too_many(&self, source: Source, number: i64) -> bool {
        let window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let count = window.counts.get(&known(&window, source)).copied();
        window.number == number && count.unwrap_or(0) >= self.most
    }

    /// Counts a refusal, and gives what is said about it. Those that are too many are not logged.
    pub(super) fn refuse(&self, source: Source, now_seconds: i64, log: impl FnOnce()) -> ApiError {
        let number = now_seconds.div_euclid(WINDOW_SECONDS);
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.number != number {
            *window = Window {
                number,
                counts: HashMap::new(),
            };
        }
        let source = known(&window, source);
        let count = window.counts.entry(source).or_default();
        *count = count.saturating_add(1);
        let count = *count;
        drop(window);
        if count > self.most {
            return ApiError::refused_too_often();
        }
        log();
        if count == self.most {
            self.busy_window.store(number, Ordering::Relaxed);
            tracing::warn!(
                address = source.0.map(tracing::field::display),
                refused = count,
                "one address was refused too often and waits from now on"
            );
        }
        ApiError::unauthenticated()
    }
}

fn known(window: &Window, source: Source) -> Source {
    if window.counts.len() < SOURCES || window.counts.contains_key(&source) {
        source
    } else {
        Source(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str) -> Source {
        Source(Some(network_of(address.parse().unwrap())))
    }

    fn status(error: ApiError) -> u16 {
        error.into_parts().0
    }

    #[tokio::test]
    async fn who_is_refused_too_often_waits_until_the_window_is_over_and_nobody_else_does() {
        let refusals = Refusals::new(3);
        let (bad, good) = (source("192.0.2.1"), source("192.0.2.2"));
        for _ in 0..3 {
            assert!(refusals.pass(bad, 100).await.unwrap().is_none());
            assert_eq!(status(refusals.refuse(bad, 100, || {})), 401);
        }
        let place = refusals.pass(bad, 109).await.unwrap();
        assert!(place.is_some(), "it waits");
        assert_eq!(status(refusals.refuse(bad, 109, || {})), 429);
        assert!(refusals.pass(good, 109).await.unwrap().is_none());
        assert_eq!(status(refusals.refuse(good, 109, || {})), 401);
        drop(place);
        assert!(refusals.pass(bad, 110).await.unwrap().is_none());
        assert_eq!(status(refusals.refuse(bad, 110, || {})), 401);
    }

    #[tokio::test]
    async fn the_line_is_short_and_nobody_waits_in_it_for_long() {
        let refusals = Refusals::new(1);
        let bad = source("192.0.2.1");
        refusals.refuse(bad, 100, || {});
        let mut places = Vec::new();
        for _ in 0..LINE {
            places.push(refusals.pass(bad, 100).await.unwrap().unwrap());
        }
        assert_eq!(status(refusals.pass(bad, 100).await.unwrap_err()), 429);
        places.pop();
        assert!(refusals.pass(bad, 100).await.unwrap().is_some());
    }

    #[test]
    fn a_site_is_one_source_and_too_many_sources_are_one() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::2:0:0:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        let refusals = Refusals::new(5);
        for number in 0..u32::try_from(SOURCES).unwrap() + 100 {
            let address = IpAddr::from(std::net::Ipv4Addr::from_bits(number));
            refusals.refuse(Source(Some(address)), 100, || {});
        }
        let window = refusals.window.lock().unwrap();
        assert_eq!(window.counts.len(), SOURCES + 1);
        assert_eq!(window.counts[&Source(None)], 100);
    }
}
