//! What a decision leaves beside what is stored.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::id::RunId;
use store::{Ingested, StoreError};

use crate::prepare::Fresh;
use crate::start::{StartError, created_run};

/// What a decision leaves for its caller, beside what is stored.
#[derive(Clone, Default)]
pub(crate) struct Aside(Arc<Mutex<Left>>);

#[derive(Default)]
pub(super) struct Left {
    pub(super) refused: Option<StartError>,
    pub(super) cancelled: Vec<RunId>,
    pub(super) fresh: Option<Box<Fresh>>,
    /// What an earlier decision about the same event has dispatched with it.
    begun: Option<Box<Fresh>>,
}

impl Left {
    /// Another decision is made, or none any more. What the last one left is over, but for the run that it has begun:
    /// that commit may stand though nobody has heard so.
    pub(super) fn renew(&mut self) {
        let begun = self.fresh.take().filter(|fresh| fresh.beginning.is_some());
        *self = Self {
            begun: begun.or_else(|| self.begun.take()),
            ..Self::default()
        };
    }
}

impl Aside {
    pub(super) fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the event was refused.
    pub(crate) fn refused(&self) -> Option<StartError> {
        self.left().refused.take()
    }

    /// The runs that the event has cancelled.
    pub(crate) fn cancelled(&self) -> Vec<RunId> {
        std::mem::take(&mut self.left().cancelled)
    }

    /// The run that begins now, as the last decision would have it: its rows need not be read again.
    pub(crate) fn fresh(&self) -> Option<Box<Fresh>> {
        let mut left = self.left();
        // It has the place of the run that is let go of here.
        left.begun = None;
        left.fresh.take()
    }

    /// The run that is dispatched with the event by a commit of which nobody has heard: it may be made, as this outcome
    /// has it, or has been.
    pub(crate) fn begun_unheard(
        &self,
        outcome: &Result<Ingested, StoreError>,
    ) -> Option<Box<Fresh>> {
        let told = match outcome {
            Err(error) if error.is_transient() => None,
            Ok(Ingested::Replayed { answer }) => Some(created_run(answer)?),
            Ok(_) | Err(_) => return None,
        };
        let mut left = self.left();
        left.renew();
        let begun = left.begun.take()?;
        let is_told = told.is_none_or(|run| run == begun.run.id);
        is_told.then_some(begun)
    }
}
