//! The table of `--probe`: one row for each thing that was reached.

use anstyle::Style;
use comfy_table::Table;
use comfy_table::presets::NOTHING;

use cli::output;

/// One row. The state decides about the exit code.
pub(super) struct ProbeRow {
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) state: ProbeState,
    pub(super) detail: String,
}

/// Result of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeState {
    Good,
    /// Works, but probably not as intended.
    Warning,
    Failed,
}

impl ProbeState {
    fn shown(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warning => "warning",
            Self::Failed => "FAILED",
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Good => Style::new(),
            Self::Warning => output::YELLOW,
            Self::Failed => output::RED,
        }
    }
}

impl ProbeRow {
    pub(super) fn new(
        kind: &'static str,
        name: impl Into<String>,
        state: ProbeState,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            name: name.into(),
            state,
            detail: detail.into(),
        }
    }

    /// A row of a result: its detail, or its error.
    pub(super) fn of(
        kind: &'static str,
        name: impl Into<String>,
        result: &Result<String, String>,
    ) -> Self {
        let (state, detail) = match result {
            Ok(detail) => (ProbeState::Good, detail),
            Err(error) => (ProbeState::Failed, error),
        };
        Self::new(kind, name, state, detail)
    }
}

/// Prints the rows in aligned columns.
pub(super) fn print(rows: &[ProbeRow]) {
    let lines = lines(rows);
    let mut lines = lines.iter();
    if let Some(head) = lines.next() {
        output::styled_line(Style::new().bold(), head);
    }
    for (line, row) in lines.zip(rows) {
        output::styled_line(row.state.style(), line);
    }
}

fn lines(rows: &[ProbeRow]) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["what", "name", "state", "detail"]);
    for row in rows {
        table.add_row([
            row.kind,
            &one_line(&row.name),
            row.state.shown(),
            &one_line(&row.detail),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines = table.lines();
    lines.map(|line| line.trim_end().to_owned()).collect()
}

/// A text on one line, without control characters.
fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    output::without_controls(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns_rows_on_one_line_each() {
        let rows = [
            ProbeRow::of("database", "sqlite://r.db", &Ok("SQLite".to_owned())),
            ProbeRow::of("runner", "echo", &Err("away:\n  HTTP 500\u{1b}".to_owned())),
        ];
        assert_eq!(
            lines(&rows),
            [
                "what      name           state   detail",
                "database  sqlite://r.db  ok      SQLite",
                "runner    echo           FAILED  away: HTTP 500",
            ]
        );
    }
}
