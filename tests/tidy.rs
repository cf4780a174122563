//! Architecture checks on the source: rules of ARCHITECTURE.md that no compiler checks, and the tests named by
//! docs/.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/signatures.rs"]
mod signatures;
#[path = "tidy/words.rs"]
mod words;

/// A file of the repository: path from the root, separated by `/`, and text.
struct File {
    path: String,
    text: String,
}

const GATEWAY: &str = "services/gateway/src/";
const MAX_LINES: usize = 500;

// --- crates and the directories that may use them ---

/// A crate, and the directories or modules that may use it. `api` means `api.rs` and `api/`.
const ALLOWED_IN: [(&str, &[&str]); 16] = [
    ("async_nats", &["crates/runs/src/bus", "tests"]),
    ("axum", HTTP_IN),
    ("hyper", HTTP_IN),
    ("hyper_util", HTTP_IN),
    ("utoipa_axum", API),
    ("utoipa_swagger_ui", &["services/gateway/src/api"]),
    ("object_store", &["crates/blob-store"]),
    ("reqwest", HTTP_OUT),
    ("rmcp", MCP),
    ("rusqlite", &["crates/store"]),
    ("sea_orm", TABLES),
    ("sea_orm_migration", TABLES),
    ("sqlx", &["crates/store", "tests", "benches"]),
    ("sse_stream", MCP),
    ("tokio_postgres", &["crates/store"]),
    ("tokio_rustls", &["crates/store", "tests"]),
];
/// Routes and their documents.
const API: &[&str] = &[
    "crates/client-api",
    "crates/faces",
    "crates/host-api",
    "services/gateway/src/api",
];
const HTTP_IN: &[&str] = &[
    "benches",
    "crates/client-api",
    "crates/conform/src/mock_host",
    "crates/faces",
    "crates/host-api",
    "crates/web",
    "services/gateway/src/api",
    // A tool server for the playground, in place of an external one.
    "services/gateway/src/app/builtin_runners/clock_server",
    "services/harness/src/relay",
    "crates/runner-kit",
    "tests",
];
const HTTP_OUT: &[&str] = &[
    "crates/egress",
    "services/harness/src/relay",
    "crates/runner-kit",
    "tests",
];
const MCP: &[&str] = &[
    "crates/faces/src/mcp",
    "crates/host-api/src/mcp",
    "crates/tools/src/mcp",
    "crates/web/src/mcp",
    "services/gateway/src/app/builtin_runners/clock_server",
];
const TABLES: &[&str] = &["crates/store", "migrations"];

#[test]
fn io_crates_are_used_only_in_allowed_directories() {
    let mut faults = Vec::new();
    for file in rust_files() {
        for (word, directories) in ALLOWED_IN {
            if directories
                .iter()
                .any(|directory| is_in(&file.path, directory))
            {
                continue;
            }
            for line in lines_with(&file.text, word) {
                let path = &file.path;
                faults.push(format!(
                    "{path}:{line} contains `{word}`: use it only in {directories:?}"
                ));
            }
        }
    }
    assert_none(faults);
}

#[test]
fn domain_uses_no_async_and_no_clock() {
    let mut faults = Vec::new();
    for file in rust_files() {
        let pure = [
            "crates/domain",
            "crates/langbot",
            "crates/llm-formats",
            "crates/action-graph/src",
        ];
        if !pure.iter().any(|directory| is_in(&file.path, directory)) {
            continue;
        }
        for word in ["async", "await", "tokio", "Instant", "SystemTime"] {
            for line in lines_with(&file.text, word) {
                faults.push(format!("{}:{line} contains `{word}`", file.path));
            }
        }
    }
    assert_none(faults);
}

// --- dependency direction ---

/// Our crates, and the ones each may depend on. The gateway is above all.
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 34] = [
    ("crates/protocol", &[]),
    ("crates/action-graph", &["secrets"]),
    ("crates/clock", &[]),
    ("crates/secrets", &[]),
    ("crates/jq-filter", &[]),
    ("crates/tokenizer", &[]),
    ("crates/egress", &["protocol"]),
    ("crates/domain", &["protocol"]),
    ("crates/langbot", &["domain", "protocol"]),
    ("crates/llm-formats", &["domain", "protocol"]),
    ("migrations", &[]),
    (
        "crates/store",
        &["domain", "migrations", "protocol", "secrets", "telemetry"],
    ),
    ("crates/telemetry", &["clock", "domain", "egress"]),
    (
        "crates/keys",
        &["clock", "domain", "protocol", "secrets", "store"],
    ),
    (
        "crates/models",
        &[
            "clock",
            "domain",
            "egress",
            "llm-formats",
            "protocol",
            "telemetry",
            "tokenizer",
        ],
    ),
    (
        "crates/tools",
        &[
            "clock",
            "domain",
            "egress",
            "protocol",
            "secrets",
            "telemetry",
        ],
    ),
    (
        "crates/runner-client",
        &["clock", "domain", "egress", "protocol", "secrets"],
    ),
    ("crates/blob-store", &["egress"]),
    (
        "crates/knowledge",
        &[
            "clock",
            "domain",
            "egress",
            "models",
            "protocol",
            "store",
            "telemetry",
        ],
    ),
    (
        "crates/runs",
        &[
            "blob-store",
            "clock",
            "domain",
            "egress",
            "jq-filter",
            "keys",
            "protocol",
            "runner-client",
            "secrets",
            "store",
            "telemetry",
        ],
    ),
    (
        "crates/web",
        &[
            "blob-store",
            "domain",
            "egress",
            "keys",
            "knowledge",
            "models",
            "protocol",
            "runs",
            "store",
            "telemetry",
            "tools",
        ],
    ),
    (
        "crates/host-api",
        &[
            "blob-store",
            "domain",
            "egress",
            "keys",
            "knowledge",
            "llm-formats",
            "models",
            "protocol",
            "runs",
            "store",
            "telemetry",
            "tools",
            "web",
        ],
    ),
    (
        "crates/client-api",
        &[
            "domain",
            "keys",
            "knowledge",
            "langbot",
            "models",
            "protocol",
            "runs",
            "store",
            "web",
        ],
    ),
    (
        "crates/faces",
        &[
            "client-api",
            "domain",
            "llm-formats",
            "protocol",
            "runs",
            "store",
            "web",
        ],
    ),
    (
        "crates/cli",
        &[
            "action-graph",
            "clock",
            "domain",
            "egress",
            "knowledge",
            "protocol",
            "telemetry",
        ],
    ),
    (
        "crates/conform",
        &[
            "clock",
            "domain",
            "egress",
            "host-api",
            "knowledge",
            "llm-formats",
            "models",
            "protocol",
            "runner-client",
            "runs",
            "secrets",
            "store",
            "web",
        ],
    ),
    ("crates/runner-kit", &["clock", "protocol", "secrets"]),
    ("crates/agent-core", &["protocol", "runner-kit"]),
    ("examples/rust", &["protocol", "runner-kit"]),
    (
        "services/connectors",
        &[
            "agent-core",
            "clock",
            "egress",
            "jq-filter",
            "protocol",
            "runner-kit",
        ],
    ),
    (
        "services/harness",
        &["agent-core", "clock", "protocol", "runner-kit"],
    ),
    (
        "services/local-agent",
        &["agent-core", "clock", "protocol", "runner-kit"],
    ),
    (
        "services/protocol-agent",
        &[
            "action-graph",
            "agent-core",
            "clock",
            "protocol",
            "runner-kit",
            "secrets",
        ],
    ),
    ("tests", &["protocol", "runner-kit"]),
];
const WORKSPACE_CRATES: [&str; 34] = [
    "action-graph",
    "agent-core",
    "blob-store",
    "cli",
    "client-api",
    "clock",
    "conform",
    "connectors",
    "domain",
    "echo-runner",
    "egress",
    "faces",
    "gateway",
    "harness",
    "host-api",
    "jq-filter",
    "keys",
    "knowledge",
    "langbot",
    "llm-formats",
    "local-agent",
    "migrations",
    "models",
    "protocol",
    "protocol-agent",
    "runner-client",
    "runner-kit",
    "runs",
    "secrets",
    "store",
    "telemetry",
    "tokenizer",
    "tools",
    "web",
];
/// Dependencies that decisions need. Crates with async code, clocks or I/O are excluded.
const DOMAIN_NEEDS: [&str; 12] = [
    "chrono",
    "chrono-tz",
    "croner",
    "json-patch",
    "memchr",
    "protocol",
    "serde",
    "serde_json",
    "strsim",
    "thiserror",
    "unicode-normalization",
    "uuid",
];

#[test]
fn crates_depend_only_on_crates_below() {
    let mut faults = Vec::new();
    for (directory, below) in ALLOWED_DEPENDENCIES {
        for name in dependencies(directory) {
            if WORKSPACE_CRATES.contains(&name.as_str()) && !below.contains(&name.as_str()) {
                faults.push(format!("{directory} depends on {name}"));
            }
        }
    }
    for name in dependencies("crates/domain") {
        if !DOMAIN_NEEDS.contains(&name.as_str()) {
            faults.push(format!("crates/domain depends on {name}"));
        }
    }
    assert_none(faults);
}

/// Modules of the gateway from top to bottom. A module may import from its own row and the rows below.
const ROWS: [&[&str]; 4] = [
    &["cli"],
    &["dev"],
    &["app"],
    &["api", "change_export", "config", "shutdown"],
];

fn row_of(module: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.contains(&module))
}

#[test]
fn gateway_modules_import_only_from_below() {
    let mut faults = Vec::new();
    for file in rust_files() {
        let Some(inside) = file.path.strip_prefix(GATEWAY) else {
            continue;
        };
        let module = inside.split(['/', '.']).next().unwrap_or_default();
        if ["lib", "main"].contains(&module) {
            continue;
        }
        let Some(row) = row_of(module) else {
            faults.push(format!("{} has no row in tests/tidy.rs", file.path));
            continue;
        };
        for (line, other) in modules_named(&file.text) {
            if row_of(&other).is_some_and(|other| other < row) {
                let path = &file.path;
                faults.push(format!("{path}:{line} imports crate::{other} from above"));
            }
        }
    }
    assert_none(faults);
}

// --- files ---

/// A request body is read only where the credential is checked again.
#[test]
fn bodies_are_read_only_with_second_credential_check() {
    // The last two read response bodies.
    const READERS: [&str; 5] = [
        "discard_body.rs",
        "json.rs",
        "recheck.rs",
        "response_memory.rs",
        "memory_budget.rs",
    ];
    let mut faults = Vec::new();
    for file in rust_files() {
        const APIS: [&str; 4] = [
            "crates/client-api/src/",
            "crates/faces/src/",
            "crates/host-api/src/",
            "crates/web/src/",
        ];
        let path = APIS.iter().find_map(|start| file.path.strip_prefix(start));
        let Some(path) = path else {
            continue;
        };
        if path.starts_with("http_server") || READERS.contains(&path) {
            continue;
        }
        let readers = ["into_data_stream", "BodyDataStream", "Multipart", "RawForm"];
        let read = readers.iter().flat_map(|word| lines_with(&file.text, word));
        let numbered = (1..).zip(file.text.lines().map(str::trim));
        let extracted = numbered.filter(|(_, line)| {
            line.ends_with("body: Body,") || line.ends_with(": Bytes,") && !line.starts_with("pub")
        });
        let lines = read.chain(extracted.map(|(line, _)| line));
        faults.extend(lines.map(|line| {
            format!("{path}:{line} reads a body: use `JsonBody`, `read_body` or `StreamedBody`")
        }));
    }
    assert_none(faults);
}

#[test]
fn modules_use_no_mod_rs_files() {
    let files = rust_files();
    let inside = files.iter().filter(|file| file.path.ends_with("/mod.rs"));
    assert_none(
        inside.map(|file| format!("{}: name it like its directory, next to it", file.path)),
    );
}

#[test]
fn files_are_limited_to_500_lines() {
    let files = rust_files();
    let long = files
        .iter()
        .filter(|file| !is_test(&file.path))
        .filter_map(|file| {
            let lines = lines_before_tests(&file.text);
            (lines > MAX_LINES).then(|| format!("{} has {lines} lines", file.path))
        });
    assert_none(long);
}

/// A list without pages reads rows without a byte limit.
#[test]
fn store_lists_are_paged() {
    /// Short keys, and lists whose length their table limits.
    const SHORT: &[&str] = &[
        "list_state_keys",
        "list_state_summaries",
        "list_blob_keys",
        "list_agent_skills",
        "list_signing_keys",
    ];
    let files = rust_files();
    let store = files
        .iter()
        .filter(|file| file.path.starts_with("crates/store/src/"));
    let unbounded = store.flat_map(|file| {
        let lists = file
            .text
            .split("pub async fn ")
            .skip(1)
            .filter_map(|function| {
                let (name, rest) = function.split_once('(')?;
                let signature = rest
                    .split_once('{')
                    .map_or(rest, |(signature, _)| signature);
                let is_list = name.starts_with("list_") || name.starts_with("page_");
                let is_page = ["PageBound", "RunWindow", "HistoryQuery"]
                    .iter()
                    .any(|bound| signature.contains(bound));
                (is_list && !is_page && !SHORT.contains(&name))
                    .then(|| format!("{}: {name}", file.path))
            });
        lists.collect::<Vec<_>>()
    });
    assert_none(unbounded);
}

#[test]
fn only_migration_names_third_party_runners() {
    const NAMES: &[&str] = &[
        "dify",
        "coze",
        "n8n",
        "dashscope",
        "langflow",
        "tbox",
        "weknora",
        "deerflow",
    ];
    const ALLOWED_DIRECTORIES: &[&str] = &[
        "crates/langbot/src/migrate",
        "services/gateway/src/cli/migrate_config",
        // A protocol named after one of them.
        "services/gateway/src/config/knowledge",
        "services/gateway/src/app/settings/knowledge",
        "crates/knowledge/src/remote_knowledge",
    ];
    let mut faults = Vec::new();
    for file in rust_files() {
        let is_ours = is_in(&file.path, "crates") || is_in(&file.path, "services/gateway/src");
        if !is_ours
            || is_test(&file.path)
            || ALLOWED_DIRECTORIES
                .iter()
                .any(|directory| is_in(&file.path, directory))
        {
            continue;
        }
        for (number, line) in (1..).zip(file.text.lines()) {
            let line = line.to_ascii_lowercase();
            let mut words = line.split(|c: char| !c.is_ascii_alphanumeric());
            if words.any(|word| NAMES.contains(&word)) {
                faults.push(format!("{}:{number} {}", file.path, line.trim()));
            }
        }
    }
    assert_none(faults);
}

/// Only test builds have failpoints (`store::failpoint`).
#[test]
fn only_test_builds_have_failpoints() {
    let features = |edges: &str| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .current_dir(root())
            .args(["tree", "--locked", "--offline"]);
        cargo.args(["--package", "gateway", "--invert", "fail", "--edges", edges]);
        let output = cargo.output().expect("cargo runs");
        let listing = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(listing.contains("gateway"), "{output:?}");
        listing
    };
    let switched_on = "fail feature \"failpoints\"";
    assert!(features("all,features").contains(switched_on));
    assert!(!features("normal,build,features").contains(switched_on));
}

#[test]
fn files_contain_no_machine_specific_paths() {
    let prefixes = ["home", "root", "Users", "work"].map(|directory| format!("/{directory}/"));
    let mut faults = Vec::new();
    for file in files() {
        for (number, line) in (1..).zip(file.text.lines()) {
            if prefixes
                .iter()
                .any(|prefix| has_absolute_path(line, prefix))
            {
                faults.push(format!("{}:{number} {}", file.path, line.trim()));
            }
        }
    }
    assert_none(faults);
}

#[test]
fn architecture_names_existing_tests() {
    for page in ["ARCHITECTURE.md", "docs/security-harness.md"] {
        let page = fs::read_to_string(root().join(page)).expect("the page is there");
        assert_none(missing_tests(&page));
    }
}

/// Identifiers in a page that look like test names but are none.
fn missing_tests(page: &str) -> Vec<String> {
    let named = page.split('`').skip(1).step_by(2);
    let is_sentence = |name: &&str| name.matches('_').count() > 3 && **name == name.to_lowercase();
    let sources: String = rust_files().into_iter().map(|file| file.text).collect();
    let is_missing = |name: &&str| !sources.contains(&format!("fn {name}("));
    let missing = named.filter(is_sentence).filter(is_missing);
    missing.map(str::to_owned).collect()
}

// --- docs/local-agent.md and docs/write-an-agent.md ---

/// Rows of that page without a test; the page explains each.
const WITHOUT_TEST: usize = 2;

#[test]
fn local_agent_page_names_existing_tests() {
    let page = fs::read_to_string(root().join("docs/local-agent.md")).expect("the page is there");
    let (_, held) = page.split_once("## Behaviour and tests").expect("the part");
    let (held, _) = held.split_once("\n## ").expect("the next part");
    let rows = rows(held);
    let rows = rows.iter().filter(|row| row[0] != "behaviour");
    let (with, without): (Vec<_>, Vec<_>) = rows.partition(|row| row[1].starts_with('`'));
    let tests: Vec<_> = with.iter().map(|row| row[1]).collect();
    let mut faults = missing_tests(&tests.join("\n"));
    if without.len() != WITHOUT_TEST {
        faults.push(format!("these name no test: {without:?}"));
    }
    if with.len() < 80 {
        faults.push(format!("{} behaviours are left", with.len()));
    }
    assert_none(faults);
}

#[test]
fn documented_rust_agent_is_the_compiled_one() {
    let read = |path| fs::read_to_string(root().join(path)).expect("the file is there");
    let page = read("docs/write-an-agent.md");
    let shown = page.split("```rust\n").nth(1).expect("an agent in Rust");
    let (shown, _) = shown.split_once("```").expect("its end");
    let kit = read("crates/runner-kit/src/lib.rs");
    let compiled = kit.split("//! ```\n").nth(1).expect("an example");
    let lines = compiled.lines().map(|line| {
        let line = line.strip_prefix("//!").expect("a line of the example");
        line.strip_prefix(' ').unwrap_or(line)
    });
    assert!(lines.eq(shown.lines()), "they differ");
}

#[test]
fn documented_python_agents_are_the_tested_ones() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("the file is there");
    let page = read("docs/write-an-agent.md");
    let examples = ["assistant_runner", "openai_runner"]
        .map(|name| read(&format!("examples/python/{name}.py")));
    let shown: Vec<_> = page.split("```python\n").skip(1).collect();
    assert!(shown.len() >= 3, "{} are left", shown.len());
    for rest in shown {
        let (part, _) = rest.split_once("```").expect("its end");
        let is_shown = examples.iter().any(|example| example.contains(part));
        assert!(is_shown, "this is in no example:\n{part}");
    }
}

// --- docs/coverage.md ---

/// Areas of the page, and the number of requirements in each.
const AREAS: [(&str, usize); 15] = [
    ("SHAPE", 8),
    ("DISC", 57),
    ("CTX", 54),
    ("PERM", 36),
    ("RUN", 32),
    ("RES", 28),
    ("PROXY", 44),
    ("ERR", 12),
    ("TIME", 8),
    ("ADAPT", 34),
    ("EXT", 15),
    ("DSL", 112),
    ("UX", 15),
    ("SEC", 12),
    ("LA", 50),
];

#[test]
fn coverage_page_lists_each_requirement_with_existing_tests() {
    let page = fs::read_to_string(root().join("docs/coverage.md")).expect("the page is there");
    let faults = faulty_requirements(&page, &AREAS);
    assert_none(faults.into_iter().chain(faulty_test_references(
        &page,
        &rows(&page),
        &rust_files(),
    )));
}

/// Cells of each table row of the page, without headers.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let lines = page.lines().filter_map(|line| line.strip_prefix('|'));
    let cells = lines.map(|line| {
        line.trim_end_matches('|')
            .split('|')
            .map(str::trim)
            .collect()
    });
    let is_head = |row: &Vec<&str>| row[0] == "id" || row[0].starts_with('-');
    cells.filter(|row| !is_head(row)).collect()
}

fn faulty_requirements(page: &str, areas: &[(&str, usize)]) -> Vec<String> {
    let in_area = |(area, count): &(&str, usize)| -> Vec<_> {
        (1..=*count).map(|n| format!("{area}-{n:02}")).collect()
    };
    let all: BTreeSet<_> = areas.iter().flat_map(in_area).collect();
    let mut left = all.clone();
    let mut faults = Vec::new();
    for row in rows(page) {
        let id = row[0];
        if !all.contains(id) {
            faults.push(format!("`{id}` is the id of no requirement"));
        } else if !left.remove(id) {
            faults.push(format!("{id} is listed twice"));
        }
    }
    faults.extend(left.into_iter().map(|id| format!("{id} is missing")));
    faults
}

/// A row of four cells names tests as `path::function`; each must exist in that file.
fn faulty_test_references(page: &str, rows: &[Vec<&str>], sources: &[File]) -> Vec<String> {
    let held = rows.iter().filter(|row| row.len() == 4);
    let idle = held.filter(|row| !row[2].contains("::"));
    let mut faults: Vec<_> = idle
        .map(|row| format!("{} names no test", row[0]))
        .collect();
    for named in page.split('`').skip(1).step_by(2) {
        let Some((path, name)) = named.split_once(".rs::") else {
            continue;
        };
        let path = format!("{path}.rs");
        let function = format!("fn {name}(");
        match sources.iter().find(|file| file.path == path) {
            None => faults.push(format!("{named}: there is no such file")),
            Some(file) if file.text.contains(&function) => {}
            Some(_) => faults.push(format!("{named}: there is no such test")),
        }
    }
    faults
}

// --- docs/reliability.md and docs/threats.md ---

/// Ids of a page: a prefix of letters, and the numbers after it.
type Promises = [(&'static str, &'static [std::ops::RangeInclusive<usize>])];

const RELIABILITY: &Promises = &[
    ("I", &[1..=14]),
    ("F", &[1..=15, 20..=43, 50..=65, 70..=75, 80..=95]),
    ("P", &[1..=42]),
];
const THREATS: &Promises = &[
    ("J", &[1..=32]),
    ("T-I", &[1..=9]),
    ("T-S", &[1..=14]),
    ("O", &[1..=19]),
    ("D", &[1..=22]),
    ("H", &[1..=20]),
    ("A", &[1..=55]),
];

#[test]
fn promises_name_existing_tests_or_are_marked_untested() {
    let sources: String = rust_files().into_iter().map(|file| file.text).collect();
    let mut faults = Vec::new();
    for (path, promises) in [
        ("docs/reliability.md", RELIABILITY),
        ("docs/threats.md", THREATS),
    ] {
        let page = fs::read_to_string(root().join(path)).expect("the page is there");
        let amiss = faulty_promises(&page, promises, &sources);
        faults.extend(amiss.into_iter().map(|fault| format!("{path}: {fault}")));
    }
    assert_none(faults);
}

/// An id may have several rows among the tested ones, or one row among the untested ones, but not both.
fn faulty_promises(page: &str, promises: &Promises, sources: &str) -> Vec<String> {
    let numbered = |(letter, ranges): &(&str, &[std::ops::RangeInclusive<usize>])| -> Vec<_> {
        let numbers = ranges.iter().cloned().flatten();
        numbers.map(|n| format!("{letter}{n}")).collect()
    };
    let all: BTreeSet<_> = promises.iter().flat_map(numbered).collect();
    let (held, open) = page.split_once("## Not held yet").unwrap_or((page, ""));
    let (mut faults, mut found) = (Vec::new(), BTreeSet::new());
    for row in rows(held) {
        found.insert(row[0].to_owned());
        let tests: Vec<_> = row.last().map_or("", |cell| cell).split(", ").collect();
        for test in tests {
            let name = test.trim_matches('`');
            if row.len() != 3 || !sources.contains(&format!("fn {name}(")) {
                faults.push(format!("{}: there is no test {name}", row[0]));
            }
        }
    }
    for row in rows(open) {
        if row.len() != 3 || row[2].is_empty() {
            faults.push(format!("{} has no reason", row[0]));
        }
        if !found.insert(row[0].to_owned()) {
            faults.push(format!("{} is listed twice", row[0]));
        }
    }
    let unknown = found.difference(&all).map(|id| format!("`{id}` is no id"));
    let missing = all.difference(&found).map(|id| format!("{id} is missing"));
    faults.extend(unknown.chain(missing));
    faults
}

#[test]
fn detects_faulty_promise_rows() {
    const IDS: &Promises = &[("X", &[1..=2])];
    let check = |page: &str, expected: &[&str]| {
        assert_eq!(
            faulty_promises(page, IDS, "fn it_holds("),
            expected,
            "{page}"
        );
    };
    check(
        "| X1 | a | `it_holds` |\n| X1 | b | `it_holds` |\n## Not held yet\n| X2 | c | because |",
        &[],
    );
    check(
        "| X1 | a | `it_holds`, `gone` |\n| X2 | a | it_holds |",
        &["X1: there is no test gone"],
    );
    check(
        "| X1 | a | `it_holds` |\n## Not held yet\n| X1 | a | because |\n| X3 | a | because |",
        &["X1 is listed twice", "`X3` is no id", "X2 is missing"],
    );
    check(
        "| X1 | a | `it_holds` |\n## Not held yet\n| X2 | c |  |",
        &["X2 has no reason"],
    );
}

// --- log lines ---

#[test]
fn operations_page_quotes_existing_log_lines() {
    let page = fs::read_to_string(root().join("OPERATIONS.md")).expect("the page is there");
    let phrases = log_phrases(&page);
    assert!(phrases.len() >= 10, "{phrases:?}");
    let files = rust_files().into_iter();
    let sources: Vec<_> = files
        .filter(|file| !is_test(&file.path))
        .map(|file| join_continued_lines(&file.text))
        .collect();
    let is_logged = |phrase: &str| sources.iter().any(|source| has_phrase(source, phrase));
    let faults = phrases
        .into_iter()
        .filter(|phrase| !is_logged(phrase))
        .map(|phrase| format!("OPERATIONS.md quotes `{phrase}`: no log line contains it"));
    assert_none(faults);
}

/// Quoted texts after `the log:`, up to the end of the clause. A single word is a field name.
fn log_phrases(page: &str) -> Vec<&str> {
    let clauses = page.split("the log: ").skip(1);
    let clauses = clauses.map(|clause| clause.split([';', '|']).next().unwrap_or_default());
    let quoted = clauses.flat_map(|clause| clause.split('`').skip(1).step_by(2));
    quoted.filter(|phrase| phrase.contains(' ')).collect()
}

/// Joins a string literal that continues on the next source line.
fn join_continued_lines(text: &str) -> String {
    let mut pieces = text.split("\\\n");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |joined, piece| joined + piece.trim_start())
}

/// `…` matches one value in braces.
fn has_phrase(source: &str, phrase: &str) -> bool {
    let Some((before, after)) = phrase.split_once('…') else {
        return source.contains(phrase);
    };
    source.match_indices(before).any(|(at, _)| {
        let rest = source[at + before.len()..].strip_prefix('{');
        let rest = rest.and_then(|rest| rest.split_once('}'));
        rest.is_some_and(|(_, rest)| rest.starts_with(after))
    })
}

// --- tests on both databases ---

/// Engine-specific files of the store.
const ENGINE_SPECIFIC_FILES: [&str; 23] = [
    "audit.rs",
    "capacity.rs",
    "connect.rs",
    "database_clock.rs",
    "engine.rs",
    "error.rs",
    "interactions/approval.rs",
    "notifier.rs",
    "postgres_connector.rs",
    "postgres_direct.rs",
    "postgres_sessions.rs",
    "history_search.rs",
    "knowledge/chunks.rs",
    "knowledge/removal.rs",
    "knowledge/search.rs",
    "retention.rs",
    "runs/labels.rs",
    "shared_parts.rs",
    "sql.rs",
    "transcript.rs",
    "writer.rs",
    "writer/direct.rs",
    "writer/transaction.rs",
];

/// Tests that leave their `PostgreSQL` half to `.ci/long` must have one, and cover none of these files.
#[test]
fn skips_only_engine_independent_twins() {
    let files = files();
    let text_of = |path: &str| {
        let file = files.iter().find(|file| file.path == path);
        file.map(|file| file.text.as_str())
    };
    let list = text_of("tests/support/twins.rs").expect("the list");
    let list = list
        .split_once("&[\n")
        .and_then(|(_, rest)| rest.split_once("];"));
    let twins: Vec<_> = list
        .expect("the list")
        .0
        .split('"')
        .skip(1)
        .step_by(2)
        .collect();
    assert!(!twins.is_empty());
    let mut faults = Vec::new();
    for twin in twins {
        let text = text_of(&format!("tests/e2e/{twin}.rs"));
        if !text.is_some_and(|text| text.contains("#[values(Sqlite, Postgres)]")) {
            faults.push(format!("tests/e2e/{twin}.rs has no test on both databases"));
        }
    }
    let engine_specific: Vec<_> = files
        .iter()
        .filter(|file| file.text.contains("Postgres"))
        .filter_map(|file| file.path.strip_prefix("crates/store/src/"))
        .collect();
    for file in &engine_specific {
        if !ENGINE_SPECIFIC_FILES.contains(file) {
            faults.push(format!(
                "crates/store/src/{file} distinguishes the databases: add a test of tests/support/twins.rs and list the file"
            ));
        }
    }
    assert_eq!(
        engine_specific.len(),
        ENGINE_SPECIFIC_FILES.len(),
        "{engine_specific:?}"
    );
    assert_none(faults);
}

// --- search ---

#[track_caller]
fn assert_none(faults: impl IntoIterator<Item = String>) {
    let faults: Vec<_> = faults.into_iter().collect();
    let report = faults.join("\n");
    assert!(
        report.is_empty(),
        "see ARCHITECTURE.md and STYLE.md\n{report}"
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn rust_files() -> Vec<File> {
    let mut files = files();
    files.retain(|file| Path::new(&file.path).extension() == Some("rs".as_ref()));
    assert!(files.len() > 100, "most files were not found");
    files
}

/// All text files of the repository, except build output, fetched files and gateway data.
fn files() -> Vec<File> {
    let ignored = fs::read_to_string(root().join(".gitignore")).expect("the list is there");
    // The other lines are names, and below in `EXCLUDED`.
    let ignored: Vec<_> = ignored
        .lines()
        .filter_map(|line| line.strip_prefix('/'))
        .map(|path| path.trim_end_matches('/'))
        .collect();
    let mut files = Vec::new();
    collect(&root(), "", &ignored, &mut files);
    files
}

/// `ignored`: paths from the root.
fn collect(directory: &Path, prefix: &str, ignored: &[&str], files: &mut Vec<File>) {
    const EXCLUDED: [&str; 7] = [
        ".git",
        ".venv",
        "__pycache__",
        "node_modules",
        "runnel-data",
        "target",
        "third-party",
    ];
    let is_cache = directory.join("CACHEDIR.TAG").exists();
    let entries = fs::read_dir(directory).expect("the repository can be read");
    for entry in entries.filter(|_| !is_cache) {
        let entry = entry.expect("the repository can be read");
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().expect("the repository can be read");
        let path = format!("{prefix}{name}");
        let is_excluded = EXCLUDED.contains(&name.as_str()) || ignored.contains(&path.as_str());
        if is_excluded || kind.is_symlink() {
            continue;
        }
        if kind.is_dir() {
            collect(&entry.path(), &format!("{path}/"), ignored, files);
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            files.push(File { path, text });
        }
    }
}

fn is_in(path: &str, directory: &str) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.split('/').any(|part| part == "tests")
}

fn lines_before_tests(text: &str) -> usize {
    let is_code = |line: &&str| !line.starts_with("#[cfg(test)]");
    text.lines().take_while(is_code).count()
}

/// Line numbers of code that contains `word` as a complete word.
fn lines_with(text: &str, word: &str) -> Vec<usize> {
    let numbered = (1..).zip(text.lines());
    let holding = numbered.filter(|(_, line)| words(&code_of(line)).any(|one| one == word));
    holding.map(|(number, _)| number).collect()
}

/// A line without string literals and comments. Sufficient for rustfmt output.
fn code_of(line: &str) -> String {
    let line = line.replace("\\\"", "").replace("'\"'", "");
    let outside: String = line.split('"').step_by(2).collect();
    outside.split("//").next().unwrap_or_default().to_owned()
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

/// Lines and modules of `crate::module` and `crate::{module, …}`.
fn modules_named(text: &str) -> Vec<(usize, String)> {
    let code: Vec<String> = text.lines().map(code_of).collect();
    let code = code.join("\n");
    let mut named = Vec::new();
    for (at, path) in code.match_indices("crate::") {
        let line = code[..at].matches('\n').count() + 1;
        for module in first_names(&code[at + path.len()..]) {
            named.push((line, module));
        }
    }
    named
}

/// First segment of each path in a `use`: one, or those of a group.
fn first_names(rest: &str) -> Vec<String> {
    let Some(group) = rest.strip_prefix('{') else {
        return words(rest).next().map(str::to_owned).into_iter().collect();
    };
    let (mut depth, mut top) = (1, String::new());
    for letter in group.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ if depth == 1 => top.push(letter),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    let paths = top.split(',').filter_map(|path| words(path.trim()).next());
    paths
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Names under `[dependencies]` of a crate's manifest.
fn dependencies(directory: &str) -> Vec<String> {
    let manifest = fs::read_to_string(root().join(directory).join("Cargo.toml"));
    let manifest = manifest.expect("the crate has a manifest");
    let section = manifest
        .lines()
        .skip_while(|line| line.trim() != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['));
    let names = section.filter_map(|line| line.split(['=', '.']).next());
    let names = names
        .map(str::trim)
        .filter(|name| !name.is_empty() && !name.starts_with('#'));
    names.map(str::to_owned).collect()
}

/// True if `place` starts a path in `line` and is not in the middle of one.
fn has_absolute_path(line: &str, prefix: &str) -> bool {
    line.match_indices(prefix).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || "._-~{}$*)".contains(letter))
    })
}

// --- tests of these checks ---

#[test]
fn finds_words_in_code_only() {
    let text = "//! axum\nuse axum::Router;\nlet taxum = \"axum\"; // axum\n";
    assert_eq!(lines_with(text, "axum"), [2]);
}

#[test]
fn finds_modules_alone_and_in_groups() {
    let text = "use crate::api::Api;\nuse crate::{\n    runs::{self, token},\n    clock,\n};\n";
    let expected = [(1, "api"), (2, "runs"), (2, "clock")];
    let expected = expected.map(|(line, name)| (line, name.to_owned()));
    assert_eq!(modules_named(text), expected);
}

#[test]
fn module_paths_match_complete_segments() {
    for (path, inside) in [
        ("a/api.rs", true),
        ("a/api/x.rs", true),
        ("a/apiary.rs", false),
    ] {
        assert_eq!(is_in(path, "a/api"), inside, "{path}");
    }
}

#[test]
fn absolute_paths_match_only_at_their_start() {
    let prefix = format!("/{}/", "home");
    assert!(has_absolute_path(&format!("see `{prefix}ada`"), &prefix));
    assert!(!has_absolute_path(
        &format!("https://example.org{prefix}ada"),
        &prefix
    ));
}

#[test]
fn finds_log_lines_with_values_and_continuations() {
    let page = "| a | x 1; the log: `run … ended`, its `error` | `b c` |\nthe log: `two lines`, or `none`\n";
    assert_eq!(log_phrases(page), ["run … ended", "two lines"]);
    let source = join_continued_lines("warn!(\"run {id} ended\"); warn!(\"two \\\n    lines\");");
    for (phrase, is_there) in [
        ("run … ended", true),
        ("two lines", true),
        ("run … began", false),
        ("ran … ended", false),
    ] {
        assert_eq!(has_phrase(&source, phrase), is_there, "{phrase}");
    }
}

#[test]
fn detects_faulty_coverage_rows() {
    let page = "| id | requirement | tests | what |\n|---|---|---|---|\n\
        | A-01 | x | `t/a.rs::there` | y |\n| A-01 | x | `t/a.rs::gone` | y |\n\
        | A-1 | x | `t/b.rs::there` | y |\n| A-02 | x | none | y |\n| A-04 | x | decided |\n";
    assert_eq!(
        faulty_requirements(page, &[("A", 4)]),
        [
            "A-01 is listed twice",
            "`A-1` is the id of no requirement",
            "A-03 is missing",
        ]
    );
    let file = |path: &str, text: &str| File {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    assert_eq!(
        faulty_test_references(page, &rows(page), &[file("t/a.rs", "async fn there() {}")]),
        [
            "A-02 names no test",
            "t/a.rs::gone: there is no such test",
            "t/b.rs::there: there is no such file",
        ]
    );
}
