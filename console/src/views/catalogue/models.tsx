import { useQuery } from "@tanstack/react-query";
import type { Schema } from "../../api/client";
import { useText } from "../../i18n";
import { Badge, Empty, Facts, Loading, WebLink } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";
import { catalogueQueries } from "./queries";

const EXAMPLE = `[[model_providers]]
name = "openai"
kind = "openai"
base_url = "https://api.openai.com/v1"
api_keys = ["env:OPENAI_API_KEY"]

[[models]]
model_id = "assistant"
provider = "openai"
upstream_model = "gpt-4o"`;

export function ModelsTab() {
  const t = useText();
  const models = useQuery(catalogueQueries.models());
  const providers = useQuery(catalogueQueries.providers());
  if (models.isPending) return <Loading what="catalogue.models" />;
  if (models.error !== null) return <Problem error={models.error} />;
  return (
    <>
      {models.data.items.length === 0 && <Empty text="catalogue.none" command={EXAMPLE} />}
      <table className="list" hidden={models.data.items.length === 0}>
        <thead>
          <tr>
            <th>{t("catalogue.model")}</th>
            <th>{t("catalogue.type")}</th>
            <th>{t("catalogue.provider")}</th>
            <th>{t("catalogue.modalities")}</th>
          </tr>
        </thead>
        <tbody>
          {models.data.items.map((model) => (
            <tr key={model.model_id}>
              <td className="wide">{model.model_id}</td>
              <td>{model.model_type}</td>
              <td>{model.provider}</td>
              <td>{model.input_modalities?.join(", ")}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <h2>{t("catalogue.providers")}</h2>
      {providers.data?.items.map((provider) => (
        <Provider key={provider.name} provider={provider} />
      ))}
    </>
  );
}

function Provider({ provider }: { provider: Schema<"ModelProvider"> }) {
  const t = useText();
  const resting = provider.keys.filter((key) => key.rests_until != null);
  const failures = provider.consecutive_failures;
  return (
    <article className="card">
      <h3>
        {provider.name}{" "}
        <Badge tone={failures > 0 ? "bad" : "good"}>
          {failures > 0 ? t("catalogue.failures", { n: failures }) : provider.kind}
        </Badge>
      </h3>
      {failures > 0 && provider.last_error && (
        <p className="problem">
          <code>{provider.last_error.code}</code> {provider.last_error.reason}
        </p>
      )}
      <Facts
        facts={[
          { label: "URL", value: provider.base_url && <WebLink address={provider.base_url} /> },
          { label: t("catalogue.models"), value: provider.models.join(", ") },
          {
            label: t("catalogue.keys"),
            value: t("catalogue.keyCount", { n: provider.keys.length, resting: resting.length }),
          },
          { label: t("catalogue.lastSuccess"), value: <When at={provider.last_success_at} /> },
          { label: t("catalogue.lastFailure"), value: <When at={provider.last_failure_at} /> },
        ]}
      />
    </article>
  );
}
