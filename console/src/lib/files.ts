/** Files of a conversation. */

import type { Schema } from "../api/client";

export interface ConversationFile {
  /** Id of the stored artifact; null for a file that is a web address only. */
  id: string | null;
  name: string;
  mimeType: string;
  size: number | null;
  url: string | null;
  runId: string | null;
  createdAt: number;
}

/** Files that messages refer to, each once, the newest first. */
export function filesOf(messages: Schema<"TranscriptItem">[]): ConversationFile[] {
  const files = new Map<string, ConversationFile>();
  for (const message of messages.toReversed()) {
    for (const reference of message.attachment_refs) {
      const { id, name, mime_type, size, url } = reference as Record<string, unknown>;
      const text = (value: unknown) => (typeof value === "string" && value !== "" ? value : null);
      const key = text(id) ?? text(url) ?? text(name);
      if (key === null || files.has(key)) continue;
      files.set(key, {
        id: text(id),
        name: text(name) ?? key,
        mimeType: text(mime_type) ?? "",
        size: typeof size === "number" ? size : null,
        url: text(url),
        runId: message.run_id ?? null,
        createdAt: message.created_at,
      });
    }
  }
  return [...files.values()];
}
