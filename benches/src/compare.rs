//! Compares a plain loop of tool calls with declared graphs of actions: model calls, tokens, time, success.
//!
//! Modules, in reading order:
//!
//! - [`tasks`]: the tasks
//! - [`world`]: their tools
//! - [`arms`]: the compared agents
//! - [`policy`]: the scripted model, which gives the ideal output of each task in the form of an arm
//! - [`upstream`]: the server of models and tools, with counters
//! - [`play`]: the processes and the user
//! - [`table`]: the output

mod arms;
mod play;
mod policy;
mod real;
mod seen;
mod table;
mod tasks;
mod upstream;
mod world;

use anyhow::{Context as _, ensure};
use clap::Args;
use serde_json::json;
use url::Url;

use crate::Options;
use crate::figures::write;
use crate::process::machine;
use crate::stage::BenchStage;
use arms::Arm;
use play::{CompareStage, smoke_test};
use real::RealModel;
use table::{Plays, tables, to_json, verdict};
use tasks::Task;
use upstream::{CompareUpstream, MODEL, TOOL};

/// Tasks for a small real model.
const SMALL: [Task; 4] = [Task::OneRead, Task::FiveReads, Task::FindRead, Task::Chain];

/// Settings of the comparison.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    /// Plays of each task by each arm; the tables show medians.
    #[arg(long, default_value_t = 3)]
    plays: usize,
    /// Base URL of an OpenAI-compatible model that replaces the scripted one, such as
    /// `http://127.0.0.1:18090/v1`.
    #[arg(long, requires = "model")]
    model_url: Option<Url>,
    /// The name of that model.
    #[arg(long, requires = "model_url")]
    model: Option<String>,
    /// Tasks by name: one-read, five-reads, find-read, list, chain, judgement, alternative, large, approval, children,
    /// long, restart. All when absent.
    #[arg(long, value_delimiter = ',')]
    tasks: Vec<String>,
    /// Leaves out child runs, for a gateway without them.
    #[arg(long)]
    without_children: bool,
}

pub(crate) async fn run(options: &Options, args: &CompareArgs) -> anyhow::Result<()> {
    ensure!(args.plays > 0, "--plays counts from 1");
    let real = match (&args.model_url, &args.model) {
        (Some(url), Some(model)) => Some(RealModel::new(url, model)?),
        _ => None,
    };
    let tasks = chosen(args, real.is_some())?;
    let stage = BenchStage::new(options).await?;
    let is_real = real.is_some();
    let upstream = CompareUpstream::start(real).await?;
    let house = CompareStage::open(&stage, upstream, !args.without_children).await?;
    println!("{}", machine());
    if !is_real {
        let (model, tool) = (MODEL.as_millis(), TOOL.as_millis());
        println!(
            "a scripted model of {model} ms a call, tools of {tool} ms, {} plays",
            args.plays
        );
        smoke_test(&house).await?;
    }
    let mut plays = Plays::new();
    for _ in 0..args.plays {
        for task in &tasks {
            for arm in Arm::ALL
                .into_iter()
                .filter(|arm| task.is_for_loops() || arm.form() != arms::OutputForm::Native)
            {
                let play = house.play(arm, *task).await;
                let play =
                    play.with_context(|| format!("arm {}, task {}", arm.letter(), task.name()))?;
                if !play.is_right {
                    println!("arm {}, {}: {}", arm.letter(), task.title(), play.answer);
                }
                plays.entry((*task, arm)).or_default().push(play);
            }
        }
    }
    println!("\n{}", tables(&plays));
    for (rule, outcome) in verdict(&plays) {
        let outcome = outcome.map_or(
            "not played",
            |is_met| if is_met { "kept" } else { "BROKEN" },
        );
        println!("{rule}: {outcome}");
    }
    write(
        options,
        &json!({"compare": to_json(&plays), "machine": machine()}),
    )
}

fn chosen(args: &CompareArgs, is_real: bool) -> anyhow::Result<Vec<Task>> {
    let find_task = |name: &String| {
        let task = Task::ALL.into_iter().find(|task| task.name() == name);
        task.with_context(|| format!("there is no task {name}"))
    };
    let mut tasks = args
        .tasks
        .iter()
        .map(find_task)
        .collect::<Result<Vec<_>, _>>()?;
    if tasks.is_empty() {
        tasks = if is_real {
            SMALL.to_vec()
        } else {
            Task::ALL.to_vec()
        };
    }
    tasks.retain(|task| *task != Task::Children || !args.without_children);
    Ok(tasks)
}
