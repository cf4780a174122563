import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, dataOf } from "../../api/client";
import { useText } from "../../i18n";
import { duration } from "../../lib/format";
import { ConfirmButton } from "../../ui/confirm";
import { Badge } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import type { Webhook } from "./queries";

/** Sends a test message, and shows the answer of the receiver. */
export function TestCall({ webhook }: { webhook: Webhook }) {
  const t = useText();
  const path = { webhook_id: webhook.id };
  const test = useMutation({
    mutationFn: () => dataOf(api.POST("/v1/webhooks/{webhook_id}/test", { params: { path } })),
  });
  const result = test.data;
  return (
    <>
      <button type="button" disabled={test.isPending} onClick={() => test.mutate()}>
        {t("webhooks.test")}
      </button>
      {test.error !== null && <Problem error={test.error} />}
      {result !== undefined && (
        <span role="status">
          <Badge tone={result.delivered ? "good" : "bad"}>
            {t(result.delivered ? "webhooks.testDelivered" : "webhooks.testFailed")}
          </Badge>{" "}
          {[result.status, result.error, duration(result.duration_ms)]
            .filter((part) => part != null)
            .join(", ")}
        </span>
      )}
    </>
  );
}

interface RotateProps {
  webhook: Webhook;
  show: (webhook: Webhook) => void;
}

export function RotateSecret({ webhook, show }: RotateProps) {
  const t = useText();
  const client = useQueryClient();
  const path = { webhook_id: webhook.id };
  const rotate = async () => {
    const params = { path };
    show(await dataOf(api.POST("/v1/webhooks/{webhook_id}/rotate-secret", { params, body: {} })));
    await client.invalidateQueries({ queryKey: ["webhooks"] });
  };
  return (
    <ConfirmButton
      label={t("webhooks.rotate")}
      title={t("webhooks.rotateTitle", { name: webhook.name })}
      effect={t("webhooks.rotateEffect")}
      confirm={t("webhooks.rotateConfirm")}
      act={rotate}
      className=""
    />
  );
}
