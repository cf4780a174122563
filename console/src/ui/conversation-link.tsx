import { Link } from "@tanstack/react-router";
import type { Run } from "../api/client";

export function ConversationLink({ run }: { run: Run }) {
  return (
    <Link
      to="/conversations/$conversationId"
      params={{ conversationId: run.conversation_id ?? "" }}
      search={{ bot_id: run.bot_id ?? undefined, thread_id: run.thread_id ?? undefined }}
    >
      {run.conversation_id}
    </Link>
  );
}
