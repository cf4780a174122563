import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useText } from "../../i18n";
import { type Tab, Tabs } from "../../ui/tabs";
import { KnowledgeTab } from "./knowledge";
import { McpTab } from "./mcp";
import { ModelsTab } from "./models";
import { catalogueQueries } from "./queries";
import { SkillsTab } from "./skills";
import { ToolsTab } from "./tools";

/** What agents may use: models, tools, knowledge bases and skills. */
export function Catalogue() {
  const t = useText();
  const { tab = "models" } = useSearch({ from: "/catalogue" });
  const navigate = useNavigate({ from: "/catalogue" });
  const counts = {
    models: useQuery(catalogueQueries.models()).data?.items.length,
    tools: useQuery(catalogueQueries.tools()).data?.items.length,
    mcp: useQuery(catalogueQueries.mcp()).data?.items.length,
    knowledge: useQuery(catalogueQueries.knowledge()).data?.items.length,
    skills: useQuery(catalogueQueries.skills()).data?.items.length,
  };
  const contents: Record<keyof typeof counts, Tab["content"]> = {
    models: () => <ModelsTab />,
    tools: () => <ToolsTab />,
    mcp: () => <McpTab />,
    knowledge: () => <KnowledgeTab />,
    skills: () => <SkillsTab />,
  };
  const ids = Object.keys(contents) as (keyof typeof counts)[];
  const tabs = ids.map((id) => ({
    id,
    label: `${t(`catalogue.${id}`)} ${counts[id] ?? ""}`,
    content: contents[id],
  }));
  return (
    <main>
      <h1>{t("nav.catalogue")}</h1>
      <Tabs
        tabs={tabs}
        chosen={ids.some((id) => id === tab) ? tab : "models"}
        choose={(id) => void navigate({ search: { tab: id }, replace: true })}
      />
    </main>
  );
}
