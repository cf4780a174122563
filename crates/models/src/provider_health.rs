//! The health of a provider, from the results of its calls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use protocol::JsonObject;
use protocol::limiter::{LimitedKind, LimiterStatus};
use protocol::model::{ModelProvider, ModelProviderError, ModelProviderKey};

use super::provider_limits::{ProviderLimitSpec, ProviderLimits, RequestPermit};
use super::{
    Chunks, KeyCooldown, Payment, Provider, ProviderEmbeddings, ProviderRequest, ThoughtCount,
    WireFormat,
};
use clock::Clock;
use egress::upstream::UpstreamError;

/// A provider that records successes and failures, on this replica and since its start. Cheap to clone.
#[derive(Clone)]
pub struct MonitoredProvider {
    name: String,
    kind: &'static str,
    base_url: Option<String>,
    provider: Arc<dyn Provider>,
    limits: Arc<ProviderLimits>,
    /// Limits of the model that it is called for.
    model_limits: Option<Arc<ProviderLimits>>,
    health: HealthRecorder,
}

/// Permits of a request: of its model, and of the provider.
type CallPermits = [RequestPermit; 2];

/// Recorded results. Cheap to clone.
#[derive(Clone)]
struct HealthRecorder {
    clock: Clock,
    seen: Arc<Mutex<RecordedResults>>,
}

#[derive(Clone, Default)]
struct RecordedResults {
    last_success_at: Option<i64>,
    last_failure_at: Option<i64>,
    last_error: Option<ModelProviderError>,
    consecutive_failures: u64,
}

/// Result of probing a provider.
pub struct ProviderProbe {
    pub name: String,
    pub kind: &'static str,
    /// By key, in configuration order; one entry for a provider without keys.
    pub keys: Vec<Result<(), UpstreamError>>,
    /// Configured models that are missing from the provider's lists. Empty if all lists are empty.
    pub unlisted: Vec<String>,
}

impl MonitoredProvider {
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
            limits: Arc::new(ProviderLimits::of_provider(ProviderLimitSpec::default())),
            model_limits: None,
            health: HealthRecorder {
                clock,
                seen: Arc::default(),
            },
        }
    }

    /// Limits the requests of this replica.
    #[must_use]
    pub fn with_limits(self, limits: ProviderLimitSpec) -> Self {
        Self {
            limits: Arc::new(ProviderLimits::of_provider(limits)),
            ..self
        }
    }

    /// The same provider for the calls of one model, which has limits in addition.
    #[must_use]
    pub fn for_model(&self, limits: ProviderLimitSpec) -> Self {
        Self {
            model_limits: Some(Arc::new(ProviderLimits::of_model(limits))),
            ..self.clone()
        }
    }

    /// True for the same provider, whatever model it is called for.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.limits, &other.limits)
    }

    /// Limiters of the provider.
    pub(super) fn limiters(&self) -> Vec<LimiterStatus> {
        self.limits.statuses(LimitedKind::ModelProvider, &self.name)
    }

    /// Limiters of the model that it is called for.
    pub(super) fn limiters_of_model(&self, id: &str) -> Vec<LimiterStatus> {
        let limits = self.model_limits.iter();
        limits
            .flat_map(|limits| limits.statuses(LimitedKind::Model, id))
            .collect()
    }

    /// Admits a request by the limits of the model, then by those of the provider: a call that waits for its model
    /// takes no slot of other models.
    async fn admit(&self, paid: &Payment) -> Result<CallPermits, UpstreamError> {
        let tokens = paid.take_expected_tokens();
        let model = match &self.model_limits {
            Some(limits) => limits.admit(paid, tokens).await?,
            None => None,
        };
        Ok([model, self.limits.admit(paid, tokens).await?])
    }

    /// Kind of the provider.
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

    /// As [`Provider::complete`], charged to `paid`.
    pub async fn complete(
        &self,
        request: impl Into<ProviderRequest>,
        paid: &Payment,
    ) -> Result<JsonObject, UpstreamError> {
        // Not noted: a full queue is no failure of the provider.
        let _permits = self.admit(paid).await?;
        self.health
            .noted(self.provider.complete(request.into()).await)
    }

    /// As [`Provider::stream`], charged to `paid`. The first chunk counts as success, an error anywhere as failure.
    pub async fn stream(
        &self,
        request: impl Into<ProviderRequest>,
        paid: &Payment,
    ) -> Result<Chunks, UpstreamError> {
        let permits = self.admit(paid).await?;
        let items = self.provider.stream(request.into()).await;
        Ok(held(self.health.watched(items)?, permits))
    }

    /// As [`Provider::supports`].
    pub fn supports(&self, form: WireFormat) -> bool {
        self.provider.supports(form)
    }

    /// As [`Provider::embed`], charged to `paid`.
    pub async fn embed(
        &self,
        body: JsonObject,
        paid: &Payment,
    ) -> Result<ProviderEmbeddings, UpstreamError> {
        let _permits = self.admit(paid).await?;
        // The provider may bill an aborted request.
        // `BillableRequest` records the request on drop, also if this future is dropped.
        let asking = BillableRequest(Some(paid));
        let embedded = self.provider.embed(body).await;
        asking.end(embedded.as_ref().err());
        self.health.noted(embedded)
    }

    /// As [`Provider::rerank`], charged to `paid`.
    pub async fn rerank(
        &self,
        body: JsonObject,
        paid: &Payment,
    ) -> Result<JsonObject, UpstreamError> {
        let _permits = self.admit(paid).await?;
        self.health.noted(self.provider.rerank(body).await)
    }

    /// Name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The provider's health; `models` are its models.
    pub fn view(&self, models: Vec<String>) -> ModelProvider {
        let (now, now_ms) = (Instant::now(), self.health.clock.now_ms());
        let keys = self.provider.key_cooldowns().into_iter();
        let seen = self.health.seen().clone();
        ModelProvider {
            name: self.name.clone(),
            kind: self.kind.to_owned(),
            base_url: self.base_url.clone(),
            models,
            keys: keys.map(|rest| key_view(rest, now, now_ms)).collect(),
            last_success_at: seen.last_success_at,
            last_failure_at: seen.last_failure_at,
            last_error: seen.last_error,
            consecutive_failures: seen.consecutive_failures,
            deviations: self.provider.deviations(),
        }
    }

    /// Lists the models with each key. `wanted`: the configured models, by their provider names.
    pub async fn probe(&self, wanted: Vec<String>) -> ProviderProbe {
        let listed = self.provider.list_models().await;
        let available: Vec<_> = listed.iter().flatten().flatten().cloned().collect();
        // Without any list nothing proves that a model is missing.
        let is_unlisted = |name: &String| !available.is_empty() && !available.contains(name);
        ProviderProbe {
            name: self.name.clone(),
            kind: self.kind,
            unlisted: wanted.into_iter().filter(is_unlisted).collect(),
            keys: listed.into_iter().map(|key| key.map(drop)).collect(),
        }
    }
}

impl HealthRecorder {
    /// Records the first item of a stream as success and an error as failure.
    fn watched(&self, items: Result<Chunks, UpstreamError>) -> Result<Chunks, UpstreamError> {
        // A refused stream never yields an item, so record its error here.
        let items = match items {
            Ok(items) => items,
            Err(error) => return self.noted(Err(error)),
        };
        let (health, mut has_answered) = (self.clone(), false);
        // The first item decides; recording each would take the lock per token.
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
        let now = self.clock.now_seconds();
        let mut seen = self.seen();
        seen.last_success_at = Some(now);
        seen.consecutive_failures = 0;
    }

    fn failed(&self, error: &UpstreamError) {
        // An error caused by the request is no sign of the provider's health.
        if error.is_caller_fault() {
            return;
        }
        let now = self.clock.now_seconds();
        let mut seen = self.seen();
        seen.last_failure_at = Some(now);
        seen.last_error = Some(ModelProviderError {
            code: error.code().to_owned(),
            reason: error.reason().to_owned(),
            status: error.status(),
        });
        seen.consecutive_failures += 1;
    }

    // The state is consistent after any panic.
    fn seen(&self) -> MutexGuard<'_, RecordedResults> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Items of a request that holds its permits until they are dropped.
fn held(items: Chunks, permits: CallPermits) -> Chunks {
    if permits.iter().all(Option::is_none) {
        return items;
    }
    let held = move |_: &Result<JsonObject, UpstreamError>| _ = &permits;
    items.inspect(held).boxed()
}

/// A request that may be billed, unless it ends with a failure that is free.
struct BillableRequest<'a>(Option<&'a Payment>);

impl BillableRequest<'_> {
    fn end(mut self, failed: Option<&UpstreamError>) {
        if failed.is_some_and(UpstreamError::had_no_effect) {
            self.0 = None;
        }
    }
}

impl Drop for BillableRequest<'_> {
    fn drop(&mut self) {
        if let Some(paid) = self.0 {
            paid.ask();
        }
    }
}

fn key_view(rest: Option<KeyCooldown>, now: Instant, now_ms: i64) -> ModelProviderKey {
    let millis = |left: Duration| i64::try_from(left.as_millis()).unwrap_or(i64::MAX);
    ModelProviderKey {
        rests_until: rest.map(|rest| {
            let left = rest.until.saturating_duration_since(now);
            now_ms
                // Round up, so that the reported second is not before the end of the cool-down.
                .saturating_add(millis(left))
                .saturating_add(999)
                .div_euclid(1000)
        }),
        rests_because: rest.map(|rest| rest.because.to_owned()),
    }
}
