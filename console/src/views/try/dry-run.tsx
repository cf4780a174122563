import { useQuery } from "@tanstack/react-query";
import type { Schema } from "../../api/client";
import { record } from "../../api/errors";
import { useRights } from "../../api/rights";
import { type Translate, useLanguage, useText } from "../../i18n";
import { configItems, missingItems } from "../../lib/config-form";
import { readDecisions } from "../../lib/decisions";
import { Badge, Facts, Json } from "../../ui/parts";
import { agentQuery, runnersQuery } from "../agents/queries";
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
  const warnings = useWarnings(agent);
  const isDoubtful = warnings.length > 0 && TONES[outcome.outcome] === "good";
  return (
    <section className="card">
      <h2>
        {t("try.outcome")}{" "}
        <Badge tone={isDoubtful ? "wait" : (TONES[outcome.outcome] ?? "off")}>
          {outcomeText(t, outcome.outcome)}
        </Badge>
      </h2>
      {error && (
        <p className="problem">
          <code>{error.code}</code> {error.message}
        </p>
      )}
      {warnings.map((warning) => (
        <p className="warning" key={warning}>
          {warning}
        </p>
      ))}
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
        <thead>
          <tr>
            <th>{t("try.standing")}</th>
            <th>{t("agents.name")}</th>
            <th>{t("compare.reason")}</th>
          </tr>
        </thead>
        <tbody>
          {candidates.map((candidate) => (
            <tr key={candidate.id}>
              <td>
                <Badge tone={TONES[candidate.standing] ?? "off"}>{outcomeText(t, candidate.standing)}</Badge>
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

const OUTCOMES = ["created", "queued", "steered", "no_agent", "refused", "wins", "ties", "loses"] as const;

/** Plain text of an outcome; one of a later gateway is shown as it is. */
function outcomeText(t: Translate, outcome: string): string {
  const known = OUTCOMES.find((each) => each === outcome);
  return known === undefined ? outcome : t(`outcome.${known}`);
}

/** What would make the run fail although the event is accepted. */
function useWarnings(agent: Schema<"AgentDryRun"> | null | undefined): string[] {
  const t = useText();
  const language = useLanguage();
  const rights = useRights();
  const isReadable = agent != null && rights?.readsAdmin === true;
  const stored = useQuery({ ...agentQuery(agent?.id ?? ""), enabled: isReadable }).data;
  const runners = useQuery({ ...runnersQuery(), enabled: isReadable }).data;
  if (agent == null) return [];
  const manifest = record(runners?.items.find((runner) => runner.id === agent.runner.id)?.manifest);
  const missing = stored ? missingItems(configItems(manifest, language), record(stored.config)) : [];
  const warnings = missing.map((item) => t("try.missing", { name: item.label }));
  const { resources } = agent;
  const wanted = record(manifest.permissions).models;
  if (resources == null) return warnings;
  if (Array.isArray(wanted) && wanted.length > 0 && (resources.models ?? []).length === 0) {
    warnings.push(t("try.noModel"));
  }
  if (agent.operations.length === 0) warnings.push(t("try.nothingGranted"));
  return warnings;
}
