//! Clients generated from the committed API document, by three generators without settings of ours: they compile, and
//! read a run correctly.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Once;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::client::Client;
use crate::support::node::{NodeProject, files_of, fingerprint};
use crate::support::peer::environment;
use crate::support::playground::Playground;
use crate::support::repository::repository_file;
use crate::support::{TempDirectory, run, skipped};

/// A project in TypeScript, and the arguments of its generator.
struct TypescriptClient {
    path: &'static str,
    project: NodeProject,
    generator: &'static [&'static str],
}

static HEY_API: TypescriptClient = TypescriptClient::at(
    "tests/clients/typescript",
    &[
        "openapi-ts",
        "--input",
        "gateway.json",
        "--output",
        "generated",
    ],
);
static OPENAPI_FETCH: TypescriptClient = TypescriptClient::at(
    "tests/clients/openapi_fetch",
    &[
        "openapi-typescript",
        "gateway.json",
        "--output",
        "gateway.d.ts",
    ],
);
const PYTHON: &str = "tests/clients/python";

/// A directory with a copy of `path` and the API document.
fn client_project(path: &str) -> TempDirectory {
    let directory = TempDirectory::new();
    let document = repository_file("openapi/gateway.json");
    std::fs::copy(document, directory.file("gateway.json")).unwrap();
    for (name, bytes) in files_of(&repository_file(path)) {
        std::fs::write(directory.file(&name), bytes).unwrap();
    }
    directory
}

/// Output of a command that must succeed.
async fn print(command: &mut Command, directory: &TempDirectory) -> String {
    let printed = run(command.current_dir(directory.file(""))).await;
    let (stdout, stderr) = (&printed.stdout, &printed.stderr);
    assert!(printed.status.success(), "{command:?}\n{stdout}\n{stderr}");
    printed.stdout
}

impl TypescriptClient {
    const fn at(path: &'static str, generator: &'static [&'static str]) -> Self {
        Self {
            path,
            project: NodeProject::at(path),
            generator,
        }
    }

    /// Generates and compiles the client. `None` without Node.
    async fn compiled(&self) -> Option<TempDirectory> {
        let packages = self.project.built("clients").await?.join("node_modules");
        let directory = client_project(self.path);
        std::os::unix::fs::symlink(packages, directory.file("node_modules")).unwrap();
        for command in [self.generator, &["tsc"]] {
            let tool = Path::new("node_modules/.bin").join(command[0]);
            let mut tool_command = Command::new("node");
            let arguments = tool_command.arg(tool).args(&command[1..]);
            print(arguments, &directory).await;
        }
        Some(directory)
    }
}

/// Generates and type-checks the client. Returns its Python, or `None` if it cannot be installed.
async fn python_client() -> Option<(TempDirectory, PathBuf)> {
    static SKIPPED: Once = Once::new();
    let directory = client_project(PYTHON);
    let requirements = directory.file("requirements.txt");
    let pinned = (
        "requirements.txt".to_owned(),
        std::fs::read(&requirements).unwrap(),
    );
    let name = format!("python-client-{}", fingerprint(&[pinned]));
    let installed = environment(&name, &[OsStr::new("-r"), requirements.as_os_str()]).await;
    if installed.is_none() {
        skipped(
            &SKIPPED,
            "clients",
            "the generator could not be installed by pip",
        );
    }
    let programs = installed?.join("bin");
    let python = programs.join("python");
    // The generator formats its output by a program in the same directory.
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut generate = Command::new(&python);
    generate
        .env("PATH", path)
        .args(["-m", "openapi_python_client", "generate"]);
    generate.args(["--path", "gateway.json"]);
    generate.args(["--output-path", "generated", "--fail-on-warning"]);
    print(&mut generate, &directory).await;
    let mut check = Command::new(&python);
    check
        .env("MYPYPATH", "generated")
        .args(["-m", "mypy", "--strict"]);
    check.arg("check.py");
    print(&mut check, &directory).await;
    Some((directory, python))
}

/// Runs the program against a gateway and compares its output with the gateway's own data.
async fn check(program: &mut Command, directory: &TempDirectory) {
    let playground = Playground::start_echoing(&directory.file("runnel-data")).await;
    program.env("RUNNEL_URL", &playground.url);
    program.env("RUNNEL_API_KEY", &playground.key);
    let output: Value = serde_json::from_str(&print(program, directory).await).unwrap();
    agrees(&playground.client(), &output).await;
    playground.stop().await;
}

async fn agrees(client: &Client, output: &Value) {
    let run_id = output["run_id"].as_str().unwrap();
    let ledger = client.ledger(run_id).await;
    ledger.assert_valid(run_id);
    assert_eq!(ledger.text(), "hello big world");
    assert_eq!(ledger.last()["type"], "run.completed");
    assert_eq!(output["text"], ledger.text());
    assert_eq!(output["events"], json!(ledger.events()));
    assert_eq!(output["rest"], json!(ledger.events()[2..]));
    assert_eq!(output["run"], client.run(run_id).await);

    let other = output["accepted"]["run_id"].as_str().unwrap();
    assert_eq!(client.finished(other).await["status"], "completed");
    let listed = output["runs"].as_array().unwrap();
    let listed: Vec<_> = listed.iter().map(|run| &run["run_id"]).collect();
    assert_eq!(listed, [other]);

    assert_eq!(output["error"]["error"]["code"], "not_found");
    assert_eq!(output["error"]["error"]["retryable"], false);
}

#[tokio::test]
async fn generated_typescript_client_compiles_and_reads_a_run() {
    let directory = or_skip!(HEY_API.compiled().await);
    let mut program = Command::new("node");
    program.args(["--import", "tsx", "check.ts"]);
    check(&mut program, &directory).await;
}

#[tokio::test]
async fn openapi_fetch_client_compiles_and_reads_a_run() {
    let directory = or_skip!(OPENAPI_FETCH.compiled().await);
    check(Command::new("node").arg("dist/check.js"), &directory).await;
}

#[tokio::test]
async fn generated_python_client_type_checks_and_reads_runs() {
    let (directory, python) = or_skip!(python_client().await);
    let mut program = Command::new(python);
    program.env("PYTHONPATH", "generated").arg("check.py");
    check(&mut program, &directory).await;
}
