import { expect, test } from "vitest";
import { pickerRows, textsOf, toggled, unknownNames } from "./names";

const OPTIONS = [
  { name: "clock", note: "Tells the time" },
  { name: "search", note: "Searches the web" },
];

test("names without an option are unknown", () => {
  expect(unknownNames(["clock", "gone"], OPTIONS)).toEqual(["gone"]);
  expect(unknownNames(["gone"], undefined)).toEqual([]);
  expect(unknownNames("*", [])).toEqual([]);
});

test("rows begin with unknown names and match each word", () => {
  const names = (search: string) => pickerRows(["gone", "clock"], OPTIONS, search).map(({ name }) => name);
  expect(names("")).toEqual(["gone", "clock", "search"]);
  expect(names("WEB sea")).toEqual(["search"]);
  expect(names("nothing")).toEqual([]);
});

test("a toggled name is added at the end or removed", () => {
  expect(toggled(["b"], "a")).toEqual(["b", "a"]);
  expect(toggled(["b", "a"], "b")).toEqual(["a"]);
});

test("reads stored names, and leaves out marks for none", () => {
  expect(textsOf(["a", "", "__none__", 1])).toEqual(["a"]);
  expect(textsOf("a")).toEqual(["a"]);
  expect(textsOf(undefined)).toEqual([]);
});
