import { useInfiniteQuery, useMutation, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { api, dataOf, type Schema } from "../../api/client";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { secondsOf } from "../../lib/filters";
import { short } from "../../lib/format";
import { DELIVERY_TONES, isRedeliverable, lastAnswer, MAX_TRIES } from "../../lib/webhooks";
import { ListAge } from "../../ui/age";
import { Badge, Empty, Loading, Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";
import { deliveriesQuery, type Webhook } from "./queries";

type Delivery = Schema<"WebhookDelivery">;

const STATUSES = Object.keys(DELIVERY_TONES) as Schema<"DeliveryStatus">[];

/** Deliveries of a webhook, with the status in the address. */
export function Deliveries({ webhook }: { webhook: Webhook }) {
  const t = useText();
  const rights = useRights();
  const { status } = useSearch({ from: "/webhooks/$webhookId" });
  const chosen = STATUSES.find((each) => each === status);
  const deliveries = useInfiniteQuery(deliveriesQuery(webhook.id, chosen));
  const items = deliveries.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <section aria-label={t("deliveries.title")}>
      <h2>{t("deliveries.title")}</h2>
      <StatusChoice chosen={chosen} />
      {rights?.changes && <RedeliverSince webhook={webhook} status={chosen} />}
      {deliveries.isPending && <Loading what="deliveries.title" />}
      {deliveries.error !== null && <Problem error={deliveries.error} />}
      <ListAge of={deliveries} />
      {deliveries.isSuccess && items.length === 0 && <Empty text="deliveries.none" />}
      <Scroll>
        <table className="list" hidden={items.length === 0}>
          <thead>
            <tr>
              <th>{t("run.status")}</th>
              <th>{t("deliveries.message")}</th>
              <th>{t("run.title")}</th>
              <th className="number">{t("deliveries.tries")}</th>
              <th>{t("run.created")}</th>
              <th>{t("deliveries.ended")}</th>
              <td />
            </tr>
          </thead>
          <tbody>
            {items.map((delivery) => (
              <DeliveryRow key={delivery.message_id} webhook={webhook} delivery={delivery} />
            ))}
          </tbody>
        </table>
      </Scroll>
      {deliveries.hasNextPage && (
        <button
          type="button"
          onClick={() => void deliveries.fetchNextPage()}
          disabled={deliveries.isFetchingNextPage}
        >
          {t("list.more")}
        </button>
      )}
    </section>
  );
}

function StatusChoice({ chosen }: { chosen: Schema<"DeliveryStatus"> | undefined }) {
  const t = useText();
  const navigate = useNavigate({ from: "/webhooks/$webhookId" });
  return (
    <div className="quick">
      {[undefined, ...STATUSES].map((status) => (
        <button
          key={status ?? ""}
          type="button"
          aria-pressed={status === chosen}
          // Unsaved changes of the form stay: the view is not left.
          onClick={() => void navigate({ search: { status }, ignoreBlocker: true, resetScroll: false })}
        >
          {t(status === undefined ? "runs.all" : `deliveries.${status}`)}
        </button>
      ))}
    </div>
  );
}

function DeliveryRow({ webhook, delivery }: { webhook: Webhook; delivery: Delivery }) {
  const t = useText();
  const rights = useRights();
  return (
    <tr>
      <td>
        <Badge tone={DELIVERY_TONES[delivery.status]}>{t(`deliveries.${delivery.status}`)}</Badge>
      </td>
      <td className="wide">
        {delivery.type}
        <p className="reason">{lastAnswer(delivery)}</p>
      </td>
      <td>
        {delivery.run_id != null && (
          <Link to="/runs/$runId" params={{ runId: delivery.run_id }}>
            {short(delivery.run_id)}
          </Link>
        )}
      </td>
      <td className="number">
        {delivery.tries} / {MAX_TRIES}
      </td>
      <td>
        <When at={delivery.created_at} />
      </td>
      <td>
        {delivery.next_try_at == null ? (
          <When at={delivery.finished_at} />
        ) : (
          <>
            {t("endpoints.retry")} <When at={delivery.next_try_at} />
          </>
        )}
      </td>
      <td>
        {rights?.changes && isRedeliverable(delivery) && (
          <Redeliver webhookId={webhook.id} messageId={delivery.message_id} />
        )}
      </td>
    </tr>
  );
}

function Redeliver({ webhookId, messageId }: { webhookId: string; messageId: string }) {
  const t = useText();
  const client = useQueryClient();
  const path = { webhook_id: webhookId, message_id: messageId };
  const redeliver = useMutation({
    mutationFn: () =>
      dataOf(api.POST("/v1/webhooks/{webhook_id}/deliveries/{message_id}/redeliver", { params: { path } })),
    onSuccess: () => client.invalidateQueries({ queryKey: ["webhooks", "deliveries", webhookId] }),
  });
  return (
    <>
      <button
        type="button"
        className="quiet"
        disabled={redeliver.isPending}
        onClick={() => redeliver.mutate()}
      >
        {t("deliveries.again")}
      </button>
      {redeliver.error !== null && <Problem error={redeliver.error} />}
    </>
  );
}

/** Sends all messages since a time again: those of the chosen status, or all that are not pending. */
function RedeliverSince({
  webhook,
  status,
}: {
  webhook: Webhook;
  status: Schema<"DeliveryStatus"> | undefined;
}) {
  const t = useText();
  const client = useQueryClient();
  const [since, setSince] = useState("");
  const path = { webhook_id: webhook.id };
  const redeliver = useMutation({
    mutationFn: () => {
      const body = { since: Number(secondsOf(since)), status };
      return dataOf(api.POST("/v1/webhooks/{webhook_id}/redeliver", { params: { path }, body }));
    },
    onSuccess: () => client.invalidateQueries({ queryKey: ["webhooks", "deliveries", webhook.id] }),
  });
  if (status === "pending") return null;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    redeliver.mutate();
  };
  return (
    <form className="quick" onSubmit={submit}>
      <label>
        {t(status === undefined ? "deliveries.sinceAll" : `deliveries.since.${status}`)}{" "}
        <input
          type="datetime-local"
          required
          value={since}
          onChange={(event) => setSince(event.target.value)}
        />
      </label>
      <button type="submit" disabled={redeliver.isPending}>
        {t("deliveries.again")}
      </button>
      {redeliver.error !== null && <Problem error={redeliver.error} />}
      {redeliver.data !== undefined && (
        <span role="status">
          {t(redeliver.data.has_more ? "deliveries.queuedMore" : "deliveries.queued", {
            n: redeliver.data.count,
          })}
        </span>
      )}
    </form>
  );
}
