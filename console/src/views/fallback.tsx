import { Link } from "@tanstack/react-router";
import { useText } from "../i18n";
import { Problem } from "../ui/problem";

export function NotFound() {
  const t = useText();
  return (
    <main>
      <h1>{t("notFound.title")}</h1>
      <Link to="/runs">{t("nav.runs")}</Link>
    </main>
  );
}

export function RouteProblem({ error, reset }: { error: unknown; reset: () => void }) {
  return (
    <main>
      <Problem error={error} retry={reset} />
    </main>
  );
}
