import { useEffect, useRef, useState, useSyncExternalStore } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useText } from "../../i18n";
import { dateOf, type Measure, type Plotted, stacked } from "../../lib/usage";
import { write } from "./write";

const HEIGHT = 220;
/** Colours on a light and on a dark page; the last one is that of all other groups. */
const COLORS = {
  light: ["#0b6e99", "#a5281f", "#1a6b34", "#775000", "#6b3fa0", "#00796b", "#b0006d", "#6b7480"],
  dark: ["#6cc5ec", "#ff9d94", "#7fd497", "#f0c46c", "#c4a5f3", "#67d3c4", "#ff8fd0", "#9aa4ae"],
};
/** Series of a plot, without that of all others. */
export const MAX_SERIES = COLORS.light.length - 1;

const dark = window.matchMedia("(prefers-color-scheme: dark)");

function subscribe(listener: () => void): () => void {
  dark.addEventListener("change", listener);
  return () => dark.removeEventListener("change", listener);
}

function useColors(): string[] {
  const isDark = useSyncExternalStore(subscribe, () => dark.matches);
  return isDark ? COLORS.dark : COLORS.light;
}

function colorOf(colors: string[], id: string | null, at: number): string {
  return (id === null ? colors.at(-1) : colors[at]) ?? "";
}

/** The colour of a series, for its row of the table. */
export function Swatch({ id, at }: { id: string | null; at: number }) {
  const colors = useColors();
  return <span className="swatch" style={{ background: colorOf(colors, id, at) }} />;
}

interface Style {
  colors: string[];
  text: string;
  line: string;
}

function options(plot: Plotted, measure: Measure, style: Style, width: number): uPlot.Options {
  const axis = { stroke: style.text, grid: { stroke: style.line, width: 1 }, ticks: { show: false } };
  const bars = uPlot.paths.bars?.({ size: [0.7, 60] });
  const series = plot.series.map(({ id }, at) => {
    const color = colorOf(style.colors, id, at);
    return { fill: color, stroke: color, width: 0, paths: bars, points: { show: false } };
  });
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { x: { range: (_, min, max) => [min - 43_200, max + 43_200] }, y: { range: [0, null] } },
    axes: [
      {
        ...axis,
        size: 28,
        values: (_, ticks) => ticks.map((tick) => dateOf(tick).slice(5)),
        incrs: [1, 2, 7, 14].map((days) => days * 86_400),
      },
      { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => write(measure, tick)) },
    ],
    series: [{}, ...series],
  };
}

/** Stacked bars of a report. The tables below have the same numbers, so the picture is one image to a reader. */
export function Plot({ plot, measure, label }: { plot: Plotted; measure: Measure; label: string }) {
  const t = useText();
  const colors = useColors();
  const frame = useRef<HTMLDivElement>(null);
  const [day, setDay] = useState<number | null>(null);
  useEffect(() => {
    const element = frame.current;
    if (element === null) return;
    const style = getComputedStyle(element);
    const look = { colors, text: style.color, line: style.borderTopColor };
    const data = [plot.days, ...stacked(plot.series)] as uPlot.AlignedData;
    const chart = new uPlot(options(plot, measure, look, element.clientWidth), data, element);
    chart.over.addEventListener("mousemove", () => setDay(chart.cursor.idx ?? null));
    chart.over.addEventListener("mouseleave", () => setDay(null));
    const resized = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: HEIGHT }));
    resized.observe(element);
    return () => {
      resized.disconnect();
      chart.destroy();
    };
  }, [plot, measure, colors]);
  const sum = (at: number) => plot.series.reduce((total, { values }) => total + (values[at] ?? 0), 0);
  return (
    <figure className="plot">
      <div ref={frame} role="img" aria-label={label} />
      <figcaption className="faint">
        {day === null
          ? t("usage.utc")
          : `${dateOf(plot.days[day] ?? 0)}: ${write(measure, sum(day))} ${t(`usage.${measure}`)}`}
      </figcaption>
    </figure>
  );
}
