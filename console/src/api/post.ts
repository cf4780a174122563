import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { EventEnvelope } from "../lib/compose";
import { newKey } from "../lib/compose";
import { api, dataOf, type Schema } from "./client";

/** Posts an event. A repetition after a lost answer carries the same idempotency key. */
export function usePost(onAccepted: (accepted: Schema<"EventAccepted">) => void) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: ({ event, key }: { event: EventEnvelope; key: string }) => {
      const params = { header: { "Idempotency-Key": key } };
      return dataOf(api.POST("/v1/events", { params, body: event }));
    },
    onSuccess: async (accepted) => {
      onAccepted(accepted);
      await client.invalidateQueries({ queryKey: ["runs"] });
    },
  });
}

export { newKey };
