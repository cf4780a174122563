import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { api, dataOf, type Schema } from "../../api/client";
import { record } from "../../api/errors";
import { useText } from "../../i18n";
import { Json } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { ShownOnce } from "../../ui/shown-once";

/** Registers an endpoint, after a look at the runners that it adds. */
export function Register() {
  const t = useText();
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [baseUrl, setBaseUrl] = useState("");
  const [secret, setSecret] = useState("");
  const body: Schema<"EndpointSpec"> = { name, base_url: baseUrl, ...(secret === "" ? {} : { secret }) };
  const preview = useMutation({
    mutationFn: () =>
      dataOf(api.POST("/v1/runner-endpoints", { params: { query: { dry_run: true } }, body })),
  });
  const register = useMutation({
    mutationFn: () => dataOf(api.POST("/v1/runner-endpoints", { body })),
    gcTime: 0,
    onSuccess: async () => {
      preview.reset();
      setSecret("");
      await client.invalidateQueries({ queryKey: ["endpoints"] });
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    register.mutate();
  };
  const created = record(register.data).secret;
  return (
    <details className="card">
      <summary>{t("endpoints.register")}</summary>
      <form onSubmit={submit}>
        <div className="columns">
          <label>
            {t("agents.name")}
            <input required value={name} onChange={(event) => setName(event.target.value)} />
          </label>
          <label>
            URL
            <input required type="url" value={baseUrl} onChange={(event) => setBaseUrl(event.target.value)} />
          </label>
          <label>
            {t("endpoints.secret")}
            <input
              type="password"
              autoComplete="off"
              value={secret}
              onChange={(event) => setSecret(event.target.value)}
            />
          </label>
        </div>
        <div className="actions">
          <button type="button" disabled={preview.isPending} onClick={() => preview.mutate()}>
            {t("endpoints.preview")}
          </button>
          <button type="submit" className="primary" disabled={register.isPending}>
            {t("endpoints.save")}
          </button>
        </div>
      </form>
      {preview.error !== null && <Problem error={preview.error} />}
      {register.error !== null && <Problem error={register.error} />}
      {preview.data !== undefined && <Json value={preview.data} />}
      {typeof created === "string" && (
        <ShownOnce hint={t("endpoints.once")} secret={created} close={() => register.reset()} />
      )}
    </details>
  );
}
