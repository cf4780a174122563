//! Power cuts: the processes die, and the disk drops what they did not sync: all of it, some writes out of order, or
//! parts of writes. Everything that was acknowledged must be there.
//!
//! Three hundred cuts take about five minutes on `SQLite`, and half an hour on `PostgreSQL`:
//! ```sh
//! RUNNEL_TEST_POWER_CUTS=300 cargo test -p e2e --test e2e -- --nocapture power_cuts::
//! ```

use std::collections::BTreeMap;
use std::fs::DirEntry;
use std::panic::AssertUnwindSafe;
use std::sync::Once;
use std::time::Duration;

use futures_util::FutureExt;
use reqwest::Method;
use rstest::rstest;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::checks::ConversationLog;
use super::journal::ClientConversation;
use super::load::Load;
use super::{configure, stage_with};
use crate::support::client::{Client, send};
use crate::support::database::rows;
use crate::support::disk::{Disk, DiskFault, LostWrites, PowerLoss};
use crate::support::gateway::{Config, GatewayProcess};
use crate::support::postgres_servers::PostgresServer;
use crate::support::waiting::announce;
use crate::support::{OwnStage, RandomDurations, Sqlite, number, seed, skipped, until};

/// Maximum time of load before a cut.
const LONGEST: Duration = Duration::from_millis(400);
/// Maximum disk operations before a cut.
const OPERATIONS: u64 = 300;
/// One in this many cuts is followed by another one during the start.
const BOOTS: u64 = 5;
/// Maximum time before such a cut.
const LONGEST_BOOT: Duration = Duration::from_millis(300);

/// A gateway, and a disk that loses power.
struct DiskStage {
    stage: OwnStage,
    /// `PostgreSQL` on the disk.
    server: Option<PostgresServer>,
    disk: Disk,
    database: String,
}

impl DiskStage {
    /// Database and artifacts are on the disk, in new directories. Returns `None` without a C compiler.
    async fn on_sqlite() -> Option<Self> {
        let disk = Disk::new()?;
        let root = disk.root().display().to_string();
        let database = format!("sqlite://{root}/data/runnel.db");
        let stage = staged(&database, |config| {
            config.environment.extend(disk.environment());
            config.artifacts = format!("url = \"file://{root}/files/artifacts\"\n");
        });
        Some(Self {
            stage: stage.await,
            server: None,
            disk,
            database,
        })
    }

    /// The data directory of the server is on the disk. Returns `None` without its programs or a C compiler.
    async fn on_postgres() -> Option<Self> {
        let disk = Disk::new()?;
        let server = PostgresServer::start_on(&disk).await?;
        let database = server.url("runnel");
        Some(Self {
            stage: staged(&database, |_| {}).await,
            server: Some(server),
            disk,
            database,
        })
    }

    /// After the last cut: SQLite finds no damage in tables, indexes and the full-text index.
    async fn assert_sound(&mut self) {
        self.stage.gateway.stop().await;
        let faults = rows(&self.database, "PRAGMA integrity_check").await;
        assert_eq!(faults, ["ok"]);
        let foreign = "SELECT \"table\" FROM pragma_foreign_key_check";
        assert_eq!(rows(&self.database, foreign).await, [""; 0]);
    }
}

async fn staged(database: &str, change: impl FnOnce(&mut Config)) -> OwnStage {
    let database = database.to_owned();
    let stage = stage_with(Sqlite, |config| {
        configure(config, "1.5");
        config.has_fresh_database = true;
        config.database_at = Some(Box::new(move |_| database.clone()));
        change(config);
    });
    stage.await.expect("a database at an address of its own")
}

/// Stops the disk, kills all processes, drops writes and starts the server.
async fn cut_power(
    gateway: &mut GatewayProcess,
    server: Option<&PostgresServer>,
    disk: &Disk,
    random: &mut RandomDurations,
) -> LostWrites {
    disk.cut();
    gateway.kill().await;
    if let Some(server) = server {
        server.kill_processes();
    }
    let lost = lose(disk, random);
    if let Some(server) = server {
        server.restart();
    }
    lost
}

fn lose(disk: &Disk, random: &mut RandomDurations) -> LostWrites {
    let losses = [PowerLoss::All, PowerLoss::Reordered, PowerLoss::Torn];
    let loss = losses[usize::try_from(random.next() % 3).unwrap()];
    disk.lose(loss, &mut || random.next())
}

/// Uploads artifacts until the gateway is gone. Returns the acknowledged ones by id.
async fn upload(client: &Client, gone: &CancellationToken) -> BTreeMap<String, String> {
    let mut acknowledged = BTreeMap::new();
    while !gone.is_cancelled() {
        let content = Uuid::new_v4().to_string();
        let request = client.request(Method::POST, "/v1/artifacts?name=one.txt");
        if let Ok(answer) = send(request.body(content.clone())).await
            && answer.status == 201
        {
            let id = answer.body["artifact_id"].as_str().unwrap();
            acknowledged.insert(id.to_owned(), content);
        }
    }
    acknowledged
}

async fn assert_uploaded(client: &Client, artifacts: &BTreeMap<String, String>) {
    for (id, content) in artifacts {
        let request = client.request(Method::GET, &format!("/v1/artifacts/{id}/content"));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{id} was acknowledged and is gone");
        assert_eq!(response.text().await.unwrap(), *content, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_data_survive_power_cuts() {
    let mut staged = or_skip!(DiskStage::on_sqlite().await);
    let cuts = number("RUNNEL_TEST_POWER_CUTS", 20);
    cut_repeatedly(&mut staged, cuts).await;
    staged.assert_sound().await;
}

/// Only with `RUNNEL_TEST_POWER_CUTS`: each restart of the server takes seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_data_survive_power_cuts_of_postgres() {
    let cuts = number("RUNNEL_TEST_POWER_CUTS", 0);
    if cuts == 0 {
        announce(
            &NO_CUTS,
            "SKIPPED power cuts of PostgreSQL: .ci/long runs them",
        );
        return;
    }
    let mut staged = or_skip!(DiskStage::on_postgres().await);
    cut_repeatedly(&mut staged, cuts).await;
}

static NO_CUTS: Once = Once::new();

async fn cut_repeatedly(staged: &mut DiskStage, cuts: usize) {
    let mut random = RandomDurations(seed());
    let (mut book, mut lost) = (ConversationLog::default(), LostWrites::default());
    let mut uploads = 0;
    for cut in 1..=cuts {
        let DiskStage {
            stage: OwnStage { stage, gateway },
            server,
            disk,
            ..
        } = staged;
        let (client, runner) = (&stage.client, &stage.runner);
        let load = Load {
            client,
            runner,
            gone: CancellationToken::new(),
        };
        let cutting = async {
            if random.next().is_multiple_of(2) {
                disk.cut_after(u32::try_from(1 + random.next() % OPERATIONS).unwrap());
            }
            // Not a wait for a condition: the test needs a cut at this moment.
            tokio::time::sleep(random.up_to(LONGEST)).await;
            lost.add(cut_power(gateway, server.as_ref(), disk, &mut random).await);
            load.gone.cancel();
        };
        let (talks, artifacts, ()) = tokio::join!(load.run(), upload(client, &load.gone), cutting);
        if server.is_none() && random.next().is_multiple_of(BOOTS) {
            gateway.start_and_kill(random.up_to(LONGEST_BOOT)).await;
            lost.add(lose(disk, &mut random));
        }
        gateway.restart().await;
        book.reconcile(client, talks).await;
        assert_uploaded(client, &artifacts).await;
        uploads += artifacts.len();
        book.check_ended(client, runner).await;
        if cut % 50 == 0 {
            eprintln!("{cut} of {cuts} cuts: {lost:?}, {:?}", book.figures);
        }
    }
    book.close(&staged.stage.client, &staged.stage.runner).await;
    eprintln!(
        "{cuts} cuts: {lost:?}, {uploads} uploads, {:?}",
        book.figures
    );
    assert!(lost.dropped > 0, "the cuts dropped nothing");
    assert!(book.figures.runs >= cuts, "hardly a run was started");
}

/// A disk that ignores syncs loses acknowledged events, which the checks of these tests find.
#[tokio::test]
async fn finds_acknowledged_events_without_sync() {
    let mut staged = or_skip!(DiskStage::on_sqlite().await);
    staged.disk.ignore_syncs();
    let mut talk = ClientConversation::new("");
    let event = talk.event("chain");
    let run_id = staged.stage.client.post(&event).await.run_id();
    talk.acknowledged(&event, &run_id);
    staged.stage.client.finished(&run_id).await;
    let [syncs, writes] = staged.disk.operations();
    assert!(syncs > 0 && writes > 0, "the gateway bypasses the disk");
    staged.disk.cut();
    staged.stage.gateway.kill().await;
    staged.disk.lose(PowerLoss::All, &mut || 0);
    staged.stage.gateway.restart().await;
    let mut book = ConversationLog::default();
    let checked = AssertUnwindSafe(book.reconcile(&staged.stage.client, vec![talk]));
    let found = checked.catch_unwind().await.unwrap_err();
    let found = found.downcast_ref::<String>().unwrap();
    assert_contains!(found, "was acknowledged and is gone");
}

/// Posts new events until one has this result. Returns their conversations.
async fn post_until(
    what: &str,
    client: &Client,
    is_wanted: impl Fn(u16) -> bool,
) -> Vec<ClientConversation> {
    let mut talks = Vec::new();
    until(what, async || {
        let mut talk = ClientConversation::new("");
        let event = talk.event("chain");
        let answer = send(client.posting(&event)).await.unwrap();
        if answer.status == 202 {
            talk.acknowledged(&event, &answer.run_id());
        }
        talks.push(talk);
        is_wanted(answer.status)
    })
    .await;
    talks
}

/// Writes before a failed sync are lost, although later syncs succeed. Lasting faults refuse all events, and the
/// gateway serves again after the fault.
#[rstest]
#[case::one_failed_sync(DiskFault::OneSync)]
#[case::failed_syncs(DiskFault::Syncs)]
#[case::full_disk(DiskFault::Full)]
#[case::read_only_remount(DiskFault::ReadOnly)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_data_survive_disk_fault_and_power_cut(#[case] fault: DiskFault) {
    let mut staged = or_skip!(DiskStage::on_sqlite().await);
    let mut random = RandomDurations(seed());
    let DiskStage {
        stage: OwnStage { stage, gateway },
        disk,
        ..
    } = &mut staged;
    let (client, runner) = (&stage.client, &stage.runner);
    let load = Load {
        client,
        runner,
        gone: CancellationToken::new(),
    };
    let failing = async {
        // Not waits for conditions: the test needs the fault and the cut at such moments.
        tokio::time::sleep(random.up_to(LONGEST)).await;
        disk.fail(fault);
        let mut talks = if fault == DiskFault::OneSync {
            until("the sync to fail", async || !disk.has_failing_sync()).await;
            Vec::new()
        } else {
            let talks = post_until("a refused event", client, |status| status >= 500).await;
            let mut refused = ClientConversation::new("");
            let answer = client.post(&refused.event("chain")).await;
            assert!(answer.status >= 500, "{fault:?}: {}", answer.body);
            talks
        };
        disk.heal();
        talks.extend(post_until("an accepted event", client, |status| status == 202).await);
        tokio::time::sleep(random.up_to(LONGEST)).await;
        let lost = cut_power(gateway, None, disk, &mut random).await;
        load.gone.cancel();
        (talks, lost)
    };
    let (mut talks, (more, lost)) = tokio::join!(load.run(), failing);
    talks.extend(more);
    gateway.restart().await;
    let mut book = ConversationLog::default();
    book.reconcile(client, talks).await;
    book.close(client, runner).await;
    eprintln!("{fault:?}: {lost:?}, {:?}", book.figures);
    staged.assert_sound().await;
}

/// Functions of the processes below.
const FILES: &str = r#"
import os
root = os.environ["RUNNEL_DISK_ROOT"]
def path(name): return os.path.join(root, name)
def write(name, text, at=0):
    file = os.open(path(name), os.O_RDWR | os.O_CREAT)
    os.pwrite(file, text, at)
    return file
def sync(file):
    try: os.fsync(file)
    except OSError: pass
"#;

const DURABLE: &str = r#"
for name in ("grown", "cut", "moved", "removed", "failed"): sync(write(name, b"old"))
write("unsynced", b"x")
sync(os.open(root, os.O_RDONLY))
"#;

const UNSYNCED: &str = r#"
write("grown", b"longer", 1)
os.truncate(path("cut"), 1)
sync(write("other", b"new"))
os.rename(path("other"), path("moved"))
os.unlink(path("removed"))
sync(write("nameless", b"new"))
os.mkdir(path("directory"))
"#;

const FAILED_SYNC: &str = r#"
sync(write("failed", b"ab"))
sync(write("failed", b"c", 2))
"#;

/// Runs a Python script on the disk. Returns `None` and prints a notice without Python.
async fn play(disk: &Disk, script: &str) -> Option<()> {
    let mut python = Command::new("python3");
    python.args(["-c", &format!("{FILES}{script}")]);
    let Ok(output) = python.envs(disk.environment()).output().await else {
        skipped(&NO_PYTHON, "python", "there is no python3");
        return None;
    };
    assert!(output.status.success(), "{output:?}");
    Some(())
}

static NO_PYTHON: Once = Once::new();

fn files_of(disk: &Disk) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(disk.root()).unwrap();
    let read = |entry: std::io::Result<DirEntry>| {
        let entry = entry.unwrap();
        let content = std::fs::read_to_string(entry.path()).unwrap();
        (entry.file_name().into_string().unwrap(), content)
    };
    entries.map(read).collect()
}

/// The files of the scripts above after a cut.
#[tokio::test]
async fn cut_drops_unsynced_writes_and_names() {
    let mut left: BTreeMap<String, String> = [
        ("grown", "old"),
        ("cut", "old"),
        ("moved", "old"),
        ("removed", "old"),
        ("unsynced", ""),
        // The failed sync has lost its write.
        ("failed", "olc"),
    ]
    .map(|(name, text)| (name.to_owned(), text.to_owned()))
    .into();
    for names in ["by their directory", "by their file"] {
        let disk = or_skip!(Disk::new());
        if names == "by their file" {
            disk.sync_keeps_names();
            left.extend(["nameless", "other"].map(|name| (name.to_owned(), "new".to_owned())));
        }
        or_skip!(play(&disk, DURABLE).await);
        or_skip!(play(&disk, UNSYNCED).await);
        disk.fail(DiskFault::OneSync);
        or_skip!(play(&disk, FAILED_SYNC).await);
        let lost = disk.lose(PowerLoss::All, &mut || 0);
        assert_eq!(files_of(&disk), left, "names are synced {names}: {lost:?}");
    }
}
