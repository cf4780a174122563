import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useId, useState } from "react";
import { api, dataOf } from "../../api/client";
import { useText } from "../../i18n";
import { readHeaders } from "../../lib/sources";
import { FieldFaults } from "../../ui/field-faults";
import { Json } from "../../ui/parts";
import { Problem } from "../../ui/problem";

/** Shows the event of a request without posting it. It changes nothing: each reader may try. */
export function TrySource({ sourceId }: { sourceId: string }) {
  const t = useText();
  const id = useId();
  const [body, setBody] = useState("");
  const [headers, setHeaders] = useState("Content-Type: application/json");
  const [query, setQuery] = useState("");
  const read = readHeaders(headers);
  const tried = useMutation({
    mutationFn: (sent: Record<string, string>) => {
      const params = { path: { source_id: sourceId } };
      const request = { body, headers: sent, ...(query === "" ? {} : { query }) };
      return dataOf(api.POST("/v1/sources/{source_id}/try", { params, body: request }));
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if ("headers" in read) tried.mutate(read.headers);
  };
  return (
    <section aria-label={t("sources.try")}>
      <h2>{t("sources.try")}</h2>
      <form onSubmit={submit}>
        <div className="field">
          <label htmlFor={`${id}-body`}>{t("sources.body")}</label>
          <textarea
            id={`${id}-body`}
            rows={6}
            spellCheck={false}
            value={body}
            onChange={(event) => setBody(event.target.value)}
          />
        </div>
        <div className="field">
          <label htmlFor={`${id}-headers`}>{t("sources.headers")}</label>
          <textarea
            id={`${id}-headers`}
            rows={2}
            spellCheck={false}
            value={headers}
            onChange={(event) => setHeaders(event.target.value)}
          />
        </div>
        <div className="field">
          <label htmlFor={`${id}-query`}>{t("sources.query")}</label>
          <input id={`${id}-query`} value={query} onChange={(event) => setQuery(event.target.value)} />
        </div>
        {"line" in read && <p className="problem">{t("sources.noHeader", { line: read.line })}</p>}
        <div className="actions">
          <button type="submit" disabled={tried.isPending || "line" in read}>
            {t("sources.show")}
          </button>
        </div>
      </form>
      {tried.error !== null && <Problem error={tried.error} />}
      {tried.data !== undefined && (
        <div role="status">
          <FieldFaults faults={tried.data.faults ?? []} isNamed />
          {tried.data.event != null && <Json value={tried.data.event} />}
          {tried.data.event == null && (tried.data.faults ?? []).length === 0 && (
            <p>{t("sources.nothing")}</p>
          )}
        </div>
      )}
    </section>
  );
}
