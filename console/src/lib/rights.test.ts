import { expect, test } from "vitest";
import { rightsOf, roleOf } from "./rights";

test("a viewer changes nothing and an operator acts on runs", () => {
  expect(rightsOf("viewer")).toEqual({ readsAdmin: true, posts: false, acts: false, changes: false });
  expect(rightsOf("operator")).toMatchObject({ acts: true, posts: false, changes: false });
  expect(rightsOf("later")).toEqual(rightsOf("viewer"));
  expect(rightsOf("client")).toMatchObject({ readsAdmin: false, posts: true });
});

test("finds the role of a key by its prefix", () => {
  const listed = [
    { prefix: "7ut", role: "admin" },
    { prefix: "7uth", role: "viewer" },
  ];
  expect(roleOf("rnl_7uth_secret", listed)).toBe("viewer");
  expect(roleOf("rnl_x", listed)).toBeUndefined();
});
