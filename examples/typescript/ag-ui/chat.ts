// A chat in the terminal with an agent of the gateway, over AG-UI. Each line is a message; questions are answered by text.
import { HttpAgent, type ResumeEntry } from "@ag-ui/client";
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline/promises";

const url = process.env.AGENT_URL ?? "http://127.0.0.1:8700/faces/ag-ui/hello";
const key = process.env.RUNNEL_API_KEY ?? "";
const agent = new HttpAgent({ url, headers: { authorization: `Bearer ${key}` } });

async function run(resume?: ResumeEntry[]): Promise<void> {
  await agent.runAgent(resume ? { resume } : {}, {
    onTextMessageContentEvent: ({ event }) => void process.stdout.write(event.delta),
    onToolCallStartEvent: ({ event }) => void process.stdout.write(`[${event.toolCallName}]\n`),
    onRunErrorEvent: ({ event }) => void process.stderr.write(`${event.code}: ${event.message}\n`),
  });
  process.stdout.write("\n");
}

const lines = createInterface({ input: process.stdin });
process.stdout.write("> ");
for await (const line of lines) {
  const [question] = agent.pendingInterrupts;
  if (question) {
    await run([{ interruptId: question.id, status: "resolved", payload: line }]);
  } else {
    agent.addMessage({ id: randomUUID(), role: "user", content: line });
    await run();
  }
  // The run may wait for an answer, which the next line gives.
  const [open] = agent.pendingInterrupts;
  process.stdout.write(open ? `${open.message}\n> ` : "> ");
}
