//! Authorized calls to the host API of one run.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use protocol::host_api::RenewedToken;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Method, Request, RequestBuilder, Response, Url};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::host::client::{HostAnswer, read_answer, read_json};
use crate::host::repeat::{RepeatTime, repeat_after};
use crate::host::token::{CallAccess, CallTime, Credentials, GatewayClock, Times};
use crate::host::{HostClient, HostError, client};

/// Margin of a call beyond the gateway's wait.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Pause before a repeated call, unless a resume comes earlier.
const REPEAT_PAUSE: Duration = Duration::from_secs(1);

/// Access of one run: base URL, token and deadline.
#[derive(Debug)]
pub(super) struct HostConnection {
    pub(super) client: HostClient,
    /// Base URL of the run request. Requests are built for it, and sent to that of the last resume.
    pub(super) base_url: String,
    pub(super) clock: GatewayClock,
    pub(super) times: Times,
    pub(super) credentials: Credentials,
    /// Time that a call waits for a resume. Absent: the run is not resumable.
    pub(super) resume_within: Option<Duration>,
    /// Sequence of the last result that the run has sent.
    pub(super) last_result: AtomicU64,
}

/// Time limit of a call.
#[derive(Clone, Copy)]
enum CallLimit {
    /// The client's timeout.
    Call,
    /// The rest of the run.
    Run,
    /// The gateway's wait and a margin.
    Poll(Duration),
}

impl HostConnection {
    /// Current access, its token renewed when due. Contains a secret.
    pub(super) async fn access(&self) -> CallAccess {
        self.renew_token_if_due().await;
        self.credentials.access()
    }

    /// Renews the token for all clones. Calls do this automatically near its expiry.
    pub(super) async fn renew_token(&self) -> Result<(), HostError> {
        let attempt = self.credentials.attempt();
        let request = self.token_request()?;
        let renewed: RenewedToken = self.answer(request).await?;
        self.credentials.renew(renewed, attempt);
        Ok(())
    }

    /// Renews the token near its expiry while polled.
    pub(super) async fn keep_token_fresh(&self) -> std::convert::Infallible {
        loop {
            let Self {
                credentials,
                clock,
                times,
                ..
            } = self;
            let attempt = credentials.attempt();
            let renewal = async {
                match credentials.until_renewal(times, clock.now()) {
                    Some(wait) => tokio::time::sleep(wait).await,
                    // Resolving would end the caller's select; the token lives as long as the run.
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = renewal => self.renew_token_if_due().await,
                // The token of a resume has its own expiry.
                () = credentials.resumed_after(attempt) => {}
            }
        }
    }

    async fn renew_token_if_due(&self) {
        let Self {
            credentials,
            clock,
            times,
            ..
        } = self;
        if !credentials.claim_renewal(times, clock.now()) {
            return;
        }
        // One request without a repeat: a resume brings a new token anyway.
        let access = credentials.access();
        let renewing = async {
            let request = self.token_request()?.build();
            let request = request.map_err(HostError::transport)?;
            let call = self.addressed(&request, &access, CallLimit::Call)?;
            read_json(&read_answer(self.client.inner()?, call).await?)
        };
        match renewing.await {
            Ok(renewed) => credentials.renew(renewed, access.attempt),
            // The token is still valid for a while; a call with an expired one reports it.
            Err(error) => {
                tracing::warn!(code = error.code, "the run token could not be renewed");
            }
        }
    }

    fn token_request(&self) -> Result<RequestBuilder, HostError> {
        let request = self.unauthorized(Method::POST, &["token"])?;
        Ok(request.json(&serde_json::json!({})))
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, HostError> {
        let request = self.request(Method::GET, path).await?;
        self.answer(request).await
    }

    pub(super) async fn request(
        &self,
        method: Method,
        path: &[&str],
    ) -> Result<RequestBuilder, HostError> {
        self.renew_token_if_due().await;
        self.unauthorized(method, path)
    }

    /// Request without a token: each attempt to send it sets the current one.
    fn unauthorized(&self, method: Method, path: &[&str]) -> Result<RequestBuilder, HostError> {
        let url = self.url(path)?;
        Ok(self.client.inner()?.request(method, url))
    }

    /// Each part of `path` is one segment, percent-encoded, slashes included.
    fn url(&self, path: &[&str]) -> Result<Url, HostError> {
        // Dot segments would leave the path, even encoded.
        if let Some(bad) = path.iter().find(|part| matches!(**part, "" | "." | "..")) {
            return Err(HostError::invalid_argument(format!("`{bad}` is no key")));
        }
        let mut url = base(&self.base_url)?;
        url.path_segments_mut()
            .map_err(|()| HostError::invalid_argument("the host's base_url takes no path"))?
            .pop_if_empty()
            .extend(path);
        Ok(url)
    }

    pub(super) async fn answer<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<T, HostError> {
        read_json(&self.send(request).await?)
    }

    pub(super) async fn send(&self, request: RequestBuilder) -> Result<HostAnswer, HostError> {
        self.read(request, CallLimit::Call).await
    }

    /// Response of a call that may take the rest of the run.
    pub(super) async fn long_answer<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<T, HostError> {
        read_json(&self.send_long(request).await?)
    }

    /// Response of a call that the gateway holds for `wait_seconds`.
    pub(super) async fn polled<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        wait_seconds: u64,
    ) -> Result<T, HostError> {
        // Longer than the gateway's wait: it answers at the end of the wait, and the response needs time.
        let limit = CallLimit::Poll(Duration::from_secs(wait_seconds) + ANSWER_TIME);
        read_json(&self.read(request, limit).await?)
    }

    pub(super) async fn send_long(&self, request: RequestBuilder) -> Result<HostAnswer, HostError> {
        self.read(request, CallLimit::Run).await
    }

    /// Response of a call that may take the rest of the run, with an unread body.
    pub(super) async fn open_long(&self, request: RequestBuilder) -> Result<Response, HostError> {
        let client = self.client.inner()?;
        self.send_with(request, CallLimit::Run, |call| client::send(client, call))
            .await
    }

    async fn read(
        &self,
        request: RequestBuilder,
        limit: CallLimit,
    ) -> Result<HostAnswer, HostError> {
        let client = self.client.inner()?;
        self.send_with(request, limit, |call| read_answer(client, call))
            .await
    }

    /// Sends a request. Repeats it after a lost gateway if the run is resumable.
    async fn send_with<T, Sending>(
        &self,
        request: RequestBuilder,
        limit: CallLimit,
        send: impl Fn(Request) -> Sending,
    ) -> Result<T, HostError>
    where
        Sending: Future<Output = Result<T, HostError>>,
    {
        let request = request.build().map_err(HostError::transport)?;
        let mut access = self.credentials.access();
        let mut failing_since = None;
        loop {
            let call = self.addressed(&request, &access, limit)?;
            let error = match send(call).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let Some(repeat) = repeat_after(&error, &request) else {
                return Err(error);
            };
            let since = *failing_since.get_or_insert_with(Instant::now);
            if !self.wait_for(repeat, access.attempt, since).await {
                return Err(error);
            }
            let attempt = access.attempt;
            access = self.credentials.access();
            if access.attempt != attempt {
                failing_since = None;
            }
        }
    }

    /// Waits before a repeated call. False: no gateway resumed the run in time.
    pub(super) async fn wait_for(&self, repeat: RepeatTime, attempt: u32, since: Instant) -> bool {
        let Some(within) = self.resume_within else {
            return false;
        };
        let left = within.saturating_sub(since.elapsed());
        let resumed = self.credentials.resumed_after(attempt);
        match repeat {
            RepeatTime::AfterResume => {
                let left = left.min(self.time_left());
                tokio::time::timeout(left, resumed).await.is_ok()
            }
            RepeatTime::Soon => {
                let _ = tokio::time::timeout(REPEAT_PAUSE, resumed).await;
                !left.is_zero()
            }
        }
    }

    /// Rest of the run.
    pub(super) fn time_left(&self) -> Duration {
        match self.times.run_time(self.clock.now()) {
            CallTime::Left(left) => left,
            CallTime::Over => Duration::ZERO,
        }
    }

    /// The request with the current token, address and time limit.
    fn addressed(
        &self,
        request: &Request,
        access: &CallAccess,
        limit: CallLimit,
    ) -> Result<Request, HostError> {
        let mut call = request.try_clone().ok_or_else(|| {
            HostError::invalid_argument("a call to the host API needs a body in memory")
        })?;
        if access.base_url != self.base_url {
            let own = base(&self.base_url)?;
            let path = call.url().as_str();
            let path = path.strip_prefix(own.as_str().trim_end_matches('/'));
            let moved = base(&access.base_url)?;
            let moved = moved.as_str().trim_end_matches('/');
            *call.url_mut() = base(&format!("{moved}{}", path.unwrap_or_default()))?;
        }
        let mut token = HeaderValue::from_str(&format!("Bearer {}", access.token))
            .map_err(|_| HostError::invalid_argument("the run token is no header value"))?;
        token.set_sensitive(true);
        call.headers_mut().insert(AUTHORIZATION, token);
        *call.timeout_mut() = Some(self.time_of(limit)?);
        Ok(call)
    }

    fn time_of(&self, limit: CallLimit) -> Result<Duration, HostError> {
        let now = self.clock.now();
        let time = match limit {
            CallLimit::Call => self.times.call_time(now),
            CallLimit::Run | CallLimit::Poll(_) => self.times.run_time(now),
        };
        match (time, limit) {
            (CallTime::Over, _) => Err(HostError::deadline_exceeded()),
            (CallTime::Left(left), CallLimit::Poll(max_wait)) => Ok(left.min(max_wait)),
            (CallTime::Left(left), _) => Ok(left),
        }
    }
}

fn base(url: &str) -> Result<Url, HostError> {
    Url::parse(url).map_err(|_| HostError::invalid_argument("the host's base_url is no URL"))
}
