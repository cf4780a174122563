/** Routes of a runner endpoint: discovery, runs, cancel, health. Independent of the web framework. */

import type { Json } from "../types.js";
import { headerOf, type HeadersLike, SeenIds, SignatureError, Webhook } from "../webhooks.js";
import type { AgentRunnerManifest, AgentRunRequest, Capabilities, Permissions, ResumeRequest } from "./context.js";
import { Execution, type RunFunction } from "./execution.js";
import { HostApi } from "./host.js";
import { RunContext } from "./run.js";
import { Runs } from "./runs.js";
import { type Connection, type Frames, ResultStream } from "./stream.js";
import { piecesOf, unverifiedBytes } from "./unverified.js";

const RUNNER_ID = /^plugin:[^\s/:]+\/[^\s/]+\/([^\s/]+)$/;
const SHORT_ID = /^[^\s/:]+\/[^\s/:]+$/;
const BODY_TIMEOUT = 30_000;
const RESUME_WITHIN_SECONDS = 120;

/** Options of an endpoint. */
export interface EndpointOptions {
  /** Signing secret. Default: the variable RUNNER_SECRET. Several, separated by white space, serve a rotation. */
  secret?: string | undefined;
  /** Concurrent runs. Beyond it the endpoint answers 503 with `Retry-After`. Default: 1024. */
  maxRuns?: number;
  /** Largest body of a request; beyond it 413. Default: 8 MiB. */
  maxBodyBytes?: number;
  /** Seconds of silence after which a run sends a comment. Default: 15. */
  keepAliveSeconds?: number;
  /** Replacement of the global `fetch` for host API calls, for tests. */
  fetch?: typeof fetch;
}

/** Manifest of a runner, in short. */
export interface RunnerOptions {
  /** `plugin:{author}/{plugin}/{name}`; `acme/echo` is short for `plugin:acme/echo/default`. */
  id: string;
  label?: string | Record<string, string>;
  description?: string | Record<string, string>;
  /** The most that an agent of the runner can be granted. */
  permissions?: Permissions;
  capabilities?: Capabilities;
  configSchema?: Json[];
  /**
   * Seconds that a run works on after its connection, until a gateway resumes it. Only with the capability
   * `resumable`. Default: 120.
   */
  resumeWithinSeconds?: number;
}

/** Request for `Endpoint.handle`. `path` may begin with the mount of the endpoint. */
export interface EndpointRequest {
  method: string;
  path: string;
  headers: HeadersLike;
  body: Uint8Array;
}

/** Response of `Endpoint.handle`. `frames` is the body of a run. Call `close` when the gateway stops reading. */
export interface EndpointResponse {
  status: number;
  headers: Record<string, string>;
  body: string;
  frames?: Frames;
  close?: () => void;
  /** Aborted when another connection has the run. Close this one if its peer takes no bytes. */
  replaced?: AbortSignal;
}

/** Request that is answered with an error. */
export class Rejection extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    reason: string,
    readonly retryAfter?: number,
  ) {
    super(reason);
  }

  /** Response with the error as its body. */
  response(): EndpointResponse {
    const retryable = this.retryAfter !== undefined;
    const error = { code: this.code, message: this.message, retryable, details: {} };
    const response = json(this.status, { error });
    if (retryable) response.headers["retry-after"] = `${this.retryAfter}`;
    return response;
  }
}

/**
 * Runners that share one signing secret. `fetch` is a Fetch handler; `runnel/node` has a handler for Node and Express.
 *
 * Of the same `webhook-id`, a second request is refused. Without a secret the constructor throws a `TypeError`.
 */
export class Endpoint {
  readonly maxBodyBytes: number;
  readonly #webhook: Webhook;
  readonly #seen = new SeenIds();
  readonly #options: EndpointOptions;
  readonly #runners = new Map<string, { manifest: AgentRunnerManifest; work: RunFunction }>();
  readonly #runs = new Runs();

  constructor(options: EndpointOptions = {}) {
    const secret = options.secret ?? environment("RUNNER_SECRET");
    if (!secret) throw new TypeError("no signing secret: set RUNNER_SECRET, or pass secret to Endpoint");
    this.#webhook = new Webhook(secret);
    this.#options = options;
    this.maxBodyBytes = options.maxBodyBytes ?? 8 * 1024 * 1024;
  }

  /**
   * Serves a function as a runner. It yields text and results, or returns text. An id of another form, or one that is
   * defined twice, throws a `TypeError`.
   */
  runner(options: RunnerOptions, work: RunFunction): this {
    const id = SHORT_ID.test(options.id) ? `plugin:${options.id}/default` : options.id;
    const name = RUNNER_ID.exec(id)?.[1];
    if (!name) throw new TypeError(`${id} is no runner id: use plugin:{author}/{plugin}/{name}, or {author}/{plugin}`);
    if (this.#runners.has(id)) throw new TypeError(`runner ${id} is defined twice`);
    const permissions = options.permissions ?? {};
    const manifest: AgentRunnerManifest = {
      id,
      name,
      label: localized(options.label ?? name),
      protocol_version: "1",
      capabilities: {
        streaming: true,
        interrupt: true,
        tool_calling: Boolean(permissions.tools?.length),
        knowledge_retrieval: Boolean(permissions.knowledge_bases?.length),
        interactions: Boolean(permissions.interactions?.length),
        ...options.capabilities,
      },
      permissions,
      config_schema: options.configSchema ?? [],
    };
    if (options.description) manifest.description = localized(options.description);
    if (options.resumeWithinSeconds) manifest.resume_within_seconds = options.resumeWithinSeconds;
    this.#runners.set(id, { manifest, work });
    return this;
  }

  /** Fetch handler: for Deno, Bun, Workers, Next.js, Hono … Mounted at any path. */
  readonly fetch = async (request: Request): Promise<Response> => {
    const { pathname: path } = new URL(request.url);
    let answer: EndpointResponse;
    try {
      const body = await withTimeout(unverifiedBytes.read(piecesOf(request.body), this.maxBodyBytes, () => this.tooLarge()));
      answer = await this.handle({ method: request.method, path, headers: request.headers, body });
    } catch (error) {
      if (!(error instanceof Rejection)) throw error;
      answer = error.response();
    }
    const { status, headers, frames, close, replaced } = answer;
    if (!frames) return new Response(answer.body, { status, headers });
    // A server reports a closed connection by this signal, or by a cancel of the body.
    request.signal?.addEventListener("abort", () => close?.());
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        const isFull = () => (controller.desiredSize ?? 1) <= 0;
        replaced?.addEventListener("abort", () => isFull() && controller.error(new Error("the run was resumed")));
      },
      async pull(controller) {
        const step = await frames.next();
        if (step.done) controller.close();
        else controller.enqueue(step.value);
      },
      cancel: () => close?.(),
    });
    return new Response(body, { status, headers });
  };

  /** Response to one request, for other frameworks. */
  async handle(request: EndpointRequest): Promise<EndpointResponse> {
    try {
      if (request.method === "GET" && /\/healthz$/.test(request.path)) {
        return { status: 200, headers: { "content-type": "text/plain" }, body: "ok\n" };
      }
      const signedAt = await this.#authenticate(request);
      const { action, body } = actionOf(request);
      if (action === "run") return this.#start(body as unknown as AgentRunRequest, attemptOf(request), signedAt);
      if (action === "resume") return this.#resume(body as unknown as ResumeRequest, signedAt);
      if (action === "cancel") return this.#cancel(`${body.run_id}`);
      return json(200, { runners: [...this.#runners.values()].map((runner) => runner.manifest) });
    } catch (error) {
      if (error instanceof Rejection) return error.response();
      if (error instanceof SignatureError) return new Rejection(401, "unauthenticated", error.message).response();
      throw error;
    }
  }

  /** Rejection of a body beyond the limit. */
  tooLarge(): Rejection {
    return new Rejection(413, "payload_too_large", `the body is larger than ${this.maxBodyBytes} bytes`);
  }

  async #authenticate(request: EndpointRequest): Promise<number> {
    if (request.body.length > this.maxBodyBytes) throw this.tooLarge();
    const signedAt = await this.#webhook.verify(request.headers, request.body);
    // After the verification: unsigned requests must not fill the memory of ids.
    const isNew = this.#seen.add(headerOf(request.headers, "webhook-id"), signedAt);
    if (!isNew) throw new Rejection(409, "conflict", "this webhook-id was used before");
    return signedAt;
  }

  #start({ runner_id, context, host }: AgentRunRequest, attempt: number, signedAt: number): EndpointResponse {
    const runner = this.#runners.get(runner_id);
    if (!runner) throw new Rejection(404, "not_found", `there is no runner ${runner_id} here`);
    const { live } = this.#runs;
    if (live.has(context.run_id)) throw new Rejection(409, "conflict", `run ${context.run_id} is live already`);
    if (live.size >= (this.#options.maxRuns ?? 1024)) {
      throw new Rejection(503, "rate_limited", "all places for runs are taken", 1);
    }
    const { manifest, work } = runner;
    const abort = new AbortController();
    const send = this.#options.fetch ? { fetch: this.#options.fetch } : {};
    const times = { deadlineAt: context.runtime.deadline_at, now: signedAt, resumeWithin: resumeWithin(manifest) };
    const api = new HostApi(host, { ...times, ...send, signal: abort.signal });
    const run = new RunContext(context, api, abort.signal, manifest.permissions);
    const stream = new ResultStream((this.#options.keepAliveSeconds ?? 15) * 1000, times.resumeWithin);
    const execution = new Execution(run, work, abort, stream, this.#runs);
    const connection = stream.attach(attempt, 0);
    void execution.start();
    return streamed(connection);
  }

  #resume({ run_id, attempt, after, host }: ResumeRequest, signedAt: number): EndpointResponse {
    const stream = this.#runs.streamOf(run_id);
    if (stream?.resumeWithin === undefined) throw new Rejection(404, "not_found", `there is no run ${run_id} here`);
    if (attempt <= stream.attempt) throw new Rejection(409, "conflict", `run ${run_id} has attempt ${stream.attempt}`);
    if (!stream.buffer.hasAfter(after ?? 0)) {
      // The gateway ends the run after this response.
      stream.abandon();
      throw new Rejection(404, "not_found", `results after ${after ?? 0} of run ${run_id} are dropped`);
    }
    this.#runs.live.get(run_id)?.run.host.move(host, signedAt);
    return streamed(stream.attach(attempt, after ?? 0));
  }

  #cancel(runId: string): EndpointResponse {
    const execution = this.#runs.live.get(runId);
    if (!execution) throw new Rejection(404, "not_found", `there is no run ${runId} here`);
    execution.cancel();
    return json(202, {});
  }
}

function streamed(connection: Connection): EndpointResponse {
  const headers = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
  };
  return { status: 200, headers, body: "", ...connection };
}

/** Number of the attempt that a run begins with. */
function attemptOf({ headers }: EndpointRequest): number {
  return Number.parseInt(headerOf(headers, "runnel-attempt"), 10) || 1;
}

/** Seconds that a run works on without a connection; undefined without the capability. */
function resumeWithin({ capabilities, resume_within_seconds }: AgentRunnerManifest): number | undefined {
  return capabilities?.resumable ? (resume_within_seconds ?? RESUME_WITHIN_SECONDS) : undefined;
}

type Action = "list_runners" | "run" | "resume" | "cancel";

/** The action and the body. An endpoint with a single URL has the action in the body. */
function actionOf({ method, path, body }: EndpointRequest): { action: Action; body: Json } {
  if (method === "GET" && /\/runners\/?$/.test(path)) return { action: "list_runners", body: {} };
  if (method !== "POST") throw new Rejection(404, "not_found", "there is no such route");
  const [, runId, call] = /\/runs\/([^/]+)\/(cancel|resume)$/.exec(path) ?? [];
  if (runId && call === "cancel") return { action: call, body: { run_id: decodeURIComponent(runId) } };
  const parsed = parse(body);
  const action = call ?? (/\/runs$/.test(path) ? "run" : parsed.action);
  if (action === "run") checkRun(parsed);
  else if (action === "resume") checkResume(parsed);
  else if (action !== "list_runners" && action !== "cancel") {
    throw new Rejection(400, "invalid_argument", "action is not list_runners, run, resume or cancel");
  }
  return { action, body: parsed };
}

function parse(body: Uint8Array): Json {
  try {
    const parsed: unknown = JSON.parse(new TextDecoder().decode(body));
    if (typeof parsed === "object" && parsed !== null) return parsed as Json;
  } catch {
    // Answered below.
  }
  throw new Rejection(400, "invalid_argument", "the body is no JSON object");
}

/** Rejects a request without the fields that the adapter itself reads. */
function checkRun(request: Json): void {
  const { context, host } = request as { context?: Json; host?: Json };
  const objects = { context, host, ...pick(context, "event", "input", "resources", "runtime") };
  for (const [name, value] of Object.entries(objects)) {
    if (typeof value !== "object" || value === null) throw missing(name);
  }
  checkTexts({ runner_id: request.runner_id, run_id: context?.run_id, base_url: host?.base_url, token: host?.token });
}

function checkResume(request: Json): void {
  const { run_id, attempt, after, host } = request as { host?: Json } & Json;
  checkTexts({ run_id, base_url: host?.base_url, token: host?.token });
  const numbers = { attempt, after: after ?? 0, token_expires_at: host?.token_expires_at };
  for (const [name, value] of Object.entries(numbers)) if (typeof value !== "number") throw missing(name);
}

function checkTexts(texts: Json): void {
  for (const [name, value] of Object.entries(texts)) if (typeof value !== "string") throw missing(name);
}

function pick(object: Json | undefined, ...names: string[]): Json {
  return Object.fromEntries(names.map((name) => [name, object?.[name]]));
}

function missing(name: string): Rejection {
  return new Rejection(400, "invalid_argument", `the body is no request of the runner protocol: ${name} is missing`);
}

async function withTimeout<T>(reading: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    const rejection = new Rejection(408, "invalid_argument", "the body did not arrive in time");
    timer = setTimeout(() => reject(rejection), BODY_TIMEOUT);
  });
  return Promise.race([reading, late]).finally(() => clearTimeout(timer));
}

function localized(text: string | Record<string, string>): Record<string, string> {
  return typeof text === "string" ? { en_US: text } : text;
}

function json(status: number, body: unknown): EndpointResponse {
  return { status, headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
}

function environment(name: string): string | undefined {
  return (globalThis as { process?: { env?: Record<string, string | undefined> } }).process?.env?.[name];
}
