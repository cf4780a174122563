import { queryOptions, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, dataOf, type Schema } from "../../api/client";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { duration } from "../../lib/format";
import { PAGE } from "../../lib/pages";
import { ListAge } from "../../ui/age";
import { useLinked } from "../../ui/linked";
import { Badge, Empty, Facts, Json, Loading, Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";
import { endpointsQuery, RENEW_MS } from "./queries";
import { Register } from "./register";

type Endpoint = Schema<"RunnerEndpoint">;

const EXAMPLE = `[[runner_endpoints]]
name = "echo"
base_url = "https://runner.example.com"
secret = "file:runnel-data/runner.secret"`;

function healthQuery(endpointId: string) {
  const params = { path: { endpoint_id: endpointId }, query: { limit: PAGE } };
  return queryOptions({
    queryKey: ["endpoints", endpointId, "health"],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/runner-endpoints/{endpoint_id}/health", { params, signal })),
    refetchInterval: RENEW_MS,
  });
}

/** Runner endpoints: health, circuit breaker, runners and their faults. */
export function Endpoints() {
  const t = useText();
  const rights = useRights();
  const endpoints = useQuery(endpointsQuery());
  const items = endpoints.data?.items ?? [];
  return (
    <main>
      <h1>{t("nav.endpoints")}</h1>
      {endpoints.isPending && <Loading what="nav.endpoints" />}
      {endpoints.error !== null && <Problem error={endpoints.error} retry={() => void endpoints.refetch()} />}
      <ListAge of={endpoints} />
      {rights?.changes && <Register />}
      {endpoints.isSuccess && items.length === 0 && <Empty text="endpoints.none" command={EXAMPLE} />}
      {items.map((endpoint) => (
        <EndpointCard key={endpoint.id} endpoint={endpoint} />
      ))}
    </main>
  );
}

const TONES: Record<string, string> = {
  healthy: "good",
  unhealthy: "bad",
  unknown: "wait",
  closed: "good",
  open: "bad",
};

function EndpointCard({ endpoint }: { endpoint: Endpoint }) {
  const t = useText();
  const [isOpen, setOpen] = useState(false);
  const rights = useRights();
  const { ref } = useLinked<HTMLElement>(`endpoint-${endpoint.name}`);
  const { breaker } = endpoint;
  return (
    <article className="card" id={`endpoint-${endpoint.name}`} ref={ref}>
      <h2>
        {endpoint.name} <Badge tone={TONES[endpoint.health] ?? "wait"}>{endpoint.health}</Badge>
      </h2>
      {endpoint.health_reason && <p className="problem">{endpoint.health_reason}</p>}
      <Facts
        facts={[
          { label: "URL", value: endpoint.base_url },
          { label: t("endpoints.origin"), value: endpoint.origin },
          {
            label: t("endpoints.circuit"),
            value: <Badge tone={TONES[breaker.state] ?? "wait"}>{breaker.state}</Badge>,
          },
          { label: t("endpoints.failures"), value: breaker.failures || null },
          { label: t("endpoints.retry"), value: breaker.retry_at ? <When at={breaker.retry_at} /> : null },
          { label: t("endpoints.discovered"), value: <When at={endpoint.discovered_at} /> },
          { label: t("endpoints.maxRuns"), value: endpoint.max_runs },
        ]}
      />
      <RunnerList endpoint={endpoint} />
      {rights?.changes && <Refresh endpointId={endpoint.id} />}
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>{t("endpoints.history")}</summary>
        {isOpen && <Health endpointId={endpoint.id} />}
      </details>
      <details>
        <summary>JSON</summary>
        <Json value={endpoint} />
      </details>
    </article>
  );
}

function RunnerList({ endpoint }: { endpoint: Endpoint }) {
  return (
    <ul>
      {endpoint.accepted.map((runner) => (
        <li key={runner.id}>
          <Badge tone="good">accepted</Badge> {runner.id}
          {runner.warnings?.map((warning) => (
            <p className="reason" key={warning.pointer}>
              <code>{warning.pointer}</code> {warning.message}
            </p>
          ))}
        </li>
      ))}
      {endpoint.incompatible.map((runner) => (
        <li key={runner.id}>
          <Badge tone="bad">incompatible</Badge> {runner.id} <span className="reason">{runner.reason}</span>
        </li>
      ))}
      {endpoint.rejected.map((fault) => (
        <li key={fault.pointer + fault.message}>
          <Badge tone="bad">rejected</Badge> <code>{fault.pointer}</code> {fault.message}
        </li>
      ))}
    </ul>
  );
}

/** Discovery now: what would change, then the change. */
function Refresh({ endpointId }: { endpointId: string }) {
  const t = useText();
  const client = useQueryClient();
  const path = { endpoint_id: endpointId };
  const refresh = useMutation({
    mutationFn: (dryRun: boolean) => {
      const params = { path, query: dryRun ? { dry_run: true } : {} };
      return dataOf(api.POST("/v1/runner-endpoints/{endpoint_id}/refresh", { params }));
    },
    onSuccess: () => client.invalidateQueries({ queryKey: ["endpoints"] }),
  });
  const diff = refresh.variables === true ? refresh.data : undefined;
  return (
    <>
      <div className="actions">
        <button type="button" disabled={refresh.isPending} onClick={() => refresh.mutate(true)}>
          {t("endpoints.dryRun")}
        </button>
        <button type="button" disabled={refresh.isPending} onClick={() => refresh.mutate(false)}>
          {t("endpoints.refresh")}
        </button>
      </div>
      {refresh.error !== null && <Problem error={refresh.error} />}
      {diff !== undefined && <Json value={diff} />}
    </>
  );
}

function Health({ endpointId }: { endpointId: string }) {
  const t = useText();
  const health = useQuery(healthQuery(endpointId));
  if (health.isPending) return <Loading what="endpoints.history" />;
  if (health.error !== null) return <Problem error={health.error} />;
  return (
    <Scroll>
      <table className="list">
        <thead>
          <tr>
            <th>{t("calls.at")}</th>
            <th>{t("run.status")}</th>
            <th className="number">{t("endpoints.latency")}</th>
            <th>{t("endpoints.runners")}</th>
            <th>{t("endpoints.reason")}</th>
          </tr>
        </thead>
        <tbody>
          {health.data.items.map((change) => (
            <tr key={`${change.at} ${change.health} ${change.reason}`}>
              <td>
                <When at={change.at} />
              </td>
              <td>
                <Badge tone={TONES[change.health] ?? "wait"}>{change.health}</Badge>
              </td>
              <td className="number">{change.latency_ms == null ? "" : duration(change.latency_ms)}</td>
              <td>
                {change.accepted} (+{change.added} ~{change.changed} −{change.removed})
              </td>
              <td className="wide">{change.reason}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
