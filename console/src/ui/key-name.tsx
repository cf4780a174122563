import { queryOptions, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { api, dataOf } from "../api/client";
import { useRights } from "../api/rights";

function apiKeyQuery(keyId: string) {
  const path = { api_key_id: keyId };
  return queryOptions({
    queryKey: ["api-keys", "one", keyId],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/api-keys/{api_key_id}", { params: { path }, signal })),
    staleTime: Number.POSITIVE_INFINITY,
  });
}

/** Fragment of a key's row in the system view. `#key=…` would sign in. */
export function keyAnchor(keyId: string): string {
  return `api-key-${keyId}`;
}

/** Name and role of an API key, linked to its row; the id for a reader without access to keys. */
export function KeyName({ keyId }: { keyId: string }) {
  const rights = useRights();
  const key = useQuery({ ...apiKeyQuery(keyId), enabled: rights?.readsAdmin === true }).data;
  if (key === undefined) return <code>{keyId}</code>;
  return (
    <Link to="/system" hash={keyAnchor(keyId)} title={keyId}>
      {key.name} ({key.role})
    </Link>
  );
}
