// Values of unknown origin as elements: text, code, output, numbers, arrays, trees.
import { clean, h, number, size } from "./dom.js";
import { highlight, terminal } from "./highlight.js";

const SHORT = 4000;
const LINES = 60;

/** A block of text, of which a long one shows its beginning and a button for the rest. */
export function block(text, { kind = "text", label } = {}) {
  const value = String(text);
  const draw = { code: highlight, output: terminal }[kind] || ((all) => [clean(all)]);
  let cut = Math.min(value.length, SHORT);
  for (let line = 0, at = -1; line < LINES; line += 1) {
    at = value.indexOf("\n", at + 1);
    if (at < 0) break;
    if (line === LINES - 1) cut = Math.min(cut, at);
  }
  const pre = h(`pre.${kind}`, { tabIndex: cut < value.length ? 0 : null, "aria-label": label });
  const show = (all) => pre.replaceChildren(...draw(all ? value : value.slice(0, cut)));
  show(cut === value.length);
  if (cut === value.length) return pre;
  const button = h("button.quiet.small", { onclick: () => { show(true); button.remove(); } }, `Show all (${size(value.length)})`);
  return h("div.long", {}, pre, button);
}

const isNumber = (one) => typeof one === "number";
const isRow = (one) => Array.isArray(one) && one.length > 0 && one.every((x) => isNumber(x) || x === null);

function shapeOf(value) {
  const shape = [];
  for (let one = value; Array.isArray(one); one = one[0]) {
    shape.push(one.length);
    if (!one.length || shape.length > 4) break;
  }
  return shape;
}

function isRegular(value, shape) {
  if (!shape.length) return isNumber(value) || value === null || typeof value === "boolean";
  return Array.isArray(value) && value.length === shape[0] && value.every((one) => isRegular(one, shape.slice(1)));
}

/** An array as a picture, if its shape is one: height × width (× channels). */
function picture(value, shape) {
  const channels = shape.length === 3 ? shape[2] : 1;
  const [height, width] = shape;
  if (shape.length < 2 || shape.length > 3 || ![1, 3, 4].includes(channels) || height < 8 || width < 8 || height > 2048 || width > 2048) return null;
  const flat = value.flat(2).map(Number);
  let low = Infinity, high = -Infinity;
  for (const one of flat) { if (one < low) low = one; if (one > high) high = one; }
  const isBytes = low >= 0 && high > 1 && high <= 255;
  const scale = isBytes ? 1 : 255 / (high - low || 1);
  const from = isBytes ? 0 : low;
  const canvas = h("canvas.picture", { width, height, role: "img", "aria-label": `picture of ${height} × ${width}` });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  for (let i = 0; i < width * height; i += 1) {
    for (let c = 0; c < 3; c += 1) pixels.data[4 * i + c] = (flat[channels === 1 ? i : channels * i + c] - from) * scale;
    pixels.data[4 * i + 3] = channels === 4 ? flat[4 * i + 3] : 255;
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

function array(value, shape, dtype) {
  const about = h("span.muted.small", {}, `${dtype ? `${dtype} ` : ""}${shape.join(" × ")}`);
  const image = picture(value, shape);
  if (image) return h("div.array", {}, image, about);
  const rows = shape.length === 1 ? [value] : value;
  if (shape.length > 2 || shape[0] > 40 || (shape[1] || 0) > 40) return null;
  const flat = rows.flat();
  const most = Math.max(...flat.map((one) => Math.abs(one) || 0)) || 1;
  const cell = (one) => {
    const node = h("td", {}, one === null ? "·" : typeof one === "boolean" ? (one ? "1" : "0") : number(one, 3));
    node.style.setProperty("--heat", `${Math.round((Math.abs(one || 0) / most) * 55)}%`);
    node.classList.toggle("below", one < 0);
    return node;
  };
  return h("div.array", {}, h("div.scroll", {}, h("table.grid", {}, rows.map((row) => h("tr", {}, row.map(cell))))), about);
}

const MARKS = ["$float", "$int", "$array", "$value", "$bytes"];
const ABOUT = ["kind", "dtype", "shape", "bytes"];

/** Whether an object stands for a value that JSON has no form for, and is nothing else besides. */
export const isMark = (value) => MARKS.some((one) => one in value) && Object.keys(value).every((one) => MARKS.includes(one) || ABOUT.includes(one));

/** A value that stands for another: arrays, bytes, numbers that JSON has no form for, stored files. */
function special(value, load) {
  if (!isMark(value)) return null;
  if ("$float" in value) return h("span.t-number", {}, String(value.$float).replace("-", "−"));
  if ("$int" in value) return h("span.t-number", {}, value.$int);
  if (Array.isArray(value.$array?.shape)) {
    const { dtype, shape, values } = value.$array;
    return (values && array(values, shape, dtype)) || h("span.muted", {}, `array ${dtype} ${shape.join(" × ")}`, values && tree(values));
  }
  if ("$value" in value) {
    const about = [value.kind, value.dtype, Array.isArray(value.shape) && value.shape.join(" × "), value.bytes && size(value.bytes)].filter(Boolean).join(" ");
    const place = h("div");
    const button = h("button.quiet.small", { onclick: async () => {
      button.disabled = true;
      try { place.replaceWith(render((await load(value.$value)).value, load)); } catch (error) { place.append(h("p.bad", {}, error.message)); }
    } }, "Show");
    place.append(h("span.muted", {}, about || "stored value", " "), load ? button : "");
    return place;
  }
  if ("$bytes" in value) return h("span.muted", {}, `bytes ${value.$bytes}`);
  return null;
}

/** A tree of any JSON value, whose inner nodes are made when they are opened. */
export function tree(value, load, name = null, isOpen = false) {
  const label = name === null ? [] : [h("span.key", {}, name), ": "];
  if (value === null || typeof value !== "object") {
    if (typeof value === "string" && (value.length > 200 || value.includes("\n"))) return h("div", {}, label, block(value));
    return h("div.leaf", {}, label, isNumber(value) ? h("span.t-number", {}, String(value)) : scalar(value));
  }
  const found = !Array.isArray(value) && special(value, load);
  if (found) return h("div.leaf", {}, label, found);
  const keys = Array.isArray(value) ? value.map((_, i) => i) : Object.keys(value);
  if (!keys.length) return h("div.leaf", {}, label, Array.isArray(value) ? "[]" : "{}");
  if (isRow(value) && value.length <= 12) return h("div.leaf", {}, label, h("span.t-number", {}, `[${value.map(String).join(", ")}]`));
  const inside = h("div.inside");
  const details = h("details.tree", {}, h("summary", {}, label, h("span.muted", {}, Array.isArray(value) ? `[${keys.length}]` : `{${keys.slice(0, 4).join(", ")}${keys.length > 4 ? ", …" : ""}}`)), inside);
  let made = 0;
  const more = () => {
    const next = keys.slice(made, made + 200);
    made += next.length;
    inside.append(...next.map((key) => tree(value[key], load, String(key))));
    if (made < keys.length) inside.append(h("button.quiet.small", { onclick: (event) => { event.target.remove(); more(); } }, `${number(keys.length - made)} more`));
  };
  details.addEventListener("toggle", () => { if (details.open && !made) more(); });
  if (isOpen) { more(); details.open = true; }
  return details;
}

function scalar(value) {
  if (isNumber(value)) return h("span.t-number", {}, number(value, 6));
  if (typeof value === "string") return h("span.t-string", {}, value === "" ? '""' : value);
  return h("span.t-constant", {}, String(value));
}

/** Any value in the form that suits it. */
export function render(value, load) {
  if (typeof value === "string") return value.length > 80 || value.includes("\n") ? block(value) : scalar(value);
  if (value === null || typeof value !== "object") return scalar(value);
  if (Array.isArray(value)) {
    if (isChat(value)) return conversation(value, load);
    if (value.length && value.length <= 24 && value.every((one) => typeof one === "string" && one.length <= 40)) return h("span.t-string", {}, value.map((one) => (one === "" ? '""' : one)).join(", "));
    const shape = shapeOf(value);
    if (isRow(value) && value.length > 64) return tree(value, load);
    return (value.length && isRegular(value, shape) && array(value, shape)) || tree(value, load, null, value.length <= 8);
  }
  return special(value, load) || (Object.keys(value).length ? fields(value, load) : h("span.muted", {}, "{}"));
}

const isChat = (value) => value.length > 0 && value.every((one) => isObject(one) && typeof one.role === "string" && ("content" in one || "tool_calls" in one));
const RECENT = 4;

/** Messages of a conversation, of which a long one shows the last ones. */
function conversation(messages, load) {
  const one = ({ role, content, ...rest }) => h(`div.message${role === "assistant" ? ".own" : ""}`, {}, h("span.tag", {}, role), h("div.said", {}, content === null || content === undefined || content === "" ? null : typeof content === "string" ? block(content) : render(content, load), Object.keys(rest).length ? fields(rest, load, ["metadata"]) : null));
  const earlier = messages.slice(0, messages.length > RECENT + 1 ? -RECENT : 0);
  return h("div.messages", {}, earlier.length ? h("details.raw", {}, h("summary", {}, `${earlier.length} earlier messages`), h("div.messages", {}, earlier.map(one))) : null, messages.slice(earlier.length).map(one));
}

const OUTPUT = { stdout: "output", stderr: "output", traceback: "output", code: "code", source: "code", program: "code", patch: "code" };

/** The fields of an object, each in its form; those named `without` and empty ones are left out. */
export function fields(value, load, without = []) {
  const list = h("div.fields");
  for (const [name, one] of Object.entries(value)) {
    const isEmpty = one === "" || one === null || (typeof one === "object" && Object.keys(one).length === 0);
    if (without.includes(name) || isEmpty) continue;
    const kind = typeof one === "string" && OUTPUT[name];
    const content = name === "execution_result" && one.stdout !== undefined ? execution(one, load)
      : name === "tool_calls" && Array.isArray(one) ? toolCalls(one, load)
      : kind ? block(one, { kind, label: name }) : render(one, load);
    const isBad = ["stderr", "traceback", "error"].includes(name) || (name === "exit_code" && one !== 0);
    list.append(h(`div.field${isBad ? ".bad-field" : ""}`, {}, h("span.name", {}, name), h("div.value", {}, content)));
  }
  if (!list.childElementCount) list.append(h("span.muted", {}, "nothing"));
  return list;
}

const execution = (result, load) => fields(result, load, result.success ? ["success", "return_value", "exception_type"] : ["success", "return_value"]);

function toolCalls(calls, load) {
  return h("div.calls", {}, calls.map((call) => {
    const { name, arguments: sent } = call.function || call; // as chat messages have it, or as steps do
    const [given, named] = Array.isArray(sent) ? sent : typeof sent === "string" ? [[sent], {}] : [[], sent || {}];
    const plain = (one) => { try { return JSON.stringify(one).slice(0, 120); } catch { return "…"; } };
    const text = [...(given || []).map(plain), ...Object.entries(named || {}).map(([key, one]) => `${key}=${plain(one)}`)].join(", ");
    return h("div.call", {}, h("code", {}, highlight(`${name}(${text})`)), call.error ? h("div.bad", {}, call.error)
      : call.value !== undefined && call.value !== null ? h("div.returned", {}, "→ ", render(call.value, load)) : null);
  }));
}

const BESIDE = ["action_mask", "reward_parts", "metrics"]; // of the metadata: shown with the reward and the form
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** An observation, without what its step shows already. */
export const observation = (value, load) => (isObject(value) && !isMark(value)
  ? fields(value, load, ["reward", "done", "truncated", Object.keys(value.metadata || {}).every((one) => BESIDE.includes(one)) ? "metadata" : "", value.exit_code === 0 ? "exit_code" : "", value.code !== undefined && value.stdout !== undefined ? "code" : ""]) : render(value, load));

/** A reward with its parts as bars; parts may be by agent. */
export function reward(total, parts) {
  const named = Object.entries(parts || {}).flatMap(([name, one]) => (isObject(one) ? Object.entries(one).map(([part, inner]) => [`${name} ${part}`, inner]) : [[name, one]])).filter(([, one]) => isNumber(one));
  const most = Math.max(...named.map(([, one]) => Math.abs(one)), 1e-9);
  const shown = total && typeof total === "object" && "$float" in total ? total.$float : total;
  return h("div.reward", {}, h(`span.figure${isNumber(shown) ? (shown > 0 ? ".good" : shown < 0 ? ".bad" : "") : ""}`, {}, `reward ${number(shown)}`),
    named.map(([name, one]) => {
      const bar = h(`span.bar${one < 0 ? ".below" : ""}`);
      bar.style.width = `${Math.max(2, (Math.abs(one) / most) * 60)}px`;
      return h("span.part", {}, `${name} `, bar, ` ${number(one)}`);
    }));
}

/** The events of a step: logs, tools that were asked for, agents that left. */
export function events(requests, load) {
  return (requests || []).filter((one) => !["need_action", "episode_end"].includes(one.type)).map((one) => {
    if (one.type === "log_event") return h(`div.event.level-${["debug", "info", "warning", "error"].includes(one.level) ? one.level : "info"}`, {}, h("span.tag", {}, one.level || "info"), h("span.said", {}, String(one.message).length > 300 ? block(one.message) : one.message), Object.keys(one.data || {}).length ? tree(one.data, load) : null);
    if (one.type === "tool_call_request") return h("div.event", {}, h("span.tag", {}, "tool"), h("code", {}, highlight(`${one.name}(${Object.entries(one.arguments || {}).map(([key, value]) => `${key}=${JSON.stringify(value)}`).join(", ").slice(0, 500)})`)));
    if (one.type === "agent_end") return h("div.event", {}, h("span.tag", {}, "left"), `${one.agent_id}, reward ${number(one.reward)}`);
    return h("div.event", {}, h("span.tag", {}, one.type || "event"), tree(one, load));
  });
}

/** Why an episode is over and who is to blame, as a badge. */
export function ending(reason, blame, without = "running") {
  const kind = blame && blame !== "agent" ? "lost" : blame === "agent" ? "agent" : reason === "terminated" ? "done" : reason || without !== "running" ? "cut" : "running";
  return h(`span.badge.${kind}`, {}, (reason || without).replaceAll("_", " "), blame ? ` · ${blame}` : "");
}
