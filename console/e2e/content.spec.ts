/** Markup in text of users, runners, tools and files is text: nothing of it runs, loads or leaves. */

import { test as base } from "@playwright/test";
import { Gateway } from "./support/gateway.ts";
import { hostileFiles, type Planted, plant } from "./support/hostile.ts";
import { assertInert } from "./support/inert.ts";
import { all, PAYLOADS, type Payload, within } from "./support/payloads.ts";
import { completed, message, question } from "./support/runner.ts";
import { expect, type Page, type PageFixtures, pageFixtures, test } from "./support/test.ts";

/** Payloads of one gateway: as many as one page of each list shows. */
const BATCH = 20;
/** All payloads take minutes; the first ones have one of each family. */
const TESTED = Number(process.env.RUNNEL_TEST_PAYLOADS ?? BATCH);

const TABS = ["events", "calls", "grants", "usage", "rejections", "raw"];

const batch = (first: number) => PAYLOADS.slice(first, first + BATCH);

/** Tests with a gateway of their own, which has these payloads in its settings. */
const hostileTest = base.extend<PageFixtures & { first: number; gateway: Gateway }>({
  first: [0, { option: true }],
  gateway: async ({ first }, use) => {
    const gateway = await Gateway.start((runner) => hostileFiles(runner, batch(first)));
    await use(gateway);
    await gateway.stop();
  },
  ...pageFixtures,
});

/** Opens everything that is closed, so that all text is in the page. */
async function unfold(page: Page): Promise<void> {
  await page.evaluate(() => {
    for (const details of document.querySelectorAll("main details"))
      (details as HTMLDetailsElement).open = true;
  });
  // A row that is opened leaves the list of closed ones.
  const closed = page.locator(".event [aria-expanded=false]");
  while ((await closed.count()) > 0) await closed.first().click();
}

interface View {
  path: string;
  payloads: Payload[];
}

/** Views that have all payloads, and those of one payload each. */
function views(planted: Planted, payloads: Payload[]): View[] {
  const each = (ids: string[], path: (id: string) => string) =>
    ids.map((id, at) => ({ path: path(id), payloads: payloads.slice(at, at + 1) }));
  const [first, second] = planted.runs;
  const conversation = (one: Planted["conversations"][number]) => {
    const { conversation_id, ...search } = one;
    const { bot_id, thread_id } = search;
    return `conversations/${encodeURIComponent(conversation_id)}?${new URLSearchParams({ bot_id, thread_id })}`;
  };
  return [
    ...[
      "runs",
      "conversations",
      "inbox",
      "agents",
      "endpoints",
      "schedules",
      "webhooks",
      "actions",
      "changes",
      "usage",
      "system",
    ],
    ...["tools", "knowledge", "skills"].map((tab) => `catalogue?tab=${tab}`),
    `runs/${first}?tab=events`,
  ]
    .map((path) => ({ path, payloads }))
    .concat(
      each(planted.runs, (id) => `runs/${id}?tab=raw`),
      each(planted.agents, (id) => `agents/${id}`),
      planted.schedules.slice(0, 1).map((id) => ({ path: `schedules/${id}`, payloads })),
      planted.approvals.map((id) => ({ path: `approvals/${id}`, payloads })),
      planted.sources.map((id) => ({ path: `sources/${id}`, payloads })),
      each(planted.webhooks, (id) => `webhooks/${id}`),
      each(planted.conversations.map(conversation), (path) => path),
      TABS.map((tab) => ({ path: `runs/${first}?tab=${tab}`, payloads: payloads.slice(0, 1) })),
      { path: `compare?a=${first}&b=${second}`, payloads: payloads.slice(0, 2) },
      { path: `try?text=${encodeURIComponent(all(payloads))}`, payloads: [] },
      // The gateway escapes the names of refused tools, and cuts them.
      {
        path: "catalogue?tab=mcp",
        payloads: payloads.filter(({ text }) => /^[\w <>=:;/.()-]+$/.test(text)).slice(0, 1),
      },
      { path: "catalogue?tab=models", payloads: [] },
      { path: "agents/new", payloads: [] },
    );
}

for (let first = 0; first < TESTED; first += BATCH) {
  hostileTest.describe(`payloads ${first} to ${first + BATCH - 1}`, () => {
    hostileTest.use({ first });
    hostileTest("are text in all fields of all views", async ({ signedIn, gateway }) => {
      hostileTest.setTimeout(300_000);
      const payloads = batch(first);
      const planted = await plant(gateway, payloads);
      for (const view of views(planted, payloads)) {
        await signedIn.goto(`${gateway.url}/console/${view.path}`);
        await expect(signedIn.getByRole("heading", { level: 1 })).not.toBeEmpty();
        await expect(signedIn.locator(".loading")).toHaveCount(0);
        await unfold(signedIn);
        for (const { token } of view.payloads)
          await expect(signedIn.locator("body"), view.path).toContainText(token);
        await assertInert(signedIn);
      }
      await dialogs(signedIn, gateway, planted, payloads);
      for (const [at, address] of planted.pages.entries()) {
        await signedIn.goto(address);
        await expect(signedIn.locator("body")).toContainText(payloads[at]?.token ?? "");
        await assertInert(signedIn);
      }
    });
  });
}

/** What appears after a click: the change of an agent, names in a bulk act, passages, a tried event. */
async function dialogs(page: Page, gateway: Gateway, planted: Planted, payloads: Payload[]): Promise<void> {
  const dialog = page.getByRole("dialog");
  const last = payloads.at(-1)?.token ?? "";
  await page.goto(`${gateway.url}/console/agents/${planted.agents[0]}`);
  await page.getByLabel("Description", { exact: true }).fill(all(payloads));
  await page.getByRole("button", { name: /Review/ }).click();
  await expect(dialog).toContainText(last);
  await assertInert(page);
  await page.keyboard.press("Escape");
  await page.getByRole("link", { name: "Runs", exact: true }).click();
  await page.getByRole("button", { name: "Discard the changes" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Runs");
  await page.goto(`${gateway.url}/console/runs?statuses=failed,timeout`);
  await page.getByRole("button", { name: "Run all again that match" }).click();
  // The dialog shows the first ten runs.
  await expect(dialog).toContainText(payloads[0]?.token ?? "");
  await assertInert(page);
  await page.goto(`${gateway.url}/console/catalogue?tab=knowledge`);
  const card = page.locator("article", { hasText: "About Runnel" });
  await card.getByRole("searchbox").fill("attacked evil example script");
  await page.keyboard.press("Enter");
  await expect(card.locator("pre").first()).toBeVisible();
  await assertInert(page);
  await page.goto(`${gateway.url}/console/try?text=${encodeURIComponent(all(payloads))}`);
  await page.getByLabel("Conversation").fill(within(payloads[0] as Payload, 200));
  await page.getByRole("button", { name: "Send" }).click();
  await expect(page.locator(".answer")).toContainText(last);
  await assertInert(page);
}

test("payloads are 200 different texts", () => {
  expect(new Set(PAYLOADS.map(({ text }) => text.replace(/\d+/, ""))).size).toBeGreaterThan(150);
  expect(PAYLOADS).toHaveLength(200);
});

test("markup in addresses is shown as text", async ({ signedIn, gateway, watch }) => {
  test.setTimeout(60_000);
  watch.expected.push(/status of 4\d\d/);
  for (const payload of PAYLOADS.slice(0, 11)) {
    const part = encodeURIComponent(payload.text);
    for (const path of [
      `runs/${part}`,
      `runs?statuses=${part}&agent_id=${part}#${part}`,
      `no/${part}`,
      `compare?a=${part}&b=${part}`,
    ]) {
      await signedIn.goto(`${gateway.url}/console/${path}`);
      await expect(signedIn.getByRole("main")).toBeVisible();
      await assertInert(signedIn);
    }
  }
});

test("markup and hidden characters in questions are written out", async ({ signedIn, gateway }) => {
  const title = `Pay ${PAYLOADS[0]?.text} \u202e000,1$`;
  gateway.runner.on("asks with markup", (stream) =>
    stream.end(question(title), message("a question"), completed),
  );
  await gateway.finish("asks with markup", { conversation: { conversation_id: "markup" } });
  await signedIn.goto(`${gateway.url}/console/inbox`);
  await expect(signedIn.getByText("U+202E").first()).toBeVisible();
  await expect(signedIn.getByRole("main")).toContainText("<img src=x onerror=");
  await assertInert(signedIn);
});

test("page cannot be framed and calls no other host", async ({ signedIn, gateway, watch }) => {
  watch.expected.push(/Content Security Policy/i, /Refused to/i, /frame-ancestors/i, /violates/i);
  const escaped = await signedIn.evaluate(async () => {
    const sent = await fetch("https://evil.example/").then(
      () => true,
      () => false,
    );
    const script = document.createElement("script");
    script.textContent = "window.attacked = 1";
    document.body.append(script);
    return { sent, attacked: (window as { attacked?: number }).attacked };
  });
  expect(escaped).toEqual({ sent: false, attacked: undefined });
  // A page of another origin, in a context without the guard.
  const other = await signedIn.context().newPage();
  await other.route("http://frames.example/", (route) =>
    route.fulfill({ contentType: "text/html", body: `<iframe src="${gateway.url}/console/"></iframe>` }),
  );
  await other.goto("http://frames.example/");
  await expect.poll(() => other.frames().at(-1)?.url()).toMatch(/^chrome-error:/);
});
