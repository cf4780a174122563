import { expect, test } from "vitest";
import { blocksOf, spansOf } from "./markdown";

test("fences become code, with the word of the fence", () => {
  expect(blocksOf("Run this:\n```sh\nrm -rf /tmp/x\n\n# done\n```\nAgree?")).toEqual([
    { kind: "text", text: "Run this:", info: "" },
    { kind: "code", text: "rm -rf /tmp/x\n\n# done", info: "sh" },
    { kind: "text", text: "Agree?", info: "" },
  ]);
});

test("a fence ends with its own mark only", () => {
  expect(blocksOf("~~~\n```\ninner\n```\n~~~").map(({ text }) => text)).toEqual(["```\ninner\n```"]);
  expect(blocksOf("````\n```\n````").map(({ text }) => text)).toEqual(["```"]);
});

test("a fence without an end reaches to the end", () => {
  expect(blocksOf("```\nhalf")).toEqual([{ kind: "code", text: "half", info: "" }]);
});

test("a line with backticks in its text is no fence", () => {
  expect(blocksOf("```rm -rf``` now").map(({ kind }) => kind)).toEqual(["text"]);
});

test("no character outside of fences is lost", () => {
  const text = "a\n\n  b <b>c</b>\r\n# d";
  expect(blocksOf(text)).toEqual([{ kind: "text", text, info: "" }]);
});

test("code spans need equal numbers of backticks", () => {
  expect(spansOf("use `a` or ``b`c`` but ``not` this")).toEqual([
    { kind: "text", text: "use " },
    { kind: "code", text: "a" },
    { kind: "text", text: " or " },
    { kind: "code", text: "b`c" },
    { kind: "text", text: " but ``not` this" },
  ]);
});

test("many backticks end quickly", () => {
  const text = "` ".repeat(20_000);
  expect(
    spansOf(text)
      .map((span) => span.text)
      .join("").length,
  ).toBeGreaterThan(0);
});
