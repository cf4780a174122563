import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, dataOf, type Run } from "../../api/client";
import { interactionsQuery, newestRunsQuery } from "../../api/queries";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { Dialog } from "../../ui/dialog";
import { Problem } from "../../ui/problem";
import { isLive, LIVE } from "../../ui/status";

export function RunActions({ run }: { run: Run }) {
  const rights = useRights();
  if (!rights?.acts) return null;
  if (isLive(run.status)) return <CancelAction run={run} />;
  return run.status === "completed" ? null : <RetryAction run={run} />;
}

function RetryAction({ run }: { run: Run }) {
  const t = useText();
  const navigate = useNavigate();
  const path = { run_id: run.run_id };
  const retry = useMutation({
    mutationFn: () => dataOf(api.POST("/v1/runs/{run_id}/retry", { params: { path } })),
    onSuccess: (next) => navigate({ to: "/runs/$runId", params: { runId: next.run_id } }),
  });
  return (
    <>
      <button type="button" className="primary" disabled={retry.isPending} onClick={() => retry.mutate()}>
        {t("run.retry")}
      </button>
      {retry.error !== null && <Problem error={retry.error} />}
    </>
  );
}

function CancelAction({ run }: { run: Run }) {
  const t = useText();
  const [isAsking, setAsking] = useState(false);
  if (run.cancel_requested_at != null) return <span className="faint">{t("cancel.requested")}</span>;
  return (
    <>
      <button type="button" className="danger" onClick={() => setAsking(true)}>
        {t("cancel.open")}
      </button>
      {isAsking && <CancelDialog run={run} close={() => setAsking(false)} />}
    </>
  );
}

function CancelDialog({ run, close }: { run: Run; close: () => void }) {
  const t = useText();
  const client = useQueryClient();
  const children = useQuery(newestRunsQuery({ parent_run_id: run.run_id, statuses: LIVE.join(",") }));
  const questions = useQuery(interactionsQuery({ run_id: run.run_id, status: "open" }));
  const path = { run_id: run.run_id };
  const cancel = useMutation({
    mutationFn: () => dataOf(api.POST("/v1/runs/{run_id}/cancel", { params: { path } })),
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: ["run", run.run_id] });
      close();
    },
  });
  return (
    <Dialog title={t("cancel.title")} close={close}>
      <p>{t("cancel.stops")}</p>
      <ul>
        <li>{t("cancel.run", { runner: run.runner_id })}</li>
        <li>{t("cancel.token")}</li>
        <li>{t("cancel.children", { n: children.data?.items.length ?? "…" })}</li>
        <li>{t("cancel.questions", { n: questions.data?.items.length ?? "…" })}</li>
      </ul>
      {cancel.error !== null && <Problem error={cancel.error} />}
      <div className="actions">
        <button type="button" className="danger" disabled={cancel.isPending} onClick={() => cancel.mutate()}>
          {t("cancel.confirm")}
        </button>
        <button type="button" onClick={close}>
          {t("cancel.keep")}
        </button>
      </div>
    </Dialog>
  );
}
