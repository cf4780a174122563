import { useText } from "../../i18n";
import { PrincipalName } from "../../ui/principal";
import { When } from "../../ui/when";
import type { Agent } from "./queries";

/** Version of an agent, and when and by whom it was changed last. */
export function LastChange({ agent }: { agent: Agent }) {
  const t = useText();
  return (
    <p className="faint">
      {t("agents.version", { n: agent.version })} · {t("agents.updated")} <When at={agent.updated_at} />
      {agent.updated_by != null && (
        <>
          {" "}
          {t("changes.by")} <PrincipalName principal={agent.updated_by} />
        </>
      )}
    </p>
  );
}
