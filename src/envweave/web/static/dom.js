// Elements, text of unknown origin, numbers, keyboard shortcuts, requests to the server.

// Characters that draw nothing or reorder what is around them.
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const code = (c) => `⟨${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

/** Text with every invisible character spelled out. All text of the pages goes through here. */
export const clean = (text) => String(text).replace(/\r\n/g, "\n").replace(INVISIBLE, code);

/** h("div.card.wide", {id: "x", onclick: f}, "text", node, [more], null): an element. */
export function h(name, attributes, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (["value", "checked", "disabled", "tabIndex", "selected", "open", "hidden", "indeterminate"].includes(key)) node[key] = value;
    else node.setAttribute(key, value === true ? "" : clean(value));
  }
  fill(node, children);
  return node;
}

export function fill(node, ...children) {
  const made = children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false);
  node.replaceChildren(...made.map((one) => (one instanceof Node ? one : document.createTextNode(clean(one)))));
  return node;
}

export const byId = (id) => document.getElementById(id);

/** A number for people: 0.1234, 12.3, 1,234,567; a flag for agents by name. */
export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return typeof value === "object" ? Object.entries(value).map(([k, v]) => `${k} ${number(v)}`).join(", ") : String(value);
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  if (value === 0) return "0"; // also of a negative zero
  const text = Number.isInteger(value) ? value.toLocaleString("en-US")
    : Math.abs(value) >= 1000 ? value.toLocaleString("en-US", { maximumFractionDigits: 1 }) : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}

export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const unit = Math.min(3, Math.floor(Math.log10(bytes) / 3));
  return `${Number((bytes / 1000 ** unit).toPrecision(3))} ${["B", "kB", "MB", "GB"][unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

export const when = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString("sv-SE").slice(0, 16) : "–");
export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

export class RequestFailed extends Error {
  constructor(fault, status) {
    super(fault.message);
    Object.assign(this, { fault, status });
  }
}

/** Call the server and return what it answers; throws a RequestFailed with its fault.
 *
 * A GET that gets no answer is sent again, as a browser drops calls when a network comes or goes.
 */
export async function request(path, { method = "GET", body, headers, keepalive, attempts = method === "GET" ? 3 : 1 } = {}) {
  let response;
  let text;
  try {
    response = await fetch(path, {
      method, keepalive, credentials: "same-origin",
      headers: { ...(body && { "Content-Type": "application/json" }), ...headers },
      body: body && JSON.stringify(body),
    });
    text = await response.text();
  } catch {
    if (attempts > 1) {
      await new Promise((resolve) => { setTimeout(resolve, 200); });
      return request(path, { method, body, headers, keepalive, attempts: attempts - 1 });
    }
    throw new RequestFailed({ code: "unreachable", message: "The server cannot be reached. It may have been stopped." }, 0);
  }
  let reply = null;
  try { reply = text ? JSON.parse(text) : null; } catch { /* not JSON: shown by its status */ }
  if (response.ok) return reply;
  if (response.status === 401) location.reload();
  throw new RequestFailed(reply?.error || { code: String(response.status), message: response.statusText || text.slice(0, 200) }, response.status);
}

const shortcuts = [];

/** Announce a key of the page: shown under `?`, and not called while someone types. */
export function shortcut(key, about, action, { always = false } = {}) {
  shortcuts.push({ key, about, action, always });
}

export function startShortcuts() {
  const rows = h("dl.keys");
  const dialog = h("dialog", { id: "shortcuts", "aria-label": "Keyboard shortcuts" }, h("h2", {}, "Keyboard shortcuts"), rows,
    h("form", { method: "dialog" }, h("button", {}, "Close")));
  document.body.append(dialog);
  const help = () => {
    fill(rows, shortcuts.map(({ key, about }) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, about)]));
    dialog.showModal();
  };
  shortcut("?", "This list", help);
  shortcut("t", "Light or dark", () => window.toggleTheme());
  byId("help").addEventListener("click", help);
  byId("theme").addEventListener("click", () => window.toggleTheme());
  document.addEventListener("keydown", (event) => {
    if (dialog.open || event.altKey || event.metaKey) return;
    const name = (event.ctrlKey ? "Ctrl+" : "") + event.key;
    const typing = event.target.closest?.("input:not([type=checkbox]):not([type=radio]), textarea, select");
    const found = shortcuts.find(({ key, always }) => key === name && (always || !typing));
    if (!found || (typing && event.key === "Escape")) return;
    if (found.action(event) !== false) event.preventDefault();
  });
}
