// Runs a page's scripts, with the plot library, on a document and a canvas that only record calls.
// usage: draw_page.js PAGE [WORKLOAD]; prints JSON: the texts of the elements, the table's rows, the plots.
"use strict";
const fs = require("fs");
const vm = require("vm");

const page = fs.readFileSync(process.argv[2], "utf8");

// Element with text and children that cannot parse markup.
class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], style: {}, listeners: {}, textContent: "", value: "", width: 480, height: 300 });
    Object.defineProperty(this, "innerHTML", { set() { throw new Error("markup is written"); } });
  }
  appendChild(child) {
    child.parentNode = this;
    this.children.push(child);
  }
  addEventListener(event, listener) {
    this.listeners[event] = listener;
  }
  getContext() {
    const record = (name) => (...values) => {
      if (values.some((value) => typeof value === "number" && !Number.isFinite(value))) throw new Error(`${name}(${values})`);
      return name === "measureText" ? { width: 6 * String(values[0]).length } : undefined;
    };
    return new Proxy({ canvas: this }, { get: (stored, name) => (name in stored ? stored[name] : record(name)) });
  }
  all(tag) {
    return this.children.flatMap((child) => [...(child.tag === tag ? [child] : []), ...child.all(tag)]);
  }
}

const byId = {};
for (const [, tag, id] of page.matchAll(/<(\w+)[^>]*? id="(\w+)"/g)) {
  byId[id] = new Element(tag);
  if (tag === "canvas") new Element("div").appendChild(byId[id]);
}
const scripts = Array.from(page.matchAll(/<script(.*?)>([^]*?)<\/script>/g), ([, attributes, text]) => ({ attributes, text }));
for (const id of ["document", "columns"]) byId[id].textContent = scripts.find(({ attributes }) => attributes.includes(`id="${id}"`))?.text;
Object.assign(globalThis, {  // no window, so that the library uses nothing else of a browser
  document: { createElement: (tag) => new Element(tag), getElementById: (id) => byId[id] },
  getComputedStyle: () => ({ color: "rgb(1, 2, 3)" }),
  matchMedia: () => new Element("media"),
});
for (const { attributes, text } of scripts) if (attributes === "") vm.runInThisContext(text);
if (process.argv[3]) {
  byId.workload.value = process.argv[3];
  byId.workload.listeners.change();
}

const texts = Object.fromEntries(Object.entries(byId).map(([id, element]) => [id, element.children.map((child) => child.textContent)]));
const rows = byId.runs.all("tr").map((row) => row.children.map((cell) => cell.textContent));
const plots = Object.fromEntries(Object.values(globalThis.Chart.instances).map(({ canvas, data }) => [
  Object.keys(byId).find((id) => byId[id] === canvas), { labels: data.labels, datasets: data.datasets },
]));
process.stdout.write(JSON.stringify({ texts, rows, plots }));
