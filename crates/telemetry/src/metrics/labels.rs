//! Values of labels.

/// Result of a notification on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotificationOutcome {
    /// Queued for sending.
    Sent,
    /// Dropped: the send queue was full.
    Lost,
    /// Received from another replica.
    Inbound,
    /// Reconnected: notifications may have been lost.
    Missed,
}

impl NotificationOutcome {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Lost => "lost",
            Self::Inbound => "heard",
            Self::Missed => "missed",
        }
    }
}

/// Reason why the sweep recovered a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryReason {
    /// Its lease had expired.
    Orphaned,
    /// Its lease had expired, but its runner appends results.
    Continued,
    /// It was stored but never dispatched.
    Dispatched,
    /// It was queued for too long.
    Overdue,
}

impl RecoveryReason {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Orphaned => "orphaned",
            Self::Continued => "continued",
            Self::Dispatched => "dispatched",
            Self::Overdue => "overdue",
        }
    }
}

/// End of a call's waits for raises of budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetWaitEnd {
    /// The call went on.
    Continued,
    /// The answer refused, or the time to wait was over.
    Refused,
    /// The run was over, the gateway stopped, or the database failed.
    Aborted,
}

impl BudgetWaitEnd {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Continued => "continued",
            Self::Refused => "refused",
            Self::Aborted => "aborted",
        }
    }
}

/// The kind of task that panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanickedTask {
    Run,
    Handler,
    Connection,
    Writer,
    /// Background work.
    Upkeep,
}

impl PanickedTask {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Handler => "handler",
            Self::Connection => "connection",
            Self::Writer => "writer",
            Self::Upkeep => "upkeep",
        }
    }
}

/// State of an endpoint's circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// One probe call at a time.
    HalfOpen,
    /// Calls fail fast.
    Open,
}
