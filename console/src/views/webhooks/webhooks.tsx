import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { webhookState } from "../../lib/webhooks";
import { ListAge } from "../../ui/age";
import { Badge, Empty, Loading, Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";
import { webhooksQuery } from "./queries";

const EXAMPLE = `[[webhooks]]
name = "crm"
url = "https://crm.example/hooks/runnel"
secret = "env:CRM_WEBHOOK_SECRET"
events = ["run.completed", "run.failed"]`;

export function Webhooks() {
  const t = useText();
  const rights = useRights();
  const webhooks = useQuery(webhooksQuery());
  const items = webhooks.data?.items ?? [];
  return (
    <main>
      <h1>{t("nav.webhooks")}</h1>
      {rights?.changes && (
        <p>
          <Link to="/webhooks/$webhookId" params={{ webhookId: "new" }}>
            {t("webhooks.new")}
          </Link>
        </p>
      )}
      {webhooks.isPending && <Loading what="nav.webhooks" />}
      {webhooks.error !== null && <Problem error={webhooks.error} retry={() => void webhooks.refetch()} />}
      <ListAge of={webhooks} />
      {webhooks.isSuccess && items.length === 0 && <Empty text="webhooks.none" command={EXAMPLE} />}
      <Scroll>
        <table className="list" hidden={items.length === 0}>
          <thead>
            <tr>
              <th>{t("run.status")}</th>
              <th>{t("agents.name")}</th>
              <th>{t("webhooks.events")}</th>
              <th>{t("endpoints.origin")}</th>
              <th>{t("agents.updated")}</th>
            </tr>
          </thead>
          <tbody>
            {items.map((webhook) => (
              <tr key={webhook.id}>
                <td>
                  <Badge tone={webhookState(webhook).tone}>{t(webhookState(webhook).text)}</Badge>
                </td>
                <td className="wide">
                  <Link className="row" to="/webhooks/$webhookId" params={{ webhookId: webhook.id }}>
                    {webhook.name}
                  </Link>
                  <p className="reason">{webhook.url}</p>
                </td>
                <td>{webhook.events.join(", ")}</td>
                <td>{webhook.origin}</td>
                <td>
                  <When at={webhook.updated_at} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </main>
  );
}
