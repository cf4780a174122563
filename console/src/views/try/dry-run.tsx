import type { Schema } from "../../api/client";
import { useText } from "../../i18n";
import { readDecisions } from "../../lib/decisions";
import { Badge, Facts, Json } from "../../ui/parts";
import { GrantTable } from "../run/grants";

const TONES: Record<string, string> = {
  created: "good",
  queued: "wait",
  steered: "live",
  no_agent: "bad",
  refused: "bad",
  wins: "good",
  ties: "wait",
};

/** What an event would do now: which agent gets it, why, and what its run would be granted. */
export function DryRun({ outcome }: { outcome: Schema<"EventDryRun"> }) {
  const t = useText();
  const { agent, candidates, error } = outcome;
  return (
    <section className="card">
      <h2>
        {t("try.outcome")} <Badge tone={TONES[outcome.outcome] ?? "off"}>{outcome.outcome}</Badge>
      </h2>
      {error && (
        <p className="problem">
          <code>{error.code}</code> {error.message}
        </p>
      )}
      <Facts
        facts={[
          { label: t("try.winner"), value: outcome.winner },
          { label: "HTTP", value: outcome.status },
          { label: t("run.runner"), value: agent?.runner.id },
          { label: t("run.status"), value: agent?.runner.status },
          { label: t("try.endpoint"), value: agent?.runner.endpoint_health },
          {
            label: t("try.admission"),
            value: agent && `${agent.admission.policy}: ${agent.admission.decision}`,
          },
        ]}
      />
      {agent?.faults.map((fault) => (
        <p className="problem" key={fault.pointer}>
          <code>{fault.pointer}</code> {fault.message}
        </p>
      ))}
      <h3>{t("try.candidates")}</h3>
      <table className="list">
        <tbody>
          {candidates.map((candidate) => (
            <tr key={candidate.id}>
              <td>
                <Badge tone={TONES[candidate.standing] ?? "off"}>{candidate.standing}</Badge>
              </td>
              <td>{candidate.name}</td>
              <td className="wide">{candidate.detail ?? candidate.reason}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {agent && (
        <>
          <h3>{t("tab.grants")}</h3>
          <GrantTable decisions={readDecisions(agent.decisions)} />
        </>
      )}
      <details>
        <summary>JSON</summary>
        <Json value={outcome} />
      </details>
    </section>
  );
}
