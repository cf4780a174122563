import { useInfiniteQuery } from "@tanstack/react-query";
import type { Run } from "../../api/client";
import { rejectionsQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { bytes } from "../../lib/format";
import { Empty, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";

/** Results of the runner that the gateway did not accept. */
export function RejectionsTab({ run }: { run: Run }) {
  const t = useText();
  const list = useInfiniteQuery(rejectionsQuery(run));
  if (list.isPending) return <Loading what="tab.rejections" />;
  if (list.error !== null) return <Problem error={list.error} retry={() => void list.refetch()} />;
  const rejections = list.data.pages.flatMap((page) => page.items);
  if (rejections.length === 0) return <Empty text="rejections.none" />;
  return (
    <>
      {rejections.map((rejection) => (
        <article key={rejection.n} className="card">
          <p>
            <code>{rejection.reason}</code> {rejection.message}{" "}
            <span className="faint">{bytes(rejection.bytes)}</span>
          </p>
          <pre>{rejection.excerpt}</pre>
        </article>
      ))}
      {list.hasNextPage && (
        <button type="button" onClick={() => void list.fetchNextPage()} disabled={list.isFetchingNextPage}>
          {t("list.more")}
        </button>
      )}
    </>
  );
}
