import { expect, test } from "vitest";
import type { Interaction } from "../api/client";
import { answeredFields, chosenAction } from "./chosen";

function answered(values: object, actionId?: string): Interaction {
  const options = [
    { value: "a", label: "Room A" },
    { value: "b", label: "Room B" },
  ];
  return {
    request: {
      fields: [
        { id: "rooms", label: "Rooms", type: "multiselect", options },
        { id: "room", label: "Room", type: "select", options },
        { id: "guests", label: "Guests", type: "number" },
      ],
      actions: [{ id: "book", label: "Book", style: "primary" }],
    },
    answer: { action_id: actionId, values, by: { kind: "link" } },
  } as unknown as Interaction;
}

test("answers have the labels of their options", () => {
  const fields = answeredFields(answered({ guests: 2, room: "b", rooms: ["a", "x"], more: 1 }));
  expect(fields.map(({ label, value }) => `${label}: ${value}`)).toEqual([
    "Rooms: Room A, x",
    "Room: Room B",
    "Guests: 2",
  ]);
});

test("an answer names the action that was chosen", () => {
  expect(chosenAction(answered({}, "book"))?.label).toBe("Book");
  expect(chosenAction(answered({}))).toBeUndefined();
  expect(chosenAction(answered({}, "other"))).toBeUndefined();
});
