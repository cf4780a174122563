//! CLI commands that run to completion.

use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::client::send;
use crate::support::runner::SECRET;
use crate::support::{CommandOutput, Stage, TempDirectory, programs, run};

const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// A valid configuration.
const VALID: &str = r#"
[server]
listen = "127.0.0.1:0"
[auth]
master_key = "env:E2E_MASTER_KEY"
[database]
url = "sqlite://DIRECTORY/runnel.db"
[egress]
allow = ["127.0.0.1:9100"]
[[runner_endpoints]]
name = "echo"
base_url = "http://127.0.0.1:9100"
secret = "env:E2E_SECRET"
[[agents]]
name = "hello"
event_types = ["message.received"]
runner_id = "plugin:runnel/echo/default"
"#;

async fn runnel(arguments: &[&str], directory: &TempDirectory) -> CommandOutput {
    let mut command = Command::new(programs::runnel());
    command
        .args(arguments)
        .current_dir(directory.file(""))
        .env("E2E_MASTER_KEY", KEY)
        .env("E2E_SECRET", SECRET);
    run(&mut command).await
}

async fn with_config(command: &str, config: &str, more: &[&str]) -> CommandOutput {
    let directory = TempDirectory::new();
    let path = directory.file("").display().to_string();
    let config = config.replace("DIRECTORY", path.trim_end_matches('/'));
    let file = directory.write("the.toml", &config);
    let mut arguments = vec![command, "--config", file.to_str().unwrap()];
    arguments.extend(more);
    let printed = runnel(&arguments, &directory).await;
    if command == "check-config" {
        assert!(!directory.file("runnel.db").exists(), "it made a database");
    }
    printed
}

#[tokio::test]
async fn accepts_a_valid_configuration() {
    let printed = with_config("check-config", VALID, &[]).await.exited(0);
    assert_eq!(printed.stdout, "the configuration is valid\n");
    let printed = with_config("check-config", VALID, &["--json"]).await;
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    let answer = printed.json();
    assert_eq!(answer, json!({"valid": true, "faults": [], "remarks": []}));
}

#[tokio::test]
async fn warns_about_undeclared_resources_in_policies() {
    // Refer to the configuration file itself, because it exists.
    let model = "[[model_providers]]\nname = \"script\"\nkind = \"scripted\"\n\
                 [[models]]\nmodel_id = \"gpt-large\"\nprovider = \"script\"\n";
    let files =
        "[[files]]\nname = \"known.txt\"\npath = \"DIRECTORY/the.toml\"\nkind = \"knowledge\"\n";
    let policy = "resource_policy = { models = [\"gpt-lagre\"], knowledge_bases = [\"hnadbook\"], \
                  files = [\"known.txt\", \"unknown.txt\"], tools = [\"of_some_server\"] }\n";
    let config = format!("{VALID}{policy}{model}{files}");
    let printed = with_config("check-config", &config, &[]).await.exited(0);
    assert_eq!(printed.stdout, "the configuration is valid\n");
    let remarks = [
        "agent hello may have the model gpt-lagre, which the configuration does not declare; did you mean gpt-large?",
        "agent hello may have the tool of_some_server, which nothing offers",
        "agent hello may have the knowledge base hnadbook, which the configuration does not declare",
        "agent hello may have the file unknown.txt, which the configuration does not declare; did you mean known.txt?",
    ];
    let lines: Vec<_> = printed.stderr.lines().collect();
    for (shown, remark) in lines.chunks(2).zip(remarks) {
        assert_eq!(shown[0], format!("warning: {remark}"));
        assert!(shown[1].ends_with("the.toml:18"), "{shown:?}");
    }
    assert_eq!(lines.len(), 2 * remarks.len(), "{printed:?}");
    let strict = with_config("check-config", &config, &["--strict"]).await;
    assert_eq!(strict.status.code(), Some(1), "{strict:?}");
    let printed = with_config("check-config", &config, &["--json"]).await;
    let answer = printed.json();
    assert_eq!(
        answer,
        json!({"valid": true, "faults": [], "remarks": remarks})
    );
}

#[tokio::test]
async fn warns_about_ungranted_names_in_local_agent_config() {
    let agent = r#"
[[agents]]
name = "local"
event_types = ["message.received"]
runner_id = "plugin:runnel/local-agent/default"
resource_policy = { models = ["large"], knowledge_bases = "*" }
[agents.config]
model = { primary = "large", fallbacks = ["small", "__none__"] }
rerank-model = ""
knowledge-bases = ["handbok"]
[[models]]
model_id = "large"
provider = "script"
[[model_providers]]
name = "script"
kind = "scripted"
[[knowledge_bases]]
kb_id = "handbook"
"#;
    let config = format!("{VALID}{agent}");
    let line = |text: &str| {
        1 + config
            .lines()
            .position(|line| line.starts_with(text))
            .unwrap()
    };
    let positions = [line("model = "), line("knowledge-bases = ")];
    let remarks = [
        "the config of agent local names the model small, which its resource_policy.models does not grant",
        "the config of agent local names the knowledge base handbok, which the configuration does not declare; did you mean handbook?",
    ];
    let printed = with_config("check-config", &config, &[]).await.exited(0);
    let lines: Vec<_> = printed.stderr.lines().collect();
    for ((shown, remark), position) in lines.chunks(2).zip(remarks).zip(positions) {
        assert_eq!(shown[0], format!("warning: {remark}"));
        assert!(
            shown[1].ends_with(&format!("the.toml:{position}")),
            "{shown:?}"
        );
    }
    assert_eq!(lines.len(), 2 * remarks.len(), "{printed:?}");
}

#[tokio::test]
async fn warns_about_ungranted_models_of_other_runners() {
    let agent = |name: &str, runner: &str, config: &str| {
        format!(
            "[[agents]]\nname = \"{name}\"\nevent_types = [\"message.received\"]\nrunner_id = \"plugin:{runner}\"\n\
             resource_policy = {{ models = [\"large\"] }}\nconfig = {config}\n"
        )
    };
    let agents = [
        agent(
            "coder",
            "runnel/claude-code/default",
            "{ model = \"larg\", small-model = \"small\" }",
        ),
        agent(
            "own",
            "me/bot/default",
            "{ chat_model = \"small\", model = \"of-its-own\" }",
        ),
        agent(
            "fine",
            "runnel/codex/default",
            "{ model = \"large\", small-model = \"\" }",
        ),
    ];
    let models = "[[model_providers]]\nname = \"script\"\nkind = \"scripted\"\n\
                  [[models]]\nmodel_id = \"large\"\nprovider = \"script\"\n\
                  [[models]]\nmodel_id = \"small\"\nprovider = \"script\"\n";
    let config = format!("{VALID}\n{}{models}", agents.concat());
    let printed = with_config("check-config", &config, &["--json"]).await;
    let answer = printed.json();
    let names = |agent: &str, model: &str| {
        format!(
            "the config of agent {agent} names the model {model}, which its resource_policy.models does not grant"
        )
    };
    let expected = [
        names("coder", "larg"),
        names("coder", "small"),
        names("own", "small"),
    ];
    assert_eq!(answer["remarks"], json!(expected), "{printed:?}");
}

#[tokio::test]
async fn token_create_without_configuration_names_its_database() {
    let directory = TempDirectory::new();
    let make = ["token", "create", "--role", "client", "--name", "x"];
    let printed = runnel(&make, &directory).await.exited(0);
    assert!(printed.stdout.starts_with("rnl_"), "{printed:?}");
    assert_eq!(
        printed.stderr,
        "there is no runnel.toml here and no --config: the database is sqlite://./runnel-data/runnel.db\n"
    );
    let config = "[database]\nurl = \"sqlite://./runnel-data/runnel.db\"\n";
    directory.write("runnel.toml", config);
    let printed = runnel(&["token", "list"], &directory).await;
    assert_eq!(printed.stderr, "", "{printed:?}");
    assert_eq!(printed.stdout.lines().count(), 2, "{printed:?}");
}

#[tokio::test]
async fn lists_create_no_database() {
    let directory = TempDirectory::new();
    for arguments in [
        &["token", "list"][..],
        &["token", "revoke", "abcdefgh"],
        &["keys", "list"],
        &["workspace", "list"],
        &["backup", "b.tar"],
    ] {
        let printed = runnel(arguments, &directory).await.exited(1);
        let expected = "error: there is no database at ./runnel-data/runnel.db: start";
        assert!(printed.stderr.contains(expected), "{printed:?}");
    }
    assert!(!directory.file("runnel-data").exists());
}

#[tokio::test]
async fn prints_version_completions_and_manual_pages() {
    let directory = TempDirectory::new();
    let version = runnel(&["--version"], &directory).await;
    let expected = format!("runnel {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(version.stdout, expected);
    let details = runnel(&["--version", "--verbose", "--json"], &directory).await;
    let details = details.json();
    for member in ["commit", "date", "features", "profile"] {
        assert!(!details[member].is_null(), "{details}");
    }
    let script = runnel(&["completions", "bash"], &directory).await;
    assert!(script.stdout.contains("runnel,runs)"), "{script:?}");
    let page = runnel(&["man"], &directory).await;
    assert!(page.stdout.contains(".TH runnel 1"), "{page:?}");
    let pages = directory.file("man");
    std::fs::create_dir(&pages).unwrap();
    runnel(&["man", "--out", "man"], &directory).await.exited(0);
    let page = std::fs::read_to_string(pages.join("runnel-runs-list.1")).unwrap();
    assert!(
        page.contains("runnel\\-runs\\-list") && !page.contains('`'),
        "{page}"
    );
}

#[tokio::test]
async fn rejects_unusable_trace_collector_with_remedy() {
    let telemetry = "[telemetry]\notlp_endpoint = \"http://127.0.0.1:4318\"\n\
        headers = { authorization = \"env:SURELY_NOT_SET\" }\n[egress]";
    let config = VALID.replace("[egress]", telemetry);
    let printed = with_config("check-config", &config, &[]).await.exited(1);
    for fault in [
        "telemetry.otlp_endpoint: ",
        "it needs `egress.allow = [\"127.0.0.1:4318\"]`",
        "telemetry.headers.authorization: the variable of env:SURELY_NOT_SET is not set",
    ] {
        assert!(printed.stderr.contains(fault), "{fault}: {printed:?}");
    }
    with_config("serve", &config, &[]).await.exited(1);
}

#[tokio::test]
async fn reports_skill_faults_by_path() {
    let skills = TempDirectory::new();
    let write = |package: &str, front: &str| {
        std::fs::create_dir_all(skills.file(package)).unwrap();
        skills.write(&format!("{package}/SKILL.md"), front);
    };
    write(
        "good",
        "---\nname: good\ndescription: Is good.\n---\nBe good.\n",
    );
    std::fs::create_dir_all(skills.file("no-skill")).unwrap();
    let directory = skills.file("").display().to_string();
    let directory = directory.trim_end_matches('/').to_owned();
    let listed = format!("{VALID}[[skill_directories]]\ndirectory = \"{directory}\"\n");
    with_config("check-config", &listed, &[]).await.exited(0);

    write("other", "---\nname: good\ndescription: Is another.\n---\n");
    write("bare", "Be good.\n");
    let twice = format!("[[skills]]\nskill_name = \"good\"\ndirectory = \"{directory}/good\"\n");
    let absent = format!("[[skill_directories]]\ndirectory = \"{directory}/nowhere\"\n");
    let wrong = format!("{listed}{absent}{twice}");
    let printed = with_config("check-config", &wrong, &[]).await.exited(1);
    for fault in [
        format!("skill_directories[0].directory: {directory}/other: SKILL.md names another skill"),
        format!(
            "skill_directories[0].directory: {directory}/bare: SKILL.md must begin with front matter"
        ),
        format!(
            "skill_directories[0].directory: {directory}/good: the skill good is in {directory}/good already"
        ),
        format!("skill_directories[1].directory: {directory}/nowhere cannot be listed"),
    ] {
        assert!(printed.stderr.contains(&fault), "{fault}: {printed:?}");
    }
    with_config("serve", &wrong, &[]).await.exited(1);
}

const POSTGRES: &str = "postgres://db/runnel";
const SQLITE: &str = "sqlite://DIRECTORY/runnel.db";
const NATS: &str = "kind = \"nats\"\nurl = \"nats://127.0.0.1:4222\"\n";

/// Faults of a configuration with this database URL and `[bus]` section.
async fn faults_of_bus(database: &str, bus: &str) -> String {
    let config = VALID
        .replace("sqlite://DIRECTORY/runnel.db", database)
        .replace("[egress]", &format!("[bus]\n{bus}\n[egress]"));
    let printed = with_config("check-config", &config, &[]).await;
    assert!(!printed.stderr.contains("hunter2"), "{printed:?}");
    printed.stderr
}

#[tokio::test]
async fn rejects_unusable_bus_with_remedy() {
    for (database, bus, fault) in [
        (SQLITE, "kind = \"none\"", ""),
        (POSTGRES, "kind = \"none\"", ""),
        (POSTGRES, "kind = \"postgres\"", ""),
        (SQLITE, "kind = \"postgres\"", "bus.kind: needs PostgreSQL"),
        (
            POSTGRES,
            "kind = \"redis\"",
            "bus.kind: must be \"postgres\", \"nats\" or \"none\"",
        ),
        (
            POSTGRES,
            "url = \"nats://nats\"",
            "bus.url: is only for bus.kind = \"nats\"",
        ),
        (
            POSTGRES,
            "kind = \"none\"\nsubject = \"x\"",
            "bus.subject: is only for bus.kind",
        ),
    ] {
        let text = faults_of_bus(database, bus).await;
        assert!(
            text.starts_with(fault) && fault.is_empty() == text.is_empty(),
            "{bus}: {text}"
        );
    }
}

#[tokio::test]
async fn rejects_unusable_nats_settings_with_remedy() {
    for (more, fault) in [
        ("", ""),
        ("user = \"u\"\npassword = \"env:E2E_SECRET\"", ""),
        ("token = \"env:E2E_SECRET\"\nsubject = \"runnel.test\"", ""),
        (
            "user = \"u\"",
            "bus: bus.user and bus.password belong together",
        ),
        (
            "user = \"u\"\npassword = \"hunter2\"",
            "bus.password: must not hold the secret itself",
        ),
        (
            "token = \"env:RUNNEL_SURELY_NOT_SET\"",
            "bus.token: the variable of env:RUNNEL_SURELY_NOT_SET is not set",
        ),
        (
            "user = \"u\"\npassword = \"env:E2E_SECRET\"\ntoken = \"env:E2E_SECRET\"",
            "bus: name one way to log in",
        ),
        (
            "credentials = \"env:E2E_SECRET\"",
            "bus: bus.credentials must hold a NATS credentials file",
        ),
        (
            "ca_file = \"/nowhere/ca.pem\"",
            "bus: the file of bus.ca_file cannot be read",
        ),
        ("subject = \"runnel.>\"", "bus.subject: must be words"),
    ] {
        let text = faults_of_bus(POSTGRES, &format!("{NATS}{more}")).await;
        assert!(
            text.starts_with(fault) && fault.is_empty() == text.is_empty(),
            "{more}: {text}"
        );
    }
    let text = faults_of_bus(SQLITE, NATS).await;
    assert!(text.starts_with("bus.kind: needs PostgreSQL"), "{text}");
    let text = faults_of_bus(POSTGRES, "kind = \"nats\"").await;
    assert!(text.starts_with("bus.url: is required"), "{text}");
    let with_password = "kind = \"nats\"\nurl = \"nats://u:hunter2@nats\"";
    let text = faults_of_bus(POSTGRES, with_password).await;
    assert_starts_with!(text, "bus.url: must hold no credentials");
}

#[tokio::test]
async fn rejects_invalid_database_urls_before_serving() {
    for (url, expected) in [
        (
            "postgres://runnel:hunter2@127.0.0.1:1/events?sslmode=bogus",
            "bogus",
        ),
        ("sqlite://:memory:", "must name a file"),
    ] {
        let printed = with_config("check-config", &VALID.replace(SQLITE, url), &[]).await;
        assert_eq!(printed.status.code(), Some(1), "{printed:?}");
        let is_expected =
            |line: &str| line.starts_with("database.url: ") && line.contains(expected);
        assert!(printed.stderr.lines().any(is_expected), "{printed:?}");
        assert!(!printed.stderr.contains("hunter2"), "{printed:?}");
    }
}

#[tokio::test]
async fn reports_unreachable_database_server_with_reason() {
    let nowhere = VALID.replace(SQLITE, "postgres://runnel:hunter2@127.0.0.1:1/events");
    let served = with_config("serve", &nowhere, &[]).await.exited(1);
    let expected = "error: database.url cannot be opened: PostgreSQL at 127.0.0.1:1, database events: Connection refused";
    assert!(served.stderr.starts_with(expected), "{served:?}");
    assert!(!served.stderr.contains("hunter2"), "{served:?}");
}

#[tokio::test]
async fn reports_all_configuration_faults_at_once() {
    let wrong = VALID
        .replace("127.0.0.1:0", "everywhere")
        .replace("E2E_SECRET", "E2E_UNSET\"\nmax_run = \"5")
        .replace("E2E_MASTER_KEY", "E2E_UNSET")
        .replace(
            "[egress]",
            "[[models]]\nmodel_id = \"m\"\nprovider = \"none\"\ntype = \"chat\"\n[egress]",
        )
        .replace(
            "[database]",
            "[limits]\nline_bytes = 1\nstorage_area_bytes = 1024\nslow = 1\n[database]",
        )
        .replace(
            "name = \"hello\"",
            "name = \"\"\nconfig = { timeout = \"5m\" }",
        );
    // In the order of the file.
    let paths = [
        "server.listen",
        "auth.master_key",
        "limits.line_bytes",
        "limits.storage_area_bytes",
        "limits.slow",
        "models[0].provider",
        "models[0].type",
        "runner_endpoints[0].secret",
        "runner_endpoints[0].max_run",
        "agents[0].name",
        "agents[0].config.timeout",
    ];
    let printed = with_config("check-config", &wrong, &[]).await.exited(1);
    let served = with_config("serve", &wrong, &[]).await.exited(1);
    for printed in [&printed, &served] {
        let lines = || printed.stderr.lines();
        let found = paths.map(|path| {
            let is_fault = |line: &str| {
                line.trim_start_matches("error: ")
                    .starts_with(&format!("{path}: "))
            };
            let at = lines().position(is_fault);
            at.unwrap_or_else(|| panic!("{path}: {printed:?}"))
        });
        assert!(found.is_sorted(), "{printed:?}");
    }

    let printed = with_config("check-config", &wrong, &["--json"]).await;
    assert_eq!(printed.status.code(), Some(1), "{printed:?}");
    let answer = printed.json();
    assert_eq!(answer["valid"], false);
    let faults = answer["faults"].as_array().unwrap();
    let mut found: Vec<_> = faults
        .iter()
        .map(|fault| fault["pointer"].as_str().unwrap())
        .collect();
    found.sort_unstable();
    let mut paths = paths;
    paths.sort_unstable();
    assert_eq!(found, paths);
}

/// With the line of each fault, and the name that was probably meant.
#[tokio::test]
async fn reports_all_faults_of_an_agent_with_lines() {
    let wrong = VALID.replace(
        "name = \"hello\"",
        "name = \"hello\"\nconcurrency = \"parallel\"\nresource_policy = { tool = [\"x\"] }\n\
         config = { timeout = \"5m\" }\n",
    );
    let wrong = format!("{wrong}[egres]\nallow = []\n");
    let printed = with_config("check-config", &wrong, &[]).await.exited(1);
    let lines: Vec<_> = printed.stderr.lines().collect();
    for (fault, line) in [
        (
            "agents[0].concurrency: must be one of concurrent, reject,",
            16,
        ),
        (
            "agents[0].resource_policy.tool: is not known here; did you mean tools?",
            17,
        ),
        ("agents[0].config.timeout: must be a number of seconds", 18),
        ("egres: is not known here; did you mean egress?", 22),
    ] {
        let at = lines.iter().position(|line| line.starts_with(fault));
        let at = at.unwrap_or_else(|| panic!("{fault}: {printed:?}"));
        assert!(lines[at + 1].starts_with("  --> "), "{printed:?}");
        assert!(
            lines[at + 1].ends_with(&format!("the.toml:{line}")),
            "{fault}: {printed:?}"
        );
    }
    assert_eq!(lines.len(), 8, "{printed:?}");
}

#[tokio::test]
async fn names_the_key_of_a_fault_once() {
    let wrong = VALID.replace("master_key = \"env:E2E_MASTER_KEY\"", "");
    let printed = with_config("check-config", &wrong, &[]).await;
    assert_starts_with!(printed.stderr, "auth.master_key: is not set; name a file");
    assert_eq!(
        printed.stderr.matches("auth.master_key").count(),
        1,
        "{printed:?}"
    );
}

#[tokio::test]
async fn paths_are_relative_to_the_configuration_file() {
    let directory = TempDirectory::new();
    std::fs::create_dir_all(directory.file("etc/keys")).unwrap();
    directory.write("etc/keys/master", KEY);
    let config = VALID
        .replace("env:E2E_MASTER_KEY", "file:keys/master")
        .replace("sqlite://DIRECTORY/runnel.db", "sqlite://./data/runnel.db");
    directory.write("etc/the.toml", &config);
    let make = ["token", "create", "--role", "client", "--name", "x"];
    let from_file = ["--config", "etc/the.toml"];
    let checked = runnel(&[&["check-config"][..], &from_file].concat(), &directory).await;
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    let printed = runnel(&[&make[..], &from_file].concat(), &directory).await;
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    assert!(directory.file("etc/data/runnel.db").exists());

    // An earlier version read these paths from the working directory.
    std::fs::rename(directory.file("etc/data"), directory.file("data")).unwrap();
    let moved = runnel(&[&["check-config"][..], &from_file].concat(), &directory).await;
    assert_eq!(moved.status.code(), Some(1), "{moved:?}");
    assert_starts_with!(
        moved.stderr,
        "database.url: is relative to the directory of this file"
    );
    assert!(moved.stderr.contains("write an absolute path"), "{moved:?}");
}

/// One table, with a row for everything that was reached.
#[tokio::test]
async fn probe_reaches_storage_and_finds_unknown_tools() {
    let server = "[[mcp_servers]]\nname = \"dying\"\ncommand = [\"/bin/sh\", \"-c\", \"echo code E404 >&2; echo gone >&2; exit 1\"]\n";
    let config = VALID.replace(
        "[[runner_endpoints]]",
        &format!("{server}[[runner_endpoints]]"),
    );
    let printed = with_config("check-config", &config, &["--probe"]).await;
    assert_eq!(printed.status.code(), Some(1), "{printed:?}");
    let row = |kind: &str| {
        let mut rows = printed.stdout.lines().filter(|line| line.starts_with(kind));
        rows.next().unwrap_or_else(|| panic!("{kind}: {printed:?}"))
    };
    assert!(row("database").contains(" ok  "), "{printed:?}");
    assert!(row("artifacts").contains(" ok  "), "{printed:?}");
    assert!(
        row("MCP server").contains("FAILED") && row("MCP server").contains("code E404 … gone"),
        "{printed:?}"
    );
    assert!(row("runner endpoint").contains("FAILED"), "{printed:?}");
    assert!(
        row("agent").contains("no endpoint that answers lists plugin:runnel/echo/default"),
        "{printed:?}"
    );

    let nowhere = VALID.replace(SQLITE, "postgres://runnel:hunter2@127.0.0.1:1/events");
    let probed = with_config("check-config", &nowhere, &["--probe", "--json"]).await;
    let answer = probed.json();
    let error = answer["database"]["error"].as_str().unwrap();
    assert_starts_with!(
        error,
        "PostgreSQL at 127.0.0.1:1, database events: Connection refused"
    );
    assert!(!probed.stdout.contains("hunter2"), "{probed:?}");

    let builtin = "[[tools]]\ntool_name = \"get_current_time\"\n";
    let policy = "resource_policy = { tools = [\"get_curent_time\"] }\n";
    let printed = with_config("check-config", &format!("{VALID}{policy}{builtin}"), &[]).await;
    let warning = "warning: agent hello may have the tool get_curent_time, which nothing offers; did you mean get_current_time?";
    assert!(printed.stderr.starts_with(warning), "{printed:?}");
}

#[tokio::test]
async fn checks_secrets_and_addresses_without_printing_them() {
    let wrong = VALID
        .replace("E2E_SECRET", "E2E_UNSET")
        .replace("E2E_MASTER_KEY", "E2E_SECRET")
        .replace("allow = [\"127.0.0.1:9100\"]", "");
    for json in [&[][..], &["--json"][..]] {
        let printed = with_config("check-config", &wrong, json).await.exited(1);
        let output = printed.stdout + &printed.stderr;
        for pointer in [
            "runner_endpoints[0].secret",
            "runner_endpoints[0].base_url",
            "auth.master_key",
        ] {
            assert!(output.contains(pointer), "{pointer}: {output}");
        }
        assert!(!output.contains(SECRET), "{output}");
    }
}

#[tokio::test]
async fn wrong_usage_exits_with_2() {
    for arguments in [
        &[][..],
        &["fly"][..],
        &["send"][..],
        &["serve", "--colour"][..],
        &["token", "create", "--name", "x"][..],
        &["token", "create", "--name", "x", "--role", "king"][..],
        &["token", "revoke"][..],
        &["keys"][..],
        &["keys", "rotate", "--purpose", "cake"][..],
    ] {
        // No parent directory of `/` contains the key of a playground.
        let mut command = Command::new(programs::runnel());
        let printed = run(command.args(arguments).current_dir("/")).await;
        assert_eq!(printed.status.code(), Some(2), "{arguments:?}: {printed:?}");
        assert_eq!(printed.stdout, "", "{arguments:?}");
    }
}

#[tokio::test]
async fn printed_and_served_openapi_documents_match() {
    let stage = Stage::new().await;
    let directory = TempDirectory::new();
    let printed = runnel(&["openapi"], &directory).await.exited(0);
    let gateway = printed.json();
    let request = stage
        .client
        .anonymous(reqwest::Method::GET, "/openapi.json");
    assert_eq!(send(request).await.unwrap().body, gateway);
    for path in [
        "/v1/events",
        "/v1/runs",
        "/v1/runs/{run_id}/events",
        "/v1/runs/{run_id}/authorization",
        "/v1/runner-endpoints",
        "/v1/agents/{agent_id}",
        "/host/v1/context",
        "/host/v1/run",
        "/host/v1/token",
        "/host/v1/history",
        "/host/v1/history/search",
        "/.well-known/jwks.json",
    ] {
        assert!(gateway["paths"][path].is_object(), "{path}");
    }

    let printed = runnel(&["openapi", "runner"], &directory).await;
    let runner = printed.json();
    for (document, name) in [(&gateway, "gateway"), (&runner, "runner")] {
        let version = document["openapi"].as_str().unwrap();
        assert!(version.starts_with("3.1"), "{name}: {version}");
        assert_resolved(document, document);
    }
    for path in ["/runners", "/runs", "/runs/{run_id}/cancel"] {
        assert!(runner["paths"][path].is_object(), "{path}");
    }
}

/// Asserts that every `$ref` resolves.
fn assert_resolved(document: &Value, value: &Value) {
    match value {
        Value::Object(object) => {
            if let Some(Value::String(reference)) = object.get("$ref") {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(
                    document.pointer(pointer).is_some(),
                    "{reference} leads nowhere"
                );
            }
            object
                .values()
                .for_each(|value| assert_resolved(document, value));
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| assert_resolved(document, item)),
        _ => {}
    }
}
