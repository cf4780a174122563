import { infiniteQueryOptions, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { api, dataOf, type Schema } from "../../api/client";
import { nextCursor } from "../../api/queries";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { PAGE } from "../../lib/pages";
import { ConfirmButton } from "../../ui/confirm";
import { keyAnchor } from "../../ui/key-name";
import { useLinked } from "../../ui/linked";
import { Badge, Loading, Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";
import { CreateKey } from "./create-key";
import { Workspaces } from "./workspaces";

type ApiKey = Schema<"ApiKey">;

function keysQuery() {
  return infiniteQueryOptions({
    queryKey: ["api-keys"],
    queryFn: ({ pageParam, signal }) => {
      const query = { limit: PAGE, ...(pageParam === undefined ? {} : { cursor: pageParam }) };
      return dataOf(api.GET("/v1/api-keys", { params: { query }, signal }));
    },
    initialPageParam: undefined as string | undefined,
    getNextPageParam: nextCursor,
  });
}

const READY_MS = 10_000;

/** State of the gateway, its workspaces, and the API keys of this one. */
export function System() {
  const t = useText();
  const rights = useRights();
  return (
    <main>
      <h1>{t("nav.system")}</h1>
      <Ready />
      {rights?.owns && <Workspaces />}
      {rights?.readsAdmin && <Keys />}
    </main>
  );
}

function Keys() {
  const t = useText();
  const rights = useRights();
  const keys = useInfiniteQuery(keysQuery());
  return (
    <>
      <h2>{t("keysOfApi.title")}</h2>
      {rights?.changes && <CreateKey />}
      {keys.isPending && <Loading what="keysOfApi.title" />}
      {keys.error !== null && <Problem error={keys.error} retry={() => void keys.refetch()} />}
      <Scroll>
        <table className="list">
          <thead>
            <tr>
              <th>{t("keysOfApi.nameAndId")}</th>
              <th>{t("keysOfApi.role")}</th>
              <th>{t("keysOfApi.prefix")}</th>
              <th>{t("run.created")}</th>
              <th>{t("keysOfApi.used")}</th>
              <th>{t("keysOfApi.expires")}</th>
              <td />
            </tr>
          </thead>
          <tbody>
            {keys.data?.pages
              .flatMap((page) => page.items)
              .map((key) => (
                <KeyRow key={key.id} apiKey={key} />
              ))}
          </tbody>
        </table>
      </Scroll>
      {keys.hasNextPage && (
        <button type="button" onClick={() => void keys.fetchNextPage()} disabled={keys.isFetchingNextPage}>
          {t("list.more")}
        </button>
      )}
    </>
  );
}

function Ready() {
  const t = useText();
  const ready = useQuery({
    queryKey: ["ready"],
    queryFn: ({ signal }) => dataOf(api.GET("/readyz", { signal })),
    refetchInterval: READY_MS,
  });
  if (ready.error !== null) return <Problem error={ready.error} />;
  return (
    <p>
      {t("system.ready")} <Badge tone={ready.isSuccess ? "good" : "wait"}>{ready.data?.status ?? "…"}</Badge>
    </p>
  );
}

function KeyRow({ apiKey }: { apiKey: ApiKey }) {
  const rights = useRights();
  const t = useText();
  const { ref, isLinked } = useLinked<HTMLTableRowElement>(keyAnchor(apiKey.id));
  return (
    <tr id={keyAnchor(apiKey.id)} ref={ref} className={isLinked ? "linked" : undefined}>
      <td className="wide">
        {apiKey.name}
        <p className="reason">
          <code>{apiKey.id}</code>
        </p>
        {apiKey.agents && apiKey.agents.length > 0 && <p className="reason">{apiKey.agents.join(", ")}</p>}
      </td>
      <td>{apiKey.role}</td>
      <td>
        <code>{apiKey.prefix}</code>
      </td>
      <td>
        <When at={apiKey.created_at} />
      </td>
      <td>
        <When at={apiKey.last_used_at} />
      </td>
      <td>
        <When at={apiKey.expires_at} />
      </td>
      <td>
        <Link className="target" to="/runs" search={{ posted_by: apiKey.id }}>
          {t("nav.runs")}
        </Link>
        {apiKey.revoked_at != null && <Badge tone="off">{t("keysOfApi.revoked")}</Badge>}
        {apiKey.revoked_at == null && rights?.changes && <RevokeButton apiKey={apiKey} />}
      </td>
    </tr>
  );
}

function RevokeButton({ apiKey }: { apiKey: ApiKey }) {
  const t = useText();
  const client = useQueryClient();
  const path = { api_key_id: apiKey.id };
  const revoke = async () => {
    await dataOf(api.DELETE("/v1/api-keys/{api_key_id}", { params: { path } }));
    await client.invalidateQueries({ queryKey: ["api-keys"] });
  };
  return (
    <ConfirmButton
      label={t("keysOfApi.revoke")}
      title={t("keysOfApi.revokeTitle", { name: apiKey.name })}
      effect={t("keysOfApi.revokeEffect")}
      confirm={t("keysOfApi.revoke")}
      act={revoke}
      className="quiet"
    />
  );
}
