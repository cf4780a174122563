import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useParams } from "@tanstack/react-router";
import { useState } from "react";
import { api, dataOf } from "../../api/client";
import { agentsQuery } from "../../api/queries";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { webhookSpec, webhookState } from "../../lib/webhooks";
import { ConfirmButton } from "../../ui/confirm";
import { ObjectChanges } from "../../ui/object-changes";
import { Badge, Facts, Loading } from "../../ui/parts";
import { PrincipalName } from "../../ui/principal";
import { Problem } from "../../ui/problem";
import { ShownOnce } from "../../ui/shown-once";
import type { Stored } from "../../ui/spec-form";
import { When } from "../../ui/when";
import { Deliveries } from "./deliveries";
import { WebhookForm } from "./form";
import { type Webhook, type WebhookSpec, webhookQuery } from "./queries";
import { RotateSecret, TestCall } from "./signing";

const NEW: Stored<WebhookSpec> = {
  spec: { name: "", events: ["run.completed", "run.failed"], payload: "thin", enabled: true },
  version: 0,
};

interface NewSecret {
  webhookId: string;
  secret: string;
}

/** A webhook or the form of a new one. The page shows a new secret until it is left or closed. */
export function WebhookPage() {
  const t = useText();
  const client = useQueryClient();
  const navigate = useNavigate();
  const rights = useRights();
  const { webhookId } = useParams({ from: "/webhooks/$webhookId" });
  const [created, setCreated] = useState<NewSecret | null>(null);
  const show = ({ id, secret }: Webhook) => setCreated(secret == null ? null : { webhookId: id, secret });
  const create = async (spec: WebhookSpec) => {
    const webhook = await dataOf(api.POST("/v1/webhooks", { body: spec }));
    show(webhook);
    await client.invalidateQueries({ queryKey: ["webhooks"] });
    await navigate({ to: "/webhooks/$webhookId", params: { webhookId: webhook.id }, ignoreBlocker: true });
    return NEW;
  };
  return (
    <main>
      {webhookId === "new" && (
        <>
          <h1>{t("webhooks.new")}</h1>
          {rights?.changes && <WebhookForm stored={NEW} isNew save={create} />}
          {rights?.changes === false && <p className="faint">{t("rights.readOnly")}</p>}
        </>
      )}
      {created?.webhookId === webhookId && (
        <ShownOnce hint={t("webhooks.once")} secret={created.secret} close={() => setCreated(null)} />
      )}
      {webhookId !== "new" && <StoredWebhook key={webhookId} webhookId={webhookId} show={show} />}
    </main>
  );
}

interface StoredProps {
  webhookId: string;
  /** Shows the new secret of a rotated webhook. */
  show: (webhook: Webhook) => void;
}

function StoredWebhook({ webhookId, show }: StoredProps) {
  const t = useText();
  const rights = useRights();
  const found = useQuery(webhookQuery(webhookId));
  const agents = useQuery(agentsQuery());
  const names = new Map(agents.data?.items.map(({ id, name }) => [id, name]));
  const webhook = found.data;
  const isEditable = webhook?.origin === "api" && rights?.changes === true;
  return (
    <>
      {found.isPending && <Loading what="nav.webhooks" />}
      {found.error !== null && <Problem error={found.error} retry={() => void found.refetch()} />}
      <h1>{webhook?.name ?? t("nav.webhooks")}</h1>
      {webhook !== undefined && <WebhookFacts webhook={webhook} agentNames={names} />}
      {webhook !== undefined && rights?.changes && (
        <div className="actions">
          {webhook.url != null && <TestCall webhook={webhook} />}
          {isEditable && webhook.url != null && <RotateSecret webhook={webhook} show={show} />}
          {isEditable && <DeleteWebhook webhook={webhook} />}
        </div>
      )}
      {webhook !== undefined && webhook.origin !== "api" && <p className="faint">{t("webhooks.readOnly")}</p>}
      {/* The form has the names of agents, not their ids. */}
      {webhook !== undefined && isEditable && !agents.isPending && (
        <EditWebhook webhook={webhook} agentNames={names} />
      )}
      {webhook?.url != null && <Deliveries webhook={webhook} />}
    </>
  );
}

interface WebhookProps {
  webhook: Webhook;
  agentNames: Map<string, string>;
}

function WebhookFacts({ webhook, agentNames }: WebhookProps) {
  const t = useText();
  const { circuit, agents } = webhook;
  const state = webhookState(webhook);
  return (
    <Facts
      facts={[
        { label: t("run.status"), value: <Badge tone={state.tone}>{t(state.text)}</Badge> },
        { label: "URL", value: webhook.url },
        { label: t("webhooks.events"), value: webhook.events.join(", ") },
        {
          label: t("nav.agents"),
          value: agents?.map((id) => agentNames.get(id) ?? id).join(", "),
        },
        {
          label: t("webhooks.payload"),
          value: t(webhook.payload === "full" ? "webhooks.full" : "webhooks.thin"),
        },
        { label: t("endpoints.origin"), value: webhook.origin },
        { label: t("webhooks.failures"), value: circuit.failures || null },
        {
          label: t("endpoints.retry"),
          value: circuit.retry_at == null ? null : <When at={circuit.retry_at} />,
        },
        {
          label: t("webhooks.previousUntil"),
          value: webhook.previous_secret_until == null ? null : <When at={webhook.previous_secret_until} />,
        },
        {
          label: t("agents.updated"),
          value: (
            <>
              <When at={webhook.updated_at} /> · <PrincipalName principal={webhook.updated_by} /> ·{" "}
              <ObjectChanges kind="webhook" id={webhook.id} />
            </>
          ),
        },
      ]}
    />
  );
}

function EditWebhook({ webhook, agentNames }: WebhookProps) {
  const client = useQueryClient();
  const storedOf = (saved: Webhook) => ({ spec: webhookSpec(saved, agentNames), version: saved.version });
  const save = async (body: WebhookSpec, version: number) => {
    const params = { path: { webhook_id: webhook.id }, header: { "If-Match": version } };
    const saved = await dataOf(api.PUT("/v1/webhooks/{webhook_id}", { params, body }));
    await client.invalidateQueries({ queryKey: ["webhooks"] });
    return storedOf(saved);
  };
  return <WebhookForm stored={storedOf(webhook)} save={save} />;
}

function DeleteWebhook({ webhook }: { webhook: Webhook }) {
  const t = useText();
  const client = useQueryClient();
  const navigate = useNavigate();
  const remove = async () => {
    const params = { path: { webhook_id: webhook.id }, header: { "If-Match": webhook.version } };
    await dataOf(api.DELETE("/v1/webhooks/{webhook_id}", { params }));
    await navigate({ to: "/webhooks", ignoreBlocker: true });
    client.removeQueries({ queryKey: webhookQuery(webhook.id).queryKey });
    await client.invalidateQueries({ queryKey: ["webhooks"] });
  };
  return (
    <ConfirmButton
      label={t("agents.delete")}
      title={t("agents.deleteTitle", { name: webhook.name })}
      effect={t("webhooks.deleteEffect")}
      confirm={t("webhooks.deleteConfirm")}
      act={remove}
    />
  );
}
