import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams, useSearch } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import type { Schema } from "../../api/client";
import { record } from "../../api/errors";
import { newKey, usePost } from "../../api/post";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { textOf } from "../../lib/answer";
import { composeEvent, EMPTY_FORM } from "../../lib/compose";
import { Empty, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { Text } from "../../ui/text";
import { When } from "../../ui/when";
import { StreamedAnswer } from "../run/answer";
import { Questions } from "../run/questions";
import { Files } from "./files";
import { type ConversationKey, historyQuery } from "./queries";
import { ConversationQuestions } from "./questions";

type Item = Schema<"TranscriptItem">;

/** The messages of a conversation across its runs. */
export function Conversation() {
  const t = useText();
  const { conversationId } = useParams({ from: "/conversations/$conversationId" });
  const { bot_id: botId, thread_id: threadId } = useSearch({ from: "/conversations/$conversationId" });
  const rights = useRights();
  const key = { conversationId, botId, threadId };
  const history = useInfiniteQuery(historyQuery(key));
  const items = history.data?.pages.flatMap((page) => page.items) ?? [];
  const messages = items.toSorted((a, b) => a.seq - b.seq);
  return (
    <main className="chat">
      <h1>{conversationId}</h1>
      <p>
        <Link to="/runs" search={{ conversation_id: conversationId, bot_id: botId, thread_id: threadId }}>
          {t("nav.runs")}
        </Link>
      </p>
      {history.hasNextPage && (
        <button
          type="button"
          onClick={() => void history.fetchNextPage()}
          disabled={history.isFetchingNextPage}
        >
          {t("conversations.older")}
        </button>
      )}
      {history.isPending && <Loading what="nav.conversations" />}
      {history.error !== null && <Problem error={history.error} />}
      {history.isSuccess && messages.length === 0 && <Empty text="conversations.empty" />}
      {messages.map((item) => (
        <ChatMessage key={item.transcript_id} item={item} />
      ))}
      <Files messages={messages} />
      <ConversationQuestions conversation={key} />
      {rights?.posts && (
        <Reply key={JSON.stringify(key)} conversation={key} newest={messages.at(-1)?.run_id ?? null} />
      )}
    </main>
  );
}

function ChatMessage({ item }: { item: Item }) {
  const actor = record(item.metadata.actor).actor_name;
  const full = textOf(record(item.content_json).content as Schema<"MessageContent"> | undefined);
  return (
    <article className={`message ${item.role}`}>
      <p className="faint">
        {typeof actor === "string" ? actor : item.role} · <When at={item.created_at} />{" "}
        {item.run_id != null && (
          <Link to="/runs/$runId" params={{ runId: item.run_id }}>
            →
          </Link>
        )}
      </p>
      <Text>{full || (item.content ?? "")}</Text>
    </article>
  );
}

/** Sends a message into the conversation. The answer streams until the history has it. */
function Reply({ conversation, newest }: { conversation: ConversationKey; newest: string | null }) {
  const t = useText();
  const client = useQueryClient();
  const [text, setText] = useState("");
  const [key, setKey] = useState(newKey);
  const [runId, setRunId] = useState<string | null>(null);
  const [note, setNote] = useState<string | null>(null);
  const post = usePost((accepted) => {
    setText("");
    setKey(newKey());
    setRunId(accepted.run_id ?? null);
    setNote(accepted.run_id == null ? (accepted.hint ?? t("try.noRun")) : null);
    void client.invalidateQueries({ queryKey: historyQuery(conversation).queryKey });
  });
  const send = (event: FormEvent) => {
    event.preventDefault();
    const { conversationId, botId = "", threadId = "" } = conversation;
    post.mutate({ event: composeEvent({ ...EMPTY_FORM, text, conversationId, botId, threadId }), key });
  };
  return (
    <>
      {runId !== null && <Questions run={{ run_id: runId, status: "running" }} />}
      {runId !== null && runId !== newest && <StreamedAnswer key={runId} runId={runId} lastSequence={0} />}
      {note !== null && <p className="problem">{note}</p>}
      {post.error !== null && <Problem error={post.error} />}
      <form className="reply" onSubmit={send}>
        <textarea
          rows={2}
          aria-label={t("try.text")}
          placeholder={t("try.text")}
          value={text}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
              event.preventDefault();
              event.currentTarget.form?.requestSubmit();
            }
          }}
        />
        <button type="submit" className="primary" disabled={text.trim() === "" || post.isPending}>
          {t("try.send")}
        </button>
      </form>
    </>
  );
}
