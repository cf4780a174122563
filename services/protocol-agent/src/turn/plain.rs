//! Agents without the protocol: the model's text is the answer, without parsing.

use action_graph::catalog::Catalog;
use action_graph::output::Finish;
use action_graph::transcript::TranscriptTurn;
use protocol::message::Message;
use runner_kit::CancellationToken;

use crate::ending::{STOP, SessionEnd};
use crate::execute::ExecutorEnv;
use crate::failure::{Halt, LLM_ERROR, NO_INPUT, RunFailure};
use crate::history;
use crate::host::GraphAgentHost;
use crate::model::{ModelChain, VisibleParts};
use crate::prompt::ModelPrompt;
use crate::writer::ResultWriter;

/// Finish reason of a truncated answer.
const LENGTH: &str = "length";

/// Answers the event with one model call.
pub(crate) async fn converse<H: GraphAgentHost>(
    env: ExecutorEnv<H>,
    role: Vec<Message>,
    mut writer: ResultWriter,
    cancel: CancellationToken,
) -> Result<SessionEnd, Halt> {
    let mut turns = history::before(&env.host, &env.context, Vec::new()).await?;
    turns.extend(history::of_input(&env.context.input));
    if !matches!(turns.last(), Some(TranscriptTurn::User { .. })) {
        let message =
            "the event has no text and no files: bind the agent to events that have an input";
        return Err(Halt::Failed(RunFailure::new(NO_INPUT, message)));
    }
    let prompt = ModelPrompt {
        role: &role,
        catalog: &Catalog::default(),
        rules: &env.config.rules,
        turns: &turns,
        replay: env.config.replay,
        max_tokens: env.config.budgets.request(),
        waiting: None,
        left: None,
    };
    let request = prompt.conversation();
    let mut models = ModelChain::new(env.config.models.clone());
    let call = models.ask(&env.host, &request, VisibleParts::Text, &mut writer);
    let reply = tokio::select! {
        biased;
        () = cancel.cancelled() => return Err(Halt::Cancelled),
        reply = call => reply?,
        () = tokio::time::sleep_until(env.end) => return Err(Halt::Deadline),
    };
    env.usage.add(reply.usage.as_ref());
    let text = reply.output.text;
    if text.trim().is_empty() {
        let message = "The model's answer is empty";
        return Err(Halt::Failed(
            RunFailure::new(LLM_ERROR, message).retryable(),
        ));
    }
    writer.complete(&text).await;
    let is_cut = reply.output.finish == Finish::Cut;
    Ok(SessionEnd {
        reason: if is_cut { LENGTH } else { STOP },
        outcome: None,
    })
}
