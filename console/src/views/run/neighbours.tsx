import { Link, useNavigate } from "@tanstack/react-router";
import { useText } from "../../i18n";
import type { RunFilters } from "../../lib/filters";
import { useKeys } from "../../ui/keys";
import { useRunList } from "../runs/list";

/** Back to the list, and the next and previous run within its filter. */
export function Neighbours({ runId, filters }: { runId: string; filters: RunFilters }) {
  const t = useText();
  const navigate = useNavigate();
  const { runs } = useRunList(filters);
  const index = runs.findIndex((run) => run.run_id === runId);
  const next = index < 0 ? undefined : runs[index + 1]?.run_id;
  const previous = runs[index - 1]?.run_id;
  const open = (id: string | undefined) => {
    if (id !== undefined) void navigate({ to: "/runs/$runId", params: { runId: id }, search: filters });
  };
  useKeys([
    { key: "j", what: "keys.nextRun", run: () => open(next) },
    { key: "k", what: "keys.previousRun", run: () => open(previous) },
    { key: "u", what: "keys.up", run: () => void navigate({ to: "/runs", search: filters }) },
  ]);
  return (
    <p className="neighbours">
      <Link to="/runs" search={filters}>
        ← {t("nav.runs")}
      </Link>
      <button
        type="button"
        className="quiet"
        disabled={previous === undefined}
        onClick={() => open(previous)}
      >
        {t("run.previous")}
      </button>
      <button type="button" className="quiet" disabled={next === undefined} onClick={() => open(next)}>
        {t("run.next")}
      </button>
    </p>
  );
}
