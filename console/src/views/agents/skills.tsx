import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { api, dataOf, type Schema } from "../../api/client";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";
import { agentSkillsQuery } from "./queries";

/** Skills that runs of the agent have registered. Nothing without one. */
export function RegisteredSkills({ agentId }: { agentId: string }) {
  const t = useText();
  const skills = useQuery(agentSkillsQuery(agentId)).data?.items ?? [];
  if (skills.length === 0) return null;
  return (
    <section>
      <h2>{t("agents.registered")}</h2>
      <ul className="plain">
        {skills.map((skill) => (
          <Skill key={skill.skill_name} agentId={agentId} skill={skill} />
        ))}
      </ul>
    </section>
  );
}

/** Withdraws after a second press. */
function Skill({ agentId, skill }: { agentId: string; skill: Schema<"AgentSkill"> }) {
  const t = useText();
  const client = useQueryClient();
  const rights = useRights();
  const [isSure, setSure] = useState(false);
  const path = { agent_id: agentId, skill_name: skill.skill_name };
  const withdraw = useMutation({
    mutationFn: () => dataOf(api.DELETE("/v1/agents/{agent_id}/skills/{skill_name}", { params: { path } })),
    onSuccess: () => client.invalidateQueries({ queryKey: agentSkillsQuery(agentId).queryKey }),
  });
  return (
    <li>
      <strong>{skill.skill_name}</strong> {skill.description}{" "}
      <Link to="/runs/$runId" params={{ runId: skill.registered.run_id }}>
        {t("run.title")}
      </Link>{" "}
      <When at={skill.registered.registered_at} />{" "}
      {rights?.changes && (
        <button
          type="button"
          className={isSure ? "danger" : "quiet"}
          disabled={withdraw.isPending}
          onBlur={() => setSure(false)}
          onClick={() => (isSure ? withdraw.mutate() : setSure(true))}
        >
          {t(isSure ? "agents.withdrawSure" : "agents.withdraw")}
        </button>
      )}
      {withdraw.error !== null && <Problem error={withdraw.error} />}
    </li>
  );
}
