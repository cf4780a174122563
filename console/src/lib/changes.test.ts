import { expect, test } from "vitest";
import type { Change } from "./changes";
import { changesOf, changesPath, readChangeFilters, textsOf } from "./changes";

function textsOfPatch(patch: unknown[]) {
  return textsOf({ patch: patch as Change["patch"] });
}

test("tests are the old values, and adds and replaces the new ones", () => {
  const patch = [
    { op: "test", path: "/name", value: "a" },
    { op: "replace", path: "/name", value: "b" },
    { op: "add", path: "/new", value: null },
    { op: "test", path: "/old", value: [1] },
    { op: "remove", path: "/old" },
  ];
  expect(textsOfPatch(patch)).toEqual({ before: '/name: "a"\n/old: [1]', after: '/name: "b"\n/new: null' });
});

test("a created and a deleted object is shown completely", () => {
  const value = { name: "a" };
  const text = '{\n  "name": "a"\n}';
  expect(textsOfPatch([{ op: "add", path: "", value }])).toEqual({ before: "", after: text });
  const deleted = [
    { op: "test", path: "", value },
    { op: "remove", path: "" },
  ];
  expect(textsOfPatch(deleted)).toEqual({ before: text, after: "" });
});

test("hidden characters of a change are written out", () => {
  const { after } = textsOfPatch([{ op: "add", path: "/name", value: "a\u202eb" }]);
  expect(after).toBe('/name: "a⟨U+202E⟩b"');
});

test("filters of an address have known words only", () => {
  const search = { kind: "agent", object_id: " 7 ", actor: "", since: "1796083200", order: "oldest" };
  const filters = readChangeFilters(search);
  expect(filters).toEqual({ ...search, object_id: "7", actor: undefined });
  expect(changesOf(filters)).toEqual({ kind: "agent", object_id: "7", since: 1796083200, order: "oldest" });
  expect(changesPath(filters)).toBe("/v1/changes?kind=agent&object_id=7&order=oldest&since=1796083200");
  const unknown = readChangeFilters({ kind: "<b>", since: "yesterday", order: "newest" });
  expect(changesOf(unknown)).toEqual({});
  expect(changesPath(unknown)).toBe("/v1/changes");
});
