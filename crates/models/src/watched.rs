//! A provider, and what came of its calls: what an operator asks first when models fail.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use protocol::JsonObject;
use protocol::model::{ModelProvider, ModelProviderError, ModelProviderKey};

use super::{Asked, Chunks, Embedded, Events, Form, Paid, Provider, Rest, ThoughtCount};
use base::clock::Clock;
use egress::upstream::UpstreamError;

/// A provider whose answers and failures are noted, on this replica and since it started.
pub struct Watched {
    name: String,
    kind: &'static str,
    base_url: Option<String>,
    provider: Arc<dyn Provider>,
    health: Health,
}

/// What was noted. Cheap to clone.
#[derive(Clone)]
struct Health {
    clock: Clock,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Clone, Default)]
struct Seen {
    last_success_at: Option<i64>,
    last_failure_at: Option<i64>,
    last_error: Option<ModelProviderError>,
    consecutive_failures: u64,
}

/// What came of asking a provider whether it is there.
pub struct Probed {
    pub name: String,
    pub kind: &'static str,
    /// By key, in the order of the configuration; one for a provider without keys.
    pub keys: Vec<Result<(), UpstreamError>>,
    /// Models of the configuration that it lists to nobody, although it lists some.
    pub unlisted: Vec<String>,
}

impl Watched {
    pub fn new(
        name: &str,
        kind: &'static str,
        base_url: Option<&str>,
        provider: Arc<dyn Provider>,
        clock: Clock,
    ) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            base_url: base_url.map(str::to_owned),
            provider,
            health: Health {
                clock,
                seen: Arc::default(),
            },
        }
    }

    /// What it speaks.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// As [`Provider::bound`].
    pub fn bound(&self) -> &'static str {
        self.provider.bound()
    }

    /// As [`Provider::thought_count`].
    pub fn thought_count(&self) -> ThoughtCount {
        self.provider.thought_count()
    }

    /// As [`Provider::complete`].
    pub async fn complete(&self, body: JsonObject) -> Result<JsonObject, UpstreamError> {
        self.health.noted(self.provider.complete(body).await)
    }

    /// As [`Provider::stream`]. It has answered with its first chunk, and fails with an error wherever that
    /// stands.
    pub async fn stream(&self, body: JsonObject) -> Result<Chunks, UpstreamError> {
        self.health.watched(self.provider.stream(body).await)
    }

    /// As [`Provider::speaks`].
    pub fn speaks(&self, form: Form) -> bool {
        self.provider.speaks(form)
    }

    /// As [`Provider::ask`].
    pub async fn ask(
        &self,
        form: Form,
        asked: impl Into<Asked>,
    ) -> Result<JsonObject, UpstreamError> {
        self.health
            .noted(self.provider.ask(form, asked.into()).await)
    }

    /// As [`Provider::ask_for_events`], noted as [`Self::stream`] is.
    pub async fn ask_for_events(
        &self,
        form: Form,
        asked: impl Into<Asked>,
    ) -> Result<Events, UpstreamError> {
        let events = self.provider.ask_for_events(form, asked.into()).await;
        self.health.watched(events)
    }

    /// As [`Provider::embed`], paid for.
    pub async fn embed(&self, body: JsonObject, paid: &Paid) -> Result<Embedded, UpstreamError> {
        // One that is given up may be billed.
        let asking = Asking(Some(paid));
        let embedded = self.provider.embed(body).await;
        asking.end(embedded.as_ref().err());
        self.health.noted(embedded)
    }

    /// As [`Provider::rerank`].
    pub async fn rerank(&self, body: JsonObject) -> Result<JsonObject, UpstreamError> {
        self.health.noted(self.provider.rerank(body).await)
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it stands; `models` are asked there.
    pub fn view(&self, models: Vec<String>) -> ModelProvider {
        let now = (Instant::now(), self.health.clock.now_ms());
        let keys = self.provider.resting_keys().into_iter();
        let seen = self.health.seen().clone();
        ModelProvider {
            name: self.name.clone(),
            kind: self.kind.to_owned(),
            base_url: self.base_url.clone(),
            models,
            keys: keys.map(|rest| key_view(rest, now)).collect(),
            last_success_at: seen.last_success_at,
            last_failure_at: seen.last_failure_at,
            last_error: seen.last_error,
            consecutive_failures: seen.consecutive_failures,
            deviations: self.provider.deviations(),
        }
    }

    /// Asks it for its models, with each key; `wanted` are those of the configuration, by their names there.
    pub async fn probe(&self, wanted: Vec<String>) -> Probed {
        let listed = self.provider.list_models().await;
        let known: Vec<_> = listed.iter().flatten().flatten().cloned().collect();
        let is_unlisted = |name: &String| !known.is_empty() && !known.contains(name);
        Probed {
            name: self.name.clone(),
            kind: self.kind,
            unlisted: wanted.into_iter().filter(is_unlisted).collect(),
            keys: listed.into_iter().map(|key| key.map(drop)).collect(),
        }
    }
}

impl Health {
    /// The items of a stream, of which the first is an answer and an error is a failure.
    fn watched(&self, items: Result<Chunks, UpstreamError>) -> Result<Chunks, UpstreamError> {
        let items = match items {
            Ok(items) => items,
            Err(error) => return self.noted(Err(error)),
        };
        let (health, mut has_answered) = (self.clone(), false);
        let noted = items.inspect(move |item| match item {
            Ok(_) if has_answered => {}
            Ok(_) => {
                has_answered = true;
                health.answered();
            }
            Err(error) => health.failed(error),
        });
        Ok(noted.boxed())
    }

    fn noted<T>(&self, result: Result<T, UpstreamError>) -> Result<T, UpstreamError> {
        match &result {
            Ok(_) => self.answered(),
            Err(error) => self.failed(error),
        }
        result
    }

    fn answered(&self) {
        let now = self.clock.now_ms();
        let mut seen = self.seen();
        seen.last_success_at = Some(now);
        seen.consecutive_failures = 0;
    }

    /// A request that was refused for what stands in it tells nothing of its provider.
    fn failed(&self, error: &UpstreamError) {
        if error.is_callers() {
            return;
        }
        let now = self.clock.now_ms();
        let mut seen = self.seen();
        seen.last_failure_at = Some(now);
        seen.last_error = Some(ModelProviderError {
            code: error.code().to_owned(),
            reason: error.reason().to_owned(),
            status: error.status(),
        });
        seen.consecutive_failures += 1;
    }

    // What was seen is whole after any panic.
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that its provider may bill, unless it ends otherwise.
struct Asking<'a>(Option<&'a Paid>);

impl Asking<'_> {
    fn end(mut self, failed: Option<&UpstreamError>) {
        if failed.is_some_and(UpstreamError::is_undone) {
            self.0 = None;
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(paid) = self.0 {
            paid.ask();
        }
    }
}

fn key_view(rest: Option<Rest>, (now, now_ms): (Instant, i64)) -> ModelProviderKey {
    let millis = |left: Duration| i64::try_from(left.as_millis()).unwrap_or(i64::MAX);
    ModelProviderKey {
        rests_until: rest.map(|rest| {
            let left = rest.until.saturating_duration_since(now);
            now_ms.saturating_add(millis(left))
        }),
        rests_because: rest.map(|rest| rest.because.to_owned()),
    }
}
