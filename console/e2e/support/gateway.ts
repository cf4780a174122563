/** `runnel dev` as a child process, with a runner of the test. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { completed, MANIFEST, message, platformAction, Runner } from "./runner.ts";

const BUILT = fileURLToPath(new URL("../../../target/debug/runnel", import.meta.url));
export const PROGRAM = resolve(process.env.RUNNEL_BIN ?? BUILT);

/** A value of the API. The tests assert the members that they read. */
// biome-ignore lint/suspicious/noExplicitAny: the types of the API belong to the page, not to its tests
export type Json = any;

interface Greeting {
  url: string;
  api_key: string;
}

/** A tool of the gateway. */
const CLOCK = '[[tools]]\ntool_name = "get_current_time"\n';

export class Gateway {
  url = "";
  key = "";
  /** Text that the process has logged. */
  log = "";
  #directory = mkdtempSync(join(tmpdir(), "runnel-console-"));
  #process: ChildProcess | undefined;

  private constructor(readonly runner: Runner) {}

  /** `filesFor` returns the files of the working directory by name. */
  static async start(
    filesFor: (runner: Runner) => Record<string, string> = () => ({ "runnel-dev.toml": CLOCK }),
  ): Promise<Gateway> {
    const runner = await Runner.start();
    const gateway = new Gateway(runner);
    for (const [name, text] of Object.entries(filesFor(runner))) {
      const path = join(gateway.#directory, name);
      mkdirSync(dirname(path), { recursive: true });
      writeFileSync(path, text);
    }
    await gateway.launch("127.0.0.1:0");
    // `dev` registers the runner after the start.
    await gateway.until("/v1/agents", (agents) =>
      agents.items.some((agent: Json) => agent.name === "scripted"),
    );
    return gateway;
  }

  /** Starts the process again, at the same address and with the same data. */
  async restart(): Promise<void> {
    await this.launch(new URL(this.url).host);
  }

  private async launch(listen: string): Promise<void> {
    const { OPENAI_API_KEY, OPENAI_BASE_URL, RUNNER_SECRET, ...env } = process.env;
    const own = ["--json", "--quiet", "--script", "--no-config", "--data-dir", "data"];
    const child = spawn(PROGRAM, ["dev", ...own, "--listen", listen, "--runner", this.runner.url], {
      cwd: this.#directory,
      env,
      stdio: ["ignore", "pipe", "pipe"],
    });
    this.#process = child;
    child.stderr.on("data", (text) => {
      this.log += text;
    });
    const greeting = await new Promise<Greeting>((greeted, fail) => {
      let printed = "";
      child.on("error", fail);
      child.on("exit", (code) => fail(new Error(`${PROGRAM} ended with ${code}\n${this.log}`)));
      child.stdout.on("data", (text) => {
        printed += text;
        if (printed.includes("\n")) greeted(JSON.parse(printed));
      });
    });
    this.url = greeting.url;
    this.key = greeting.api_key;
  }

  /** Ends the process without a chance to say goodbye. */
  async kill(): Promise<void> {
    const child = this.#process;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, "exit");
    child.kill("SIGKILL");
    await ended;
  }

  async stop(): Promise<void> {
    await this.kill();
    this.runner.stop();
    rmSync(this.#directory, { recursive: true, force: true });
  }

  /** Answer of the API, which must be a success. */
  async call(path: string, body?: object): Promise<Json> {
    const answer = await fetch(this.url + path, {
      method: body === undefined ? "GET" : "POST",
      headers: { authorization: `Bearer ${this.key}`, "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${text}`);
    return text === "" ? undefined : JSON.parse(text);
  }

  /** Repeats a read until its answer is as wanted. */
  async until(path: string, wanted: (answer: Json) => boolean): Promise<Json> {
    for (;;) {
      const answer = await this.call(path);
      if (wanted(answer)) return answer;
      await new Promise((next) => setTimeout(next, 50));
    }
  }

  /** Posts a message and returns the id of its run. */
  async post(text: string, more: object = {}): Promise<string> {
    const event = {
      event_type: "message.received",
      conversation: { conversation_id: "console" },
      input: { text },
      delivery: {
        surface: "web",
        supports_streaming: true,
        interactions: { field_types: ["text"], action_styles: ["default", "primary", "danger"] },
      },
      ...more,
    };
    const accepted = await this.call("/v1/events", event);
    return accepted.run_id;
  }

  /** Has the playground's planner ask for an approval, and returns the question. */
  async plan(): Promise<Json> {
    const id = await this.post("Put a note about Runnel on the board", {
      conversation: { conversation_id: "planner" },
    });
    const found = await this.until(`/v1/interactions?run_id=${id}`, ({ items }) => items.length > 0);
    return found.items[0];
  }

  /** Has an agent request two platform actions, one of them with an approval, and returns its run. */
  async act(): Promise<Json> {
    const { items } = await this.call("/v1/agents");
    if (!items.some((agent: Json) => agent.name === "acting")) {
      await this.call("/v1/agents", {
        name: "acting",
        event_types: ["test.acting"],
        scope: { kind: "bot", bot_id: "acting" },
        runner_id: MANIFEST.id,
        delivery_policy: { platform_actions: { "message.edit": "auto", "message.recall": "ask" } },
      });
    }
    this.runner.on("acts", (stream) =>
      stream.end(
        platformAction("message.edit", { message_id: "m-12" }, { text: "Your table is booked." }),
        platformAction("message.recall", { message_id: "m-13" }),
        completed,
      ),
    );
    return this.finish("acts", { event_type: "test.acting", bot_id: "acting" });
  }

  /** Has a run call a tool that asks, and returns the question. The run ends with the answer of the tool. */
  async ask(): Promise<Json> {
    const { items } = await this.call("/v1/agents");
    if (!items.some((agent: Json) => agent.name === "asking")) {
      await this.call("/v1/agents", {
        name: "asking",
        event_types: ["test.asking"],
        scope: { kind: "bot", bot_id: "asking" },
        runner_id: MANIFEST.id,
        resource_policy: { tools: { "get_*": "ask" } },
      });
    }
    this.runner.on("calls", async (stream) => {
      const answer = await stream.call("get_current_time", { utc_offset: "+01:00" });
      stream.end(message(answer), completed);
    });
    const conversation = { conversation_id: crypto.randomUUID() };
    const id = await this.post("calls", { event_type: "test.asking", bot_id: "asking", conversation });
    const asked = await this.until(`/v1/interactions?run_id=${id}`, ({ items }) => items.length > 0);
    return asked.items[0];
  }

  /** Posts a message and returns its run after the end. */
  async finish(text: string, more: object = {}): Promise<Json> {
    const id = await this.post(text, more);
    return this.until(`/v1/runs/${id}`, (run) => ["completed", "failed", "cancelled"].includes(run.status));
  }
}
