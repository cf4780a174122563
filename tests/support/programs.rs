//! Paths of the programs under test. Each test run builds them once, with failpoints and the features of `cargo
//! test --workspace`, so that cargo reuses its artifacts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use super::repository::repository;

/// A test of the gateway package: building it enables failpoints through the dev-dependencies.
const WITH_FAILPOINTS: &str = "openapi";
const NAMES: [&str; 6] = [
    "runnel",
    "local-agent",
    "echo-runner",
    "runnel-connectors",
    "runnel-harness",
    "runnel-protocol-agent",
];

static PROGRAMS: OnceLock<BTreeMap<String, PathBuf>> = OnceLock::new();

/// The gateway.
pub fn runnel() -> &'static Path {
    program("runnel")
}

/// The Local Agent as a separate service.
pub fn local_agent() -> &'static Path {
    program("local-agent")
}

/// The runner of `examples/rust`.
pub fn echo_runner() -> &'static Path {
    program("echo-runner")
}

/// The connectors to other platforms.
pub fn runnel_connectors() -> &'static Path {
    program("runnel-connectors")
}

/// The harness runner.
pub fn runnel_harness() -> &'static Path {
    program("runnel-harness")
}

/// The protocol agent.
pub fn protocol_agent() -> &'static Path {
    program("runnel-protocol-agent")
}

fn program(name: &str) -> &'static Path {
    let programs = PROGRAMS.get_or_init(|| match std::env::var_os("RUNNEL_BIN") {
        Some(runnel) => programs_next_to(Path::new(&runnel)),
        None => build(),
    });
    &programs[name]
}

/// The programs in the directory of `RUNNEL_BIN`, which names a `runnel` with failpoints.
fn programs_next_to(runnel: &Path) -> BTreeMap<String, PathBuf> {
    let path = |name: &str| match name {
        "runnel" => runnel.to_owned(),
        _ => runnel.with_file_name(name),
    };
    let found = NAMES.map(|name| (name.to_owned(), path(name)));
    let found = found.map(|(name, path)| {
        let path = path.canonicalize();
        let path = path.unwrap_or_else(|error| panic!("RUNNEL_BIN: no {name} there: {error}"));
        (name, path)
    });
    BTreeMap::from(found)
}

fn build() -> BTreeMap<String, PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--workspace", "--locked", "--message-format=json"])
        .args(["--test", WITH_FAILPOINTS])
        .args(NAMES.iter().flat_map(|name| ["--bin", name]))
        .current_dir(repository())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    // The profile of this test's own build, which has the dependencies.
    let profile = if cfg!(debug_assertions) {
        "test"
    } else {
        "release"
    };
    command.args(["--profile", profile]);
    // Remove this package's cargo variables: they would cause build scripts to run again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let own = [
            "CARGO_PKG_",
            "CARGO_MANIFEST_",
            "CARGO_BIN_",
            "CARGO_CRATE_",
        ];
        if own.iter().any(|start| text.starts_with(start)) {
            command.env_remove(&name);
        }
    }
    let output = command.output().expect("cargo starts");
    assert!(output.status.success(), "the programs cannot be built");
    let printed = String::from_utf8(output.stdout).expect("cargo prints UTF-8");
    let artifacts = printed.lines().map(|line| {
        let message: Value = serde_json::from_str(line).expect("cargo prints JSON");
        let name = message["target"]["name"].as_str().unwrap_or_default();
        let executable = message["executable"].as_str().map(PathBuf::from);
        (name.to_owned(), executable)
    });
    let programs: BTreeMap<_, _> = artifacts
        .filter_map(|(name, executable)| Some((name, executable?)))
        .collect();
    assert!(NAMES.iter().all(|name| programs.contains_key(*name)));
    programs
}
