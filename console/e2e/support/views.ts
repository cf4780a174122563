/** Every view, by its address. */

import { en } from "../../src/i18n/en.ts";
import { zh } from "../../src/i18n/zh.ts";
import type { Gateway } from "./gateway.ts";
import { completed, delta, failed, message, question } from "./runner.ts";
import { expect, type Page } from "./test.ts";

const TABS = ["events", "calls", "grants", "usage", "rejections", "raw"];
const LONG = "averylongwordwithoutanyspace".repeat(20);

export interface View {
  name: string;
  path: string;
  /** Text that shows that the view has its data. */
  shows: string;
}

/** Runs of each kind, and all views that show them, with their texts in the language of the page. */
export async function views(page: Page, gateway: Gateway): Promise<View[]> {
  const texts = (await page.locator("html").getAttribute("lang"))?.startsWith("zh") ? zh : en;
  gateway.runner.on("fails", (stream) => stream.end(delta("half"), failed(`it broke: ${LONG}`)));
  gateway.runner.on("asks", (stream) =>
    stream.end(question("Which table?"), message("A question."), completed),
  );
  const good = await gateway.finish(`all is well ${LONG}`);
  const bad = await gateway.finish("fails");
  const asking = await gateway.finish("asks");
  const plan = await gateway.plan();
  const acting = await gateway.act();
  const call = await gateway.ask();
  const approval = await gateway.call("/v1/approvals", {
    agent: "scripted",
    tool: "fs_*",
    arguments: { "/path": { prefix: `/srv/${LONG}/` }, "/text": { any: true } },
  });
  const digest = { name: crypto.randomUUID(), agent: "scripted", cron: "0 2 * * *", jitter: "5m" };
  const schedule = await gateway.call("/v1/schedules", digest);
  await gateway.call(`/v1/schedules/${schedule.id}/run`, {});
  const filter = `{event_type: "test.source", input: {text: "${LONG}"}}`;
  await gateway.call("/v1/sources", { name: `source-${crypto.randomUUID()}`, scheme: "github", filter });
  await gateway.call("/v1/webhooks", {
    name: crypto.randomUUID(),
    url: `${gateway.runner.url}/hooks?${LONG}`,
    events: ["run.completed", "run.failed"],
  });
  const view = (name: string, path: string, shows = ""): View => ({ name, path: `/${path}`, shows });
  return [
    view("runs", "runs", "all is well"),
    view("runs-none", "runs?conversation_id=no-such", texts["runs.noMatch"]),
    view("runs-filtered", "runs?statuses=failed,timeout&created_after=1", "fails"),
    view("inbox", "inbox", "Which table?"),
    ...TABS.map((tab) => view(`run-${tab}`, `runs/${good.run_id}?tab=${tab}`, "all is well")),
    view("run-failed", `runs/${bad.run_id}`, "it broke"),
    view("run-asking", `runs/${asking.run_id}`, "Which table?"),
    view("run-plan", `runs/${plan.run_id}`, plan.request.title),
    view("run-acting", `runs/${acting.run_id}`, "message.edit"),
    view("run-plan-calls", `runs/${plan.run_id}?tab=calls`, "model"),
    view("compare", `compare?a=${good.run_id}&b=${bad.run_id}`, "it broke"),
    view("compare-none", "compare", texts["compare.title"]),
    view("try-filled", `try?text=${LONG}&conversation_id=console`, texts["nav.try"]),
    view("conversation", "conversations/console", "all is well"),
    view("actions-filtered", "actions?status=open", "message.edit"),
    view("inbox-call", "inbox", call.request.title),
    view("approvals-filtered", "approvals?status=active&tool=fs", "fs_*"),
    view("approvals-none", "approvals?tool=no-such", texts["approvals.noMatch"]),
    view("approvals-denied", "approvals?status=denied", texts["approvals.denials"]),
    view("approval", `approvals/${approval.id}`, LONG),
    view("approval-new", "approvals/new", texts["approvals.new"]),
    view("changes-filtered", "changes?kind=agent&order=oldest", "scripted"),
    view("changes-none", "changes?object_id=no-such", texts["changes.noMatch"]),
    view("schedule-new", "schedules/new", texts["schedules.new"]),
    view("source-new", "sources/new", texts["sources.new"]),
    view("webhook-new", "webhooks/new", texts["webhooks.new"]),
    view("agent-new", "agents/new", texts["agents.new"]),
    ...["tools", "mcp", "knowledge", "skills"].map((tab) =>
      view(`catalogue-${tab}`, `catalogue?tab=${tab}`, texts["nav.catalogue"]),
    ),
    view("run-absent", "runs/01a00000-0000-7000-8000-000000000000", "no"),
    view("not-found", "no/such/view", texts["notFound.title"]),
    ...(await linkedViews(page, gateway)),
  ];
}

export async function open(page: Page, gateway: Gateway, view: View): Promise<void> {
  await page.goto(`${gateway.url}/console${view.path}`);
  await expect(page.getByRole("main")).toContainText(view.shows);
  await settled(page);
}

/** Waits until the page has its data. */
async function settled(page: Page): Promise<void> {
  await expect.soft(page.getByRole("heading", { level: 1 }), `heading of ${page.url()}`).not.toBeEmpty();
  await expect(page.locator(".loading")).toHaveCount(0);
}

/** Views of the navigation that are not in the list above, and the first object that each lists. */
async function linkedViews(page: Page, gateway: Gateway): Promise<View[]> {
  await page.goto(`${gateway.url}/console/`);
  await settled(page);
  const paths = (links: Element[]) => links.map((link) => new URL((link as HTMLAnchorElement).href).pathname);
  const found: View[] = [];
  for (const path of await page.getByRole("navigation").first().getByRole("link").evaluateAll(paths)) {
    const own = path.replace("/console", "");
    if (!path.startsWith("/console/") || ["/runs", "/inbox"].includes(own)) continue;
    found.push({ name: own.slice(1), path: own, shows: "" });
    await page.goto(gateway.url + path);
    await settled(page);
    const inner = await page.getByRole("main").getByRole("link").evaluateAll(paths);
    for (const below of inner.filter((link) => link.startsWith(`${path}/`)).slice(0, 2)) {
      const view = below.replace("/console", "");
      found.push({ name: view.slice(1).replaceAll(/[^a-z]+/g, "-"), path: view, shows: "" });
    }
  }
  return found;
}
