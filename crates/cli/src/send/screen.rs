//! Terminal output of a run: its text on standard output, everything else on standard error.

use std::io::IsTerminal as _;

use anstyle::Style;
use serde_json::Value;

use super::graph_list::{GraphList, PROJECTION};
use super::tool_line::{OutputDevice, outcome, tool_line};
use crate::output::{self, Escape, OutputFormat, OutputPart, without_controls};

const FRAMES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
const CLEAR_LINE: OutputPart<'_> = OutputPart::Escape(Escape("\r\u{1b}[K"));
const LINE_UP: OutputPart<'_> = OutputPart::Escape(Escape("\u{1b}[A"));
const CLEAR_BELOW: OutputPart<'_> = OutputPart::Escape(Escape("\r\u{1b}[J"));
const NEW_LINE: OutputPart<'_> = OutputPart::Text("\n");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScreenMode {
    /// JSON events for a program.
    Events,
    Text,
}

/// Position of the terminal cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cursor {
    LineStart,
    BehindText,
    /// A remark has ended the line of the text, whose own next line break is dropped.
    BehindRemark,
}

/// A tool call in progress.
struct PendingCall {
    id: String,
    name: String,
    parameters: Value,
}

/// Output of one run.
pub(super) struct Screen {
    mode: ScreenMode,
    out_is_terminal: bool,
    /// Standard error is a terminal that can move its cursor.
    is_stderr_terminal: bool,
    /// Text printed so far.
    shown: String,
    cursor: Cursor,
    calls: Vec<PendingCall>,
    graph: GraphList,
    /// Number of graph lines directly above the cursor.
    graph_rows: usize,
    frame: usize,
    spins: bool,
    /// Text of the spinner while the connection is lost.
    lost: Option<String>,
}

impl Screen {
    pub(super) fn new(format: OutputFormat) -> Self {
        Self {
            mode: if format.is_json() {
                ScreenMode::Events
            } else {
                ScreenMode::Text
            },
            out_is_terminal: std::io::stdout().is_terminal(),
            is_stderr_terminal: output::is_screen(&std::io::stderr()),
            shown: String::new(),
            cursor: Cursor::LineStart,
            calls: Vec::new(),
            graph: GraphList::default(),
            graph_rows: 0,
            frame: 0,
            spins: false,
            lost: None,
        }
    }

    /// Prints a run event.
    pub(super) fn show(&mut self, event: &Value) {
        if self.mode == ScreenMode::Events {
            output::document(event);
            return;
        }
        let data = &event["data"];
        match event["type"].as_str().unwrap_or_default() {
            "message.delta" => self.show_delta(&data["chunk"]),
            "message.completed" | "run.completed" => self.show_message(&data["message"]),
            // The list shows actions of the graph.
            "tool.call.started" | "tool.call.completed" if self.is_of_graph(data) => {}
            "tool.call.started" => self.begin_call(data),
            "tool.call.completed" => self.end_call(data),
            PROJECTION => self.show_graph(data),
            "run.restarted" => self.show_restart(),
            _ => {}
        }
    }

    /// Advances the spinner by one frame.
    pub(super) fn wait(&mut self) {
        let can_draw = self.cursor != Cursor::BehindText;
        // After text, a frame would overwrite the line of the text.
        if self.mode == ScreenMode::Events || !self.is_stderr_terminal || !can_draw {
            return;
        }
        self.frame = (self.frame + 1) % FRAMES.len();
        let frame = FRAMES[self.frame];
        let call = self.calls.first().map(|call| {
            // Width without the spinner and a blank.
            let columns = columns().saturating_sub(2);
            tool_line(
                &call.name,
                &call.parameters,
                None,
                OutputDevice::Terminal { columns },
            )
        });
        let label = self.lost.clone().or(call).unwrap_or_default();
        let text = format!("{frame} {label}");
        // Stays on the line, so that the next frame or remark overwrites it.
        output::styled(&[CLEAR_LINE, OutputPart::Styled(output::DIM, &text)]);
        self.spins = true;
    }

    /// Reports a lost connection, on one line for all tries.
    pub(super) fn lost(&mut self, tries: u32) {
        let dots = if self.is_stderr_terminal {
            "…"
        } else {
            "..."
        };
        let is_new = self.lost.is_none();
        self.lost = Some(format!("connection lost, trying again ({tries}){dots}"));
        if self.is_stderr_terminal && self.mode == ScreenMode::Text {
            self.break_line();
            self.wait();
        } else if is_new {
            output::remark(&format!("connection lost, trying again{dots}"));
        }
    }

    /// The connection is back.
    pub(super) fn found(&mut self) {
        self.lost = None;
        self.stop_spinning();
    }

    /// Prints a remark on its own line.
    pub(super) fn remark(&mut self, text: &str) {
        self.remark_in(output::DIM, text);
    }

    /// Prints the failure of a run on its own line.
    pub(super) fn failure(&mut self, text: &str) {
        self.remark_in(output::RED, text);
    }

    fn remark_in(&mut self, style: Style, text: &str) {
        self.stop_spinning();
        self.break_line();
        self.graph_rows = 0;
        output::styled(&[OutputPart::Styled(style, text), NEW_LINE]);
    }

    /// Ends the text and its line.
    pub(super) fn end(&mut self) {
        self.stop_spinning();
        if self.mode == ScreenMode::Events || self.shown.is_empty() {
            return;
        }
        // A file or a pipe always gets a final line break.
        if self.cursor == Cursor::BehindText || !self.out_is_terminal {
            output::line("");
        }
        self.cursor = Cursor::LineStart;
        self.shown.clear();
    }

    /// Ends the spinner and the line, before other output on this terminal.
    pub(super) fn pause(&mut self) {
        self.stop_spinning();
        self.break_line();
    }

    fn show_delta(&mut self, chunk: &Value) {
        let full = chunk["all_content"].as_str().map(str::to_owned);
        let text = full.unwrap_or_else(|| self.shown.clone() + &text_of(&chunk["content"]));
        self.show_text(text);
    }

    /// The calls of the lost runner have no end. A delta with the text that stays follows.
    fn show_restart(&mut self) {
        self.calls.clear();
        self.remark("the runner was lost, the run starts again");
    }

    fn show_message(&mut self, message: &Value) {
        let text = text_of(&message["content"]);
        // The deltas of a run with several turns end with the message of the last one.
        if !text.is_empty() && !self.shown.ends_with(&text) {
            self.show_text(text);
        }
    }

    /// Prints the new part of a growing text. A changed text is printed on a new line.
    fn show_text(&mut self, text: String) {
        match text.strip_prefix(self.shown.as_str()) {
            Some(new) => self.print(new),
            // Printed text cannot be changed on a pipe, so the new text follows it.
            None => self.print(&format!("\n{text}")),
        }
        self.shown = text;
    }

    fn print(&mut self, text: &str) {
        if !self.out_is_terminal {
            output::piece(text);
            return;
        }
        let mut text = without_controls(text);
        if self.cursor == Cursor::BehindRemark {
            text = text.trim_start_matches('\n').to_owned();
        }
        if text.is_empty() {
            return;
        }
        self.stop_spinning();
        self.graph_rows = 0;
        self.cursor = if text.ends_with('\n') {
            Cursor::LineStart
        } else {
            Cursor::BehindText
        };
        output::piece(&text);
    }

    fn is_of_graph(&self, call: &Value) -> bool {
        let id = call["tool_call_id"].as_str().unwrap_or_default();
        self.graph.holds(id)
    }

    /// Redraws the list of actions. Non-terminal output gets a line per change.
    fn show_graph(&mut self, data: &Value) {
        let changed = self.graph.take(data);
        let graph = &self.graph;
        // Calls of the graph are lines of the list, so they have no spinner.
        self.calls.retain(|call| !graph.holds(&call.id));
        if !self.is_stderr_terminal {
            self.break_line();
            for index in changed {
                output::remark(&self.graph.line(index));
            }
            return;
        }
        self.stop_spinning();
        self.break_line();
        // Only the rows that this list printed last; other output above stays.
        let mut parts = vec![LINE_UP; self.graph_rows];
        parts.push(CLEAR_BELOW);
        output::styled(&parts);
        let lines = self.graph.lines(columns());
        for line in &lines {
            output::styled(&[OutputPart::Styled(output::DIM, line), NEW_LINE]);
        }
        self.graph_rows = lines.len();
    }

    fn begin_call(&mut self, started: &Value) {
        let text = |key: &str| started[key].as_str().unwrap_or_default().to_owned();
        self.calls.push(PendingCall {
            id: text("tool_call_id"),
            name: text("tool_name"),
            parameters: started["parameters"].clone(),
        });
        if self.is_stderr_terminal {
            self.break_line();
        }
    }

    fn end_call(&mut self, completed: &Value) {
        let id = completed["tool_call_id"].as_str().unwrap_or_default();
        let index = self.calls.iter().position(|call| call.id == id);
        let call = index.map(|index| self.calls.remove(index));
        let name = completed["tool_name"].as_str().unwrap_or_default();
        let parameters = call.map_or(Value::Null, |call| call.parameters);
        let reader = if self.is_stderr_terminal {
            OutputDevice::Terminal { columns: columns() }
        } else {
            OutputDevice::Program
        };
        let outcome = outcome(completed);
        let line = tool_line(name, &parameters, Some(&outcome), reader);
        self.remark(&line);
    }

    /// On a shared terminal, a remark begins on its own line.
    fn break_line(&mut self) {
        if self.cursor == Cursor::BehindText {
            output::piece("\n");
            self.cursor = Cursor::BehindRemark;
        }
    }

    fn stop_spinning(&mut self) {
        if self.spins {
            output::styled(&[CLEAR_LINE]);
            self.spins = false;
        }
    }
}

fn columns() -> usize {
    output::columns(std::io::stderr())
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
    }
}
