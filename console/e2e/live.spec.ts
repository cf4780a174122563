/** Changes under an open page: streams, cancels, questions, and a gateway that dies. */

import type { Gateway } from "./support/gateway.ts";
import { completed, delta, message, question, type Stream } from "./support/runner.ts";
import { expect, test } from "./support/test.ts";

/** A run that has begun to answer, and its stream. */
async function begin(gateway: Gateway, text: string, more: object = {}) {
  const streaming = new Promise<Stream>((begun) => {
    gateway.runner.on(text, (stream) => {
      stream.send(delta("The first "));
      begun(stream);
    });
  });
  const id = await gateway.post(text, { conversation: { conversation_id: text }, ...more });
  return { id, stream: await streaming };
}

test("answer appears as it streams", async ({ signedIn, gateway }) => {
  const { id, stream } = await begin(gateway, "streams");
  await signedIn.goto(`${gateway.url}/console/runs/${id}`);
  const answer = signedIn.getByRole("region", { name: "Answer" });
  await expect(answer).toContainText("The first");
  stream.send(delta("and the second "));
  await expect(answer).toContainText("The first and the second");
  await expect(signedIn.getByRole("heading", { level: 1 })).toContainText("running");
  stream.end(delta("part."), message("The first and the second part."), completed);
  await expect(answer).toContainText("The first and the second part.");
  await expect(signedIn.getByRole("heading", { level: 1 })).toContainText("completed");
});

test("long answer shows its end as it streams, then its beginning, and all of it on demand", async ({
  signedIn,
  gateway,
}) => {
  const long = `begin ${"word ".repeat(12_000)}end`;
  const { id, stream } = await begin(gateway, "streams much");
  await signedIn.goto(`${gateway.url}/console/runs/${id}`);
  const answer = signedIn.getByRole("region", { name: "Answer" });
  stream.send(delta(long));
  await expect(answer).toContainText("word end");
  await expect(answer).not.toContainText("begin");
  stream.end(message(long), completed);
  await expect(answer).toContainText("begin word");
  await expect(answer).not.toContainText("word end");
  await answer.getByRole("button", { name: "Show all (60009 characters)" }).click();
  await expect(answer).toContainText("word end");
});

test("list shows new runs and changes within two seconds", async ({ signedIn, gateway }) => {
  await signedIn.goto(`${gateway.url}/console/runs?conversation_id=appears`);
  await expect(signedIn.getByText("No run matches")).toBeVisible();
  const { stream } = await begin(gateway, "appears");
  const row = signedIn.getByRole("row").filter({ hasText: "appears" });
  await expect(row).toContainText("running", { timeout: 2000 });
  stream.end(completed);
  await expect(row).toContainText("completed", { timeout: 2000 });
});

test("cancel lists its effects and ends the run", async ({ signedIn, gateway }) => {
  const { id } = await begin(gateway, "to be cancelled");
  await signedIn.goto(`${gateway.url}/console/runs/${id}`);
  await signedIn.getByRole("button", { name: "Cancel…" }).click();
  const dialog = signedIn.getByRole("dialog");
  await expect(dialog).toContainText("run token");
  await dialog.getByRole("button", { name: "Keep it running" }).click();
  await expect(dialog).toHaveCount(0);
  expect((await gateway.call(`/v1/runs/${id}`)).status).toBe("running");
  await signedIn.getByRole("button", { name: "Cancel…" }).click();
  await dialog.getByRole("button", { name: "Cancel the run" }).click();
  await expect(signedIn.getByRole("heading", { level: 1 })).toContainText("cancelled");
  await expect(signedIn.locator(".facts")).toContainText("Cancelled by");
  await signedIn.getByRole("button", { name: "Run again" }).click();
  await expect(signedIn).not.toHaveURL(new RegExp(id));
  await expect(signedIn.getByText("Repeats")).toBeVisible();
});

test("question answered elsewhere disappears", async ({ signedIn, gateway }) => {
  gateway.runner.on("asks twice", (stream) =>
    stream.end(question("Which floor?"), message("a question"), completed),
  );
  await gateway.finish("asks twice", { conversation: { conversation_id: "floor" } });
  await signedIn.goto(`${gateway.url}/console/inbox`);
  const form = signedIn.locator("form").filter({ hasText: "Which floor?" });
  await expect(form).toBeVisible();
  // The number of open questions is on every page.
  await expect(signedIn.getByRole("link", { name: /Inbox/ })).toContainText(/\d/);
  const { items } = await gateway.call("/v1/interactions?conversation_id=floor");
  const answer = { interaction_id: "table", action_id: "book", values: { note: "2" } };
  await gateway.call(`/v1/interactions/${items[0].id}/submit`, answer);
  await expect(form).toHaveCount(0);
  await expect(signedIn.getByRole("alert")).toHaveCount(0);
  // The closed question names its answer and the key that gave it.
  const closed = signedIn.getByRole("row").filter({ hasText: "Which floor?" });
  await expect(closed).toContainText("by key");
  await expect(closed.getByRole("strong")).toHaveText("2");
});

test("plan is approved on the page of its run, and continues", async ({ signedIn, gateway }) => {
  const { run_id: id, request } = await gateway.plan();
  await signedIn.goto(`${gateway.url}/console/runs/${id}`);
  await expect(signedIn.getByRole("heading", { name: request.title })).toBeVisible();
  await signedIn.locator("form.question").getByRole("button").first().click();
  await expect(signedIn.locator("form.question")).toHaveCount(0);
  // The answer is an event of its own, and its run posts the note.
  const { items } = await gateway.until("/v1/runs?conversation_id=planner&statuses=completed", ({ items }) =>
    items.some((run: { run_id: string }) => run.run_id > id),
  );
  await signedIn.goto(`${gateway.url}/console/runs/${items[0].run_id}?tab=calls`);
  const calls = signedIn.getByRole("tabpanel");
  await expect(calls).toContainText("post_note");
  // Rule of the policy, and the approval by an answered question.
  const call = calls.getByRole("row").filter({ hasText: "call_tool post_note" });
  await expect(call).toContainText("resource_policy.tools of the agent's policy");
  await expect(call.getByRole("link", { name: request.title })).toBeVisible();
  await expect(call).toContainText("by key");
  await calls.getByRole("searchbox").fill(request.title);
  await expect(calls.getByRole("row")).toHaveCount(2);
});

test("event is tried and sent by a form", async ({ signedIn, gateway }) => {
  await signedIn.goto(`${gateway.url}/console/try`);
  const main = signedIn.getByRole("main");
  await signedIn.getByLabel("Message", { exact: true }).fill("tried by hand");
  await signedIn.getByLabel("Conversation").fill("tried");
  await signedIn.getByRole("button", { name: /Dry run|would happen/i }).click();
  await expect(main).toContainText("scripted");
  expect((await gateway.call("/v1/runs?conversation_id=tried")).items).toEqual([]);
  await signedIn.getByRole("button", { name: "Send" }).click();
  await expect(signedIn.locator(".answer")).toContainText("tried by hand");
  expect((await gateway.call("/v1/runs?conversation_id=tried")).items).toHaveLength(1);
});

test("message in a conversation is answered there", async ({ signedIn, gateway }) => {
  await gateway.finish("good morning", { conversation: { conversation_id: "chat" } });
  await signedIn.goto(`${gateway.url}/console/conversations/chat`);
  await expect(signedIn.getByRole("article").filter({ hasText: "good morning" })).toHaveCount(2);
  await signedIn.getByRole("textbox").fill("good night");
  await signedIn.keyboard.press("Enter");
  await expect(signedIn.getByRole("article").filter({ hasText: "good night" })).toHaveCount(2);
  await expect(signedIn.getByRole("textbox")).toHaveValue("");
  expect((await gateway.call("/v1/runs?conversation_id=chat")).items).toHaveLength(2);
});

test("page continues after the gateway was killed", async ({ signedIn, gateway, watch }) => {
  watch.expected.push(/Failed to load resource/, /ERR_/);
  const { id } = await begin(gateway, "outlives");
  await signedIn.goto(`${gateway.url}/console/runs/${id}`);
  await expect(signedIn.getByRole("region", { name: "Answer" })).toContainText("The first");
  await gateway.kill();
  await expect(signedIn.getByText(/reconnecting|does not answer/).first()).toBeVisible();
  await gateway.restart();
  // The run of the killed process has failed, and the page shows it without a reload.
  await expect(signedIn.getByRole("heading", { level: 1 })).toContainText("failed", { timeout: 30_000 });
  await expect(signedIn.getByRole("region", { name: "Answer" })).toContainText("The first");
  await signedIn.getByRole("link", { name: "Runs", exact: true }).click();
  await gateway.finish("after the restart", { conversation: { conversation_id: "after" } });
  await expect(signedIn.getByRole("link", { name: "after the restart" })).toBeVisible();
  await expect(signedIn.getByRole("alert")).toHaveCount(0);
});

test("20,000 events scroll without freezing", async ({ signedIn, gateway }) => {
  test.setTimeout(60_000);
  const all = 20_000;
  gateway.runner.on("talks", (stream) => {
    for (let n = 1; n < all; n += 1) stream.send(delta(`${n} `));
    stream.end(completed);
  });
  const run = await gateway.finish("talks", { conversation: { conversation_id: "talks" } });
  const requests: string[] = [];
  signedIn.on("request", (request) => requests.push(request.url()));
  await signedIn.goto(`${gateway.url}/console/runs/${run.run_id}?tab=events`);
  const list = signedIn.getByRole("region", { name: /Events/ });
  await expect(list).toContainText("run.completed");
  // The end is loaded first, by pages.
  const pages = requests.filter((url) => url.includes(`/v1/runs/${run.run_id}/events`));
  expect(pages.length).toBeLessThan(5);
  await signedIn.evaluate(async () => {
    const element = document.querySelector<HTMLElement>(".virtual");
    if (element === null) throw new Error("no list");
    for (let step = 0; step < 60; step += 1) {
      element.scrollTop = (element.scrollHeight * ((step * 37) % 60)) / 60;
      await new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)));
    }
  });
  await signedIn.getByRole("button", { name: "First" }).click();
  await expect(list.getByRole("button").filter({ hasText: /^1message/ })).toBeVisible();
  expect(await list.locator(".event").count()).toBeLessThan(200);
});
