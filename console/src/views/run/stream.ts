import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { openStream, type RunEvent } from "../../api/client";
import { follow, isTerminal, type Open } from "../../api/follow";
import { type Answer, foldAnswer, NO_ANSWER } from "../../lib/answer";
import { foldGraphs, type Graph } from "../../lib/graph";
import { useIsVisible } from "../../ui/visible";

/** Events before the end from which the answer is built. Longer runs show its newest part. */
const MAX_EVENTS = 5000;

export interface LiveAnswer {
  answer: Answer;
  graphs: Graph[];
  state: "connecting" | "live" | "reconnecting";
  error: unknown;
  /** True if the beginning of the answer is not shown. */
  isCut: boolean;
}

/**
 * The answer and the action graphs of a run as they stream, for a component with the run as its key. `lastSequence` is that of the first look
 * at the run.
 */
export function useLiveAnswer(runId: string, lastSequence: number): LiveAnswer {
  const client = useQueryClient();
  const isVisible = useIsVisible();
  const [answer, setAnswer] = useState(NO_ANSWER);
  const [graphs, setGraphs] = useState<Graph[]>([]);
  const [state, setState] = useState<LiveAnswer["state"]>("connecting");
  const [error, setError] = useState<unknown>(null);
  const [begin] = useState(Math.max(0, lastSequence - MAX_EVENTS));
  const shown = useRef({ sequence: begin, isEnded: false });
  useEffect(() => {
    if (!isVisible || shown.current.isEnded) return;
    const abort = new AbortController();
    const path = `/v1/runs/${encodeURIComponent(runId)}/stream`;
    const open: Open = (from, signal) => openStream(path, from, signal);
    // One render for each frame of the screen, however many events arrive.
    let waiting: RunEvent[] = [];
    let frame = 0;
    const flush = () => {
      const events = waiting;
      waiting = [];
      frame = 0;
      shown.current = {
        sequence: events.at(-1)?.sequence ?? shown.current.sequence,
        isEnded: events.some(isTerminal),
      };
      setAnswer((before) => foldAnswer(before, events));
      setGraphs((before) => foldGraphs(before, events));
    };
    const onEvents = (events: RunEvent[]) => {
      waiting.push(...events);
      if (frame === 0) frame = requestAnimationFrame(flush);
    };
    follow(open, shown.current.sequence, abort.signal, { onEvents, onConnected: setState })
      .then(() => {
        if (!abort.signal.aborted) void client.invalidateQueries({ queryKey: ["run", runId] });
      })
      .catch(setError);
    return () => {
      // Events that are not shown yet come again with the next stream.
      abort.abort();
      cancelAnimationFrame(frame);
    };
  }, [runId, client, isVisible]);
  return { answer, graphs, state, error, isCut: begin > 0 };
}
