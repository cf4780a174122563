import { expect, test } from "vitest";
import { rightsOf } from "./rights";

test("a viewer changes nothing and an operator acts on runs", () => {
  expect(rightsOf("viewer")).toEqual({ readsAdmin: true, posts: false, acts: false, changes: false });
  expect(rightsOf("operator")).toMatchObject({ acts: true, posts: false, changes: false });
  expect(rightsOf("later")).toEqual(rightsOf("viewer"));
  expect(rightsOf("client")).toMatchObject({ readsAdmin: false, posts: true });
});
