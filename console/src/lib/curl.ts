/** A call as a command. The key stays in a variable of the shell. */
export function curl(method: string, path: string, body?: unknown): string {
  const parts = [`curl -sS ${quote(new URL(path, location.origin).href)}`];
  if (method !== "GET") parts.push(`-X ${method}`);
  parts.push(`-H "Authorization: Bearer $RUNNEL_API_KEY"`);
  if (body !== undefined) {
    parts.push(`-H 'Content-Type: application/json'`, `-d ${quote(JSON.stringify(body))}`);
  }
  return parts.join(" \\\n  ");
}

/** A word of a POSIX shell. */
export function quote(word: string): string {
  return `'${word.replaceAll("'", `'\\''`)}'`;
}
