import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { api, dataOf, type Schema } from "../../api/client";
import { nextCursor } from "../../api/queries";

export type Webhook = Schema<"Webhook">;
export type WebhookSpec = Schema<"WebhookSpec">;

/** The feed does not report deliveries. */
const RENEW_MS = 5000;
const DELIVERIES_PAGE = 50;

export function webhooksQuery() {
  return queryOptions({
    queryKey: ["webhooks"],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/webhooks", { signal })),
    refetchInterval: RENEW_MS,
  });
}

export function webhookQuery(webhookId: string) {
  const path = { webhook_id: webhookId };
  return queryOptions({
    queryKey: ["webhooks", "one", webhookId],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/webhooks/{webhook_id}", { params: { path }, signal })),
    refetchInterval: RENEW_MS,
  });
}

export function deliveriesQuery(webhookId: string, status: Schema<"DeliveryStatus"> | undefined) {
  const path = { webhook_id: webhookId };
  return infiniteQueryOptions({
    queryKey: ["webhooks", "deliveries", webhookId, status],
    queryFn: ({ pageParam, signal }) => {
      const query = { limit: DELIVERIES_PAGE, status, cursor: pageParam };
      return dataOf(api.GET("/v1/webhooks/{webhook_id}/deliveries", { params: { path, query }, signal }));
    },
    initialPageParam: undefined as string | undefined,
    getNextPageParam: nextCursor,
    refetchInterval: RENEW_MS,
  });
}
