import { useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useEffect, useId, useRef, useState } from "react";
import { api, dataOf } from "../../api/client";
import { nextCursor } from "../../api/queries";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import {
  actOnAll,
  type BulkKind,
  bulkKind,
  collectRuns,
  countByAgent,
  type Matching,
  type Progress,
} from "../../lib/bulk";
import { sumOf } from "../../lib/counts";
import { queryOf, type RunFilters } from "../../lib/filters";
import { PAGE } from "../../lib/pages";
import { Dialog } from "../../ui/dialog";
import { Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { STATUSES } from "../../ui/status";
import { countsQuery } from "./counts";

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

function BulkDialog({ kind, filters, close }: BulkProps) {
  const t = useText();
  const matching = useQuery({
    queryKey: ["bulk", filters],
    queryFn: ({ signal }) =>
      collectRuns(async (cursor) => {
        const query = { ...queryOf(filters), limit: PAGE, ...(cursor === undefined ? {} : { cursor }) };
        const page = await dataOf(api.GET("/v1/runs", { params: { query }, signal }));
        return { items: page.items, next: nextCursor(page) };
      }),
    // The number that is typed back is that of the runs that are acted on.
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
  });
  return (
    <Dialog title={t(`bulk.${kind}`)} close={close}>
      {matching.isPending && <Loading what="nav.runs" />}
      {matching.error !== null && <Problem error={matching.error} />}
      {matching.data !== undefined && <Confirm kind={kind} matching={matching.data} />}
    </Dialog>
  );
}

function Confirm({ kind, matching }: { kind: BulkKind; matching: Matching }) {
  const t = useText();
  const client = useQueryClient();
  const [typed, setTyped] = useState("");
  const [progress, setProgress] = useState<Progress | null>(null);
  const abort = useRef(new AbortController());
  useEffect(() => {
    abort.current = new AbortController();
    return () => abort.current.abort();
  }, []);
  const total = matching.runs.length;
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setProgress({ done: 0, failed: [] });
    await actOnAll(matching.runs, (runId) => act(kind, runId), setProgress, abort.current.signal);
    await client.invalidateQueries({ queryKey: ["runs"] });
  };
  if (progress !== null) return <Report kind={kind} progress={progress} total={total} />;
  return (
    <form onSubmit={(event) => void submit(event)}>
      <p>{t(`bulk.${kind}Effect`, { n: total })}</p>
      {matching.isCut && <p className="problem">{t("bulk.cut", { n: total })}</p>}
      <ul>
        {countByAgent(matching.runs).map(([agent, count]) => (
          <li key={agent}>
            {agent}: {count}
          </li>
        ))}
      </ul>
      <label className="field">
        {t("bulk.type", { n: total })}{" "}
        <input inputMode="numeric" value={typed} onChange={(event) => setTyped(event.target.value)} />
      </label>
      {typed.trim() !== "" && !`${total}`.startsWith(typed.trim()) && (
        <p className="problem" role="alert">
          {t("bulk.wrong", { n: total })}
        </p>
      )}
      <div className="actions">
        <button type="submit" className="danger" disabled={total === 0 || typed.trim() !== `${total}`}>
          {t(`bulk.${kind}`)}
        </button>
      </div>
    </form>
  );
}

function act(kind: BulkKind, runId: string): Promise<unknown> {
  const params = { path: { run_id: runId } };
  return kind === "cancel"
    ? dataOf(api.POST("/v1/runs/{run_id}/cancel", { params }))
    : dataOf(api.POST("/v1/runs/{run_id}/retry", { params }));
}

function Report({ kind, progress, total }: { kind: BulkKind; progress: Progress; total: number }) {
  const t = useText();
  return (
    <>
      <progress max={total} value={progress.done} aria-label={t("bulk.progress")} />
      <p role="status">
        {t(`bulk.${kind}Done`, { n: progress.done - progress.failed.length, all: total })}
        {progress.failed.length > 0 && ` · ${t("bulk.failed", { n: progress.failed.length })}`}
      </p>
      <ul>
        {progress.failed.map(({ runId, reason }) => (
          <li key={runId}>
            <code>{runId}</code> {reason}
          </li>
        ))}
      </ul>
      {progress.done < total && <p className="faint">{t("bulk.closeStops")}</p>}
    </>
  );
}
