/** Client of the gateway. */

import { RunFailedError } from "./errors.js";
import type { MessageDeltaPayload, RunEvent } from "./events.js";
import { GatewayHttp, readBounded, type RequestParts, segment } from "./http.js";
import { RunStream } from "./stream.js";
import type {
  AgentRun,
  ArtifactMetadata,
  ClaimedAction,
  ContentElement,
  ConversationSummary,
  CountsByStatus,
  EventAccepted,
  EventEnvelope,
  Interaction,
  Json,
  PlatformAction,
  PlatformActionError,
  RunStatus,
  RunStreamLink,
  TranscriptItem,
  UsageGroupBy,
  UsageReport,
} from "./types.js";

const DEFAULT_URL = "http://127.0.0.1:8700";
const TRANSFER_TIMEOUT = 300_000;
const MAX_DOWNLOAD_BYTES = 100 * 1024 * 1024;

/** Options of a client. */
export interface ClientOptions {
  /** URL of the gateway. Default: the variable RUNNEL_URL, or http://127.0.0.1:8700. */
  url?: string;
  /** API key of role `client`. Default: the variable RUNNEL_API_KEY. */
  apiKey?: string;
  /** Seconds of retries without progress. Default: 60. */
  patienceSeconds?: number;
  /** Replacement of the global `fetch`, for tests and proxies. */
  fetch?: typeof fetch;
}

/** Options of a post. */
export interface PostOptions {
  /**
   * Key of the post: the gateway returns the first result for a known one. Default: the event's `event_id`, or random.
   */
  idempotencyKey?: string;
  /** Ends the call, its retries and its stream. The run continues. */
  signal?: AbortSignal | undefined;
}

/** Status of a question. */
export type InteractionStatus = "open" | "submitted" | "expired" | "cancelled";

/** Filters of `runs` and `runCounts`. A run matches all of them. */
export interface RunFilter {
  statuses?: RunStatus | readonly RunStatus[];
  agentId?: string;
  runnerId?: string;
  endpointId?: string;
  /** Parent of child runs. */
  parentRunId?: string;
  conversationId?: string;
  /** Needs `conversationId`, as `threadId` does. Empty: conversations without a bot. */
  botId?: string;
  threadId?: string;
  /** Unix seconds, inclusive. */
  createdAfter?: number;
  /** Unix seconds, exclusive. */
  createdBefore?: number;
  /** `Idempotency-Key` of the event. */
  idempotencyKey?: string;
  /** Begin of a run id, event id or idempotency key. */
  text?: string;
  /** Code of the error of a run that did not complete. */
  errorCode?: string;
  statusReason?: string;
  /** Id of the API key. */
  postedBy?: string;
  minDurationMs?: number;
  maxDurationMs?: number;
  minCost?: number;
  maxCost?: number;
}

/** Period and groups of `usage`. */
export interface UsageFilter {
  /** Unix seconds, at most 92 days before `until`. Default: 30 days before it. */
  since?: number;
  /** Unix seconds. Default: now. */
  until?: number;
  groupBy?: UsageGroupBy;
  agentId?: string;
}

/**
 * Event `message.received` with a text, for `stream` and `postEvent`. Events of one `conversationId` share a history.
 * `actorId` identifies the sender. `files` are the `artifact_id`s of uploads.
 */
export function message(
  text: string,
  conversationId?: string,
  more: { actorId?: string; files?: string[] } = {},
): EventEnvelope {
  const event: EventEnvelope = { event_type: "message.received", input: { text } };
  if (more.files) event.input = { text, attachments: more.files.map((id) => ({ artifact_id: id })) };
  if (conversationId !== undefined) event.conversation = { conversation_id: conversationId };
  if (more.actorId !== undefined) event.actor = { actor_type: "user", actor_id: more.actorId };
  return event;
}

/** Text of a message's content: the text itself, or the joined texts of its parts. */
export function textOf(content: string | ContentElement[] | null | undefined): string {
  return Array.isArray(content) ? content.map((part) => part.text ?? "").join("") : (content ?? "");
}

/** Text of a `message.delta`; empty for other events, for deltas of tool calls, and for deltas without a chunk. */
export function deltaText(event: RunEvent): string {
  if (event.type !== "message.delta") return "";
  // The gateway rejects deltas without a chunk. Events from elsewhere, such as a stored log, may have none.
  const { chunk } = event.data as Partial<MessageDeltaPayload>;
  return textOf(chunk?.content);
}

/**
 * Client of one gateway with one API key of role `client`. Every post has an idempotency key, so retries create no
 * second run. The key goes to this gateway only: redirects are not followed.
 *
 * Each call throws `ApiError` if the gateway rejects it, and `GatewayUnreachableError` if no attempt got a response in
 * time. The methods name their further errors. Lists are async iterators that request a page of 100 items when they
 * need it. Without an API key the constructor throws a `TypeError`.
 */
export class Client {
  readonly #http: GatewayHttp;

  constructor(options: ClientOptions = {}) {
    const apiKey = options.apiKey ?? environment("RUNNEL_API_KEY");
    if (!apiKey) throw new TypeError("no API key: set RUNNEL_API_KEY, or pass apiKey; `runnel dev` prints one");
    const url = options.url ?? environment("RUNNEL_URL") ?? DEFAULT_URL;
    // A wrapper: browsers reject the global `fetch` as a method of another object.
    const send = options.fetch ?? ((input, init) => fetch(input, init));
    this.#http = new GatewayHttp(url, apiKey, (options.patienceSeconds ?? 60) * 1000, send);
  }

  /**
   * Posts a message and returns the text of the last message of its run. Throws `RunFailedError` if the run fails, and
   * the errors of `stream`.
   */
  async ask(text: string, conversationId?: string): Promise<string> {
    let answer = "";
    for await (const event of this.stream(message(text, conversationId))) {
      if (event.type === "message.completed") answer = textOf(event.data.message.content);
      if (event.type === "run.completed" && event.data.message) answer = textOf(event.data.message.content);
      if (event.type === "run.failed") {
        const reason = event.data.message ?? event.data.error ?? "no message";
        throw new RunFailedError(event.run_id, event.data.code ?? "unknown", reason);
      }
    }
    return answer;
  }

  /**
   * Posts an event and returns as soon as it is stored. `run_id` is null if no agent takes the event: `reason` is then
   * `no_agent`, and `hint` names the next step.
   */
  postEvent(event: EventEnvelope, options: PostOptions = {}): Promise<EventAccepted> {
    const headers = idempotent(event, options);
    return this.#http.json("POST", "/v1/events", { json: event, headers, signal: options.signal });
  }

  /**
   * Events of the run of a posted event, across broken connections. The post is sent by the first iteration.
   *
   * The iteration throws `NoRunError` if no agent takes the event, and `StreamLostError` if a broken stream cannot be
   * resumed in `patienceSeconds`.
   */
  stream(event: EventEnvelope, options: PostOptions = {}): RunStream {
    return new RunStream(this.#http, { event, headers: idempotent(event, options), signal: options.signal });
  }

  /**
   * Events of a run after the sequence `after`, up to its terminal event. 0 begins at the first event.
   *
   * The iteration throws `StreamLostError` as `stream` does, and `ApiError` 410 if retention has deleted the events.
   */
  follow(runId: string, after = 0, signal?: AbortSignal | undefined): RunStream {
    // Rejects a wrong id here, not at the first iteration.
    segment(runId);
    return new RunStream(this.#http, { runId, after, signal });
  }

  /** Runs of the workspace that match the filter, newest first. */
  runs(filter: RunFilter = {}): AsyncGenerator<AgentRun> {
    return this.#pages("/v1/runs", { ...runQuery(filter), limit: 100 }, "cursor");
  }

  /**
   * Number of runs of each status that match the filter. A count that is not `exact` is a lower bound: the gateway counts
   * among the newest runs.
   */
  runCounts(filter: RunFilter = {}): Promise<CountsByStatus> {
    return this.#http.json("GET", "/v1/runs/counts", { query: runQuery(filter) });
  }

  /** Calls, tokens and cost by day (UTC) and by agent, model, tool or knowledge base. */
  usage(filter: UsageFilter = {}): Promise<UsageReport> {
    const { since: from, until: to, groupBy: group_by, agentId: agent_id } = filter;
    return this.#http.json("GET", "/v1/usage", { query: { from, to, group_by, agent_id } });
  }

  /** Current state of a run. An unknown id throws `ApiError` 404. */
  run(runId: string): Promise<AgentRun> {
    return this.#http.json("GET", `/v1/runs/${segment(runId)}`);
  }

  /** Requests the cancellation of a run and returns its current state. `follow` shows when it ends. */
  cancel(runId: string): Promise<AgentRun> {
    return this.#http.json("POST", `/v1/runs/${segment(runId)}/cancel`);
  }

  /**
   * Runs the event of a failed, cancelled or timed-out run again. Returns the new run: see `retry_of`.
   *
   * With `after` the new run begins after the result with this sequence; its runner must be resumable. A second call
   * returns the same new run. Throws `ApiError` 409 if the run cannot be retried; `details.reason` is then `run_live`,
   * `run_completed`, `child_run` or `no_agent`, for example.
   */
  retry(runId: string, options: { after?: number } = {}): Promise<AgentRun> {
    const parts = options.after === undefined ? {} : { json: { from: options.after } };
    return this.#http.json("POST", `/v1/runs/${segment(runId)}/retry`, parts);
  }

  /** Link to the stream of a run, for a browser. It opens one stream, within a minute, and reads this run only. */
  streamLink(runId: string): Promise<RunStreamLink> {
    return this.#http.json("POST", `/v1/runs/${segment(runId)}/stream-link`);
  }

  /** Conversations of the workspace, newest event first. */
  conversations(): AsyncGenerator<ConversationSummary> {
    return this.#pages("/v1/conversations", { limit: 100 }, "cursor");
  }

  /** Messages of a conversation, newest first, or oldest first if `forward`. */
  history(conversationId: string, options: { botId?: string; forward?: boolean } = {}): AsyncGenerator<TranscriptItem> {
    const direction = options.forward ? "forward" : "backward";
    const query = { bot_id: options.botId, direction, limit: 100 };
    const cursor = options.forward ? "after_cursor" : "before_cursor";
    return this.#pages(`/v1/conversations/${segment(conversationId)}/history`, query, cursor);
  }

  /** Questions of runs, newest first: the open ones, those of another status, or all with `status: null`. */
  interactions(
    filter: { conversationId?: string; runId?: string; status?: InteractionStatus | null } = {},
  ): AsyncGenerator<Interaction> {
    const status = filter.status === undefined ? "open" : filter.status;
    const query = { conversation_id: filter.conversationId, run_id: filter.runId, status };
    return this.#pages("/v1/interactions", query, "after");
  }

  /** Question with the gateway's id: `metadata.interaction.id` of the event `action.requested`. */
  interaction(interactionId: string): Promise<Interaction> {
    return this.#http.json("GET", `/v1/interactions/${segment(interactionId)}`);
  }

  /**
   * Answers a question: `actionId` is one of its actions, `values` has a value for each field.
   *
   * Returns the `Interaction` if the run waits for the answer, and an `EventAccepted` if the answer started a run of
   * its own. Throws `ApiError` 409 for a second answer, and 410 for a question that has expired.
   */
  answer(interaction: Interaction, actionId?: string, values: Json = {}): Promise<EventAccepted | Interaction> {
    const json = { interaction_id: interaction.request.interaction_id, action_id: actionId ?? null, values };
    return this.#http.json("POST", `/v1/interactions/${segment(interaction.id)}/submit`, { json });
  }

  /** Platform actions of runs, newest first: the open ones, those of another status, or all with `status: null`. */
  actions(
    filter: { runId?: string; status?: PlatformAction["status"] | null } = {},
  ): AsyncGenerator<PlatformAction> {
    const status = filter.status === undefined ? "open" : filter.status;
    return this.#pages("/v1/actions", { run_id: filter.runId, status }, "after");
  }

  /** Platform action: `metadata.action.id` of the event `action.requested`. */
  action(actionId: string): Promise<PlatformAction> {
    return this.#http.json("GET", `/v1/actions/${segment(actionId)}`);
  }

  /**
   * Claims an open action: only this program performs it, within `leaseSeconds` (1-3,600, by default 60). With the
   * `claimToken` of an earlier claim the lease is extended. Throws `ApiError` 409 if another program has claimed the
   * action or it has ended.
   */
  claimAction(
    actionId: string,
    options: { leaseSeconds?: number; claimToken?: string } = {},
  ): Promise<ClaimedAction> {
    const json = { lease_seconds: options.leaseSeconds, claim_token: options.claimToken };
    return this.#http.json("POST", `/v1/actions/${segment(actionId)}/claim`, { json });
  }

  /**
   * Reports the result of a claimed action: `output` of the platform, or `error`. A repeated report is accepted. Throws
   * `ApiError` 410 if the claim has expired.
   */
  finishAction(
    claimed: ClaimedAction,
    result: { output?: Json; error?: PlatformActionError } = {},
  ): Promise<PlatformAction> {
    const json = { claim_token: claimed.claim_token, status: result.error ? "failed" : "done", ...result };
    return this.#http.json("POST", `/v1/actions/${segment(claimed.action.id)}/result`, { json });
  }

  /**
   * Uploads a file for an event: `message(text, conversationId, { files: [artifact_id] })`. It expires after
   * `expiresIn` seconds. Throws `ApiError` 413 for a file above the gateway's limit, and 415 for a type that it does
   * not accept.
   */
  upload(
    content: Uint8Array<ArrayBuffer> | Blob | string,
    name: string,
    mimeType = "application/octet-stream",
    options: { expiresIn?: number } = {},
  ): Promise<ArtifactMetadata> {
    return this.#http.json("POST", "/v1/artifacts", {
      body: content,
      headers: { "content-type": mimeType },
      query: { name, expires_in: options.expiresIn },
      timeout: TRANSFER_TIMEOUT,
    });
  }

  /** Content of a file. Throws `RunnelError` if it is larger than `maxBytes`. */
  async download(artifactId: string, maxBytes = MAX_DOWNLOAD_BYTES): Promise<Uint8Array> {
    const path = `/v1/artifacts/${segment(artifactId)}/content`;
    return readBounded(await this.#http.response("GET", path, { timeout: TRANSFER_TIMEOUT }), maxBytes);
  }

  async *#pages<T>(path: string, query: NonNullable<RequestParts["query"]>, cursor: string): AsyncGenerator<T> {
    type Page = { items: T[]; has_more: boolean; next_cursor?: string | null };
    let next: string | null | undefined;
    do {
      const page: Page = await this.#http.json("GET", path, { query: next ? { ...query, [cursor]: next } : query });
      yield* page.items;
      // An empty page may have a next one, so only the cursor ends the list.
      next = page.has_more ? page.next_cursor : undefined;
    } while (next);
  }
}

function runQuery(filter: RunFilter): NonNullable<RequestParts["query"]> {
  const { statuses } = filter;
  return {
    statuses: typeof statuses === "string" ? statuses : statuses?.join(","),
    agent_id: filter.agentId,
    runner_id: filter.runnerId,
    endpoint_id: filter.endpointId,
    parent_run_id: filter.parentRunId,
    conversation_id: filter.conversationId,
    bot_id: filter.botId,
    thread_id: filter.threadId,
    created_after: filter.createdAfter,
    created_before: filter.createdBefore,
    idempotency_key: filter.idempotencyKey,
    text: filter.text,
    error_code: filter.errorCode,
    status_reason: filter.statusReason,
    posted_by: filter.postedBy,
    min_duration_ms: filter.minDurationMs,
    max_duration_ms: filter.maxDurationMs,
    min_cost: filter.minCost,
    max_cost: filter.maxCost,
  };
}

function idempotent(event: EventEnvelope, options: PostOptions): Record<string, string> {
  // The `event_id` is the key: the gateway stores an event with a repeated id once.
  if (options.idempotencyKey === undefined && event.event_id) return {};
  return { "idempotency-key": options.idempotencyKey ?? crypto.randomUUID() };
}

function environment(name: string): string | undefined {
  // Browsers have no `process`.
  return (globalThis as { process?: { env?: Record<string, string | undefined> } }).process?.env?.[name] || undefined;
}
