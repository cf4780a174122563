//! Benchmarks of the gateway against a proxy that only forwards, with every event persisted.
//!
//! `cargo run --profile dist -p benches` runs everything. See `benches/README.md`.
#![expect(clippy::print_stdout, reason = "prints the results")]
#![expect(
    clippy::cast_precision_loss,
    reason = "printed figures have three digits"
)]

mod agent;
mod append;
mod appends;
mod cancel;
mod client;
mod compare;
mod connectors;
mod cost;
mod database;
mod disk;
mod disk_use;
mod due;
mod figures;
mod fresh;
mod graph;
mod growth;
mod harness;
mod held;
mod host;
mod ingest;
mod load;
mod model;
mod passthrough;
mod process;
mod resume;
mod rights;
mod rounds;
mod runner_binary;
mod stage;
mod steps;
mod stub;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Compares the gateway with a proxy that does nothing")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

/// Options of every command.
#[derive(Args, Clone)]
struct Options {
    /// Rounds of each measurement; the output shows medians.
    #[arg(long, global = true, default_value_t = 5)]
    rounds: usize,
    /// Seconds per target in one scenario of one round.
    #[arg(long, global = true, default_value_t = 3.0)]
    seconds: f64,
    /// Scenarios of `all`, by prefix: `short-1,long`.
    #[arg(long, global = true, value_delimiter = ',')]
    only: Vec<String>,
    /// Events per write of the stub runner.
    #[arg(long, global = true, default_value_t = 1)]
    per_write: usize,
    /// Concurrently held streams.
    #[arg(long, global = true, default_value_t = 1000)]
    streams: usize,
    /// The gateway's binary; built when absent.
    #[arg(long, global = true)]
    gateway: Option<PathBuf>,
    /// Directory of the SQLite database during the measurement; it must be on a real disk.
    #[arg(long, global = true)]
    directory: Option<PathBuf>,
    /// URL of an empty PostgreSQL database; when absent, only SQLite is measured.
    #[arg(long, global = true, env = "RUNNEL_BENCH_POSTGRES_URL")]
    postgres: Option<String>,
    /// Output file of the figures as JSON.
    #[arg(long, global = true)]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Throughput, CPU, time to the first event and memory, as ratios to the proxy (the default).
    All,
    /// Time from a cancel request until the runner's socket closes.
    Cancel,
    /// Time from the SIGKILL of a gateway until its resumable run continues at a client.
    Resume(resume::ResumeArgs),
    /// Durably accepted events per second, answered with 202.
    Ingest,
    /// Host API calls compared with `/healthz`, and the latency added to models' streams.
    Host,
    /// Latency that gateway and harness service add to a harness's first piece, and the memory of idle sessions.
    Harness {
        /// Conversations with one turn.
        #[arg(long, default_value_t = 20)]
        sessions: usize,
    },
    /// Latency that the connectors service adds to an agent's first piece, and its memory per open stream.
    Connectors,
    /// The same tasks by a loop of tool calls and by declared graphs of actions: model calls, tokens, time,
    /// success.
    Compare(compare::CompareArgs),
    /// Bytes and syncs of a short run on the disk, and its CPU as a ratio to the proxy.
    Disk {
        /// Runs of each target in a round. Fewer than 1,000 show the CPU of the proxy too coarsely.
        #[arg(long, default_value_t = 3_000)]
        runs: usize,
    },
    /// Awaited and unawaited steps of a run, next to Restate: rate, bytes and syncs. Needs Node and npm.
    Steps {
        /// Runs of each target in a round.
        #[arg(long, default_value_t = 320)]
        runs: usize,
    },
    /// Ledger events of async runs, as a share of a log that only appends and syncs.
    Append,
    /// Short runs, lists and the file at several numbers of runs, and the deletion of old ledgers under load.
    Growth(growth::GrowthArgs),
    /// Short runs while many occurrences of schedules are due at once.
    Due(due::DueArgs),
    /// Short runs on a PostgreSQL database without statistics, compared with the same after ANALYZE. `--postgres` names
    /// a server with the right to create databases.
    Fresh,
    /// Action graphs: parse and validate, a scheduler step, a rendered transcript. Runs without a gateway.
    Graph,
    /// The rule check of a host call among many grants. Runs without a gateway.
    Rights,
    /// Held streams of many runs and of one run: memory, time of a delivery, end after the revocation of the key.
    Held,
    /// Requests of the Local Agent to the gateway, and the latency that both add to model and tool.
    Agent {
        /// Plays of the script.
        #[arg(long, default_value_t = 100)]
        plays: usize,
    },
    /// The stub runner.
    #[command(hide = true)]
    Stub,
    /// The proxy that only forwards.
    #[command(hide = true)]
    Passthrough { upstream: String },
    /// The log that only appends and syncs.
    #[command(hide = true)]
    AppendLog { file: PathBuf },
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let options = cli.options;
    match cli.command.unwrap_or(Command::All) {
        Command::Passthrough { upstream } => many_threads(passthrough::serve(upstream)),
        Command::Stub => one_thread(stub::serve_as_process()),
        Command::All => one_thread(rounds::run(&options)),
        Command::Cancel => one_thread(cancel::run(&options)),
        Command::Resume(args) => one_thread(resume::run(&options, &args)),
        Command::Ingest => one_thread(ingest::run(&options)),
        Command::AppendLog { file } => many_threads(append::serve(file)),
        Command::Disk { runs } => one_thread(disk_use::run(&options, runs)),
        Command::Steps { runs } => one_thread(steps::run(&options, runs)),
        Command::Append => one_thread(append::run(&options)),
        Command::Growth(args) => one_thread(growth::run(&options, &args)),
        Command::Due(args) => one_thread(due::run(&options, &args)),
        Command::Fresh => one_thread(fresh::run(&options)),
        Command::Graph => graph::run(&options),
        Command::Rights => rights::run(&options),
        Command::Host => one_thread(host::run(&options)),
        Command::Harness { sessions } => one_thread(harness::run(&options, sessions)),
        Command::Compare(args) => many_threads(compare::run(&options, &args)),
        Command::Connectors => one_thread(connectors::run(&options)),
        Command::Agent { plays } => many_threads(agent::run(&options, plays)),
        Command::Held => one_thread(async {
            let stage = stage::BenchStage::new(&options).await?;
            let held = held::measure(&stage).await?;
            figures::print_held(&held);
            let held: Vec<_> = held.iter().map(held::HeldFigures::to_json).collect();
            figures::write(&options, &serde_json::json!({"held": held}))
        }),
    }
}

/// Load generator and stub run on one thread, to cost less than what they measure.
fn one_thread(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.context("no runtime")?.block_on(work)
}

/// The proxy gets as many threads as the gateway; so do the agent, its model and its tool.
fn many_threads(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.context("no runtime")?.block_on(work)
}
