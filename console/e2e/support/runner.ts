/** A runner whose runs do what the text of their event declares. It verifies no signature: it serves this test only. */

import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { json } from "node:stream/consumers";

export const MANIFEST = {
  id: "plugin:test/scripted/default",
  name: "default",
  label: { en_US: "Scripted" },
  permissions: {
    interactions: ["request"],
    platform_api: ["message.edit", "message.recall"],
    tools: ["detail", "call"],
  },
  capabilities: { streaming: true, interrupt: true, interactions: true },
};

export interface Result {
  type: string;
  data: object;
}

interface HostAccess {
  base_url: string;
  token: string;
}

interface Request {
  context: { run_id: string; input: { text?: string } };
  host: HostAccess;
}

/** A request of the Model Context Protocol; a notification has no id. */
interface McpRequest {
  id?: number;
  method: string;
  params?: { protocolVersion?: string };
}

export const delta = (content: string): Result => ({
  type: "message.delta",
  data: { chunk: { role: "assistant", content } },
});
export const message = (content: string): Result => ({
  type: "message.completed",
  data: { message: { role: "assistant", content }, file_ids: [] },
});
export const completed: Result = { type: "run.completed", data: { finish_reason: "stop" } };
export const failed = (message: string): Result => ({
  type: "run.failed",
  data: { code: "test.failed", message },
});
export const question = (title: string): Result => ({
  type: "action.requested",
  data: {
    action: "interaction.requested",
    payload: {
      interaction_id: "table",
      kind: "form",
      title,
      description: `${title} It is about the meeting.`,
      fields: [{ id: "note", label: "Note", type: "text", required: true }],
      actions: [{ id: "book", label: "Book it", style: "primary" }],
      fallback_text: title,
    },
  },
});

/** Writes the results of one run. */
export class Stream {
  #sequence = 0;

  constructor(
    private readonly runId: string,
    private readonly host: HostAccess,
    private readonly response: ServerResponse,
  ) {}

  /** Calls a tool, and waits for its answer and for a person that it asks. */
  async call(tool: string, parameters: object): Promise<string> {
    const answer = await fetch(`${this.host.base_url}/tools/${tool}/call`, {
      method: "POST",
      headers: { authorization: `Bearer ${this.host.token}`, "content-type": "application/json" },
      body: JSON.stringify({ parameters }),
    });
    return `${answer.status} ${await answer.text()}`;
  }

  send(...results: Result[]): void {
    for (const { type, data } of results) {
      this.#sequence += 1;
      const result = { run_id: this.runId, type, data, sequence: this.#sequence };
      this.response.write(`data: ${JSON.stringify(result)}\n\n`);
    }
  }

  /** Sends, and waits while the gateway has not taken the results before. */
  async drained(...results: Result[]): Promise<void> {
    this.send(...results);
    if (this.response.writableNeedDrain) await once(this.response, "drain");
  }

  end(...results: Result[]): void {
    this.send(...results);
    this.response.end();
  }
}

/** Requests an act of the chat platform. */
export const platformAction = (action: string, target: object, payload: object = {}): Result => ({
  type: "action.requested",
  data: { action, target, payload },
});

export type Script = (stream: Stream, text: string) => void | Promise<void>;

export class Runner {
  manifests: unknown[] = [MANIFEST];
  /** Types of the messages that `/hooks` has received, and its answer. */
  hooks: string[] = [];
  hookStatus = 200;
  /** Tools of the MCP server at `/mcp`. */
  tools: object[] = [];
  #scripts = new Map<string, Script>();
  #live = new Map<string, Stream>();

  private constructor(
    private readonly server: Server,
    readonly url: string,
  ) {}

  static async start(): Promise<Runner> {
    const server = createServer();
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const runner = new Runner(server, `http://127.0.0.1:${(server.address() as AddressInfo).port}`);
    server.on("request", (request, response) => {
      runner.#serve(request, response).catch((error) => response.destroy(error));
    });
    return runner;
  }

  /** Script of the runs whose event has exactly this text. Other runs repeat their text. */
  on(text: string, script: Script): void {
    this.#scripts.set(text, script);
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const call = `${request.method} ${request.url}`;
    if (call === "GET /runners") {
      response.writeHead(200, { "content-type": "application/json" });
      response.end(JSON.stringify({ runners: this.manifests }));
    } else if (call === "POST /runs") {
      const { context, host } = (await json(request)) as Request;
      const text = context.input.text ?? "";
      response.writeHead(200, { "content-type": "text/event-stream" });
      const repeat: Script = (stream) => stream.end(delta(text), message(text), completed);
      const stream = new Stream(context.run_id, host, response);
      this.#live.set(context.run_id, stream);
      await (this.#scripts.get(text) ?? repeat)(stream, text);
    } else if (call === "POST /hooks") {
      const { type } = (await json(request)) as { type: string };
      this.hooks.push(type);
      response.writeHead(this.hookStatus).end();
    } else if (call === "POST /mcp") {
      const { id, method, params } = (await json(request)) as McpRequest;
      const serverInfo = { name: "tools", version: "1" };
      const greeting = { protocolVersion: params?.protocolVersion, capabilities: { tools: {} }, serverInfo };
      const result = method === "initialize" ? greeting : { tools: this.tools };
      response.writeHead(id === undefined ? 202 : 200, { "content-type": "application/json" });
      response.end(id === undefined ? "" : JSON.stringify({ jsonrpc: "2.0", id, result }));
    } else if (call === "GET /mcp") {
      response.writeHead(405).end();
    } else {
      const cancelled = this.#live.get(call.split("/").at(-2) ?? "");
      cancelled?.end({ type: "run.failed", data: { code: "cancelled", message: "the run was cancelled" } });
      response.writeHead(cancelled === undefined ? 404 : 202).end("{}");
    }
  }

  stop(): void {
    this.server.closeAllConnections();
    this.server.close();
  }
}
