import { useQuery } from "@tanstack/react-query";
import { agentsQuery } from "../api/queries";
import { useRights } from "../api/rights";
import { useText } from "../i18n";
import { short } from "../lib/format";

/** Filter by agent. A key that reads no agents sees only the chosen id. */
export function AgentChoice({ value, set }: { value: string; set: (value: string) => void }) {
  const t = useText();
  const rights = useRights();
  const agents = useQuery({ ...agentsQuery(), enabled: rights?.readsAdmin === true });
  const items = agents.data?.items ?? [];
  const isListed = value === "" || items.some((agent) => agent.id === value);
  if (!agents.isSuccess && value === "") return null;
  return (
    <select aria-label={t("filter.agent_id")} value={value} onChange={(event) => set(event.target.value)}>
      <option value="">{t("runs.anyAgent")}</option>
      {items.map((agent) => (
        <option key={agent.id} value={agent.id}>
          {agent.name}
        </option>
      ))}
      {!isListed && <option value={value}>{short(value)}</option>}
    </select>
  );
}
