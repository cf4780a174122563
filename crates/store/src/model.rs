//! Data types of the operations, without logic. They know no aggregate, so every aggregate may use them.

pub(crate) mod append;
pub(crate) mod audit;
pub(crate) mod dispatch;
pub(crate) mod ingest;
pub(crate) mod new_run;
pub(crate) mod platform_action;
pub(crate) mod registry;
pub(crate) mod state;
