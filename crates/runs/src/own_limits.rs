//! Limits that API keys and agents have of their own: the rate of the runs that they start, and the tokens of their model
//! calls, on this replica; live runs on all replicas.
//!
//! Live runs of an agent are counted by the transaction that stores a run (`store::Capacities`): only the decision knows
//! the agent of an event. Those of a key are counted before.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::admission::Capacity;
use domain::authorization::{LimitedId, TokenLimit};
use egress::limiter::{KeyedLimiter, LimitRefusal, LimitSpec, Permit, Share};
use egress::rate::{CallRate, KeyedRate};
use egress::tokens::{KeyedTokens, TokenHold};
use governor::clock::DefaultClock;
use protocol::id::{AgentId, ApiKeyId, WorkspaceId};
use protocol::limiter::{LimitedKind, LimiterStatus, MeasuredLimit, OwnLimits};
use store::{Store, StoreError};
use tokio::time::Instant;

use crate::grant::Grant;

/// Maximum keys and agents whose refusals are counted. Further ones are limited, and their refusals are not counted.
const MAX_COUNTED: usize = 5_000;
/// Maximum wait for other requests of the same key that start runs.
const QUEUE: Duration = Duration::from_secs(5);
/// Requests of a key with a limit of live runs start one after the other: a second one must count the run of the first.
const ONE_AT_A_TIME: LimitSpec =
    LimitRefusal::new("key_runs", "other requests of this API key start runs").at(1);

/// An API key that starts runs, with its limits.
#[derive(Clone, Copy, Debug)]
pub struct StartingKey {
    pub id: ApiKeyId,
    pub limits: OwnLimits,
}

/// Limit that refuses the start of a run.
#[derive(Debug, thiserror::Error)]
pub enum StartLimit {
    /// `wait`: time until the next request of the key is admitted.
    #[error("this API key starts runs too fast (its limits.rate); retry later")]
    KeyRate { wait: Duration },
    #[error(
        "{limit} runs of this API key live, and no more may (its limits.concurrency); send the request again \
         when some have ended"
    )]
    KeyRuns { limit: u64 },
    /// `wait`: time until the next run of the agent is admitted.
    #[error("runs of the agent {name} start too fast (its limits.rate); retry later")]
    AgentRate {
        agent: AgentId,
        name: String,
        wait: Duration,
    },
    #[error(
        "{limit} runs of the agent {name} live, and no more may (its limits.concurrency); send the request again \
         when some have ended"
    )]
    AgentRuns {
        agent: AgentId,
        name: String,
        limit: u64,
    },
}

/// Limit of tokens that refuses a model call.
#[derive(Debug, thiserror::Error)]
#[error(
    "the model calls of {} {name} have used {per_minute} tokens in a minute, and no more may (its \
     limits.tokens_per_minute); retry later",
    kind_name(.of)
)]
pub struct TokenLimitReached {
    pub of: LimitedId,
    /// Name of the key or agent; its id once it is deleted.
    pub name: String,
    pub per_minute: NonZeroU32,
    /// Time until the next call is admitted; sooner if calls in flight use less than they have reserved.
    pub wait: Duration,
}

fn kind_name(of: &LimitedId) -> &'static str {
    match of {
        LimitedId::ApiKey(_) => "the API key",
        LimitedId::Agent(_) => "the agent",
    }
}

/// Limits of a key for the run that it starts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyAllowance {
    /// Live runs of the key, counted under the permit of the start.
    pub(crate) capacity: Capacity,
    pub(crate) tokens: Option<TokenLimit>,
}

/// The start of a run by a key. Held until the run is stored: other starts of the same key wait for it.
#[derive(Default)]
pub(crate) struct KeyStart {
    /// `None`: the key has no limit of live runs.
    pub(crate) permit: Option<Permit<ApiKeyId>>,
    pub(crate) allowance: KeyAllowance,
}

/// Tokens of a model call in the limits of its key and agent. A drop gives them back.
#[derive(Default)]
pub struct HeldTokens(Vec<TokenHold<LimitedId>>);

impl HeldTokens {
    /// Ends the call with its use in place of the reservation.
    pub fn settle(self, used: u64) {
        self.0.into_iter().for_each(|hold| hold.settle(used));
    }
}

/// Limiters of the API keys and agents with limits of their own, on this replica.
#[derive(Default)]
pub(crate) struct OwnLimiters {
    /// Limiters by their quota. Idle ones are removed.
    rates: Mutex<HashMap<CallRate, Arc<KeyedRate<LimitedId>>>>,
    tokens: KeyedTokens<LimitedId>,
    starts: StartQueue,
    /// Keys and agents that were limited here, at most [`MAX_COUNTED`].
    counts: Mutex<HashMap<LimitedId, LimitCounts>>,
}

struct StartQueue(KeyedLimiter<ApiKeyId>);

impl Default for StartQueue {
    fn default() -> Self {
        Self(KeyedLimiter::of_shares())
    }
}

/// Limits of a key or an agent that were applied here, and the refusals by each.
struct LimitCounts {
    workspace: WorkspaceId,
    limits: OwnLimits,
    refused: RefusedStarts,
}

#[derive(Clone, Copy, Default)]
struct RefusedStarts {
    rate: u64,
    runs: u64,
    tokens: u64,
}

impl StartingKey {
    /// A key without limits of its own.
    pub fn unlimited(id: ApiKeyId) -> Self {
        Self {
            id,
            limits: OwnLimits::default(),
        }
    }

    pub(crate) fn limited_id(self) -> LimitedId {
        LimitedId::ApiKey(self.id)
    }
}

impl OwnLimiters {
    /// Counts a request against the rate of its key.
    pub(crate) fn admit_key(
        &self,
        workspace: &WorkspaceId,
        key: StartingKey,
    ) -> Result<(), StartLimit> {
        let admitted = self.admit(workspace, key.limited_id(), &key.limits);
        admitted.map_err(|wait| StartLimit::KeyRate { wait })
    }

    /// Counts a start against a rate, or returns the time to wait.
    pub(crate) fn admit(
        &self,
        workspace: &WorkspaceId,
        id: LimitedId,
        limits: &OwnLimits,
    ) -> Result<(), Duration> {
        if *limits == OwnLimits::default() {
            return Ok(());
        }
        let rate = call_rate(limits);
        let admitted = rate.map_or(Ok(()), |rate| self.rate_limiter(rate).admit(&id));
        self.count(workspace, id, |counts| {
            counts.limits = *limits;
            counts.refused.rate += u64::from(admitted.is_err());
        });
        admitted
    }

    /// Counts the live runs of a key with a limit of them. The permit makes the count exact on this replica.
    pub(crate) async fn begin(
        &self,
        store: &Store,
        workspace: &WorkspaceId,
        key: StartingKey,
    ) -> Result<Result<KeyStart, StartLimit>, StoreError> {
        let tokens = token_limit(key.limited_id(), &key.limits);
        let Some(limit) = key.limits.concurrency else {
            let allowance = KeyAllowance {
                tokens,
                ..KeyAllowance::default()
            };
            return Ok(Ok(KeyStart {
                permit: None,
                allowance,
            }));
        };
        let share = Share {
            key: key.id,
            limit: ONE_AT_A_TIME,
        };
        let permit = self
            .starts
            .0
            .acquire_until([share], Instant::now() + QUEUE)
            .await;
        self.count(workspace, key.limited_id(), |counts| {
            counts.refused.runs += u64::from(permit.is_err());
        });
        let limit = u64::from(limit);
        let Ok(permit) = permit else {
            return Ok(Err(StartLimit::KeyRuns { limit }));
        };
        // After the permit: a start before this one has stored its run.
        let access = store.access();
        let live = access.count_live_runs_of_key(workspace, key.id).await?;
        let capacity = Capacity {
            live,
            limit: Some(limit),
        };
        Ok(Ok(KeyStart {
            permit: Some(permit),
            allowance: KeyAllowance { capacity, tokens },
        }))
    }

    /// Counts a start that a limit of live runs refuses.
    pub(crate) fn note_full(&self, workspace: &WorkspaceId, id: LimitedId) {
        self.count(workspace, id, |counts| counts.refused.runs += 1);
    }

    /// Reserves tokens of a model call in each limit of its run, or in none.
    pub(crate) async fn reserve_tokens(
        &self,
        store: &Store,
        grant: &Grant,
        tokens: u64,
    ) -> Result<Result<HeldTokens, TokenLimitReached>, StoreError> {
        let mut held = HeldTokens::default();
        // Calls of tools have no tokens.
        let limits = grant.snapshot.token_limits.iter().filter(|_| tokens > 0);
        for limit in limits {
            let workspace = &grant.run.workspace;
            let reserved = self.tokens.try_reserve(&limit.of, limit.per_minute, tokens);
            self.count(workspace, limit.of, |counts| {
                counts.limits.tokens_per_minute = Some(limit.per_minute.get());
                counts.refused.tokens += u64::from(reserved.is_err());
            });
            match reserved {
                Ok(hold) => held.0.push(hold),
                Err(wait) => {
                    return Ok(Err(TokenLimitReached {
                        of: limit.of,
                        name: name_of(store, workspace, limit.of).await?,
                        per_minute: limit.per_minute,
                        wait,
                    }));
                }
            }
        }
        Ok(Ok(held))
    }

    /// Limiters of a workspace: keys that were limited here, and agents with limits.
    pub(crate) async fn list(
        &self,
        store: &Store,
        workspace: &WorkspaceId,
    ) -> Result<Vec<LimiterStatus>, StoreError> {
        let access = store.access();
        let live = access.count_live_runs_by_key(workspace).await?;
        let mut statuses = self.statuses_of_keys(workspace, &live);
        let keys: BTreeSet<_> = statuses.iter().map(|status| status.id.clone()).collect();
        let keys = keys.into_iter().collect();
        let names = access.find_api_key_names(workspace, keys).await?;
        for status in &mut statuses {
            if let Some(name) = names.get(&status.id) {
                status.name.clone_from(name);
            }
        }
        let agents = store.agents().limited_agents(workspace).await?;
        if agents.is_empty() {
            return Ok(statuses);
        }
        let live = store.agents().count_live_runs_by_agent(workspace).await?;
        for agent in agents {
            let live = live.get(&agent.id.to_string()).copied().unwrap_or(0);
            let id = LimitedId::Agent(agent.id);
            // As configured: the limits that were applied here may be those of an earlier version.
            let limits = agent.spec.limits.unwrap_or_default();
            let refused = self.counts().get(&id).map(|counts| counts.refused);
            let of_agent = self.statuses_of(id, &limits, refused.unwrap_or_default(), live);
            statuses.extend(of_agent.into_iter().map(|status| LimiterStatus {
                name: agent.spec.name.clone(),
                ..status
            }));
        }
        Ok(statuses)
    }

    /// Limiters of keys without names. `live`: runs by key.
    fn statuses_of_keys(
        &self,
        workspace: &WorkspaceId,
        live: &HashMap<String, u64>,
    ) -> Vec<LimiterStatus> {
        let counts = self.counts();
        let own = counts
            .iter()
            .filter(|(_, counts)| counts.workspace == *workspace);
        let statuses = own.flat_map(|(id, counts)| {
            let LimitedId::ApiKey(key) = id else {
                return Vec::new();
            };
            let live = live.get(&key.to_string()).copied().unwrap_or(0);
            self.statuses_of(*id, &counts.limits, counts.refused, live)
        });
        statuses.collect()
    }

    fn statuses_of(
        &self,
        id: LimitedId,
        limits: &OwnLimits,
        refused: RefusedStarts,
        live: u64,
    ) -> Vec<LimiterStatus> {
        let (kind, queued, name) = match id {
            LimitedId::ApiKey(key) => {
                let queued = self.starts.0.queued_for(&key) as u64;
                (LimitedKind::ApiKey, queued, key.to_string())
            }
            LimitedId::Agent(agent) => (LimitedKind::Agent, 0, agent.to_string()),
        };
        let status = |limit, max: u32, refused| LimiterStatus {
            kind,
            id: name.clone(),
            name: String::new(),
            limit,
            max: max.into(),
            burst: None,
            in_flight: None,
            available: None,
            queued: 0,
            refused,
        };
        let rate = call_rate(limits).map(|rate| LimiterStatus {
            burst: Some(rate.burst.get().into()),
            ..status(MeasuredLimit::Rate, rate.per_minute.get(), refused.rate)
        });
        let runs = limits.concurrency.map(|max| LimiterStatus {
            in_flight: Some(live),
            queued,
            ..status(MeasuredLimit::Concurrency, max, refused.runs)
        });
        let tokens = limits.tokens_per_minute.map(|max| {
            let level = self.tokens.level(&id);
            LimiterStatus {
                in_flight: Some(level.map_or(0, |level| level.reserved)),
                available: Some(level.map_or(max.into(), |level| level.available)),
                ..status(MeasuredLimit::TokensPerMinute, max, refused.tokens)
            }
        });
        rate.into_iter().chain(runs).chain(tokens).collect()
    }

    /// Removes rate limiters and token buckets without recent use.
    pub(crate) fn forget_idle(&self) {
        self.rates().retain(|_, rate| {
            rate.forget_idle();
            !rate.is_idle()
        });
        self.tokens.forget_idle();
    }

    fn rate_limiter(&self, rate: CallRate) -> Arc<KeyedRate<LimitedId>> {
        let mut rates = self.rates();
        let limiter = rates
            .entry(rate)
            .or_insert_with(|| Arc::new(KeyedRate::new(rate.quota(), DefaultClock::default())));
        Arc::clone(limiter)
    }

    fn count(&self, workspace: &WorkspaceId, id: LimitedId, add: impl FnOnce(&mut LimitCounts)) {
        let mut counts = self.counts();
        if let Some(counts) = counts.get_mut(&id) {
            add(counts);
        } else if counts.len() < MAX_COUNTED {
            let new = LimitCounts {
                workspace: workspace.clone(),
                limits: OwnLimits::default(),
                refused: RefusedStarts::default(),
            };
            add(counts.entry(id).or_insert(new));
        }
    }

    // The maps are consistent after any panic.
    fn rates(&self) -> MutexGuard<'_, HashMap<CallRate, Arc<KeyedRate<LimitedId>>>> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<LimitedId, LimitCounts>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn call_rate(limits: &OwnLimits) -> Option<CallRate> {
    let per_minute = NonZeroU32::new(limits.rate?)?;
    let burst = limits.burst.and_then(NonZeroU32::new);
    Some(CallRate {
        per_minute,
        burst: burst.unwrap_or(per_minute),
    })
}

/// The limit of tokens of a key or an agent.
pub(crate) fn token_limit(of: LimitedId, limits: &OwnLimits) -> Option<TokenLimit> {
    let per_minute = NonZeroU32::new(limits.tokens_per_minute?)?;
    Some(TokenLimit { of, per_minute })
}

/// Name of a key or agent for a refusal; else its id.
async fn name_of(
    store: &Store,
    workspace: &WorkspaceId,
    id: LimitedId,
) -> Result<String, StoreError> {
    match id {
        LimitedId::ApiKey(key) => {
            let found = store.access().find_api_key_by_id(workspace, key).await?;
            Ok(found.map_or_else(|| key.to_string(), |key| key.name))
        }
        LimitedId::Agent(agent) => {
            let found = store.agents().find_agent(workspace, agent).await?;
            Ok(found.map_or_else(|| agent.to_string(), |found| found.spec.name))
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn limits_rate_of_each_key_by_its_quota() {
        let limiters = OwnLimiters::default();
        let workspace = WorkspaceId("w".to_owned());
        let [one, other, unlimited] = [Some(2), Some(1), None].map(|burst| StartingKey {
            id: ApiKeyId(Uuid::new_v4()),
            limits: OwnLimits {
                rate: burst.map(|_| 1),
                burst,
                ..OwnLimits::default()
            },
        });
        let admits = |key| limiters.admit_key(&workspace, key).is_ok();
        assert_eq!([one, one, one].map(admits), [true, true, false]);
        assert_eq!([other, other].map(admits), [true, false]);
        assert!((0..100).all(|_| admits(unlimited)));
        limiters.forget_idle();
        assert!(!admits(one), "a counted key stays limited");
        let statuses = limiters.statuses_of_keys(&workspace, &HashMap::new());
        let refused: u64 = statuses.iter().map(|status| status.refused).sum();
        assert_eq!((statuses.len(), refused), (2, 3));
        let foreign = WorkspaceId("other".to_owned());
        assert!(
            limiters
                .statuses_of_keys(&foreign, &HashMap::new())
                .is_empty()
        );
    }
}
