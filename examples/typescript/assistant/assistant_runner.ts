// An assistant with a model, tools and knowledge, on the package `runnel`.
import { Endpoint, results, type RunContext, RunFailed } from "runnel/runner";
import { serve } from "runnel/node";
import type { Message } from "runnel";

const MOST_QUESTIONS = 8; // to the model in one run: a model may call tools without end
const endpoint = new Endpoint(); // the signing secret is in RUNNER_SECRET

// The history, oldest first, and the question with what the knowledge bases have about it.
async function messagesOf(ctx: RunContext): Promise<Message[]> {
  const known = (await ctx.knowledge.search(ctx.text)).join("\n\n");
  // It is data, which others have written: never a message of role `system`.
  const question = known ? `<passages>\n${known}\n</passages>\n\n${ctx.text}` : ctx.text;
  return [...(await ctx.history.messages()), { role: "user", content: question }];
}

const runner = {
  id: "plugin:runnel/assistant-typescript/default",
  label: { en_US: "Assistant (TypeScript)", zh_Hans: "助手（TypeScript）" },
  permissions: { models: ["stream"], tools: ["call"], knowledge_bases: ["retrieve"], history: ["page"] },
} as const;
endpoint.runner(runner, async function* (ctx) {
  const messages = await messagesOf(ctx);
  for (let question = 0; question < MOST_QUESTIONS; question++) {
    const answer = ctx.models.stream(messages, { tools: ctx.tools.offered() });
    yield* answer;
    if (answer.toolCalls.length === 0) {
      yield results.message(answer.message);
      return;
    }
    yield* ctx.tools.callAll(answer.message, messages); // appends the message and the results of the tools
  }
  throw new RunFailed("assistant.no_answer", `the model has called tools ${MOST_QUESTIONS} times without an answer`);
});

await serve(endpoint, { host: process.env.HOST, port: process.env.PORT });
