/** Changes by an operator: agents, keys, documents, endpoints. */

import { expect, test, violations } from "./support/test.ts";

test("agent is edited after a look at the change", async ({ signedIn, gateway, watch }) => {
  watch.expected.push(/status of 4(09|12)/);
  const spec = {
    name: "edited",
    event_types: ["test.edited"],
    scope: { kind: "workspace" },
    runner_id: "plugin:test/scripted/default",
  };
  const agent = await gateway.call("/v1/agents", spec);
  const path = `${gateway.url}/console/agents/${agent.id}`;
  await signedIn.goto(path);
  await signedIn.getByLabel("Description").fill("by the console");
  await signedIn.getByRole("button", { name: /Review/ }).click();
  const dialog = signedIn.getByRole("dialog");
  await expect(dialog).toContainText("by the console");
  await expect(dialog).not.toContainText("test.edited");
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(dialog).toHaveCount(0);
  expect((await gateway.call(`/v1/agents/${agent.id}`)).description).toBe("by the console");

  // A change from elsewhere is not undone.
  await signedIn.goto(path);
  await signedIn.getByLabel("Description").fill("too late");
  const changed = await fetch(`${gateway.url}/v1/agents/${agent.id}`, {
    method: "PUT",
    headers: { authorization: `Bearer ${gateway.key}`, "content-type": "application/json" },
    body: JSON.stringify({ ...spec, description: "first" }),
  });
  expect(changed.status).toBe(200);
  await signedIn.getByRole("button", { name: /Review/ }).click();
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(dialog.getByRole("alert")).toBeVisible();
  expect((await gateway.call(`/v1/agents/${agent.id}`)).description).toBe("first");
});

test("agent is created and deleted", async ({ signedIn, gateway }) => {
  await signedIn.goto(`${gateway.url}/console/agents/new`);
  await signedIn.getByLabel("Name").fill("made-here");
  await signedIn.getByLabel("Event types").fill("test.never");
  await signedIn.getByRole("combobox", { name: "Runner" }).selectOption("plugin:runnel/echo/default");
  await signedIn.getByRole("button", { name: /Review/ }).click();
  expect(await violations(signedIn)).toEqual([]);
  await signedIn.getByRole("dialog").getByRole("button", { name: "Save" }).click();
  await expect(signedIn.getByRole("heading", { level: 1 })).toHaveText("made-here");
  const isListed = async () => {
    const { items } = await gateway.call("/v1/agents");
    return items.some((agent: { name: string }) => agent.name === "made-here");
  };
  expect(await isListed()).toBe(true);
  await signedIn.getByRole("button", { name: "Delete…" }).click();
  await signedIn.getByRole("dialog").getByRole("button", { name: "Delete the agent" }).click();
  await expect(signedIn).toHaveURL(`${gateway.url}/console/agents`);
  expect(await isListed()).toBe(false);
});

test("key is shown once and revoked", async ({ signedIn, gateway }) => {
  await signedIn.goto(`${gateway.url}/console/system`);
  await signedIn.getByLabel("Name").fill("by the console");
  await signedIn.getByRole("button", { name: "Create key" }).click();
  const shown = signedIn.getByText(/^rnl_/).first();
  const key = (await shown.textContent()) ?? "";
  const read = () => fetch(`${gateway.url}/v1/runs`, { headers: { authorization: `Bearer ${key}` } });
  expect((await read()).status).toBe(200);
  await signedIn.reload();
  const row = signedIn.getByRole("row").filter({ hasText: "by the console" });
  await expect(row).toBeVisible();
  await expect(signedIn.getByText(key)).toHaveCount(0);
  await row.getByRole("button", { name: "Revoke" }).click();
  await signedIn.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
  await expect(row).toContainText("revoked");
  expect((await read()).status).toBe(401);
});

test("document is uploaded, found and deleted", async ({ signedIn, gateway }) => {
  await signedIn.goto(`${gateway.url}/console/catalogue?tab=knowledge`);
  const details = signedIn.getByRole("tabpanel").locator("summary");
  for (const summary of await details.all()) await summary.click();
  await signedIn.getByLabel("Upload a document").setInputFiles({
    name: "zebra.md",
    mimeType: "text/markdown",
    buffer: Buffer.from("# Zebras\n\nThe zebra crossing is <b onmouseover=alert(1)>striped</b>."),
  });
  const row = signedIn.getByRole("row").filter({ hasText: "zebra.md" });
  await expect(row).toContainText("ready");
  await signedIn
    .getByRole("searchbox")
    .or(signedIn.getByLabel("Search as a run does"))
    .first()
    .fill("zebra crossing");
  await signedIn.keyboard.press("Enter");
  await expect(signedIn.getByRole("tabpanel")).toContainText("striped");
  await row.getByRole("button", { name: "Delete" }).click();
  await row.getByRole("button", { name: "Really delete" }).click();
  await expect(row).toHaveCount(0);
});

test("endpoint is previewed before it is registered", async ({ signedIn, gateway }) => {
  await signedIn.goto(`${gateway.url}/console/endpoints`);
  await signedIn.getByText("Register an endpoint").click();
  await signedIn.getByLabel("Name").fill("another");
  await signedIn.getByLabel("URL").fill(gateway.runner.url);
  await signedIn.getByRole("button", { name: "Show what this adds" }).click();
  await expect(signedIn.getByRole("main")).toContainText("plugin:test/scripted/default");
  const { items } = await gateway.call("/v1/runner-endpoints");
  expect(items.map((endpoint: { name: string }) => endpoint.name)).not.toContain("another");
});

test("a refused agent shows the faults at their fields", async ({ signedIn, gateway, watch }) => {
  watch.expected.push(/status of 400/);
  await signedIn.goto(`${gateway.url}/console/agents/new`);
  await signedIn.getByLabel("Name").fill("x".repeat(200));
  await signedIn.getByLabel("Event types").fill("message.received");
  await signedIn.getByRole("combobox", { name: "Runner" }).selectOption({ index: 1 });
  await signedIn.getByRole("button", { name: "Review and save…" }).click();
  const dialog = signedIn.getByRole("dialog");
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(dialog.getByRole("alert")).toContainText("/name");
  await dialog.getByRole("button", { name: "Back" }).click();
  const name = signedIn.getByLabel("Name");
  await expect(name).toBeFocused();
  await expect(name).toHaveAccessibleDescription(/1 to 128 bytes/);
  await name.fill("shorter");
  await expect(name).toHaveAccessibleDescription("");
});
