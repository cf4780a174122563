//! The commands of README and `docs/`: each page runs as one shell session, in an empty directory with a playground.
//!
//! Words after the language of a block:
//!
//! * `needs=REASON` – not run here; the reasons are counted below
//! * `service` – runs until the end of the page; the next block starts when it listens
//! * `file=NAME` – the block is the content of this file
//!
//! `<!-- setup: COMMAND -->` runs a command that the page does not show. A block of kind `console` also shows output: each
//! part of it, between `…`, appears in the real output in this order; ids, times and numbers may differ.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Once;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::process::Command;

use crate::support::documents::{Block, Kind, blocks, pages, session};
use crate::support::playground::Playground;
use crate::support::repository::repository_file;
use crate::support::{TempDirectory, programs, skipped};

/// Reasons to skip a block, each with its maximum number of blocks.
const SKIPPED: [(&str, usize); 10] = [
    // a coding agent, installed and logged in
    ("agent", 5),
    // a release build, or the test suite itself
    ("build", 12),
    // a Docker daemon
    ("docker", 8),
    // Homebrew
    ("homebrew", 1),
    // an account at a model provider or a platform
    ("key", 9),
    // LangBot's database or plugins
    ("langbot", 17),
    // the token of a live run
    ("run-token", 9),
    // a person at a terminal
    ("terminal", 5),
    // a second playground
    ("playground", 2),
    // packages of npm or PyPI; tests of the clients install them
    ("registry", 12),
];

/// Pages that run at the same time.
const AT_ONCE: usize = 2;
/// Only a hang reaches it.
const MAX_PAGE: Duration = Duration::from_mins(3);

/// Ports that the pages name. Each page gets free ones instead.
const PORTS: [&str; 8] = [
    "8700", "8701", "9100", "9101", "9105", "9110", "9120", "9200",
];
/// Programs that the pages use.
const TOOLS: [&str; 5] = ["bash", "curl", "jq", "openssl", "python3"];
static NO_TOOL: Once = Once::new();
/// Directories of the repository that commands name.
const DIRECTORIES: [&str; 5] = ["clients", "deploy", "docs", "examples", "packaging"];

#[tokio::test]
async fn documented_commands_succeed() {
    for tool in TOOLS {
        if Command::new(tool).arg("--version").output().await.is_err() {
            skipped(&NO_TOOL, "docs", &format!("there is no {tool}"));
            return;
        }
    }
    let pages = pages().into_iter().map(|page| {
        let blocks: Vec<_> = blocks(&page).into_iter().filter(is_run).collect();
        (page, blocks)
    });
    let pages = pages.filter(|(_, blocks)| blocks.iter().any(|block| block.kind != Kind::Setup));
    let faults = stream::iter(pages)
        .map(|(page, blocks)| async move { (page, play(&blocks).await) })
        .buffer_unordered(AT_ONCE);
    let faults: Vec<_> = faults
        .filter_map(async |(page, fault)| fault.map(|fault| format!("=== {page}\n{fault}")))
        .collect()
        .await;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn skipped_commands_are_counted_by_reason() {
    let mut counts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for block in pages().iter().flat_map(|page| blocks(page)) {
        if let Some(reason) = block.skip_reason() {
            counts
                .entry(reason.to_owned())
                .or_default()
                .push(block.location());
        }
    }
    for (reason, locations) in counts {
        let allowed = SKIPPED.iter().find(|(name, _)| *name == reason);
        let allowed = allowed.unwrap_or_else(|| panic!("{reason} is no reason: {locations:?}"));
        assert!(locations.len() <= allowed.1, "{reason}: {locations:?}");
    }
}

#[test]
fn commands_stand_in_marked_blocks() {
    let all = pages().into_iter().flat_map(|page| blocks(&page));
    let hidden = all.filter(|block| block.kind == Kind::Other && block.text.contains("$ runnel"));
    let hidden: Vec<_> = hidden.map(|block| block.location()).collect();
    assert!(hidden.is_empty(), "use ```console: {hidden:?}");
}

fn is_run(block: &Block) -> bool {
    let is_read = block.kind != Kind::Other || block.attribute("file").is_some();
    is_read && block.skip_reason().is_none()
}

/// Runs the blocks of a page and returns what failed.
async fn play(blocks: &[Block]) -> Option<String> {
    let directory = TempDirectory::new();
    for name in DIRECTORIES {
        let target = repository_file(name);
        std::os::unix::fs::symlink(target, directory.file(name)).unwrap();
    }
    let starts_gateway = |block: &&Block| block.has("service") && block.text.starts_with("runnel ");
    let mut own = blocks.iter().filter(starts_gateway);
    let is_playground = own.all(|block| block.text.trim() == "runnel dev");
    let playground = if is_playground {
        Some(Playground::start(&directory.file("runnel-data")).await)
    } else {
        None
    };
    let page = Page::new(playground.as_ref());
    let script = directory.write("page.sh", &page.script(blocks));
    let log = directory.file("page.log");
    let output = std::fs::File::create(&log).unwrap();
    let mut bash = Command::new("bash");
    bash.arg(script)
        .current_dir(directory.file("."))
        .envs(page.environment())
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .process_group(0)
        .kill_on_drop(true);
    let mut running = bash.spawn().unwrap();
    let group = format!("-{}", running.id().unwrap());
    let status = tokio::time::timeout(MAX_PAGE, running.wait()).await;
    let log = std::fs::read_to_string(log).unwrap();
    match status {
        Ok(Ok(status)) if status.success() => shown_outputs(blocks, &directory),
        ended => {
            // After a timeout, the script and its services still run.
            let _ = Command::new("kill")
                .args(["-KILL", "--", &group])
                .output()
                .await;
            Some(format!("{ended:?}\n{log}"))
        }
    }
}

/// Environment of the commands of a page: addresses and credentials.
struct Page<'a> {
    playground: Option<&'a Playground>,
    /// The ports of the page and those in their place.
    ports: Vec<(&'static str, String)>,
}

impl<'a> Page<'a> {
    fn new(playground: Option<&'a Playground>) -> Self {
        // Held together, so that they differ.
        let listeners = PORTS.map(|port| (port, TcpListener::bind("127.0.0.1:0").unwrap()));
        let free = listeners.iter().map(|(port, listener)| {
            let free = listener.local_addr().unwrap().port();
            (*port, free.to_string())
        });
        let mut ports: Vec<_> = free.collect();
        if let Some(playground) = playground {
            let (_, port) = playground.url.rsplit_once(':').unwrap();
            port.clone_into(&mut ports[0].1);
        }
        Self { playground, ports }
    }

    fn environment(&self) -> Vec<(String, String)> {
        let programs = programs::runnel().parent().unwrap().to_str().unwrap();
        let path = std::env::var("PATH").unwrap();
        let listen = format!("127.0.0.1:{}", self.ports[0].1);
        let mut variables = vec![
            ("PATH".to_owned(), format!("{programs}:{path}")),
            ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned()),
            ("LC_ALL".to_owned(), "C.UTF-8".to_owned()),
            ("LISTEN".to_owned(), listen.clone()),
            ("RUNNEL__SERVER__LISTEN".to_owned(), listen),
            self.listen_variable("LOCAL_AGENT_LISTEN", "9101"),
            self.listen_variable("PROTOCOL_AGENT_LISTEN", "9105"),
            self.listen_variable("RUNNEL_CONNECTORS_LISTEN", "9120"),
        ];
        if let Some(playground) = self.playground {
            variables.push(("RUNNEL_URL".to_owned(), playground.url.clone()));
            variables.push(("RUNNEL_API_KEY".to_owned(), playground.key.clone()));
        }
        variables
    }

    fn listen_variable(&self, name: &str, documented: &str) -> (String, String) {
        let (_, port) = self
            .ports
            .iter()
            .find(|(port, _)| *port == documented)
            .unwrap();
        (name.to_owned(), format!("127.0.0.1:{port}"))
    }

    /// The page as a script that ends at the first failed command.
    fn script(&self, blocks: &[Block]) -> String {
        let mut script = PRELUDE.to_owned();
        for (number, block) in blocks.iter().enumerate() {
            let text = self.at_free_ports(&block.text);
            let _ = writeln!(script, "echo '== {}'", block.location());
            if let Some(name) = block.attribute("file") {
                let _ = writeln!(script, "cat >{name} <<'END OF FILE'\n{text}END OF FILE");
            } else if block.has("service") {
                if self.playground.is_none() || text.trim() != "runnel dev" {
                    let _ = writeln!(script, "start {number} {}", quoted(text.trim()));
                }
            } else if block.kind == Kind::Session {
                for (part, (command, output)) in session(&text).into_iter().enumerate() {
                    // Shown output decides; without it, the status does.
                    let or = if output.trim().is_empty() {
                        ""
                    } else {
                        " || true"
                    };
                    let _ = writeln!(script, "{{ {command}\n}} >output.{number}.{part} 2>&1{or}");
                }
            } else {
                script.push_str(&text);
            }
        }
        script
    }

    fn at_free_ports(&self, text: &str) -> String {
        let text = text.replace("cargo run -- ", "runnel ");
        self.ports.iter().fold(text, |text, (port, free)| {
            [":", "PORT=", "--port "].iter().fold(text, |text, before| {
                text.replace(&format!("{before}{port}"), &format!("{before}{free}"))
            })
        })
    }
}

/// `start NAME COMMAND` runs a service in the background and waits until it names its address.
const PRELUDE: &str = r#"set -euo pipefail
# The script leads its process group, to which all services belong.
trap 'trap "" TERM; kill 0' EXIT
runnel() {
    if [[ ${1:-} == dev ]]; then
        shift
        command runnel dev --listen "$LISTEN" "$@"
    else
        command runnel "$@"
    fi
}
# Errors of the gateway fail a page.
curl() {
    case " $*" in
    *" -f"*) command curl "$@" ;;
    *) command curl --silent --show-error --fail-with-body "$@" ;;
    esac
}
start() {
    touch "service.$1"
    eval "$2" >"service.$1" 2>&1 &
    local process=$!
    if ! timeout 60 grep -Eqm1 'https?://' <(tail -n +1 -F --pid="$process" "service.$1" 2>/dev/null); then
        cat "service.$1"
        return 1
    fi
}
"#;

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Compares the outputs of `console` blocks with the pages.
fn shown_outputs(blocks: &[Block], directory: &TempDirectory) -> Option<String> {
    let mut faults = String::new();
    for (number, block) in blocks.iter().enumerate() {
        if block.kind != Kind::Session || block.has("service") {
            continue;
        }
        for (part, (command, shown)) in session(&block.text).into_iter().enumerate() {
            let file = directory.file(&format!("output.{number}.{part}"));
            let real = std::fs::read_to_string(file).unwrap();
            if let Some(missing) = missing_part(&shown, &real) {
                let location = block.location();
                let _ = writeln!(faults, "{location}: $ {command}\nno {missing:?} in\n{real}");
            }
        }
    }
    (!faults.is_empty()).then_some(faults)
}

/// The first shown part that the real output does not have after the parts before it.
fn missing_part(shown: &str, real: &str) -> Option<String> {
    let real = comparable(real);
    let mut rest = real.as_str();
    for part in shown.split('…') {
        let part = comparable(part);
        match rest.find(part.trim()) {
            Some(at) => rest = &rest[at + part.trim().len()..],
            None => return Some(part),
        }
    }
    None
}

/// No white space, and `0` for numbers, hexadecimal ids, and names of days and months. Without a terminal, `send` prints `*`
/// for `⚙`, and no line break before it.
fn comparable(text: &str) -> String {
    const DATES: &str = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April May June July \
                         August September October November December";
    /// Length of the short groups of a UUID, which may have letters only.
    const GROUP: usize = 4;
    let text = text.replace('⚙', "*");
    let words = text.split_inclusive(|character: char| !character.is_alphanumeric());
    words
        .map(|word| {
            let name = word.trim_end_matches(|character: char| !character.is_alphanumeric());
            let is_number = name.chars().all(|character| character.is_ascii_hexdigit())
                && (name.len() == GROUP
                    || name.contains(|character: char| character.is_ascii_digit()));
            let word = word.trim_end();
            if is_number || DATES.split(' ').any(|date| date == name) {
                format!("0{}", &word[name.len()..])
            } else {
                word.to_owned()
            }
        })
        .collect()
}
