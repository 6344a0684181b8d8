// A form for a JSON Schema. Every field is {node, read(): the value, or undefined to leave it out}.
import { h, number } from "./dom.js";

let count = 0;
const MANY = 24; // as many choices are buttons; more are a list

export class FormError extends Error {}

export function field(schema, { root = schema, required = true, mask = null, start, name = "", depth = 0 } = {}) {
  const resolved = resolve(schema, root);
  if (depth > 8) return json({ required, start, name }); // a type that contains itself
  start = start ?? resolved.default;
  const context = { root, required, mask, start, name, depth: depth + 1 };
  const variants = (resolved.anyOf || resolved.oneOf || []).map((one) => resolve(one, root));
  if (variants.length) return union(resolved, variants, context);
  const type = [resolved.type].flat().find((one) => one !== "null");
  if (resolved.enum || "const" in resolved) return choice(resolved.enum || [resolved.const], context);
  if (type === "boolean") return choice([false, true], { ...context, start: start ?? false });
  if (type === "integer" && bounded(resolved) && resolved.maximum - resolved.minimum < MANY) {
    return choice(range(resolved.minimum, resolved.maximum), context);
  }
  if (type === "integer" || type === "number") return numeric(resolved, type, context);
  if (type === "string") return text(resolved, context);
  if (type === "array") return list(resolved, context);
  if (type === "object" && resolved.properties && Object.keys(resolved.properties).length) return object(resolved, context);
  return json(context);
}

export function resolve(schema, root) {
  let found = schema ?? {};
  for (let depth = 0; found.$ref && depth < 20; depth += 1) {
    const { $ref, ...rest } = found;
    const target = $ref.slice(2).split("/").reduce((node, key) => node?.[key.replaceAll("~1", "/").replaceAll("~0", "~")], root);
    found = { ...target, ...rest };
  }
  return found === true ? {} : found;
}

const bounded = (schema) => Number.isInteger(schema.minimum) && Number.isInteger(schema.maximum);
const range = (low, high) => Array.from({ length: high - low + 1 }, (_, i) => low + i);
const isNull = (schema) => schema.type === "null" || (schema.enum?.length === 1 && schema.enum[0] === null) || schema.const === null;
const labelled = (name, node, about) => h("div.row", {}, h("div.name", {}, name, about ? h("span.muted.small", {}, ` ${about}`) : null), node);

/** Buttons, of which one is chosen; what the mask forbids is shown and cannot be. */
function choice(values, { mask, start, required, name }) {
  const allowed = (i) => !Array.isArray(mask) || mask.length !== values.length || Boolean(mask[i]);
  if (values.length > MANY) {
    const node = h("select", { "aria-label": name }, values.map((one, i) => h("option", { value: String(i), disabled: !allowed(i), selected: one === start }, String(one))));
    return { node, read: () => values[Number(node.value)] };
  }
  const group = `choice-${(count += 1)}`;
  const first = values.indexOf(start) >= 0 ? values.indexOf(start) : required ? values.findIndex((_, i) => allowed(i)) : -1;
  const inputs = values.map((one, i) => h("input", { type: "radio", name: group, checked: i === first && allowed(i), disabled: !allowed(i), "aria-label": `${name} ${one}` }));
  const node = h("div.choices", { role: "radiogroup", "aria-label": name }, values.map((one, i) =>
    h("label", { title: allowed(i) ? null : "not legal now" }, inputs[i], h("span", {}, typeof one === "number" ? number(one) : String(one)))));
  return { node, read: () => { const i = inputs.findIndex((one) => one.checked); return i < 0 ? undefined : values[i]; } };
}

function numeric(schema, type, { start, required, name }) {
  const low = schema.minimum ?? (schema.exclusiveMinimum !== undefined && type === "integer" ? schema.exclusiveMinimum + 1 : undefined);
  const node = h("input", { type: "number", step: type === "integer" ? 1 : "any", min: low, max: schema.maximum, "aria-label": name, value: start ?? (required ? Math.min(Math.max(0, low ?? 0), schema.maximum ?? 0 ) : ""), required });
  if (typeof low !== "number" || typeof schema.maximum !== "number" || schema.maximum - low > 1e6) return { node, read: () => readNumber(node, required, name) };
  const slider = h("input", { type: "range", min: low, max: schema.maximum, step: type === "integer" ? 1 : (schema.maximum - low) / 100, value: node.value, tabIndex: -1, "aria-label": `${name}, as a slider` });
  slider.addEventListener("input", () => { node.value = String(Number(Number(slider.value).toPrecision(4))); });
  node.addEventListener("input", () => { slider.value = node.value; });
  return { node: h("div.number", {}, node, slider, h("span.muted.small", {}, `${number(low)} to ${number(schema.maximum)}`)), read: () => readNumber(node, required, name) };
}

function readNumber(node, required, name) {
  if (node.value === "") {
    if (required) throw new FormError(`${name || "The value"} is missing.`);
    return undefined;
  }
  return Number(node.value);
}

function text(schema, { start, required, name }) {
  const node = h("textarea", { rows: 2, value: start ?? "", "aria-label": name, maxlength: schema.maxLength, spellcheck: "false" });
  return { node, read: () => (node.value || required ? node.value : undefined) };
}

function list(schema, context) {
  const { root, name, start, depth } = context;
  const from = [].concat(Array.isArray(start) ? start : []);
  if (schema.prefixItems) {
    const parts = schema.prefixItems.map((one, i) => field(one, { root, depth, start: from[i], name: `${name}[${i}]` }));
    return { node: h("div.items", {}, parts.map((one) => one.node)), read: () => parts.map((one) => one.read()) };
  }
  const least = schema.minItems || 0;
  if (least > 64 || !schema.items) return json({ ...context, example: least > 64 ? `${least} items` : "[]" });
  const rows = [];
  const items = h("div.items");
  const add = (value) => {
    const one = field(schema.items, { root, depth, start: value, name: `${name}[${rows.length}]` });
    const row = { read: one.read, node: h("div.item", {}, one.node) };
    if (least !== schema.maxItems) row.node.append(h("button.quiet.small", { type: "button", "aria-label": `Remove ${name}`, onclick: () => { if (rows.length > least) { rows.splice(rows.indexOf(row), 1); row.node.remove(); } } }, "×"));
    rows.push(row);
    items.append(row.node);
  };
  for (let i = 0; i < Math.max(least, from.length); i += 1) add(from[i]);
  const more = h("button.quiet.small", { type: "button", onclick: () => { if (rows.length < (schema.maxItems ?? Infinity)) add(); } }, "Add");
  return { node: h("div", {}, items, least === schema.maxItems ? null : more), read: () => rows.map((one) => one.read()) };
}

function object(schema, { root, start, mask, required, depth }) {
  const needed = schema.required || [];
  const names = Object.keys(schema.properties).filter((one) => one !== "metadata" || needed.includes(one));
  const parts = names.map((one) => ({ name: one, ...field(schema.properties[one], {
    root, depth, required: needed.includes(one), start: start?.[one], name: one,
    // A mask of the whole action is that of its only field.
    mask: mask && !Array.isArray(mask) ? mask[one] : names.length === 1 ? mask : null,
  }) }));
  const read = () => {
    const entries = parts.map((one) => [one.name, one.read()]).filter(([, value]) => value !== undefined);
    return entries.length || required ? Object.fromEntries(entries) : undefined;
  };
  return { node: h("div.object", {}, parts.map((one) => labelled(one.name, one.node, needed.includes(one.name) ? null : "optional"))), read };
}

function union(schema, variants, { root, start, required, mask, name, depth }) {
  const real = variants.filter((one) => !isNull(one));
  if (real.length === 1) return field({ ...real[0], default: start ?? undefined }, { root, depth, start, mask, name, required: required && real.length === variants.length });
  const titles = real.map((one, i) => one.title || one.const || one.type || `variant ${i + 1}`);
  const parts = real.map((one) => field(one, { root, depth, mask, name }));
  const place = h("div.variant");
  const select = h("select", { "aria-label": `Kind of ${name || "action"}` }, titles.map((one, i) => h("option", { value: String(i) }, one)));
  const show = () => place.replaceChildren(parts[Number(select.value)].node);
  select.addEventListener("change", show);
  show();
  return { node: h("div", {}, select, place), read: () => parts[Number(select.value)].read() };
}

function json({ start, required, name, example = "JSON" }) {
  const isEmpty = start === undefined || start === null || (typeof start === "object" && !Object.keys(start).length);
  const node = h("textarea", { rows: 2, placeholder: example, "aria-label": name, value: isEmpty ? "" : JSON.stringify(start), spellcheck: "false" });
  return { node, read: () => {
    if (!node.value.trim()) {
      if (required) throw new FormError(`${name || "The value"} is missing: write it as JSON.`);
      return undefined;
    }
    try { return JSON.parse(node.value); } catch (error) { throw new FormError(`${name || "The value"} is not JSON: ${error.message}`); }
  } };
}
