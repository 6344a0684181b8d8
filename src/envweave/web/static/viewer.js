// The viewer of runs: their list and curves, their episodes, one trajectory, the tree of forks.
import { byId, duration, fill, h, number, plural, request, shortcut, startShortcuts, when } from "./dom.js";
import { chart, swatch } from "./chart.js";
import { block, ending, events, isMark, observation, render, reward, tree } from "./render.js";
import { highlight } from "./highlight.js";

const RETURNS = "episode return";
const LENGTHS = "episode length";
const ROW = 34;
const POLL_MS = 2000;
const PAGE = 200;

const ask = (name, params = {}) => request(`api/${name}?${new URLSearchParams(Object.entries(params).filter(([, one]) => one !== "" && one !== null && one !== undefined))}`);
const link = (page, params = {}) => `#/${page}?${new URLSearchParams(Object.entries(params).filter(([, one]) => one !== "" && one !== null && one !== undefined))}`;

function place() {
  const [page, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { page, params: Object.fromEntries(new URLSearchParams(query)) };
}

/** Keep the state of a view in the address, without another entry in the history. */
function remember(changes) {
  const { page, params } = place();
  history.replaceState(null, "", link(page, { ...params, ...changes }));
}

// ---------------------------------------------------------------- parts of views

/** A table that makes only the rows in sight, from pages that it fetches. */
class Virtual {
  constructor({ columns, heads, fetch, row, label, onopen }) {
    Object.assign(this, { fetch, row, onopen, total: 0, pages: new Map(), at: -1, generation: 0 });
    this.space = h("div");
    this.node = h("div.virtual", { tabIndex: 0, role: "grid", "aria-label": label }, heads && h("div.heads", { role: "row" }, heads), this.space);
    this.node.style.setProperty("--columns", columns);
    this.space.style.position = "relative";
    this.node.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  /** Fetch again: from the top, or with `keep` what is in sight. */
  async load({ keep = false } = {}) {
    const generation = (this.generation += 1);
    const index = keep ? Math.floor(this.node.scrollTop / ROW / PAGE) : 0;
    const found = await this.fetch(index * PAGE, PAGE);
    if (generation !== this.generation) return;
    this.pages = new Map();
    if (!keep) this.node.scrollTop = 0;
    this.take(index, found);
  }

  async page(index) {
    const generation = this.generation;
    this.pages.set(index, null);
    const found = await this.fetch(index * PAGE, PAGE);
    if (generation === this.generation) this.take(index, found);
  }

  take(index, found) {
    this.pages.set(index, found.rows);
    this.total = found.total;
    this.space.style.height = `${Math.max(1, this.total) * ROW}px`;
    this.draw();
  }

  draw() {
    const from = Math.max(0, Math.floor(this.node.scrollTop / ROW) - 5);
    const to = Math.min(this.total, from + Math.ceil(this.node.clientHeight / ROW) + 10);
    const rows = [];
    for (let i = from; i < to; i += 1) {
      const page = Math.floor(i / PAGE);
      if (!this.pages.has(page)) this.page(page).catch(() => this.pages.delete(page));
      const one = this.pages.get(page)?.[i % PAGE];
      const node = one ? this.row(one, i) : h("div.line", {}, h("span.muted", {}, "…"));
      node.style.top = `${i * ROW}px`;
      node.classList.toggle("current", i === this.at);
      rows.push(node);
    }
    fill(this.space, rows);
    if (!this.total) fill(this.space, h("div.line.muted", {}, this.pages.size ? "Nothing here." : "Loading …"));
  }

  select(at, { reveal = true } = {}) {
    this.at = Math.max(0, Math.min(this.total - 1, at));
    const top = this.at * ROW;
    const head = this.node.querySelector(".heads") ? ROW : 0;
    if (reveal && (top < this.node.scrollTop || top + ROW + head > this.node.scrollTop + this.node.clientHeight)) this.node.scrollTop = Math.max(0, top - this.node.clientHeight / 2);
    this.draw();
  }
}

/** The curves of some runs, which grow while these are written. */
class Curves {
  constructor(ids) {
    this.runs = ids.map((id) => ({ id, offset: 0, seen: 0, points: new Map(), settings: {} }));
  }

  async update() {
    await Promise.all(this.runs.map(async (run) => {
      for (let isAll = false; !isAll;) {
        const found = await ask("metrics", { run: run.id, since: run.offset });
        if (found.offset < run.offset) run.points = new Map();
        isAll = found.is_all;
        run.offset = found.offset;
        Object.assign(run.settings, found.settings);
        for (const [key, points] of Object.entries(found.points)) this.add(run, key, points);
      }
      const { points, offset } = await ask("rewards", { run: run.id, since: run.seen });
      run.seen = offset;
      const agents = [...new Set(points.flatMap(([, y]) => (y !== null && typeof y === "object" ? Object.keys(y) : [])))];
      this.add(run, RETURNS, points.filter(([, y]) => typeof y === "number").map(([x, y]) => [x, y]));
      for (const agent of agents) this.add(run, `${RETURNS} of ${agent}`, points.filter(([, y]) => y?.[agent] !== undefined).map(([x, y]) => [x, y[agent]]));
      this.add(run, LENGTHS, points.map(([x, , z]) => [x, z]));
    }));
  }

  add(run, key, points) {
    if (!points.length) return;
    if (!run.points.has(key)) run.points.set(key, []);
    for (const one of points) run.points.get(key).push(one);
  }

  keys() {
    return [...new Set(this.runs.flatMap((one) => [...one.points.keys()]))].sort((a, b) => this.lines(b).length - this.lines(a).length || Number(b.includes("return")) - Number(a.includes("return")) || Number(b.includes("success")) - Number(a.includes("success")) || a.localeCompare(b));
  }

  lines(key) {
    return this.runs.map((run, i) => ({ name: run.id, color: `var(--line-${(i % 8) + 1})`, points: run.points.get(key) || [] })).filter((one) => one.points.length);
  }
}

function smoothing(onchange, value = "0") {
  const input = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value, "aria-label": "Smoothing" });
  input.addEventListener("input", () => { remember({ smooth: input.value === "0" ? "" : input.value }); onchange(); });
  return { node: h("label", {}, "smoothing", input), read: () => Number(input.value) };
}

function select(label, choices, value, onchange) {
  const node = h("select", { "aria-label": label }, choices.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
  node.addEventListener("change", () => onchange(node.value));
  return h("label", {}, label, node);
}

/** Name the place of a view, unless another one was opened while it asked the server. */
function crumbs(owner, title, ...links) {
  if (owner !== view) return;
  document.title = `${title} · envweave view`;
  fill(byId("place"), links.map(([text, to], i) => [i ? h("span.muted", {}, "›") : null, h("a", { href: to, "aria-current": i === links.length - 1 ? "page" : null }, text)]));
}

// ---------------------------------------------------------------- the runs

class RunsView {
  constructor(params) {
    this.chosen = new Set((params.runs || "").split("\n").filter(Boolean));
    this.isNew = !params.runs;
    this.params = params;
    this.table = h("div.scroll");
    this.chart = chart({ label: "Comparison of runs", height: 300 });
    this.legend = h("div.legend");
    this.smooth = smoothing(() => this.draw(), params.smooth);
    this.keys = h("div");
    this.compare = h("section.card", {}, h("h2", {}, "Comparison"), h("div.toolbar", {}, this.keys, this.smooth.node), this.legend, this.chart.node);
    this.node = h("div", {}, this.compare, h("section.card", {}, h("h2", {}, "Runs"), this.table));
  }

  async refresh() {
    const { name, runs } = await ask("runs");
    fill(byId("title"), name);
    crumbs(this, name, ["Runs", "#/"]);
    this.runs = runs;
    if (this.isNew && runs.some((one) => one.is_indexed)) { // those that have something to show
      runs.filter((one) => one.has_metrics || one.episodes > 1).slice(0, 8).forEach((one) => this.chosen.add(one.id));
      this.isNew = false;
    }
    const ids = runs.map((one) => one.id).filter((one) => this.chosen.has(one));
    if (this.curves?.runs.map((one) => one.id).join("\n") !== ids.join("\n")) this.curves = new Curves(ids);
    await this.curves.update();
    this.draw();
    return runs.some((one) => one.is_live || !one.is_indexed);
  }

  draw() {
    const { runs, curves } = this;
    const ids = curves.runs.map((one) => one.id);
    const keys = curves.keys();
    const key = keys.includes(this.params.key) ? this.params.key : keys[0];
    this.compare.hidden = !keys.length && !this.chosen.size;
    if (this.choices !== keys.join("\n")) { // an open list of choices would close
      this.choices = keys.join("\n");
      fill(this.keys, select("curve", keys.map((one) => [one, one]), key, (value) => { this.params.key = value; remember({ key: value }); this.draw(); }));
    }
    const lines = curves.lines(key);
    fill(this.legend, lines.map((one) => h("span", {}, swatch(ids.indexOf(one.name)), one.name)));
    this.chart.draw(lines, this.smooth.read());
    const focused = this.table.contains(document.activeElement) && document.activeElement;
    const heads = ["", "run", "environment", "started", "episodes", "steps", "mean return", "outcomes", ""];
    fill(this.table, runs.length ? h("table.list.runs", {}, h("thead", {}, h("tr", {}, heads.map((one) => h("th", {}, one)))), h("tbody", {}, runs.map((one) => {
      const box = h("input", { type: "checkbox", checked: this.chosen.has(one.id), "aria-label": `Compare ${one.id}`, onchange: () => {
        if (box.checked) this.chosen.add(one.id); else this.chosen.delete(one.id);
        remember({ runs: [...this.chosen].join("\n") });
        this.refresh().catch(fail);
      } });
      const i = ids.indexOf(one.id);
      return h("tr", {}, h("td", {}, box, " ", i >= 0 ? swatch(i) : null), h("td.title", {}, h("a", { href: link("run", { run: one.id }) }, one.id)), h("td", {}, one.env_id || "–", one.backend ? h("span.muted.small", {}, ` ${one.backend}`) : null),
        h("td", {}, when(one.started)), h("td", {}, one.is_indexed ? number(one.episodes) : "reading …"), h("td", {}, number(one.steps)), h("td", {}, number(one.reward)),
        h("td.outcomes", {}, outcomes(one)), h("td", {}, one.is_live ? [h("span.live-dot"), "live"] : null));
    }))) : h("p.muted", {}, "There are no runs in this folder yet. Record one with record=\"runs/x\", or train one."));
    const name = focused && (focused.ariaLabel || focused.textContent);
    if (name) [...this.table.querySelectorAll("a, input")].find((one) => (one.ariaLabel || one.textContent) === name)?.focus({ preventScroll: true });
  }
}

/** Give the focus to another row of the table of runs. */
function focusRun(to) {
  const links = [...view.table.querySelectorAll("td.title a")];
  const at = links.findIndex((one) => one.closest("tr").contains(document.activeElement));
  links.at(Math.max(0, Math.min(links.length - 1, to(at, links.length))))?.focus();
}

const KINDS = { terminated: "done", truncated: "cut", running: "running" };
const outcomes = (run) => Object.entries(run.reasons).sort((a, b) => b[1] - a[1]).map(([reason, count]) => (reason === "running" && !run.is_live
  ? [h("span.badge", {}, `${number(count)} unfinished`), " "] : [h(`span.badge.${KINDS[reason] || "lost"}`, {}, `${number(count)} ${reason}`), " "]));

// ---------------------------------------------------------------- one run

const COLUMNS = [["id", "episode", "minmax(11rem, 2fr)"], ["task", "task", "minmax(7rem, 1.5fr)"], ["seed", "seed", "minmax(4rem, 1fr)"], ["steps", "steps", "4.5rem"], ["reward", "return", "6rem"], ["reason", "end", "minmax(11rem, 1.6fr)"], ["duration_s", "duration", "6rem"], ["started", "started", "9.5rem"]];

class RunView {
  constructor(params) {
    this.params = params;
    this.tab = params.tab || "episodes";
    this.figures = h("div.figures");
    this.tabs = h("nav", { "aria-label": "Parts of the run" });
    this.body = h("div");
    this.node = h("div", {}, this.figures, h("div.toolbar", {}, this.tabs), this.body);
  }

  async refresh() {
    const run = this.run = await ask("run", { run: this.params.run });
    crumbs(this, run.id, ["Runs", "#/"], [run.id, link("run", { run: run.id })]);
    const card = (name, ...value) => h("div.figure-card", {}, h("span.muted.small", {}, name), h("b", { title: value.length === 1 && typeof value[0] === "string" ? value[0] : null }, value));
    fill(this.figures, card("Environment", run.env_id || "–"), card("Episodes", number(run.episodes)), card("Steps", number(run.steps)), card("Mean return", number(run.reward)),
      card("Lost", number(Object.entries(run.blames).reduce((sum, [blame, count]) => sum + (blame === "agent" ? 0 : count), 0))), card("Started", when(run.started).slice(5)),
      run.is_live ? card("State", h("span.live-dot"), "live") : null, run.broken ? card("Unreadable lines", number(run.broken)) : null);
    const tabs = [["episodes", "Episodes"], ["curves", "Curves"], run.forks ? ["forks", "Forks"] : null, ["setup", "Setup"]].filter(Boolean);
    if (!run.episodes && this.tab === "episodes" && !this.params.tab) this.tab = "curves";
    fill(this.tabs, tabs.map(([key, name]) => h("a", { href: link("run", { run: run.id, tab: key }), "aria-current": key === this.tab ? "page" : null }, name)));
    await this[this.tab in TABS ? this.tab : "episodes"]();
    return run.is_live || !run.is_indexed;
  }

  async episodes() {
    const { run, params } = this;
    if (!this.list) {
      const change = (name) => (value) => { params[name] = value; remember({ [name]: value }); this.list.load().catch(fail); };
      const text = (name, label, type = "text") => { const input = h("input", { type, value: params[name] || "", step: "any", "aria-label": label, list: name === "task" ? "tasks" : null }); input.addEventListener("input", () => change(name)(input.value)); return h("label", {}, label, input); };
      this.count = h("span.muted");
      this.list = new Virtual({
        label: "Episodes", columns: COLUMNS.map(([, , width]) => width).join(" "), heads: COLUMNS.map(([key, name]) => h("button", { onclick: () => {
          params.order = params.sort === key && params.order !== "desc" ? "desc" : "";
          params.sort = key;
          remember({ sort: key, order: params.order });
          this.marks();
          this.list.load().catch(fail);
        }, "data-key": key }, name)),
        fetch: async (offset) => {
          const { reason, blame, task, q, min, max, sort, order } = params;
          const found = await ask("episodes", { run: run.id, reason, blame, task, q, min, max, sort, order, offset });
          fill(this.count, found.matching === found.total ? plural(found.total, "episode") : `${number(found.matching)} of ${plural(found.total, "episode")}`);
          return { total: found.matching, rows: found.rows.slice(0, PAGE) };
        },
        row: (one) => h("a.line", { href: link("episode", { run: run.id, episode: one.id }), role: "row" }, h("code", {}, one.parent ? "↳ " : "", one.id), h("span", {}, one.task || "–"), h("span", {}, one.seed === null || typeof one.seed === "object" ? "–" : String(one.seed)), h("span", {}, number(one.steps)),
          h("span.t-number", { title: typeof one.reward === "object" && one.reward ? number(one.reward) : null }, number(one.reward?.$float ?? one.reward)), h("span", { title: one.message || null }, ending(one.reason, one.blame, this.run.is_live ? "running" : "unfinished")), h("span", {}, duration(one.duration_s)), h("span.muted", {}, when(one.started))),
        onopen: (one) => { location.hash = link("episode", { run: run.id, episode: one.id }); },
      });
      fill(this.body, h("div.toolbar", {}, select("end", [["", "any"], ...["terminated", "truncated", "error", "timeout", "lost", "running"].map((one) => [one, one])], params.reason || "", change("reason")),
        select("failure of", [["", "anyone"], ["none", "no one"], ["agent", "agent"], ["environment", "environment"], ["infrastructure", "infrastructure"]], params.blame || "", change("blame")),
        text("min", "return from", "number"), text("max", "to", "number"), text("task", "task"), text("q", "episode or message"), this.count, h("datalist", { id: "tasks" }, run.tasks.slice(0, 100).map((one) => h("option", { value: one })))), this.list.node);
      this.marks();
    }
    if (this.shown !== run.version) await this.list.load({ keep: this.shown !== undefined });
    this.shown = run.version;
  }

  marks() {
    for (const button of this.list.node.querySelectorAll(".heads button")) {
      const name = COLUMNS.find(([key]) => key === button.dataset.key)[1];
      const isSorted = (this.params.sort || "started") === button.dataset.key;
      fill(button, name, isSorted ? (this.params.order === "desc" ? " ↓" : " ↑") : "");
    }
  }

  async curves() {
    this.series ??= new Curves([this.run.id]);
    await this.series.update();
    if (!this.charts) {
      this.charts = new Map();
      this.smooth = smoothing(() => this.drawCurves(), this.params.smooth);
      this.grid = h("div.charts");
      fill(this.body, h("div.toolbar", {}, this.smooth.node), this.grid);
    }
    this.drawCurves();
  }

  drawCurves() {
    const keys = this.series.keys().slice(0, 40);
    for (const key of keys) {
      if (!this.charts.has(key)) {
        const one = chart({ label: key, height: 190 });
        this.charts.set(key, one);
        this.grid.append(h("section.card", {}, h("h2", {}, key), one.node));
      }
      this.charts.get(key).draw(this.series.lines(key), this.smooth.read());
    }
    if (!keys.length) fill(this.grid, h("p.muted", {}, "No curves yet."));
  }

  async forks() {
    const { nodes, total } = await ask("tree", { run: this.run.id });
    fill(this.body, h("section.card", {}, h("h2", {}, "Forks"), total > nodes.length ? h("p.muted.small", {}, `The first ${number(nodes.length)} of ${number(total)}.`) : null, forkTree(nodes, this.run.id, { isLive: this.run.is_live })));
  }

  async setup() {
    if (this.header) return;
    this.header = true;
    const settings = new Curves([this.run.id]);
    await settings.update();
    const mine = settings.runs[0].settings;
    fill(this.body, h("div.columns", {}, Object.keys(mine).length ? h("section.card", {}, h("h2", {}, "Settings"), tree(mine, null, null, true)) : null,
      h("section.card", {}, h("h2", {}, "Recording"), Object.keys(this.run.header).length ? tree(this.run.header, null, null, true) : h("p.muted", {}, "none"))));
  }
}

const TABS = { episodes: 1, curves: 1, forks: 1, setup: 1 };

function forkTree(nodes, run, { current = null, isLive = false } = {}) {
  const ids = new Set(nodes.map((one) => one.id));
  const children = new Map();
  for (const one of nodes) {
    const parent = one.parent && ids.has(one.parent.episode) ? one.parent.episode : "";
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(one);
  }
  const seen = new Set(); // a file may claim that episodes are each other's parents
  const list = (id, depth) => h("ul.forks", {}, (children.get(id) || []).filter((one) => !seen.has(one.id) && seen.add(one.id)).map((one) => h("li", {},
    h(`a.fork${one.id === current ? ".current" : ""}`, { href: link("episode", { run, episode: one.id }) }, one.parent ? h("span.muted.small", {}, `at step ${number(one.parent.step)}`) : null,
      h("code", {}, one.id), h("span.small", {}, plural(one.steps, "step")), h("b", {}, number(one.reward?.$float ?? one.reward)), ending(one.reason, one.blame, isLive ? "running" : "unfinished")),
    children.has(one.id) && depth < 60 ? list(one.id, depth + 1) : null)));
  return h("div.tree-view", {}, list("", 0));
}

// ---------------------------------------------------------------- one episode

class EpisodeView {
  constructor(params) {
    this.params = params;
    this.at = Number(params.line) || 0;
    this.loadValue = (digest) => ask("value", { run: params.run, digest });
    this.head = h("div");
    this.detail = h("div");
    this.chart = chart({ label: "Reward of each step", height: 110, onpick: ([x]) => this.go(x) });
    this.list = new Virtual({
      label: "Steps", columns: "2.6rem minmax(0, 1fr) max-content",
      fetch: (offset, limit) => ask("steps", { run: params.run, episode: params.episode, offset, limit }),
      row: (one, i) => h("div.line", { role: "row", title: one.action, onclick: () => this.go(i) }, h("span.muted", {}, one.event === "reset" ? "reset" : one.event === "answer" ? "↳" : String(one.step ?? i)),
        h("code", {}, one.failed ? h("span.bad", {}, "× ") : null, one.action, one.tools ? h("span.muted", {}, ` · ${plural(one.tools, "tool")}`) : null, one.logs ? h("span.muted", {}, ` · ${plural(one.logs, "log")}`) : null), h("span.t-number", {}, one.reward === null ? "" : number(one.reward?.$float ?? one.reward))),
    });
    this.legend = h("div.legend");
    this.rewards = h("section.card", {}, h("h2", {}, "Reward of each step"), this.legend, this.chart.node);
    this.node = h("div", {}, this.head, h("div.trajectory", {}, h("div", {}, this.list.node), h("div", {}, this.rewards, this.detail)));
  }

  async refresh() {
    const { run, episode } = this.params;
    const one = this.episode = await ask("episode", { run, episode });
    crumbs(this, one.id, ["Runs", "#/"], [run, link("run", { run })], [one.id, link("episode", { run, episode })]);
    const parent = one.parent && h("a.small", { href: link("episode", { run, episode: one.parent.episode, line: one.parent.step }) }, `↳ fork of ${one.parent.episode} at step ${one.parent.step}`);
    fill(this.head, h("section.card", {}, h("div.step-head", {}, h("h1", {}, one.id), ending(one.reason, one.blame, one.is_live ? "running" : "unfinished"), h("b", {}, `return ${number(one.reward?.$float ?? one.reward)}`), h("span.muted", {}, plural(one.steps, "step")),
      one.duration_s ? h("span.muted", {}, duration(one.duration_s)) : null, one.task && h("span.muted", {}, `task ${one.task}`), one.seed !== null && h("span.muted", {}, `seed ${typeof one.seed === "object" ? "…" : one.seed}`), parent,
      one.end && h("a.small", { href: `api/raw?${new URLSearchParams({ run, episode, line: "end" })}` }, "raw end")),
    one.message ? h(one.blame ? "p.bad" : "p.muted", {}, one.message) : null,
    one.children.length ? h("details", {}, h("summary.small", {}, `${plural(one.children.length, "fork")} of this episode`), forkTree([{ ...one, parent: null }, ...one.children], run, { current: one.id, isLive: one.is_live })) : null));
    const curves = Object.entries(one.rewards);
    this.rewards.hidden = one.reward === null || curves.every(([, points]) => points.length < 2);
    fill(this.legend, curves.length > 1 || curves[0]?.[0] !== "reward" ? curves.map(([name], i) => h("span", {}, swatch(i), name)) : null);
    this.chart.draw(curves.map(([name, points]) => ({ name, points })));
    if (this.lines !== one.lines) await this.list.load({ keep: this.lines !== undefined });
    const isFirst = this.lines === undefined;
    this.lines = one.lines;
    this.list.node.style.setProperty("--columns", `max(2.6rem, ${String(one.steps).length + 0.5}ch) minmax(0, 1fr) max-content`); // "reset", or the largest number
    if (isFirst) await this.go(this.at);
    return one.is_live && !one.end;
  }

  async go(to) {
    if (!this.lines) return;
    const at = this.at = Math.max(0, Math.min(this.lines - 1, to));
    remember({ line: at || "" });
    this.list.select(at);
    const { run, episode } = this.params;
    const { event, where } = await ask("event", { run, episode, line: at });
    if (at !== this.at) return; // another one was chosen meanwhile
    fill(this.detail, this.show(event, where));
  }

  show(event, where) {
    const { run, episode } = this.params;
    const name = event.event === "reset" ? "Reset" : event.event === "answer" ? "Answer to a tool" : event.event === "step" ? `Step ${event.step ?? this.at}` : "Unreadable line";
    const part = (title, content) => (content ? h("section", {}, h("h3", {}, title), content) : null);
    const raw = `api/raw?${new URLSearchParams({ run, episode, line: this.at })}`;
    const { event: _, t, episode: __, row, step, action, observation: seen, digest, reward: earned, reward_parts: parts, metrics, info, requests, extra, duration_s: took, terminated, truncated, seed, task_id: task, task: about, parent, needs, options, ...rest } = event;
    const made = events(requests, this.loadValue);
    return h("article.card.step", {}, h("div.step-head", {}, h("h2", {}, name), took ? h("span.muted.small", {}, duration(took)) : null, flag("terminated", terminated), flag("truncated", truncated), h("span.grow"),
      h("button.quiet.small", { onclick: () => this.go(this.at - 1), disabled: this.at === 0, title: "k" }, "‹ previous"), h("button.quiet.small", { onclick: () => this.go(this.at + 1), disabled: this.at >= this.lines - 1, title: "j" }, "next ›"), h("a.button.small", { href: raw, title: where, target: "_blank", rel: "noopener" }, "raw line")),
    earned !== undefined || parts ? reward(earned, parts) : null,
    action !== undefined ? part("Action", actionOf(action, this.loadValue)) : null,
    seen !== undefined ? part("Observation", seenBy(seen, this.loadValue)) : null,
    made.length ? part("Events", made) : null, Array.isArray(needs) && needs.length > 0 ? part("To act", needs.map((one) => one?.agent_id).join(", ")) : null, options ? part("Options", render(options, this.loadValue)) : null, about ? part("Task", render(about, this.loadValue)) : null,
    metrics && Object.keys(metrics).length ? part("Metrics", render(metrics, this.loadValue)) : null, extra ? part("From the agent", tree(extra, this.loadValue, null, true)) : null,
    info && Object.keys(info).length ? part("Info", tree(info, this.loadValue, null, Object.keys(info).length < 6)) : null, Object.keys(rest).length ? part("More", tree(rest, this.loadValue, null, true)) : null,
    h("details.raw", {}, h("summary", {}, "as JSON"), tree(event, this.loadValue, null, true)));
  }
}

const flag = (name, value) => (value === true ? h("span.badge.done", {}, name) : value && typeof value === "object" && Object.values(value).some(Boolean) ? h("span.badge", {}, `${name}: ${Object.entries(value).filter(([, one]) => one).map(([agent]) => agent).join(", ")}`) : null);
const isPlain = (value) => value && typeof value === "object" && !Array.isArray(value) && !isMark(value);

/** An agent's action, without metadata that it left empty. */
const withoutEmpty = ({ metadata, ...rest }) => (isPlain(metadata) && !Object.keys(metadata).length ? rest : metadata === undefined ? rest : { metadata, ...rest });

function actionOf(action, load) {
  if (!isPlain(action)) return typeof action === "string" ? block(action) : render(action, load);
  const { metadata, ...own } = action;
  const rest = Object.fromEntries(Object.entries(own).map(([name, one]) => [name, isPlain(one) ? withoutEmpty(one) : one]));
  const names = Object.keys(rest);
  if (names.length === 1 && typeof rest.code === "string") return block(rest.code, { kind: "code", label: "code" });
  return names.length === 1 && typeof rest[names[0]] !== "string" ? h("code", {}, highlight(JSON.stringify(rest))) : render(rest, load);
}

/** An observation; of several agents, one beside the other. */
function seenBy(seen, load) {
  const agents = isPlain(seen) ? Object.entries(seen) : [];
  if (agents.length > 1 && agents.every(([, one]) => isPlain(one) && ("reward" in one || "done" in one))) return h("div.agents", {}, agents.map(([agent, one]) => h("div.agent", {}, h("h4", {}, agent), observation(one, load))));
  return observation(seen, load);
}

// ---------------------------------------------------------------- the page

let view = null;
let timer = null;

/** Show an error in place of the view; what a server did not answer is asked for again. */
function fail(error) {
  if (error.status === 0 && byId("main").childElementCount && view?.isShown) { byId("offline").hidden = false; return; }
  fill(byId("main"), h("section.card", {}, h("p.bad", { role: "alert" }, error.message), h("p", {}, h("a", { href: "#/" }, "All runs"))));
}

async function show() {
  clearTimeout(timer);
  const { page, params } = place();
  const made = view = page === "run" ? new RunView(params) : page === "episode" ? new EpisodeView(params) : new RunsView(params);
  fill(byId("main"), made.node);
  const loop = async () => {
    let isLive = true;
    try {
      isLive = await made.refresh();
      made.isShown = true;
      byId("offline").hidden = true;
    } catch (error) {
      if (view !== made) return;
      if (error.status !== 0 || !made.isShown) throw error;
      fail(error);
    }
    if (view === made && (isLive || made instanceof RunsView)) timer = setTimeout(() => loop().catch(fail), POLL_MS);
  };
  await loop();
}

startShortcuts();
const move = (by) => () => {
  if (view instanceof EpisodeView) view.go(view.at + by).catch(fail);
  else if (view instanceof RunsView) focusRun((at) => at + by);
  else view.list?.select(view.list.at + by);
};
shortcut("j", "Next step, episode or run", move(1));
shortcut("k", "Previous step, episode or run", move(-1));
shortcut("Enter", "Open the episode or run", () => {
  const { list } = view;
  if (view instanceof RunsView) return false; // the link of the run has the focus
  const one = list?.onopen && list.pages.get(Math.floor(list.at / PAGE))?.[list.at % PAGE];
  if (!one || document.activeElement.closest("a, button, input")) return false;
  return list.onopen(one);
});
shortcut("u", "Up: to the run, or to all runs", () => { const links = [...byId("place").querySelectorAll("a")]; links.at(-2)?.click(); });
shortcut("g", "First step or row", () => (view instanceof EpisodeView ? view.go(0).catch(fail) : view instanceof RunsView ? focusRun(() => 0) : view.list?.select(0)));
shortcut("G", "Last step or row", () => (view instanceof EpisodeView ? view.go(view.lines - 1).catch(fail) : view instanceof RunsView ? focusRun((_, count) => count - 1) : view.list?.select(view.list.total - 1)));
shortcut("/", "Go to the filters", () => byId("main").querySelector(".toolbar input, .toolbar select")?.focus());
window.addEventListener("hashchange", () => show().catch(fail));
show().catch(fail);
