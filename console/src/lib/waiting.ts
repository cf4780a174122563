/** Runs that end with a question, and runs that its answer starts. */

const ANSWER_EVENT = "interaction:";

/** True for a run that ended with a question to a person. */
export function isAsking(run: { status: string; status_reason?: string | null }): boolean {
  return run.status === "completed" && run.status_reason === "waiting_user";
}

/** Id of the question whose answer started the run, or null. */
export function answeredQuestion(run: { event_id: string }): string | null {
  return run.event_id.startsWith(ANSWER_EVENT) ? run.event_id.slice(ANSWER_EVENT.length) : null;
}
