import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { useCallback, useState } from "react";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { tryEventOf } from "../../lib/compose";
import { Json, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { AgentEditor } from "./editor";
import { AgentHistory } from "./history";
import { LastChange } from "./last-change";
import { type Agent, type AgentSpec, agentQuery, specOf } from "./queries";
import { RegisteredSkills } from "./skills";

const NEW: AgentSpec = {
  name: "",
  event_types: ["message.received"],
  runner_id: "",
  enabled: true,
  config: {},
};

type FormState = "clean" | "dirty" | "saved";

export function AgentPage() {
  const t = useText();
  const { agentId } = useParams({ from: "/agents/$agentId" });
  const [state, setState] = useState<FormState>("clean");
  const form = {
    // The form of the saved version reports that it has no changes: the note remains.
    onChange: useCallback((isDirty: boolean) => {
      setState((before) => (isDirty ? "dirty" : before === "dirty" ? "clean" : before));
    }, []),
    onSaved: useCallback(() => setState("saved"), []),
  };
  return (
    <main>
      {agentId === "new" ? (
        <>
          <h1>{t("agents.new")}</h1>
          <AgentEditor spec={NEW} stored={null} {...form} />
        </>
      ) : (
        <StoredAgent key={agentId} agentId={agentId} {...form} />
      )}
      <p className="form-state" role="status" data-state={state}>
        {state === "saved" && t("agents.saved")}
        {state === "dirty" && t("agents.unsaved")}
      </p>
    </main>
  );
}

interface StoredProps {
  agentId: string;
  onChange: (isDirty: boolean) => void;
  onSaved: () => void;
}

function StoredAgent({ agentId, ...form }: StoredProps) {
  const t = useText();
  // A version from elsewhere must not replace the form while it is edited.
  const agent = useQuery({ ...agentQuery(agentId), refetchOnWindowFocus: false, refetchOnReconnect: false });
  const rights = useRights();
  const isEditable = agent.data?.origin === "api" && rights?.changes === true;
  return (
    <>
      {agent.isPending && <Loading what="nav.agents" />}
      {agent.error !== null && <Problem error={agent.error} retry={() => void agent.refetch()} />}
      <h1>{agent.data?.name ?? t("nav.agents")}</h1>
      {agent.data !== undefined && <LastChange agent={agent.data} />}
      {agent.data !== undefined && <TryLink agent={agent.data} />}
      {agent.data !== undefined && !isEditable && (
        <>
          {agent.data.origin !== "api" && <p className="faint">{t("agents.readOnly")}</p>}
          <Json value={specOf(agent.data)} />
        </>
      )}
      {agent.data !== undefined && isEditable && (
        <AgentEditor key={agent.data.version} spec={specOf(agent.data)} stored={agent.data} {...form} />
      )}
      {agent.data !== undefined && <RegisteredSkills agentId={agentId} />}
      {agent.data !== undefined && rights?.readsAdmin && (
        <AgentHistory agent={agent.data} isEditable={isEditable} />
      )}
    </>
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
