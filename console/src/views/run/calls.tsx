import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import type { AuditEntry, Run, Schema } from "../../api/client";
import { auditQuery, authorizationQuery } from "../../api/queries";
import { useRights } from "../../api/rights";
import { type Translate, useText } from "../../i18n";
import { writeOut } from "../../lib/answer-form";
import { bytes, count, duration, short } from "../../lib/format";
import { plainWord } from "../../lib/words";
import { Badge, Empty, Loading, Scroll } from "../../ui/parts";
import { PrincipalName } from "../../ui/principal";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";
import { LastChange } from "../agents/last-change";
import { agentQuery } from "../agents/queries";
import { RunQuestions } from "./state";

export function CallsTab({ run }: { run: Run }) {
  const t = useText();
  const audit = useInfiniteQuery(auditQuery(run));
  const [search, setSearch] = useState("");
  if (audit.isPending) return <Loading what="tab.calls" />;
  if (audit.error !== null) return <Problem error={audit.error} retry={() => void audit.refetch()} />;
  const calls = audit.data.pages.flatMap((page) => page.items);
  if (calls.length === 0) return <Empty text="calls.none" />;
  const words = search.toLowerCase().split(/\s+/);
  const found = calls.filter((call) => {
    const text = searchText(t, call);
    return words.every((word) => text.includes(word));
  });
  return (
    <Scroll>
      <RunQuestions run={run} />
      <Policy run={run} />
      <div className="quick">
        <input
          type="search"
          aria-label={t("calls.search")}
          placeholder={t("calls.search")}
          value={search}
          onChange={(event) => setSearch(event.target.value)}
        />
        <span className="faint" role="status">
          {t("calls.found", { n: found.length, all: calls.length })}
        </span>
      </div>
      <table className="list">
        <thead>
          <tr>
            <th className="number">{t("calls.at")}</th>
            <th>{t("calls.call")}</th>
            <th>{t("calls.decision")}</th>
            <th>{t("calls.outcome")}</th>
            <th className="number">{t("run.duration")}</th>
            <th className="number">{t("run.tokens")}</th>
            <th className="number">{t("calls.bytes")}</th>
          </tr>
        </thead>
        <tbody>
          {found.map((call) => (
            <CallRow key={call.id} call={call} />
          ))}
        </tbody>
      </table>
      {audit.hasNextPage && (
        <button type="button" onClick={() => void audit.fetchNextPage()} disabled={audit.isFetchingNextPage}>
          {t("list.more")}
        </button>
      )}
    </Scroll>
  );
}

/** Text of a call for the search: the call, the rule that allowed it, and the answered question with its key. */
function searchText(t: Translate, call: AuditEntry): string {
  const { action, resource, operation, decision, rule, outcome, approval, approval_id } = call;
  const shown = [plainWord(t, decision), plainWord(t, rule)];
  const question = approval && [approval.title, approval.action_id, approval.by.name, approval.by.id];
  return [action, resource, operation, decision, rule, outcome, approval_id, ...shown, ...(question ?? [])]
    .join(" ")
    .toLowerCase();
}

/** The agent whose policy grants, and its last change. */
function Policy({ run }: { run: Run }) {
  const t = useText();
  const rights = useRights();
  const version = useQuery(authorizationQuery(run.run_id)).data?.agent_version;
  const agent = useQuery({
    ...agentQuery(run.agent_id),
    enabled: rights?.readsAdmin === true,
    retry: false,
  }).data;
  if (version === undefined) return null;
  return (
    <>
      <p className="reason">
        {t("calls.policy", { agent: run.agent_name ?? run.agent_id, n: version })}
        {agent !== undefined &&
          agent.version !== version &&
          ` · ${t("calls.policyChanged", { n: agent.version })}`}
      </p>
      {agent !== undefined && <LastChange agent={agent} />}
    </>
  );
}

/** The answered question that the runner names as approval. The gateway does not check what it permits. */
function Approval({ approval }: { approval: Schema<"CallApproval"> }) {
  const t = useText();
  return (
    <p className="reason">
      {t("calls.answerTo")}{" "}
      <Link to="/runs/$runId" params={{ runId: approval.run_id }}>
        {writeOut(approval.title)}
      </Link>{" "}
      {approval.action_id != null && <code>{approval.action_id}</code>} {t("question.by")}{" "}
      <PrincipalName principal={approval.by} /> · <When at={approval.answered_at} />
    </p>
  );
}

/** The approval that a tool call used, linked for those who may read it. */
function UsedApproval({ approvalId }: { approvalId: string }) {
  const t = useText();
  const rights = useRights();
  const text = t("calls.approval", { id: short(approvalId) });
  return (
    <p className="reason">
      {rights?.readsAdmin ? (
        <Link to="/approvals/$approvalId" params={{ approvalId }}>
          {text}
        </Link>
      ) : (
        text
      )}
    </p>
  );
}

function CallRow({ call }: { call: AuditEntry }) {
  const t = useText();
  const { tokens } = call;
  const cached = tokens?.cache_read ?? 0;
  const total =
    tokens == null ? 0 : Object.values(tokens).reduce((sum, part) => sum + part, 0) - tokens.reasoning;
  return (
    <tr>
      <td className="number">{duration(call.offset_ms)}</td>
      <td className="wide">
        <code>{call.action}</code> {call.resource} <span className="faint">{call.operation}</span>
      </td>
      <td>
        <Badge tone={call.decision === "allow" ? "good" : "bad"}>{plainWord(t, call.decision)}</Badge>{" "}
        <span className="faint">
          {plainWord(t, call.rule)}
          {(call.calls ?? 1) > 1 && ` × ${call.calls}`}
        </span>
        {call.approval != null && <Approval approval={call.approval} />}
        {call.approval_id != null && <UsedApproval approvalId={call.approval_id} />}
      </td>
      <td>
        {call.outcome != null && <Badge tone={call.outcome === "ok" ? "off" : "bad"}>{call.outcome}</Badge>}
      </td>
      <td className="number">{call.duration_ms == null ? "" : duration(call.duration_ms)}</td>
      <td className="number">
        {total > 0 && count(total)}
        {cached > 0 && <span className="faint"> ({count(cached)})</span>}
      </td>
      <td className="number">{call.bytes > 0 && bytes(call.bytes)}</td>
    </tr>
  );
}
