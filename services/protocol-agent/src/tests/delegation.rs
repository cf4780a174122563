//! Child runs.
