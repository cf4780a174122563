import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, useState } from "react";
import type { Run } from "../../api/client";
import { useText } from "../../i18n";
import { eventsCall } from "../../lib/acts";
import { pagesOfSequences } from "../../lib/pages";
import { CopyMenu } from "../../ui/copy-menu";
import { Problem } from "../../ui/problem";
import { useEventPages } from "./event-pages";
import { EventRow } from "./event-row";

const ROW_PX = 30;
const OVERSCAN = 15;

/**
 * Events as a virtual list that begins at the end and loads the pages in view. `chosen` has the sequences to show in
 * order; null shows all.
 */
export function EventList({ run, chosen }: { run: Run; chosen: number[] | null }) {
  const t = useText();
  const element = useRef<HTMLElement>(null);
  const [opened, setOpened] = useState<ReadonlySet<number>>(new Set());
  const count = chosen?.length ?? run.last_sequence;
  const sequenceAt = (index: number) => chosen?.[index] ?? index + 1;
  const list = useVirtualizer({
    count,
    getScrollElement: () => element.current,
    estimateSize: () => ROW_PX,
    overscan: OVERSCAN,
  });
  const rows = list.getVirtualItems();
  const visible = rows.map(({ index }) => sequenceAt(index));
  const { bySequence, error } = useEventPages(run, pagesOfSequences(visible, run.last_sequence));
  // Follows new events while the end is in view, and begins there.
  const isAtEnd = useRef(true);
  useEffect(() => {
    if (isAtEnd.current) list.scrollToIndex(count - 1, { align: "end" });
  }, [list, count]);
  const toggle = (sequence: number) => {
    const next = new Set(opened);
    if (!next.delete(sequence)) next.add(sequence);
    setOpened(next);
  };
  return (
    <>
      <div className="quick">
        <Jump last={count} jump={(row) => list.scrollToIndex(row - 1, { align: "center" })} />
        <CopyMenu acts={[{ label: t("copyAs.read"), call: eventsCall(run.run_id) }]} />
      </div>
      {error !== null && <Problem error={error} />}
      <section
        ref={element}
        className="virtual"
        onScroll={({ currentTarget: box }) => {
          isAtEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < ROW_PX;
        }}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling region must be reachable by keyboard
        tabIndex={0}
        aria-label={t("tab.events", { n: count })}
      >
        <div className="canvas" style={{ height: list.getTotalSize() }}>
          {rows.map(({ index, start }) => (
            <div
              key={index}
              ref={list.measureElement}
              data-index={index}
              className="event"
              style={{ transform: `translateY(${start}px)` }}
            >
              <EventRow
                run={run}
                sequence={sequenceAt(index)}
                event={bySequence.get(sequenceAt(index))}
                isOpen={opened.has(sequenceAt(index))}
                toggle={() => toggle(sequenceAt(index))}
              />
            </div>
          ))}
        </div>
      </section>
    </>
  );
}

function Jump({ last, jump }: { last: number; jump: (row: number) => void }) {
  const t = useText();
  return (
    <>
      <button type="button" onClick={() => jump(1)}>
        {t("events.first")}
      </button>
      <button type="button" onClick={() => jump(last)}>
        {t("events.last")}
      </button>
      <label>
        {t("events.jump")}{" "}
        <input
          type="number"
          min={1}
          max={last}
          onChange={({ target }) => {
            const row = Math.trunc(target.valueAsNumber);
            if (row >= 1 && row <= last) jump(row);
          }}
        />
      </label>
    </>
  );
}
