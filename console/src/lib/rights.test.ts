import { expect, test } from "vitest";
import { rightsOf } from "./rights";

test("a viewer changes nothing and an operator acts on runs", () => {
  expect(rightsOf("viewer")).toMatchObject({ readsAdmin: true, posts: false, acts: false, changes: false });
  expect(rightsOf("viewer").approves).toBe(false);
  expect(rightsOf("operator")).toMatchObject({ acts: true, approves: true, posts: false, changes: false });
  expect(rightsOf("later")).toEqual(rightsOf("viewer"));
  expect(rightsOf("client")).toMatchObject({ readsAdmin: false, posts: true, approves: false });
});

test("an owner has the workspaces only", () => {
  expect(rightsOf("owner")).toMatchObject({ owns: true, readsAdmin: false, changes: false });
  expect(rightsOf("admin")).toMatchObject({ owns: false, changes: true });
});
