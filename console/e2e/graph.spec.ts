/** Action graphs on the page of a run. */

import type { Result } from "./support/runner.ts";
import { completed, question } from "./support/runner.ts";
import { expect, overflow, test, violations } from "./support/test.ts";

interface Action {
  id: string;
  depends_on?: string[];
  status?: string;
  [more: string]: unknown;
}

function action({ id, ...more }: Action): object {
  return {
    id,
    title: `Do ${id}`,
    description: "",
    depends_on: [],
    status: "pending",
    kind_label: "Tool",
    ...more,
  };
}

function whole(actions: Action[]): Result {
  const projection = {
    graph_id: "g_1",
    title: "A note on the board",
    status: "running",
    progress: { done: 0, total: actions.length, phase: "" },
    actions: actions.map(action),
    details_ref: "",
    generation: 1,
    seq: 1,
  };
  return { type: "x.graph.projection", data: { form: "whole", projection } };
}

function patch(actions: Action[], total: number): Result {
  const head = { graph_id: "g_1", status: "waiting", progress: { done: 1, total, phase: "" } };
  const change = { ...head, actions: actions.map(action), removed: [], generation: 1, seq: 2 };
  return { type: "x.graph.projection", data: { form: "patch", patch: change } };
}

/** The question for an approval, as the protocol agent asks it. */
function approval(id: string): Result {
  const asked = question("Allow: Do note");
  const data = structuredClone(asked.data) as { payload: Record<string, unknown> };
  data.payload = {
    ...data.payload,
    interaction_id: `g_1.${id}.approve.6`,
    kind: "confirmation",
    fields: [],
    description: "Post `<b>the text</b>`",
  };
  return { ...asked, data };
}

test("a graph shows states, reasons, edges and the text of an approval", async ({ signedIn, gateway }) => {
  gateway.runner.on("draws", (stream) =>
    stream.end(
      whole([{ id: "words", status: "running" }, { id: "clock" }, { id: "note", depends_on: ["words"] }]),
      approval("note"),
      patch(
        [
          { id: "words", status: "completed" },
          { id: "note", depends_on: ["words"], status: "waiting", reason: "waits for your approval" },
          { id: "receipt", depends_on: ["note", "clock"] },
        ],
        4,
      ),
      completed,
    ),
  );
  const conversation = { conversation: { conversation_id: "graph" } };
  const run = await gateway.finish("draws", conversation);
  await signedIn.goto(`${gateway.url}/console/runs/${run.run_id}`);
  const graph = signedIn.getByRole("region", { name: "Action graph" });
  await expect(graph).toContainText("A note on the board 1 of 4 actions ended");
  await expect(graph.locator("path.edge")).toHaveCount(3);
  // The open question comes first, with its exact text.
  const note = graph.getByRole("button", { name: "Do note" }).first();
  await expect(note).toHaveAttribute("aria-pressed", "true");
  await expect(note).toContainText("waits for your approval");
  await expect(graph.getByRole("article")).toContainText("Post `<b>the text</b>`");
  await note.focus();
  await signedIn.keyboard.press("ArrowLeft");
  await signedIn.keyboard.press("Enter");
  await expect(graph.getByRole("article", { name: "Do words" })).toContainText("completed");
  await signedIn.keyboard.press("End");
  await expect(graph.getByRole("button", { name: "Do receipt" }).first()).toBeFocused();
  // The bar of the page covers targets of a scrolled page, which counts as a fault.
  await signedIn.evaluate(() => scrollTo(0, 0));
  expect(await violations(signedIn)).toEqual([]);
  await graph.getByRole("button", { name: "List" }).click();
  await expect(graph.getByRole("row", { name: /Do receipt/ })).toContainText("Do note, Do clock");
  await signedIn.evaluate(() => scrollTo(0, 0));
  expect(await violations(signedIn)).toEqual([]);
  const plain = await gateway.finish("without a graph", conversation);
  await signedIn.goto(`${gateway.url}/console/runs/${plain.run_id}`);
  await expect(signedIn.getByRole("region", { name: "Timeline" })).toBeVisible();
  await expect(graph).toHaveCount(0);
});

test("a graph of 200 actions scrolls in its window", async ({ signedIn, gateway }) => {
  const actions = Array.from({ length: 200 }, (_, at): Action => {
    const depends_on = at < 8 ? [] : [`n${at - 8}`, `n${at - 5 - (at % 3)}`];
    return { id: `n${at}`, depends_on };
  });
  gateway.runner.on("draws much", (stream) => stream.end(whole(actions), completed));
  const run = await gateway.finish("draws much", { conversation: { conversation_id: "much" } });
  await signedIn.setViewportSize({ width: 360, height: 740 });
  await signedIn.goto(`${gateway.url}/console/runs/${run.run_id}`);
  const graph = signedIn.getByRole("region", { name: "Action graph" });
  await expect(graph.locator(".node")).toHaveCount(200);
  expect(await overflow(signedIn)).toBe(0);
  await graph.locator(".node").first().focus();
  await signedIn.keyboard.press("End");
  const last = graph.locator(".node").last();
  await expect(last).toBeFocused();
  await expect(last).toBeInViewport();
  await signedIn.keyboard.press("Enter");
  await expect(graph.getByRole("article", { name: "Do n199" })).toBeVisible();
});
