import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { agentsQuery } from "../../api/queries";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { ListAge } from "../../ui/age";
import { Badge, Empty, Loading, Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";
import { runnersQuery } from "./queries";

const EXAMPLE = `[[agents]]
name = "hello"
event_types = ["message.received"]
scope = { kind = "global" }
runner_id = "plugin:runnel/echo-python/default"`;

export function Agents() {
  const t = useText();
  const rights = useRights();
  const agents = useQuery(agentsQuery());
  const runners = useQuery(runnersQuery());
  const statuses = new Map(runners.data?.items.map((runner) => [runner.id, runner.status]));
  const items = agents.data?.items ?? [];
  return (
    <main>
      <h1>{t("nav.agents")}</h1>
      {rights?.changes && (
        <p>
          <Link to="/agents/$agentId" params={{ agentId: "new" }}>
            {t("agents.new")}
          </Link>
        </p>
      )}
      {agents.isPending && <Loading what="nav.agents" />}
      {agents.error !== null && <Problem error={agents.error} retry={() => void agents.refetch()} />}
      <ListAge of={agents} />
      {agents.isSuccess && items.length === 0 && <Empty text="agents.none" command={EXAMPLE} />}
      <Scroll>
        <table className="list" hidden={items.length === 0}>
          <thead>
            <tr>
              <th>{t("run.status")}</th>
              <th>{t("agents.name")}</th>
              <th>{t("agents.eventTypes")}</th>
              <th>{t("run.runner")}</th>
              <th>{t("endpoints.origin")}</th>
              <th>{t("agents.updated")}</th>
            </tr>
          </thead>
          <tbody>
            {items.map((agent) => (
              <tr key={agent.id}>
                <td>
                  <Badge tone={agent.enabled === false ? "off" : "good"}>
                    {t(agent.enabled === false ? "agents.disabled" : "agents.enabled")}
                  </Badge>
                </td>
                <td className="wide">
                  <Link className="row" to="/agents/$agentId" params={{ agentId: agent.id }}>
                    {agent.name}
                  </Link>
                  <p className="reason">{agent.description}</p>
                  {agent.refused?.map((fault) => (
                    <p className="reason" key={fault.pointer}>
                      <code>{fault.pointer}</code> {fault.message}
                    </p>
                  ))}
                </td>
                <td>{agent.event_types.join(", ")}</td>
                <td>
                  {agent.runner_id} <RunnerStatus status={statuses.get(agent.runner_id)} />
                </td>
                <td>{agent.origin}</td>
                <td>
                  <When at={agent.updated_at} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </main>
  );
}

function RunnerStatus({ status }: { status: string | undefined }) {
  if (status === undefined) return null;
  return <Badge tone={status === "accepted" ? "good" : "bad"}>{status}</Badge>;
}
