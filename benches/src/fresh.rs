//! Short runs on a PostgreSQL database without statistics, compared with the same runs after ANALYZE.
//!
//! Without statistics, the planner may choose a scan where an index would do. Both databases are new, get the
//! same data and are measured in turn. Autovacuum analyses neither, so one stays without statistics.

use anyhow::{Context as _, ensure};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use url::Url;
use uuid::Uuid;

use crate::Options;
use crate::database::Database;
use crate::figures::{median, percentile, write};
use crate::load::{LoadOutcome, LoadTarget, drive};
use crate::process::machine;
use crate::stage::{BenchStage, ConfigAdditions, Gateway, play};
use crate::stub::StubScript;

/// Concurrent clients.
const CLIENTS: usize = 32;
/// Results of one run before its terminal event.
const DELTAS: usize = 10;
/// Seconds of load on both databases before the first round.
const FILL_SECONDS: f64 = 5.0;
/// Maximum ratio of the fresh database's time to the analysed one's.
const MAX_RATIO: f64 = 1.1;

/// A measured database with its gateway.
struct MeasuredDatabase {
    name: String,
    database: Url,
    target: LoadTarget,
    /// Stops on drop.
    _gateway: Gateway,
    rounds: Vec<LoadOutcome>,
}

/// Measures both sides, and prints the p50 of a run on each and their ratio.
pub(crate) async fn run(options: &Options) -> anyhow::Result<()> {
    let server = options.postgres.as_deref().context(
        "name a PostgreSQL server with the right to create databases: --postgres postgres://…",
    )?;
    let server = Url::parse(server).context("--postgres is no URL")?;
    let stage = BenchStage::new(options).await?;
    let mut names = Vec::new();
    let measured = measure(&stage, &server, &mut names).await;
    // Drop the databases also after a failure.
    for name in &names {
        execute(
            &server,
            &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"),
        )
        .await?;
    }
    let [fresh, analysed] = measured?;
    print_ratio(options, &fresh, &analysed)
}

async fn measure(
    stage: &BenchStage,
    server: &Url,
    names: &mut Vec<String>,
) -> anyhow::Result<[Vec<LoadOutcome>; 2]> {
    let stub = stage.stub().await?;
    let script = StubScript {
        deltas: DELTAS,
        per_write: stage.options.per_write,
        ..StubScript::default()
    };
    play(&stub.address, script).await?;
    let mut sides = Vec::new();
    for kind in ["fresh", "analysed"] {
        let name = format!("runnel_bench_{kind}_{}", Uuid::now_v7().simple());
        execute(server, &format!("CREATE DATABASE {name}")).await?;
        names.push(name.clone());
        sides.push(MeasuredDatabase::new(stage, server, name, &stub.address).await?);
    }
    for side in &mut sides {
        side.drive(stub.pid, FILL_SECONDS).await?;
        side.rounds.clear();
    }
    for round in 0..stage.options.rounds {
        // Tables grow, so the sides alternate in going first.
        for index in [round % 2, (round + 1) % 2] {
            if index == 1 {
                execute(&sides[index].database, "ANALYZE").await?;
            }
            sides[index].drive(stub.pid, stage.options.seconds).await?;
        }
        ensure!(
            !is_analysed(&sides[0].database).await?,
            "{} was analysed: it is not fresh any more",
            sides[0].name
        );
    }
    let mut rounds = sides.into_iter().map(|side| side.rounds);
    let mut next = || rounds.next().unwrap_or_default();
    Ok([next(), next()])
}

impl MeasuredDatabase {
    async fn new(
        stage: &BenchStage,
        server: &Url,
        name: String,
        stub: &str,
    ) -> anyhow::Result<Self> {
        let mut database = server.clone();
        database.set_path(&name);
        let on = Database::at("postgres", database.as_str());
        let (gateway, target) = stage
            .gateway(&name, &on, stub, ConfigAdditions::default())
            .await?;
        execute(&database, NO_AUTOVACUUM).await?;
        Ok(Self {
            name,
            database,
            target,
            _gateway: gateway,
            rounds: Vec::new(),
        })
    }

    async fn drive(&mut self, stub: u32, seconds: f64) -> anyhow::Result<()> {
        let outcome = drive(&self.target, stub, CLIENTS, DELTAS as u64 + 1, seconds).await?;
        for complaint in &outcome.errors {
            println!("FAILED on {}: {complaint}", self.name);
        }
        ensure!(outcome.failures == 0, "these figures count for nothing");
        self.rounds.push(outcome);
        Ok(())
    }
}

const NO_AUTOVACUUM: &str = "DO $$ DECLARE t text; BEGIN \
    FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP \
    EXECUTE format('ALTER TABLE %I SET (autovacuum_enabled = off)', t); END LOOP; END $$";

async fn execute(database: &Url, sql: &str) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(database.as_str()).await?;
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await?;
    connection.close().await?;
    Ok(())
}

/// True when the planner has statistics of any table.
async fn is_analysed(database: &Url) -> anyhow::Result<bool> {
    let mut connection = PgConnection::connect(database.as_str()).await?;
    let sql = "SELECT EXISTS (SELECT 1 FROM pg_stats WHERE schemaname = 'public')";
    let found = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(found)
}

/// The median time of a run in each round, in milliseconds.
fn medians(rounds: &[LoadOutcome]) -> Vec<f64> {
    let of_round = |one: &LoadOutcome| percentile(&one.run_ms, 50.0);
    rounds.iter().map(of_round).collect()
}

fn print_ratio(
    options: &Options,
    fresh: &[LoadOutcome],
    analysed: &[LoadOutcome],
) -> anyhow::Result<()> {
    let (of_fresh, of_analysed) = (medians(fresh), medians(analysed));
    let ratios = of_fresh
        .iter()
        .zip(&of_analysed)
        .map(|(one, other)| one / other);
    let ratio = median(&ratios.collect::<Vec<_>>());
    let per_second = |rounds: &[LoadOutcome]| {
        let rates = rounds.iter().map(|one| one.runs as f64 / one.seconds);
        median(&rates.collect::<Vec<_>>())
    };
    println!("{}; {CLIENTS} clients, runs of {DELTAS} deltas", machine());
    let sides = [
        ("fresh", fresh, &of_fresh),
        ("analysed", analysed, &of_analysed),
    ];
    for (name, rounds, p50) in sides {
        println!(
            "{name:<12} p50 {:>7.2} ms, {:>7.0} runs/s",
            median(p50),
            per_second(rounds)
        );
    }
    let verdict = if ratio <= MAX_RATIO {
        "within"
    } else {
        "NOT within"
    };
    println!("fresh to analysed: p50 {ratio:.2}, {verdict} the target of {MAX_RATIO:.2}");
    write(
        options,
        &json!({"fresh": {
            "p50_ms": median(&of_fresh), "p50_ms_analysed": median(&of_analysed), "ratio": ratio,
            "runs_per_second": per_second(fresh), "runs_per_second_analysed": per_second(analysed),
            "ratio_at_most": MAX_RATIO, "rounds": fresh.len(),
        }}),
    )
}
