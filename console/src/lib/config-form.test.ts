import { expect, test } from "vitest";
import { configItems, localized, missingItems, promptText, readControl } from "./config-form";

test("draws the types of the protocol, and others as JSON", () => {
  const config_schema = [
    { type: "integer", name: "timeout", label: { en_US: "Timeout", zh_Hans: "超时" }, default: 300 },
    { type: "select", name: "mode", options: [{ name: "a", label: { en_US: "A" } }] },
    { type: "select", name: "free", allow_custom: true },
    { type: "prompt-editor", name: "prompt", required: true },
    { type: "model-fallback-selector", name: "model" },
    { type: "later-type", name: "later" },
    { type: "boolean" },
  ];
  const items = configItems({ config_schema }, "zh");
  expect(items.map((item) => `${item.name} ${item.kind}`)).toEqual([
    "timeout integer",
    "mode select",
    "free text",
    "prompt prompt",
    "model models",
    "later json",
  ]);
  expect(items[0]).toMatchObject({ label: "超时", default: 300 });
  expect(items[1]?.options).toEqual([{ value: "a", label: "A" }]);
});

test("a prompt of one system message is a text", () => {
  expect(promptText([{ role: "system", content: "Be kind." }])).toBe("Be kind.");
  expect(promptText([{ role: "user", content: "Be kind." }])).toBeNull();
  expect(promptText([])).toBeNull();
});

test("falls back to another language", () => {
  expect(localized({ ja_JP: "x" }, "en")).toBe("x");
  expect(localized(undefined, "en")).toBe("");
});

test("reads controls", () => {
  expect(readControl("integer", "12")).toEqual({ value: 12 });
  expect(readControl("integer", "1.5")).toEqual({ fault: "not an integer" });
  expect(readControl("json", "[1]")).toEqual({ value: [1] });
  expect(readControl("json", "[")).toHaveProperty("fault");
  expect(readControl("number", "")).toEqual({ value: undefined });
});

test("a required item needs a value or a default", () => {
  const items = configItems(
    {
      config_schema: [
        { name: "model", type: "model", required: true, default: { primary: "", fallbacks: [] } },
        { name: "prompt", type: "text", required: true, default: "Hello" },
        { name: "note", type: "text" },
      ],
    },
    "en",
  );
  const missing = (config: Record<string, unknown>) => missingItems(items, config).map((item) => item.name);
  expect(missing({})).toEqual(["model"]);
  expect(missing({ model: { primary: "m", fallbacks: [] }, prompt: " " })).toEqual(["prompt"]);
  expect(missing({ model: { primary: "m" }, note: "" })).toEqual([]);
});
