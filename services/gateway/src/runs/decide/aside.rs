//! What a decision leaves beside what is stored.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::id::RunId;

use crate::runs::prepare::Fresh;
use crate::runs::start::StartError;

/// What a decision leaves for its caller, beside what is stored.
#[derive(Clone, Default)]
pub(in crate::runs) struct Aside(Arc<Mutex<Left>>);

#[derive(Default)]
pub(super) struct Left {
    pub(super) refused: Option<StartError>,
    pub(super) cancelled: Vec<RunId>,
    pub(super) fresh: Option<Box<Fresh>>,
}

impl Aside {
    pub(super) fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the event was refused.
    pub(in crate::runs) fn refused(&self) -> Option<StartError> {
        self.left().refused.take()
    }

    /// The runs that the event has cancelled.
    pub(in crate::runs) fn cancelled(&self) -> Vec<RunId> {
        std::mem::take(&mut self.left().cancelled)
    }

    /// The run that begins now: its rows need not be read again.
    pub(in crate::runs) fn fresh(&self) -> Option<Box<Fresh>> {
        self.left().fresh.take()
    }
}
