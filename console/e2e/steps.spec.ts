/** Lists and steps: what is hidden, what is copied, and gateways that are slow or older. */

import { completed, failed, message, question, type Result } from "./support/runner.ts";
import { expect, test, violations } from "./support/test.ts";

test("code of a question is a block of code", async ({ signedIn, gateway }) => {
  const asked = question("May I run this?");
  const data = structuredClone(asked.data) as { payload: { description: string } };
  data.payload.description = "This command:\n```sh\nrm -rf <b>/tmp/x</b>\n```\nwith `sudo`.";
  gateway.runner.on("asks with code", (stream) =>
    stream.end({ ...asked, data }, message("a question"), completed),
  );
  await gateway.finish("asks with code", { conversation: { conversation_id: "code" } });
  await signedIn.goto(`${gateway.url}/console/inbox`);
  const form = signedIn.locator("form").filter({ hasText: "May I run this?" });
  await expect(form.locator("figure.code pre")).toHaveText("rm -rf <b>/tmp/x</b>");
  await expect(form.locator("p code")).toHaveText("sudo");
  await expect(form).not.toContainText("```");
});

test("bulk act without a matching run names its reason", async ({ signedIn, gateway }) => {
  await signedIn.goto(`${gateway.url}/console/runs?statuses=failed&conversation_id=no-such`);
  const bulk = signedIn.getByRole("button", { name: "Run all again that match" });
  await expect(bulk).toBeDisabled();
  await expect(bulk).toHaveAccessibleDescription("No run matches the filter.");
});

test("failures of today keep the other filters", async ({ signedIn, gateway }) => {
  await signedIn.goto(`${gateway.url}/console/runs?conversation_id=kept&statuses=running`);
  await signedIn.getByRole("button", { name: "Failed today" }).click();
  await expect(signedIn).toHaveURL(/conversation_id=kept/);
  await expect(signedIn).toHaveURL(/created_after=\d+/);
  await signedIn.getByRole("button", { name: "All", exact: false }).first().click();
  await expect(signedIn).not.toHaveURL(/created_after/);
  await expect(signedIn).toHaveURL(/conversation_id=kept/);
});

test("hidden kinds stay hidden, and failures are shown", async ({ signedIn, gateway }) => {
  const tool = (type: string, fields: object): Result => ({
    type,
    data: { tool_call_id: "t", tool_name: "clock", ...fields },
  });
  gateway.runner.on("uses tools", (stream) =>
    stream.end(
      tool("tool.call.started", { parameters: {} }),
      tool("tool.call.completed", { error: "out of order" }),
      failed("no clock"),
    ),
  );
  const run = await gateway.finish("uses tools", { conversation: { conversation_id: "tools" } });
  const path = `${gateway.url}/console/runs/${run.run_id}?tab=events`;
  await signedIn.goto(path);
  const events = signedIn.getByRole("region", { name: /Events/ });
  await expect(events).toContainText("tool.call.started");
  const panel = signedIn.getByRole("tabpanel");
  await panel.getByText("Kinds of steps").click();
  await panel.getByLabel("tools").uncheck();
  await expect(events).not.toContainText("tool.call.started");
  await expect(events).toContainText("out of order");
  await expect(events).toContainText("no clock");
  await signedIn.goto(path);
  await expect(panel).toContainText("Hidden: tools");
  await expect(events).not.toContainText("tool.call.started");
});

test("acts are copied as a command and as programs", async ({ signedIn, gateway, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const copied = () => signedIn.evaluate(() => navigator.clipboard.readText());
  gateway.runner.on("to copy", (stream) => stream.end(failed("no")));
  const run = await gateway.finish("to copy", { conversation: { conversation_id: "copy" } });
  await signedIn.goto(`${gateway.url}/console/runs/${run.run_id}`);
  const menu = signedIn.locator("header details.menu");
  await menu.getByText("Copy as…").click();
  const again = menu.getByRole("group", { name: "Run again" });
  await again.getByRole("button", { name: "curl" }).click();
  await expect.poll(copied).toContain(`/v1/runs/${run.run_id}/retry' \\\n  -X POST`);
  expect(await copied()).toContain("$RUNNEL_API_KEY");
  await again.getByRole("button", { name: "Python" }).click();
  await expect.poll(copied).toContain(`print(client.retry("${run.run_id}"))`);
  await menu.getByRole("group", { name: "Read" }).getByRole("button", { name: "TypeScript" }).click();
  await expect.poll(copied).toContain(`console.log(await client.run("${run.run_id}"));`);
  expect(await copied()).not.toContain(gateway.key);
  expect(await violations(signedIn)).toEqual([]);
  await signedIn.keyboard.press("Escape");
  await expect(again).toBeHidden();
});

test("an answer is copied with its values", async ({ signedIn, gateway, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  gateway.runner.on("asks to copy", (stream) =>
    stream.end(question("Which lamp?"), message("a question"), completed),
  );
  await gateway.finish("asks to copy", { conversation: { conversation_id: "lamp" } });
  await signedIn.goto(`${gateway.url}/console/inbox`);
  const form = signedIn.locator("form").filter({ hasText: "Which lamp?" });
  await form.getByLabel(/Note/).fill("the red one");
  await form.getByText("Copy as…").click();
  await form.getByRole("group", { name: "Book it" }).getByRole("button", { name: "Python" }).click();
  await expect
    .poll(() => signedIn.evaluate(() => navigator.clipboard.readText()))
    .toContain('client.answer(question, "book", {\n        "note": "the red one",\n    })');
});

test("an operation that an older gateway lacks is named", async ({ signedIn, gateway, watch }) => {
  watch.expected.push(/status of 404/);
  const answer = await fetch(`${gateway.url}/v1/no-such`, {
    headers: { authorization: `Bearer ${gateway.key}` },
  });
  const body = await answer.text();
  await signedIn.route("**/v1/skills", (route) =>
    route.fulfill({ status: answer.status, contentType: "application/json", body }),
  );
  await signedIn.goto(`${gateway.url}/console/catalogue?tab=skills`);
  await expect(signedIn.getByRole("tabpanel")).toContainText("it is older than this page");
  await expect(signedIn.getByRole("alert")).toHaveCount(0);
});

test("a list shows how old it is while the gateway is slow", async ({ signedIn, gateway }) => {
  await gateway.finish("before", { conversation: { conversation_id: "slow" } });
  await signedIn.goto(`${gateway.url}/console/runs?conversation_id=slow`);
  await expect(signedIn.getByRole("link", { name: "before" })).toBeVisible();
  // Requests from now on get no answer.
  await signedIn.route("**/v1/runs?*", () => {});
  await gateway.finish("after", { conversation: { conversation_id: "slow" } });
  await expect(signedIn.getByText("The list shows the state of")).toBeVisible({ timeout: 25_000 });
  await expect(signedIn.getByRole("link", { name: "before" })).toBeVisible();
});

test("a conversation lists its files and its questions", async ({ signedIn, gateway, watch }) => {
  const uploaded = await fetch(`${gateway.url}/v1/artifacts?name=zebra.txt`, {
    method: "POST",
    headers: { authorization: `Bearer ${gateway.key}`, "content-type": "text/plain" },
    body: "stripes",
  });
  const { artifact_id: id } = await uploaded.json();
  gateway.runner.on("reads the file", (stream) =>
    stream.end(question("Which zebra?"), message("a question"), completed),
  );
  const conversation = { conversation_id: "files" };
  const input = { text: "reads the file", attachments: [{ id }] };
  await gateway.finish("reads the file", { conversation, input });
  await signedIn.goto(`${gateway.url}/console/conversations/files`);
  await signedIn.getByText("Files (1)").click();
  const downloading = signedIn.waitForEvent("download");
  await signedIn.getByRole("button", { name: "Download zebra.txt" }).click();
  const download = await downloading;
  expect(download.suggestedFilename()).toBe("zebra.txt");
  expect(watch.faults.splice(0)).toEqual([`download: ${download.url()}`]);
  await signedIn.getByText("Questions and approvals (1)").click();
  await expect(signedIn.getByRole("main")).toContainText("Which zebra?");
  expect(await violations(signedIn)).toEqual([]);
});
