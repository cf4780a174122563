import { expect, test } from "vitest";
import { en } from "./en";
import { languageOf, translate } from "./index";
import { zh } from "./zh";

test("both languages have the same keys", () => {
  expect(Object.keys(zh).sort()).toEqual(Object.keys(en).sort());
});

test("both languages use the same values", () => {
  const values = (text: string) => (text.match(/\{\w+\}/g) ?? []).sort();
  for (const [key, text] of Object.entries(en)) {
    expect(values(zh[key as keyof typeof zh]), key).toEqual(values(text));
  }
});

test("fills values and leaves unnamed ones", () => {
  expect(translate("en", "list.more", {})).toBe(en["list.more"]);
  expect(translate("en", "runs.loaded", { n: 3 })).toContain("3");
});

test("the stored language precedes the browser's", () => {
  expect(languageOf("en", "zh-CN")).toBe("en");
  expect(languageOf(null, "zh-Hans")).toBe("zh");
  expect(languageOf("xx", "fr")).toBe("en");
});
