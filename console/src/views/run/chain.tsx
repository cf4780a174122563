import { queryOptions, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { api, dataOf, type Run, type RunEvent } from "../../api/client";
import { runQuery } from "../../api/queries";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { readChain } from "../../lib/chain";
import { duration, short } from "../../lib/format";
import { Problem } from "../../ui/problem";
import { RunState } from "../../ui/run-state";
import { isLive } from "../../ui/status";

/** The retries of the run's event as one history; nothing for a run without a retry. */
export function RetryChain({ run }: { run: Run }) {
  const t = useText();
  const client = useQueryClient();
  const chain = useQuery(
    queryOptions({
      queryKey: ["run", run.run_id, "chain", run.status, run.retried_as ?? null],
      queryFn: () => readChain(run, (id) => client.fetchQuery(runQuery(id))),
    }),
  );
  if (chain.data === undefined || chain.data.length < 2) return null;
  return (
    <ol className="chain" aria-label={t("chain.title")}>
      {chain.data.map((one) => (
        <li key={one.run_id} aria-current={one.run_id === run.run_id ? "true" : undefined}>
          {one.retry_from != null && (
            <span className="faint">{t("chain.after", { n: one.retry_from })} </span>
          )}
          <RunState run={one} />{" "}
          {one.run_id === run.run_id ? (
            t("chain.this")
          ) : (
            <Link to="/runs/$runId" params={{ runId: one.run_id }}>
              {short(one.run_id)}
            </Link>
          )}
          {one.duration_ms != null && <span className="faint"> {duration(one.duration_ms)}</span>}
        </li>
      ))}
    </ol>
  );
}

/** Retries an ended run after one of its results; nothing where no retry can begin. */
export function RetryFrom({ run, event }: { run: Run; event: RunEvent }) {
  const t = useText();
  const navigate = useNavigate();
  const rights = useRights();
  const path = { run_id: run.run_id };
  const retry = useMutation({
    mutationFn: () =>
      dataOf(api.POST("/v1/runs/{run_id}/retry", { params: { path }, body: { from: event.sequence } })),
    onSuccess: (next) => navigate({ to: "/runs/$runId", params: { runId: next.run_id } }),
  });
  const isPoint =
    event.source === "runner" && event.type !== "message.delta" && event.sequence < run.last_sequence;
  const isRetryable = !isLive(run.status) && run.status !== "completed" && run.retried_as == null;
  if (!rights?.acts || !isPoint || !isRetryable || run.parent_run_id != null) return null;
  return (
    <>
      <button type="button" className="quiet" disabled={retry.isPending} onClick={() => retry.mutate()}>
        {t("chain.retryFrom")}
      </button>
      {retry.error !== null && <Problem error={retry.error} />}
    </>
  );
}
