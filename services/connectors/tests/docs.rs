//! The pages of the platforms in `docs/connectors` against the catalogue.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use connectors::catalogue::{PLATFORMS, Platform};
use connectors::session::MachineSession;
use connectors::turn::ConnectorTurn;
use connectors::upstream::config::{SecretHosts, SecretSource};
use protocol::manifest::FormItem;
use serde_json::Value;

const OVERVIEW: &str = "docs/connectors.md";

#[test]
fn each_platform_has_a_page_of_its_prefix() {
    for platform in PLATFORMS {
        let page = page(platform);
        for named in [
            platform.id().to_string(),
            format!("`{}.…`", platform.prefix),
        ] {
            assert!(page.contains(&named), "{}: {named}", platform.name);
        }
    }
}

#[test]
fn pages_name_each_key_with_its_default() {
    let overview = read(OVERVIEW);
    for platform in PLATFORMS {
        let form: Vec<FormItem> = serde_json::from_str(platform.form).unwrap();
        let (page, schema) = (page(platform), platform.config_schema());
        for (at, item) in schema.iter().enumerate() {
            let is_common = at >= form.len();
            let row = row(if is_common { &overview } else { &page }, &item.name);
            let row = row.unwrap_or_else(|| panic!("{}: no row for {}", platform.name, item.name));
            let last = row.trim_end_matches('|').rsplit(" | ").next();
            let last = last.unwrap().trim().trim_matches('`');
            if let Some(default) = default(item) {
                assert_eq!(last, default, "{}: {row}", platform.name);
            }
            for option in options(item) {
                assert!(row.contains(&option), "{}: {option}: {row}", platform.name);
            }
        }
    }
}

#[test]
fn each_page_is_linked_from_the_overview() {
    let overview = read(OVERVIEW);
    let pages = fs::read_dir(root().join("docs/connectors")).unwrap();
    for page in pages {
        let name = page.unwrap().file_name().into_string().unwrap();
        let link = format!("(connectors/{name})");
        assert!(overview.contains(&link), "{link}");
    }
}

#[test]
fn agents_on_pages_have_valid_configurations() {
    for platform in PLATFORMS {
        let page = page(platform);
        let block = page.split("```toml\n").nth(1).unwrap();
        let tables: Value = toml::from_str(block.split("```").next().unwrap()).unwrap();
        let agent = &tables["agents"][0];
        assert_eq!(agent["runner_id"], platform.id().to_string());
        let config = agent["config"].as_object().unwrap();
        let opened = MachineSession::new(platform, ConnectorTurn::default(), config, &source());
        let failure = opened.err().map(|failure| failure.message);
        assert_eq!(failure, None, "{}", platform.name);
    }
}

/// The last cell of an item's row. `None`: free.
fn default(item: &FormItem) -> Option<String> {
    match &item.default {
        Value::Null if item.required => Some("required".to_owned()),
        Value::Null => None,
        Value::String(text) if text.is_empty() => Some("none".to_owned()),
        Value::String(text) => Some(text.clone()),
        value => Some(value.to_string()),
    }
}

fn options(item: &FormItem) -> impl Iterator<Item = String> {
    let options = item.options.iter().flatten();
    let options = options.filter_map(|option| option["name"].as_str());
    options.map(|option| format!("`{option}`"))
}

/// The row of a table whose first cell is that key.
fn row<'a>(page: &'a str, key: &str) -> Option<&'a str> {
    let cell = format!("| `{key}` |");
    page.lines().find(|line| line.starts_with(&cell))
}

fn page(platform: &Platform) -> String {
    let name = platform.name.trim_end_matches("-agent");
    read(&format!("docs/connectors/{name}.md"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn source() -> SecretSource {
    SecretSource {
        prefix: "CONNECTOR_".to_owned(),
        hosts: SecretHosts::Any,
        lookup: Arc::new(|_| Some("value".to_owned())),
    }
}
