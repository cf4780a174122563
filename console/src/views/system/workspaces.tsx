import { infiniteQueryOptions, useInfiniteQuery, useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { api, dataOf } from "../../api/client";
import { nextCursor } from "../../api/queries";
import { useText } from "../../i18n";
import { PAGE } from "../../lib/pages";
import { Loading, Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { ShownOnce } from "../../ui/shown-once";
import { When } from "../../ui/when";

function workspacesQuery() {
  return infiniteQueryOptions({
    queryKey: ["workspaces"],
    queryFn: ({ pageParam, signal }) => {
      const query = { limit: PAGE, ...(pageParam === undefined ? {} : { cursor: pageParam }) };
      return dataOf(api.GET("/v1/workspaces", { params: { query }, signal }));
    },
    initialPageParam: undefined as string | undefined,
    getNextPageParam: nextCursor,
  });
}

/** Workspaces of the gateway. Only keys of role owner read and create them. */
export function Workspaces() {
  const t = useText();
  const workspaces = useInfiniteQuery(workspacesQuery());
  return (
    <>
      <h2>{t("workspaces.title")}</h2>
      <CreateWorkspace />
      {workspaces.isPending && <Loading what="workspaces.title" />}
      {workspaces.error !== null && (
        <Problem error={workspaces.error} retry={() => void workspaces.refetch()} />
      )}
      <Scroll>
        <table className="list">
          <thead>
            <tr>
              <th>{t("workspaces.id")}</th>
              <th>{t("agents.name")}</th>
              <th>{t("run.created")}</th>
            </tr>
          </thead>
          <tbody>
            {workspaces.data?.pages
              .flatMap((page) => page.items)
              .map((workspace) => (
                <tr key={workspace.id}>
                  <td>
                    <code>{workspace.id}</code>
                  </td>
                  <td className="wide">{workspace.name}</td>
                  <td>
                    {/* The built-in workspace has no time of creation. */}
                    <When at={workspace.created_at === 0 ? null : workspace.created_at} />
                  </td>
                </tr>
              ))}
          </tbody>
        </table>
      </Scroll>
      {workspaces.hasNextPage && (
        <button
          type="button"
          onClick={() => void workspaces.fetchNextPage()}
          disabled={workspaces.isFetchingNextPage}
        >
          {t("list.more")}
        </button>
      )}
    </>
  );
}

/** Creates a workspace, and shows its first key once. */
function CreateWorkspace() {
  const t = useText();
  const client = useQueryClient();
  const [id, setId] = useState("");
  const [name, setName] = useState("");
  const create = useMutation({
    mutationFn: () => dataOf(api.POST("/v1/workspaces", { body: { id, ...(name === "" ? {} : { name }) } })),
    // The answer has a key: the cache of mutations forgets it with this view.
    gcTime: 0,
    onSuccess: () => client.invalidateQueries({ queryKey: ["workspaces"] }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate();
  };
  const field = (label: string, value: string, set: (value: string) => void, required: boolean) => (
    <input
      required={required}
      aria-label={label}
      placeholder={label}
      value={value}
      onChange={(event) => set(event.target.value)}
    />
  );
  return (
    <>
      <form className="quick" onSubmit={submit}>
        {field(t("workspaces.id"), id, setId, true)}
        {field(t("agents.name"), name, setName, false)}
        <button type="submit" disabled={create.isPending}>
          {t("workspaces.create")}
        </button>
      </form>
      {create.error !== null && <Problem error={create.error} />}
      {create.data !== undefined && (
        <ShownOnce
          hint={t("workspaces.once")}
          secret={create.data.api_key.key}
          close={() => create.reset()}
        />
      )}
    </>
  );
}
