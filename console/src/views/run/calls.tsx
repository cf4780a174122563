import { useInfiniteQuery } from "@tanstack/react-query";
import type { AuditEntry, Run } from "../../api/client";
import { auditQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { bytes, count, duration } from "../../lib/format";
import { plainWord } from "../../lib/words";
import { Badge, Empty, Loading, Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { RunQuestions } from "./state";

export function CallsTab({ run }: { run: Run }) {
  const t = useText();
  const audit = useInfiniteQuery(auditQuery(run));
  if (audit.isPending) return <Loading what="tab.calls" />;
  if (audit.error !== null) return <Problem error={audit.error} retry={() => void audit.refetch()} />;
  const calls = audit.data.pages.flatMap((page) => page.items);
  if (calls.length === 0) return <Empty text="calls.none" />;
  return (
    <Scroll>
      <RunQuestions run={run} />
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
          {calls.map((call) => (
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
