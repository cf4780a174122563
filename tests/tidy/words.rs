//! Comments, type names and retired words, as STYLE.md and docs/glossary.md say.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::LazyLock;

use ra_ap_rustc_lexer::TokenKind;

use crate::{File, assert_none, files, is_test, lines_before_tests, root, rust_files};
use dialect::{Kind, Measure, RetiredWords};
use rust::tokens;

#[path = "words/dialect.rs"]
mod dialect;
#[path = "words/rust.rs"]
pub(crate) mod rust;
#[path = "words/scripts.rs"]
mod scripts;

/// Allowed comment lines with a person, of 1,000.
const PERSONS: usize = 5;
/// Allowed names, comment lines, starts of comments and texts in the private dialect, of 1,000 in each crate.
const DIALECT: [(Kind, usize); 4] = [
    (Kind::Name, 3),
    (Kind::Comment, 8),
    (Kind::Start, 8),
    (Kind::Text, 8),
];
/// Comment lines at statements, of 1,000 lines of product code in each crate.
const REASONS: usize = 15;
/// Crates above these limits, and their ceilings. A crate that falls below its ceiling lowers it.
const CEILINGS: [(&str, Kind, usize); 4] = [
    // Tasks of measured models: other words would change the comparison.
    ("benches", Kind::Text, 22),
    // The answer of the scripted model, which many tests and transcripts quote.
    ("crates/models", Kind::Text, 11),
    // The value of a label, which dashboards use.
    ("crates/telemetry", Kind::Text, 10),
    // Scripted answers, prompts and forms.
    ("tests", Kind::Text, 13),
];
/// Crates with fewer lines need no comment at a statement.
const SMALL: usize = 1_000;

#[test]
fn comments_name_components_not_persons() {
    let files = rust_files();
    let comments: Vec<(String, &str)> = files.iter().flat_map(comments).collect();
    assert!(comments.len() > 1000, "the comments were not found");
    let faults: Vec<&(String, &str)> = comments
        .iter()
        .filter(|(_, text)| mentions_person(text))
        .collect();
    assert!(
        faults.len() * 1000 <= PERSONS * comments.len(),
        "{} of {} comment lines, allowed are {PERSONS} of 1,000: {faults:#?}",
        faults.len(),
        comments.len(),
    );
}

fn mentions_person(comment: &str) -> bool {
    let comment = comment.to_lowercase();
    let words: Vec<&str> = comment
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    let persons = ["nobody", "somebody", "whoever", "who"];
    words.iter().any(|word| persons.contains(word))
        || words.windows(2).any(|pair| pair == ["one", "that"])
}

/// Line comments with their position, without markers.
fn comments(file: &File) -> Vec<(String, &str)> {
    let mut found = Vec::new();
    for (line, kind, text) in tokens(&file.text) {
        if matches!(kind, TokenKind::LineComment { .. }) {
            let text = text.trim_start_matches(['/', '!']).trim();
            found.push((format!("{}:{line}", file.path), text));
        }
    }
    found
}

// --- dialect ---

#[test]
fn crates_speak_the_words_of_the_field() {
    let crates = &*MEASURES;
    assert!(crates.len() > 30, "the crates were not found");
    let mut faults = Vec::new();
    for (name, measure) in crates {
        for (kind, limit) in DIALECT {
            let (found, all) = measure.share(kind);
            let ceiling = CEILINGS.iter().find(|row| row.0 == name && row.1 == kind);
            let per_thousand = (found * 1000).div_ceil(all.max(1));
            match ceiling {
                Some((_, _, ceiling)) if per_thousand < *ceiling => {
                    faults.push(format!(
                        "{name}: lower the ceiling of {kind:?} to {per_thousand}"
                    ));
                }
                Some((_, _, ceiling)) if per_thousand == *ceiling => {}
                None if found <= (limit * all).div_ceil(1000) => {}
                _ => {
                    faults.push(format!("{name}: {kind:?}: {per_thousand} of 1,000"));
                    faults.extend(measure.list(kind));
                }
            }
        }
    }
    assert_none(faults);
}

#[test]
fn statements_give_their_reasons() {
    let sparse = MEASURES
        .iter()
        .filter(|(_, measure)| measure.lines >= SMALL)
        // Modules of a page are short: their reasons are in block comments.
        .filter(|(name, _)| *name != "console")
        .filter(|(_, measure)| measure.reasons * 1000 < REASONS * measure.lines);
    assert_none(sparse.map(|(name, measure)| {
        let Measure { reasons, lines, .. } = measure;
        format!("{name}: {reasons} comments at statements in {lines} lines")
    }));
}

/// Findings of each crate and package, by directory.
static MEASURES: LazyLock<BTreeMap<String, Measure>> = LazyLock::new(measures);

fn measures() -> BTreeMap<String, Measure> {
    let page = fs::read_to_string(root().join("docs/glossary.md")).expect("the glossary is there");
    let retired = retired_words(&page);
    assert!(retired.names.len() > 15, "the table was not found");
    let mut crates: BTreeMap<String, Measure> = BTreeMap::new();
    for file in files() {
        let source = match file.path.rsplit('.').next() {
            Some("rs") => rust::read(&file.text, product_lines(&file)),
            Some("py") => scripts::python(&file.text),
            Some("ts" | "mjs") => scripts::typescript(&file.text),
            _ => continue,
        };
        let measure = crates.entry(crate_of(&file.path)).or_default();
        measure.add(&file.path, &source, &retired);
    }
    crates
}

pub(crate) fn product_lines(file: &File) -> usize {
    let tested = ["benches/", "fuzz/"];
    if is_test(&file.path) || tested.iter().any(|start| file.path.starts_with(start)) {
        return 0;
    }
    lines_before_tests(&file.text)
}

pub(crate) fn crate_of(path: &str) -> String {
    const PARENTS: [&str; 4] = ["crates", "services", "clients", "examples"];
    let mut segments = path.split('/');
    let first = segments.next().unwrap_or_default();
    match segments.next() {
        Some(second) if PARENTS.contains(&first) => format!("{first}/{second}"),
        _ => first.to_owned(),
    }
}

/// Words of the glossary's table of retired words, by the column `in`.
fn retired_words(page: &str) -> RetiredWords {
    let (_, table) = page
        .split_once("## Retired words")
        .expect("the table is there");
    let mut retired = RetiredWords::default();
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, words, scope, ..] = cells.as_slice() else {
            continue;
        };
        for word in words.split(", ").map(str::to_owned) {
            if scope.contains("names") {
                retired.names.insert(word.clone());
            }
            if scope.contains("texts") {
                retired.texts.insert(word);
            }
        }
    }
    retired
}

// --- names ---

/// Type names that several crates or modules define on purpose.
const REPEATED: [&str; 11] = [
    // Command lines and settings of separate programs.
    "Cli",
    "Command",
    "Config",
    // Names that sea-orm asks for.
    "ActiveModel",
    "Column",
    "Entity",
    "Migration",
    "Model",
    "PrimaryKey",
    "Relation",
    // Associated types of traits.
    "Item",
];

#[test]
fn a_type_name_stands_for_one_thing() {
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in rust_files() {
        let tested = ["tests/", "benches/", "fuzz/", "examples/"];
        if tested.iter().any(|room| file.path.starts_with(room)) || file.path.contains("/tests") {
            continue;
        }
        for name in type_names(&file.text) {
            places.entry(name).or_default().insert(file.path.clone());
        }
    }
    let repeated = places
        .iter()
        .filter(|(name, files)| files.len() > 1 && !REPEATED.contains(&name.as_str()));
    assert_none(repeated.map(|(name, files)| format!("{name}: {files:?}")));
}

/// Names of structs, enums, traits and unions.
fn type_names(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let mut names = Vec::new();
    let mut code = tokens.iter().filter(|(_, kind, _)| !is_space(*kind));
    while let Some((_, _, word)) = code.next() {
        if ["struct", "enum", "trait", "union"].contains(word) {
            let name = code.next().map(|(_, _, name)| *name).unwrap_or_default();
            if name.starts_with(char::is_uppercase) {
                names.push(name.to_owned());
            }
        }
    }
    names
}

fn is_space(kind: TokenKind) -> bool {
    matches!(
        kind,
        TokenKind::Whitespace | TokenKind::LineComment { .. } | TokenKind::BlockComment { .. }
    )
}

#[test]
fn retired_words_are_gone() {
    let page = fs::read_to_string(root().join("docs/glossary.md")).expect("the glossary is there");
    let retired = retired(&page);
    assert!(retired.len() > 20, "the table was not found");
    let mut faults = Vec::new();
    for file in rust_files() {
        for (line, kind, word) in tokens(&file.text) {
            if kind == TokenKind::Ident && retired.contains(word) {
                faults.push(format!("{}:{line} says `{word}`", file.path));
            }
        }
    }
    assert_none(faults);
}

/// Identifiers of the first column of the table of retired names.
fn retired(page: &str) -> BTreeSet<&str> {
    let (_, table) = page
        .split_once("## Retired names")
        .expect("the table is there");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    rows.filter_map(|row| row.split('|').nth(1))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn finds_persons_types_and_retired_names() {
    assert!(mentions_person("The writer, whoever asks"));
    assert!(mentions_person("It is one that waits"));
    assert!(!mentions_person("Whole rows, one of them"));
    let code = "// struct Comment\nstruct A; pub enum B {} impl Trait for A {} const S: &str = \"struct C\";";
    assert_eq!(type_names(code), ["A", "B"]);
    let page = "## Retired names\n| today | say |\n|---|---|\n| `a`, `b` | `c` |\n";
    assert_eq!(retired(page), BTreeSet::from(["a", "b"]));
}

#[test]
fn finds_dialect_in_names_comments_and_texts() {
    let retired = retired_words(
        "## Retired words\n| retired | in | word |\n|---|---|---|\n\
        | told | names, texts | sent |\n| most | names | maximum |\n| goes on | texts | continues |\n",
    );
    let rust = "/// Where it goes on.\nfn f(MOST_told: u8) {\n    // It was told.\n    let s = \"the most told\";\n}\n";
    let python = "\"\"\"When it stops.\"\"\"\nmost = 'was told'  # goes on\n";
    let typescript = "/** Goes on. */\nconst toldIt = `it ${told} us`; // why\n";
    for (source, lines) in [
        (
            rust::read(rust, 5),
            [
                (Kind::Name, 2),
                (Kind::Comment, 1),
                (Kind::Start, 1),
                (Kind::Comment, 3),
                (Kind::Text, 4),
            ]
            .as_slice(),
        ),
        (
            scripts::python(python),
            &[
                (Kind::Name, 2),
                (Kind::Start, 1),
                (Kind::Comment, 2),
                (Kind::Text, 2),
            ],
        ),
        (
            scripts::typescript(typescript),
            &[(Kind::Name, 2), (Kind::Comment, 1), (Kind::Text, 2)],
        ),
    ] {
        let mut measure = Measure::default();
        measure.add("f", &source, &retired);
        let found: Vec<(Kind, usize)> = measure
            .findings
            .iter()
            .map(|finding| (finding.kind, finding.line))
            .collect();
        assert_eq!(found, lines);
    }
    let read = rust::read(rust, 5);
    assert_eq!((read.lines, read.reasons), (5, 1));
}
