import { useQuery } from "@tanstack/react-query";
import { useNavigate, useParams, useSearch } from "@tanstack/react-router";
import type { Run } from "../../api/client";
import { runQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { readFilters } from "../../lib/filters";
import { Json, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { type Tab, Tabs } from "../../ui/tabs";
import { AnswerPanel } from "./answer";
import { CallsTab } from "./calls";
import { Children } from "./children";
import { EventsTab } from "./events";
import { GrantsTab } from "./grants";
import { RunHeader } from "./header";
import { Neighbours } from "./neighbours";
import { RunPlatformActions } from "./platform-actions";
import { Questions } from "./questions";
import { RejectionsTab } from "./rejections";
import { TimelinePanel } from "./timeline";
import { UsageTab } from "./usage";

export function RunPage() {
  const t = useText();
  const { runId } = useParams({ from: "/runs/$runId" });
  const search = useSearch({ from: "/runs/$runId" });
  const run = useQuery(runQuery(runId));
  return (
    <main className="run">
      <Neighbours runId={runId} filters={readFilters(search)} />
      {run.data === undefined && <h1>{t("run.title")}</h1>}
      {run.isPending && <Loading what="run.title" />}
      {run.error !== null && <Problem error={run.error} retry={() => void run.refetch()} />}
      {run.data !== undefined && <RunDetails key={runId} run={run.data} tab={search.tab} />}
    </main>
  );
}

function RunDetails({ run, tab }: { run: Run; tab: string | undefined }) {
  const t = useText();
  const navigate = useNavigate({ from: "/runs/$runId" });
  const tabs: Tab[] = [
    {
      id: "events",
      label: t("tab.events", { n: run.last_sequence }),
      content: () => <EventsTab run={run} />,
    },
    { id: "calls", label: t("tab.calls"), content: () => <CallsTab run={run} /> },
    { id: "grants", label: t("tab.grants"), content: () => <GrantsTab run={run} /> },
    { id: "usage", label: t("tab.usage"), content: () => <UsageTab run={run} /> },
    { id: "rejections", label: t("tab.rejections"), content: () => <RejectionsTab run={run} /> },
    { id: "raw", label: t("tab.raw"), content: () => <Json value={run} /> },
  ];
  const chosen = tabs.some(({ id }) => id === tab) ? (tab ?? "events") : "events";
  return (
    <>
      <RunHeader run={run} />
      <Questions run={run} />
      <RunPlatformActions run={run} />
      <AnswerPanel run={run} />
      <TimelinePanel run={run} />
      <Children run={run} />
      <Tabs
        tabs={tabs}
        chosen={chosen}
        choose={(id) => void navigate({ search: (before) => ({ ...before, tab: id }), replace: true })}
      />
    </>
  );
}
