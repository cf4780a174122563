//! Pages of the documentation: links, anchors, and the list of `mdbook`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::{assert_none, root};

/// Maximum lines of README.
const README_LINES: usize = 150;
/// Maximum characters of a line of a paragraph.
const COLUMNS: usize = 120;

#[test]
fn readme_is_limited_to_150_lines() {
    let lines = read("README.md").lines().count();
    assert!(lines <= README_LINES, "README.md has {lines} lines");
}

/// `runnel --version` names a release that the changelog describes.
#[test]
fn changelog_has_a_section_for_the_version() {
    let section = format!("\n## {}\n", env!("CARGO_PKG_VERSION"));
    assert!(read("CHANGELOG.md").contains(&section), "no {section}");
}

#[test]
fn summary_lists_every_page_once() {
    let summary = read("docs/SUMMARY.md");
    let listed: Vec<_> = links(&summary).into_iter().collect();
    let unique: BTreeSet<_> = listed.iter().map(String::as_str).collect();
    assert_eq!(unique.len(), listed.len(), "a page is listed twice");
    let mut faults = Vec::new();
    for page in pages() {
        let name = page.strip_prefix("docs/").unwrap_or_default();
        if !name.is_empty() && name != "SUMMARY.md" && !unique.contains(name) {
            faults.push(format!("docs/SUMMARY.md does not list {name}"));
        }
    }
    assert_none(faults);
}

#[test]
fn paragraphs_wrap_at_120_characters() {
    let mut faults = Vec::new();
    for page in pages() {
        let mut is_code = false;
        for (number, line) in (1..).zip(read(&page).lines()) {
            let start = line.trim_start();
            is_code ^= start.starts_with("```");
            let is_paragraph = !is_code && !start.starts_with(['|', '<', '#', '`']);
            if is_paragraph && line.chars().count() > COLUMNS {
                faults.push(format!(
                    "{page}:{number} has more than {COLUMNS} characters"
                ));
            }
        }
    }
    assert_none(faults);
}

#[test]
fn links_lead_to_existing_headings() {
    let mut faults = Vec::new();
    for page in pages() {
        for link in links(&read(&page)) {
            if link.contains(':') {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => resolved(&page, file),
            };
            if !root().join(&target).exists() {
                faults.push(format!("{page}: {link} leads to no file"));
            } else if !heading.is_empty() && !anchors(&read(&target)).contains(heading) {
                faults.push(format!("{page}: {link} leads to no heading"));
            }
        }
    }
    assert_none(faults);
}

/// A route, result type or context field without a word in the reference would be known to readers of schemas only.
#[test]
fn protocol_page_names_routes_results_and_context() {
    let page = read("docs/protocol.md");
    let is_named = |name: &str| page.contains(&format!("`{name}`"));
    let gateway: Value = document("openapi/gateway.json");
    let runner: Value = document("openapi/runner.json");
    let routes = gateway["paths"].as_object().into_iter().flatten();
    let operations = routes.flat_map(|(_, methods)| methods.as_object().into_iter().flatten());
    let tagged = operations.map(|(_, operation)| operation).filter(|one| {
        let tags = one["tags"].as_array().into_iter().flatten();
        tags.filter_map(Value::as_str)
            .any(|tag| tag == "host" || tag == "client")
    });
    let operation_ids = tagged.filter_map(|one| one["operationId"].as_str());
    let schemas = &runner["components"]["schemas"];
    // Each result schema has a `type` of one value.
    let results = schemas.as_object().into_iter().flatten();
    let result_types = results
        .filter(|(name, _)| name.ends_with("Result"))
        .filter_map(|(_, schema)| schema["properties"]["type"]["enum"][0].as_str());
    let context = schemas["AgentRunContext"]["properties"].as_object();
    let fields = context.into_iter().flatten().map(|(name, _)| name.as_str());
    let (operation_ids, result_types, fields): (Vec<_>, Vec<_>, Vec<_>) = (
        operation_ids.collect(),
        result_types.collect(),
        fields.collect(),
    );
    // Empty lists would pass: the documents have another shape then.
    assert!(
        operation_ids.len() > 80,
        "{} operations",
        operation_ids.len()
    );
    assert_eq!(result_types.len(), 10, "{result_types:?}");
    assert_eq!(fields.len(), 16, "{fields:?}");
    let named = operation_ids.iter().chain(&result_types).chain(&fields);
    let missing = named.filter(|name| !is_named(name));
    assert_none(missing.map(|name| format!("docs/protocol.md does not name `{name}`")));
}

/// The pages of the root and of `docs/`, by path from the root.
fn pages() -> Vec<String> {
    let mut pages = Vec::new();
    let mut directories = vec![("docs".to_owned(), true), (String::new(), false)];
    while let Some((directory, deep)) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).expect("the directory is there") {
            let path = entry.expect("it can be listed").path();
            let name = path.strip_prefix(root()).expect("it is inside");
            let name = name.to_str().expect("names are plain").to_owned();
            if path.is_dir() && deep {
                directories.push((name, true));
            } else if Path::new(&name).extension().is_some_and(|end| end == "md") {
                pages.push(name);
            }
        }
    }
    pages.sort();
    pages
}

fn document(path: &str) -> Value {
    serde_json::from_str(&read(path)).expect("the document is JSON")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect("the page is there")
}

/// Lines outside of fenced blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut in_block = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        !in_block && !is_fence
    })
}

fn links(page: &str) -> Vec<String> {
    let rests = prose(page).flat_map(|line| line.split("](").skip(1));
    let targets = rests.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()));
    targets.filter(|target| !target.contains(' ')).collect()
}

/// The ids that renderers give to headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page).filter(|line| line.starts_with('#'));
    let id = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let letters = text
            .chars()
            .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        letters.collect::<String>().replace(' ', "-")
    };
    headings.map(id).collect()
}

/// A path relative to the directory of a page, from the root.
fn resolved(page: &str, file: &str) -> String {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path.to_str().expect("names are plain").to_owned()
}
