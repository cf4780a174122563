import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import type { Run } from "../../api/client";
import { auditQuery, interactionsQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { duration } from "../../lib/format";
import { CALL_KINDS, isCallShown } from "../../lib/steps";
import { type Bar, type Lane, layoutTimeline, ticks } from "../../lib/timeline";
import { KindChoice, useSteps } from "../../ui/steps";
import { useNow } from "../../ui/when";
import { RetryChain } from "./chain";

export function TimelinePanel({ run }: { run: Run }) {
  const t = useText();
  const now = useNow();
  const audit = useInfiniteQuery(auditQuery(run));
  const question = useQuery(interactionsQuery({ run_id: run.run_id }));
  const [choice] = useSteps();
  const calls = (audit.data?.pages ?? [])
    .flatMap((page) => page.items)
    .filter((call) => isCallShown(call, choice));
  const { totalMs, lanes } = layoutTimeline({ run, calls, interactions: question.data?.items ?? [], now });
  return (
    <section className="timeline" aria-label={t("run.timeline")}>
      <h2>{t("run.timeline")}</h2>
      <RetryChain run={run} />
      <KindChoice kinds={CALL_KINDS} />
      <div className="axis">
        <span />
        <div className="track">
          {ticks(totalMs).map((at) => (
            <span key={at} className="tick" style={{ left: `${(100 * at) / totalMs}%` }}>
              {duration(at)}
            </span>
          ))}
        </div>
      </div>
      {lanes.map((lane) => (
        <LaneRow key={lane.id} lane={lane} totalMs={totalMs} />
      ))}
      {audit.hasNextPage && (
        <button type="button" onClick={() => void audit.fetchNextPage()} disabled={audit.isFetchingNextPage}>
          {t("timeline.more")}
        </button>
      )}
    </section>
  );
}

function LaneRow({ lane, totalMs }: { lane: Lane; totalMs: number }) {
  const t = useText();
  const label = lane.id === "queue" || lane.id === "run" ? t(`timeline.${lane.id}`) : lane.label;
  return (
    <div className="lane">
      <span className="label" title={label}>
        {label}
      </span>
      <div className="track">
        {lane.bars.map((bar, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: bars have no identity
          <BarMark key={index} bar={bar} totalMs={totalMs} />
        ))}
      </div>
    </div>
  );
}

function BarMark({ bar, totalMs }: { bar: Bar; totalMs: number }) {
  const percent = (ms: number) => `${(100 * ms) / totalMs}%`;
  const length = bar.endMs - bar.startMs;
  const text = `${duration(bar.startMs)} + ${duration(length)}${bar.note === "" ? "" : `, ${bar.note}`}`;
  return (
    <span
      className={`bar ${bar.kind}`}
      style={{ left: percent(bar.startMs), width: percent(length) }}
      role="img"
      aria-label={text}
      title={text}
    />
  );
}
