//! The scheduler against random graphs, orders and faults.

mod driver;
mod oracle;
mod properties;
mod rules;
mod spec;
