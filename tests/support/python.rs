//! Example runners in Python, and Python environments with client libraries.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Once;

use tokio::process::Command;

use super::listening::ChildServer;
use super::peer::environment;
use super::repository::repository_file;
use super::runner::SECRET;
use super::skipped;

static SKIPPED: Once = Once::new();

/// A runner of `examples/python` as a child process, with the package of `clients/python`. `None` without this
/// Python.
pub async fn example(python: impl AsRef<OsStr>, file: &str) -> Option<ChildServer> {
    let mut command = Command::new(python);
    command
        .arg(repository_file("examples/python").join(file))
        .env("PORT", "0")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONPATH", repository_file("clients/python/src"))
        .env("RUNNER_SECRET", SECRET);
    let spawned = ChildServer::spawn(&mut command).await.ok();
    if spawned.is_none() {
        skipped(&SKIPPED, "python", "there is no python3");
    }
    spawned
}

/// The echo runner. `None` without Python.
pub async fn python_echo() -> Option<ChildServer> {
    example("python3", "echo_runner.py").await
}

/// The only dependency of `clients/python`.
const HTTPX: &str = "httpx==0.28.1";
static NO_HTTPX: Once = Once::new();

/// A Python for the package of `clients/python`. `None` if its dependency is not installed and cannot be installed.
pub async fn python_with_httpx() -> Option<PathBuf> {
    let installed = environment(HTTPX, &[HTTPX]).await;
    if installed.is_none() {
        skipped(&NO_HTTPX, "python", "httpx could not be installed");
    }
    Some(installed?.join("bin/python"))
}

const OPENAI: &str = "openai==3.54.0";
static NO_OPENAI: Once = Once::new();

/// A Python with OpenAI's client, also for the package of `clients/python`. `None` if they are not installed and
/// cannot be installed.
pub async fn python_with_openai() -> Option<PathBuf> {
    let installed = environment(&format!("{OPENAI}-{HTTPX}"), &[OPENAI, HTTPX]).await;
    if installed.is_none() {
        skipped(&NO_OPENAI, "python", "openai could not be installed");
    }
    Some(installed?.join("bin/python"))
}

const ANTHROPIC: &str = "anthropic==2.14.0";
static NO_ANTHROPIC: Once = Once::new();

/// A Python with Anthropic's client. `None` if it is not installed and cannot be installed.
pub async fn python_with_anthropic() -> Option<PathBuf> {
    let installed = environment(ANTHROPIC, &[ANTHROPIC]).await;
    if installed.is_none() {
        skipped(&NO_ANTHROPIC, "python", "anthropic could not be installed");
    }
    Some(installed?.join("bin/python"))
}

const GEMINI: &str = "google-genai==3.6.1";
static NO_GEMINI: Once = Once::new();

/// A Python with Google's client. `None` if it is not installed and cannot be installed.
pub async fn python_with_gemini() -> Option<PathBuf> {
    let installed = environment(GEMINI, &[GEMINI]).await;
    if installed.is_none() {
        skipped(&NO_GEMINI, "python", "google-genai could not be installed");
    }
    Some(installed?.join("bin/python"))
}

const A2A: &str = "a2a-sdk==1.3.0";
static NO_A2A: Once = Once::new();

/// A Python with the official client of A2A. `None` if it is not installed and cannot be installed.
pub async fn python_with_a2a() -> Option<PathBuf> {
    let installed = environment(A2A, &[A2A]).await;
    if installed.is_none() {
        skipped(&NO_A2A, "python", "a2a-sdk could not be installed");
    }
    Some(installed?.join("bin/python"))
}
