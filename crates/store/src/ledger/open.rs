//! An append that is made up only when the writer takes it: what comes while it waits goes with it.

use std::fmt;
use std::sync::OnceLock;

use protocol::id::RunId;
use sea_orm::DatabaseTransaction;
use uuid::Uuid;

use super::{Append, Appended};
use crate::bulk::{Done, Together};
use crate::error::StoreError;
use crate::writer::Work;

/// An append on its way to the writer.
pub struct OpenAppend {
    run_id: RunId,
    weight: usize,
    make: Box<dyn Fn() -> Append + Send + Sync>,
    made: OnceLock<Append>,
}

impl OpenAppend {
    /// An append to a run that `make` makes up, once, when it is needed. `weight`: its bytes, as far as they are
    /// known.
    pub fn new(
        run_id: RunId,
        weight: usize,
        make: impl Fn() -> Append + Send + Sync + 'static,
    ) -> Self {
        Self {
            run_id,
            weight,
            make: Box::new(make),
            made: OnceLock::new(),
        }
    }

    /// Whose it is.
    pub fn run_id(&self) -> RunId {
        self.run_id
    }

    /// What is written. From now on it stays as it is.
    pub fn made(&self) -> &Append {
        self.made.get_or_init(&self.make)
    }
}

impl fmt::Debug for OpenAppend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAppend")
            .field("run_id", &self.run_id)
            .field("made", &self.made)
            .finish_non_exhaustive()
    }
}

impl Work for OpenAppend {
    type Output = Appended;
    const CHANGES_AGENTS: bool = false;

    fn weight(&self) -> usize {
        self.weight
    }

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn together(&self) -> Option<Together<'_>> {
        self.made().together()
    }

    fn output_of(&self, done: Done) -> Option<Appended> {
        self.made().output_of(done)
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Appended, StoreError> {
        self.made().apply(tx).await
    }

    async fn stands(&self, tx: &DatabaseTransaction, told: &Appended) -> Result<bool, StoreError> {
        self.made().stands(tx, told).await
    }
}
