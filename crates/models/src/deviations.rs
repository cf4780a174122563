//! Accepted protocol deviations of a provider, reported with its health.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use telemetry::tolerance::{Peer, tolerated};

/// Deviations of one provider since the start of the process. Cheap to clone.
#[derive(Clone)]
pub struct DeviationCounts {
    provider: Arc<str>,
    /// Number of responses by kind. The set of kinds is fixed.
    answers: Arc<Mutex<BTreeMap<&'static str, u64>>>,
}

impl DeviationCounts {
    /// `provider`: its name in the configuration.
    pub fn new(provider: &str) -> Self {
        Self {
            provider: provider.into(),
            answers: Arc::default(),
        }
    }

    /// Recorder for one response.
    pub(super) fn of_answer(&self) -> ResponseDeviations {
        ResponseDeviations {
            deviations: self.clone(),
            kinds: Arc::default(),
        }
    }

    /// Number of responses by kind of deviation.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers
            .iter()
            .map(|(kind, count)| ((*kind).to_owned(), *count))
            .collect()
    }
}

/// Deviations of one response. Each kind counts once. Cheap to clone.
#[derive(Clone)]
pub(super) struct ResponseDeviations {
    deviations: DeviationCounts,
    kinds: Arc<Mutex<Vec<&'static str>>>,
}

impl ResponseDeviations {
    pub(super) fn note(&self, kind: &'static str) {
        // Release this lock before the next one.
        {
            let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
            if kinds.contains(&kind) {
                return;
            }
            kinds.push(kind);
        }
        let answers = self.deviations.answers.lock();
        *answers
            .unwrap_or_else(PoisonError::into_inner)
            .entry(kind)
            .or_default() += 1;
        tolerated(Peer::Provider, kind, &self.deviations.provider);
    }
}
