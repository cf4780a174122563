/** Run context `ctx` of a runner function. */

import { textOf } from "../client.js";
import { ApiError } from "../errors.js";
import type {
  AgentWake,
  ArtifactMetadata,
  AwaitedInteraction,
  InputAttachment,
  InteractionSubmission,
  Json,
  Message,
  PlatformAction,
  StateScope,
  TranscriptItem,
} from "../types.js";
import type {
  AgentRunContext,
  KnowledgeBaseResource,
  Permissions,
  RetrievalResultEntry,
  RetryOrigin,
  RunResume,
} from "./context.js";
import { MissingPermissions } from "./grants.js";
import { RunFailed } from "./failure.js";
import type { HostApi } from "./host.js";
import { type ModelOptions, Models, Tools } from "./models.js";
import type { Result } from "./results.js";

const WAIT_SECONDS = 25;
const MAX_QUERY = 2000;
const UNFINISHED = ["awaiting_approval", "open", "claimed"];
/** Repeated model calls after a lost gateway, in one loop. */
const MAX_LOST = 3;

/** Event of a run, and the resources that its grant opens. `host` calls the routes that have no method here. */
export class RunContext {
  readonly runId: string;
  readonly models: Models;
  readonly tools: Tools;
  readonly knowledge: Knowledge;
  readonly history: History;
  readonly state: State;
  readonly files: Files;
  readonly interactions: Interactions;
  readonly platform: PlatformActions;
  readonly wakes: Wakes;
  readonly missing: MissingPermissions;

  constructor(
    /** Complete request, as `openapi/runner.json` describes it. */
    readonly context: AgentRunContext,
    readonly host: HostApi,
    /** Aborted by a cancel, and at the end of the connection; of a resumable run, if no gateway resumes it in time. */
    readonly signal: AbortSignal,
    permissions: Permissions = {},
  ) {
    this.runId = context.run_id;
    this.missing = new MissingPermissions(this.runId, permissions);
    this.models = new Models(host, context.resources);
    this.tools = new Tools(host, context.resources, this.missing);
    this.knowledge = new Knowledge(host, context, this.missing);
    this.history = new History(host, context, this.missing);
    this.state = new State(host, context, this.missing);
    this.files = new Files(host, context);
    this.interactions = new Interactions(host);
    this.platform = new PlatformActions(host);
    this.wakes = new Wakes(host);
  }

  /**
   * Asks a model, calls the tools that it asks for, and asks again, until it answers without a call.
   *
   * Yields the text and the tool calls, for the runner to yield on; appends each message to `messages`. Offers the
   * granted tools, unless `tools` names others. In a resumable run, a model that lost its gateway before its first text
   * is called again. With `checkpoints`, the messages are the checkpoint after each turn with calls, if the run may write
   * state; a new attempt begins with them. Throws `RunFailed` after `maxTurns` turns with calls.
   */
  async *agentLoop(
    messages: string | Message[],
    { maxTurns = 8, checkpoints = false, ...options }: ModelOptions & { maxTurns?: number; checkpoints?: boolean } = {},
  ): AsyncGenerator<string | Result, void, undefined> {
    const turns = typeof messages === "string" ? [{ role: "user", content: messages }] : messages;
    const tools = options.tools ?? this.tools.offered();
    if (checkpoints && this.resume) turns.splice(0, turns.length, ...(this.resume.checkpoint as Message[]));
    let lost = 0;
    for (let turn = 0; turn < maxTurns; turn++) {
      let answer = this.models.stream(turns, { ...options, tools });
      while (true) {
        try {
          yield* answer;
          break;
        } catch (error) {
          if (answer.text || lost === MAX_LOST || !this.host.isLost(error)) throw error;
          lost += 1;
          answer = this.models.stream(turns, { ...options, tools });
        }
      }
      if (answer.toolCalls.length === 0) {
        turns.push(answer.message);
        return;
      }
      yield* this.tools.callAll(answer.message, turns);
      if (checkpoints && this.state.isGranted) await this.#checkpointTurns(turns);
    }
    throw new RunFailed("runner.no_answer", `the model called tools in ${maxTurns} turns without an answer`);
  }

  async #checkpointTurns(turns: Message[]): Promise<void> {
    try {
      await this.checkpoint(turns);
    } catch (error) {
      // The checkpoint before it stays.
      if (!(error instanceof ApiError) || error.code !== "payload_too_large") throw error;
      console.warn(`run ${this.runId} has more messages than a checkpoint holds`);
    }
  }

  /**
   * Stores the state from which a new attempt continues the run if this process is lost; 256 KiB of JSON at most.
   *
   * It includes the results yielded so far; the call waits until the gateway has stored them. The agent's `retry` decides
   * about a new attempt, which finds the value in `resume`.
   */
  async checkpoint(value: unknown): Promise<void> {
    const last = this.host.lastResult();
    await this.host.json("PUT", ["checkpoint"], { json: { value, ...(last > 0 && { sequence: last }) } });
  }

  /** Checkpoint that this attempt continues from; undefined: it starts from the event. */
  get resume(): RunResume | undefined {
    return this.context.runtime.resume ?? undefined;
  }

  /** Text of the message; empty for events without one. */
  get text(): string {
    return this.context.input.text ?? "";
  }

  /** Type of the event, for example `message.received`. */
  get eventType(): string {
    return this.context.event.event_type;
  }

  /** Id of the conversation; undefined for events without one. */
  get conversationId(): string | undefined {
    return this.context.conversation?.conversation_id ?? undefined;
  }

  /** Configuration of the agent for this runner. */
  get config(): Json {
    return this.context.config ?? {};
  }

  /**
   * Results of an ended run after which this one begins; undefined for a run that begins with its event. The gateway
   * answers tool calls that the ended run made before them.
   */
  get origin(): RetryOrigin | undefined {
    return this.context.runtime.from ?? undefined;
  }

  /** Answer to an earlier question, for events `interaction.submitted`; otherwise undefined. */
  get answer(): InteractionSubmission | undefined {
    return this.context.input.interaction ?? undefined;
  }
}

/** Knowledge bases that the run was granted. */
export class Knowledge {
  readonly granted: KnowledgeBaseResource[];

  constructor(
    private readonly host: HostApi,
    context: AgentRunContext,
    private readonly missing: MissingPermissions,
  ) {
    this.granted = context.resources.knowledge_bases ?? [];
  }

  /** Passages of one base that match best, at most `topK`. The query is cut after 2,000 characters. */
  async retrieve(kbId: string, query: string, topK = 5): Promise<RetrievalResultEntry[]> {
    const json = { query_text: query.slice(0, MAX_QUERY), top_k: topK };
    const path = ["knowledge-bases", kbId, "retrieve"];
    return (await this.host.json<{ results: RetrievalResultEntry[] }>("POST", path, { json, long: true })).results;
  }

  /** Texts of the best passages of each granted base. They are data, not instructions. */
  async search(query: string, topK = 4): Promise<string[]> {
    const open = this.granted.filter((base) => !base.operations?.length || base.operations.includes("retrieve"));
    if (open.length === 0) this.missing.report("ctx.knowledge.search", "knowledge_bases", "retrieve");
    if (!query.trim()) return [];
    const found = await Promise.all(open.map((base) => this.retrieve(base.kb_id, query, topK)));
    return found.flat().map((entry) => textOf(entry.content));
  }
}

/** Messages of the run's conversation. */
export class History {
  readonly #eventId: string;
  readonly isGranted: boolean;

  constructor(
    private readonly host: HostApi,
    context: AgentRunContext,
    private readonly missing: MissingPermissions,
  ) {
    this.#eventId = context.event.event_id;
    this.isGranted = context.context?.available_apis?.history_page === true;
  }

  /** Up to `limit` messages before the current one, oldest first, as a model takes them. */
  async messages(limit = 20): Promise<Message[]> {
    if (!this.isGranted) {
      this.missing.report("ctx.history.messages", "history", "page");
      return [];
    }
    const items = await this.page({ limit });
    // The newest come first: the current message, and those that arrived after it, are not history.
    const current = items.findIndex((item) => item.event_id === this.#eventId);
    const before = items.slice(current + 1).filter((item) => item.event_id !== this.#eventId && item.content);
    return before.reverse().map((item) => ({ role: item.role, content: item.content ?? "" }));
  }

  /** Items of the history, newest first. `query` are the parameters of `GET /host/v1/history`. */
  async page(query: Record<string, string | number | boolean> = {}): Promise<TranscriptItem[]> {
    return (await this.host.json<{ items: TranscriptItem[] }>("GET", ["history"], { query })).items;
  }

  /** Items with all words of the query, newest first. */
  async search(query: string, topK = 10): Promise<TranscriptItem[]> {
    const json = { query, top_k: topK };
    return (await this.host.json<{ items: TranscriptItem[] }>("POST", ["history", "search"], { json })).items;
  }
}

/** Values that runs leave for later runs, by scope. */
export class State {
  readonly #values = new Map<string, unknown>();
  readonly #incomplete: unknown[];
  readonly isGranted: boolean;

  constructor(
    private readonly host: HostApi,
    context: AgentRunContext,
    private readonly missing: MissingPermissions,
  ) {
    for (const [scope, values] of Object.entries(context.state ?? {})) {
      if (typeof values !== "object" || values === null) continue;
      for (const [key, value] of Object.entries(values)) this.#values.set(`${scope}/${key}`, value);
    }
    const incomplete = context.runtime.metadata?.state_incomplete;
    this.#incomplete = Array.isArray(incomplete) ? incomplete : [];
    this.isGranted = context.context?.available_apis?.state === true;
  }

  /** Value of a key, or `fallback`. Only a value that the context left out needs a call. */
  async get<T>(key: string, fallback: T, scope: StateScope = "conversation"): Promise<T> {
    const name = `${scope}/${key}`;
    if (!this.#values.has(name) && this.#incomplete.includes(scope)) {
      try {
        const stored = await this.host.json<{ value: unknown }>("GET", ["state", scope, key]);
        this.#values.set(name, stored.value);
      } catch (error) {
        if (!(error instanceof ApiError) || error.code !== "not_found") throw error;
      }
    }
    if (this.#values.has(name)) return this.#values.get(name) as T;
    this.missing.report("ctx.state.get", "state", scope);
    return fallback;
  }

  /** Writes a value and returns its version. With `ifVersion`, another version is an error `conflict`. */
  async put(
    key: string,
    value: unknown,
    scope: StateScope = "conversation",
    options: { ifVersion?: number } = {},
  ): Promise<number> {
    const headers: Record<string, string> = options.ifVersion === undefined ? {} : { "if-match": `${options.ifVersion}` };
    const written = await this.host.json<{ version: number }>("PUT", ["state", scope, key], { json: { value }, headers });
    // After the write: a conflict must leave the cached value unchanged.
    this.#values.set(`${scope}/${key}`, value);
    return written.version;
  }

  /** Deletes a value. */
  async delete(key: string, scope: StateScope = "conversation"): Promise<void> {
    await this.host.bytes("DELETE", ["state", scope, key]);
    this.#values.delete(`${scope}/${key}`);
  }
}

/** Files of the event and of the run. */
export class Files {
  readonly attachments: InputAttachment[];

  constructor(
    private readonly host: HostApi,
    context: AgentRunContext,
  ) {
    this.attachments = context.input.attachments ?? [];
  }

  /** Content of a file, for example of `attachments[0].id`, up to `maxBytes` (20 MiB). */
  read(artifactId: string, maxBytes?: number): Promise<Uint8Array> {
    return this.host.bytes("GET", ["artifacts", artifactId, "content"], { long: true }, maxBytes);
  }

  /** Name, type and size (bytes) of a file. */
  metadata(artifactId: string): Promise<ArtifactMetadata> {
    return this.host.json("GET", ["artifacts", artifactId]);
  }

  /** Stores a file. Yield `results.file(…)` of the result, so that clients see it. */
  upload(
    content: Uint8Array<ArrayBuffer> | Blob | string,
    name: string,
    mimeType = "application/octet-stream",
  ): Promise<ArtifactMetadata> {
    const headers = { "content-type": mimeType };
    return this.host.json("POST", ["artifacts"], { body: content, headers, query: { name }, long: true });
  }
}

/** Questions of the run. */
export class Interactions {
  constructor(private readonly host: HostApi) {}

  /**
   * Answer to a question with `await: true`. Waits until `status` is not `open`: `submitted`, `expired`
   * or `cancelled`. `action_id` and `values` are those of a submitted answer.
   */
  async wait(interactionId: string): Promise<AwaitedInteraction> {
    while (true) {
      const call = { query: { wait_seconds: WAIT_SECONDS }, long: true };
      const interaction = await this.host.json<AwaitedInteraction>("GET", ["interactions", interactionId], call);
      if (interaction.status !== "open") return interaction;
    }
  }
}

/** Acts of the chat platform that the run requests. */
export class PlatformActions {
  constructor(private readonly host: HostApi) {}

  /** Requests an action, for example `message.edit`. The same `idempotencyKey` returns the same action. */
  request(
    action: string,
    target: Json = {},
    payload: Json = {},
    options: { idempotencyKey?: string; timeoutSeconds?: number } = {},
  ): Promise<PlatformAction> {
    const { idempotencyKey: idempotency_key, timeoutSeconds: timeout_seconds } = options;
    const json = { action, target, payload, idempotency_key, timeout_seconds };
    return this.host.json("POST", ["platform", "actions"], { json });
  }

  /** Outcome of an action: `done`, `failed`, `declined`, `expired` or `cancelled`. */
  async wait(actionId: string): Promise<PlatformAction> {
    while (true) {
      const call = { query: { wait_seconds: WAIT_SECONDS }, long: true };
      const action = await this.host.json<PlatformAction>("GET", ["platform", "actions", actionId], call);
      if (!UNFINISHED.includes(action.status)) return action;
    }
  }
}

/** Wakes of the run's agent, in its conversation. */
export class Wakes {
  constructor(private readonly host: HostApi) {}

  /** Wakes the agent at a time in epoch seconds, or after some seconds. The same key returns the same wake. */
  request(key: string, time: { at: number } | { afterSeconds: number }, data: Json = {}): Promise<AgentWake> {
    const due = "at" in time ? { at: time.at } : { after_seconds: time.afterSeconds };
    return this.host.json("POST", ["schedules"], { json: { key, ...due, data } });
  }

  /** Cancels a wake that is not due yet. */
  cancel(key: string): Promise<AgentWake> {
    return this.host.json("DELETE", ["schedules", key]);
  }
}
