//! Real coding agents from npm, offline, with a scripted model of the gateway. `RUNNEL_TEST_HARNESSES`
//! selects them: names of `harness_packages`, separated by spaces.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Once;

use rstest::rstest;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::support::client::read_through;
use crate::support::harness::{FinishedRun, HarnessFixture, HarnessSetup, quoted};
use crate::support::harness_packages::HarnessPackage;
use crate::support::skipped;
use crate::support::waiting::until;

/// Real harnesses that run at the same time. More of them start too slowly for their turns on a machine of two cores.
static HARNESSES: Semaphore = Semaphore::const_new(2);

/// Names of a harness's tools in model requests.
struct HarnessToolNames {
    shell: &'static str,
    /// Name of the shell tool's argument.
    argument: &'static str,
    /// Name of the gateway's clock tool on the MCP server.
    clock: &'static str,
}

fn tools(name: &str) -> HarnessToolNames {
    let (shell, argument, clock) = match name {
        "opencode" => ("bash", "command", "runnel_get_current_time"),
        "qwen-code" => (
            "run_shell_command",
            "command",
            "mcp__runnel__get_current_time",
        ),
        "codex" => ("exec_command", "cmd", "mcp__runnel__get_current_time"),
        _ => ("Bash", "command", "mcp__runnel__get_current_time"),
    };
    HarnessToolNames {
        shell,
        argument,
        clock,
    }
}

fn script(tools: &HarnessToolNames) -> String {
    let HarnessToolNames {
        shell,
        argument,
        clock,
    } = tools;
    let mut script = String::from(
        "[[turns]]\nafter_tool = true\nanswer = \"The tool said: {tool}\"\n\
         [[turns]]\nwhen = \"wait long\"\nanswer = \"late\"\ndelay_ms = 120000\n",
    );
    let _ = write!(
        script,
        "[[turns]]\nwhen = \"the time\"\noffered = \"{clock}\"\nanswer = \"I ask the clock.\"\n\
         tool_calls = [{{ name = \"{clock}\", arguments = {{}} }}]\n",
    );
    for file in ["allowed", "refused", "expired"] {
        let _ = write!(
            script,
            "[[turns]]\nwhen = \"make {file}\"\noffered = \"{shell}\"\nanswer = \"I make it.\"\n\
             tool_calls = [{{ name = \"{shell}\", arguments = {{ {argument} = \"touch {file}.txt\", description = \"make a file\" }} }}]\n",
        );
    }
    script.push_str("[[turns]]\nanswer = \"You said: {input}\"\n");
    script
}

#[rstest]
#[case("opencode")]
#[case("kimi-code")]
#[case("claude-code")]
#[case("claude-acp")]
#[case("codex")]
#[case("qwen-code")]
#[tokio::test]
async fn real_harness_completes_governed_turns(#[case] name: &str) {
    let script = script(&tools(name));
    let setup = HarnessSetup {
        config: "approval-seconds = 20",
        tools: "\"get_current_time\"",
        catalog: "[[tools]]\ntool_name = \"get_current_time\"\n".to_owned(),
        script: &script,
        ..HarnessSetup::default()
    };
    let house = or_skip!(open(name, setup).await);

    let began = completed(house.ask("hello").await);
    assert!(
        began
            .of("state.updated")
            .iter()
            .any(|data| data["key"] == "external.session_id")
    );

    // The next turn resumes the session, calls a tool of the run's MCP server, and its usage is counted.
    let outcome = completed(house.ask("what is the time").await);
    assert_lacks!(outcome.logs(), "could not be resumed");
    assert_contains!(outcome.text(), "The tool said:");
    let audit = house
        .client
        .get(&format!(
            "/v1/runs/{}/audit?limit=100",
            outcome.run["run_id"].as_str().unwrap()
        ))
        .await
        .body;
    assert!(audit.to_string().contains("call_tool"), "{audit}");
    assert!(
        outcome.run["usage"]["total_tokens"]
            .as_i64()
            .unwrap_or_default()
            > 0,
        "{}",
        outcome.run
    );

    for (file, action) in [
        ("allowed", Some("allow_once")),
        ("refused", Some("reject")),
        ("expired", None),
    ] {
        let run = house.post(&format!("make {file}")).await;
        let question = house.question(&run).await;
        assert_contains!(question.to_string(), &format!("touch {file}.txt"));
        if let Some(action) = action {
            house.answer(&question, action).await;
        }
        let ended = completed(house.ended(&run).await);
        let is_there = house.workspace().join(format!("{file}.txt")).exists();
        assert_eq!(is_there, file == "allowed", "{}", ended.text());
        let reason = match file {
            "refused" => "was not given: refused",
            "expired" => "nobody answered in time",
            _ => "",
        };
        assert!(ended.logs().contains(reason), "{}", ended.logs());
    }

    // A cancel during a turn leaves no process, and the conversation continues.
    let run = house.post("wait long").await;
    until("the harness", async || !house.processes().is_empty()).await;
    house
        .client
        .create(&format!("/v1/runs/{run}/cancel"), &json!({}))
        .await;
    assert_eq!(house.ended(&run).await.run["status"], "cancelled");
    house.wait_for_no_process().await;
    completed(house.ask("hello once more").await);
}

#[rstest]
#[case("opencode")]
#[case("kimi-code")]
#[case("claude-code")]
#[case("codex")]
#[tokio::test]
async fn budget_stops_looping_harness(#[case] name: &str) {
    let HarnessToolNames {
        shell, argument, ..
    } = tools(name);
    let script = format!(
        "[[turns]]\noffered = \"{shell}\"\nanswer = \"once more\"\n\
         tool_calls = [{{ name = \"{shell}\", arguments = {{ {argument} = \"true\", description = \"again\" }} }}]\n\
         [[turns]]\nanswer = \"a title\"\n"
    );
    let setup = HarnessSetup {
        config: "mode = \"full\"\ntimeout = 50",
        catalog: "[[budgets]]\nname = \"a-run\"\nscope = \"run\"\ncalls = 6\n".to_owned(),
        script: &script,
        ..HarnessSetup::default()
    };
    let house = or_skip!(open(name, setup).await);
    let ended = house.ask("begin").await;
    assert_eq!(
        ended.ending(),
        "failed harness.budget_exceeded",
        "{}",
        ended.run
    );
    assert_contains!(ended.run["error"]["message"].as_str().unwrap(), "budget");
    let calls = ended.of("tool.call.started").len();
    assert!((1..=6).contains(&calls), "{calls} calls");
    house.wait_for_no_process().await;
}

#[rstest]
#[case("opencode")]
#[case("kimi-code")]
#[case("claude-code")]
#[case("codex")]
#[tokio::test]
async fn provider_error_fails_turn_of_harness(#[case] name: &str) {
    let script = "[[turns]]\nstatus = 400\nmessage = \"the model takes no such parameter\"\n";
    let setup = HarnessSetup {
        config: "timeout = 50",
        script,
        ..HarnessSetup::default()
    };
    let house = or_skip!(open(name, setup).await);
    let ended = house.ask("begin").await;
    assert_eq!(
        ended.ending(),
        "failed harness.turn_failed",
        "{}",
        ended.run
    );
    let message = ended.run["error"]["message"].to_string();
    assert!(message.contains("no such parameter"), "{message}");
    assert_contains!(ended.logs(), "the provider answers 400: ");
}

/// Files by which a workspace could configure a coding agent, each to create `RAN` when the agent starts.
fn planted(ran: &str) -> Vec<(&'static str, String)> {
    let server = json!({"command": "touch", "args": [ran]});
    let hook = json!([{"hooks": [{"type": "command", "command": format!("touch {ran}")}]}]);
    let servers = json!({"mcpServers": {"runnel": server, "other": server}});
    let mut settings = servers.clone();
    settings["hooks"] = json!({"SessionStart": hook, "UserPromptSubmit": hook});
    settings["tools"] = json!({"discoveryCommand": format!("touch {ran}")});
    let local = json!({"type": "local", "command": ["touch", ran], "enabled": true});
    let opencode = json!({"mcp": {"runnel": local, "other": local}});
    let plugin =
        format!("require('fs').writeFileSync('{ran}', '');\nexport const x = async () => ({{}});");
    let codex = format!(
        "notify = [\"touch\", {ran:?}]\n[mcp_servers.other]\ncommand = \"touch\"\nargs = [{ran:?}]\n"
    );
    let mut files = vec![
        ("opencode.json", opencode.to_string()),
        (".opencode/opencode.json", opencode.to_string()),
        (".opencode/plugin/x.js", plugin.clone()),
        (".opencode/plugins/x.js", plugin),
        (".codex/config.toml", codex),
    ];
    let of_servers = [
        ".mcp.json",
        ".kimi/mcp.json",
        ".kimi-code/mcp.json",
        ".cursor/mcp.json",
    ];
    files.extend(of_servers.map(|path| (path, servers.to_string())));
    let of_settings = [
        ".claude/settings.json",
        ".claude/settings.local.json",
        ".gemini/settings.json",
        ".qwen/settings.json",
    ];
    files.extend(of_settings.map(|path| (path, settings.to_string())));
    files
}

#[rstest]
#[case("opencode")]
#[case("kimi-code")]
#[case("claude-code")]
#[case("codex")]
#[case("qwen-code")]
#[tokio::test]
async fn configuration_of_workspace_starts_no_program(#[case] name: &str) {
    let setup = HarnessSetup {
        config: "timeout = 50",
        ..HarnessSetup::default()
    };
    let house = or_skip!(open(name, setup).await);
    completed(house.ask("begin").await);
    let workspace = house.workspace();
    let ran = workspace.join("RAN");
    for (path, text) in planted(ran.to_str().unwrap()) {
        let path = workspace.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    completed(house.ask("go on").await);
    assert!(!ran.exists(), "{name} executed a file of the workspace");
}

/// A turn that appends a line to a file. `pauses` in milliseconds between two pieces of the model's streams: before the
/// edit, and after it.
fn edit_script(tools: &HarnessToolNames, pauses: [u64; 2]) -> String {
    let HarnessToolNames {
        shell, argument, ..
    } = tools;
    let [before, after] = pauses;
    let pieces: Vec<_> = (1..=100).map(|n| format!("word {n} ")).collect();
    format!(
        "[[turns]]\nafter_tool = true\nchunks = {pieces:?}\nchunk_ms = {after}\n\
         [[turns]]\noffered = \"{shell}\"\nchunks = {pieces:?}\nchunk_ms = {before}\n\
         tool_calls = [{{ name = \"{shell}\", arguments = {{ {argument} = \"echo line >> lines.txt\", description = \"add a line\" }} }}]\n\
         [[turns]]\nanswer = \"a title\"\n"
    )
}

/// Number of deltas of the run so far.
async fn deltas(house: &HarnessFixture, run: &str) -> usize {
    house
        .client
        .ledger(run)
        .await
        .of_type("message.delta")
        .len()
}

/// Waits for more deltas than these: the model's stream is open.
async fn more_deltas(house: &HarnessFixture, run: &str, than: usize) {
    until("text of the model", async || {
        deltas(house, run).await > than
    })
    .await;
}

/// Kills in the middle of both model streams and of the permission.
#[rstest]
#[case("opencode")]
#[case("kimi-code")]
#[case("claude-code")]
#[case("codex")]
#[tokio::test]
async fn turn_of_harness_survives_gateway_kills(#[case] name: &str) {
    /// 100 pieces take half a minute, so that a kill comes before the last one.
    const SLOW: u64 = 300;
    let tools = tools(name);
    let script = edit_script(&tools, [SLOW, SLOW]);
    let setup = HarnessSetup {
        config: "timeout = 100",
        script: &script,
        ..HarnessSetup::default()
    };
    let mut house = or_skip!(open(name, setup).await);
    let client = house.client.clone();
    let run = house.post("add the line").await;
    let killing = async {
        more_deltas(&house, &run, 0).await;
        house.replace_script(&edit_script(&tools, [0, SLOW]));
        house.restart_gateway().await;
        let question = house.question(&run).await;
        house.restart_gateway().await;
        assert!(!house.workspace().join("lines.txt").exists());
        let before = deltas(&house, &run).await;
        house.answer(&question, "allow_once").await;
        more_deltas(&house, &run, before).await;
        // A repeated request may not end with the tool result, and the script must not call the tool again.
        house.replace_script("[[turns]]\nanswer = \"The line is there.\"\n");
        house.restart_gateway().await;
    };
    let (read, ()) = tokio::join!(read_through(&run, || client.clone()), killing);
    let ended = completed(house.ended(&run).await);
    assert_eq!(read.events, house.client.ledger(&run).await.0);
    assert!(read.breaks >= 3, "{} interrupted streams", read.breaks);
    let lines = std::fs::read_to_string(house.workspace().join("lines.txt"));
    assert_eq!(lines.unwrap(), "line\n", "{:?}", ended.results);
    assert_eq!(ended.of("action.requested").len(), 1);
}

/// A house whose runner is the harness, if `RUNNEL_TEST_HARNESSES` selects it.
async fn open(name: &str, setup: HarnessSetup<'_>) -> Option<HarnessFixture> {
    let (command, directory) = installed(name).await?;
    let (preset, runner) = match name {
        "claude-acp" => (
            "claude-code\"\nnative = false\nname = \"acp",
            "claude-code/acp".to_owned(),
        ),
        _ => (name, format!("{name}/default")),
    };
    let permit = HARNESSES.acquire().await.unwrap();
    let mut house = HarnessFixture::open(HarnessSetup {
        harness: format!("preset = \"{preset}\"\ncommand = {}", quoted(&command)),
        readable: vec![directory],
        runner: &runner,
        ..setup
    })
    .await;
    house.permit = Some(permit);
    Some(house)
}

/// The harness, if `RUNNEL_TEST_HARNESSES` selects it.
pub(crate) async fn installed(name: &str) -> Option<(PathBuf, PathBuf)> {
    static SKIPPED: Once = Once::new();
    let wanted = std::env::var("RUNNEL_TEST_HARNESSES").unwrap_or_default();
    if !wanted.split_whitespace().any(|wanted| wanted == name) {
        let why = format!("RUNNEL_TEST_HARNESSES does not name {name} and maybe others");
        skipped(&SKIPPED, "every-harness", &why);
        return None;
    }
    Some(
        HarnessPackage::of(name)
            .installed()
            .await
            .expect("npm installs it"),
    )
}

#[track_caller]
fn completed(ended: FinishedRun) -> FinishedRun {
    assert_eq!(
        ended.ending(),
        "completed",
        "{} {:?}",
        ended.run,
        ended.results
    );
    ended
}
