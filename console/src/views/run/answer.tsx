import type { Run, Schema } from "../../api/client";
import { record } from "../../api/errors";
import { useText } from "../../i18n";
import { type Answer, textOf } from "../../lib/answer";
import { Badge, Copy } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { isLive } from "../../ui/status";
import { Text } from "../../ui/text";
import { useLiveAnswer } from "./stream";

/** Ledgers up to this length are read again for all messages of an ended run. Longer ones show the last message. */
const MAX_REPLAY = 2000;

export function AnswerPanel({ run }: { run: Run }) {
  const t = useText();
  return (
    <section className="answer" aria-label={t("run.answer")}>
      <h2>{t("run.answer")}</h2>
      {isLive(run.status) || run.last_sequence <= MAX_REPLAY ? (
        <StreamedAnswer key={run.run_id} runId={run.run_id} lastSequence={run.last_sequence} />
      ) : (
        <LastMessage run={run} />
      )}
    </section>
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
  const t = useText();
  const { answer, state, error, isCut } = useLiveAnswer(runId, lastSequence);
  const isEmpty = answer.parts.length === 0;
  return (
    <>
      {error !== null && <Problem error={error} />}
      {isCut && <p className="faint">{t("run.answerCut")}</p>}
      <AnswerParts answer={answer} />
      {answer.isEnded && isEmpty && <p className="faint">{t("run.noAnswer")}</p>}
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
            <Text>{part.text}</Text>
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
