// The real gateway. RUNNEL_BIN names its binary.
import assert from "node:assert/strict";
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, writeFile } from "node:fs/promises";
import { createServer, connect, type AddressInfo, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

export const SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
export const BINARY = process.env.RUNNEL_BIN;
const run = promisify(execFile);

if (!BINARY && (process.env.RUNNEL_TEST_REQUIRE ?? "").includes("clients")) {
  throw new Error("RUNNEL_BIN names no gateway: nothing was tested against a real one");
}
/** Options of tests that need the gateway. */
export const NEEDS_GATEWAY = { skip: BINARY ? false : "RUNNEL_BIN names no gateway" };

/** A gateway: its address, a key of role `client`, and how to stop it. */
export interface Gateway {
  url: string;
  key: string;
  stop(): Promise<void>;
}

const CONFIG = (port: number, directory: string, runner: string) => `
[server]
listen = "127.0.0.1:${port}"
[auth]
master_key = "env:TEST_MASTER_KEY"
[database]
url = "sqlite://${directory}/runnel.db"
[artifacts]
url = "file://${directory}/artifacts"
[egress]
allow = ["127.0.0.0/8"]

[[runner_endpoints]]
name = "package"
base_url = "${runner}"
secret = "env:TEST_RUNNER_SECRET"

[[model_providers]]
name = "script"
kind = "scripted"
script = "${directory}/script.toml"
[[models]]
model_id = "small"
provider = "script"
[[tools]]
tool_name = "get_current_time"
[[knowledge_bases]]
kb_id = "notes"
`;
const AGENT = (name: string, runnerId = `plugin:acme/test/${name}`) => `
[[agents]]
name = "${name}"
event_types = ["*"]
scope = { kind = "global" }
filters = { source = ["${name}"] }
runner_id = "${runnerId}"
resource_policy = { models = "*", tools = "*", knowledge_bases = "*", history = ["page"], artifacts = ["metadata", "read", "create"] }
state_policy = { enabled = true, scopes = ["conversation"] }
delivery_policy = { interactions = true }
`;
const SCRIPT = `
[[turns]]
after_tool = true
answer = "Clock: {tool}"
[[turns]]
when = "what time"
offered = "get_current_time"
tool_calls = [{ name = "get_current_time" }]
[[turns]]
answer = "Echo: {input}"
`;

/** `runnel serve` with an agent for each runner of the endpoint at `runner`; a runner `a` has the id `plugin:acme/test/a`. */
export async function startGateway(runner: string, names: string[], runnerId?: string): Promise<Gateway> {
  const directory = await mkdtemp(join(tmpdir(), "runnel-client-"));
  const agents = names.map((name) => AGENT(name, runnerId)).join("");
  await writeFile(join(directory, "runnel.toml"), CONFIG(await freePort(), directory, runner) + agents);
  await writeFile(join(directory, "script.toml"), SCRIPT);
  const secrets = { TEST_MASTER_KEY: randomBytes(32).toString("hex"), TEST_RUNNER_SECRET: SECRET };
  const options = { cwd: directory, env: { ...process.env, ...secrets } };
  const token = ["token", "create", "--config", "runnel.toml", "--role", "client", "--name", "t", "--json"];
  const { key } = JSON.parse((await run(BINARY ?? "", token, options)).stdout) as { key: string };
  const child = spawn(BINARY ?? "", ["serve", "--config", "runnel.toml"], options);
  const url = (await firstLine(child)).split(" ")[1] ?? "";
  return { url, key, stop: () => stopped(child) };
}

/** `runnel dev` with its scripted model. */
export async function startPlayground(): Promise<Gateway> {
  const directory = await mkdtemp(join(tmpdir(), "runnel-client-"));
  const options = ["--data-dir", join(directory, "data"), "--listen", "127.0.0.1:0", "--script", "--json"];
  const child = spawn(BINARY ?? "", ["dev", ...options], { cwd: directory });
  const { url, api_key: key } = JSON.parse(await firstLine(child)) as { url: string; api_key: string };
  return { url, key, stop: () => stopped(child) };
}

/** The report of `runnel conform`, without warnings and failures. */
export async function conform(url: string, ...options: string[]): Promise<{ checks: { id: string; outcome: string }[] }> {
  const line = ["conform", url, "--runner", "plugin:acme/test/echo", "--secret", "env:TEST_RUNNER_SECRET", "--json"];
  const env = { ...process.env, TEST_RUNNER_SECRET: SECRET };
  const { stdout } = await run(BINARY ?? "", [...line, ...options], { env, timeout: 60_000 }).catch(
    (error: { stdout: string; stderr: string }) => assert.fail(error.stdout + error.stderr),
  );
  return JSON.parse(stdout);
}

/** A proxy that breaks each event stream after `maxBytes` bytes. */
export async function startCutter(target: string, maxBytes: number): Promise<{ url: string; cuts: () => number; close(): void }> {
  const { hostname, port } = new URL(target);
  let cuts = 0;
  const sockets = new Set<Socket>();
  const server = createServer((near) => {
    const far = connect(Number(port), hostname);
    let [passed, isStream] = [0, false];
    far.on("data", (data) => {
      isStream ||= data.includes("text/event-stream");
      if (isStream && passed + data.length > maxBytes) {
        cuts += 1;
        near.write(data.subarray(0, maxBytes - passed), () => near.destroy());
        far.destroy();
        return;
      }
      passed += data.length;
      near.write(data);
    });
    near.on("data", (data) => far.write(data));
    for (const socket of [near, far]) {
      sockets.add(socket);
      socket.on("error", () => {});
    }
    near.on("close", () => far.destroy());
    far.on("close", () => near.destroy());
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const close = () => {
    server.close();
    for (const socket of sockets) socket.destroy();
  };
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, cuts: () => cuts, close };
}

/** A program of Node that prints `listening URL` first. */
export async function startProgram(path: string): Promise<{ url: string; stop(): Promise<void> }> {
  const child = spawn("node", [path], { env: { ...process.env, PORT: "0", RUNNER_SECRET: SECRET } });
  const url = (await firstLine(child)).split(" ")[1] ?? "";
  return { url, stop: () => stopped(child) };
}

async function firstLine(child: ChildProcess): Promise<string> {
  assert(child.stdout && child.stderr);
  let log = "";
  child.stderr.on("data", (data) => {
    log = (log + data).slice(-20_000);
  });
  for await (const line of createInterface(child.stdout)) return line;
  return assert.fail(log);
}

async function stopped(child: ChildProcess): Promise<void> {
  const exit = once(child, "exit");
  child.kill("SIGTERM");
  await exit;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}
