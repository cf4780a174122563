//! The official Codex against the Responses API.

use tokio::process::Command;

use super::super::scripted_in;
use crate::real_harnesses::installed;
use crate::support::gateway::Agent;
use crate::support::{Sqlite, TempDirectory, within};

/// For a model name that it knows, Codex sends its tools as an item of the input.
#[tokio::test]
async fn codex_runs_with_models_that_it_knows() {
    let (command, _) = or_skip!(installed("codex").await);
    let directory = TempDirectory::new();
    let (stage, run) = scripted_in(&directory, Sqlite, |config| {
        config.agents = vec![Agent {
            resources: r#"models = ["gpt-5.6-sol"]"#,
            ..Agent::default()
        }];
        config.rest += "[[models]]\nmodel_id = \"gpt-5.6-sol\"\nprovider = \"script\"\n";
    })
    .await
    .unwrap();
    let settings = format!(
        "model = \"gpt-5.6-sol\"\nmodel_provider = \"runnel\"\nweb_search = \"disabled\"\n\
         [model_providers.runnel]\nname = \"runnel\"\nbase_url = \"{}/openai/v1\"\n\
         env_key = \"RUNNEL_TOKEN\"\nwire_api = \"responses\"\n",
        run.host.url
    );
    let config = directory.write("config.toml", &settings);
    let home = config.parent().unwrap();
    let mut codex = Command::new(command);
    codex
        .args(["exec", "--skip-git-repo-check", "the weather"])
        .current_dir(home)
        .env("CODEX_HOME", home)
        .env("RUNNEL_TOKEN", &run.token)
        .kill_on_drop(true);
    let output = within("the answer of Codex", codex.output()).await.unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{log}");
    assert!(stdout.contains("It is "), "{stdout}\n{log}");
    run.end(&stage).await;
}
