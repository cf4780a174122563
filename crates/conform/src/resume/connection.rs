//! A run whose connections the checks cut, and its results by sequence.

use domain::manifest::AcceptedManifest;
use domain::trace::RunTrace;
use protocol::id::RunId;
use protocol::request::{HostAccess, ResumeRequest};
use secrecy::ExposeSecret as _;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::check_harness::{
    CheckHarness, DispatchResult, PreparedRun, SignatureKind, in_words, is_terminal,
};
use egress::Response;
use runner_client::{Answer, SignedCall, Started, classify_response};
use runs::reader::{ReaderItem, ResultReader};

/// Run that the checks cut.
pub(super) struct CutRun<'a> {
    check_harness: &'a CheckHarness,
    runner: &'a AcceptedManifest,
    opened: PreparedRun,
    attempt: u32,
    /// Raw results; the first one has the sequence 1.
    results: Vec<Vec<u8>>,
    has_ended: bool,
}

/// Reason that a cut run does not continue.
pub(super) enum ResumeFault {
    Lost(String),
    Differs(String),
}

/// Connection of one attempt.
pub(super) struct CutConnection {
    response: Response,
    reader: ResultReader,
    /// Sequence of its next result.
    next: usize,
}

impl<'a> CutRun<'a> {
    pub(super) fn new(
        check_harness: &'a CheckHarness,
        runner: &'a AcceptedManifest,
        opened: PreparedRun,
    ) -> Self {
        Self {
            check_harness,
            runner,
            opened,
            attempt: 1,
            results: Vec::new(),
            has_ended: false,
        }
    }

    /// Posts a run and waits for the head of its stream; `None` without one.
    pub(super) async fn start(
        check_harness: &'a CheckHarness,
        runner: &'a AcceptedManifest,
    ) -> Option<(Self, CutConnection)> {
        let plan = check_harness.message(&check_harness.options.text);
        let opened = check_harness.open(runner, &plan);
        let run = Self::new(check_harness, runner, opened);
        let posted = check_harness.post(&run.opened).await;
        let DispatchResult::Started { started, .. } = posted else {
            run.leave();
            return None;
        };
        let connection = run.connection(started, 0);
        Some((run, connection))
    }

    pub(super) fn id(&self) -> RunId {
        self.opened.run
    }

    /// Sequence of the last result.
    pub(super) fn last(&self) -> u64 {
        self.results.len() as u64
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Leaves a lower attempt free.
    pub(super) fn skip_attempt(&mut self) {
        self.attempt += 1;
    }

    /// Revokes the token of the run.
    pub(super) fn leave(&self) {
        self.check_harness.host.cut(&self.opened.token);
    }

    /// Attaches with the next attempt and a new token, after a stored result.
    pub(super) async fn resume(&mut self, after: u64) -> Result<CutConnection, ResumeFault> {
        self.attempt += 1;
        let host = &self.check_harness.host;
        // As the gateway: earlier tokens are invalid before the runner has the new one.
        self.opened.token = host.move_run(&self.opened.token);
        let call = self.call_of(self.id(), self.attempt, Some(after));
        let sent = self.check_harness.send(&call, &SignatureKind::Right).await;
        let lost = ResumeFault::Lost;
        let response = sent.map_err(|error| lost(in_words(&error)))?;
        if response.status() != http::StatusCode::OK {
            let refused = self.check_harness.refused(response).await;
            return Err(lost(refused.in_words()));
        }
        match classify_response(response).await {
            Ok(Answer::Started(started)) => Ok(self.connection(started, after)),
            Ok(Answer::Deferred(_)) => Err(lost("HTTP 202".to_owned())),
            Err(error) => Err(lost(in_words(&error))),
        }
    }

    fn connection(&self, started: Started, after: u64) -> CutConnection {
        let limits = &self.check_harness.limits;
        CutConnection {
            response: started.response,
            reader: ResultReader::new(started.format, limits.line_bytes, limits.results),
            next: usize::try_from(after)
                .unwrap_or(usize::MAX)
                .saturating_add(1),
        }
    }

    /// Reads until `least` further results, or the terminal.
    pub(super) async fn read(
        &mut self,
        connection: &mut CutConnection,
        least: usize,
        until: Instant,
    ) -> Result<(), ResumeFault> {
        let wanted = self.results.len().saturating_add(least);
        // Repeated results of an ended run have to come, too.
        while connection.next <= self.results.len()
            || !self.has_ended && self.results.len() < wanted
        {
            let chunk = timeout_at(until, connection.response.chunk()).await;
            let mut items = Vec::new();
            let ended = match chunk {
                Err(_) => return Err(ResumeFault::Lost("no further result in time".to_owned())),
                Ok(Ok(Some(chunk))) => connection.reader.push(&chunk, &mut items).is_err(),
                Ok(Ok(None) | Err(_)) => {
                    connection.reader.finish(&mut items);
                    true
                }
            };
            for item in items {
                if let ReaderItem::Result(raw) = item {
                    self.take(connection, raw)?;
                }
            }
            if ended && !self.has_ended {
                let seen = "the answer ended without run.completed or run.failed";
                return Err(ResumeFault::Lost(seen.to_owned()));
            }
            if ended {
                return Ok(());
            }
        }
        Ok(())
    }

    fn take(&mut self, connection: &mut CutConnection, raw: Vec<u8>) -> Result<(), ResumeFault> {
        let result: Value = serde_json::from_slice(&raw).unwrap_or_default();
        let expected = connection.next;
        if result["sequence"] != expected {
            let sequence = &result["sequence"];
            let seen = format!("sequence {sequence} came, {expected} was due");
            return Err(ResumeFault::Differs(seen));
        }
        connection.next += 1;
        match self.results.get(expected - 1) {
            Some(first) if *first != raw => {
                let texts = [first, &raw].map(|raw| String::from_utf8_lossy(raw).into_owned());
                let [first, second] = texts.each_ref().map(|text| {
                    let redaction = &self.check_harness.redaction;
                    redaction.excerpt(text)
                });
                let seen = format!("result {expected} was {first}, then {second}");
                return Err(ResumeFault::Differs(seen));
            }
            Some(_) => {}
            None => self.results.push(raw),
        }
        if result["type"].as_str().is_some_and(is_terminal) {
            self.has_ended = true;
            self.check_harness.host.end(&self.opened.token);
        }
        Ok(())
    }

    /// Resume of a run with the current token.
    pub(super) fn call_of(&self, run: RunId, attempt: u32, after: Option<u64>) -> SignedCall {
        let request = ResumeRequest {
            run_id: run.to_string(),
            runner_id: self.runner.manifest.id.clone(),
            attempt,
            after,
            host: HostAccess {
                base_url: self.check_harness.callback_url.clone(),
                token: self.opened.token.expose_secret().to_owned(),
                token_expires_at: self.opened.token_expires_at,
            },
        };
        let body = serde_json::to_string(&request).expect("a request serialises to JSON");
        let trace = RunTrace::of(run, None).header(None);
        let endpoint = &self.check_harness.options.endpoint;
        endpoint.resume_call(run, attempt, trace, body)
    }
}

impl CutConnection {
    /// True if the body ends in time.
    pub(super) async fn closes(&mut self, until: Instant) -> bool {
        loop {
            match timeout_at(until, self.response.chunk()).await {
                Err(_) => return false,
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None) | Err(_)) => return true,
            }
        }
    }
}
