import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { api, dataOf, type Schema } from "../../api/client";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { bytes, count, pretty } from "../../lib/format";
import { Badge, Empty, Loading, Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";
import { catalogueQueries, documentsQuery } from "./queries";
import { Upload } from "./upload";

type Base = Schema<"KnowledgeBaseResource">;

const EXAMPLE = `[[knowledge_bases]]
kb_id = "handbook"`;

export function KnowledgeTab() {
  const bases = useQuery(catalogueQueries.knowledge());
  if (bases.isPending) return <Loading what="catalogue.knowledge" />;
  if (bases.error !== null) return <Problem error={bases.error} />;
  if (bases.data.items.length === 0) return <Empty text="catalogue.none" command={EXAMPLE} />;
  return bases.data.items.map((base) => <BaseCard key={base.kb_id} base={base} />);
}

function BaseCard({ base }: { base: Base }) {
  const rights = useRights();
  return (
    <article className="card">
      <h2>
        {base.kb_name ?? base.kb_id} <Badge tone="off">{base.kb_type ?? base.kb_id}</Badge>
      </h2>
      <Search kbId={base.kb_id} />
      {rights?.changes && <Upload kbId={base.kb_id} />}
      <Documents kbId={base.kb_id} />
    </article>
  );
}

/** Searches as a run does. */
function Search({ kbId }: { kbId: string }) {
  const t = useText();
  const [query, setQuery] = useState("");
  const search = useMutation({
    mutationFn: () => {
      const params = { path: { kb_id: kbId } };
      return dataOf(
        api.POST("/v1/knowledge-bases/{kb_id}/retrieve", { params, body: { query_text: query } }),
      );
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    search.mutate();
  };
  return (
    <>
      <form className="quick" onSubmit={submit}>
        <input
          type="search"
          required
          aria-label={t("knowledge.query")}
          placeholder={t("knowledge.query")}
          value={query}
          onChange={(event) => setQuery(event.target.value)}
        />
        <button type="submit" disabled={search.isPending}>
          {t("knowledge.search")}
        </button>
      </form>
      {search.error !== null && <Problem error={search.error} />}
      {search.data?.results.length === 0 && <p className="faint">{t("knowledge.noResult")}</p>}
      {search.data?.results.map((result, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: a result is replaced with its list
        <pre className="json text" key={index}>
          {pretty(result)}
        </pre>
      ))}
    </>
  );
}

const TONES = { ready: "good", indexing: "live", failed: "bad" };

function Documents({ kbId }: { kbId: string }) {
  const rights = useRights();
  const t = useText();
  const documents = useInfiniteQuery(documentsQuery(kbId));
  if (documents.isPending) return <Loading what="knowledge.documents" />;
  if (documents.error !== null) return <Problem error={documents.error} />;
  const items = documents.data.pages.flatMap((page) => page.items);
  if (items.length === 0) return <p className="faint">{t("knowledge.empty")}</p>;
  return (
    <Scroll>
      <table className="list">
        <tbody>
          {items.map((document) => (
            <tr key={document.document_id}>
              <td>
                <Badge tone={TONES[document.status]}>
                  {document.progress
                    ? `${document.progress.chunks_done} / ${document.progress.chunks_all}`
                    : document.status}
                </Badge>
              </td>
              <td className="wide">
                {document.name}
                {document.error && <p className="reason">{document.error}</p>}
              </td>
              <td className="number">{bytes(document.size)}</td>
              <td className="number">{t("knowledge.chunks", { n: count(document.chunks) })}</td>
              <td>
                <When at={document.updated_at} />
              </td>
              <td>{rights?.changes && <Remove kbId={kbId} documentId={document.document_id} />}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {documents.hasNextPage && (
        <button type="button" onClick={() => void documents.fetchNextPage()}>
          {t("list.more")}
        </button>
      )}
    </Scroll>
  );
}

/** Deletes after a second press. */
function Remove({ kbId, documentId }: { kbId: string; documentId: string }) {
  const t = useText();
  const client = useQueryClient();
  const [isSure, setSure] = useState(false);
  const path = { kb_id: kbId, document_id: documentId };
  const remove = useMutation({
    mutationFn: () =>
      dataOf(api.DELETE("/v1/knowledge-bases/{kb_id}/documents/{document_id}", { params: { path } })),
    onSuccess: () => client.invalidateQueries({ queryKey: ["documents", kbId] }),
  });
  return (
    <>
      <button
        type="button"
        className={isSure ? "danger" : "quiet"}
        disabled={remove.isPending}
        onBlur={() => setSure(false)}
        onClick={() => (isSure ? remove.mutate() : setSure(true))}
      >
        {t(isSure ? "knowledge.removeSure" : "knowledge.remove")}
      </button>
      {remove.error !== null && <Problem error={remove.error} />}
    </>
  );
}
