import { useQuery } from "@tanstack/react-query";
import { useText } from "../../i18n";
import { Badge, Empty, Facts, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";
import { catalogueQueries } from "./queries";

const TONES = { ready: "good", connecting: "wait", away: "bad" };
const EXAMPLE = `[[mcp_servers]]
name = "search"
url = "https://mcp.example/mcp"
headers = { authorization = "env:SEARCH_KEY" }`;

export function McpTab() {
  const t = useText();
  const servers = useQuery(catalogueQueries.mcp());
  if (servers.isPending) return <Loading what="catalogue.mcp" />;
  if (servers.error !== null) return <Problem error={servers.error} />;
  if (servers.data.items.length === 0) return <Empty text="catalogue.none" command={EXAMPLE} />;
  return servers.data.items.map((server) => (
    <article key={server.name} className="card">
      <h2>
        {server.name} <Badge tone={TONES[server.state]}>{server.state}</Badge>
      </h2>
      {server.last_error && <p className="problem">{server.last_error}</p>}
      <Facts
        facts={[
          { label: t("catalogue.transport"), value: server.transport },
          { label: t("catalogue.since"), value: <When at={server.since} /> },
          { label: t("catalogue.tools"), value: server.tools.join(", ") },
          { label: t("catalogue.leftOut"), value: server.left_out.join(", ") },
        ]}
      />
      {server.notes?.map((note) => (
        <p className="reason" key={note}>
          {note}
        </p>
      ))}
    </article>
  ));
}
