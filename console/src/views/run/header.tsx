import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Run, Schema } from "../../api/client";
import { record } from "../../api/errors";
import { eventQuery, usageQuery } from "../../api/queries";
import { useRights } from "../../api/rights";
import { type Translate, useText } from "../../i18n";
import { cancelCall, retryCall, runCall } from "../../lib/acts";
import { writeOut } from "../../lib/answer-form";
import { count, duration, money } from "../../lib/format";
import { budgetAnchor, refusingBudget } from "../../lib/usage";
import { plainWord } from "../../lib/words";
import { ConversationLink } from "../../ui/conversation-link";
import { type CopiedAct, CopyMenu } from "../../ui/copy-menu";
import { KeyName } from "../../ui/key-name";
import { Copy, type Fact, Facts } from "../../ui/parts";
import { PrincipalName } from "../../ui/principal";
import { RunState } from "../../ui/run-state";
import { isLive, isPlainEnd } from "../../ui/status";
import { useNow, When } from "../../ui/when";
import { runnersQuery } from "../agents/queries";
import { endpointsQuery } from "../endpoints/queries";
import { RunActions } from "./actions";
import { RunQuestions, useAnswered } from "./state";

/** What happened, why, for whom, how long and at what cost. */
export function RunHeader({ run }: { run: Run }) {
  const t = useText();
  const answered = useAnswered(run);
  const answer = answered && t("run.answerTo", { title: writeOut(answered.request.title) });
  return (
    <header className="run-header">
      <h1>
        <RunState run={run} /> {run.input_preview ?? answer ?? run.agent_name ?? run.run_id}
      </h1>
      <Reason run={run} />
      <RunQuestions run={run} />
      <RunFacts run={run} />
      <div className="actions">
        <RunActions run={run} />
        <EditLink run={run} />
        <Link
          className="button quiet"
          to="/compare"
          search={{ a: run.retry_of ?? run.run_id, b: run.retry_of ? run.run_id : undefined }}
        >
          {t("run.compare")}
        </Link>
        <Copy text={run.run_id} label="run.copyId" />
        <CopyMenu acts={actsOf(t, run)} />
      </div>
    </header>
  );
}

function actsOf(t: Translate, run: Run): CopiedAct[] {
  const acts: CopiedAct[] = [{ label: t("copyAs.read"), call: runCall(run.run_id) }];
  if (isLive(run.status)) acts.push({ label: t("cancel.confirm"), call: cancelCall(run.run_id) });
  else if (run.status !== "completed") acts.push({ label: t("run.retry"), call: retryCall(run.run_id) });
  return acts;
}

/** Opens the run's message in the form. The API has the beginning of longer ones only. */
function EditLink({ run }: { run: Run }) {
  const t = useText();
  const text = run.input_preview;
  if (!text || text.endsWith("…") || run.parent_run_id) return null;
  const search = {
    text,
    conversation_id: run.conversation_id ?? undefined,
    bot_id: run.bot_id ?? undefined,
    thread_id: run.thread_id ?? undefined,
  };
  return (
    <Link className="button quiet" to="/try" search={search}>
      {t("run.edit")}
    </Link>
  );
}

export function Reason({ run }: { run: Run }) {
  const t = useText();
  const { code, message } = record(run.error);
  if (typeof code === "string" || typeof message === "string") {
    return (
      <p className="problem">
        {typeof code === "string" && <code>{code}</code>} {typeof message === "string" && message}{" "}
        {typeof message === "string" && <BudgetLink message={message} />}
      </p>
    );
  }
  return run.status_reason && !isPlainEnd(run) ? (
    <p className="reason">{plainWord(t, run.status_reason)}</p>
  ) : null;
}

/** Leads from a refused call to the budget that refused it. */
function BudgetLink({ message }: { message: string }) {
  const t = useText();
  const budget = refusingBudget(message);
  if (budget === undefined) return null;
  return (
    <Link to="/usage" hash={budgetAnchor(budget)}>
      {t("budgets.show", { name: budget })}
    </Link>
  );
}

function RunFacts({ run }: { run: Run }) {
  const t = useText();
  const usage = useQuery(usageQuery(run)).data?.total;
  const event = useQuery(eventQuery(run.event_id)).data;
  const tokens = (usage?.prompt_tokens ?? 0) + (usage?.completion_tokens ?? 0);
  const endpoint = useEndpoint(run);
  const actor = event?.actor_name ?? event?.actor_id;
  const facts: Fact[] = [
    { label: t("run.agent"), value: <AgentLink run={run} /> },
    { label: t("run.runner"), value: run.runner_id },
    { label: t("run.endpoint"), value: endpoint && <EndpointLink endpoint={endpoint} /> },
    { label: t("run.by"), value: <From actor={actor} keyId={run.posted_by} /> },
    { label: t("run.event"), value: event && `${event.event_type} (${event.source})` },
    { label: t("run.created"), value: <When at={run.created_at} /> },
    { label: t("run.duration"), value: <Elapsed run={run} /> },
    {
      label: t("run.deadline"),
      value: isLive(run.status) && run.deadline_at ? <When at={run.deadline_at} /> : null,
    },
    { label: t("run.attempts"), value: run.dispatch_attempts > 1 ? run.dispatch_attempts : null },
    { label: t("run.calls"), value: usage && usage.calls > 0 ? count(usage.calls) : null },
    { label: t("run.tokens"), value: tokens > 0 ? count(tokens) : null },
    { label: t("run.cost"), value: usage && usage.cost > 0 ? money(usage.cost) : null },
    { label: t("run.conversation"), value: run.conversation_id && <ConversationLink run={run} /> },
    { label: t("run.parent"), value: run.parent_run_id && <RunLink runId={run.parent_run_id} /> },
    { label: t("run.retryOf"), value: run.retry_of && <RetriedRun run={run} runId={run.retry_of} /> },
    { label: t("run.retriedAs"), value: run.retried_as && <RunLink runId={run.retried_as} /> },
    {
      label: t("run.cancelledBy"),
      value: run.cancel_requested_at == null ? null : <CancelledBy run={run} />,
    },
  ];
  return <Facts facts={facts} />;
}

function CancelledBy({ run }: { run: Run }) {
  return (
    <>
      {run.cancelled_by != null && (
        <>
          <PrincipalName principal={run.cancelled_by} /> ·{" "}
        </>
      )}
      <When at={run.cancel_requested_at} />
    </>
  );
}

/** Name of the agent, as a link for those who may read it. */
export function AgentLink({ run }: { run: Run }) {
  const rights = useRights();
  const name = run.agent_name ?? run.agent_id;
  if (!rights?.readsAdmin || run.agent_name == null) return <>{name}</>;
  return (
    <Link to="/agents/$agentId" params={{ agentId: run.agent_id }}>
      {name}
    </Link>
  );
}

/** The endpoint that serves the run's runner now. */
function useEndpoint(run: Run) {
  const rights = useRights();
  const enabled = rights?.readsAdmin === true;
  const name = useQuery({ ...runnersQuery(), enabled }).data?.items.find(
    ({ id }) => id === run.runner_id,
  )?.endpoint;
  const endpoints = useQuery({ ...endpointsQuery(), enabled, refetchInterval: false }).data;
  return endpoints?.items.find((endpoint) => endpoint.name === name);
}

function EndpointLink({ endpoint }: { endpoint: Schema<"RunnerEndpoint"> }) {
  return (
    <>
      <Link to="/endpoints" hash={`endpoint-${endpoint.name}`}>
        {endpoint.name}
      </Link>{" "}
      {endpoint.base_url}
      {endpoint.health !== "healthy" && (
        <p className="reason">
          {endpoint.health} {endpoint.health_reason}
        </p>
      )}
    </>
  );
}

/** The person of the event, and the API key that posted it. */
function From({ actor, keyId }: { actor: string | null | undefined; keyId: string | null | undefined }) {
  const t = useText();
  if (!keyId) return <>{actor ?? "–"}</>;
  return (
    <>
      {actor && `${actor} · `}
      {t("run.key")} <KeyName keyId={keyId} />
    </>
  );
}

function Elapsed({ run }: { run: Run }) {
  const now = useNow();
  if (run.duration_ms != null) return <>{duration(run.duration_ms)}</>;
  if (!isLive(run.status)) return <>–</>;
  return <>{duration(Math.max(0, now - (run.started_at ?? run.created_at)) * 1000)}</>;
}

/** The run that this one repeats, and the result after which it begins. */
function RetriedRun({ run, runId }: { run: Run; runId: string }) {
  const t = useText();
  return (
    <>
      <RunLink runId={runId} />
      {run.retry_from != null && ` ${t("chain.after", { n: run.retry_from })}`}
    </>
  );
}

function RunLink({ runId }: { runId: string }) {
  return (
    <Link to="/runs/$runId" params={{ runId }}>
      {runId}
    </Link>
  );
}
