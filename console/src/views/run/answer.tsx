import { type ReactNode, useState } from "react";
import type { Run, Schema } from "../../api/client";
import { record } from "../../api/errors";
import { useText } from "../../i18n";
import { type Answer, textOf } from "../../lib/answer";
import { afterGap, foldGraphs } from "../../lib/graph";
import { pageOf, pagesOf } from "../../lib/pages";
import { Badge, Copy } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { isLive } from "../../ui/status";
import { Text } from "../../ui/text";
import { useEventPages } from "./event-pages";
import { Graphs } from "./graph";
import { type LiveAnswer, useLiveAnswer } from "./stream";

/** Ledgers up to this length are read again for all messages of an ended run. Longer ones show the last message. */
const MAX_REPLAY = 2000;
/** Newest events of a longer ledger that are searched for graphs: the pages that its list shows first. */
const NEWEST = 100;

/** The answer of a run, and its action graphs. */
export function AnswerPanel({ run }: { run: Run }) {
  return isLive(run.status) || run.last_sequence <= MAX_REPLAY ? (
    <StreamedRun key={run.run_id} run={run} />
  ) : (
    <LongRun run={run} />
  );
}

function AnswerSection({ children }: { children: ReactNode }) {
  const t = useText();
  return (
    <section className="answer" aria-label={t("run.answer")}>
      <h2>{t("run.answer")}</h2>
      {children}
    </section>
  );
}

function StreamedRun({ run }: { run: Run }) {
  // Events that follow arrive by the stream.
  const [lastSequence] = useState(run.last_sequence);
  const live = useLiveAnswer(run.run_id, lastSequence);
  return (
    <>
      <AnswerSection>
        <AnswerStream live={live} />
      </AnswerSection>
      <Graphs run={run} graphs={live.graphs} />
    </>
  );
}

/** An ended run with many events: its graphs are read from the first ones and the newest ones. */
function LongRun({ run }: { run: Run }) {
  const last = run.last_sequence;
  const first = pageOf(1, last);
  const { bySequence, isPending } = useEventPages(run, [first, ...pagesOf(last - NEWEST, last - 1, last)]);
  const events = isPending ? [] : [...bySequence.values()];
  const begun = foldGraphs(
    [],
    events.filter(({ sequence }) => sequence <= first.last),
  );
  const graphs = foldGraphs(
    afterGap(begun),
    events.filter(({ sequence }) => sequence > first.last),
  );
  return (
    <>
      <AnswerSection>
        <LastMessage run={run} />
      </AnswerSection>
      <Graphs run={run} graphs={graphs} />
    </>
  );
}

function LastMessage({ run }: { run: Run }) {
  const t = useText();
  const text = textOf(record(run.output).content as Schema<"MessageContent"> | undefined);
  if (text === "") return <p className="faint">{t("run.noAnswer")}</p>;
  return (
    <div className="message">
      <Text>{text}</Text>
      <Copy text={text} />
    </div>
  );
}

/** The answer of a run as it streams. `lastSequence` is that of the first look at the run. */
export function StreamedAnswer({ runId, lastSequence }: { runId: string; lastSequence: number }) {
  return <AnswerStream live={useLiveAnswer(runId, lastSequence)} />;
}

function AnswerStream({ live: { answer, state, error, isCut } }: { live: LiveAnswer }) {
  const t = useText();
  const isEmpty = answer.parts.length === 0;
  return (
    <>
      {error !== null && <Problem error={error} />}
      {isCut && <p className="faint">{t("run.answerCut")}</p>}
      <AnswerParts answer={answer} />
      {answer.isEnded && isEmpty && (
        <p className="faint">{t(answer.hasFailed ? "run.failedNoAnswer" : "run.noAnswer")}</p>
      )}
      {!answer.isEnded && error === null && (
        <p className="loading" role="status">
          {t(state === "live" ? "run.streaming" : `run.${state}`)}
        </p>
      )}
    </>
  );
}

export function AnswerParts({ answer }: { answer: Answer }) {
  return (
    <div aria-live="polite">
      {answer.parts.map((part, index) =>
        part.kind === "tool" ? (
          // biome-ignore lint/suspicious/noArrayIndexKey: parts are only added at the end, and ids may repeat
          <ToolPart key={index} name={part.name} state={part.state} />
        ) : (
          // biome-ignore lint/suspicious/noArrayIndexKey: parts are only added at the end, and ids may repeat
          <div className="message" key={index}>
            <Text isGrowing={!part.isDone}>{part.text}</Text>
            {part.isDone && <Copy text={part.text} />}
          </div>
        ),
      )}
    </div>
  );
}

const TONES = { running: "live", done: "good", failed: "bad" };

function ToolPart({ name, state }: { name: string; state: keyof typeof TONES }) {
  const t = useText();
  return (
    <p className="tool">
      <code>{name}</code> <Badge tone={TONES[state]}>{t(`tool.${state}`)}</Badge>
    </p>
  );
}
