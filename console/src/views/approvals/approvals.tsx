import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect } from "react";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import {
  APPROVAL_STATES,
  type ApprovalFilters,
  isShown,
  readApprovalFilters,
  SHOWN_STATES,
} from "../../lib/approvals";
import { PAGE } from "../../lib/pages";
import { curl } from "../../lib/snippets";
import { ListAge } from "../../ui/age";
import { AgentChoice } from "../../ui/agent-choice";
import { CopyMenu } from "../../ui/copy-menu";
import { FilterForm } from "../../ui/filter-form";
import { Empty, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { Denials } from "./denials";
import { approvalsQuery } from "./queries";
import { ApprovalTable } from "./table";

/** Pages that a filter searches without a click: the active approvals that a workspace may have. */
const SEARCHED_PAGES = 10;

const EXAMPLE = {
  agent: "hello",
  tool: "fs_*",
  count: 200,
  arguments: { "/path": { prefix: "/srv/shop/" } },
};
const LIST = { method: "GET", path: `/v1/approvals?limit=${PAGE}` } as const;

/** Approvals of tool calls, newest first, and the calls that were denied. */
export function Approvals() {
  const t = useText();
  const rights = useRights();
  const filters = useSearch({ from: "/approvals" });
  return (
    <main>
      <h1>{t("nav.approvals")}</h1>
      {rights?.approves && (
        <p>
          <Link to="/approvals/$approvalId" params={{ approvalId: "new" }}>
            {t("approvals.new")}
          </Link>
        </p>
      )}
      <Filters filters={filters} />
      {filters.status !== "denied" && <Found filters={filters} />}
      {/* A question does not have its agent. */}
      {(filters.status ?? "denied") === "denied" && filters.agent_id === undefined && (
        <Denials filters={filters} />
      )}
      <CopyMenu acts={[{ label: t("nav.approvals"), call: LIST }]} />
    </main>
  );
}

function Found({ filters }: { filters: ApprovalFilters }) {
  const t = useText();
  const approvals = useInfiniteQuery(approvalsQuery());
  const { error, fetchNextPage, hasNextPage, isFetching } = approvals;
  const pages = approvals.data?.pages ?? [];
  const loaded = pages.flatMap((page) => page.items);
  const items = loaded.filter((approval) => isShown(approval, filters));
  const isFiltered = Object.values(filters).some((value) => value !== undefined);
  // The API has no filters, so the page reads on until it has found a page of matches.
  const readsOn = isFiltered && hasNextPage && pages.length < SEARCHED_PAGES && items.length < PAGE;
  const isDue = readsOn && !isFetching && error === null;
  useEffect(() => {
    if (isDue) void fetchNextPage();
  }, [isDue, fetchNextPage]);
  return (
    <>
      {(approvals.isPending || (readsOn && error === null)) && <Loading what="nav.approvals" />}
      {error !== null && <Problem error={error} retry={() => void approvals.refetch()} />}
      <ListAge of={approvals} />
      {approvals.isSuccess &&
        items.length === 0 &&
        !readsOn &&
        (isFiltered ? (
          <Empty text="approvals.noMatch" />
        ) : (
          <Empty
            text="approvals.none"
            command={curl({ method: "POST", path: "/v1/approvals", body: EXAMPLE }, location.origin)}
          />
        ))}
      <ApprovalTable approvals={items} />
      {hasNextPage && (
        <p className="more">
          {isFiltered && <span className="faint">{t("approvals.searched", { n: loaded.length })}</span>}
          <button type="button" onClick={() => void fetchNextPage()} disabled={approvals.isFetchingNextPage}>
            {t("list.more")}
          </button>
        </p>
      )}
    </>
  );
}

function Filters({ filters }: { filters: ApprovalFilters }) {
  const t = useText();
  const navigate = useNavigate({ from: "/approvals" });
  const apply = (next: ApprovalFilters) =>
    void navigate({ search: readApprovalFilters({ ...filters, ...next }) });
  return (
    <section className="filters" aria-label={t("runs.filters")}>
      <div className="quick">
        {[undefined, ...SHOWN_STATES].map((status) => (
          <button
            key={status ?? ""}
            type="button"
            aria-pressed={filters.status === status}
            onClick={() => apply(status === "denied" ? { status, agent_id: undefined } : { status })}
          >
            {status === undefined && t("runs.all")}
            {status === "denied" && t("approvals.denied")}
            {status !== undefined && status !== "denied" && t(APPROVAL_STATES[status].text)}
          </button>
        ))}
        {filters.status !== "denied" && (
          <AgentChoice value={filters.agent_id ?? ""} set={(agent_id) => apply({ agent_id })} />
        )}
      </div>
      <FilterForm
        fields={[{ name: "tool", label: t("filter.tool"), kind: "text" }]}
        values={{ tool: filters.tool }}
        apply={apply}
      />
    </section>
  );
}
