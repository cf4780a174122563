//! Hostile and broken outputs: the expected code, no effect, a useful notice; and all pairs of them.
