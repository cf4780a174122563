import { Link } from "@tanstack/react-router";
import { useText } from "../../i18n";
import type { Change } from "../../lib/changes";
import { budgetAnchor } from "../../lib/usage";
import { keyAnchor } from "../../ui/key-name";
import { ObjectChanges } from "../../ui/object-changes";

/** Links of a change: its object, and the other changes of its object and its key. */
export function ChangeLinks({ change }: { change: Change }) {
  const t = useText();
  const { kind, object_id, changed_by: by } = change;
  return (
    <>
      <ObjectLink change={change} /> <ObjectChanges kind={kind} id={object_id} />
      {by.kind === "api_key" && by.id != null && (
        <Link className="target" to="/changes" search={{ actor: by.id }}>
          {t("changes.ofActor")}
        </Link>
      )}
    </>
  );
}

/** The view of the object, unless it is deleted or has none. */
function ObjectLink({ change: { kind, action, object_id: id, object_name: name } }: { change: Change }) {
  const t = useText();
  if (action === "deleted" && kind !== "api_key") return null;
  const text = t("changes.object");
  const common = { className: "target", children: text };
  switch (kind) {
    case "agent":
      return <Link {...common} to="/agents/$agentId" params={{ agentId: id }} />;
    case "skill":
      // The id is that of the agent and the name of the skill.
      return <Link {...common} to="/agents/$agentId" params={{ agentId: id.split("/")[0] ?? "" }} />;
    case "schedule":
      return <Link {...common} to="/schedules/$scheduleId" params={{ scheduleId: id }} />;
    case "source":
      return <Link {...common} to="/sources/$sourceId" params={{ sourceId: id }} />;
    case "webhook":
      return <Link {...common} to="/webhooks/$webhookId" params={{ webhookId: id }} />;
    case "approval":
      return <Link {...common} to="/approvals/$approvalId" params={{ approvalId: id }} />;
    case "runner_endpoint":
      return <Link {...common} to="/endpoints" hash={`endpoint-${name}`} />;
    case "api_key":
      return <Link {...common} to="/system" hash={keyAnchor(id)} />;
    case "budget":
      return <Link {...common} to="/usage" hash={budgetAnchor(name)} />;
    case "document":
      return <Link {...common} to="/catalogue" search={{ tab: "knowledge" }} />;
    default:
      return null;
  }
}
