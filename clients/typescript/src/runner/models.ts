/** `ctx.models` and `ctx.tools`: granted models and tools. */

import { textOf } from "../client.js";
import { ApiError } from "../errors.js";
import type { Json, LlmTokenUsage, LlmTool, Message, MessageChunk, ToolCall } from "../types.js";
import type { AgentResources, ModelResource, ToolResource } from "./context.js";
import type { MissingPermissions } from "./grants.js";
import type { HostApi } from "./host.js";
import { type Result, toolCompleted, toolStarted } from "./results.js";

/** Characters of a tool's result that clients see. The model receives all of it. */
const SHOWN = 10_000;
const COUNTED = ["prompt_tokens", "completion_tokens", "total_tokens"] as const;

/** Missing grant: the run has no model for this call. It ends the run as `runner.no_model`. */
export class NoModelError extends Error {}

/** Options of a model call, and other members of its request: `extra_args`, `reasoning_level` … */
export interface ModelOptions extends Json {
  /** Default: the first granted model that supports the call. */
  model?: string;
  tools?: LlmTool[];
}

type StreamEvent = { chunk?: MessageChunk | null; usage?: LlmTokenUsage | null };

/**
 * Async iterable over the pieces of a model's answer. After the last one, `message` is the complete message, and `usage`
 * its token counts, if the model reports them.
 */
export class ModelAnswer implements AsyncIterable<string> {
  readonly message: Message = { role: "assistant", content: "" };
  usage: LlmTokenUsage | undefined;

  constructor(
    private readonly events: AsyncGenerator<StreamEvent, void, undefined>,
    private readonly count: (usage: LlmTokenUsage) => void,
  ) {}

  /** Text so far. */
  get text(): string {
    return textOf(this.message.content);
  }

  /** Tool calls of the model: pass `message` to `ctx.tools.callAll`. */
  get toolCalls(): ToolCall[] {
    return this.message.tool_calls ?? [];
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<string, void, undefined> {
    const calls = new Map<string, ToolCall>();
    let fields: Json | undefined;
    for await (const { chunk, usage } of this.events) {
      if (usage) {
        this.usage = usage;
        this.count(usage);
      }
      fields = chunk?.provider_specific_fields ?? fields;
      for (const call of chunk?.tool_calls ?? []) {
        const earlier = calls.get(call.id);
        // Each piece has the id of its call and more of its arguments.
        if (earlier) earlier.function.arguments += call.function.arguments;
        else calls.set(call.id, call);
        this.message.tool_calls = [...calls.values()];
      }
      const piece = textOf(chunk?.content);
      if (!piece) continue;
      // `all_content` leaves out the thoughts of earlier pieces.
      this.message.content = chunk?.all_content || this.text + piece;
      yield piece;
    }
    // Some providers reject the results of tools without these fields.
    if (fields && calls.size > 0) this.message.provider_specific_fields = fields;
  }
}

/** Models that the run was granted. Without `model`, a call uses the first one that supports it. */
export class Models {
  readonly granted: ModelResource[];
  /** Tokens of all calls, which the run reports at its end. */
  readonly usage: Partial<Record<(typeof COUNTED)[number], number>> = {};

  constructor(
    private readonly host: HostApi,
    resources: AgentResources,
  ) {
    this.granted = resources.models ?? [];
  }

  /** Answer of a model, piece by piece: `for await (const text of ctx.models.stream(messages))`. */
  stream(messages: string | Message[], options: ModelOptions = {}): ModelAnswer {
    const path = ["models", this.#named(options, "stream"), "stream"];
    const events = this.host.events<StreamEvent>("POST", path, { json: requestOf(messages, options) });
    return new ModelAnswer(events, (usage) => this.#count(usage));
  }

  /** Complete answer of a model, in one response. */
  async invoke(messages: string | Message[], options: ModelOptions = {}): Promise<Message> {
    const path = ["models", this.#named(options, "invoke"), "invoke"];
    const call = { json: requestOf(messages, options), long: true };
    const response = await this.host.json<{ message: Message; usage?: LlmTokenUsage | null }>("POST", path, call);
    if (response.usage) this.#count(response.usage);
    return response.message;
  }

  /** Index and `relevance_score` of each document, the best first. */
  async rerank(
    query: string,
    documents: string[],
    options: { model?: string; top_k?: number } = {},
  ): Promise<{ index: number; relevance_score: number }[]> {
    const path = ["models", this.#named(options, "rerank"), "rerank"];
    const json = { query, documents, top_k: options.top_k ?? null };
    const response = await this.host.json<{ results: { index: number; relevance_score: number }[] }>("POST", path, {
      json,
      long: true,
    });
    return response.results;
  }

  /** Number of tokens of a request. */
  async countTokens(messages: Message[], options: { model?: string } = {}): Promise<number> {
    const path = ["models", this.#named(options, "count_tokens"), "count-tokens"];
    return (await this.host.json<{ tokens: number }>("POST", path, { json: { messages }, long: true })).tokens;
  }

  #count(usage: LlmTokenUsage): void {
    for (const name of COUNTED) if (usage[name] != null) this.usage[name] = (this.usage[name] ?? 0) + usage[name];
  }

  #named(options: { model?: string }, operation: string): string {
    return options.model ?? this.default(operation);
  }

  /** Id of the first granted model that supports an operation: for clients with a model of their own. */
  default(operation = "stream"): string {
    const found = this.granted.find((model) => !model.operations?.length || model.operations.includes(operation));
    if (found) return found.model_id;
    throw new NoModelError(
      `no model is granted for ${operation}: name one in the agent's resource_policy.models, and the operation in the ` +
        "permissions of the runner",
    );
  }
}

function requestOf(messages: string | Message[], options: ModelOptions): Json {
  const { model: _, tools, ...more } = options;
  const conversation = typeof messages === "string" ? [{ role: "user", content: messages }] : messages;
  return { messages: conversation, tools: tools ?? [], remove_think: true, ...more };
}

/** Tools that the run was granted. */
export class Tools {
  readonly granted: ToolResource[];

  constructor(
    private readonly host: HostApi,
    resources: AgentResources,
    private readonly missing: MissingPermissions,
  ) {
    this.granted = resources.tools ?? [];
  }

  /** Granted tools in the form that a model request has. */
  offered(): LlmTool[] {
    if (this.granted.length === 0) this.missing.report("ctx.tools.offered", "tools", "call");
    return this.granted.map((tool) => ({
      name: tool.tool_name,
      description: tool.description ?? "",
      parameters: tool.parameters ?? { type: "object" },
    }));
  }

  /**
   * Result of a tool, any JSON. The same key calls the tool once, also after a lost response. Throws `ApiError`, for
   * example `unauthorized` for a tool that is not granted.
   */
  async call(name: string, parameters: Json, options: { idempotencyKey?: string } = {}): Promise<unknown> {
    // A call that breaks with its gateway is repeated only with a key.
    const key = options.idempotencyKey ?? (this.host.resumeWithin === undefined ? "" : crypto.randomUUID());
    const headers: Record<string, string> = key ? { "idempotency-key": key } : {};
    const call = { json: { parameters }, headers, long: true };
    return (await this.host.json<{ result: unknown }>("POST", ["tools", name, "call"], call)).result;
  }

  /**
   * Calls the tools that a model's message asks for. Appends the message and their results to `messages`.
   *
   * Yields what clients see of it. An error of a tool is a result for the model; the end of the run is thrown.
   */
  async *callAll(message: Message, messages: Message[]): AsyncGenerator<Result, void, undefined> {
    messages.push(message);
    for (const { id, function: called } of message.tool_calls ?? []) {
      const parameters = parametersOf(called.arguments);
      yield toolStarted(id, called.name, parameters ?? {});
      const { text, error } = await this.#answer(called.name, parameters);
      yield toolCompleted(id, called.name, error === undefined ? { result: { text: text.slice(0, SHOWN) } } : { error });
      messages.push({ role: "tool", tool_call_id: id, content: text });
    }
  }

  async #answer(name: string, parameters: Json | undefined): Promise<{ text: string; error?: string }> {
    if (!parameters) return failedTool("the arguments are no JSON object");
    try {
      return { text: textOfResult(await this.call(name, parameters)) };
    } catch (error) {
      if (!(error instanceof ApiError) || error.isRunOver) throw error;
      return failedTool(error.reason);
    }
  }
}

function failedTool(error: string): { text: string; error: string } {
  return { text: `Error: ${error}`, error };
}

/** Result as a model reads it: a sole text unchanged, everything else as JSON. */
function textOfResult(result: unknown): string {
  if (typeof result === "string") return result;
  const members = typeof result === "object" && result !== null ? (result as Record<string, unknown>) : {};
  // MCP tools answer with text blocks, other tools with a sole `text` or `value`.
  const blocks = Array.isArray(result) || "structured_content" in members ? result : members.content;
  if (Array.isArray(blocks) && blocks.length > 0 && blocks.every(isTextBlock)) {
    return blocks.map((block) => block.text).join("\n");
  }
  const [sole, ...others] = Object.entries(members);
  if (sole && others.length === 0 && (sole[0] === "text" || sole[0] === "value") && typeof sole[1] === "string") {
    return sole[1];
  }
  return JSON.stringify(result) ?? "null";
}

function isTextBlock(block: unknown): block is { text: string } {
  const { type, text } = Object(block) as { type?: unknown; text?: unknown };
  return type === "text" && typeof text === "string";
}

function parametersOf(text: string): Json | undefined {
  try {
    const found: unknown = JSON.parse(text || "{}");
    return typeof found === "object" && found !== null && !Array.isArray(found) ? (found as Json) : undefined;
  } catch {
    return undefined;
  }
}
