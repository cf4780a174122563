import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { api, dataOf, type Schema } from "../../api/client";
import { nextCursor } from "../../api/queries";
import { PAGE } from "../../lib/pages";

export type Schedule = Schema<"Schedule">;
export type ScheduleSpec = Schema<"ScheduleSpec">;

/** The feed does not report schedules. */
const RENEW_MS = 5000;

export function schedulesQuery() {
  return infiniteQueryOptions({
    queryKey: ["schedules"],
    queryFn: ({ pageParam, signal }) => {
      const query = { limit: PAGE, cursor: pageParam };
      return dataOf(api.GET("/v1/schedules", { params: { query }, signal }));
    },
    initialPageParam: undefined as string | undefined,
    getNextPageParam: nextCursor,
    refetchInterval: RENEW_MS,
  });
}

export function scheduleQuery(scheduleId: string) {
  const path = { schedule_id: scheduleId };
  return queryOptions({
    queryKey: ["schedules", "one", scheduleId],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/schedules/{schedule_id}", { params: { path }, signal })),
    refetchInterval: RENEW_MS,
  });
}

export function occurrencesQuery(scheduleId: string) {
  const path = { schedule_id: scheduleId };
  return queryOptions({
    queryKey: ["schedules", "occurrences", scheduleId],
    queryFn: ({ signal }) =>
      dataOf(api.GET("/v1/schedules/{schedule_id}/occurrences", { params: { path }, signal })),
    refetchInterval: RENEW_MS,
  });
}
