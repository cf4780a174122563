import { useMutation } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { api, dataOf, type Schema } from "../../api/client";
import { useText } from "../../i18n";
import { type ConversationFile, filesOf } from "../../lib/files";
import { bytes } from "../../lib/format";
import { WebLink } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";

/** Files of the loaded messages. */
export function Files({ messages }: { messages: Schema<"TranscriptItem">[] }) {
  const t = useText();
  const files = filesOf(messages);
  if (files.length === 0) return null;
  return (
    <details className="card">
      <summary>{t("conversations.files", { n: files.length })}</summary>
      <ul className="plain">
        {files.map((file) => (
          <li key={file.id ?? file.url ?? file.name}>
            {file.id === null && file.url !== null ? <WebLink address={file.url} /> : file.name}{" "}
            <span className="faint">
              {file.mimeType} {file.size !== null && bytes(file.size)} · <When at={file.createdAt} />
            </span>{" "}
            {file.runId !== null && (
              <Link to="/runs/$runId" params={{ runId: file.runId }}>
                {t("run.title")}
              </Link>
            )}{" "}
            {file.id !== null && <Download id={file.id} file={file} />}
          </li>
        ))}
      </ul>
    </details>
  );
}

/** A link cannot send the key: the content is fetched, then saved by the browser. */
function Download({ id, file }: { id: string; file: ConversationFile }) {
  const t = useText();
  const path = { artifact_id: id };
  const download = useMutation({
    mutationFn: () =>
      dataOf(api.GET("/v1/artifacts/{artifact_id}/content", { params: { path }, parseAs: "blob" })),
    onSuccess: (content) => save(content as unknown as Blob, file.name),
  });
  return (
    <>
      <button
        type="button"
        className="quiet"
        disabled={download.isPending}
        onClick={() => download.mutate()}
        aria-label={t("conversations.downloadFile", { name: file.name })}
      >
        {t("conversations.download")}
      </button>
      {download.error !== null && <Problem error={download.error} />}
    </>
  );
}

function save(content: Blob, name: string): void {
  // Without a type the browser never shows it as a page of this origin.
  const url = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}
