//! Making a run ready before it is stored, so that it is dispatched with its event.

use std::sync::Arc;

use domain::trace::RunTrace;
use protocol::admin::DeltaMode;
use serde_json::value::RawValue;
use store::{ConversationPosition, NewRun};
use tokio::time::Instant;

use super::told::{Told, write_context};
use crate::decide::{Deciding, Made};
use runner_client::Endpoint;

/// What a run that is dispatched with its event was made ready with before.
pub(crate) struct Beginning {
    pub(crate) context: Arc<RawValue>,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) delta_mode: DeltaMode,
    /// When the database was asked for the lease; none before.
    pub(crate) asked_at: Option<Instant>,
}

impl Beginning {
    /// Makes a run ready that stands at this place of its conversation. `None`: it cannot be now, and may be later.
    pub(crate) async fn of(
        deciding: &Deciding<'_>,
        (run, made): (&NewRun, &Made),
        at: PlaceAhead,
    ) -> Option<Self> {
        let (inner, workspace) = (deciding.inner, deciding.workspace);
        let address = made.endpoint.as_ref()?;
        let endpoint = inner.endpoints.open(&inner.master_key, address).ok()?;
        let told = Told {
            workspace,
            snapshot: &made.snapshot,
            snapshot_sha256: &run.snapshot_sha256,
            spec: &made.spec,
            event: deciding.event,
            event_seq: at.event_seq,
            transcript_before: at.transcript_before,
            arrived_at: inner.clock.now_ms(),
            deadline_at: run.deadline_at,
            trace: RunTrace::of(run.id, run.trace_parent),
        };
        Some(Self {
            context: write_context(inner, told).await.ok()?,
            endpoint,
            delta_mode: address.delta_mode,
            asked_at: None,
        })
    }
}

/// Where an event will stand in its conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlaceAhead {
    /// `None`: it is of no conversation.
    pub(crate) event_seq: Option<i64>,
    /// The newest place of the transcript before it; 0 for none.
    pub(crate) transcript_before: i64,
}

impl PlaceAhead {
    /// Where it does stand.
    pub(crate) fn of(place: Option<&ConversationPosition>) -> Self {
        Self {
            event_seq: place.map(|place| place.event_seq),
            transcript_before: place.map_or(0, |place| place.transcript_before),
        }
    }
}
