//! Pages of the documentation and their fenced blocks.

use super::repository::{repository, repository_file};

/// A fenced block, or the hidden set-up of the blocks after it.
#[derive(Clone, Debug)]
pub struct Block {
    pub page: String,
    /// Line of the fence, from 1.
    pub line: usize,
    pub kind: Kind,
    pub text: String,
    /// Words after the language.
    attributes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Commands: `sh`.
    Commands,
    /// Commands after `$` with their output: `console`.
    Session,
    /// A command in an HTML comment: `<!-- setup: COMMAND -->`.
    Setup,
    Other,
}

impl Block {
    /// Value of the attribute `name=value`.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let mut pairs = self
            .attributes
            .iter()
            .filter_map(|word| word.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    pub fn has(&self, word: &str) -> bool {
        self.attributes.iter().any(|attribute| attribute == word)
    }

    /// Reason to skip these commands in the test.
    pub fn skip_reason(&self) -> Option<&str> {
        self.attribute("needs")
    }

    pub fn location(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }
}

/// README and all pages under `docs/`, by path from the root.
pub fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_owned()];
    let mut directories = vec!["docs".to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(repository_file(&directory)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(repository()).unwrap();
            let name = name.to_str().unwrap().to_owned();
            if path.is_dir() {
                directories.push(name);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(name);
            }
        }
    }
    pages.sort();
    pages
}

/// The blocks of a page in their order.
pub fn blocks(page: &str) -> Vec<Block> {
    let text = std::fs::read_to_string(repository_file(page)).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (line, text) in (1..).zip(text.lines()) {
        match (&mut open, text.trim_start().strip_prefix("```")) {
            (None, Some(info)) => open = Some(opened(page, line, info)),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => {
                block.text.push_str(text);
                block.text.push('\n');
            }
            (None, None) => blocks.extend(setup(page, line, text)),
        }
    }
    assert!(open.is_none(), "{page}: a block has no end");
    blocks
}

fn opened(page: &str, line: usize, info: &str) -> Block {
    let mut words = info.split_whitespace();
    let kind = match words.next() {
        Some("sh") => Kind::Commands,
        Some("console") => Kind::Session,
        _ => Kind::Other,
    };
    Block {
        page: page.to_owned(),
        line,
        kind,
        text: String::new(),
        attributes: words.map(str::to_owned).collect(),
    }
}

fn setup(page: &str, line: usize, text: &str) -> Option<Block> {
    let command = text.strip_prefix("<!-- setup: ")?.strip_suffix(" -->")?;
    Some(Block {
        page: page.to_owned(),
        line,
        kind: Kind::Setup,
        text: format!("{command}\n"),
        attributes: Vec::new(),
    })
}

/// Commands of a `console` block, each with the output that the page shows.
pub fn session(text: &str) -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    let mut is_open = false;
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            commands.push((command.to_owned(), String::new()));
        } else if let Some((command, output)) = commands.last_mut() {
            let into = if is_open { command } else { output };
            into.push('\n');
            into.push_str(line);
        }
        let command = commands.last().map_or("", |(command, _)| command);
        is_open = command.ends_with('\\') || command.matches('\'').count() % 2 == 1;
    }
    commands
}
