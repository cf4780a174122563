//! The namespaces of a harness: its own file system, processes, terminals and System V objects.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::Once;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use uuid::Uuid;

use super::{PATH, SandboxDirectories, assert_prints, option, outsider, python, text};
use crate::support::programs::runnel_harness;
use crate::support::repository::repository_file;
use crate::support::{skipped, until, within};

static NO_NAMESPACES: Once = Once::new();

/// The table of `runnel-harness check`.
async fn protections() -> Vec<Value> {
    let mut check = Command::new(runnel_harness());
    let output = within("check", check.args(["check", "--json"]).output()).await;
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Directories of a test. `None` and a notice if the machine has no namespaces.
async fn directories() -> Option<SandboxDirectories> {
    let rows = protections().await;
    let is_held = |row: &&Value| row["mechanism"] == "process namespace" && row["holds"] == true;
    if !rows.iter().any(|row| is_held(&row)) {
        skipped(
            &NO_NAMESPACES,
            "namespaces",
            "this machine gives processes no namespaces",
        );
        return None;
    }
    SandboxDirectories::new().await
}

/// A supervised command in namespaces, with the directories of a test.
fn supervised(cell: &SandboxDirectories, command: &[&str]) -> Command {
    let parent = std::process::id().to_string();
    let mut supervisor = Command::new(runnel_harness());
    supervisor
        .args(["harness-process", "supervise", "--namespaces"])
        .args(["--parent", &parent, "--"])
        .arg(runnel_harness())
        .args(["harness-process", "init"])
        .arg(option("read-write", &cell.path("work")))
        .arg(option("read-only", &cell.path("library")))
        .arg("--")
        .args(command)
        .current_dir(cell.path("work"))
        .env_clear()
        .env("PATH", PATH)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    supervisor
}

async fn run(cell: &SandboxDirectories, command: &[&str]) -> Output {
    let mut supervisor = supervised(cell, command);
    within("the command", supervisor.output()).await.unwrap()
}

/// Prints the error of each call.
const CHANGES: &str = "
import errno, os, sys
keys, library = sys.argv[1:]
calls = {
    'stat': lambda: os.stat(keys),
    'chmod of another': lambda: os.chmod(keys, 0),
    'chmod of a library': lambda: os.chmod(library, 0),
    'utime of a library': lambda: os.utime(library, (0, 0)),
    'chmod of the system': lambda: os.chmod('/usr', 0o700),
    'chown of a library': lambda: os.chown(library, os.getuid(), os.getgid()),
    'chmod of its own': lambda: os.chmod('.', 0o750),
}
for name, call in calls.items():
    try:
        call()
        print(name)
    except OSError as error:
        print(name, errno.errorcode[error.errno])
";

#[tokio::test]
async fn sees_and_changes_no_file_outside() {
    let cell = or_skip!(directories().await);
    or_skip!(python().await);
    let path = |name| cell.path(name).to_str().unwrap().to_owned();
    let (keys, library) = (path("keys"), path("library/guide"));
    let output = run(&cell, &["python3", "-c", CHANGES, &keys, &library]).await;
    let expected = "stat ENOENT\nchmod of another ENOENT\nchmod of a library EROFS\n\
        utime of a library EROFS\nchmod of the system EROFS\nchown of a library EROFS\nchmod of its own\n";
    assert_prints(&output, expected);
    assert_eq!(cell.path("work").metadata().unwrap().mode() & 0o777, 0o750);
}

#[tokio::test]
async fn connects_to_no_unix_socket_outside() {
    let cell = or_skip!(directories().await);
    or_skip!(python().await);
    let socket = cell.path("keys/socket");
    let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let connect =
        "import socket, sys; print(socket.socket(socket.AF_UNIX).connect_ex(sys.argv[1]))";
    let output = run(&cell, &["python3", "-c", connect, socket.to_str().unwrap()]).await;
    let absent = rustix::io::Errno::NOENT.raw_os_error();
    assert_prints(&output, &format!("{absent}\n"));
}

/// A program outside the sandbox that prints one line and waits, and the line.
async fn python_outside(program: &str) -> (Child, String) {
    let mut python = Command::new("python3");
    python.args(["-c", program]).stdin(Stdio::piped());
    let mut python = python
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(python.stdout.take().unwrap()).lines();
    let line = within("the program", lines.next_line()).await.unwrap();
    (python, line.unwrap())
}

#[tokio::test]
async fn opens_only_its_own_terminals() {
    let cell = or_skip!(directories().await);
    or_skip!(python().await);
    let (_outside, terminal) = python_outside(
        "import os, sys; print(os.ttyname(os.openpty()[1]), flush=True); sys.stdin.read()",
    )
    .await;
    let inside = "import os, sys
print(os.path.exists(sys.argv[1]))
own = os.openpty()[1]
os.write(own, b'x')
print(os.ttyname(own))";
    let output = run(&cell, &["python3", "-c", inside, &terminal]).await;
    assert_prints(&output, "False\n/dev/pts/0\n");
}

#[tokio::test]
async fn sees_no_process_outside() {
    let cell = or_skip!(directories().await);
    let outsider = outsider();
    let script = format!(
        "test -e /proc/{pid} || echo absent; kill -0 {pid} 2>/dev/null || echo closed; cat /proc/self/comm",
        pid = outsider.id().unwrap()
    );
    let output = run(&cell, &["/bin/sh", "-c", &script]).await;
    assert_prints(&output, "absent\nclosed\ncat\n");
}

#[tokio::test]
async fn shares_no_system_v_memory() {
    let cell = or_skip!(directories().await);
    or_skip!(python().await);
    let [a, b, c, ..] = *Uuid::new_v4().as_bytes();
    let key = u32::from_be_bytes([0x10, a, b, c]);
    let outside = format!(
        "import ctypes, sys
libc = ctypes.CDLL(None)
memory = libc.shmget({key}, 4096, 0o1666)
print(memory >= 0, flush=True)
sys.stdin.read()
libc.shmctl(memory, 0, None)"
    );
    let (mut outside, is_made) = python_outside(&outside).await;
    assert_eq!(is_made, "True");
    let inside = format!("import ctypes; print(ctypes.CDLL(None).shmget({key}, 0, 0))");
    let output = run(&cell, &["python3", "-c", &inside]).await;
    drop(outside.stdin.take());
    within("the removal of the memory", outside.wait())
        .await
        .unwrap();
    assert_prints(&output, "-1\n");
}

/// Leaves its parent and its session, and forks without pause; the argument marks its processes.
const FORKS: &str = r#"
import os, sys
if os.fork() == 0:
    os.setsid()
    open("started", "w").close()
    while True:
        if os.fork():
            os._exit(0)
"#;

fn processes_with(mark: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| text(line).contains(mark)).count()
}

#[tokio::test]
async fn leaves_no_process_that_forks_without_pause() {
    let cell = or_skip!(directories().await);
    or_skip!(python().await);
    let mark = Uuid::new_v4().to_string();
    let line = format!("python3 -c '{FORKS}' {mark}; until test -e started; do :; done");
    let output = run(&cell, &["/bin/sh", "-c", &line]).await;
    assert_prints(&output, "");
    assert_eq!(processes_with(&mark), 0);
}

#[tokio::test]
async fn killed_supervisor_leaves_no_process() {
    let cell = or_skip!(directories().await);
    let mark = Uuid::new_v4().to_string();
    let line = format!("touch started; sleep 600; : {mark}");
    let mut supervisor = supervised(&cell, &["/bin/sh", "-c", &line])
        .spawn()
        .unwrap();
    let started: PathBuf = cell.path("work/started");
    until("the command", async || started.exists()).await;
    supervisor.kill().await.unwrap();
    until("the end of its processes", async || {
        processes_with(&mark) == 0
    })
    .await;
}

#[tokio::test]
async fn commands_end_with_their_own_exit_code() {
    let cell = or_skip!(directories().await);
    for (script, code) in [("exit 7", 7), ("kill -KILL $$", 137)] {
        let output = run(&cell, &["/bin/sh", "-c", script]).await;
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
    let absent = run(&cell, &["no-such-harness"]).await;
    assert_eq!(absent.status.code(), Some(127), "{absent:?}");
}

/// Each test that the page names for a row exists, and each row names one.
#[tokio::test]
async fn each_protection_has_a_test() {
    let page = std::fs::read_to_string(repository_file("docs/security-harness.md")).unwrap();
    let tests = [
        include_str!("namespaces.rs"),
        include_str!("../harness_sandbox.rs"),
    ];
    for row in protections().await {
        let reach = row["reach"].as_str().unwrap();
        let line = page
            .lines()
            .find(|line| line.starts_with(&format!("| {reach} |")));
        let line = line.unwrap_or_else(|| panic!("no row for {reach}"));
        let names: Vec<_> = line.split('`').skip(1).step_by(2).collect();
        let closes = row["mechanism"] != "none" && row["mechanism"] != "cgroup";
        assert_eq!(closes, !names.is_empty(), "{line}");
        for name in names {
            let function = format!("async fn {name}(");
            assert!(tests.iter().any(|text| text.contains(&function)), "{name}");
        }
    }
}
