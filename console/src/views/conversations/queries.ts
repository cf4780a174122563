import { infiniteQueryOptions } from "@tanstack/react-query";
import { api, dataOf } from "../../api/client";
import { renewal } from "../../api/feed";
import { nextCursor } from "../../api/queries";

const RENEW_MS = 3000;

export interface ConversationKey {
  conversationId: string;
  botId?: string | undefined;
  threadId?: string | undefined;
}

export function conversationsQuery() {
  return infiniteQueryOptions({
    queryKey: ["conversations"],
    queryFn: ({ pageParam, signal }) => {
      const query = pageParam === undefined ? {} : { cursor: pageParam };
      return dataOf(api.GET("/v1/conversations", { params: { query }, signal }));
    },
    initialPageParam: undefined as string | undefined,
    getNextPageParam: nextCursor,
    refetchInterval: renewal(RENEW_MS),
  });
}

/** Messages from the newest back. */
export function historyQuery({ conversationId, botId, threadId }: ConversationKey) {
  return infiniteQueryOptions({
    queryKey: ["history", conversationId, botId, threadId],
    queryFn: ({ pageParam, signal }) => {
      const query = {
        direction: "backward" as const,
        include_attachments: true,
        // Empty selects the conversation without a bot or thread.
        bot_id: botId ?? "",
        thread_id: threadId ?? "",
        ...(pageParam === undefined ? {} : { before_cursor: pageParam }),
      };
      const params = { path: { conversation_id: conversationId }, query };
      return dataOf(api.GET("/v1/conversations/{conversation_id}/history", { params, signal }));
    },
    initialPageParam: undefined as string | undefined,
    getNextPageParam: nextCursor,
    refetchInterval: RENEW_MS,
  });
}
