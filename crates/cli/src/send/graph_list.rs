//! Action graph as one line per action, from results of type `x.graph.projection`.

use serde_json::Value;

use super::tool_line::{OutputDevice, cut, plain};

/// Type of results with the state of a graph.
pub(super) const PROJECTION: &str = "x.graph.projection";
/// Maximum number of lines at a terminal; lines above the screen cannot be redrawn.
const MAX_LINES: usize = 16;
const COLUMNS: usize = 200;

/// The current state of a graph.
#[derive(Default)]
pub(super) struct GraphList {
    id: String,
    actions: Vec<ActionLine>,
}

#[derive(PartialEq)]
struct ActionLine {
    id: String,
    status: String,
    text: String,
}

impl GraphList {
    /// Applies a result. Returns the indexes of new and changed lines.
    pub(super) fn take(&mut self, data: &Value) -> Vec<usize> {
        let (change, is_full) = match data["form"].as_str() {
            Some("whole") => (&data["projection"], true),
            Some("patch") => (&data["patch"], false),
            _ => return Vec::new(),
        };
        let id = change["graph_id"].as_str().unwrap_or_default();
        // A new graph replaces the list of the one before.
        if self.id != id {
            *self = Self {
                id: id.to_owned(),
                actions: Vec::new(),
            };
        }
        let removed = change["removed"].as_array().into_iter().flatten();
        for id in removed {
            self.actions.retain(|line| id.as_str() != Some(&line.id));
        }
        let listed = change["actions"].as_array().map_or(&[][..], Vec::as_slice);
        if is_full {
            let is_listed =
                |line: &ActionLine| listed.iter().any(|action| action["id"] == line.id.as_str());
            self.actions.retain(is_listed);
        }
        listed
            .iter()
            .filter_map(|action| self.put(ActionLine::of(action)))
            .collect()
    }

    /// True if a call belongs to an action of the graph: its id begins with the graph's id.
    pub(super) fn holds(&self, tool_call_id: &str) -> bool {
        let graph = tool_call_id.split('/').next();
        !self.id.is_empty() && graph == Some(&self.id)
    }

    /// The lines that fit on the screen.
    pub(super) fn lines(&self, columns: usize) -> Vec<String> {
        let reader = OutputDevice::Terminal { columns };
        let skipped = self.actions.len().saturating_sub(MAX_LINES - 1);
        // The line about skipped actions takes a line itself, so it never replaces a single action.
        let skipped = if skipped > 1 { skipped } else { 0 };
        let above = format!("  … {skipped} earlier actions");
        let above = (skipped > 0).then(|| cut(&above, columns, "…"));
        let shown = self.actions[skipped..]
            .iter()
            .map(|line| line.shown(reader));
        above.into_iter().chain(shown).collect()
    }

    /// One line for non-terminal output.
    pub(super) fn line(&self, index: usize) -> String {
        self.actions[index].shown(OutputDevice::Program)
    }

    fn put(&mut self, line: ActionLine) -> Option<usize> {
        let existing = self
            .actions
            .iter()
            .position(|existing| existing.id == line.id);
        let index = existing.unwrap_or(self.actions.len());
        if existing.is_some() && self.actions[index] == line {
            return None;
        }
        if existing.is_some() {
            self.actions[index] = line;
        } else {
            self.actions.push(line);
        }
        Some(index)
    }
}

impl ActionLine {
    fn of(action: &Value) -> Self {
        let text = |key: &str| action[key].as_str().unwrap_or_default();
        let filled = |key: &str| Some(text(key)).filter(|text| !text.is_empty());
        let title = filled("title").unwrap_or(text("id"));
        let items = match (&action["progress"][0], &action["progress"][1]) {
            (Value::Number(done), Value::Number(all)) => format!(" ({done} of {all})"),
            _ => String::new(),
        };
        let detail = filled("reason").or(filled("result_summary"));
        let detail = detail.map_or(String::new(), |detail| format!(": {detail}"));
        Self {
            id: text("id").to_owned(),
            status: text("status").to_owned(),
            text: format!("{title}{items}{detail}"),
        }
    }

    fn shown(&self, reader: OutputDevice) -> String {
        let text = plain(&self.text, reader);
        match reader {
            OutputDevice::Terminal { columns } => {
                let mark = match self.status.as_str() {
                    "completed" => '✓',
                    "running" => '▸',
                    "waiting" | "blocked" => '?',
                    "failed" => '✗',
                    "canceled" => '–',
                    _ => '…',
                };
                cut(&format!("{mark} {text}"), columns, "…")
            }
            OutputDevice::Program => cut(&format!("[{}] {text}", self.status), COLUMNS, "..."),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn action(id: &str, status: &str) -> Value {
        json!({"id": id, "title": id.to_uppercase(), "status": status})
    }

    #[test]
    fn patches_update_single_lines() {
        let mut list = GraphList::default();
        let projection =
            json!({"graph_id": "g_1", "actions": [action("a", "running"), action("b", "pending")]});
        let changed = list.take(&json!({"form": "whole", "projection": projection}));
        assert_eq!(changed, [0, 1]);
        assert_eq!(list.lines(80), ["▸ A", "… B"]);

        let mut failed = action("b", "failed");
        failed["reason"] = json!("refused\n");
        let patch =
            json!({"graph_id": "g_1", "actions": [failed, action("a", "running")], "removed": []});
        let changed = list.take(&json!({"form": "patch", "patch": patch}));
        assert_eq!(changed, [1]);
        assert_eq!(list.lines(80), ["▸ A", "✗ B: refused"]);
        assert_eq!(list.line(1), "[failed] B: refused");

        let patch = json!({"graph_id": "g_1", "actions": [], "removed": ["a"]});
        list.take(&json!({"form": "patch", "patch": patch}));
        assert_eq!(list.lines(80), ["✗ B: refused"]);
    }

    #[test]
    fn lists_stay_within_the_screen() {
        let mut list = GraphList::default();
        let actions: Vec<_> = (0..40)
            .map(|n| action(&format!("a{n}"), "completed"))
            .collect();
        let projection = json!({"graph_id": "g_1", "actions": actions});
        list.take(&json!({"form": "whole", "projection": projection}));
        let lines = list.lines(80);
        assert_eq!(lines.len(), MAX_LINES);
        assert_eq!(lines[0], "  … 25 earlier actions");
        assert_eq!(lines[15], "✓ A39");
        assert_eq!(list.lines(4)[15], "✓ A…");
    }

    #[test]
    fn calls_of_actions_belong_to_their_graph() {
        let mut list = GraphList::default();
        assert!(!list.holds("/a/1"));
        let projection = json!({"graph_id": "g_1", "actions": []});
        list.take(&json!({"form": "whole", "projection": projection}));
        assert!(list.holds("g_1/a/1"));
        assert!(!list.holds("g_12/a/1"));
    }
}
