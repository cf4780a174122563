/** Changes of the workspace as they happen. They renew what the page shows. */

import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { staleKeys } from "../lib/stale";
import { useIsVisible } from "../ui/visible";
import { openStream, type Schema } from "./client";
import { ApiError } from "./errors";
import { frames } from "./sse";

/** Changes within this time renew the page once. */
const COLLECT_MS = 300;
const RECONNECT_MS = 2000;
/** Renewal of lists while the feed is connected, for what it does not report. */
const CONNECTED_MS = 15_000;

let isConnected = false;

/** Interval of a list: `ms` without a feed, seldom with one. */
export function renewal(ms: number): () => number {
  return () => (isConnected ? Math.max(ms, CONNECTED_MS) : ms);
}

/** Renews queries by the feed while the component is shown. A gateway without a feed is polled. */
export function useFeed(): void {
  const client = useQueryClient();
  const isVisible = useIsVisible();
  useEffect(() => {
    if (!isVisible) return;
    const abort = new AbortController();
    void readFeed(client, abort.signal);
    return () => {
      abort.abort();
      isConnected = false;
    };
  }, [client, isVisible]);
}

async function readFeed(client: QueryClient, signal: AbortSignal): Promise<void> {
  const stale = new Map<string, string[]>();
  let timer = 0;
  const flush = () => {
    timer = 0;
    for (const queryKey of stale.values()) void client.invalidateQueries({ queryKey });
    stale.clear();
  };
  while (!signal.aborted) {
    try {
      const { body } = await openStream("/v1/feed", 0, signal);
      if (body === null) return;
      isConnected = true;
      for await (const frame of frames(body)) {
        if (frame.event === "gateway.draining" || signal.aborted) break;
        for (const key of staleKeys(JSON.parse(frame.data) as Schema<"FeedEvent">))
          stale.set(key.join(), key);
        if (timer === 0) timer = window.setTimeout(flush, COLLECT_MS);
      }
    } catch (error) {
      if (error instanceof ApiError && !error.retryable) return;
    } finally {
      isConnected = false;
    }
    if (!signal.aborted) await new Promise((resolve) => setTimeout(resolve, RECONNECT_MS));
  }
}
