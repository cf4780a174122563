//! Cancel, limits, steering.
