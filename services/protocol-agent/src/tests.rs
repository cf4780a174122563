//! Whole runs on a scripted host.

mod declarations;
mod delegation;
mod endings;
mod graphs;
mod humans;
mod shown;
