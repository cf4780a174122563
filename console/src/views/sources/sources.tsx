import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { ListAge } from "../../ui/age";
import { Badge, Empty, Loading, Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";
import { type Source, sourcesQuery } from "./queries";

const EXAMPLE = `[[sources]]
name = "github"
scheme = "github"
secret = "env:GITHUB_WEBHOOK_SECRET"
filter = '{event_type: "message.received", input: {text: .body.issue.title}}'`;

export function Sources() {
  const t = useText();
  const rights = useRights();
  const sources = useQuery(sourcesQuery());
  const items = sources.data?.items ?? [];
  return (
    <main>
      <h1>{t("nav.sources")}</h1>
      {rights?.changes && (
        <p>
          <Link to="/sources/$sourceId" params={{ sourceId: "new" }}>
            {t("sources.new")}
          </Link>
        </p>
      )}
      {sources.isPending && <Loading what="nav.sources" />}
      {sources.error !== null && <Problem error={sources.error} retry={() => void sources.refetch()} />}
      <ListAge of={sources} />
      {sources.isSuccess && items.length === 0 && <Empty text="sources.none" command={EXAMPLE} />}
      <Scroll>
        <table className="list" hidden={items.length === 0}>
          <thead>
            <tr>
              <th>{t("run.status")}</th>
              <th>{t("agents.name")}</th>
              <th>{t("sources.scheme")}</th>
              <th>{t("endpoints.origin")}</th>
              <th>{t("agents.updated")}</th>
            </tr>
          </thead>
          <tbody>
            {items.map((source) => (
              <tr key={source.id}>
                <td>
                  <SourceState source={source} />
                </td>
                <td className="wide">
                  <Link className="row" to="/sources/$sourceId" params={{ sourceId: source.id }}>
                    {source.name}
                  </Link>
                  <p className="reason">{source.path}</p>
                </td>
                <td>{source.scheme}</td>
                <td>{source.origin}</td>
                <td>
                  <When at={source.updated_at} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </main>
  );
}

export function SourceState({ source: { enabled } }: { source: Source }) {
  const t = useText();
  return (
    <Badge tone={enabled ? "good" : "off"}>{t(enabled ? "agents.enabled" : "webhooks.unconfigured")}</Badge>
  );
}
