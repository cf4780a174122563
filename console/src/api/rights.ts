import { useQuery } from "@tanstack/react-query";
import { PAGE } from "../lib/pages";
import { type Rights, rightsOf, roleOf } from "../lib/rights";
import { ApiError, api, dataOf } from "./client";
import { nextCursor } from "./queries";
import { currentKey } from "./session";

/** Pages of keys in which the own one is looked for. */
const MAX_PAGES = 10;

/** Role of the signed-in key. The API does not name it: the list of keys does, and refuses a client. */
async function ownRole(signal: AbortSignal): Promise<string> {
  let cursor: string | undefined;
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const query = { limit: PAGE, ...(cursor === undefined ? {} : { cursor }) };
    try {
      const keys = await dataOf(api.GET("/v1/api-keys", { params: { query }, signal }));
      const role = roleOf(currentKey() ?? "", keys.items);
      cursor = nextCursor(keys);
      if (role !== undefined) return role;
      if (cursor === undefined) break;
    } catch (error) {
      if (error instanceof ApiError && error.status === 403) return "client";
      throw error;
    }
  }
  // A key that lists keys, among very many.
  return "admin";
}

/** Rights of the signed-in key; undefined until they are read. */
export function useRights(): Rights | undefined {
  const role = useQuery({
    queryKey: ["role"],
    queryFn: ({ signal }) => ownRole(signal),
    staleTime: Number.POSITIVE_INFINITY,
  });
  return role.data === undefined ? undefined : rightsOf(role.data);
}
