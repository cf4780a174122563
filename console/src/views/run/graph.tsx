import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useId, useMemo, useState } from "react";
import type { Run } from "../../api/client";
import { interactionsQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { writeOut } from "../../lib/answer-form";
import {
  type ActionQuestion,
  type Approval,
  approvalOf,
  type Graph,
  type GraphAction,
  type GraphStatus,
  questionsOf,
} from "../../lib/graph";
import { Badge, type Fact, Facts, Scroll } from "../../ui/parts";
import { PrincipalName } from "../../ui/principal";
import { Text } from "../../ui/text";
import { When } from "../../ui/when";
import { RetryChain } from "./chain";
import { GraphCanvas } from "./graph-canvas";

export const GRAPH_TONES: Record<GraphStatus, string> = {
  pending: "off",
  running: "live",
  waiting: "wait",
  blocked: "bad",
  completed: "good",
  failed: "bad",
  canceled: "off",
};

/** The action graphs of a run, one at a time; nothing for a run without graphs. */
export function Graphs({ run, graphs }: { run: Run; graphs: Graph[] }) {
  const t = useText();
  const [chosen, setChosen] = useState<string | null>(null);
  const shown = graphs.find((graph) => graph.id === chosen) ?? graphs.at(-1);
  if (shown === undefined) return null;
  return (
    <section className="graph" aria-label={t("graph.title")}>
      <h2>{t("graph.title")}</h2>
      <RetryChain run={run} />
      {graphs.length > 1 && (
        <div className="quick">
          {graphs.map((graph, index) => (
            <button
              key={graph.id}
              type="button"
              aria-pressed={graph === shown}
              onClick={() => setChosen(graph.id)}
            >
              {index + 1}. {graph.title || graph.id}
            </button>
          ))}
        </div>
      )}
      <GraphPanel key={shown.id} run={run} graph={shown} />
    </section>
  );
}

function GraphPanel({ run, graph }: { run: Run; graph: Graph }) {
  const t = useText();
  const [isList, setList] = useState(false);
  const [chosen, setChosen] = useState<string | null>(null);
  const details = useId();
  // The approval of a graph that goes on in another run was asked for by the earlier one.
  const asked = useQuery(
    interactionsQuery(
      run.conversation_id
        ? {
            conversation_id: run.conversation_id,
            bot_id: run.bot_id ?? "",
            thread_id: run.thread_id ?? "",
          }
        : { run_id: run.run_id },
    ),
  ).data?.items;
  const questions = useMemo(() => questionsOf(graph.id, asked ?? []), [graph.id, asked]);
  const { actions } = graph;
  const shown = actions.find(({ id }) => id === chosen) ?? firstOfInterest(actions);
  return (
    <>
      <p role="status">
        <Badge tone={GRAPH_TONES[graph.status]}>{t(`graph.${graph.status}`)}</Badge>{" "}
        <strong>{graph.title}</strong> {t("graph.done", { done: graph.done, total: graph.total })}
      </p>
      {graph.note !== "" && <Text>{graph.note}</Text>}
      {graph.isPartial && <p className="faint">{t("graph.partial")}</p>}
      {actions.some(({ dependsOn }) => dependsOn === null) && <p className="faint">{t("graph.noEdges")}</p>}
      <div className="quick">
        <button type="button" aria-pressed={!isList} onClick={() => setList(false)}>
          {t("graph.asGraph")}
        </button>
        <button type="button" aria-pressed={isList} onClick={() => setList(true)}>
          {t("graph.asList")}
        </button>
        <span className="faint">{t(isList ? "graph.listHelp" : "graph.keys")}</span>
      </div>
      {isList ? (
        <ActionList
          actions={actions}
          questions={questions}
          chosen={shown?.id ?? null}
          choose={setChosen}
          details={details}
        />
      ) : (
        <GraphCanvas
          actions={actions}
          questions={questions}
          chosen={shown?.id ?? null}
          choose={setChosen}
          details={details}
        />
      )}
      {shown !== undefined && (
        <ActionDetails
          id={details}
          action={shown}
          actions={actions}
          questions={questions.get(shown.id) ?? []}
          runId={run.run_id}
          choose={setChosen}
        />
      )}
    </>
  );
}

/** The action that a reader looks for first: one that waits for a person, otherwise the first failed one. */
function firstOfInterest(actions: GraphAction[]): GraphAction | undefined {
  const first = (status: GraphStatus) => actions.find((action) => action.status === status);
  return first("waiting") ?? first("failed") ?? first("blocked") ?? first("running") ?? actions[0];
}

export interface ActionsProps {
  actions: GraphAction[];
  questions: Map<string, ActionQuestion[]>;
  chosen: string | null;
  choose: (id: string) => void;
  /** Id of the element with the details of the chosen action. */
  details: string;
}

function ActionList({ actions, questions, chosen, choose, details }: ActionsProps) {
  const t = useText();
  const titles = new Map(actions.map(({ id, title }) => [id, title]));
  return (
    <Scroll>
      <table className="list">
        <thead>
          <tr>
            <th>{t("graph.action")}</th>
            <th>{t("run.status")}</th>
            <th>{t("graph.kind")}</th>
            <th>{t("graph.approval")}</th>
            <th>{t("graph.needs")}</th>
          </tr>
        </thead>
        <tbody>
          {actions.map((action) => (
            <tr key={action.id}>
              <td className="wide">
                <button
                  type="button"
                  className="quiet"
                  aria-pressed={action.id === chosen}
                  aria-controls={details}
                  onClick={() => choose(action.id)}
                >
                  {action.title}
                </button>
                {action.reason !== "" && <p className="reason">{action.reason}</p>}
              </td>
              <td>
                <Badge tone={GRAPH_TONES[action.status]}>{t(`graph.${action.status}`)}</Badge>
              </td>
              <td>{action.kind}</td>
              <td>
                {(questions.get(action.id) ?? []).slice(0, 1).map((one) => t(approvalKey(action, one)))}
              </td>
              <td className="wide">
                {(action.dependsOn ?? []).map((id) => titles.get(id) ?? id).join(", ")}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

export function approvalKey(action: GraphAction, question: ActionQuestion) {
  return `graph.question.${approvalOf(action, question)}` as const;
}

interface DetailsProps {
  id: string;
  action: GraphAction;
  actions: GraphAction[];
  questions: ActionQuestion[];
  runId: string;
  choose: (id: string) => void;
}

function ActionDetails({ id, action, actions, questions, runId, choose }: DetailsProps) {
  const t = useText();
  const needs = actions.filter((other) => action.dependsOn?.includes(other.id));
  const neededBy = actions.filter((other) => other.dependsOn?.includes(action.id));
  const facts: Fact[] = [
    { label: t("graph.kind"), value: action.kind },
    {
      label: t("graph.items"),
      value: action.progress && `${action.progress.done} / ${action.progress.total}`,
    },
    { label: t("graph.reason"), value: action.reason },
    { label: t("graph.needs"), value: needs.length > 0 && <Jumps actions={needs} choose={choose} /> },
    {
      label: t("graph.neededBy"),
      value: neededBy.length > 0 && <Jumps actions={neededBy} choose={choose} />,
    },
  ];
  return (
    <article className="card" id={id} aria-label={action.title} aria-live="polite">
      <h3>
        <Badge tone={GRAPH_TONES[action.status]}>{t(`graph.${action.status}`)}</Badge> {action.title}{" "}
        <code className="faint">{action.id}</code>
      </h3>
      {action.description !== "" && <Text>{action.description}</Text>}
      <Facts facts={facts.filter(({ value }) => value !== false)} />
      {questions.map((question) => (
        <AskedText key={question.interaction.id} action={action} question={question} runId={runId} />
      ))}
      {action.result !== "" && (
        <>
          <h4>{t("graph.result")}</h4>
          <Text>{action.result}</Text>
        </>
      )}
    </article>
  );
}

function Jumps({ actions, choose }: { actions: GraphAction[]; choose: (id: string) => void }) {
  return actions.map(({ id, title }) => (
    <button key={id} type="button" className="quiet" onClick={() => choose(id)}>
      {title}
    </button>
  ));
}

const APPROVAL_TONES: Record<Approval, string> = {
  asked: "wait",
  approved: "good",
  denied: "bad",
  answered: "off",
  expired: "off",
  cancelled: "off",
};

interface AskedProps {
  action: GraphAction;
  question: ActionQuestion;
  runId: string;
}

/** The exact text that a person was asked to approve or answer. */
function AskedText({ action, question, runId }: AskedProps) {
  const t = useText();
  const { request, ...interaction } = question.interaction;
  const state = approvalOf(action, question);
  return (
    <div className="asked">
      <h4>
        {t(question.isApproval ? "graph.approval" : "graph.questionTo")}{" "}
        <Badge tone={APPROVAL_TONES[state]}>{t(`graph.question.${state}`)}</Badge>
      </h4>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling region must be reachable by keyboard */}
      <pre tabIndex={0}>{writeOut(request.description || request.fallback_text)}</pre>
      <p className="faint">
        {t("inbox.asked")} <When at={interaction.asked_at} />
        {interaction.submitted_at != null && (
          <>
            {" · "}
            {t("graph.question.answered")} <When at={interaction.submitted_at} />
          </>
        )}
        {interaction.answer != null && (
          <>
            {" "}
            {t("question.by")} <PrincipalName principal={interaction.answer.by} />
          </>
        )}
        <RunLinks
          ids={[interaction.run_id, interaction.submitted_run_id ?? ""].filter((each) => each !== runId)}
        />
      </p>
    </div>
  );
}

function RunLinks({ ids }: { ids: string[] }) {
  const t = useText();
  return ids
    .filter((id) => id !== "")
    .map((id) => (
      <span key={id}>
        {" · "}
        <Link to="/runs/$runId" params={{ runId: id }}>
          {t("run.title")} {id}
        </Link>
      </span>
    ));
}
