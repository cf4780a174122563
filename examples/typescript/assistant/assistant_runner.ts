// An assistant with a model, tools and knowledge, on the package `runnel`.
import { Endpoint, type RunContext } from "runnel/runner";
import { serve } from "runnel/node";
import type { Message } from "runnel";

const endpoint = new Endpoint(); // the signing secret is in RUNNER_SECRET

// The history, oldest first, and the question with passages of the knowledge bases.
async function messagesOf(ctx: RunContext): Promise<Message[]> {
  const passages = (await ctx.knowledge.search(ctx.text)).join("\n\n");
  // Data from other authors: never a message of role `system`.
  const question = passages ? `<passages>\n${passages}\n</passages>\n\n${ctx.text}` : ctx.text;
  return [...(await ctx.history.messages()), { role: "user", content: question }];
}

const runner = {
  id: "plugin:runnel/assistant-typescript/default",
  label: { en_US: "Assistant (TypeScript)", zh_Hans: "助手（TypeScript）" },
  permissions: {
    models: ["stream"],
    tools: ["call"],
    knowledge_bases: ["retrieve"],
    history: ["page"],
    state: ["conversation"],
  },
  capabilities: { resumable: true }, // works on while a gateway restarts
} as const;
endpoint.runner(runner, async function* (ctx) {
  // Text, and calls of tools. A new attempt after a loss of this process repeats no call before its checkpoint.
  yield* ctx.agentLoop(await messagesOf(ctx), { checkpoints: true });
});

await serve(endpoint, { host: process.env.HOST, port: process.env.PORT });
