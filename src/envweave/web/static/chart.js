// A line chart on a canvas: many points, several lines, values under the pointer.
import { fill, h, number } from "./dom.js";

const color = (i) => getComputedStyle(document.documentElement).getPropertyValue(`--line-${(i % 8) + 1}`).trim();

/** The color of a line, for a legend. */
export const swatch = (i) => { const node = h("span.swatch"); node.style.background = `var(--line-${(i % 8) + 1})`; return node; };

/** {node, draw(lines)}: a chart of lines {name, points: [[x, y], …]} with x rising, in `unit`. */
export function chart({ label = "", height = 220, smooth = 0, floor = null, unit = "", onpick = null } = {}) {
  const canvas = h("canvas", { role: "img", "aria-label": label });
  const tip = h("div.tip", { hidden: true });
  const node = h("div.chart", {}, canvas, tip);
  const probe = h("span.probe");
  node.append(probe);
  let lines = [];
  let scale = null;
  let weight = smooth;

  function draw(next = lines, smoothing = weight) {
    lines = next;
    weight = smoothing;
    const width = node.clientWidth;
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    Object.assign(canvas, { width: width * ratio, height: height * ratio });
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const shown = lines.map((one, i) => ({ ...one, stroke: resolve(one.color || color(i)), smoothed: weight ? average(one.points, weight) : one.points }));
    const all = shown.flatMap((one) => one.smoothed).filter(([, y]) => Number.isFinite(y));
    canvas.setAttribute("aria-label", `${label}: ${shown.map((one) => `${one.name} ${number(one.points.at(-1)?.[1])}`).join(", ")}`);
    const [x0, x1] = extent(all, 0);
    let [y0, y1] = pad(...extent(all, 1));
    if (floor !== null && y0 < floor) [y0, y1] = [floor, Math.max(y1, floor + 1)];
    const text = resolve("var(--muted)");
    context.font = "11px system-ui, sans-serif";
    const ticks = nice(y0, y1, Math.max(2, Math.round(height / 45)));
    const left = 14 + Math.max(20, ...ticks.map((one) => context.measureText(number(one, 3)).width));
    scale = { x: (x) => left + ((x - x0) / (x1 - x0 || 1)) * (width - left - 12), y: (y) => 8 + (1 - (y - y0) / (y1 - y0)) * (height - 34), left, x0, x1, width };
    context.strokeStyle = resolve("var(--border)");
    context.fillStyle = text;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const one of ticks) {
      line(context, [[left, scale.y(one)], [width - 12, scale.y(one)]]);
      context.fillText(number(one, 3), left - 6, scale.y(one));
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const one of nice(x0, x1, Math.max(2, Math.round(width / 110)), all.every(([x]) => Number.isInteger(x)))) context.fillText(number(one) + unit, Math.min(width - 16, Math.max(left, scale.x(one))), height - 18);
    if (!all.length) context.fillText("No data yet", width / 2, height / 2);
    for (const one of shown) {
      context.strokeStyle = one.stroke;
      context.lineWidth = 1;
      if (weight) { context.globalAlpha = 0.2; line(context, thin(one.points, scale)); }
      context.globalAlpha = 1;
      context.lineWidth = 1.75;
      const places = thin(one.smoothed, scale);
      line(context, places);
      if (places.length === 1) { context.fillStyle = one.stroke; context.fillRect(places[0][0] - 2, places[0][1] - 2, 4, 4); }
    }
  }

  const resolve = (value) => { probe.style.color = value; return getComputedStyle(probe).color; };

  function nearest(event) {
    const at = scale.x0 + ((event.offsetX - scale.left) / (scale.width - scale.left - 12)) * (scale.x1 - scale.x0);
    return lines.map((one, i) => {
      let [low, high] = [0, one.points.length - 1];
      while (low < high) { const mid = (low + high) >> 1; if (one.points[mid][0] < at) low = mid + 1; else high = mid; }
      const before = one.points[low - 1];
      const point = before && at - before[0] < one.points[low][0] - at ? before : one.points[low];
      return { name: one.name, i, point, color: one.color };
    }).filter((one) => one.point);
  }
  canvas.addEventListener("pointermove", (event) => {
    if (!scale) return;
    const found = nearest(event);
    tip.hidden = !found.length;
    fill(tip, found.map((one) => {
      const dot = h("i");
      dot.style.background = one.color || color(one.i);
      return h("div", {}, dot, `${one.name} `, h("b", {}, number(one.point[1])), h("span.muted", {}, ` at ${number(one.point[0])}${unit}`));
    }));
    tip.style.left = `${Math.min(event.offsetX + 14, Math.max(0, scale.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${event.offsetY + 14}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  if (onpick) canvas.addEventListener("click", (event) => { const [one] = scale ? nearest(event) : []; if (one) onpick(one.point); });
  new ResizeObserver(() => draw()).observe(node);
  window.addEventListener("themechange", () => draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  return { node, draw };
}

function extent(points, axis) {
  let [low, high] = [Infinity, -Infinity];
  for (const one of points) { if (one[axis] < low) low = one[axis]; if (one[axis] > high) high = one[axis]; }
  return low <= high ? [low, high] : [0, 1];
}

const pad = (low, high) => (low === high ? [low - 0.5, high + 0.5] : [low - (high - low) * 0.06, high + (high - low) * 0.06]);

function nice(low, high, about, isWhole = false) {
  const raw = (high - low) / about || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw && (!isWhole || one >= 1)) || raw;
  const found = [];
  for (let one = Math.ceil(low / step); one * step <= high + step * 1e-9 && found.length < 50; one += 1) found.push(Number((one * step).toPrecision(12)));
  return found;
}

function average(points, weight) {
  let sum = 0, norm = 0;
  return points.map(([x, y]) => {
    if (!Number.isFinite(y)) return [x, y];
    sum = weight * sum + (1 - weight) * y;
    norm = weight * norm + (1 - weight);
    return [x, sum / norm];
  });
}

/** Positions on the canvas; of many points in one column the lowest and the highest. */
function thin(points, { x, y, width }) {
  const finite = points.filter(([, one]) => Number.isFinite(one)).map(([a, b]) => [x(a), y(b)]);
  if (finite.length < width * 3) return finite;
  const kept = [];
  for (let i = 0; i < finite.length;) {
    const column = Math.floor(finite[i][0]);
    let low = finite[i], high = finite[i], last = finite[i];
    for (; i < finite.length && Math.floor(finite[i][0]) === column; i += 1) { last = finite[i]; if (last[1] < low[1]) low = last; if (last[1] > high[1]) high = last; }
    kept.push(low, high, last);
  }
  return kept;
}

function line(context, points) {
  context.beginPath();
  for (const [i, [x, y]] of points.entries()) { if (i) context.lineTo(x, y); else context.moveTo(x, y); }
  context.stroke();
}
