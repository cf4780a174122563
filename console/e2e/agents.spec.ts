/** The editor of agents: pickers, names that do not exist, refusals, and changes that are not saved. */

import type { Gateway } from "./support/gateway.ts";
import { expect, type Page, test, violations } from "./support/test.ts";

const RUNNER = "plugin:test/scripted/default";

/** A form with the required fields of a new agent. */
async function begin(page: Page, gateway: Gateway, name: string): Promise<void> {
  await page.goto(`${gateway.url}/console/agents/new`);
  await page.getByLabel("Name", { exact: true }).fill(name);
  await page.getByLabel("Event types").fill("test.never");
  await page.getByRole("combobox", { name: "Runner" }).selectOption(RUNNER);
}

async function stored(gateway: Gateway, name: string) {
  const { items } = await gateway.call("/v1/agents");
  return items.find((agent: { name: string }) => agent.name === name);
}

test("agent is created by pickers, and unknown names are marked", async ({ signedIn, gateway }) => {
  await begin(signedIn, gateway, "picked");
  const [{ model_id: model }] = (await gateway.call("/v1/models")).items;
  const [{ tool_name: tool }] = (await gateway.call("/v1/tools")).items;
  await signedIn
    .getByRole("group", { name: "Models", exact: true })
    .getByRole("checkbox", { name: model })
    .first()
    .check();
  const tools = signedIn.getByRole("group", { name: "Tools", exact: true });
  await tools.getByRole("searchbox").fill(tool);
  await tools.getByRole("checkbox", { name: tool }).first().check();
  // A name that the gateway lacks is added by hand.
  await tools.getByRole("searchbox").fill("hammer");
  await signedIn.keyboard.press("Enter");
  await expect(tools.getByRole("checkbox", { name: /^hammer/ })).toBeChecked();
  await expect(tools).toContainText("not in the catalogue");
  await signedIn.getByRole("group", { name: "Skills" }).getByLabel("All, also later ones").check();
  await signedIn.getByRole("group", { name: "History of the conversation" }).getByLabel("page").check();
  await signedIn.getByRole("combobox", { name: "While a run is active" }).selectOption("enqueue");
  expect(await violations(signedIn)).toEqual([]);
  await signedIn.getByRole("button", { name: /Review/ }).click();
  const dialog = signedIn.getByRole("dialog");
  await expect(dialog).toContainText("/resource_policy/tools is not in the catalogue of the gateway: hammer");
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(signedIn.getByRole("heading", { level: 1 })).toHaveText("picked");
  await expect(signedIn.getByRole("status").filter({ hasText: "Saved." })).toBeVisible();
  expect(await stored(gateway, "picked")).toMatchObject({
    resource_policy: { models: [model], tools: [tool, "hammer"], skills: "*", history: ["page"] },
    concurrency: "enqueue",
  });

  // The saved state ends with the next change.
  await signedIn.getByRole("checkbox", { name: /^hammer/ }).click();
  await expect(signedIn.getByRole("status").filter({ hasText: "Unsaved changes." })).toBeVisible();
  await expect(signedIn.getByText("Saved.")).toHaveCount(0);
});

test("fields of the config choose models and knowledge bases of the catalogue", async ({
  signedIn,
  gateway,
}) => {
  await begin(signedIn, gateway, "configured");
  await signedIn.getByRole("combobox", { name: "Runner" }).selectOption("plugin:runnel/local-agent/default");
  const [{ model_id: model }] = (await gateway.call("/v1/models")).items;
  await expect(signedIn.getByText("Saving needs a value of: Model")).toBeVisible();
  await signedIn.getByRole("combobox", { name: /^Model/ }).selectOption(model);
  await expect(signedIn.getByText("Saving needs a value of: Model")).toHaveCount(0);
  await signedIn.getByLabel("Prompt").first().fill("Be brief.");
  await signedIn.getByRole("button", { name: /Review/ }).click();
  await signedIn.getByRole("dialog").getByRole("button", { name: "Save" }).click();
  await expect(signedIn.getByText("Saved.")).toBeVisible();
  expect((await stored(gateway, "configured")).config).toMatchObject({
    model: { primary: model, fallbacks: [] },
    prompt: [{ role: "system", content: "Be brief." }],
  });
});

test("a view with unsaved changes is left after a question", async ({ signedIn, gateway }) => {
  await begin(signedIn, gateway, "never saved");
  const isHeld = () =>
    signedIn.evaluate(() => !window.dispatchEvent(new Event("beforeunload", { cancelable: true })));
  expect(await isHeld()).toBe(true);
  await signedIn.getByRole("link", { name: "Runs", exact: true }).click();
  const dialog = signedIn.getByRole("dialog");
  await expect(dialog).toContainText("not saved");
  expect(await violations(signedIn)).toEqual([]);
  await dialog.getByRole("button", { name: "Stay" }).click();
  await expect(dialog).toHaveCount(0);
  await expect(signedIn.getByLabel("Name", { exact: true })).toHaveValue("never saved");
  await signedIn.getByRole("link", { name: "Runs", exact: true }).click();
  await dialog.getByRole("button", { name: "Discard the changes" }).click();
  await expect(signedIn).toHaveURL(`${gateway.url}/console/runs`);
  expect(await isHeld()).toBe(false);
  expect(await stored(gateway, "never saved")).toBeUndefined();
});

test("JSON has the whole agent, and text that is no JSON is not lost", async ({ signedIn, gateway }) => {
  await begin(signedIn, gateway, "as text");
  await signedIn.getByRole("button", { name: "JSON" }).click();
  const json = signedIn.getByLabel("The agent as JSON");
  const spec = JSON.parse(await json.inputValue());
  expect(spec).toMatchObject({ name: "as text", runner_id: RUNNER });
  await json.fill("{");
  await expect(signedIn.getByRole("button", { name: "Form" })).toBeDisabled();
  await json.fill(JSON.stringify({ ...spec, priority: 7, resource_policy: { tools: ["x"] } }));
  await signedIn.getByRole("button", { name: "Form" }).click();
  await expect(signedIn.getByLabel("Priority")).toHaveValue("7");
  await expect(signedIn.getByRole("checkbox", { name: /^x not in/ })).toBeChecked();
});

test("a refused policy shows the fault at its field", async ({ signedIn, gateway, watch }) => {
  watch.expected.push(/status of 400/);
  await begin(signedIn, gateway, "refused");
  await signedIn.getByRole("combobox", { name: "Scope" }).selectOption("bot");
  await signedIn.getByRole("button", { name: /Review/ }).click();
  const dialog = signedIn.getByRole("dialog");
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(dialog.getByRole("alert")).toContainText("/scope/bot_id");
  await dialog.getByRole("button", { name: "Back" }).click();
  const bot = signedIn.getByLabel("Bot", { exact: true });
  await expect(bot).toBeFocused();
  await expect(bot).toHaveAccessibleDescription(/is required for scope bot/);
});

test("history shows old and new values and restores them", async ({ signedIn, gateway }) => {
  const spec = { name: "restored", event_types: ["test.never"], runner_id: RUNNER, description: "first" };
  const { id } = await gateway.call("/v1/agents", spec);
  await signedIn.goto(`${gateway.url}/console/agents/${id}`);
  await signedIn.getByLabel("Description").fill("second");
  await signedIn.getByRole("button", { name: /Review/ }).click();
  await signedIn.getByRole("dialog").getByRole("button", { name: "Save" }).click();
  const history = signedIn.getByRole("region", { name: "History" });
  await history.getByText("Changed").first().click();
  await expect(history).toContainText('- /description: "first"');
  await expect(history).toContainText('+ /description: "second"');
  await history.getByText("Created").click();
  // The bar at the top of the window must not cover a part of a field.
  await signedIn.evaluate(() => window.scrollTo(0, 0));
  expect(await violations(signedIn)).toEqual([]);
  await history.getByRole("button", { name: "Restore…" }).click();
  await signedIn.getByRole("dialog").getByRole("button", { name: "Restore the agent" }).click();
  await expect(signedIn.getByLabel("Description")).toHaveValue("first");
  expect(await stored(gateway, "restored")).toMatchObject({ description: "first", version: 3 });
});

test("rules of tools stay when another one is added", async ({ signedIn, gateway }) => {
  const policy = { tools: { "mail_*": "ask", mail_drop: "deny" }, history: ["page"] };
  const delivery = { interactions: false, platform_actions: { "message.edit": "auto" } };
  const spec = { name: "ruled", event_types: ["test.never"], runner_id: RUNNER, resource_policy: policy };
  const { id } = await gateway.call("/v1/agents", { ...spec, delivery_policy: delivery });
  await signedIn.goto(`${gateway.url}/console/agents/${id}`);
  await expect(signedIn.getByRole("combobox", { name: "mail_drop" })).toHaveValue("deny");
  await signedIn.getByLabel("Add: Tools").fill("fs_*");
  await signedIn.keyboard.press("Enter");
  await signedIn.getByRole("combobox", { name: "fs_*" }).selectOption("allow");
  await signedIn.getByRole("button", { name: "Remove mail_drop" }).click();
  await signedIn.getByRole("checkbox", { name: "interactions" }).check();
  await signedIn.getByRole("button", { name: /Review/ }).click();
  await signedIn.getByRole("dialog").getByRole("button", { name: "Save" }).click();
  await expect(signedIn.getByRole("dialog")).toHaveCount(0);
  const saved = await stored(gateway, "ruled");
  expect(saved.resource_policy.tools).toEqual({ "mail_*": "ask", "fs_*": "allow" });
  expect(saved.resource_policy.history).toEqual(["page"]);
  expect(saved.delivery_policy.platform_actions).toEqual({ "message.edit": "auto" });
});
