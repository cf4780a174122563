//! Seeded simulation of runs: clients, gateways, network and database of one seed, over the machines and decisions of
//! the product.
//!
//! `RUNNEL_SIMULATION_SEED=7` runs one seed. `RUNNEL_SIMULATION_SEEDS` is the number of seeds, 10,000 by default.

use std::collections::BTreeSet;
use std::env;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use faults::{Plant, Violation};
use world::World;

mod checks;
mod clients;
mod database;
mod drive;
mod driver;
mod faults;
mod gateway;
mod network;
mod process;
mod random;
mod relaying;
mod resuming;
mod runner;
mod runner_log;
pub(super) mod settings;
mod task;
mod tasks;
mod world;

/// The smallest of `seeds` with a violation.
fn first_violation(seeds: std::ops::Range<u64>, plant: Plant) -> Option<(u64, Violation)> {
    let next = AtomicU64::new(seeds.start);
    let end = AtomicU64::new(seeds.end);
    let work = || {
        let mut found = None;
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end.load(Ordering::Relaxed) {
                return found;
            }
            if let Err(violation) = World::new(seed, plant).run() {
                // Smaller seeds may still be at work.
                end.fetch_min(seed, Ordering::Relaxed);
                found = Some((seed, violation));
            }
        }
    };
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        let working: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let found = working.into_iter().filter_map(|one| one.join().unwrap());
        found.min_by_key(|(seed, _)| *seed)
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the caller of the test chooses its seeds"
)]
fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
    )
}

#[test]
fn simulated_runs_hold_their_invariants() {
    let seeds = match number("RUNNEL_SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("RUNNEL_SIMULATION_SEEDS").unwrap_or(10_000),
    };
    if let Some((seed, violation)) = first_violation(seeds, Plant::Nothing) {
        panic!(
            "seed {seed} after {} ms: {}\nrun it again: RUNNEL_SIMULATION_SEED={seed} \
             cargo test -p runs simulated_runs",
            violation.at, violation.text
        );
    }
}

#[test]
fn simulation_reaches_every_kind_of_end() {
    let reached: BTreeSet<_> = (0..300)
        .flat_map(|seed| World::new(seed, Plant::Nothing).run().unwrap())
        .collect();
    let expected = [
        "run.completed",
        "own.code",
        "attached, Completed",
        "attached, Failed",
        "cancelled",
        "deadline_exceeded",
        "host.orphaned",
        "host.shutdown",
        "pulled",
        "resumed, Completed",
        "resumed, Failed",
        "restarted, Completed",
        "restarted, Failed",
        "runner.first_byte_timeout",
        "runner.http_error",
        "runner.idle_timeout",
        "runner.lost",
        "runner.orphaned",
        "runner.protocol_violation",
        "runner.stream_truncated",
        "runner.unreachable",
    ];
    let missing: Vec<_> = expected
        .into_iter()
        .filter(|end| !reached.contains(*end))
        .collect();
    assert!(missing.is_empty(), "{missing:?} of {reached:?}");
}

/// The fault is found, and its seed finds it again.
fn check_found(plant: Plant, expected: &str) {
    let (seed, violation) = first_violation(0..1_000, plant).expect("a violation");
    assert!(violation.text.contains(expected), "{seed}: {violation:?}");
    assert_eq!(World::new(seed, plant).run(), Err(violation));
}

#[test]
fn finds_lost_fencing_check() {
    check_found(Plant::LostFencing, "was written under an old epoch");
}

#[test]
fn finds_doubled_terminal() {
    check_found(Plant::DoubledTerminal, "after its terminal");
}

#[test]
fn finds_forgotten_release() {
    // The gateway takes over no run of which its registry has an entry.
    check_found(Plant::ForgottenRelease, "no rest: live runs");
}
