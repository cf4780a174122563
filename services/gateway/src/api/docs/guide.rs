//! The guide for programs that call this gateway: `docs/clients.md` as a page. Links lead to routes of this gateway;
//! files of the repository are named without a link.

use std::collections::HashSet;
use std::sync::LazyLock;

use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};

const GUIDE: &str = include_str!("../../../../../docs/clients.md");
/// Directory of the guide in the repository.
const DIRECTORY: &str = "docs";

/// Style sheet of the page. The content security policy forbids styles in the page.
pub(super) const STYLE: &str = include_str!("guide.css");

/// Files of the repository that this gateway serves, with their addresses relative to the guide's.
const SERVED: [(&str, &str); 2] = [
    ("openapi/gateway.json", "../openapi.json"),
    ("openapi/runner.json", "../openapi/runner.json"),
];

/// The page.
pub(super) fn page() -> &'static str {
    static PAGE: LazyLock<String> = LazyLock::new(|| {
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>Runnel: clients</title>\n\
             <link rel=\"stylesheet\" href=\"guide.css\">\n</head>\n<body>\n\
             <p><a href=\"./\">API reference</a></p>\n{}</body>\n</html>\n",
            rendered(GUIDE)
        )
    });
    &PAGE
}

/// HTML of a page of `docs/`. Comments are left out.
fn rendered(markdown: &str) -> String {
    let mut events: Vec<Event<'_>> = Parser::new_ext(markdown, Options::ENABLE_TABLES)
        // Comments of the Markdown file would appear in the source of the page.
        .filter(|event| !matches!(event, Event::Html(_) | Event::InlineHtml(_)))
        .collect();
    name_headings(&mut events);
    let mut page = String::new();
    html::push_html(&mut page, with_served_links(events).into_iter());
    page
}

/// Gives each heading the id that links in the documentation use.
fn name_headings(events: &mut [Event<'_>]) {
    let mut start = None;
    for index in 0..events.len() {
        match &events[index] {
            Event::Start(Tag::Heading { .. }) => start = Some(index),
            Event::End(TagEnd::Heading(_)) => {
                // The Markdown parser opens a heading before it closes one.
                let Some(begin) = start.take() else { continue };
                let name = anchor(&text(&events[begin..index]));
                if let Event::Start(Tag::Heading { id, .. }) = &mut events[begin] {
                    *id = Some(name.into());
                }
            }
            _ => {}
        }
    }
}

fn text(events: &[Event<'_>]) -> String {
    let texts = events.iter().filter_map(|event| match event {
        Event::Text(text) | Event::Code(text) => Some(&**text),
        _ => None,
    });
    texts.collect()
}

fn anchor(heading: &str) -> String {
    let letters = heading.to_lowercase();
    let letters = letters.chars();
    letters
        .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter))
        .map(|letter| if letter == ' ' { '-' } else { letter })
        .collect()
}

/// Replaces links to files: by the address at which this gateway serves the file, or by its path after the text.
fn with_served_links(events: Vec<Event<'_>>) -> Vec<Event<'_>> {
    let anchors: HashSet<String> = events
        .iter()
        .filter_map(|event| match event {
            Event::Start(Tag::Heading { id: Some(id), .. }) => Some(format!("#{id}")),
            _ => None,
        })
        .collect();
    let mut replaced = Vec::with_capacity(events.len());
    // The path of the file whose link is open. Links do not nest.
    let mut unlinked = None;
    for event in events {
        match event {
            Event::Start(Tag::Link {
                link_type,
                dest_url,
                title,
                id,
            }) => match address(&dest_url, &anchors) {
                LinkTarget::Served(dest_url) => replaced.push(Event::Start(Tag::Link {
                    link_type,
                    dest_url,
                    title,
                    id,
                })),
                LinkTarget::File(path) => unlinked = Some(path),
            },
            Event::End(TagEnd::Link) => match unlinked.take() {
                Some(path) => {
                    replaced.push(Event::Text(" (".into()));
                    replaced.push(Event::Code(path.into()));
                    replaced.push(Event::Text(")".into()));
                }
                None => replaced.push(Event::End(TagEnd::Link)),
            },
            event => replaced.push(event),
        }
    }
    replaced
}

enum LinkTarget<'a> {
    /// An address that works on the page.
    Served(CowStr<'a>),
    /// Path of a file in the repository.
    File(String),
}

fn address<'a>(link: &CowStr<'a>, anchors: &HashSet<String>) -> LinkTarget<'a> {
    if link.contains("://") || anchors.contains(&**link) {
        return LinkTarget::Served(link.clone());
    }
    let path = in_repository(link);
    match SERVED.iter().find(|(file, _)| *file == path) {
        Some((_, address)) => LinkTarget::Served((*address).into()),
        None => LinkTarget::File(path),
    }
}

/// Path of a linked file from the root of the repository.
fn in_repository(link: &str) -> String {
    let file = link.split('#').next().unwrap_or_default();
    let mut path = vec![DIRECTORY];
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                path.pop();
            }
            name => path.push(name),
        }
    }
    path.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guide_links_lead_to_served_addresses_only() {
        for (markdown, expected) in [
            (
                "[document](../openapi/gateway.json)",
                "<a href=\"../openapi.json\">document</a>",
            ),
            (
                "[site](https://example.org/a)",
                "<a href=\"https://example.org/a\">site</a>",
            ),
            (
                "[envelope](quickstart.md#post)",
                "envelope (<code>docs/quickstart.md</code>)",
            ),
            (
                "[kit](../clients/python/README.md)",
                "kit (<code>clients/python/README.md</code>)",
            ),
            ("[up](#nowhere)", "up (<code>docs</code>)"),
        ] {
            assert_eq!(rendered(markdown), format!("<p>{expected}</p>\n"));
        }
        let page = rendered("## Run `it` again\n[there](#run-it-again)");
        assert!(page.contains("<h2 id=\"run-it-again\">"), "{page}");
        assert!(
            page.contains("<a href=\"#run-it-again\">there</a>"),
            "{page}"
        );
    }

    #[test]
    fn comments_are_left_out_and_tables_rendered() {
        let page = rendered("<!-- setup: a -->\n\n| a | b |\n|---|---|\n| 1 | `<2>` |\n");
        assert!(page.starts_with("<table>"), "{page}");
        assert!(page.contains("<code>&lt;2&gt;</code>"), "{page}");
    }
}
