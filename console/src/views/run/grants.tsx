import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { Run } from "../../api/client";
import { authorizationQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { type GrantDecision, readDecisions } from "../../lib/decisions";
import { plainWord } from "../../lib/words";
import { Badge, Empty, Json, Loading, Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { ApprovalTable } from "../approvals/table";
import { RunQuestions } from "./state";

/** Rows of one list; the search narrows a longer one. */
const MAX_ROWS = 500;

export function GrantsTab({ run }: { run: Run }) {
  const t = useText();
  const authorization = useQuery(authorizationQuery(run.run_id));
  if (authorization.isPending) return <Loading what="tab.grants" />;
  if (authorization.error !== null) {
    return <Problem error={authorization.error} retry={() => void authorization.refetch()} />;
  }
  return (
    <>
      <RunQuestions run={run} />
      {authorization.data.amendments.length > 0 && <h3>{t("grants.amendments")}</h3>}
      <ApprovalTable approvals={authorization.data.amendments} />
      <GrantTable decisions={readDecisions(authorization.data.decisions)} />
      <details>
        <summary>JSON</summary>
        <Json value={authorization.data} />
      </details>
    </>
  );
}

export function GrantTable({ decisions }: { decisions: GrantDecision[] }) {
  const t = useText();
  const [search, setSearch] = useState("");
  const [isRemovedOnly, setRemovedOnly] = useState(false);
  if (decisions.length === 0) return <Empty text="grants.none" />;
  const words = search.toLowerCase().split(/\s+/);
  const found = decisions.filter((decision) => {
    const shown = [plainWord(t, decision.layer), plainWord(t, decision.rule)];
    const text = [...Object.values(decision), ...shown].join(" ").toLowerCase();
    return words.every((word) => text.includes(word)) && !(isRemovedOnly && decision.granted);
  });
  return (
    <>
      <div className="quick">
        <input
          type="search"
          aria-label={t("grants.search")}
          placeholder={t("grants.search")}
          value={search}
          onChange={(event) => setSearch(event.target.value)}
        />
        <label>
          <input
            type="checkbox"
            checked={isRemovedOnly}
            onChange={(event) => setRemovedOnly(event.target.checked)}
          />
          {t("grants.removedOnly")}
        </label>
        <span className="faint">
          {t("grants.shown", { n: Math.min(found.length, MAX_ROWS), all: decisions.length })}
        </span>
      </div>
      <Scroll>
        <table className="list">
          <thead>
            <tr>
              <th>{t("grants.verdict")}</th>
              <th>{t("grants.resource")}</th>
              <th>{t("grants.operation")}</th>
              <th>{t("grants.layer")}</th>
              <th>{t("grants.rule")}</th>
            </tr>
          </thead>
          <tbody>
            {found.slice(0, MAX_ROWS).map((decision) => (
              <tr key={JSON.stringify(decision)}>
                <td>
                  <Badge tone={decision.granted ? "good" : "bad"}>
                    {t(decision.granted ? "grants.granted" : "grants.removed")}
                  </Badge>
                </td>
                <td className="wide">
                  <span className="faint">{decision.kind}</span> {decision.id}
                </td>
                <td>{decision.operation}</td>
                <td>{plainWord(t, decision.layer)}</td>
                <td>{plainWord(t, decision.rule)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </>
  );
}
