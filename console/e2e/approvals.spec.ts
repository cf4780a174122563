/** Approvals of tool calls: questions answered in the inbox, approvals created by a form, listed and revoked. */

import { expect, type Page, test, violations } from "./support/test.ts";

/** The form of a question in the inbox, found by the run that asks. */
function questionOf(page: Page, runId: string) {
  return page.locator("form.question").filter({ has: page.locator(`a[href$="${runId}"]`) });
}

test("call is allowed for its conversation by edited rules", async ({ signedIn, gateway, watch }) => {
  watch.expected.push(/status of 400/);
  const asked = await gateway.ask();
  await signedIn.goto(`${gateway.url}/console/inbox`);
  const form = questionOf(signedIn, asked.run_id);
  await expect(form).toContainText("Allow the call of get_current_time?");
  await expect(form).toContainText('/utc_offset is "+01:00"');
  const rules = form.getByLabel("Rules for the arguments");
  await rules.fill('{"/utc_offset": {"prefix": "-"}}');
  await form.getByRole("button", { name: "Allow for this conversation" }).click();
  await expect(rules).toBeFocused();
  await expect(rules).toHaveAccessibleDescription(/must cover the call/);
  await rules.fill('{"/utc_offset": {"prefix": "+"}}');
  await expect(rules).toHaveAccessibleDescription("");
  await expect(form).toContainText('/utc_offset begins with "+"');
  await form.getByRole("button", { name: "Allow for this conversation" }).click();
  await expect(form).toHaveCount(0);
  await gateway.until(`/v1/runs/${asked.run_id}`, (run) => run.status === "completed");

  const { items } = await gateway.call("/v1/approvals");
  const { id } = items.find((approval: { run_id: string }) => approval.run_id === asked.run_id);
  await signedIn.goto(`${gateway.url}/console/runs/${asked.run_id}?tab=calls`);
  await signedIn.getByRole("link", { name: /^Approval / }).click();
  await expect(signedIn).toHaveURL(`${gateway.url}/console/approvals/${id}`);
  const main = signedIn.getByRole("main");
  await expect(main).toContainText('/utc_offset begins with "+"');
  await expect(main).toContainText("a conversation");
  await expect(main).toContainText('Arguments: {"utc_offset":"+01:00"}');
  const conversation = (await gateway.call(`/v1/runs/${asked.run_id}`)).conversation_id;
  await main.getByRole("link", { name: conversation }).click();
  await expect(signedIn.getByRole("heading", { level: 1 })).toHaveText(conversation);
});

test("approval is found by filters and revoked in its row", async ({ signedIn, gateway }) => {
  const spec = {
    agent: "scripted",
    tool: "mail_send",
    count: 5,
    arguments: { "/to": { one_of: ["a", "b"] } },
  };
  const { id } = await gateway.call("/v1/approvals", spec);
  await signedIn.goto(`${gateway.url}/console/approvals`);
  await expect(signedIn.getByRole("row").first()).toBeVisible();
  await signedIn.keyboard.press("/");
  await signedIn.keyboard.type("mail_");
  await signedIn.keyboard.press("Enter");
  await expect(signedIn).toHaveURL(/tool=mail_/);
  const row = signedIn.getByRole("row").filter({ hasText: "mail_send" });
  await expect(row).toContainText('/to is one of "a", "b"');
  await expect(row).toContainText("0 / 5");
  await expect(row).toContainText("scripted");
  await signedIn.getByRole("button", { name: "active" }).click();
  await expect(row).toHaveCount(1);
  await signedIn.keyboard.press("j");
  await expect(signedIn.getByRole("link", { name: "mail_send" })).toBeFocused();
  await row.getByRole("button", { name: "Revoke…" }).click();
  expect(await violations(signedIn)).toEqual([]);
  await signedIn.getByRole("dialog").getByRole("button", { name: "Revoke the approval" }).click();
  await expect(signedIn.getByRole("main")).toContainText("No approval matches these filters.");
  await signedIn.getByRole("button", { name: "revoked" }).click();
  await expect(row).toContainText("revoked");
  await expect(row.getByRole("button")).toHaveCount(0);
  expect((await gateway.call(`/v1/approvals/${id}`)).status).toBe("revoked");
});

test("denied call is listed with its reason", async ({ signedIn, gateway }) => {
  const asked = await gateway.ask();
  await signedIn.goto(`${gateway.url}/console/inbox`);
  const form = questionOf(signedIn, asked.run_id);
  await form.getByLabel("Reason of a denial").fill("use a calendar");
  // The key would choose the first action, which allows the call.
  await signedIn.keyboard.press("Enter");
  await form.getByRole("button", { name: "Deny" }).click();
  await expect(form).toHaveCount(0);
  const run = await gateway.until(`/v1/runs/${asked.run_id}`, ({ status }) => status === "completed");
  expect(run.status).toBe("completed");
  const { answer } = await gateway.call(`/v1/interactions/${asked.id}`);
  expect(answer).toMatchObject({ action_id: "deny", values: { reason: "use a calendar" } });
  expect(answer.values.arguments).toBeUndefined();

  await signedIn.goto(`${gateway.url}/console/approvals`);
  await signedIn.getByRole("button", { name: "denied" }).click();
  await expect(signedIn).toHaveURL(/status=denied/);
  const denials = signedIn.getByRole("region", { name: "Denied calls" });
  const row = denials.getByRole("row").filter({ has: signedIn.locator(`a[href$="${asked.run_id}"]`) });
  await expect(row).toContainText("use a calendar");
  await expect(row).toContainText("Deny");
});

test("form creates an approval and shows faults at its fields", async ({ signedIn, gateway, watch }) => {
  watch.expected.push(/status of 400/);
  await signedIn.goto(`${gateway.url}/console/approvals`);
  await signedIn.getByRole("link", { name: "New approval" }).click();
  const create = signedIn.getByRole("button", { name: "Create approval" });
  await signedIn.getByLabel("Tool, or a pattern").fill("made_*_*");
  await create.click();
  const tool = signedIn.getByLabel("Tool, or a pattern");
  await expect(tool).toBeFocused();
  await expect(tool).toHaveAccessibleDescription(/./);
  await expect(signedIn.getByRole("combobox", { name: "Agent" })).toHaveAccessibleDescription(/is required/);
  await tool.fill("made_*");
  await signedIn.getByRole("combobox", { name: "Agent" }).selectOption("scripted");
  const rules = signedIn.getByLabel("Rules for the arguments");
  await rules.fill('{"/path": ');
  await create.click();
  await expect(rules).toBeFocused();
  await expect(rules).toHaveAccessibleDescription(/write a JSON object/);
  await rules.fill('{"/path": {"prefix": ""}, "/n": {"equals": 1.0}}');
  await create.click();
  await expect(rules).toHaveAccessibleDescription(/\/arguments\/~1path .*must not be empty/);
  await rules.fill('{"/path": {"prefix": "/srv/"}, "/n": {"equals": 1.0}}');
  await signedIn.getByLabel("Maximum number of calls").fill("7");
  expect(await violations(signedIn)).toEqual([]);
  await create.click();
  await expect(signedIn.getByRole("heading", { level: 1 })).toHaveText("made_*");
  const id = new URL(signedIn.url()).pathname.split("/").at(-1);
  const answer = await fetch(`${gateway.url}/v1/approvals/${id}`, {
    headers: { authorization: `Bearer ${gateway.key}` },
  });
  const text = await answer.text();
  expect(JSON.parse(text)).toMatchObject({ tool: "made_*", scope: "agent", count: 7, status: "active" });
  // The number as it was typed: `1` is another one.
  expect(text).toContain('{"equals":1.0}');
});

for (const [role, buttons] of [
  ["viewer", 0],
  ["operator", 1],
] as const) {
  test(`key of role ${role} has ${buttons} buttons to revoke`, async ({ page, gateway }) => {
    const tool = `read_by_${role}`;
    const { id } = await gateway.call("/v1/approvals", { agent: "scripted", tool });
    const { key } = await gateway.call("/v1/api-keys", { name: role, role });
    await page.goto(`${gateway.url}/console/approvals?tool=${tool}#key=${key}`);
    const row = page.getByRole("row").filter({ hasText: tool });
    await expect(row).toContainText("calls without arguments");
    await expect(row.getByRole("button", { name: "Revoke…" })).toHaveCount(buttons);
    await expect(page.getByRole("link", { name: "New approval" })).toHaveCount(buttons);
    await row.getByRole("link", { name: tool }).click();
    await expect(page).toHaveURL(`${gateway.url}/console/approvals/${id}`);
    await expect(page.getByRole("heading", { level: 1 })).toHaveText(tool);
    await expect(page.getByRole("button", { name: "Revoke…" })).toHaveCount(buttons);
  });
}
