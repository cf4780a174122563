import { useQuery } from "@tanstack/react-query";
import { agentsQuery } from "../../api/queries";
import type { OfferedNames } from "../../lib/catalogue";
import { catalogueQueries } from "../catalogue/queries";
import { type Agent, agentSkillsQuery } from "./queries";

/** Names of the catalogue that an agent may use. A list that fails to load checks no name. */
export function useOffered(agent: Agent | null): OfferedNames {
  const models = useQuery(catalogueQueries.models()).data?.items;
  const tools = useQuery(catalogueQueries.tools()).data?.items;
  const bases = useQuery(catalogueQueries.knowledge()).data?.items;
  const skills = useQuery(catalogueQueries.skills()).data?.items;
  const own = useQuery({ ...agentSkillsQuery(agent?.id ?? ""), enabled: agent !== null }).data?.items;
  const agents = useQuery(agentsQuery()).data;
  return {
    models: models?.map((model) => ({
      name: model.model_id,
      note: [model.model_type, model.provider].filter(Boolean).join(", "),
      operations: model.operations ?? [],
    })),
    tools: tools?.map((tool) => ({
      name: tool.tool_name,
      note: [tool.source, tool.effect, firstLine(tool.description)].filter(Boolean).join(" · "),
    })),
    knowledge_bases: bases?.map((base) => ({ name: base.kb_id, note: base.kb_name ?? "" })),
    skills: skills && [
      ...skills.map((skill) => ({ name: skill.skill_name, note: firstLine(skill.description) })),
      ...(own ?? [])
        .filter(({ skill_name }) => !skills.some((skill) => skill.skill_name === skill_name))
        .map((skill) => ({ name: skill.skill_name, note: firstLine(skill.description) })),
    ],
    // A longer list is not read to its end: a name without an option may exist.
    agents: agents?.has_more
      ? undefined
      : agents?.items
          .filter(({ id }) => id !== agent?.id)
          .map(({ id, name, description }) =>
            // A policy may name an agent by its id.
            agent?.resource_policy?.agents?.includes(id)
              ? { name: id, note: name }
              : { name, note: firstLine(description) },
          ),
  };
}

const NOTE_LENGTH = 120;

function firstLine(text: string | null | undefined): string {
  const line = (text ?? "").split("\n", 1)[0] ?? "";
  return line.length > NOTE_LENGTH ? `${line.slice(0, NOTE_LENGTH)}…` : line;
}
