//! Commands for approvals of the conversation: `/approvals` lists them, `/approvals revoke NAME` revokes one. They need
//! no model.

use action_graph::rules::StandingApproval;
use protocol::result::RunOutcome;

use crate::ending::SessionEnd;
use crate::execute::human::calls_of;
use crate::failure::Halt;
use crate::history;
use crate::host::GraphAgentHost;
use crate::session::ProtocolSession;

const COMMAND: &str = "/approvals";
const REVOKE: &str = "revoke";

impl<H: GraphAgentHost> ProtocolSession<H> {
    /// Executes a command of the user. `None`: the message is for the model.
    pub(crate) async fn command(&mut self) -> Result<Option<SessionEnd>, Halt> {
        let input = self.driver.graphs.env.context.input.clone();
        let text = input.text.as_deref().unwrap_or_default();
        let mut words = text.split_whitespace();
        // Texts of a parent run are no commands of the user.
        if self.driver.rules.delegated
            || input.interaction.is_some()
            || words.next() != Some(COMMAND)
        {
            return Ok(None);
        }
        let reply = match (words.next(), words.next(), words.next()) {
            (None, ..) => listed(&self.driver.graphs.records.standing()),
            (Some(REVOKE), Some(name), None) => {
                if self.driver.graphs.records.revoke(name).await? {
                    format!("`{name}` is revoked: such calls need an approval again.")
                } else {
                    format!("There is no approval `{name}`. `{COMMAND}` lists them.")
                }
            }
            _ => format!("Say `{COMMAND}`, or `{COMMAND} {REVOKE} NAME`."),
        };
        self.transcript.turns.extend(history::of_input(&input));
        Ok(Some(self.answer(&reply, RunOutcome::Ok).await))
    }
}

fn listed(standing: &[StandingApproval]) -> String {
    if standing.is_empty() {
        return "No call is approved for this conversation.".to_owned();
    }
    let line = |one: &StandingApproval| format!("* `{}`: {}", one.id, calls_of(one));
    let lines: Vec<_> = standing.iter().map(line).collect();
    format!(
        "Approved for this conversation:\n\n{}\n\n`{COMMAND} {REVOKE} NAME` takes one back.",
        lines.join("\n")
    )
}
