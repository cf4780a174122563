import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { agentsQuery } from "../api/queries";
import { useRights } from "../api/rights";
import { short } from "../lib/format";

/** Name of an agent, linked for readers of agents; otherwise the beginning of its id. */
export function AgentName({ agentId }: { agentId: string }) {
  const rights = useRights();
  const agents = useQuery({ ...agentsQuery(), enabled: rights?.readsAdmin === true }).data;
  const agent = agents?.items.find(({ id }) => id === agentId);
  if (agent === undefined) return <>{short(agentId)}</>;
  return (
    <Link to="/agents/$agentId" params={{ agentId }}>
      {agent.name}
    </Link>
  );
}
