import { expect, test } from "vitest";
import type { Interaction, RunEvent } from "../api/client";
import { afterGap, approvalOf, foldGraphs, MAX_ACTIONS, questionsOf } from "./graph";

function event(data: unknown): RunEvent {
  return { type: "x.graph.projection", data } as unknown as RunEvent;
}

function action(id: string, fields: object = {}) {
  return { id, title: `Do ${id}`, description: "", status: "pending", kind_label: "Tool", ...fields };
}

function whole(actions: object[], fields: object = {}) {
  const progress = { done: 0, total: actions.length };
  return event({
    form: "whole",
    projection: { graph_id: "g", title: "Work", status: "running", progress, actions, ...fields },
  });
}

function patch(fields: object) {
  return event({ form: "patch", patch: { graph_id: "g", status: "running", actions: [], ...fields } });
}

function question(id: string, status: string, fields: string[] = []): Interaction {
  return {
    id: `i-${id}`,
    status,
    request: { interaction_id: id, fields: fields.map((field) => ({ id: field })) },
  } as unknown as Interaction;
}

test("patches replace the head and the listed actions", () => {
  const [graph] = foldGraphs(
    [],
    [
      whole([action("a", { depends_on: [] }), action("b", { depends_on: ["a"] }), action("c")]),
      patch({
        status: "waiting",
        progress: { done: 1, total: 2 },
        actions: [action("b", { status: "waiting", reason: "waits for your approval" }), action("d")],
        removed: ["c"],
      }),
    ],
  );
  expect(graph).toMatchObject({ title: "Work", status: "waiting", done: 1, total: 2, isPartial: false });
  expect(graph?.actions.map(({ id, status }) => `${id} ${status}`)).toEqual([
    "a pending",
    "b waiting",
    "d pending",
  ]);
  expect(graph?.actions[1]?.reason).toBe("waits for your approval");
});

test("a runner without dependencies differs from a graph without edges", () => {
  const [graph] = foldGraphs([], [whole([action("a", { depends_on: [] }), action("b")])]);
  expect(graph?.actions.map(({ dependsOn }) => dependsOn)).toEqual([[], null]);
});

test("other events change nothing", () => {
  const graphs = foldGraphs([], [whole([action("a")])]);
  const other = { type: "message.delta", data: { form: "whole" } } as unknown as RunEvent;
  expect(foldGraphs(graphs, [other, event(null), event({ form: "whole" }), event({ form: "x" })])).toBe(
    graphs,
  );
});

test("a patch without its beginning gives a partial graph", () => {
  const [graph] = foldGraphs([], [patch({ actions: [action("a")] })]);
  expect(graph).toMatchObject({ id: "g", title: "", isPartial: true });
  expect(foldGraphs(graph ? [graph] : [], [whole([])])[0]?.isPartial).toBe(false);
});

test("a gap makes a graph partial until it is complete again", () => {
  const cut = afterGap(foldGraphs([], [whole([action("a")])]));
  const isPartial = (events: RunEvent[]) => foldGraphs(cut, events)[0]?.isPartial;
  expect([isPartial([]), isPartial([patch({})]), isPartial([whole([action("a")])])]).toEqual([
    true,
    true,
    false,
  ]);
  const [ended] = afterGap(foldGraphs([], [whole([], { status: "completed" })]));
  expect(ended?.isPartial).toBe(false);
});

test("malformed actions are text or left out", () => {
  const odd = [
    null,
    7,
    { id: "" },
    { id: "x", title: 3, status: "later", progress: ["1", 2], depends_on: "a" },
  ];
  const [graph] = foldGraphs([], [whole(odd as object[])]);
  expect(graph?.actions).toEqual([
    {
      id: "x",
      title: "x",
      description: "",
      kind: "",
      status: "pending",
      reason: "",
      progress: null,
      result: "",
      dependsOn: null,
    },
  ]);
});

test("caps the number of actions", () => {
  const many = Array.from({ length: MAX_ACTIONS + 5 }, (_, at) => action(`a${at}`));
  expect(foldGraphs([], [whole(many)])[0]?.actions).toHaveLength(MAX_ACTIONS);
});

test("finds the questions of each action", () => {
  const found = questionsOf("g", [
    question("g.a.approve.6", "submitted", ["a", "b"]),
    question("g.ask.1", "open", ["name"]),
    question("h.a.approve.6", "open"),
    question("table", "open"),
  ]);
  expect([...found.keys()]).toEqual(["a", "b", "ask"]);
  expect(found.get("b")?.[0]?.isApproval).toBe(true);
  expect(found.get("ask")?.[0]?.isApproval).toBe(false);
});

test("the answer to an approval decides about each action", () => {
  const [graph] = foldGraphs([], [whole([action("a"), action("b")])]);
  const [a, b] = graph?.actions ?? [];
  if (a === undefined || b === undefined) throw new Error("two actions");
  const asked = (answer: object, status = "submitted") => ({
    interaction: { ...question("g.a.approve.6", status), answer } as Interaction,
    isApproval: true,
  });
  const fields = asked({ action_id: "submit", values: { a: "allow_conversation", b: "refuse" } });
  expect([approvalOf(a, fields), approvalOf(b, fields)]).toEqual(["approved", "denied"]);
  expect(approvalOf(a, asked({ action_id: "allow_once", values: {} }))).toBe("approved");
  expect(approvalOf(a, asked({ action_id: "refuse", values: { a: "allow_once" } }))).toBe("denied");
  expect(approvalOf(a, asked({ values: {} }))).toBe("denied");
  expect(approvalOf(a, { ...fields, isApproval: false })).toBe("answered");
  expect(approvalOf(a, asked({}, "open"))).toBe("asked");
});
