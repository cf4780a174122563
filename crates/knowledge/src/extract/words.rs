//! Renders a page as plain Markdown: headings, lists and quotes keep their markers, other markup is dropped.

use html2text::render::TextDecorator;

/// Decorator without links and inline markup.
#[derive(Clone, Copy)]
pub(super) struct PlainMarkdown;

fn nothing() -> (String, ()) {
    (String::new(), ())
}

impl TextDecorator for PlainMarkdown {
    type Annotation = ();

    fn decorate_link_start(&mut self, _url: &str) -> (String, ()) {
        nothing()
    }

    fn decorate_link_end(&mut self) -> String {
        String::new()
    }

    fn decorate_em_start(&self) -> (String, ()) {
        nothing()
    }

    fn decorate_em_end(&self) -> String {
        String::new()
    }

    fn decorate_strong_start(&self) -> (String, ()) {
        nothing()
    }

    fn decorate_strong_end(&self) -> String {
        String::new()
    }

    fn decorate_strikeout_start(&self) -> (String, ()) {
        nothing()
    }

    fn decorate_strikeout_end(&self) -> String {
        String::new()
    }

    fn decorate_code_start(&self) -> (String, ()) {
        nothing()
    }

    fn decorate_code_end(&self) -> String {
        String::new()
    }

    fn decorate_preformat_first(&self) {}

    fn decorate_preformat_cont(&self) {}

    fn decorate_image(&mut self, _src: &str, title: &str) -> (String, ()) {
        (title.to_owned(), ())
    }

    fn header_prefix(&self, level: usize) -> String {
        "#".repeat(level) + " "
    }

    fn quote_prefix(&self) -> String {
        "> ".to_owned()
    }

    fn unordered_item_prefix(&self) -> String {
        "* ".to_owned()
    }

    fn ordered_item_prefix(&self, number: i64) -> String {
        format!("{number}. ")
    }

    fn make_subblock_decorator(&self) -> Self {
        *self
    }
}
