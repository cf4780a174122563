import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useId } from "react";
import { api, dataOf } from "../../api/client";
import { useText } from "../../i18n";
import { Problem } from "../../ui/problem";

/** Uploads a file as a document with the name of the file. The answer comes when it is searchable. */
export function Upload({ kbId }: { kbId: string }) {
  const t = useText();
  const client = useQueryClient();
  const id = useId();
  const renew = () => client.invalidateQueries({ queryKey: ["documents", kbId] });
  const upload = useMutation({
    mutationFn: async (file: File) => {
      const done = dataOf(
        api.PUT("/v1/knowledge-bases/{kb_id}/documents/{document_id}", {
          params: { path: { kb_id: kbId, document_id: file.name } },
          // The generated type of a binary body is text.
          body: file as unknown as string,
          bodySerializer: (body) => body,
          headers: { "Content-Type": file.type || "application/octet-stream" },
        }),
      );
      // The list shows the progress meanwhile.
      setTimeout(() => void renew(), PROGRESS_MS);
      return done;
    },
    onSettled: renew,
  });
  return (
    <div className="quick">
      <label htmlFor={id}>{t("knowledge.upload")}</label>
      <input
        id={id}
        type="file"
        accept=".md,.txt,.html,.pdf"
        disabled={upload.isPending}
        onChange={(event) => {
          const file = event.target.files?.[0];
          if (file !== undefined) upload.mutate(file);
          event.target.value = "";
        }}
      />
      {upload.isPending && (
        <span role="status">{t("knowledge.uploading", { name: upload.variables.name })}</span>
      )}
      {upload.error !== null && <Problem error={upload.error} />}
    </div>
  );
}

const PROGRESS_MS = 500;
