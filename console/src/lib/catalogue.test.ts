import { expect, test } from "vitest";
import { isUnrequested, modelChoice, optionsFor, ungrantedIn, unknownIn } from "./catalogue";
import { configItems } from "./config-form";

const OFFERED = {
  models: [
    { name: "chat", note: "", operations: ["invoke", "stream"] },
    { name: "rank", note: "", operations: ["rerank"] },
  ],
  tools: [{ name: "clock", note: "" }],
  knowledge_bases: [{ name: "handbook", note: "" }],
};
const ITEMS = configItems(
  {
    config_schema: [
      { type: "model-fallback-selector", name: "model" },
      { type: "rerank-model-selector", name: "rerank", default: "" },
      { type: "knowledge-base-multi-selector", name: "bases" },
      { type: "string", name: "note" },
    ],
  },
  "en",
);

test("a selector offers the models of its operation", () => {
  const names = ITEMS.map((item) => optionsFor(item, OFFERED)?.map(({ name }) => name));
  expect(names).toEqual([["chat"], ["rank"], ["handbook"], undefined]);
});

test("unknown names are found in config and policy", () => {
  const spec = {
    name: "a",
    event_types: ["*"],
    runner_id: "plugin:a/b/c",
    config: { model: { primary: "chat", fallbacks: ["old"] }, bases: ["handbook", "lost"], note: "free" },
    resource_policy: { models: "*" as const, tools: ["clock", "hammer"], skills: ["unread"] },
  };
  expect(unknownIn(spec, ITEMS, OFFERED)).toEqual([
    { pointer: "/config/model", names: ["old"] },
    { pointer: "/config/bases", names: ["lost"] },
    { pointer: "/resource_policy/tools", names: ["hammer"] },
  ]);
});

test("names of the config without a grant are found", () => {
  const spec = {
    name: "a",
    event_types: ["*"],
    runner_id: "plugin:a/b/c",
    config: { model: { primary: "chat", fallbacks: ["old"] }, bases: ["handbook"], note: "free" },
    resource_policy: { models: ["chat"] },
  };
  expect(ungrantedIn(spec, ITEMS)).toEqual([
    { pointer: "/config/model", names: ["old"] },
    { pointer: "/config/bases", names: ["handbook"] },
  ]);
  const all = { models: "*" as const, knowledge_bases: "*" as const };
  expect(ungrantedIn({ ...spec, resource_policy: all }, ITEMS)).toEqual([]);
});

test("reads both forms of a model with fallbacks", () => {
  expect(modelChoice("chat")).toEqual({ primary: "chat", fallbacks: [] });
  expect(modelChoice({ primary: "__none__" })).toEqual({ primary: "", fallbacks: [] });
  expect(modelChoice({ primary: "a", fallbacks: ["b"] })).toEqual({ primary: "a", fallbacks: ["b"] });
});

test("a manifest without a permission makes its grants void", () => {
  const manifest = { permissions: { tools: ["call"], models: [] }, capabilities: { skill_authoring: false } };
  expect(isUnrequested(manifest, "tools")).toBe(false);
  expect(isUnrequested(manifest, "models")).toBe(true);
  expect(isUnrequested(manifest, "skills")).toBe(true);
  expect(isUnrequested(undefined, "models")).toBe(false);
});
