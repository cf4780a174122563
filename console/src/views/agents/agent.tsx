import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { tryEventOf } from "../../lib/compose";
import { Json, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { AgentEditor } from "./editor";
import { type Agent, type AgentSpec, agentQuery, specOf } from "./queries";

const NEW: AgentSpec = {
  name: "",
  event_types: ["message.received"],
  runner_id: "",
  enabled: true,
  config: {},
};

export function AgentPage() {
  const { agentId } = useParams({ from: "/agents/$agentId" });
  return agentId === "new" ? <NewAgent /> : <StoredAgent agentId={agentId} />;
}

function NewAgent() {
  const t = useText();
  return (
    <main>
      <h1>{t("agents.new")}</h1>
      <AgentEditor spec={NEW} stored={null} />
    </main>
  );
}

function StoredAgent({ agentId }: { agentId: string }) {
  const t = useText();
  const agent = useQuery(agentQuery(agentId));
  const rights = useRights();
  const isEditable = agent.data?.origin === "api" && rights?.changes === true;
  return (
    <main>
      {agent.isPending && <Loading what="nav.agents" />}
      {agent.error !== null && <Problem error={agent.error} retry={() => void agent.refetch()} />}
      <h1>{agent.data?.name ?? t("nav.agents")}</h1>
      {agent.data !== undefined && <TryLink agent={agent.data} />}
      {agent.data !== undefined && !isEditable && (
        <>
          {agent.data.origin !== "api" && <p className="faint">{t("agents.readOnly")}</p>}
          <Json value={specOf(agent.data)} />
        </>
      )}
      {agent.data !== undefined && isEditable && (
        <AgentEditor key={agent.data.version} spec={specOf(agent.data)} stored={agent.data} />
      )}
    </main>
  );
}

/** Opens the form with an event that the scope and the event types of the agent match. */
function TryLink({ agent }: { agent: Agent }) {
  const t = useText();
  return (
    <p>
      <Link className="button quiet" to="/try" search={tryEventOf(agent)}>
        {t("nav.try")}
      </Link>
    </p>
  );
}
