import type { Run } from "../../api/client";
import { type TextKey, useText } from "../../i18n";
import { pagesOf } from "../../lib/pages";
import { EVENT_KINDS, type Importance, isEventShown, type StepChoice, showsAllEvents } from "../../lib/steps";
import { Empty, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { KindChoice, useSteps } from "../../ui/steps";
import { EventList } from "./event-list";
import { useEventPages } from "./event-pages";

const CHOICES: { id: Importance; label: TextKey }[] = [
  { id: "all", label: "events.all" },
  { id: "steps", label: "events.steps" },
  { id: "failures", label: "events.failures" },
];

/** Newest events that a choice searches: 20 requests. */
const MAX_SEARCHED = 2000;

/** The ledger of a run. */
export function EventsTab({ run }: { run: Run }) {
  const t = useText();
  const [choice, setChoice] = useSteps();
  if (run.last_sequence === 0) return <Empty text="events.none" />;
  return (
    <>
      <div className="quick">
        {CHOICES.map(({ id, label }) => (
          <button
            key={id}
            type="button"
            aria-pressed={choice.importance === id}
            onClick={() => setChoice({ ...choice, importance: id })}
          >
            {t(label)}
          </button>
        ))}
      </div>
      <KindChoice kinds={EVENT_KINDS} />
      {showsAllEvents(choice) ? (
        <EventList run={run} chosen={null} />
      ) : (
        <ChosenEvents key={JSON.stringify(choice)} run={run} choice={choice} />
      )}
    </>
  );
}

function ChosenEvents({ run, choice }: { run: Run; choice: StepChoice }) {
  const t = useText();
  const last = run.last_sequence;
  const from = Math.max(0, last - MAX_SEARCHED);
  const { bySequence, isPending, error } = useEventPages(run, pagesOf(from, last - 1, last));
  if (error !== null) return <Problem error={error} />;
  if (isPending) return <Loading what="events.all" />;
  const shown = [...bySequence.values()].filter((event) => isEventShown(event, choice));
  const chosen = shown.map((event) => event.sequence);
  return (
    <>
      {from > 0 && <p className="faint">{t("events.searched", { n: MAX_SEARCHED })}</p>}
      {chosen.length === 0 ? <Empty text="events.noneChosen" /> : <EventList run={run} chosen={chosen} />}
    </>
  );
}
