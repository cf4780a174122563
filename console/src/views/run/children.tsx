import { type QueryClient, queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Run } from "../../api/client";
import { newestRunsQuery, usageQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { count, duration, money, short } from "../../lib/format";
import { type RunNode, readTree, rollUp, rowsOf, type TreeReader, type TreeRow } from "../../lib/run-tree";
import { Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { isLive, Status } from "../../ui/status";

/** Least time between two reads of a tree, and its part for each run. */
const RENEWAL_MS = 2000;
const RENEWAL_RUN_MS = 250;

function readerOf(client: QueryClient): TreeReader {
  return {
    children: ({ run_id }) =>
      client.fetchQuery({ ...newestRunsQuery({ parent_run_id: run_id }), staleTime: 0 }),
    usage: async (run) => {
      const staleTime = isLive(run.status) ? 0 : Number.POSITIVE_INFINITY;
      const { total } = await client.fetchQuery({ ...usageQuery(run), staleTime });
      return { cost: total.cost, tokens: total.prompt_tokens + total.completion_tokens };
    },
  };
}

function treeQuery(run: Run, client: QueryClient) {
  return queryOptions({
    queryKey: ["run", run.run_id, "tree", run.status],
    queryFn: () => readTree(run, readerOf(client)),
    refetchInterval: ({ state }) => {
      const rows = state.data === undefined ? [] : rowsOf(state.data);
      const isMoving = isLive(run.status) || rows.some(({ node }) => isLive(node.run.status));
      return isMoving && Math.max(RENEWAL_MS, rows.length * RENEWAL_RUN_MS);
    },
  });
}

/** Runs that this run and its child runs have started, with their cost. */
export function Children({ run }: { run: Run }) {
  const t = useText();
  const tree = useQuery(treeQuery(run, useQueryClient()));
  if (tree.error !== null) return <Problem error={tree.error} retry={() => void tree.refetch()} />;
  if (tree.data === undefined || tree.data.children.length === 0) return null;
  return (
    <section aria-label={t("run.children")}>
      <h2>{t("run.children")}</h2>
      <Scroll>
        <table className="list">
          <thead>
            <tr>
              <th>{t("run.title")}</th>
              <th>{t("run.status")}</th>
              <th>{t("run.agent")}</th>
              <th className="number">{t("run.duration")}</th>
              <th className="number">{t("run.tokens")}</th>
              <th className="number">{t("run.cost")}</th>
              <th className="number">{t("children.tokens")}</th>
              <th className="number">{t("children.cost")}</th>
            </tr>
          </thead>
          <tbody>
            {rowsOf(tree.data).map((row) => (
              <ChildRow key={row.node.run.run_id} row={row} />
            ))}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}

function ChildRow({ row: { node, depth } }: { row: TreeRow }) {
  const { run, own } = node;
  const all = rollUp(node);
  return (
    <tr>
      <td className="wide" style={{ paddingLeft: 8 + 20 * depth }}>
        <RunTitle node={node} depth={depth} />
      </td>
      <td>
        <Status status={run.status} />
      </td>
      <td>{run.agent_name}</td>
      <td className="number">{run.duration_ms == null ? "" : duration(run.duration_ms)}</td>
      <td className="number">{count(own.tokens)}</td>
      <td className="number">{money(own.cost)}</td>
      <td className="number">{count(all.tokens)}</td>
      <td className="number">{money(all.cost)}</td>
    </tr>
  );
}

function RunTitle({ node: { run, isCut }, depth }: { node: RunNode; depth: number }) {
  const t = useText();
  const title = run.input_preview ?? short(run.run_id);
  return (
    <>
      {depth === 0 ? (
        t("children.this")
      ) : (
        <>
          <span className="faint">{"└".repeat(depth)}</span>{" "}
          <Link className="row" to="/runs/$runId" params={{ runId: run.run_id }}>
            {title}
          </Link>
        </>
      )}
      {isCut && <MoreChildren runId={run.run_id} />}
    </>
  );
}

/** The list of runs has those that the tree leaves out. */
function MoreChildren({ runId }: { runId: string }) {
  const t = useText();
  return (
    <p className="reason">
      <Link to="/runs" search={{ parent_run_id: runId }}>
        {t("children.more")}
      </Link>
    </p>
  );
}
