import { useQuery } from "@tanstack/react-query";
import { Badge, Empty, Json, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { catalogueQueries } from "./queries";

const EXAMPLE = `[[tools]]
tool_name = "get_current_time"`;

export function ToolsTab() {
  const tools = useQuery(catalogueQueries.tools());
  if (tools.isPending) return <Loading what="catalogue.tools" />;
  if (tools.error !== null) return <Problem error={tools.error} />;
  if (tools.data.items.length === 0) return <Empty text="catalogue.none" command={EXAMPLE} />;
  return tools.data.items.map((tool) => (
    <article key={tool.tool_name} className="card">
      <h2>
        {tool.tool_name} <Badge tone="off">{tool.tool_type ?? tool.source ?? "tool"}</Badge>{" "}
        {tool.effect && <Badge tone={tool.effect === "read" ? "good" : "wait"}>{tool.effect}</Badge>}
      </h2>
      <p className="text">{tool.description}</p>
      {tool.parameters != null && (
        <details>
          <summary>JSON Schema</summary>
          <Json value={tool.parameters} />
        </details>
      )}
    </article>
  ));
}
