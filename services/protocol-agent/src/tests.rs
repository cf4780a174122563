//! Complete runs on a scripted host.

mod crash;
mod declarations;
mod delegation;
mod endings;
mod graphs;
mod humans;
mod programs;
mod shown;
