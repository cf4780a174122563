//! One gateway, two runners, and a client that plays a task with an arm.

mod client;
mod settings;

use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::arms::{Arm, OutputForm};
use super::tasks::Task;
use super::upstream::{CompareUpstream, PlayCounts};
use super::world::WRITES;
use crate::runner_binary::RunnerBinary;
use crate::stage::{BenchStage, Gateway, MeasuredProcess};
use client::CompareUser;
use settings::CompareConfig;

/// Characters of a salt.
const SALT: usize = 8;

/// One play of a task by an arm.
#[derive(Clone, Debug)]
pub(super) struct Play {
    pub(super) tally: PlayCounts,
    /// Seconds from the first event to the end of the last run.
    pub(super) seconds: f64,
    /// True when the last answer has the expected tokens, and no booking was made twice.
    pub(super) is_right: bool,
    /// The last answer, or the error of the run.
    pub(super) answer: String,
}

/// The processes of the comparison, killed on drop.
pub(super) struct CompareStage {
    pub(super) upstream: CompareUpstream,
    gateway: Gateway,
    local: Mutex<RestartableRunner>,
    declaring: Mutex<RestartableRunner>,
}

/// A runner that can restart at the same address.
struct RestartableRunner {
    binary: RunnerBinary,
    served: Option<MeasuredProcess>,
}

impl CompareStage {
    pub(super) async fn open(
        stage: &BenchStage,
        upstream: CompareUpstream,
        has_children: bool,
    ) -> anyhow::Result<Self> {
        let local = RestartableRunner::start(stage, "local-agent", "LOCAL_AGENT_SECRET").await?;
        let declaring =
            RestartableRunner::start(stage, "runnel-protocol-agent", "PROTOCOL_AGENT_SECRET")
                .await?;
        let settings = CompareConfig {
            upstream: &upstream.address,
            local: &local.binary.listen,
            declaring: &declaring.binary.listen,
            secret: stage.secret()?,
            has_children,
        };
        let databases = stage.databases();
        let sqlite = databases.first().context("SQLite")?;
        let (gateway, _) = stage.serve("compare", sqlite, &settings.to_toml()?).await?;
        Ok(Self {
            upstream,
            gateway,
            local: Mutex::new(local),
            declaring: Mutex::new(declaring),
        })
    }

    /// Plays a task once, in a conversation of its own.
    pub(super) async fn play(&self, arm: Arm, task: Task) -> anyhow::Result<Play> {
        let salt: String = Uuid::new_v4()
            .simple()
            .to_string()
            .chars()
            .take(SALT)
            .collect();
        self.upstream.begin(&salt);
        let client = CompareUser {
            address: &self.gateway.served.address,
            key: &self.gateway.key,
            arm,
            conversation: format!("{}-{}-{salt}", arm.name(), task.name()),
        };
        let begin = Instant::now();
        let mut answer = String::new();
        for turn in 1..=task.turns() {
            let prompt = task.prompt(turn);
            answer = match task {
                Task::Restart => self.say_through_restart(&client, task).await?,
                Task::Approval => client.say_and_approve(&prompt).await?,
                _ => client.say(&prompt).await?.text(),
            };
        }
        let seconds = begin.elapsed().as_secs_f64();
        let tally = self.upstream.tally();
        let is_once = WRITES
            .iter()
            .all(|(tool, ..)| tally.tools.get(*tool).is_none_or(|calls| *calls <= 1));
        let is_right = is_once
            && task
                .expected(&salt)
                .iter()
                .all(|token| answer.contains(token));
        Ok(Play {
            tally,
            seconds,
            is_right,
            answer,
        })
    }

    /// Restarts the runner during a tool call. Afterwards, the user asks the agent to continue.
    async fn say_through_restart(
        &self,
        client: &CompareUser<'_>,
        task: Task,
    ) -> anyhow::Result<String> {
        let runner = match client.arm.form() {
            OutputForm::Native => &self.local,
            OutputForm::Carrier | OutputForm::Fenced => &self.declaring,
        };
        let restart = async {
            self.upstream.slow_tool_called().await;
            runner.lock().await.restart().await
        };
        let prompt = task.prompt(1);
        let (first, restarted) = tokio::join!(client.say(&prompt), restart);
        restarted?;
        let first = first?;
        if first.is_completed {
            return Ok(first.text());
        }
        client.say_and_answer(&task.prompt(2)).await
    }
}

impl RestartableRunner {
    async fn start(stage: &BenchStage, name: &str, secret: &'static str) -> anyhow::Result<Self> {
        let binary = RunnerBinary::find(stage, name, secret)?;
        let served = Some(binary.start().await?);
        Ok(Self { binary, served })
    }

    async fn restart(&mut self) -> anyhow::Result<()> {
        if let Some(served) = self.served.take() {
            served.kill().await?;
        }
        self.served = Some(self.binary.start().await?);
        Ok(())
    }
}

/// Fails early, with the cause, if an arm cannot run at all.
pub(super) async fn smoke_test(house: &CompareStage) -> anyhow::Result<()> {
    for arm in [Arm::Serial, Arm::Flat, Arm::Full] {
        let play = house.play(arm, Task::OneRead).await?;
        ensure!(
            play.is_right,
            "the smoke test of arm {} failed: {} {}",
            arm.letter(),
            play.answer,
            json!(play.tally.tools)
        );
    }
    Ok(())
}
