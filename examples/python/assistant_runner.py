"""An assistant with a model, tools and knowledge: standard library only. Its server is echo_runner.py's."""
import json, urllib.error, urllib.parse
from echo_runner import RunnerApi, call_host, error_of, serve

RUNNER = {"id": "plugin:runnel/assistant-python/default", "name": "default",
          "label": {"en_US": "Assistant (Python)", "zh_Hans": "助手（Python）"},
          "permissions": {"models": ["stream"], "tools": ["call"], "knowledge_bases": ["retrieve"],
                          "history": ["page"]},
          "capabilities": {"streaming": True, "interrupt": True, "tool_calling": True, "knowledge_retrieval": True}}
MOST_QUESTIONS = 8  # to the model, in one run: whoever calls tools without end is stopped
MOST_SHOWN = 10_000  # characters of a tool's result: the model gets all of it, and a line of the stream is bounded

class Refused(Exception):
    """The error of a call that had begun to answer, as the gateway told it."""

def route(kind, name, operation):
    return f"/{kind}/{urllib.parse.quote(name, safe='')}/{operation}"

def passages(context, host):  # what the granted knowledge bases have about it, the closest first
    text = (context["input"].get("text") or "")[:2000]
    for base in context["resources"]["knowledge_bases"] if text.strip() else []:
        query = {"query_text": text, "top_k": 4}
        found = json.load(call_host(host, route("knowledge-bases", base["kb_id"], "retrieve"), query))
        for entry in found["results"]:
            yield "".join(part.get("text") or "" for part in entry["content"])

def messages_of(context, host):  # what was said before, oldest first, and what is asked now
    said = []
    if context["context"]["available_apis"]["history_page"]:
        items = json.load(call_host(host, "/history?limit=20"))["items"]
        said = [item for item in reversed(items) if item["event_id"] != context["event"]["event_id"]]
    messages = [{"role": item["role"], "content": item["content"]} for item in said if item["content"]]
    question, known = context["input"].get("text") or "", "\n\n".join(passages(context, host))
    if known:  # it is data, which others have written: never a message of role `system`
        question = f"<passages>\n{known}\n</passages>\n\n{question}"
    return messages + [{"role": "user", "content": question}]

def ask(host, model, messages, tools):  # yields the pieces of what the model says, and in the end its message
    message, calls, fields = {"role": "assistant", "content": ""}, {}, {}
    body = {"messages": messages, "tools": tools, "remove_think": True}
    for line in call_host(host, route("models", model, "stream"), body):
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise Refused(event["error"])
        chunk = event.get("chunk") or {}
        if chunk.get("content"):
            message["content"] = chunk.get("all_content") or message["content"] + chunk["content"]
            yield chunk["content"]
        if chunk.get("provider_specific_fields"):  # with what the provider wants back with the results of tools
            fields = {"provider_specific_fields": chunk["provider_specific_fields"]}
        for call in chunk.get("tool_calls") or []:  # each piece has its call's id, and more of its arguments
            if call["id"] in calls:
                calls[call["id"]]["function"]["arguments"] += call["function"]["arguments"]
            else:
                calls[call["id"]] = call
    yield {**message, **fields, "tool_calls": list(calls.values())} if calls else message

def call_tool(host, name, parameters):  # what it has answered, and what went wrong
    try:
        if not isinstance(parameters, dict):
            return None, "the arguments are no JSON object"
        return json.load(call_host(host, route("tools", name, "call"), {"parameters": parameters}))["result"], None
    except urllib.error.HTTPError as refused:
        return None, error_of(refused)["message"]

def parameters_of(call):
    try:
        return json.loads(call["function"]["arguments"] or "{}")
    except ValueError:
        return None

def use_tools(host, calls, messages):  # yields what the user sees; the model is told of errors, too
    for call in calls:
        name, parameters = call["function"]["name"], parameters_of(call)
        told = {"tool_call_id": call["id"], "tool_name": name}
        shown = parameters if isinstance(parameters, dict) else {}
        yield "tool.call.started", {**told, "parameters": shown}
        result, error = call_tool(host, name, parameters)
        text = f"Error: {error}" if error else result if isinstance(result, str) else json.dumps(result)
        told |= {"error": error} if error else {"result": {"text": text[:MOST_SHOWN]}}
        yield "tool.call.completed", told
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})

def assist(context, host, cancel):  # the runner itself: yields the type and the data of each result
    try:
        granted = context["resources"]
        if not granted["models"]:
            raise RuntimeError("no model is granted: name one in the agent's resource_policy")
        model, messages = granted["models"][0]["model_id"], messages_of(context, host)
        tools = [{"name": tool["tool_name"], "description": tool.get("description") or "",
                  "parameters": tool.get("parameters") or {"type": "object"}} for tool in granted["tools"]]
        for _ in range(MOST_QUESTIONS):
            for said in ask(host, model, messages, tools):
                if cancel.is_set():
                    yield "run.failed", {"code": "cancelled", "message": "the run was cancelled"}
                    return
                if isinstance(said, str):
                    yield "message.delta", {"chunk": {"role": "assistant", "content": said}}
            messages.append(said)
            if not said.get("tool_calls"):
                yield "message.completed", {"message": said, "file_ids": []}
                yield "run.completed", {"finish_reason": "stop"}
                return
            yield from use_tools(host, said["tool_calls"], messages)
        raise RuntimeError(f"the model has called tools {MOST_QUESTIONS} times without an answer")
    except urllib.error.HTTPError as answer:
        yield "run.failed", error_of(answer)
    except Refused as refused:
        yield "run.failed", refused.args[0]
    except Exception as error:
        yield "run.failed", {"code": "runner.exception", "message": f"{type(error).__name__}: {error}"}

class AssistantApi(RunnerApi):
    manifest, execute = RUNNER, staticmethod(assist)

if __name__ == "__main__":
    serve(AssistantApi)
