//! Shared state of the handlers: dependencies, limits, caches and memory budgets.

use std::sync::Arc;
use std::time::Duration;

use crate::auth_rate_limit::AuthRateLimit;
use crate::calls_in_progress::CallsInProgress;
use crate::host_allowlist::HostAllowlist;
use crate::key_revocation::RevocationCache;
use crate::memory_budget::MemoryBudget;
use crate::model_memory::model_memory_budget;
use crate::response_store::ResponseStore;
use crate::sign_in::SignIn;
use crate::stream_limit::KeyConcurrencyLimit;
use ::knowledge::Knowledge;
use models::Models;
use runs::Runs;
use tools::Tools;

/// Shared state of the handlers. Cheap to clone.
#[derive(Clone)]
pub struct ApiState(Arc<ApiShared>);

/// Dependencies and limits of the API.
pub struct ApiOptions {
    pub runs: Runs,
    pub models: Models,
    pub tools: Tools,
    pub knowledge: Knowledge,
    /// Interval between keep-alive comments on an idle event stream.
    pub heartbeat: Duration,
    /// Timeout for reading a request body.
    pub body: Duration,
    /// Maximum number of open connections.
    pub connections: usize,
    /// Wrong credentials allowed per address in ten seconds before its requests queue.
    pub max_auth_failures: u32,
    /// Memory budget for model requests, in bytes.
    pub model_bytes: usize,
    /// Memory budget for other request bodies, in bytes.
    pub body_bytes: usize,
    /// Memory budget for responses, in bytes.
    pub answer_bytes: usize,
    /// Maximum body of an event or a Query, in bytes.
    pub event_body_bytes: usize,
    /// Allowed hosts; `None` allows any.
    pub host_allowlist: Option<HostAllowlist>,
    /// Origins of web pages that may call the routes of API keys.
    pub cors_origins: Vec<String>,
    /// True: `/console` is served.
    pub has_console: bool,
    /// Sign-in of people; `None`: API keys only.
    pub sign_in: Option<SignIn>,
    /// True: `/host/v1/mcp/shared` is served.
    pub shared_mcp: bool,
}

struct ApiShared {
    api: ApiOptions,
    auth_rate_limit: AuthRateLimit,
    key_revocation: RevocationCache,
    stream_limit: KeyConcurrencyLimit,
    upload_limit: KeyConcurrencyLimit,
    calls_in_progress: CallsInProgress,
    model_memory: MemoryBudget,
    response_store: ResponseStore,
}

impl ApiState {
    pub fn new(api: ApiOptions) -> Self {
        Self(Arc::new(ApiShared {
            auth_rate_limit: AuthRateLimit::new(api.max_auth_failures),
            key_revocation: RevocationCache::default(),
            stream_limit: KeyConcurrencyLimit::of_streams(api.connections),
            upload_limit: KeyConcurrencyLimit::of_uploads(),
            calls_in_progress: CallsInProgress::default(),
            model_memory: model_memory_budget(api.model_bytes),
            response_store: ResponseStore::default(),
            api,
        }))
    }

    pub fn auth_rate_limit(&self) -> &AuthRateLimit {
        &self.0.auth_rate_limit
    }

    pub fn calls_in_progress(&self) -> &CallsInProgress {
        &self.0.calls_in_progress
    }

    pub fn model_memory(&self) -> &MemoryBudget {
        &self.0.model_memory
    }

    pub fn response_store(&self) -> &ResponseStore {
        &self.0.response_store
    }

    pub fn key_revocation(&self) -> &RevocationCache {
        &self.0.key_revocation
    }

    pub fn stream_limit(&self) -> &KeyConcurrencyLimit {
        &self.0.stream_limit
    }

    pub fn upload_limit(&self) -> &KeyConcurrencyLimit {
        &self.0.upload_limit
    }
}

impl std::ops::Deref for ApiState {
    type Target = ApiOptions;

    fn deref(&self) -> &ApiOptions {
        &self.0.api
    }
}
