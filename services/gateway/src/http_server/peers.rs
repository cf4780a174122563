//! How many connections each address has.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The connections of every address that has some.
#[derive(Clone, Default)]
pub(super) struct Peers(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection of an address, until it is dropped.
pub(super) struct Place {
    peers: Peers,
    address: IpAddr,
}

impl Peers {
    /// A place for one more connection; `None`: the address has `most` already. 0 is any number.
    pub(super) fn enter(&self, address: IpAddr, most: usize) -> Option<Place> {
        let address = address.to_canonical();
        let mut counts = self.counts();
        let count = counts.entry(address).or_default();
        if most > 0 && *count >= most {
            return None;
        }
        *count += 1;
        Some(Place {
            peers: self.clone(),
            address,
        })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.peers.counts();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_places_and_nothing_is_remembered_of_who_left() {
        let peers = Peers::default();
        let [one, other]: [IpAddr; 2] = ["10.0.0.1", "::1"].map(|text| text.parse().unwrap());
        let first = peers.enter(one, 2).unwrap();
        let _second = peers.enter("::ffff:10.0.0.1".parse().unwrap(), 2).unwrap();
        assert!(peers.enter(one, 2).is_none());
        assert!(peers.enter(other, 2).is_some());
        assert!(peers.enter(one, 0).is_some(), "without a bound");
        drop(first);
        assert!(peers.enter(one, 2).is_some());
        assert_eq!(peers.counts().len(), 1);
    }
}
