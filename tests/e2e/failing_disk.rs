//! Disk faults below the SQLite database: locked, full, failing. F55–F57.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Once;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use crate::support::client::{message, send as ask};
use crate::support::gateway::Config;
use crate::support::script::{Gate, Run, ScriptStep, send, sse, sse_head};
use crate::support::{OwnStage, Postgres, Stage, number, run, skipped, until, within};

fn talk(run: &Run) -> Vec<ScriptStep> {
    sse(run.talk(2).concat())
}

#[tokio::test]
async fn waits_for_locked_sqlite_database() {
    let stage = OwnStage::new().await;
    stage.runner.answer_all(talk);
    let path = stage.gateway.database_url();
    let options = SqliteConnectOptions::new().filename(path.trim_start_matches("sqlite://"));
    let mut holder = options.connect().await.unwrap();
    let held = holder.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let post = async { stage.client.post(&message("m-1")).await };
    let hold = async {
        // The duration is the subject of the test; a write waits for up to five seconds.
        tokio::time::sleep(Duration::from_secs(2)).await;
        held.rollback().await.unwrap();
    };
    let (answer, ()) = tokio::join!(post, hold);
    let outcome = stage.outcome(&answer.run_id()).await;
    outcome.assert(
        "completed",
        &["message.delta", "message.delta", "run.completed"],
    );
    assert_eq!(stage.runner.posts(&answer.run_id()), 1);
}

static NO_TMPFS: Once = Once::new();
static NO_STRACE: Once = Once::new();

/// A small tmpfs.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Returns `None` and prints a notice if mounts are not allowed.
    async fn mount(bytes: u64) -> Option<Self> {
        let name = format!("disk-{}", uuid::Uuid::new_v4());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]);
        let mounted = mount.arg(&path).stderr(Stdio::null()).status().await;
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(path));
        }
        std::fs::remove_dir(&path).unwrap();
        skipped(
            &NO_TMPFS,
            "tmpfs",
            "a tmpfs cannot be mounted (it takes root)",
        );
        None
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    fn fill(&self) {
        let mut filler = File::create(self.filler()).unwrap();
        while filler.write_all(&[0; 4096]).is_ok() {}
        while filler.write_all(&[0]).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Unmount lazily: the gateway may still be shutting down.
        let unmounted = std::process::Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .status();
        if unmounted.is_ok_and(|status| status.success()) {
            let _ = std::fs::remove_dir(&self.0);
        }
    }
}

#[tokio::test]
async fn full_disk_refuses_events_until_space_is_free() {
    let disk = or_skip!(SmallDisk::mount(16 * 1024 * 1024).await);
    let path = disk.0.join("runnel.db");
    let stage = Stage::with(|config: &mut Config| {
        config.has_fresh_database = true;
        config.database_at = Some(Box::new(move |_| format!("sqlite://{}", path.display())));
    })
    .await;
    stage.runner.answer_all(talk);
    let gate = Gate::new();
    let hold = gate.clone();
    let held = stage.start(move |run| {
        let rest = [run.delta(2, &"b".repeat(50_000)), run.completed(3)].concat();
        vec![
            sse_head(),
            send(run.delta(1, "a")),
            ScriptStep::Hold(hold.clone()),
            send(rest),
        ]
    });
    let held = held.await;
    stage.client.follow(&held, 0).await.event().await.unwrap();

    disk.fill();
    let mut acknowledged = Vec::new();
    let filling = async {
        loop {
            let mut event = message(&format!("full-{}", acknowledged.len()));
            event["data"] = serde_json::json!({"text": "x".repeat(30_000)});
            let answer = stage.client.post(&event).await;
            if answer.status != 202 {
                break answer;
            }
            acknowledged.push(answer.run_id());
        }
    };
    let refused = within("an event that exceeds the disk", filling).await;
    assert!(matches!(refused.status, 503 | 507), "{}", refused.body);
    assert!(refused.headers.contains_key("retry-after"));
    // The held run continues on the full disk, and its writes wait.
    gate.cancel();
    assert_eq!(stage.readiness().await, "database_takes_no_writes");
    for run_id in &acknowledged {
        let run = stage.client.get(&format!("/v1/runs/{run_id}")).await;
        assert_eq!(run.status, 200, "{}", run.body);
    }

    disk.free();
    until("the gateway to be ready again", async || {
        stage.readiness().await == "ok"
    })
    .await;
    let outcome = stage.outcome(&held).await;
    outcome.assert(
        "completed",
        &["message.delta", "message.delta", "run.completed"],
    );
    acknowledged.push(stage.client.post(&message("room-again")).await.run_id());
    for run_id in &acknowledged {
        let outcome = stage.outcome(run_id).await;
        assert_eq!(outcome.ending(), "completed");
        assert_eq!(stage.runner.posts(run_id), 1);
    }
}

/// strace on a process with fault injection.
struct Tracing {
    strace: Child,
    /// Kept open: strace prints the threads that it attaches to, and would exit on a closed pipe.
    _stderr: Lines<BufReader<ChildStderr>>,
    output: PathBuf,
}

impl Tracing {
    /// Makes syncs of each thread fail: `3` the third, `3+` all from the third on. Returns `None` and prints a
    /// notice if tracing is not allowed.
    async fn fail_syncs(pid: u32, which: &str) -> Option<Self> {
        let name = format!("strace-{}", uuid::Uuid::new_v4());
        let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut command = Command::new("strace");
        command
            .args(["-f", "-e", "trace=fsync,fdatasync", "-e"])
            .arg(format!("inject=fsync,fdatasync:error=EIO:when={which}"))
            .args(["-p", &pid.to_string(), "-o"])
            .arg(&output)
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let why = "strace is not there, or may not trace (it takes the right to ptrace)";
        let Ok(mut strace) = command.spawn() else {
            skipped(&NO_STRACE, "strace", why);
            return None;
        };
        let mut stderr = BufReader::new(strace.stderr.take().unwrap()).lines();
        let line = within("strace", stderr.next_line()).await.unwrap();
        if !line
            .as_deref()
            .is_some_and(|line| line.contains("attached"))
        {
            skipped(&NO_STRACE, "strace", why);
            return None;
        }
        Some(Self {
            strace,
            _stderr: stderr,
            output,
        })
    }

    fn has_hit(&self) -> bool {
        let trace = std::fs::read_to_string(&self.output).unwrap_or_default();
        trace.contains("(INJECTED)")
    }

    async fn end(mut self) {
        let pid = self.strace.id().unwrap().to_string();
        run(Command::new("kill").args(["-INT", &pid])).await;
        within("strace to end", self.strace.wait()).await.unwrap();
        let _ = std::fs::remove_file(&self.output);
    }
}

/// `RUNNEL_TEST_FAILED_SYNCS`: number of gateway runs; each fails a later sync.
#[tokio::test]
async fn acknowledged_events_survive_failed_syncs_and_crash() {
    let mut stage = OwnStage::with(|config| config.runs = "lease_seconds = 2".into()).await;
    stage.runner.answer_all(talk);
    let mut acknowledged = BTreeMap::new();
    let mut refused = 0;
    for n in 1..=number("RUNNEL_TEST_FAILED_SYNCS", 6) {
        // A single failure is repaired by a retry, which has another thread. If the syncs of every thread fail
        // from the first on, nothing is acknowledged.
        let which = ["", "+"][n % 2];
        let which = format!("{}{which}", n.div_ceil(2));
        let tracing = or_skip!(Tracing::fail_syncs(stage.gateway.pid(), &which).await);
        // Until the fault has occurred, and a few events more.
        let mut more = 3;
        for event in 0..500 {
            let event_id = format!("sync-{n}-{event}");
            let has_hit = tracing.has_hit();
            let answer = ask(stage.client.posting(&message(&event_id)))
                .await
                .unwrap();
            match answer.status {
                202 if which == "1+" && has_hit => panic!("{event_id} was taken: no sync succeeds"),
                202 => drop(acknowledged.insert(event_id, answer.run_id())),
                _ => refused += 1,
            }
            more -= usize::from(tracing.has_hit());
            if more == 0 {
                break;
            }
        }
        assert!(tracing.has_hit(), "no sync was made to fail");
        tracing.end().await;
        stage.gateway.kill().await;
        stage.gateway.restart().await;
        for (event_id, run_id) in &acknowledged {
            let run = stage.client.run(run_id).await;
            assert_eq!(run["event_id"], event_id.as_str());
        }
    }
    eprintln!("{} acknowledged, {refused} refused", acknowledged.len());
    assert!(refused > 0, "syncs that fail for good refuse events");
    for (event_id, run_id) in &acknowledged {
        let again = stage.client.post(&message(event_id)).await;
        assert!(again.is_replay(), "{event_id} was not known any more");
        assert_eq!(again.body["run_id"], run_id.as_str());
        stage.client.finished(run_id).await;
        let ledger = stage.client.ledger(run_id).await;
        ledger.assert_valid(run_id);
        assert!(ledger.is_ended());
        assert!(stage.runner.posts(run_id) <= 1);
    }
}

/// The server or the database may be configured to acknowledge a commit before it is durable.
#[tokio::test]
async fn postgresql_commits_are_always_synchronous() {
    let mut stage = or_skip!(OwnStage::on(Postgres, |_| {}).await);
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let url = stage.gateway.database_url();
    let (_, name) = url.rsplit_once('/').unwrap();
    let mut sql = PgConnection::connect(&url).await.unwrap();
    for statement in [
        format!("ALTER DATABASE \"{name}\" SET synchronous_commit = off"),
        "CREATE FUNCTION refuse_lazy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF current_setting('synchronous_commit') <> 'on' THEN RAISE 'it is not on the disk'; END IF; \
         RETURN NEW; END $$"
            .to_owned(),
        "CREATE TRIGGER lazy BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION refuse_lazy()"
            .to_owned(),
    ] {
        sqlx::query(AssertSqlSafe(statement))
            .execute(&mut sql)
            .await
            .unwrap();
    }
    stage.gateway.stop().await;
    stage.gateway.restart().await;
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    assert_eq!(stage.outcome(&run_id).await.ending(), "completed");
}
