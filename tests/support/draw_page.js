// Runs the scripts of pages, which it reads from standard input with a NUL behind each, with the plot library that lies in them, on
// a document and a canvas that only record. Prints a JSON list: for each page its plots, with what they were given and where it was
// drawn. An error of a script, a number that is none, or a colour that the style sheet lacks ends it with exit code 1.
"use strict";
const vm = require("vm");

const check = (holds, message) => {
  if (!holds) throw new Error(message);
};

class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], attributes: {}, style: {}, dataset: {}, listeners: {}, textContent: "" });
  }
  append(...children) {
    for (const child of children) {
      this.children.push(child);
      // As wide and high as the page makes it, whatever resolution the library asks for.
      if (child.tag === "canvas") {
        const height = parseInt(this.style.height, 10);
        Object.defineProperties(child, { height: { get: () => height, set() {} }, width: { get: () => 480, set() {} } });
      }
    }
  }
  replaceChildren(...children) {
    this.children = children;
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  addEventListener(event, listener) {
    this.listeners[event] = listener;
  }
  getContext() {
    this.texts ??= [];
    const record = (name) => (...values) => {
      for (const value of values) check(typeof value !== "number" || Number.isFinite(value), `${name}(${values})`);
      if (name === "fillText") this.texts.push({ text: values[0], x: values[1], y: values[2] });
      return name === "measureText" ? { width: 6 * String(values[0]).length } : undefined;
    };
    return new Proxy({ canvas: this }, { get: (stored, name) => (name in stored ? stored[name] : record(name)) });
  }
}

// A context of its own would make all of this ten times slower.
const world = globalThis;
const scripts = new Map();
const run = (source) => {
  if (!scripts.has(source)) scripts.set(source, new vm.Script(source));
  scripts.get(source).runInThisContext();
};

const decode = (html) => html.replace(/&quot;/g, '"').replace(/&gt;/g, ">").replace(/&lt;/g, "<").replace(/&amp;/g, "&");
let library = "";

const draw = (page, index) => {
  const places = new Map([["theme", new Element("button")], ["download", new Element("button")]]);
  for (const [, id, json] of page.matchAll(/<script type="application\/json" id="(\w+)">(.*)<\/script>/g)) {
    places.set(id, Object.assign(new Element("script"), { textContent: json }));
  }
  for (const [, id, attributes] of page.matchAll(/<div class="figures" id="(plot-[\w-]+)"(.*?)>/g)) {
    const place = Object.assign(new Element("div"), { id });
    for (const [, name, value] of attributes.matchAll(/data-(\w+)="(.*?)"/g)) place.dataset[name] = decode(value);
    places.set(id, place);
  }
  const colors = new Set(Array.from(page.matchAll(/^ *--([\w-]+):/gm), ([, name]) => name));
  Object.assign(world, {
    document: {
      documentElement: new Element("html"), body: new Element("body"),
      createElement: (tag) => new Element(tag), getElementById: (id) => places.get(id) ?? null, querySelectorAll: () => [],
    },
    getComputedStyle: (element) => {
      const name = element.style.color?.match(/^var\(--(.*)\)$/)?.[1];
      check(name === undefined || colors.has(name), `no colour --${name} in the style sheet`);
      return { color: "rgb(1, 2, 3)", fontFamily: "sans-serif" };
    },
    matchMedia: () => new Element("media"), addEventListener: () => {},
  });
  const sources = Array.from(page.matchAll(/<script>\n([^]*?)\n<\/script>/g), ([, source]) => source);
  check(sources.length === 2, `${sources.length} scripts, expected the library and the page's`);
  if (library !== sources[0]) run((library = sources[0]));
  run(sources[1]);
  if (index === 0) {
    const drawn = Object.keys(world.Chart.instances).length;
    places.get("theme").listeners.click();
    check(Object.keys(world.Chart.instances).length === drawn, "another theme does not draw the same plots");
  }
  const charts = new Map(Object.values(world.Chart.instances).map((chart) => [chart.canvas, chart]));

  const plots = [];
  for (const [id, place] of places) {
    for (const { children: [caption, box] } of place.children.filter(({ tag }) => tag === "figure")) {
      const chart = charts.get(box.children[0]);
      const axis = ({ min, max, type, ticks, options }) => ({
        min, max, type, title: options.title.text, ticks: ticks.map(({ label, value }) => ({ label, value, at: chart.scales.y.ticks === ticks ? chart.scales.y.getPixelForValue(value) : chart.scales.x.getPixelForValue(value) })),
      });
      plots.push({
        place: id, title: caption.children[0], note: caption.children[1].textContent, description: box.children[0].attributes["aria-label"],
        x: axis(chart.scales.x), y: axis(chart.scales.y), area: { ...chart.chartArea }, height: chart.height, texts: box.children[0].texts,
        band: chart.options.plugins.additions.band, rowNotes: chart.options.plugins.additions.rowNotes,
        datasets: chart.data.datasets.map(({ label, data, borderDash, showLine, whiskers }, i) => ({
          label, data, borderDash, showLine, whiskers,
          drawn: chart.getDatasetMeta(i).data.map(({ x, y, base }) => ({ x, y, base })),
        })),
      });
    }
  }
  Object.values(world.Chart.instances).forEach((chart) => chart.destroy());
  return plots;
};

let input = "";
process.stdin.setEncoding("utf8").on("data", (text) => { input += text; }).on("end", () => {
  const plots = input.split("\0").slice(0, -1).map((page, i) => {
    try {
      return draw(page, i);
    } catch (error) {
      process.stderr.write(`page ${i}: ${error.stack}\n`);
      process.exit(1);
    }
  });
  process.stdout.write(JSON.stringify(plots));
});
