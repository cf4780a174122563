//! Syntax errors of TOML, shown with their line. Values are masked, since they may be secrets.

use std::collections::HashSet;
use std::path::Path;

use super::fault::ConfigFault;

/// The fault of a file that is not TOML, with the line and a caret below the error.
pub(super) fn syntax_fault(
    file: &Path,
    text: &str,
    error: &toml::de::Error,
    names: &str,
) -> ConfigFault {
    let what = error.message().lines().collect::<Vec<_>>().join(", ");
    let offset = error.span().map_or(text.len(), |span| span.start);
    let (number, start) = line_of(text, offset);
    let line = text[start..].split(['\n', '\r']).next().unwrap_or_default();
    let before = text.get(start..offset).unwrap_or(line);
    let column = before.chars().count();
    let gutter = " ".repeat(number.to_string().len());
    let message = format!(
        "{}:{number}:{} is not valid TOML: {what}\n\
         {gutter} |\n\
         {number} | {}\n\
         {gutter} | {}^",
        file.display(),
        column + 1,
        masked(line, names),
        " ".repeat(column),
    );
    ConfigFault::new("", message)
}

/// Number of the line, from 1, and the offset at which it starts.
fn line_of(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, start)
}

/// The line with names of settings; letters and digits of anything else are masked.
fn masked(line: &str, names: &str) -> String {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let names: HashSet<_> = names.split(|letter: char| !is_word(letter)).collect();
    let name_end = line.find('=').unwrap_or(line.len());
    let mut shown = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|letter: char| is_word(letter) != is_word(first));
        let (part, more) = rest.split_at(end.unwrap_or(rest.len()));
        let at = line.len() - rest.len();
        if at < name_end && names.contains(part) {
            shown.push_str(part);
        } else {
            let mask = |letter: char| if is_word(letter) { '*' } else { plain(letter) };
            shown.extend(part.chars().map(mask));
        }
        rest = more;
    }
    shown
}

/// One column for each character.
fn plain(letter: char) -> char {
    if letter.is_control() { ' ' } else { letter }
}

#[cfg(test)]
mod tests {
    use toml::de::DeTable;

    use super::*;

    #[test]
    fn shows_line_and_caret_without_values() {
        let names = "[server]\nlisten = 1\n[auth]\nmaster_key = 1";
        for (text, shown) in [
            (
                "[server]\nlisten = \"hunter2",
                "2 | listen = \"*******\n  |                  ^",
            ),
            ("[server\nlisten = 1", "1 | [server\n  |        ^"),
            (
                "[auth]\nmaster_key = whsec_aHVudGVyMg==",
                "2 | master_key = ****************==\n  |                              ^",
            ),
            ("whsec_aHVudGVyMg=", "1 | ****************=\n"),
        ] {
            let error = DeTable::parse(text).unwrap_err();
            let fault = syntax_fault(Path::new("r.toml"), text, &error, names).to_string();
            assert!(fault.starts_with("r.toml:"), "{fault}");
            assert!(fault.contains(shown), "{fault}\n{shown}");
            assert!(
                !fault.contains("hunter2") && !fault.contains("aHVud"),
                "{fault}"
            );
        }
    }
}
