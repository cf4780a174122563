import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useText } from "../../i18n";
import { ListAge } from "../../ui/age";
import { Badge, Empty, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";
import { conversationsQuery } from "./queries";

export function Conversations() {
  const t = useText();
  const list = useInfiniteQuery(conversationsQuery());
  const items = list.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <main>
      <h1>{t("nav.conversations")}</h1>
      {list.isPending && <Loading what="nav.conversations" />}
      {list.error !== null && <Problem error={list.error} />}
      <ListAge of={list} />
      {list.isSuccess && items.length === 0 && (
        <Empty text="conversations.none" command='runnel send --conversation first "Hello"' />
      )}
      <table className="list runs">
        <tbody>
          {items.map((item) => (
            <tr key={JSON.stringify([item.conversation_id, item.bot_id, item.thread_id])}>
              <td className="wide">
                <Link
                  className="row"
                  to="/conversations/$conversationId"
                  params={{ conversationId: item.conversation_id }}
                  search={{ bot_id: item.bot_id ?? undefined, thread_id: item.thread_id ?? undefined }}
                >
                  {item.conversation_id}
                </Link>
                <p className="reason">{item.input_preview}</p>
              </td>
              <td>{[item.bot_id, item.thread_id].filter(Boolean).join(" / ")}</td>
              <td>{item.is_busy && <Badge tone="live">{t("conversations.busy")}</Badge>}</td>
              <td className="number">{t("conversations.messages", { n: item.message_count })}</td>
              <td>
                <When at={item.last_event_at} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {list.hasNextPage && (
        <button type="button" onClick={() => void list.fetchNextPage()} disabled={list.isFetchingNextPage}>
          {t("list.more")}
        </button>
      )}
    </main>
  );
}
