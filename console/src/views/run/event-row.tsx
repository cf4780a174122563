import type { Run, RunEvent } from "../../api/client";
import { isFailure, summaryOf } from "../../lib/summary";
import { Json } from "../../ui/parts";
import { When } from "../../ui/when";
import { RetryFrom } from "./chain";

interface RowProps {
  run: Run;
  sequence: number;
  /** Undefined until its page is loaded. */
  event: RunEvent | undefined;
  isOpen: boolean;
  toggle: () => void;
}

export function EventRow({ run, sequence, event, isOpen, toggle }: RowProps) {
  if (event === undefined) {
    return (
      <div className="line">
        <span className="number faint">{sequence}</span>
        <span className="faint">…</span>
      </div>
    );
  }
  return (
    <>
      <button
        type="button"
        className={isFailure(event) ? "line bad" : "line"}
        aria-expanded={isOpen}
        onClick={toggle}
      >
        <span className="number faint">{sequence}</span>
        <code>{event.type}</code>
        <span className="summary">{summaryOf(event)}</span>
        <span className="faint">
          <When at={event.created_at} />
        </span>
      </button>
      {isOpen && (
        <>
          <RetryFrom run={run} event={event} />
          <Json value={event} />
        </>
      )}
    </>
  );
}
