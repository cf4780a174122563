import { useQuery } from "@tanstack/react-query";
import type { Run, Schema } from "../../api/client";
import { usageQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { count, duration, money } from "../../lib/format";
import { Empty, Loading, Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";

export function UsageTab({ run }: { run: Run }) {
  const t = useText();
  const usage = useQuery(usageQuery(run));
  if (usage.isPending) return <Loading what="tab.usage" />;
  if (usage.error !== null) return <Problem error={usage.error} retry={() => void usage.refetch()} />;
  if (usage.data.items.length === 0) return <Empty text="usage.none" />;
  return (
    <Scroll>
      <table className="list">
        <thead>
          <tr>
            <th>{t("usage.resource")}</th>
            <th className="number">{t("run.calls")}</th>
            <th className="number">{t("usage.input")}</th>
            <th className="number">{t("usage.cached")}</th>
            <th className="number">{t("usage.output")}</th>
            <th className="number">{t("run.duration")}</th>
            <th className="number">{t("run.cost")}</th>
          </tr>
        </thead>
        <tbody>
          {usage.data.items.map((item) => (
            <UsageRow
              key={`${item.kind} ${item.resource}`}
              label={`${item.kind} ${item.resource}`}
              used={item}
            />
          ))}
          <UsageRow label={t("usage.total")} used={usage.data.total} />
        </tbody>
      </table>
    </Scroll>
  );
}

function UsageRow({ label, used }: { label: string; used: Schema<"Used"> }) {
  return (
    <tr>
      <td className="wide">{label}</td>
      <td className="number">{count(used.calls)}</td>
      <td className="number">{count(used.prompt_tokens)}</td>
      <td className="number">{count(used.tokens.cache_read)}</td>
      <td className="number">{count(used.completion_tokens)}</td>
      <td className="number">{duration(used.seconds * 1000)}</td>
      <td className="number">{money(used.cost)}</td>
    </tr>
  );
}
