/** Plants payloads in every text that a user, runner, tool or file can fill, through the API. */

import type { Gateway, Json } from "./gateway.ts";
import { all, type Payload, within } from "./payloads.ts";
import { delta, MANIFEST, message, platformAction, type Result, type Runner } from "./runner.ts";

const RUNNER_ID = "plugin:test/hostile/default";

/** Names and settings hold no control characters: the gateway refuses them. */
const line = (payload: Payload, bytes: number) => within(payload, bytes).replaceAll(/\p{Cc}/gu, " ");
/** A string of TOML. */
const quoted = (text: string) => JSON.stringify(text.replaceAll(/\p{Cc}/gu, " "));
const localized = (text: string) => ({ en_US: text, zh_Hans: text });

/** Settings of a gateway whose catalogue and budgets have the payloads, and the tools of its MCP server. */
export function hostileFiles(runner: Runner, payloads: Payload[]): Record<string, string> {
  const text = all(payloads);
  const schema = (payload: Payload) => ({ [within(payload, 200)]: { type: "string", description: text } });
  const names = payloads.map((payload) => within(payload, 40)).concat("hostile");
  const inputSchema = { type: "object", properties: Object.assign({}, ...payloads.map(schema)) };
  runner.tools = names.map((name) => ({ name, description: text, inputSchema }));
  const entries = payloads.map((payload, at) => {
    const name = quoted(within(payload, 200));
    return `
[[budgets]]
name = ${name}
scope = "workspace"
window = "day"
calls = 100000

[[tools]]
tool_name = "tool-${at}"
url = "${runner.url}/tool"
description = ${quoted(within(payload, 200))}
parameters = { type = "object", properties = { text = { type = "string", description = ${quoted(text)} } } }

[[skills]]
skill_name = "skill-${at}"
directory = "skills/skill-${at}"
display_name = ${name}
description = ${quoted(within(payload, 200))}

[[knowledge_bases]]
kb_id = "base-${at}"
kb_name = ${name}
`;
  });
  const server = `[[mcp_servers]]\nname = "hostile"\nurl = "${runner.url}/mcp"\n`;
  const skill = (_: Payload, at: number) => [
    `skills/skill-${at}/SKILL.md`,
    `---\nname: skill-${at}\ndescription: A skill\n---\n\nText.\n`,
  ];
  return {
    "runnel-dev.toml": entries.join("") + server,
    ...Object.fromEntries(payloads.map(skill)),
  };
}

/** Manifests of a runner with the payloads, and of runners that are refused because of them. */
function manifests(payloads: Payload[]): object[] {
  const text = all(payloads);
  const kinds = ["string", "text", "integer", "boolean", "select", "array", "json", "hostile"];
  const hostile = {
    ...MANIFEST,
    id: RUNNER_ID,
    label: localized(text),
    description: localized(text),
    permissions: { ...MANIFEST.permissions, state: ["conversation"], tools: ["call"] },
    config_schema: payloads.map((payload, at) => ({
      name: within(payload, 200),
      type: kinds[at % kinds.length],
      label: localized(within(payload, 200)),
      description: localized(within(payload, 500)),
      default: null,
      options: [{ name: within(payload, 100), label: localized(within(payload, 200)) }],
    })),
    metadata: { text },
  };
  const refused = payloads.map((payload) => ({ ...MANIFEST, id: `plugin:${within(payload, 200)}` }));
  const newer = payloads.map((payload, at) => ({
    ...MANIFEST,
    id: `plugin:test/newer-${at}/default`,
    protocol_version: `9 ${within(payload, 60)}`,
    [within(payload, 60)]: true,
  }));
  return [MANIFEST, hostile, ...refused, ...newer];
}

/** The results of a run in which every text has payloads. */
function results(payload: Payload, payloads: Payload[]): Result[] {
  const text = all(payloads);
  const long = `${within(payload, 500)}\n${text}`;
  const call = { tool_call_id: within(payload, 200), tool_name: within(payload, 100) };
  const action = (id: string) => ({
    id,
    title: within(payload, 200),
    description: long,
    depends_on: [],
    status: "waiting",
    reason: long,
    kind_label: within(payload, 60),
    result_summary: long,
  });
  const options = payloads.map((one) => ({ value: within(one, 100), label: within(one, 100) }));
  return [
    delta(long),
    { type: "tool.call.started", data: { ...call, parameters: { [within(payload, 100)]: long } } },
    { type: "tool.call.completed", data: { ...call, result: { [within(payload, 100)]: long } } },
    { type: "tool.call.completed", data: { ...call, error: long } },
    { type: "processor.log", data: { text: long, level: within(payload, 60) } },
    { type: "state.updated", data: { scope: "conversation", key: "text", value: long } },
    { type: "action.requested", data: { action: within(payload, 100), payload: { text: long } } },
    platformAction("message.edit", { message_id: within(payload, 200) }, { text: long }),
    // A rejection: it is no result. A third one would end the run.
    { type: "message.delta", data: { [within(payload, 100)]: long } },
    { type: "x.hostile", data: { [within(payload, 100)]: long } },
    {
      type: "x.graph.projection",
      data: {
        form: "whole",
        projection: {
          graph_id: within(payload, 60),
          title: within(payload, 200),
          note: long,
          status: "waiting",
          progress: { done: 0, total: 1, phase: long },
          actions: [action(within(payload, 60))],
          details_ref: payload.text,
          generation: 1,
          seq: 1,
        },
      },
    },
    {
      type: "action.requested",
      data: {
        action: "interaction.requested",
        payload: {
          interaction_id: within(payload, 100),
          kind: "form",
          title: within(payload, 500),
          description: text.slice(0, 9000),
          fallback_text: text.slice(0, 9000),
          fields: [
            { id: "text", type: "text", label: within(payload, 200), placeholder: within(payload, 200) },
            { id: "long", type: "textarea", label: within(payload, 200), default: within(payload, 200) },
            { id: "one", type: "select", label: within(payload, 200), options },
            { id: "some", type: "multiselect", label: within(payload, 200), options },
          ],
          actions: [{ id: "go", label: within(payload, 100), style: "primary" }],
        },
      },
    },
    message(long),
    { type: "run.failed", data: { code: within(payload, 60), message: long } },
  ];
}

export interface Planted {
  runs: string[];
  agents: string[];
  conversations: Json[];
  /** Addresses of answer pages. */
  pages: string[];
  schedules: string[];
  sources: string[];
  webhooks: string[];
  approvals: string[];
}

/** An agent, a run with its conversation, a key, a document and a file for each payload. */
export async function plant(gateway: Gateway, payloads: Payload[]): Promise<Planted> {
  gateway.runner.manifests = manifests(payloads);
  const { items: endpoints } = await gateway.call("/v1/runner-endpoints");
  const own = endpoints.find((endpoint: Json) => endpoint.base_url.startsWith(gateway.runner.url));
  await gateway.call(`/v1/runner-endpoints/${own.id}/refresh`, {});
  const planted: Planted = {
    runs: [],
    agents: [],
    conversations: [],
    pages: [],
    schedules: [],
    sources: [],
    webhooks: [],
    approvals: [],
  };
  for (const [at, payload] of payloads.entries()) {
    const { run, agent, conversation } = await plantRun(gateway, payloads, at);
    planted.runs.push(run.run_id);
    planted.agents.push(agent.id);
    planted.conversations.push(conversation);
    await gateway.call("/v1/api-keys", { name: line(payload, 128), role: "viewer" });
    const url = `${gateway.runner.url}/hooks`;
    const hook = { name: line(payload, 128), url, events: ["run.failed"], agents: [agent.id] };
    planted.webhooks.push((await gateway.call("/v1/webhooks", hook)).id);
    const event = { input: { text: all(payloads) }, conversation: { conversation_id: agent.id } };
    const schedule = { name: line(payload, 128), agent: agent.name, every: "6h", event };
    planted.schedules.push((await gateway.call("/v1/schedules", schedule)).id);
    await upload(gateway, payload, payloads);
    const { items } = await gateway.call(`/v1/interactions?run_id=${run.run_id}`);
    const link = await gateway.call(`/v1/interactions/${items[0].id}/link`, {});
    planted.pages.push(link.page_url);
  }
  // A filter has at most 4 KiB; the name of a source is a slug.
  const texts = payloads.map((payload) => JSON.stringify(within(payload, 100)));
  const filter = `{event_type: "hostile.source", input: {text: (${texts.join(" + ")})}}`;
  const source = { name: "hostile", scheme: "github", filter };
  planted.sources.push((await gateway.call("/v1/sources", source)).id);
  // A pointer has no control characters; rules have at most 32 KiB.
  const pointer = line(payloads[0] as Payload, 100)
    .replaceAll("~", "~0")
    .replaceAll("/", "~1");
  const rules = { [`/${pointer}`]: { equals: { text: all(payloads) } } };
  const approval = await gateway.call("/v1/approvals", { agent: "scripted", tool: "fs_*", arguments: rules });
  planted.approvals.push(approval.id);
  return planted;
}

/** A document whose id, name and text have the payload. */
async function upload(gateway: Gateway, payload: Payload, payloads: Payload[]): Promise<void> {
  const [id, name] = [line(payload, 100), line(payload, 200)].map(encodeURIComponent);
  const answer = await fetch(`${gateway.url}/v1/knowledge-bases/runnel/documents/${id}?name=${name}`, {
    method: "PUT",
    headers: { authorization: `Bearer ${gateway.key}`, "content-type": "text/plain" },
    body: all(payloads),
  });
  if (!answer.ok) throw new Error(`${id}: ${await answer.text()}`);
}

async function plantRun(gateway: Gateway, payloads: Payload[], at: number) {
  const payload = payloads[at] as Payload;
  const id = within(payload, 200);
  const text = all(payloads);
  const agent = await gateway.call("/v1/agents", {
    name: line(payload, 128),
    description: line(payload, 900),
    event_types: [`hostile.${at}`],
    scope: { kind: "bot", bot_id: id },
    priority: 1,
    runner_id: RUNNER_ID,
    // The first field of the schema is a string.
    config: { [within(payloads[0] as Payload, 200)]: text },
    delivery_policy: { interactions: true, platform_actions: { "message.edit": "auto" } },
    state_policy: { enabled: true, scopes: ["conversation"] },
  });
  const input = `${within(payload, 500)}\n${text}`;
  gateway.runner.on(input, (stream) => stream.end(...results(payload, payloads)));
  const conversation = { conversation_id: id, thread_id: id, launcher_type: id, launcher_id: id };
  const run = await gateway.finish(input, {
    event_type: `hostile.${at}`,
    event_id: within(payload, 200).replaceAll(/[^ -~]/g, "_"),
    source: id,
    source_event_type: id,
    bot_id: id,
    conversation,
    actor: { actor_type: id, actor_id: id, actor_name: id, metadata: { [id]: text } },
    subject: { subject_type: id, subject_id: id, data: { [id]: text } },
    data: { [id]: text },
    input: {
      text: input,
      contents: [{ type: "text", text: input }],
      attachments: [{ type: "file", name: id, mime_type: id, source: id, path: id }],
    },
    delivery: {
      surface: id,
      supports_streaming: true,
      interactions: {
        field_types: ["text", "textarea", "select", "multiselect"],
        action_styles: ["primary"],
      },
    },
  });
  return { run, agent, conversation: { ...conversation, bot_id: id } };
}
