import { useState } from "react";
import type { Run } from "../../api/client";
import { type TextKey, useText } from "../../i18n";
import { pagesOf } from "../../lib/pages";
import { isFailure, isStep } from "../../lib/summary";
import { Empty, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { EventList } from "./event-list";
import { useEventPages } from "./event-pages";

type Choice = "all" | "steps" | "failures";

const CHOICES: { id: Choice; label: TextKey }[] = [
  { id: "all", label: "events.all" },
  { id: "steps", label: "events.steps" },
  { id: "failures", label: "events.failures" },
];

/** Newest events that a choice searches: 20 requests. */
const MAX_SEARCHED = 2000;

/** The ledger of a run. */
export function EventsTab({ run }: { run: Run }) {
  const t = useText();
  const [choice, setChoice] = useState<Choice>("all");
  if (run.last_sequence === 0) return <Empty text="events.none" />;
  return (
    <>
      <div className="quick">
        {CHOICES.map(({ id, label }) => (
          <button key={id} type="button" aria-pressed={choice === id} onClick={() => setChoice(id)}>
            {t(label)}
          </button>
        ))}
      </div>
      {choice === "all" ? (
        <EventList run={run} chosen={null} />
      ) : (
        <ChosenEvents key={choice} run={run} choice={choice} />
      )}
    </>
  );
}

function ChosenEvents({ run, choice }: { run: Run; choice: Choice }) {
  const t = useText();
  const last = run.last_sequence;
  const from = Math.max(0, last - MAX_SEARCHED);
  const { bySequence, isPending, error } = useEventPages(run, pagesOf(from, last - 1, last));
  if (error !== null) return <Problem error={error} />;
  if (isPending) return <Loading what="events.all" />;
  const isChosen = choice === "steps" ? isStep : isFailure;
  const chosen = [...bySequence.values()].filter(isChosen).map((event) => event.sequence);
  return (
    <>
      {from > 0 && <p className="faint">{t("events.searched", { n: MAX_SEARCHED })}</p>}
      {chosen.length === 0 ? <Empty text="events.noneChosen" /> : <EventList run={run} chosen={chosen} />}
    </>
  );
}
