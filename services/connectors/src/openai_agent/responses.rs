//! Events and documents of the Responses API.

use serde_json::Value;

use crate::openai_agent::reply::{OpenAiReply, code_of};
use crate::upstream::answer::PlatformAnswer;
use crate::upstream::failure::{ConnectorFailure, Mapped, message_of};
use crate::upstream::json::{self, filled};
use crate::upstream::reader::UpstreamEvent;
use crate::upstream::usage::usage_of;

/// Reads one event, or the document of a server that does not stream.
pub(super) fn event(
    reply: &mut OpenAiReply,
    event: &UpstreamEvent,
    payload: &Value,
    answer: &mut PlatformAnswer,
) -> Mapped {
    if event.is_document {
        if !payload["output"].is_array() {
            return Err(ConnectorFailure::unreadable(&event.text));
        }
        return finished(reply, payload, answer);
    }
    let piece = payload["delta"].as_str().unwrap_or_default();
    let kind = payload["type"]
        .as_str()
        .or(event.name.as_deref())
        .unwrap_or_default();
    match kind {
        "response.output_text.delta" | "response.refusal.delta" => answer.append(piece),
        "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
            answer.think(piece);
        }
        "response.output_item.added" => tool_began(reply, &payload["item"], answer),
        "response.output_item.done" => tool_ended(&payload["item"], answer),
        "response.completed" | "response.incomplete" | "response.failed" => {
            return finished(reply, &payload["response"], answer);
        }
        _ => {}
    }
    Ok(())
}

/// Reads the complete response. Its output adds the text that was not streamed.
fn finished(reply: &mut OpenAiReply, response: &Value, answer: &mut PlatformAnswer) -> Mapped {
    answer.count(usage_of(&response["usage"]));
    reply.response_id = filled(&response["id"]).map(str::to_owned);
    let error = &response["error"];
    if error.is_object() || matches!(response["status"].as_str(), Some("failed" | "cancelled")) {
        let code = code_of(error);
        return Err(ConnectorFailure::reported(
            None,
            code.as_deref(),
            message_of(error).unwrap_or_default(),
        ));
    }
    let items = response["output"].as_array().map_or(&[][..], Vec::as_slice);
    for item in items {
        tool_began(reply, item, answer);
        tool_ended(item, answer);
    }
    let parts = items
        .iter()
        .flat_map(|item| item["content"].as_array().into_iter().flatten());
    let texts = parts.filter(|part| part["type"] != "reasoning_text");
    let texts = texts.filter_map(|part| part["text"].as_str().or_else(|| part["refusal"].as_str()));
    answer.add_missing(&texts.collect::<String>());
    // The status of a response that waits for its client is `completed` as well.
    let wants_call = items.iter().any(|item| item["type"] == "function_call");
    let reason = match response["incomplete_details"]["reason"].as_str() {
        _ if wants_call => "tool_calls",
        Some("max_output_tokens") => "length",
        Some(reason) => reason,
        None => "stop",
    };
    answer.finish_reason = Some(reason.to_owned());
    reply.is_done = true;
    Ok(())
}

/// The name of a tool that the server runs. Functions belong to the client.
fn tool_of(item: &Value) -> Option<&str> {
    let kind = item["type"].as_str()?.strip_suffix("_call")?;
    (kind != "function").then(|| filled(&item["name"]).unwrap_or(kind))
}

fn tool_began(reply: &mut OpenAiReply, item: &Value, answer: &mut PlatformAnswer) {
    if item["type"] == "function_call" {
        reply.calls.want(item);
    }
    if let (Some(name), Some(id)) = (tool_of(item), filled(&item["id"])) {
        let parameters = item["arguments"].as_str().and_then(json::parse);
        answer.tool_started(id, name, parameters.unwrap_or_default());
    }
}

fn tool_ended(item: &Value, answer: &mut PlatformAnswer) {
    if let (Some(_), Some(id)) = (tool_of(item), filled(&item["id"])) {
        let error = filled(&item["error"]).or_else(|| message_of(&item["error"]));
        let error = error.or_else(|| (item["status"] == "failed").then_some("the tool failed"));
        answer.tool_completed(id, item["output"].clone(), error);
    }
}
