//! The sandbox of a harness process: `runnel-harness sandbox` with real programs inside.

#[path = "harness_sandbox/namespaces.rs"]
mod namespaces;

use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Once;

use tokio::process::Command;

use crate::support::programs::runnel_harness;
use crate::support::runner::SECRET;
use crate::support::{skipped, until, within};

/// The only environment variable of a sandboxed command, by default.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// An unprivileged user that every system has, and the limit of its processes in tests.
const NOBODY: &str = "nobody";
const PROCESSES: usize = 40;
const MIB: u64 = 1 << 20;

static NO_LANDLOCK: Once = Once::new();
static NO_SCOPES: Once = Once::new();
static NO_ROOT: Once = Once::new();
static NO_PYTHON: Once = Once::new();
static NO_NODE: Once = Once::new();

/// Directories of one test: `work` is writable, `library` is readable, `keys` is closed.
struct SandboxDirectories(PathBuf);

impl SandboxDirectories {
    /// Returns `None` and prints a notice if the kernel can confine neither files nor TCP.
    async fn new() -> Option<Self> {
        let mut command = wrapper(&["--require"], &["true"]);
        let output = within("the wrapper", command.output()).await.unwrap();
        if output.status.code() == Some(78) {
            skipped(
                &NO_LANDLOCK,
                "landlock",
                "this kernel has no Landlock with TCP rules (Linux 6.7)",
            );
            return None;
        }
        assert!(output.status.success(), "{output:?}");
        let root = std::env::temp_dir().join(format!("runnel-sandbox-{}", uuid::Uuid::new_v4()));
        for name in ["work", "library", "keys"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        std::fs::write(root.join("library/guide"), "guide\n").unwrap();
        std::fs::write(root.join("keys/master.key"), "secret\n").unwrap();
        Some(Self(root))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Runs a command in `work` with the cell's directories and these options.
    async fn run(&self, options: &[&str], command: &[&str]) -> Output {
        let mut all = vec![option("read-write", &self.path("work"))];
        all.push(option("read-only", &self.path("library")));
        all.extend(options.iter().map(Into::into));
        let mut command = wrapper(&all, command);
        command.current_dir(self.path("work"));
        within("the command", command.output()).await.unwrap()
    }

    async fn shell(&self, options: &[&str], script: &str) -> Output {
        self.run(options, &["/bin/sh", "-c", script]).await
    }
}

impl Drop for SandboxDirectories {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn option(name: &str, value: &Path) -> OsString {
    let mut option = OsString::from(format!("--{name}="));
    option.push(value);
    option
}

fn wrapper(options: &[impl AsRef<OsStr>], command: &[&str]) -> Command {
    let mut wrapper = Command::new(runnel_harness());
    wrapper.arg("sandbox").args(options).arg("--").args(command);
    wrapper.env_clear().env("PATH", PATH);
    wrapper.stdin(Stdio::null()).kill_on_drop(true);
    wrapper
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn assert_prints(output: &Output, expected: &str) {
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout), expected, "{output:?}");
}

fn assert_denied(output: &Output) {
    assert!(!output.status.success(), "{output:?}");
    let reason = text(&output.stderr).to_lowercase();
    assert!(reason.contains("permission denied"), "{output:?}");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Checks for a Python in the system directories. `None` without one, after a notice.
async fn python() -> Option<()> {
    let mut python = Command::new("python3");
    python.env_clear().env("PATH", PATH).args(["-c", ""]);
    let is_there = python.status().await.is_ok_and(|status| status.success());
    if !is_there {
        skipped(&NO_PYTHON, "python", "there is no python3 of the system");
    }
    is_there.then_some(())
}

#[tokio::test]
async fn reads_only_files_in_its_directories() {
    let cell = or_skip!(SandboxDirectories::new().await);
    let inside = cell.shell(&[], "cat ../library/guide").await;
    assert_prints(&inside, "guide\n");
    let key = cell.path("keys/master.key");
    assert_denied(&cell.run(&[], &["cat", key.to_str().unwrap()]).await);
    assert_denied(&cell.run(&[], &["ls", "/"]).await);
}

#[tokio::test]
async fn follows_no_link_outside_its_directories() {
    let cell = or_skip!(SandboxDirectories::new().await);
    let script = "ln -s ../keys/master.key link && cat link";
    assert_denied(&cell.shell(&[], script).await);
}

#[tokio::test]
async fn writes_only_files_in_its_directories() {
    let cell = or_skip!(SandboxDirectories::new().await);
    let inside = cell
        .shell(&[], "echo one > note && mv note kept && cat kept")
        .await;
    assert_prints(&inside, "one\n");
    for target in [
        "../keys/new",
        "../library/guide",
        "../library/new",
        "../new",
    ] {
        assert_denied(&cell.shell(&[], &format!("echo two > {target}")).await);
    }
    assert_denied(&cell.shell(&[], "rm ../library/guide").await);
    let guide = std::fs::read_to_string(cell.path("library/guide")).unwrap();
    assert_eq!(guide, "guide\n");
}

#[tokio::test]
async fn creates_files_accessible_to_owner_only() {
    let cell = or_skip!(SandboxDirectories::new().await);
    assert_prints(&cell.shell(&[], "echo one > note; mkdir made").await, "");
    let mode = |name| cell.path(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("work/note"), 0o600);
    assert_eq!(mode("work/made"), 0o700);
}

/// Connects to each port in the arguments.
const CONNECT: &str = "
import socket, sys
for port in sys.argv[1:]:
    try:
        socket.create_connection(('127.0.0.1', int(port)), 30)
        print('connected')
    except PermissionError:
        print('refused')
";

#[tokio::test]
async fn connects_only_to_allowed_ports() {
    let cell = or_skip!(SandboxDirectories::new().await);
    or_skip!(python().await);
    let [allowed, other] = [listener(), listener()];
    let ports = [&allowed, &other].map(port);
    let connect = format!("--connect={}", ports[0]);
    let command = ["python3", "-c", CONNECT, &ports[0], &ports[1]];
    let output = cell.run(&[&connect], &command).await;
    assert_prints(&output, "connected\nrefused\n");
}

/// Tries network access that Landlock's TCP rules do not cover.
const AROUND: &str = "
import ctypes, socket, sys
address = ('127.0.0.1', int(sys.argv[1]))
def multipath():
    socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect(address)
def fast_open():
    socket.socket().sendto(b'x', 0x20000000, address)
def virtual_machine():
    socket.socket(40, socket.SOCK_STREAM)
def io_uring():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(425, 1, ctypes.create_string_buffer(120)) < 0:
        raise OSError(ctypes.get_errno(), 'io_uring_setup')
for attempt in (multipath, fast_open, virtual_machine, io_uring):
    try:
        attempt()
        print(attempt.__name__, 'is open')
    except OSError:
        pass
";

#[tokio::test]
async fn blocks_bypasses_of_tcp_rules() {
    let cell = or_skip!(SandboxDirectories::new().await);
    or_skip!(python().await);
    let other = listener();
    let output = cell
        .run(&[], &["python3", "-c", AROUND, &port(&other)])
        .await;
    assert_prints(&output, "");
}

/// Binds each port in the arguments.
const BIND: &str = "
import socket, sys
for port in sys.argv[1:]:
    try:
        socket.create_server(('127.0.0.1', int(port)))
        print('bound')
    except PermissionError:
        print('refused')
";

#[tokio::test]
async fn binds_only_allowed_ports() {
    let cell = or_skip!(SandboxDirectories::new().await);
    or_skip!(python().await);
    // Free a moment ago; no other test binds a fixed port.
    let [allowed, other] = [listener(), listener()].map(|free| port(&free));
    let bind = format!("--bind={allowed}");
    let command = ["python3", "-c", BIND, &allowed, &other];
    let output = cell.run(&[&bind], &command).await;
    assert_prints(&output, "bound\nrefused\n");
}

#[tokio::test]
async fn open_confines_neither_files_nor_tcp() {
    let cell = or_skip!(SandboxDirectories::new().await);
    let key = cell.path("keys/master.key");
    let read = cell.run(&["--open"], &["cat", key.to_str().unwrap()]).await;
    assert_prints(&read, "secret\n");
    or_skip!(python().await);
    let port = port(&listener());
    let bound = cell.run(&["--open"], &["python3", "-c", BIND, &port]).await;
    assert_prints(&bound, "bound\n");
}

/// The error of a service that does not start with these settings.
async fn refused_start(settings: &str) -> String {
    let root = std::env::temp_dir().join(format!("runnel-start-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir_all(&root).unwrap();
    let file = root.join("harness.toml");
    let written = format!(
        "listen = \"127.0.0.1:0\"\nsecret = \"env:HARNESS_SECRET\"\nworkspaces = \"{}\"\n{settings}\n\
         [[harnesses]]\npreset = \"acp\"\ncommand = \"/bin/sh\"\n",
        root.join("workspaces").display()
    );
    std::fs::write(&file, written).unwrap();
    let mut service = Command::new(runnel_harness());
    service.arg("serve").arg("--settings").arg(&file);
    service.env("HARNESS_SECRET", SECRET).kill_on_drop(true);
    let output = within("the service", service.output()).await.unwrap();
    std::fs::remove_dir_all(root).unwrap();
    assert!(!output.status.success(), "{output:?}");
    text(&output.stderr)
}

#[tokio::test]
async fn service_start_rejects_unusable_sandbox_settings() {
    let path = refused_start("readable = [\"/nowhere/at-all\"]").await;
    assert!(path.contains("cannot open /nowhere/at-all"), "{path}");
    let user = refused_start("user = \"no-such-user-of-runnel\"").await;
    assert!(user.contains("no such user"), "{user}");
    if !is_root() {
        skipped(&NO_ROOT, "root", "the tests do not run as root");
        return;
    }
    let limit = refused_start("sandbox = \"required\"").await;
    assert!(limit.contains("name a user"), "{limit}");
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn port(listener: &TcpListener) -> String {
    listener.local_addr().unwrap().port().to_string()
}

/// Forks until it is refused or has 200 children, then ends them.
const BOMB: &str = "
import os, signal
children = []
try:
    while len(children) < 200:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            signal.pause()
        children.append(child)
except BlockingIOError:
    pass
for child in children:
    os.kill(child, signal.SIGKILL)
print(len(children))
";

#[tokio::test]
async fn limits_processes_of_a_fork_bomb() {
    let cell = or_skip!(SandboxDirectories::new().await);
    or_skip!(python().await);
    let mut options = vec![format!("--processes={PROCESSES}")];
    if is_root() {
        // Linux exempts root from the limit.
        options.push(format!("--user={NOBODY}"));
        options.push("--require".to_owned());
    }
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let output = cell.run(&options, &["python3", "-c", BOMB]).await;
    assert!(output.status.success(), "{output:?}");
    let children: usize = text(&output.stdout).trim().parse().unwrap();
    assert!(children < PROCESSES, "{children} children");
}

#[tokio::test]
async fn refuses_process_limits_that_root_ignores() {
    if SandboxDirectories::new().await.is_none() {
        return;
    }
    if !is_root() {
        skipped(&NO_ROOT, "root", "the tests do not run as root");
        return;
    }
    let mut command = wrapper(&["--require", "--processes=40"], &["true"]);
    let output = within("the wrapper", command.output()).await.unwrap();
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    assert!(text(&output.stderr).contains("name a user"), "{output:?}");
}

/// Simulates a full disk: one file cannot exceed the limit.
#[tokio::test]
async fn limits_file_size() {
    let cell = or_skip!(SandboxDirectories::new().await);
    let limit = format!("--file-size={MIB}");
    let output = cell
        .shell(&[&limit], "head -c 3145728 /dev/zero > big")
        .await;
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(cell.path("work/big").metadata().unwrap().size(), MIB);
}

#[tokio::test]
async fn limits_process_memory() {
    let cell = or_skip!(SandboxDirectories::new().await);
    or_skip!(python().await);
    let limit = format!("--memory={}", 128 * MIB);
    let allocate = |mebibytes| format!("len(bytearray({mebibytes} << 20))");
    let fits = cell.run(&[&limit], &["python3", "-c", &allocate(32)]).await;
    assert_prints(&fits, "");
    let output = cell
        .run(&[&limit], &["python3", "-c", &allocate(512)])
        .await;
    assert!(text(&output.stderr).contains("MemoryError"), "{output:?}");
}

#[tokio::test]
async fn limits_process_cpu_time() {
    let cell = or_skip!(SandboxDirectories::new().await);
    let output = cell
        .shell(&["--cpu-seconds=1"], "while :; do :; done")
        .await;
    let cpu_exceeded = rustix::process::Signal::XCPU.as_raw();
    assert_eq!(output.status.signal(), Some(cpu_exceeded), "{output:?}");
}

#[tokio::test]
async fn dumps_no_core() {
    let cell = or_skip!(SandboxDirectories::new().await);
    assert_prints(&cell.shell(&[], "ulimit -H -c").await, "0\n");
}

#[tokio::test]
async fn runs_only_as_the_named_user() {
    let cell = or_skip!(SandboxDirectories::new().await);
    if !is_root() {
        skipped(&NO_ROOT, "root", "the tests do not run as root");
        return;
    }
    let password = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = password.lines().find(|line| line.starts_with("nobody:"));
    let fields: Vec<&str> = line.unwrap().split(':').collect();
    let (user, group) = (fields[2], fields[3]);
    chown(cell.path("work"), user.parse().ok(), group.parse().ok()).unwrap();
    let option = format!("--user={NOBODY}");
    let script = "id -u; id -g; id -G; echo one > note; cat note";
    let output = cell.shell(&[&option], script).await;
    assert_prints(&output, &format!("{user}\n{group}\n{group}\none\n"));
}

#[tokio::test]
async fn refuses_root_as_the_named_user() {
    let mut command = wrapper(&["--user=root"], &["true"]);
    let output = within("the wrapper", command.output()).await.unwrap();
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    assert!(text(&output.stderr).contains("--user root"), "{output:?}");
}

#[tokio::test]
async fn drops_all_capabilities_permanently() {
    let cell = or_skip!(SandboxDirectories::new().await);
    let script = "grep -E '^(CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs)' /proc/self/status";
    let output = cell.shell(&[], script).await;
    let zero = "0".repeat(16);
    let sets = ["Inh", "Prm", "Eff", "Amb"].map(|set| format!("Cap{set}:\t{zero}\n"));
    assert_prints(&output, &format!("{}NoNewPrivs:\t1\n", sets.concat()));
}

#[tokio::test]
async fn passes_exactly_the_given_environment() {
    let cell = or_skip!(SandboxDirectories::new().await);
    let mut command = wrapper(&[option("read-write", &cell.path("work"))], &["env"]);
    command.env("RUNNEL_TOKEN", "token");
    let output = within("env", command.output()).await.unwrap();
    assert_prints(&output, &format!("PATH={PATH}\nRUNNEL_TOKEN=token\n"));
}

#[tokio::test]
async fn passes_no_inherited_descriptor() {
    let mut command = Command::new("/bin/sh");
    // The shell opens a descriptor without close-on-exec; `ls` itself opens descriptor 3.
    let script = "exec 9</etc/passwd; exec \"$@\" sandbox -- ls /proc/self/fd";
    command.args(["-c", script, "sh"]).arg(runnel_harness());
    command.env_clear().env("PATH", PATH).stdin(Stdio::null());
    let output = within("ls", command.output()).await.unwrap();
    assert_prints(&output, "0\n1\n2\n3\n");
}

/// A process outside the sandbox, with a secret in its environment.
fn outsider() -> tokio::process::Child {
    let mut outsider = Command::new("sleep");
    outsider.arg("600").env("SECRET", "value");
    outsider.kill_on_drop(true).spawn().unwrap()
}

#[tokio::test]
async fn reads_no_environment_of_outside_processes() {
    let cell = or_skip!(SandboxDirectories::new().await);
    let outsider = outsider();
    let environment = format!("/proc/{}/environ", outsider.id().unwrap());
    // The environment is visible a moment after the spawn.
    until("the environment of the outsider", async || {
        text(&std::fs::read(&environment).unwrap()).contains("SECRET")
    })
    .await;
    assert_denied(&cell.run(&[], &["cat", &environment]).await);
    assert!(
        cell.run(&[], &["cat", "/proc/self/environ"])
            .await
            .status
            .success()
    );
}

#[tokio::test]
async fn signals_no_process_outside() {
    let cell = or_skip!(SandboxDirectories::new().await);
    let outsider = outsider();
    let script = format!("kill -0 {}", outsider.id().unwrap());
    let output = cell.shell(&[], &script).await;
    if output.status.success() {
        skipped(
            &NO_SCOPES,
            "scopes",
            "this kernel has no Landlock scopes (Linux 6.12)",
        );
        return;
    }
    let reason = text(&output.stderr).to_lowercase();
    assert!(reason.contains("not permitted"), "{output:?}");
    let own = cell.shell(&[], "sleep 60 & kill -0 $! && kill $!").await;
    assert!(own.status.success(), "{own:?}");
}

/// Calls with the id of an outside process, then the same calls of a process for itself. Prints the refused ones.
const OTHER_PROCESS: &str = "
import ctypes, os, resource, sys
pid = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
numbers = {'x86_64': (251, 250), 'aarch64': (30, 219)}[os.uname().machine]
def system_call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), 'refused')
limit = resource.getrlimit(resource.RLIMIT_CPU)
calls = {
    'prlimit64': lambda pid: resource.prlimit(pid, resource.RLIMIT_CPU, limit),
    'setpriority': lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 5),
    'sched_setaffinity': lambda pid: os.sched_setaffinity(pid, os.sched_getaffinity(0)),
    'sched_setscheduler': lambda pid: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)),
    'sched_setparam': lambda pid: os.sched_setparam(pid, os.sched_param(0)),
    'ioprio_set': lambda pid: system_call(numbers[0], 1, pid, 0x4003),
    'setpriority of a group': lambda pid: os.setpriority(os.PRIO_PGRP, pid and os.getpgid(pid), 5) if pid else None,
    'setpriority of a user': lambda pid: os.setpriority(os.PRIO_USER, 0, 5) if pid else None,
    'keyctl': lambda pid: system_call(numbers[1], 0, -4, 0) if pid else None,
}
for target in pid, 0:
    for name, call in calls.items():
        try:
            call(target)
        except OSError:
            print(target and 'outside', name)
";

#[tokio::test]
async fn changes_no_process_outside() {
    let cell = or_skip!(SandboxDirectories::new().await);
    or_skip!(python().await);
    let outsider = outsider();
    let pid = outsider.id().unwrap().to_string();
    let output = cell.run(&[], &["python3", "-c", OTHER_PROCESS, &pid]).await;
    let expected = [
        "prlimit64",
        "setpriority",
        "sched_setaffinity",
        "sched_setscheduler",
        "sched_setparam",
        "ioprio_set",
        "setpriority of a group",
        "setpriority of a user",
        "keyctl",
    ];
    let expected: String = expected.map(|name| format!("outside {name}\n")).concat();
    assert_prints(&output, &expected);
}

/// Allocates in several threads and reads the CPU count, as harnesses do.
const NODE: &str = "
const { Worker } = require('node:worker_threads');
const kept = Array.from({ length: 50 }, () => Buffer.alloc(1 << 20, 1));
const worker = new Worker('require(\"node:fs\").readFileSync(\"/etc/hosts\")', { eval: true });
worker.on('exit', code => console.log(code, kept.length, require('node:os').cpus().length > 0));
";

#[tokio::test]
async fn runs_node_within_512_mib() {
    let cell = or_skip!(SandboxDirectories::new().await);
    let mut node = Command::new("node");
    let Ok(found) = node.args(["-p", "process.execPath"]).output().await else {
        skipped(&NO_NODE, "node", "there is no node");
        return;
    };
    let program = PathBuf::from(text(&found.stdout).trim());
    let installed = program.parent().and_then(Path::parent).unwrap();
    let mut options = vec![option("read-only", installed)];
    options.push(format!("--memory={}", 512 * MIB).into());
    options.push(option("read-write", &cell.path("work")));
    let mut command = wrapper(&options, &[program.to_str().unwrap(), "-e", NODE]);
    let output = within("node", command.output()).await.unwrap();
    assert_prints(&output, "0 50 true\n");
}

#[tokio::test]
async fn reports_failures_by_exit_code_and_error() {
    let check = async |options: &[&str], command: &str, code: i32, word: &str| {
        let output = wrapper(options, &[command]).output().await.unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(text(&output.stderr).contains(word), "{output:?}");
    };
    check(&[], "no-such-harness", 127, "no-such-harness").await;
    check(&[], "/etc/passwd", 126, "/etc/passwd").await;
    check(&["--read-write=/no/such"], "true", 78, "/no/such").await;
    check(&["--user=no-such-user"], "true", 78, "no such user").await;
    check(&["--connect=0"], "true", 2, "--connect").await;
}
