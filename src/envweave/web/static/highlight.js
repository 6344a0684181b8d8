// Colors for Python, JSON and shell; colors of terminals. All of it ends in text nodes.
import { clean, h } from "./dom.js";

const WORDS = "and|as|assert|async|await|break|case|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|match|nonlocal|not|or|pass|raise|return|try|while|with|yield";
const CONSTANTS = "True|False|None|self|cls|true|false|null";
const NAMES = "abs|all|any|bool|bytes|callable|chr|dict|enumerate|filter|float|format|getattr|hasattr|hash|input|int|isinstance|iter|len|list|map|max|min|next|object|open|ord|pow|print|range|repr|reversed|round|set|setattr|sorted|str|sum|super|tuple|type|zip";
const TOKENS = new RegExp([
  /(?<comment>#[^\n]*)/.source,
  /(?<string>[rbfuRBFU]{0,2}(?:"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))/.source,
  /(?<number>\b(?:0[xob][\da-fA-F_]+|\d[\d_]*(?:\.\d*)?(?:e[+-]?\d+)?j?)\b)/.source,
  /(?<decorator>^[ \t]*@[\w.]+)/.source,
  `\\b(?:(?<word>${WORDS})|(?<constant>${CONSTANTS})|(?<builtin>${NAMES}))\\b`,
  /(?<call>\b[A-Za-z_]\w*(?=\())/.source,
].join("|"), "gm");

/** A list of text and spans for source code. */
export function highlight(source) {
  const text = clean(source);
  if (text.length > 60000) return [text];
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(TOKENS)) {
    if (!match[0]) continue;
    const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
    if (match.index > at) parts.push(text.slice(at, match.index));
    parts.push(h(`span.t-${kind}`, {}, match[0]));
    at = match.index + match[0].length;
  }
  parts.push(text.slice(at));
  return parts;
}

// Sequences that set colors are obeyed, links and titles lose their frame, all others are dropped.
const ESCAPE = /\x1b(?:\[([0-9;]*)m|\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[@-Z\\-_]|[ -/][0-~])/g;

/** A list of text and spans for the output of a program. */
export function terminal(text) {
  const output = text.replace(/\r\n?/g, "\n");
  const parts = [];
  let classes = new Set();
  let at = 0;
  const add = (text) => {
    if (text) parts.push(classes.size ? h("span", { class: [...classes].join(" ") }, text) : clean(text));
  };
  for (const match of output.matchAll(ESCAPE)) {
    add(output.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[1] === undefined) continue;
    const drop = (prefix) => { classes = new Set([...classes].filter((one) => !one.startsWith(prefix))); };
    const codes = match[1].split(";").map(Number);
    for (let i = 0; i < codes.length; i += 1) {
      const one = codes[i];
      if (one === 0) classes = new Set();
      else if (one === 1) classes.add("a-bold");
      else if (one === 3) classes.add("a-italic");
      else if (one === 4) classes.add("a-under");
      else if (one === 22) classes.delete("a-bold");
      else if (one === 39) drop("a-fg");
      else if ((one >= 30 && one <= 37) || (one >= 90 && one <= 97)) { drop("a-fg"); classes.add(`a-fg${one % 10}`); }
      else if (one === 38 || one === 48) i += codes[i + 1] === 5 ? 2 : 4;
    }
  }
  add(output.slice(at));
  return parts;
}
