//! Tables of commands: one line per row, columns as wide as their content.

use anstyle::Style;
use comfy_table::presets::NOTHING;
use comfy_table::{ColumnConstraint, ContentArrangement, Row, Table};
use serde_json::{Value, json};

use crate::output::{self, OutputFormat};

/// A row and its style.
pub(super) struct TableRow {
    pub(super) style: Style,
    pub(super) cells: Vec<String>,
}

/// A list of items of the API.
pub(super) struct ListTable<'a> {
    /// Remark about an empty list.
    pub(super) empty: &'a str,
    pub(super) head: &'a [&'a str],
}

impl ListTable<'_> {
    /// Prints the items: as a JSON document, as rows, or the remark.
    pub(super) fn print(
        &self,
        items: &[Value],
        format: OutputFormat,
        row: impl Fn(&Value) -> TableRow,
    ) {
        if format.is_json() {
            output::document(&json!({ "items": items }));
        } else if items.is_empty() {
            output::remark(self.empty);
        } else {
            print_table(self.head, items.iter().map(row).collect());
        }
    }
}

/// Blanks between two columns.
const GAP: u16 = 2;

/// Width of a table in a file or a pipe. Programs read `--json`.
const PIPED_COLUMNS: usize = 120;

/// Prints a table. The last column is cut at the edge of the terminal, or of the line in a file.
pub(super) fn print_table(head: &[&str], rows: Vec<TableRow>) {
    let stdout = std::io::stdout();
    let columns = if output::is_screen(&stdout) {
        output::columns(stdout)
    } else {
        PIPED_COLUMNS
    };
    let styles: Vec<Style> = rows.iter().map(|row| row.style).collect();
    let cells = rows.into_iter().map(|row| row.cells).collect();
    let lines = layout(head, cells, columns);
    let mut lines = lines.iter();
    if let Some(line) = lines.next() {
        output::styled_line(Style::new().bold(), line);
    }
    for (line, style) in lines.zip(styles) {
        output::styled_line(style, line);
    }
}

fn layout(head: &[&str], rows: Vec<Vec<String>>, columns: usize) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(head.to_vec());
    for row in rows {
        let cells = row.into_iter().map(|cell| one_line(&cell));
        let mut row = Row::from(cells.collect::<Vec<_>>());
        // A row takes one line: a longer cell is cut instead of wrapped.
        row.max_height(1);
        table.add_row(row);
    }
    let last = head.len().saturating_sub(1);
    for (index, column) in table.column_iter_mut().enumerate() {
        let gap = if index == last { 0 } else { GAP };
        column.set_padding((0, gap));
        // The last column gets the rest of the width.
        if index != last {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(columns).unwrap_or(u16::MAX));
    table.set_truncation_indicator("…");
    let lines = table.lines();
    lines.map(|line| line.trim_end().to_owned()).collect()
}

/// A text on one line, without control characters.
pub(super) fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    output::without_controls(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns_wide_letters_and_cuts_last_column() {
        let rows = || {
            vec![
                vec!["你好".to_owned(), "one two three four five".to_owned()],
                vec!["ab".to_owned(), "a\nb\u{1b}c".to_owned()],
            ]
        };
        let wide = layout(&["name", "input"], rows(), 80);
        assert_eq!(
            wide,
            ["name  input", "你好  one two three four five", "ab    a bc"]
        );
        let cut = layout(&["name", "input"], rows(), 16);
        assert_eq!(cut.len(), 3, "{cut:?}");
        assert!(
            cut[1].starts_with("你好  one") && cut[1].ends_with('…'),
            "{cut:?}"
        );
    }
}
