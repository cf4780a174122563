import { type KeyboardEvent, memo, useEffect, useId, useMemo, useRef, useState } from "react";
import { useText } from "../../i18n";
import type { GraphAction, GraphStatus } from "../../lib/graph";
import {
  type Direction,
  type Layout,
  layoutGraph,
  NODE,
  neighbour,
  type PlacedNode,
  pathOf,
} from "../../lib/graph-layout";
import { type ActionsProps, approvalKey, GRAPH_TONES } from "./graph";

const MARKS: Record<GraphStatus, string> = {
  pending: "…",
  running: "▸",
  waiting: "?",
  blocked: "⊘",
  completed: "✓",
  failed: "✗",
  canceled: "–",
};

const ARROWS: Record<string, Direction> = {
  ArrowLeft: "left",
  ArrowRight: "right",
  ArrowUp: "up",
  ArrowDown: "down",
};

/** Distance between the corner of the window and the action that it shows first. */
const LEAD = 120;

/** The graph as boxes and arrows. One tab stop; the arrow keys go from action to action. */
export function GraphCanvas({ actions, questions, chosen, choose, details }: ActionsProps) {
  const t = useText();
  const scroller = useRef<HTMLDivElement>(null);
  const [focused, setFocused] = useState<string | null>(null);
  // Only a change of the edges moves nodes.
  const shape = JSON.stringify(actions.map(({ id, dependsOn }) => ({ id, dependsOn: dependsOn ?? [] })));
  const layout = useMemo(() => layoutGraph(JSON.parse(shape)), [shape]);
  const stop = [focused, chosen].find((id) => layout.nodes.some((node) => node.id === id)) ?? actions[0]?.id;
  const first = useRef(layout.nodes.find((node) => node.id === chosen));
  useEffect(() => {
    const { x, y } = first.current ?? { x: 0, y: 0 };
    scroller.current?.scrollTo({ left: x - LEAD, top: y - LEAD });
  }, []);
  const onKeyDown = (event: KeyboardEvent) => {
    if (stop === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    const next = targetOf(layout, stop, event.key);
    if (next === null) return;
    event.preventDefault();
    const index = layout.nodes.findIndex((node) => node.id === next);
    scroller.current?.querySelectorAll<HTMLElement>(".node")[index]?.focus();
  };
  const byId = new Map(actions.map((action) => [action.id, action]));
  return (
    // biome-ignore lint/a11y/useSemanticElements: a fieldset is for the controls of a form
    <div
      className="graph-window"
      ref={scroller}
      role="group"
      aria-label={t("graph.asGraph")}
      onKeyDown={onKeyDown}
    >
      <div className="canvas" style={{ width: layout.width, height: layout.height }}>
        <Edges layout={layout} actions={byId} chosen={chosen} />
        {layout.nodes.map((node) => {
          const action = byId.get(node.id);
          const question = questions.get(node.id)?.[0];
          return (
            action && (
              <Node
                key={node.id}
                node={node}
                action={action}
                note={noteOf(action, question && t(approvalKey(action, question)))}
                isChosen={node.id === chosen}
                isStop={node.id === stop}
                details={details}
                choose={choose}
                focus={setFocused}
              />
            )
          );
        })}
      </div>
    </div>
  );
}

function noteOf(action: GraphAction, asked: string | undefined): string {
  return [asked, action.reason].filter((text) => text).join(" · ");
}

function targetOf(layout: Layout, from: string, key: string): string | null {
  if (key === "Home") return layout.nodes[0]?.id ?? null;
  if (key === "End") return layout.nodes.at(-1)?.id ?? null;
  const direction = ARROWS[key];
  return direction === undefined ? null : neighbour(layout, from, direction);
}

interface NodeProps {
  node: PlacedNode;
  action: GraphAction;
  /** Reason of its state, and the state of its newest question. */
  note: string;
  isChosen: boolean;
  isStop: boolean;
  details: string;
  choose: (id: string) => void;
  focus: (id: string) => void;
}

const Node = memo(function Node({ node, action, note, isChosen, isStop, details, choose, focus }: NodeProps) {
  const t = useText();
  const { id, title, status, kind, progress } = action;
  const items = progress === null ? "" : ` ${progress.done}/${progress.total}`;
  return (
    <button
      type="button"
      className={`node ${GRAPH_TONES[status]} ${status}`}
      style={{ left: node.x, top: node.y, width: NODE.width, height: NODE.height }}
      title={title}
      tabIndex={isStop ? 0 : -1}
      aria-pressed={isChosen}
      aria-controls={details}
      onClick={() => choose(id)}
      onFocus={() => focus(id)}
    >
      <strong>
        <span aria-hidden="true">{MARKS[status]}</span> {title}
      </strong>
      <span>
        {t(`graph.${status}`)}
        {items} · {kind}
      </span>
      <span>{note}</span>
    </button>
  );
});

interface EdgesProps {
  layout: Layout;
  actions: Map<string, GraphAction>;
  chosen: string | null;
}

/** Edges of actions that ended without success are dashed. The list and the details name all dependencies as text. */
function Edges({ layout, actions, chosen }: EdgesProps) {
  const arrow = useId();
  const isClosed = (id: string) => ["failed", "canceled", "blocked"].includes(actions.get(id)?.status ?? "");
  return (
    <svg width={layout.width} height={layout.height} aria-hidden="true">
      <defs>
        <marker
          id={arrow}
          viewBox="0 0 8 8"
          refX="8"
          refY="4"
          markerWidth="8"
          markerHeight="8"
          markerUnits="userSpaceOnUse"
          orient="auto"
        >
          <path className="arrow" d="M0 0L8 4L0 8Z" />
        </marker>
      </defs>
      {layout.edges.map(({ from, to, points }) => (
        <path
          key={`${from} ${to}`}
          className={`edge${isClosed(from) ? " closed" : ""}${from === chosen || to === chosen ? " chosen" : ""}`}
          d={pathOf(points)}
          markerEnd={`url(#${arrow})`}
        />
      ))}
    </svg>
  );
}
