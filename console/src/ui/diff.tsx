import { useText } from "../i18n";
import { diffLines, withContext } from "../lib/diff";

const CONTEXT_LINES = 1;
const MARKS = { same: " ", added: "+", removed: "-", skipped: " " };

/** The changed lines of two texts. */
export function DiffView({ before, after }: { before: string; after: string }) {
  const t = useText();
  const lines = withContext(diffLines(before, after), CONTEXT_LINES);
  if (lines.length === 0) return <p className="faint">{t("diff.none")}</p>;
  return (
    <pre className="diff">
      {lines.map(({ kind, text }, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: lines have no identity
        <span key={index} className={kind}>{`${MARKS[kind]} ${text}\n`}</span>
      ))}
    </pre>
  );
}
