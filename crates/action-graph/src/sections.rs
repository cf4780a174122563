//! Markdown sections: level-2 headings whose text is an id.

use std::collections::BTreeMap;

use crate::code::Code;
use crate::declaration::Section;
use crate::diagnostic::Diagnostics;
use crate::fence;
use crate::ids::is_section_id;
use crate::limits::GraphLimits;
use secrets::digest::sha256_hex;

/// The section that is shown to the user.
pub(crate) const USER_VISIBLE: &str = "user.visible";

/// Sections and the text outside of them.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    pub(crate) by_id: BTreeMap<String, Section>,
    pub(crate) intro: String,
}

/// The id of a heading: no closing marks, no back-ticks, lower case, blanks as `_`.
pub(crate) fn normalize(heading: &str) -> String {
    let text = heading.trim().trim_end_matches('#').trim();
    let text = text.replace('`', "").to_lowercase();
    text.split_whitespace().collect::<Vec<_>>().join("_")
}

fn heading(line: &str) -> Option<&str> {
    let bare = line.trim_end();
    let inner = bare.trim_start_matches(' ');
    let rest = inner.strip_prefix("##")?;
    (bare.len() - inner.len() <= 3 && rest.starts_with([' ', '\t'])).then_some(rest)
}

/// Reads the sections before and after the block.
pub(crate) fn read(
    block: fence::MarkedBlock<'_>,
    limits: &GraphLimits,
    found: &mut Diagnostics,
) -> Sections {
    let mut sections = Sections::default();
    let before = block.before.lines().count();
    // The two fence lines belong to the block.
    let inside = block.body.lines().count() + 2;
    one_side(block.before, 1, false, &mut sections, found);
    one_side(block.after, before + inside + 1, true, &mut sections, found);
    sections.intro = sections.intro.trim().to_owned();
    if sections.by_id.len() > limits.sections {
        let max = limits.sections;
        found.add(Code::TooLarge, "", format!("more than {max} sections"));
    }
    for (id, section) in &mut sections.by_id {
        section.text = section.text.trim().to_owned();
        section.sha256 = sha256_hex(&section.text);
        if section.text.len() > limits.section_bytes {
            let max = limits.section_bytes;
            let message = format!("section `{id}` exceeds {max} bytes");
            found.add(Code::SectionTooLarge, "", message);
        }
    }
    sections
}

/// Sections of one side of the block. After it, every level-2 heading must be an id; before it, others are visible
/// text.
fn one_side(
    text: &str,
    first_line: usize,
    is_strict: bool,
    sections: &mut Sections,
    found: &mut Diagnostics,
) {
    let mut current: Option<String> = None;
    for (number, (_, line, inside)) in fence::lines(text).enumerate() {
        // A heading inside a fence is part of the content.
        let id = heading(line).filter(|_| !inside).map(normalize);
        match id {
            Some(id) if is_section_id(&id) => {
                let line = u32::try_from(first_line + number).unwrap_or(u32::MAX);
                let section = Section {
                    text: String::new(),
                    sha256: String::new(),
                    line,
                };
                if sections.by_id.contains_key(&id) {
                    let message = format!("section `{id}` occurs twice");
                    found.add(Code::SectionDuplicate, "", message);
                }
                sections.by_id.insert(id.clone(), section);
                current = Some(id);
            }
            // Numbered headings are common in prose, so they are only a warning.
            Some(id) if id.starts_with(|first: char| first.is_ascii_digit()) => {
                let message = format!("section `{id}` has a number as name");
                found.add(Code::NumericSection, "", message);
                current = None;
            }
            Some(id) if is_strict => {
                let shown: String = id.chars().take(64).collect();
                let message = format!("`{shown}` is no id of a section");
                found.add(Code::SectionInvalidId, "", message);
                current = None;
            }
            // Text before the first section is visible to the user.
            _ => match current.as_ref().and_then(|id| sections.by_id.get_mut(id)) {
                Some(section) => section.text.push_str(line),
                None => sections.intro.push_str(line),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_inside_fences_do_not_count() {
        let text = "```json agent-protocol\n{}\n```\n## A B ##\none\n```\n## c\n```\n### d\n## `user.visible`\nhi";
        let fence::FencedBlocks::One(block) = fence::find(text) else {
            panic!("one block")
        };
        let mut found = Diagnostics::default();
        let sections = read(block, &GraphLimits::default(), &mut found);
        assert!(!found.has_errors());
        let ids: Vec<_> = sections.by_id.keys().map(String::as_str).collect();
        assert_eq!(ids, ["a_b", "user.visible"]);
        assert_eq!(sections.by_id["a_b"].text, "one\n```\n## c\n```\n### d");
        assert_eq!(sections.by_id["a_b"].line, 4);
    }
}
