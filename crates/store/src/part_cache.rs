//! Cache of shared parts of texts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum bytes of the part cache; it is cleared when full.
const CACHE_BYTES: usize = 32 * 1024 * 1024;

/// Cache of read parts, by hash.
#[derive(Clone, Default)]
pub(crate) struct PartCache(Arc<Mutex<Cached>>);

#[derive(Default)]
struct Cached {
    parts: HashMap<String, Arc<str>>,
    bytes: usize,
}

impl PartCache {
    pub(crate) fn get(&self, sha256: &str) -> Option<Arc<str>> {
        // Valid after a panic: the map holds plain values.
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.parts.get(sha256).cloned()
    }

    pub(crate) fn put(&self, sha256: String, text: Arc<str>) {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Cleared in full: a part is read again in one query, and an order of use would cost more than it saves.
        if cached.bytes.saturating_add(text.len()) > CACHE_BYTES {
            *cached = Cached::default();
        }
        let bytes = text.len();
        if bytes <= CACHE_BYTES && cached.parts.insert(sha256, text).is_none() {
            cached.bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clears_part_cache_at_its_limit() {
        let cache = PartCache::default();
        let third: Arc<str> = "x".repeat(CACHE_BYTES / 3).into();
        for name in ["a", "b", "c", "d"] {
            cache.put(name.to_owned(), Arc::clone(&third));
        }
        assert!(cache.get("a").is_none());
        assert!(cache.get("d").is_some());
        assert!(cache.0.lock().unwrap().bytes <= CACHE_BYTES);
    }
}
