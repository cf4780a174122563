//! Exact vector search: scans all vectors of a base, from the cache if they fit, else page by page.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use domain::knowledge::filter::Filters;
use domain::knowledge::rank::{TopK, dot_bytes};
use store::{BaseKey, Store, StoredVector};
use tokio::sync::Semaphore;

use crate::KnowledgeError;
use crate::index::on_blocking_thread;

/// Number of vectors per page.
const PAGE: usize = 500;
/// Cache size in bytes, per base and in total.
const MAX_OF_BASE: usize = 96 * 1024 * 1024;
const MAX_TOTAL: usize = 256 * 1024 * 1024;

/// Concurrent searches that load a base into the cache. Each may use as much memory as one cached base.
const GATHERING: usize = 2;

/// Cached vectors of bases, each at one version.
pub(super) struct VectorCache {
    cached: Mutex<HashMap<(BaseKey, String), Arc<CachedVectors>>>,
    gathering: Semaphore,
}

impl Default for VectorCache {
    fn default() -> Self {
        Self {
            cached: Mutex::default(),
            gathering: Semaphore::new(GATHERING),
        }
    }
}

struct CachedVectors {
    version: i64,
    vectors: Vec<StoredVector>,
    bytes: usize,
}

impl VectorCache {
    /// The closest vectors of `model` with their similarity, best first.
    #[expect(clippy::too_many_arguments, reason = "they are one question")]
    pub(super) async fn closest(
        &self,
        store: &Store,
        base: &BaseKey,
        model: &str,
        filters: &Filters,
        version: i64,
        query: Vec<f32>,
        top: usize,
    ) -> Result<Vec<(f64, i64)>, KnowledgeError> {
        // A filtered scan reads a part of the base, which must not be cached as the base.
        let is_unfiltered = filters.0.is_empty();
        let cached = || {
            is_unfiltered
                .then(|| self.get(base, model, version))
                .flatten()
        };
        if let Some(cached) = cached() {
            return closest_of(cached, query, top).await;
        }
        let mut permit = None;
        if is_unfiltered {
            // The semaphore is never closed.
            permit = self.gathering.acquire().await.ok();
            // An earlier search may have loaded the base.
            if let Some(cached) = cached() {
                return closest_of(cached, query, top).await;
            }
        }
        let mut best = TopK::new(top);
        // Collect pages only with a permit, so that concurrent loads have bounded memory.
        let (mut after, mut collected, mut bytes) = (0, permit.is_some().then(Vec::new), 0);
        let query = Arc::new(query);
        loop {
            let page = store
                .knowledge()
                .knowledge_vectors(base, model, filters, after, PAGE)
                .await?;
            let is_last = page.len() < PAGE;
            after = page.last().map_or(after, |last| last.id);
            // 32 bytes estimate the overhead of a stored vector.
            bytes += page.iter().map(|one| one.bytes.len() + 32).sum::<usize>();
            let (shared_query, mut so_far) = (Arc::clone(&query), best);
            let looked = on_blocking_thread(move || {
                look(&page, &shared_query, &mut so_far);
                (so_far, page)
            });
            let (next, page) = looked.await?;
            best = next;
            collected = collected.filter(|_| bytes <= MAX_OF_BASE);
            match &mut collected {
                Some(collected) => collected.extend(page),
                // Too large for the cache: continue page by page without the permit.
                None => drop(permit.take()),
            }
            if is_last {
                break;
            }
        }
        if let Some(vectors) = collected {
            self.keep(
                base,
                model,
                CachedVectors {
                    version,
                    vectors,
                    bytes,
                },
            );
        }
        Ok(best.into_sorted())
    }

    fn get(&self, base: &BaseKey, model: &str, version: i64) -> Option<Arc<CachedVectors>> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let found = cached.get(&(base.clone(), model.to_owned()))?;
        (found.version == version).then(|| Arc::clone(found))
    }

    fn keep(&self, base: &BaseKey, model: &str, new: CachedVectors) {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (base.clone(), model.to_owned());
        // A slower search must not replace vectors of a newer version.
        if cached
            .get(&name)
            .is_some_and(|old| old.version > new.version)
        {
            return;
        }
        cached.remove(&name);
        // Any entry may go: all of them can be loaded again.
        while cached.values().map(|one| one.bytes).sum::<usize>() + new.bytes > MAX_TOTAL {
            let Some(any) = cached.keys().next().cloned() else {
                break;
            };
            cached.remove(&any);
        }
        cached.insert(name, Arc::new(new));
    }
}

async fn closest_of(
    cached: Arc<CachedVectors>,
    query: Vec<f32>,
    top: usize,
) -> Result<Vec<(f64, i64)>, KnowledgeError> {
    on_blocking_thread(move || {
        let mut best = TopK::new(top);
        look(&cached.vectors, &query, &mut best);
        best.into_sorted()
    })
    .await
}

/// Skips vectors of other dimensions, which come from an earlier model of the same name.
fn look(vectors: &[StoredVector], query: &[f32], best: &mut TopK) {
    for vector in vectors {
        if let Some(alike) = dot_bytes(query, &vector.bytes) {
            best.offer(alike, vector.id);
        }
    }
}
