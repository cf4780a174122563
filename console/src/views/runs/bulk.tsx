import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useEffect, useId, useState } from "react";
import { api, dataOf, type Schema } from "../../api/client";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { type BulkKind, bulkKind } from "../../lib/bulk";
import { sumOf } from "../../lib/counts";
import { queryOf, type RunFilters } from "../../lib/filters";
import { short } from "../../lib/format";
import { Dialog } from "../../ui/dialog";
import { Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { STATUSES } from "../../ui/status";
import { countsQuery } from "./counts";

const JOB_MS = 1000;

/** Cancels or repeats all runs of a filter whose statuses allow it. */
export function BulkActions({ filters }: { filters: RunFilters }) {
  const t = useText();
  const rights = useRights();
  const id = useId();
  const [isOpen, setOpen] = useState(false);
  const kind = bulkKind(filters);
  const counts = useQuery({ ...countsQuery(filters), enabled: kind !== null && rights?.acts === true }).data;
  if (kind === null || !rights?.acts) return null;
  // A lower bound is no zero.
  const isEmpty = sumOf(counts, STATUSES) === "0";
  return (
    <>
      <button
        type="button"
        className={kind === "cancel" ? "danger" : ""}
        disabled={isEmpty}
        aria-describedby={isEmpty ? id : undefined}
        onClick={() => setOpen(true)}
      >
        {t(`bulk.${kind}`)}
      </button>
      {isEmpty && (
        <span id={id} className="faint">
          {t("bulk.empty")}
        </span>
      )}
      {isOpen && <BulkDialog kind={kind} filters={filters} close={() => setOpen(false)} />}
    </>
  );
}

interface BulkProps {
  kind: BulkKind;
  filters: RunFilters;
  close: () => void;
}

/** A dry run answers the number of runs, an act its job. */
function post(kind: BulkKind, filters: RunFilters, body: Schema<"BulkRequest">, signal?: AbortSignal) {
  const options = { params: { query: queryOf(filters) }, body, ...(signal === undefined ? {} : { signal }) };
  return kind === "cancel"
    ? dataOf(api.POST("/v1/runs/cancel", options))
    : dataOf(api.POST("/v1/runs/retry", options));
}

function BulkDialog({ kind, filters, close }: BulkProps) {
  const t = useText();
  const matching = useQuery({
    queryKey: ["bulk", filters],
    queryFn: ({ signal }) => post(kind, filters, { dry_run: true }, signal) as Promise<Schema<"BulkPreview">>,
    // The number that is typed back is the one that the gateway compares.
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
  });
  return (
    <Dialog title={t(`bulk.${kind}`)} close={close}>
      {matching.isPending && <Loading what="nav.runs" />}
      {matching.error !== null && <Problem error={matching.error} />}
      {matching.data !== undefined && <Confirm kind={kind} filters={filters} matching={matching.data} />}
    </Dialog>
  );
}

interface ConfirmProps {
  kind: BulkKind;
  filters: RunFilters;
  matching: Schema<"BulkPreview">;
}

function Confirm({ kind, filters, matching }: ConfirmProps) {
  const t = useText();
  const [typed, setTyped] = useState("");
  const total = matching.count;
  const start = useMutation({
    mutationFn: () => post(kind, filters, { expect: total }) as Promise<Schema<"BulkJob">>,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    start.mutate();
  };
  if (start.data !== undefined) return <Report kind={kind} started={start.data} />;
  return (
    <form onSubmit={submit}>
      <p>{t(`bulk.${kind}Effect`, { n: total })}</p>
      <ul>
        {matching.first.map((run) => (
          <li key={run.run_id}>
            {run.agent_name ?? short(run.agent_id)}: {run.input_preview ?? short(run.run_id)}
          </li>
        ))}
      </ul>
      {total > matching.first.length && (
        <p className="faint">{t("bulk.more", { n: total - matching.first.length })}</p>
      )}
      <label className="field">
        {t("bulk.type", { n: total })}{" "}
        <input inputMode="numeric" value={typed} onChange={(event) => setTyped(event.target.value)} />
      </label>
      {typed.trim() !== "" && !`${total}`.startsWith(typed.trim()) && (
        <p className="problem" role="alert">
          {t("bulk.wrong", { n: total })}
        </p>
      )}
      {start.error !== null && <Problem error={start.error} />}
      <div className="actions">
        <button
          type="submit"
          className="danger"
          disabled={total === 0 || typed.trim() !== `${total}` || start.isPending}
        >
          {t(`bulk.${kind}`)}
        </button>
      </div>
    </form>
  );
}

function Report({ kind, started }: { kind: BulkKind; started: Schema<"BulkJob"> }) {
  const t = useText();
  const client = useQueryClient();
  const path = { job_id: started.id };
  const found = useQuery({
    queryKey: ["job", started.id],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/jobs/{job_id}", { params: { path }, signal })),
    initialData: started,
    refetchInterval: ({ state }) => (state.data?.finished_at == null ? JOB_MS : false),
  });
  const job = found.data;
  const isOver = job.finished_at != null;
  useEffect(() => {
    if (isOver) void client.invalidateQueries({ queryKey: ["runs"] });
  }, [client, isOver]);
  return (
    <>
      <progress max={job.total} value={job.done + job.failed} aria-label={t("bulk.progress")} />
      <p role="status">
        {t(`bulk.${kind}Done`, { n: job.done, all: job.total })}
        {job.failed > 0 && ` · ${t("bulk.failed", { n: job.failed })}`}
      </p>
      <ul>
        {job.errors.map((error) => (
          <li key={error.run_id}>
            <code>{error.run_id}</code> {error.message}
          </li>
        ))}
      </ul>
      {found.error !== null && <Problem error={found.error} />}
      {!isOver && <p className="faint">{t("bulk.continues")}</p>}
    </>
  );
}
