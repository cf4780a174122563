//! Agents without the protocol: the text of the model is the answer, and nothing reaches the parser.

use action_graph::catalog::Catalog;
use action_graph::output::Finish;
use action_graph::transcript::Turn;
use protocol::message::Message;
use runner_kit::CancellationToken;

use crate::ending::{Ended, STOP};
use crate::execute::Hands;
use crate::failure::{Failure, Halt, LLM_ERROR, NO_INPUT};
use crate::history;
use crate::host::AgentHost;
use crate::model::{Models, Stream};
use crate::prompt::Prompt;
use crate::speaker::Speaker;

/// The finish reason of an answer that the model could not end.
const LENGTH: &str = "length";

/// Answers the event with one call of the model.
pub(crate) async fn converse<H: AgentHost>(
    hands: Hands<H>,
    role: Vec<Message>,
    mut speaker: Speaker,
    cancel: CancellationToken,
) -> Result<Ended, Halt> {
    let mut turns = history::before(&hands.host, &hands.context, Vec::new()).await?;
    turns.extend(history::of_input(&hands.context.input));
    if !matches!(turns.last(), Some(Turn::User { .. })) {
        let message =
            "the event has no text and no files: bind the agent to events that have an input";
        return Err(Halt::Failed(Failure::new(NO_INPUT, message)));
    }
    let prompt = Prompt {
        role: &role,
        catalog: &Catalog::default(),
        rules: &hands.config.rules,
        turns: &turns,
        replay: hands.config.replay,
        most: hands.config.budgets.request(),
        waiting: None,
        left: None,
    };
    let request = prompt.conversation();
    let mut models = Models::new(hands.config.models.clone());
    let asking = models.ask(&hands.host, &request, Stream::Text, &mut speaker);
    let asked = tokio::select! {
        biased;
        () = cancel.cancelled() => return Err(Halt::Cancelled),
        asked = asking => asked?,
        () = tokio::time::sleep_until(hands.end) => return Err(Halt::Deadline),
    };
    hands.usage.add(asked.usage.as_ref());
    let text = asked.output.text;
    if text.trim().is_empty() {
        let message = "The model's answer is empty";
        return Err(Halt::Failed(Failure::new(LLM_ERROR, message).retryable()));
    }
    speaker.complete(&text).await;
    let is_cut = asked.output.finish == Finish::Cut;
    Ok(Ended {
        reason: if is_cut { LENGTH } else { STOP },
        outcome: None,
    })
}
