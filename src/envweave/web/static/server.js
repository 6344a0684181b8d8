// The page of a server: play an episode, watch the sessions, read the schema.
import { byId, duration, fill, h, number, plural, request, shortcut, size, startShortcuts } from "./dom.js";
import { chart, swatch } from "./chart.js";
import { field, FormError } from "./forms.js";
import { block, ending, events, fields, observation, render, reward, tree } from "./render.js";
import { highlight } from "./highlight.js";

const HISTORY = "envweave-history";
const KEPT_TURNS = 500;
let about;

// ---------------------------------------------------------------- an episode

class Player {
  constructor() {
    this.session = null;
    this.history = JSON.parse(sessionStorage.getItem(HISTORY) || "[]");
    this.stream = h("div.stream", { role: "log", "aria-label": "Episode", tabIndex: 0 });
    this.composer = h("div.composer");
    this.status = h("div.status");
    this.variables = h("section.card", { hidden: true });
    this.problem = h("p.bad", { role: "alert" });
    this.chart = chart({ label: "Reward of each step", height: 120 });
    this.legend = h("div.legend");
    this.rewardCard = h("section.card", { hidden: true }, h("h2", {}, "Reward of each step"), this.legend, this.chart.node);
    this.node = h("div.play", {}, h("div.column", {}, this.stream, this.problem, this.composer), h("aside", {},
      h("section.card", {}, h("h2", {}, "Episode"), this.resetForm(), this.status), this.rewardCard, this.variables));
    this.isCode = isCode(about.action);
    this.clear();
    this.draw();
  }

  clear() {
    Object.assign(this, { result: null, step: 0, total: {}, rewards: [], end: null, isBusy: false });
    fill(this.stream, this.isCode ? greeting("Reset to begin a session, then write code below.") : greeting("Reset to begin an episode."));
  }

  resetForm() {
    const takes = about.reset_takes;
    const seed = takes.includes("seed") && h("input", { type: "number", min: 0, step: 1, placeholder: "random", "aria-label": "seed" });
    const task = takes.includes("task") && h("input", { placeholder: "any", "aria-label": "task", spellcheck: "false" });
    const options = takes.includes("options") && field({}, { required: false, name: "options" });
    const splits = about.splits && Object.entries(about.splits).map(([name, length]) => `${name}: ${length === null ? "endless" : plural(length, "task")}`).join(", ");
    this.resetButton = h("button", {}, "Reset");
    return h("form.reset", { onsubmit: (event) => {
      event.preventDefault();
      this.run(async () => {
        const body = {};
        if (seed && seed.value !== "") body.seed = Number(seed.value);
        if (task && task.value.trim()) body.task = task.value.trim().startsWith("{") ? JSON.parse(task.value) : task.value.trim();
        const given = options && options.read();
        if (given !== undefined && given !== false) body.options = given;
        await this.reset(body);
      });
    } },
    seed && h("label", {}, "seed", seed), task && h("label", {}, "task", task, splits ? h("span.muted.small", {}, splits) : null),
    options && h("label", {}, "options", options.node), this.resetButton);
  }

  async call(method, path, body) {
    return request(path, { method, body, headers: this.session && { "X-Session-Id": this.session } });
  }

  async reset(body) {
    if (!this.session) this.session = (await request("../sessions", { method: "POST", body: {} })).session_id;
    let result;
    try {
      result = await this.call("POST", "../reset", body);
    } catch (error) {
      if (error.status !== 404) throw error;
      this.session = null; // it was closed after a long time without a call
      await this.reset(body);
      return;
    }
    this.clear();
    this.isBusy = true;
    fill(this.stream);
    this.seed = result.info.seed;
    this.take(result, null);
    await this.refreshState();
  }

  async act(body, shown) {
    this.take(await this.call("POST", "../step", body), shown);
    await this.refreshState();
  }

  /** Do something that calls the server; one at a time, and what fails is said. */
  async run(action) {
    if (this.isBusy) return;
    this.isBusy = true;
    fill(this.problem);
    this.node.classList.add("busy");
    try {
      await action();
    } catch (error) {
      fill(this.problem, error.fault ? `${error.fault.code}: ${error.message}` : error instanceof FormError || error instanceof SyntaxError ? error.message : String(error));
    } finally {
      this.isBusy = false;
      this.node.classList.remove("busy");
      this.draw();
    }
  }

  take(result, action) {
    this.result = result;
    this.step = result.step_index;
    const by = result.reward !== null && typeof result.reward === "object" ? result.reward : { "": result.reward };
    for (const [agent, one] of Object.entries(by)) if (typeof one === "number") this.total[agent] = (this.total[agent] || 0) + one;
    this.end = result.requests.find((one) => one.type === "episode_end") || null;
    if (action !== null && result.reward !== null) this.rewards.push(by);
    const turn = this.isCode ? this.cell(result, action) : this.turn(result, action);
    this.stream.append(turn);
    while (this.stream.childElementCount > KEPT_TURNS) this.stream.firstElementChild.remove();
    this.stream.scrollTop = this.stream.scrollHeight;
  }

  turn(result, action) {
    const agents = about.possible_agents;
    const seen = agents && result.observation && typeof result.observation === "object"
      ? h("div.agents", {}, Object.entries(result.observation).map(([agent, one]) => h("div.agent", {}, h("h4", {}, agent), observation(one))))
      : observation(result.observation);
    return h("article.turn", {}, h("h3", {}, action === null ? "reset" : `step ${result.step_index}`, action === null ? null : h("code.action", {}, highlight(brief(action)))),
      seen, this.footer(result, action));
  }

  /** A step of an agent that writes code, as a notebook shows it. */
  cell(result, action) {
    const seen = result.observation || {};
    const inner = seen.execution_result || seen;
    const output = [];
    for (const [name, kind] of [["prompt", "text"], ["stdout", "output"], ["stderr", "output.stderr"], ["traceback", "output.stderr"]]) {
      const text = name === "prompt" ? (action === null ? seen.prompt : "") : inner[name];
      if (text) output.push(block(text, { kind: kind.split(".")[0], label: name }));
      if (text && kind.includes("stderr")) output.at(-1).classList.add("stderr");
    }
    const value = seen.result ?? inner.return_repr;
    const rest = fields(seen, null, ["reward", "done", "truncated", "code", "prompt", "stdout", "stderr", "result", "execution_result", "metadata", seen.exit_code ? "" : "exit_code"]);
    return h("article.cell", {},
      action === null ? h("h3", {}, "session started", h("span.muted", {}, ` seed ${result.info.seed}`))
        : h("div.in", {}, h("span.prompt", {}, `In [${result.step_index}]`), block(action.code ?? "", { kind: "code" })),
      output.length || value ? h("div.out", {}, output, value ? h("div.in", {}, h("span.prompt.result", {}, `Out [${result.step_index}]`), block(value, { kind: "code" })) : null) : null,
      rest.querySelector(".field") ? rest : null, this.footer(result, action));
  }

  footer(result, action) {
    const { reward_parts: own, metrics, seed: _, ...info } = result.info || {};
    const parts = own || Object.fromEntries((about.possible_agents || []).map((agent) => [agent, info[agent]?.reward_parts]));
    const extra = Object.entries(info).filter(([name, one]) => one !== null && name !== "action_mask" && !(typeof one === "object" && isHollow(one)));
    return h("footer", {}, action === null || result.reward === null ? null : reward(result.reward, parts),
      metrics && Object.keys(metrics).length ? h("div.muted.small", {}, number(metrics)) : null, events(result.requests),
      extra.length && action !== null ? tree(Object.fromEntries(extra), null, "info") : null,
      this.end ? h("div.end", {}, ending(this.end.reason, this.end.blame), this.end.cause ? block(this.end.cause) : null) : null,
      h("details.raw", {}, h("summary", {}, `reply · ${plural(result.requests.length, "request")}`), tree(result, null, null, true)));
  }

  async refreshState() {
    const state = await this.call("GET", "../state").catch(() => null);
    const shown = Object.entries(state?.variables || {});
    this.variables.hidden = !state;
    if (!state) return;
    const rows = shown.map(([name, one]) => h("tr", {}, h("td", {}, h("code", {}, name)), h("td.muted", {}, one.type), h("td", {}, h("code", {}, one.repr))));
    const others = Object.fromEntries(Object.entries(state).filter(([name]) => !["variables", "episode_id", "step_count"].includes(name)));
    fill(this.variables, h("h2", {}, state.variables ? "Variables" : "State"),
      rows.length ? h("div.scroll", {}, h("table.variables", {}, h("tbody", {}, rows))) : state.variables ? h("p.muted", {}, "none") : null,
      Object.keys(others).length ? fields(others) : null);
    if (!state.variables && !Object.keys(others).length) this.variables.hidden = true;
  }

  draw() {
    const { result, end } = this;
    const total = Object.keys(this.total).length ? Object.entries(this.total).map(([agent, one]) => h("div", {}, agent ? `${agent} ` : "", h("b", {}, number(one)))) : h("b", {}, "0");
    fill(this.status, result && h("dl.facts", {},
      fact("State", end ? ending(end.reason, end.blame) : ending(null, null)), fact("Step", number(this.step)), fact("Return", total),
      result.task_id && fact("Task", result.task_id), fact("Seed", this.seed === null || this.seed === undefined ? "–" : String(this.seed)), fact("Episode", h("code", {}, result.episode_id))),
    this.session && h("button.quiet.small", { type: "button", onclick: () => this.run(async () => { await this.close(); this.clear(); }) }, "Close this session"));
    this.rewardCard.hidden = this.rewards.length < 2;
    const agents = [...new Set(this.rewards.flatMap((one) => Object.keys(one)))];
    fill(this.legend, agents.length > 1 ? agents.map((agent, i) => h("span", {}, swatch(i), agent)) : null);
    this.chart.draw(agents.map((agent) => ({ name: agent || "reward", points: this.rewards.map((one, i) => [i + 1, one[agent] ?? NaN]) })));
    this.resetButton.textContent = result ? "Reset again" : "Reset";
    this.drawComposer();
  }

  async close() {
    const session = this.session;
    this.session = null;
    if (session) await request(`../sessions/${session}`, { method: "DELETE", keepalive: true });
  }

  drawComposer() {
    this.submit = null;
    if (!this.result || this.end) {
      fill(this.composer, this.end ? h("p.muted", {}, "The episode is over. Reset to begin another.") : null);
      return;
    }
    const tool = this.result.requests.find((one) => one.type === "tool_call_request");
    if (tool) this.toolForm(tool);
    else if (this.isCode) this.editor();
    else this.actionForm();
  }

  form(title, content, send, label = "Step") {
    this.submit = () => this.run(send);
    fill(this.composer, h("form.card", { onsubmit: (event) => { event.preventDefault(); this.submit(); } }, title && h("h2", {}, title), content,
      h("div.buttons", {}, h("button", { title: "Ctrl+Enter" }, label), h("span.muted.small", {}, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter")))));
  }

  actionForm() {
    const needs = this.result.requests.filter((one) => one.type === "need_action");
    const mask = (need) => need?.action_mask ?? this.result.info?.action_mask ?? null;
    if (!about.possible_agents) {
      const one = field(about.action, { mask: mask(needs[0]), name: "action" });
      this.form("Action", [one.node, hint(mask(needs[0]), one.node)], () => { const action = one.read(); return this.act({ action }, action); });
    } else {
      const parts = needs.map((need) => ({ agent: need.agent_id, mask: need.action_mask, ...field(about.action.properties[need.agent_id] || {}, { root: about.action, mask: need.action_mask, name: need.agent_id }) }));
      this.form(null, h("div.agents", {}, parts.map((one) => h("fieldset.agent", {}, h("legend", {}, one.agent), one.node, hint(one.mask, one.node)))), () => {
        const action = Object.fromEntries(parts.map((one) => [one.agent, one.read()]));
        return this.act({ action }, action);
      });
    }
    this.composer.querySelector("textarea, input:checked, input, select")?.focus({ preventScroll: true });
  }

  toolForm(tool) {
    const value = h("textarea", { rows: 3, placeholder: "The value, as JSON or text", "aria-label": "value" });
    const failed = h("input", { type: "checkbox" });
    this.form(`The environment asks for ${tool.name}()`, [tree(tool.arguments, null, "arguments", true), value, h("label.check", {}, failed, "this is an error message")], () => {
      let given = value.value;
      if (!failed.checked) try { given = JSON.parse(given); } catch { /* text */ }
      const answer = failed.checked ? { call_id: tool.call_id, error: String(given) } : { call_id: tool.call_id, value: given };
      return this.act({ answer }, { answer: given });
    }, "Answer");
  }

  editor() {
    const area = h("textarea.source", { rows: 4, spellcheck: "false", autocapitalize: "off", "aria-label": "Code", placeholder: "print('hello')", value: this.draft || "" });
    const behind = h("pre.code.behind", { "aria-hidden": "true" });
    const refresh = () => {
      this.draft = area.value;
      area.rows = Math.min(20, Math.max(4, area.value.split("\n").length + 1));
      fill(behind, highlight(`${area.value}\n`));
    };
    const insert = (text) => { area.setRangeText(text, area.selectionStart, area.selectionEnd, "end"); refresh(); };
    let at = this.history.length;
    const recall = (next) => {
      at = Math.max(0, Math.min(this.history.length, next));
      area.value = this.history[at] ?? "";
      refresh();
    };
    area.addEventListener("input", refresh);
    area.addEventListener("scroll", () => { behind.scrollTop = area.scrollTop; behind.scrollLeft = area.scrollLeft; });
    area.addEventListener("keydown", (event) => {
      const before = area.value.slice(0, area.selectionStart);
      if (event.key === "Enter" && event.ctrlKey) { event.preventDefault(); event.stopPropagation(); this.submit(); }
      else if (event.key === "Enter" && !event.shiftKey && /\n?([ \t]+)[^\n]*$|:[ \t]*$/.test(before)) {
        event.preventDefault();
        const [, indent] = /(?:^|\n)([ \t]*)[^\n]*$/.exec(before);
        insert(`\n${indent}${/:[ \t]*$/.test(before) ? "    " : ""}`);
      } else if (event.key === "Tab" && !event.shiftKey && !this.leaving) { event.preventDefault(); insert("    "); }
      else if (event.key === "ArrowUp" && !before.includes("\n")) { event.preventDefault(); recall(at - 1); }
      else if (event.key === "ArrowDown" && !area.value.slice(area.selectionEnd).includes("\n")) { event.preventDefault(); recall(at + 1); }
      this.leaving = event.key === "Escape"; // then Tab leaves the editor
    });
    this.form(null, h("div.editor", {}, h("span.prompt", {}, `In [${this.step + 1}]`), h("div.layers", {}, behind, area)), async () => {
      const code = area.value;
      if (!code.trim()) throw new FormError("Write some code first.");
      await this.act({ action: { code } }, { code });
      if (this.history.at(-1) !== code) this.history.push(code);
      sessionStorage.setItem(HISTORY, JSON.stringify(this.history.slice(-200)));
      this.draft = "";
    }, "Run");
    refresh();
    area.focus({ preventScroll: true });
  }
}

const greeting = (text) => h("p.greeting", {}, about.description ? h("span", {}, about.description) : null, h("br"), h("span.muted", {}, text));
const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, value)];
/** What is legal, in words, where the form does not show it. */
const hint = (mask, node) => (Array.isArray(mask) ? mask.length <= 64 && !node.querySelector(".choices, select") && !node.matches(".choices, select") && h("p.muted.small", {}, `legal: ${mask.flatMap((one, i) => (one ? [i] : [])).join(", ") || "none"}`) : mask && !Array.isArray(mask) ? tree(mask, null, "legal") : null);
const isHollow = (value) => Object.entries(value).every(([name, one]) => ["action_mask", "reward_parts", "metrics"].includes(name) || (one !== null && typeof one === "object" && isHollow(one)));
const brief = (action) => { const text = JSON.stringify(action); return text.length > 200 ? `${text.slice(0, 200)} …` : text; };
const isCode = (schema) => { const names = Object.entries(schema.properties || {}).filter(([name]) => name !== "metadata"); return !about.possible_agents && names.length === 1 && names[0][0] === "code" && names[0][1].type === "string"; };

// ---------------------------------------------------------------- the server

class Live {
  constructor() {
    this.rates = [];
    this.chart = chart({ label: "Calls per second", height: 160, floor: 0, unit: " s" });
    this.figures = h("div.figures");
    this.tables = h("div.columns");
    this.node = h("div", {}, this.figures, h("section.card", {}, h("h2", {}, "Calls per second"), this.chart.node), this.tables);
  }

  async refresh() {
    const live = await request("live");
    const calls = live.calls.reduce((sum, one) => sum + one.count, 0);
    const now = performance.now() / 1000;
    if (this.last) this.rates.push([now, (calls - this.last.calls) / (now - this.last.now)]);
    this.last = { calls, now };
    this.rates = this.rates.slice(-120);
    this.chart.draw([{ name: "calls per second", points: this.rates.map(([at, rate]) => [at - now, rate]) }]);
    const failed = live.calls.filter((one) => one.outcome !== "ok").reduce((sum, one) => sum + one.count, 0);
    fill(this.figures, figure("Server", live.unready_reason ? `not ready: ${live.unready_reason}` : "ready", live.unready_reason ? "bad" : "good"),
      figure("Sessions", `${number(live.total)} of ${number(live.limit)}`), figure("Waiting", number(live.waiting), live.waiting ? "bad" : ""),
      figure("Calls", number(calls)), figure("Errors", number(failed), failed ? "bad" : ""), figure("Connections", number(live.connections)),
      figure("Received", size(live.received_bytes)), figure("Sent", size(live.sent_bytes)),
      live.workers || live.workers_replaced ? figure("Workers", `${number(live.workers)}, ${number(live.workers_replaced)} replaced`) : null, live.stuck ? figure("Stuck calls", number(live.stuck), "bad") : null);
    const methods = Object.entries(live.durations).map(([method, { counts, seconds }]) => {
      const total = counts.reduce((sum, one) => sum + one, 0);
      return [method, number(total), duration(seconds / total), quantile(counts, live.buckets_s, 0.5), quantile(counts, live.buckets_s, 0.95)];
    });
    const outcomes = live.calls.filter((one) => one.outcome !== "ok").sort((a, b) => b.count - a.count).map((one) => [one.method, one.outcome, number(one.count)]);
    const sessions = live.sessions.map((one, i) => [`${i + 1}`, one.is_busy ? "in a call" : one.is_disconnected ? "waits for its client" : one.is_live ? "in an episode" : "idle", number(one.calls), one.is_busy ? "now" : `${duration(Math.round(one.idle_s))} ago`]);
    fill(this.tables, table("Sessions", ["", "state", "calls", "last call"], sessions, live.total > live.sessions.length ? `${number(live.total - live.sessions.length)} more` : ""),
      h("div", {}, table("Calls", ["method", "count", "mean", "half below", "95% below"], methods), table("Refused or failed", ["method", "why", "count"], outcomes),
        table("Closed sessions", ["why", "count"], Object.entries(live.closed).map(([why, count]) => [why, number(count)]))));
  }
}

function quantile(counts, bounds, share) {
  let left = counts.reduce((sum, one) => sum + one, 0) * share;
  const at = counts.findIndex((one) => { left -= one; return left <= 0; });
  return at < bounds.length ? duration(bounds[at]) : `over ${duration(bounds.at(-1))}`;
}

const figure = (name, value, kind = "") => h("div.figure-card", {}, h("span.muted.small", {}, name), h(`b${kind ? `.${kind}` : ""}`, {}, value));
const table = (title, heads, rows, note = "") => h("section.card", {}, h("h2", {}, title), rows.length
  ? h("div.scroll", {}, h("table.list", {}, h("thead", {}, h("tr", {}, heads.map((one) => h("th", {}, one)))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map((one) => h("td", {}, one))))))) : h("p.muted", {}, "none"), note && h("p.muted.small", {}, note));

const schemaPage = () => h("div", {}, h("section.card", {}, h("h2", {}, about.name), h("p", {}, about.description), h("dl.facts", {},
  fact("ID", h("code", {}, about.env_id)), fact("Reset takes", about.reset_takes.join(", ") || "nothing"), about.possible_agents && fact("Agents", about.possible_agents.join(", ")),
  fact("Deterministic", about.deterministic ? "yes" : "no"), fact("envweave", about.version))),
h("div.columns", {}, ["action", "observation", "state"].map((name) => h("section.card", {}, h("h2", {}, name), tree(about[name], null, null, true)))));

// ---------------------------------------------------------------- the page

const pages = {};
let timer = null;

async function show() {
  const name = location.hash.slice(2) || "play";
  pages.play ??= new Player();
  clearTimeout(timer);
  for (const link of document.querySelectorAll("nav a")) link.toggleAttribute("aria-current", link.getAttribute("href") === `#/${name}`);
  if (name === "live") {
    pages.live ??= new Live();
    fill(byId("main"), pages.live.node);
    const loop = async () => {
      await pages.live.refresh().catch((error) => fill(pages.live.figures, h("p.bad", {}, error.message)));
      if (location.hash === "#/live") timer = setTimeout(loop, 1500);
    };
    await loop();
  } else {
    fill(byId("main"), name === "about" ? schemaPage() : pages.play.node);
    if (name !== "about") pages.play.draw();
  }
}

async function start() {
  startShortcuts();
  about = await request("about");
  document.title = `${about.env_id} · envweave`;
  fill(byId("title"), about.env_id);
  shortcut("r", "Reset", () => { if (!location.hash || location.hash === "#/play") pages.play.node.querySelector("form.reset").requestSubmit(); });
  shortcut("Ctrl+Enter", "Step, or run the code", () => { pages.play.submit?.(); }, { always: true });
  shortcut("e", "Go to the action or the editor", () => { pages.play.composer.querySelector("textarea, input, select")?.focus(); });
  for (const [key, page] of [["1", "play"], ["2", "live"], ["3", "about"]]) shortcut(key, `Show ${page === "about" ? "the schema" : page}`, () => { location.hash = `#/${page}`; });
  shortcut("↑ ↓", "Earlier code, in the editor", () => false);
  shortcut("Esc Tab", "Leave the editor", () => false);
  window.addEventListener("hashchange", show);
  window.addEventListener("pagehide", () => { pages.play?.close().catch(() => {}); });
  await show();
}

start().catch((error) => fill(byId("main"), h("section.card", {}, h("h2", {}, "The environment cannot be shown"), h("p.bad", {}, error.message))));
