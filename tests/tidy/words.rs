//! Comments, type names and retired words, as STYLE.md and docs/glossary.md say.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use ra_ap_rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};

use crate::{File, assert_none, root, rust_files};

/// Allowed comment lines with a person, of 1,000.
const PERSONS: usize = 5;
/// Allowed comment lines that begin with What, Who or Whatever, of 1,000.
const RIDDLES: usize = 3;

#[test]
fn comments_name_components_not_persons() {
    assert_share(PERSONS, mentions_person);
}

#[test]
fn comments_begin_with_the_noun() {
    assert_share(RIDDLES, begins_with_riddle);
}

fn assert_share(limit: usize, breaks: fn(&str) -> bool) {
    let files = rust_files();
    let comments: Vec<(String, &str)> = files.iter().flat_map(comments).collect();
    assert!(comments.len() > 1000, "most comments were not found");
    let faults: Vec<&(String, &str)> = comments.iter().filter(|(_, text)| breaks(text)).collect();
    assert!(
        faults.len() * 1000 <= limit * comments.len(),
        "{} of {} comment lines, allowed are {limit} of 1,000: {faults:#?}",
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

fn begins_with_riddle(comment: &str) -> bool {
    let first = comment.split(|c: char| !c.is_alphanumeric()).next();
    first.is_some_and(|word| ["What", "Who", "Whatever"].contains(&word))
}

/// Line comments with their place, without markers.
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

/// Line number, kind and text of each token.
fn tokens(text: &str) -> Vec<(usize, TokenKind, &str)> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    for token in tokenize(text, FrontmatterAllowed::No) {
        let end = at + token.len as usize;
        let piece = &text[at..end];
        found.push((line, token.kind, piece));
        line += piece.matches('\n').count();
        at = end;
    }
    found
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
fn finds_persons_riddles_types_and_retired_names() {
    assert!(mentions_person("The writer, whoever asks"));
    assert!(mentions_person("It is one that waits"));
    assert!(!mentions_person("Whole rows, one of them"));
    assert!(begins_with_riddle("What a row costs"));
    assert!(!begins_with_riddle("Whatsoever"));
    let code = "// struct Comment\nstruct A; pub enum B {} impl Trait for A {} const S: &str = \"struct C\";";
    assert_eq!(type_names(code), ["A", "B"]);
    let page = "## Retired names\n| today | say |\n|---|---|\n| `a`, `b` | `c` |\n";
    assert_eq!(retired(page), BTreeSet::from(["a", "b"]));
}
