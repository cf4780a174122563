import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import type { FormEvent } from "react";
import type { Run, Schema } from "../../api/client";
import { record } from "../../api/errors";
import { auditQuery, authorizationQuery, runQuery, usageQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { textOf } from "../../lib/answer";
import { readDecisions } from "../../lib/decisions";
import { count, duration, money, short } from "../../lib/format";
import { DiffView } from "../../ui/diff";
import { Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { Status } from "../../ui/status";
import { Text } from "../../ui/text";

/** Two runs next to each other: facts, answers, calls and grants. */
export function Compare() {
  const t = useText();
  const navigate = useNavigate();
  const { a = "", b = "" } = useSearch({ from: "/compare" });
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    void navigate({ to: "/compare", search: { a: `${form.get("a")}`.trim(), b: `${form.get("b")}`.trim() } });
  };
  return (
    <main>
      <h1>{t("compare.title")}</h1>
      <form className="columns" onSubmit={submit} key={`${a} ${b}`}>
        <label>
          {t("compare.first")}
          <input name="a" required defaultValue={a} />
        </label>
        <label>
          {t("compare.second")}
          <input name="b" required defaultValue={b} />
        </label>
        <button type="submit">{t("compare.show")}</button>
      </form>
      {a !== "" && b !== "" && <Loaded a={a} b={b} />}
    </main>
  );
}

function Loaded({ a, b }: { a: string; b: string }) {
  const first = useQuery(runQuery(a));
  const second = useQuery(runQuery(b));
  const error = first.error ?? second.error;
  if (error !== null) return <Problem error={error} />;
  if (first.data === undefined || second.data === undefined) return <Loading what="compare.title" />;
  return <Comparison a={first.data} b={second.data} />;
}

function Comparison({ a, b }: { a: Run; b: Run }) {
  const t = useText();
  return (
    <>
      <FactTable a={a} b={b} />
      <h2>{t("run.answer")}</h2>
      <div className="sides">
        <Text>{answerOf(a)}</Text>
        <Text>{answerOf(b)}</Text>
      </div>
      <h2>{t("tab.calls")}</h2>
      <DiffView before={useCalls(a)} after={useCalls(b)} />
      <h2>{t("tab.grants")}</h2>
      <DiffView before={useGrants(a)} after={useGrants(b)} />
    </>
  );
}

function answerOf(run: Run): string {
  return textOf(record(run.output).content as Schema<"MessageContent"> | undefined) || "–";
}

/** One line for each call, without times: equal calls are equal lines. */
function useCalls(run: Run): string {
  const audit = useInfiniteQuery(auditQuery(run));
  const calls = audit.data?.pages.flatMap((page) => page.items) ?? [];
  return calls
    .map((call) => `${call.action} ${call.resource} ${call.decision} ${call.outcome ?? ""}`.trim())
    .join("\n");
}

function useGrants(run: Run): string {
  const authorization = useQuery(authorizationQuery(run.run_id));
  return readDecisions(authorization.data?.decisions ?? [])
    .map(
      ({ kind, id, operation, granted, rule }) =>
        `${granted ? "✓" : "✗"} ${kind} ${id} ${operation}: ${rule}`,
    )
    .toSorted()
    .join("\n");
}

function FactTable({ a, b }: { a: Run; b: Run }) {
  const t = useText();
  const [first, second] = [useFacts(a), useFacts(b)];
  return (
    <table className="list compared">
      <thead>
        <tr>
          <td />
          {[a, b].map((run, index) => (
            <th key={index === 0 ? "a" : "b"}>
              <Link to="/runs/$runId" params={{ runId: run.run_id }}>
                {short(run.run_id)}
              </Link>{" "}
              <Status status={run.status} />
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {first.map(([label, value], index) => (
          <tr key={label}>
            <td>{t(label)}</td>
            <td>{value}</td>
            <td className={value === second[index]?.[1] ? "" : "differs"}>{second[index]?.[1]}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function useFacts(run: Run) {
  const usage = useQuery(usageQuery(run)).data?.total;
  const { code, message } = record(run.error);
  return [
    ["run.input", run.input_preview ?? ""],
    ["run.agent", run.agent_name ?? run.agent_id],
    ["run.runner", run.runner_id],
    ["compare.reason", [code, message].filter(Boolean).join(" ") || (run.status_reason ?? "")],
    ["run.duration", run.duration_ms == null ? "" : duration(run.duration_ms)],
    ["run.calls", count(usage?.calls ?? 0)],
    ["run.tokens", count((usage?.prompt_tokens ?? 0) + (usage?.completion_tokens ?? 0))],
    ["run.cost", money(usage?.cost ?? 0)],
  ] as const;
}
