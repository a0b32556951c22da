#!/usr/bin/env python3
"""Checks the page of reports in a browser: it shows the document's content, in light, dark and print, and needs no other file.

usage: page_test.py PAGE_MAKER CHROMIUM [unittest options]
"""

import gzip
import html
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

REPORT = pathlib.Path(__file__).resolve().parents[2] / "results/amd-epyc-2-cores.json.gz"
PAGE_MAKER = CHROMIUM = ""
HOSTILE = 'x</script><script>alert(1)</script><img src=x onerror="alert(2)"><!--<script>\x1b[2J\n\'&amp;'
# The first script and the last of the copy that the browser opens: what goes wrong, and what the page shows.
WATCH = """<head><script>
const wrong = [];
for (const name of ["error", "unhandledrejection", "securitypolicyviolation"]) addEventListener(name, (one) => wrong.push(name, one.message), true);
console.error = console.warn = window.alert = (...all) => wrong.push(all.join(" "));
</script>"""
LOOK = """<script>{
const list = (query, get, root = document) => Array.from(root.querySelectorAll(query), get);
const text = (one) => one.innerText;
const look = () => Object.fromEntries(list("canvas", (canvas) => {
  if (canvas.hidden) return [canvas.id, text(canvas.parentNode)];
  const { data: { labels, datasets }, scales: { x, y }, ctx, options } = Chart.getChart(canvas);
  const pixels = ctx.getImageData(0, 0, canvas.width, canvas.height).data.filter((value, i) => i % 4 === 3 && value > 0).length;
  return [canvas.id, { labels, datasets, pixels, top: y.max, ticks: x.ticks.map(({ label }) => label), color: options.color,
                       legend: list(".legend span", text, canvas.parentNode.parentNode) }];
}));
const plots = {}, select = byId("workload"), first = select.value;
for (select.value of list("option", text)) {
  select.dispatchEvent(new Event("change"));
  plots[select.value] = look();
}
const colors = ["now", "beforeprint", "afterprint"].map((event) => dispatchEvent(new Event(event)) && Object.values(look())[0].color);
const edges = () => list("#runs tr:first-child th", (cell) => cell.getBoundingClientRect().left).slice(0, 2), before = edges();
document.querySelector(".scroll").scrollLeft = 50;
add(document.body, "pre", JSON.stringify({
  first, plots, colors, wrong, loaded: performance.getEntriesByType("resource").length, moved: edges().map((edge, i) => before[i] - edge),
  papers: list("body, #runs th", (one) => getComputedStyle(one).backgroundColor).slice(0, 2), document: byId("document").textContent,
  rows: list("#runs tr", (row) => list("th, td", text, row)), sentences: list("#sentences li", text), notes: text(byId("notes")),
  facts: list("#facts dt", (name) => [text(name), text(name.nextSibling)]), overflow: list("html", (one) => one.scrollWidth - one.clientWidth)[0],
  markup: [...new Set(list("*", (one) => [one.tagName, ...one.getAttributeNames()]).flat())].join(" "), scripts: list("script", String).length,
})).id = "said";
}</script>"""


def default_report():
    """A report that is kept, of two models: with steps, a run whose numbers are known, and a run that failed."""
    document = json.loads(gzip.decompress(REPORT.read_bytes()))
    scaling = document["ddp_scaling"]
    runs = scaling["runs"] = [run for run in scaling["runs"] if run["model"] in "SM"]
    known = next(run for run in runs if run["world_size"] == 2 and run["pieces_ms"]["forward"])
    known |= {"step_ms": {"median": 5.2288, "p10": 4.706, "p90": 7.3203, "n": 30}, "samples_per_second": 24480.0, "speedup": 1.53,
              "speedup_ci95": [1.4994, 2.9606], "efficiency": 0.765, "exposed_comm_ms": 1.0458, "exposed_comm_ci95_ms": [0.5229, 1.5686],
              "quotient": None, "limit_ms": 2.6144, "peak_rss_mib": 150.0, "startup_ms": 600.0, "lines_of_code": 60}
    for run in runs:
        run["repetitions"] = [one | {"samples_ms": [run["step_ms"]["median"] * f for f in (0.9, 1, 1, 1.1, 1.5)]} for one in run["repetitions"]]
    nothing = dict.fromkeys(("samples_per_second", "speedup", "speedup_ci95", "efficiency"))
    runs.append(known | nothing | {"launcher": "mpirun", "error": "rank 1: exit code 75: " + "why " * 40 + "?"})
    scaling["not_run"] = [{"what": "srun", "reason": "not in a Slurm allocation"}]
    return document, known


def with_a_speed(document, model):
    return [run for run in document["ddp_scaling"]["runs"] if run["model"] == model and not run["error"] and run["kind"] != "control"]


def browse(page, *options):
    """@return the standard output of the browser that opened a page of this text"""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "page.html").write_text(page)
        command = ["timeout", "60", CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/user", *options]
        return subprocess.run([*command, f"file://{folder}/page.html"], capture_output=True, text=True, check=True, cwd=folder).stdout


def show(document, *options, media="print", library=None):
    """@param library instead of Chart.js @return what the page shows in a browser, where the rules for paper hold in that medium, and the page itself"""
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([PAGE_MAKER, file.name], input=json.dumps(document), text=True, check=True)
        page = pathlib.Path(file.name).read_text()
    if library:
        page = re.sub(r"/\*!\s+\* Chart\.js.*?(?=</script>)", library, page, count=1, flags=re.DOTALL)
    copy = LOOK.join(page.replace("<head>", WATCH, 1).replace("@media print", f"@media {media}").rsplit("</body>", 1))
    said = json.loads(html.unescape(re.search(r'<pre id="said">(.*?)</pre>', browse(copy, "--dump-dom", *options), re.DOTALL)[1]))
    assert said["wrong"] == [] and said["loaded"] == 0, (said["wrong"], said["loaded"])
    return said, page


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.document, cls.known = default_report()
        cls.drawn, cls.page = show(cls.document)

    def test_without_chart_js_only_the_plots_are_missing(self):
        library = re.search(r"class Chart .*}", (REPORT.parents[1] / "bench/CMakeLists.txt").read_text())[0]
        shown, _ = show(self.document, library=library)
        self.assertEqual({text for plots in shown["plots"].values() for text in plots.values()},
                         {"bench was built without Chart.js, which draws the plots."})
        self.assertEqual(shown["rows"], self.drawn["rows"])

    def test_the_table_has_the_runs_of_the_document(self):
        head, *rows = self.drawn["rows"]
        self.assertEqual(head[:8], ["program", "kind", "launcher", "backend", "ranks", "step ms", "p10–p90", "samples/s"])
        self.assertEqual([row[0] for row in rows if len(row) == 1], ["M, weak scaling, cpu", "S, weak scaling, cpu"])
        runs = sorted(self.document["ddp_scaling"]["runs"], key=lambda run: (run["model"], run["kind"] == "control"))
        for run, (_, kind, _, _, _, step, *_) in zip(runs, [row for row in rows if len(row) > 1], strict=True):
            self.assertEqual(kind, "equal command" if run["kind"] == "control" else run["kind"])
            if run["error"]:
                self.assertEqual(step, run["error"])
            else:
                self.assertAlmostEqual(float(step), run["step_ms"]["median"], delta=0.005 * run["step_ms"]["median"])
        self.assertIn(["03_ddp_spawn", "stage", "spawn", "shm", "2", "5.23", "4.71–7.32", "24,480", "1.53 (1.5–2.96)", "0.77",
                       "1.05 (0.523–1.57)", "2.61", "150", "0.6", "60"], self.drawn["rows"])
        self.assertEqual(self.drawn["sentences"], [one["text"] for one in self.document["ddp_scaling"]["sentences"]])

    def test_the_four_plots_show_the_runs_of_the_workload_that_have_a_speed_and_it_opens_on_the_heaviest(self):
        self.assertEqual([self.drawn["first"], *self.drawn["plots"]], [f"{model}, weak scaling, cpu" for model in "MMS"])
        for model in "SM":
            runs = with_a_speed(self.document, model)
            plots = self.drawn["plots"][f"{model}, weak scaling, cpu"]
            self.assertEqual([one for one in plots if plots[one]["pixels"] > 5000], ["speeds", "speedups", "pieces", "steps"])
            self.assertEqual(plots["speeds"]["datasets"][0]["data"], [run["samples_per_second"] for run in runs])
            self.assertEqual(len({str(label) for label in plots["speeds"]["labels"]}), len(runs))
            *measured, ideal = plots["speedups"]["datasets"]
            self.assertCountEqual([point["y"] for line in measured for point in line["data"]], [run["speedup"] for run in runs])
            self.assertCountEqual([ci for line in measured for ci in line["intervals"]], [run["speedup_ci95"] for run in runs])
            self.assertGreaterEqual(plots["speedups"]["top"], 1.05 * max(ci[1] for line in measured for ci in line["intervals"] if ci))
            self.assertEqual([ideal["data"], plots["speedups"]["ticks"]], [[{"x": 1, "y": 1}, {"x": 2, "y": 2}], ["1", "2"]])
            self.assertEqual([line["data"][49]["x"] for line in plots["steps"]["datasets"]], [run["step_ms"]["median"] for run in runs])
            dashes = [[3, 3] if run["world_size"] * run["threads"] == 1 else [] for run in runs]
            self.assertEqual([line["borderDash"] for line in plots["steps"]["datasets"]], dashes)
            runs = [run for run in runs if run["pieces_ms"]["forward"]]
            step = [round(sum(values), 9) for values in zip(*(one["data"] for one in plots["pieces"]["datasets"] if one["stack"] == "step"))]
            self.assertEqual(step, [round(run["step_ms"]["median"], 9) for run in runs])
            pieces = {one["label"]: one["data"] for one in plots["pieces"]["datasets"] if one["stack"] == "pieces"}
            self.assertEqual(pieces, {name.replace("_", "-"): [run["pieces_ms"][name] for run in runs] for name in runs[0]["pieces_ms"]})
            self.assertEqual(plots["pieces"]["datasets"][-1]["data"], [max(run["exposed_comm_ms"] or 0, 0) for run in runs])
            self.assertEqual(plots["pieces"]["datasets"][0]["limits"], [run["limit_ms"] for run in runs])
            colors = {line["label"]: line["borderColor"] for line in measured}
            self.assertEqual(list(colors), plots["steps"]["legend"])
            self.assertEqual(len({*colors.values(), *(one["backgroundColor"] for one in plots["pieces"]["datasets"])}), len(colors) + 7)

    def test_a_narrow_dark_window_scrolls_the_table_beside_its_first_column_and_all_fits_on_light_paper(self):
        dark = ["--blink-settings=preferredColorScheme=0", "--window-size=400,800"]
        drawn, _ = show(self.document, *dark)
        self.assertEqual([drawn["moved"], drawn["overflow"], *drawn["papers"]], [[0, 50], 0, "rgb(21, 24, 28)", "rgb(21, 24, 28)"])
        self.assertEqual(drawn["colors"], ["rgb(154, 165, 177)", "rgb(91, 101, 112)", "rgb(154, 165, 177)"])
        with tempfile.NamedTemporaryFile("rb") as pdf:
            browse(self.page, *dark, f"--print-to-pdf={pdf.name}")
            self.assertRegex(pdf.read(), rb"(?s)^%PDF.*/MediaBox \[0 0 792 612\]")
        self.assertEqual(show(self.document, "--window-size=980,800", media="all")[0]["overflow"], 0)  # the width of letter paper, and a scroll bar

    def test_it_needs_nothing_from_outside_and_hostile_text_stays_text(self):
        document, _ = default_report()
        scaling = document["ddp_scaling"]
        scaling["machine"].update({"host": HOSTILE, HOSTILE: [HOSTILE]})
        scaling["sentences"][0]["text"] = scaling["not_run"][0]["what"] = HOSTILE
        scaling["runs"][2].update(dict.fromkeys(("model", "stage", "variant", "launcher", "backend", "device", "command"), HOSTILE))
        scaling["runs"][-1]["error"] = HOSTILE
        drawn, page = show(document)
        self.assertEqual([drawn["markup"], drawn["scripts"]], [self.drawn["markup"], self.drawn["scripts"]])
        self.assertEqual([json.loads(drawn["document"]), drawn["sentences"][0]], [document, HOSTILE])
        self.assertNotRegex(drawn["markup"], r"\b(src|href|srcset|on\w+)\b")
        code = re.sub(r"/\*!.*?\*/|<script type.*?</script>", "", page, flags=re.DOTALL)
        self.assertEqual(re.findall(r"https?://|fetch\(|XMLHttpRequest|\bimport\(|url\(|@import", code), [])
        self.assertRegex(page, r"(?s)default-src 'none'.*Copyright \(c\) 2014-2022 Chart\.js Contributors.*Permission is hereby granted")

    def test_a_report_without_samples_pieces_or_runs_gives_a_smaller_page(self):
        bare, _ = default_report()
        for run in bare["ddp_scaling"]["runs"]:
            run.update(speedup_ci95=None, limit_ms=None, exposed_comm_ms=None, exposed_comm_ci95_ms=None, lines_of_code=None,
                       pieces_ms=dict.fromkeys(run["pieces_ms"]), repetitions=[one | {"samples_ms": []} for one in run["repetitions"]])
        plots = show(bare)[0]["plots"]["S, weak scaling, cpu"]
        steps = [len(line["data"]) for line in plots["steps"]["datasets"]]
        self.assertEqual([plots["pieces"], steps], ["No pieces were measured.", [3] * len(with_a_speed(bare, "S"))])
        bare["ddp_scaling"].update(runs=[], sentences=[], not_run=[], machine={}, software={}, partial=True)
        self.assertEqual(len(show(bare)[0]["rows"]), 1)

    def test_programs_of_users_come_first_and_a_cell_says_how_far_its_number_goes(self):
        document, known = default_report()
        scaling = document["ddp_scaling"]
        scaling["machine"].update(other_cores_before=0.51239, other_cores_during=None)
        scaling["sentences"][0]["text"] = "one\ntwo"
        other = known | {"kind": "program", "stage": "train.py", "model": "P1", "parameters": None, "command": "python train.py",
                         "parity": {"ok": None}, "pieces_ms": dict.fromkeys(known["pieces_ms"]), "quotient": 1.8, "timed": "step"}
        once = {"timed": "run", "step_ms": {"median": 9000, "p10": None, "p90": None, "n": None}, "samples_per_second": None, "speedup": None,
                "speedup_ci95": None, "quotient": None, "repetitions": known["repetitions"][:1], "world_size": 1}
        scaling["runs"] += [other, other | once]
        known.update(quotient=1.6, elsewhere=[{"report": f"{n}.json", "machine": "vm", "speedup": n, "ci95": None} for n in (2, 1.25)])
        drawn, _ = show(document)
        head, title, *rows = drawn["rows"]
        self.assertEqual([*title, drawn["first"], drawn["sentences"][0], head[9]], ["P1, weak scaling, cpu"] * 2 + ["one\ntwo", "elsewhere"])
        self.assertEqual(rows[0][1:10], ["program", "spawn", "shm", "2", "5.23", "4.71–7.32", "24,480", "1.53~ (1.5–2.96)", "–"])
        self.assertEqual(rows[1][4:10], ["1", "9,000 a run", "–", "–", "1 launch", "–"])
        self.assertEqual([row[8:10] for row in rows if row[5:6] == ["5.23"]][1], ["1.53 (1.5–2.96)", "1.25–2 (2)"])
        self.assertRegex(drawn["notes"], r"~ the speed-up comes from pairs .*elsewhere: .* 2\.json \(vm\), 1\.25\.json \(vm\)\.$")
        self.assertEqual([fact for fact in drawn["facts"] if fact[0][:5] in ("other", "train")],
                         [["other_cores_before", "0.512"], ["other_cores_during", "–"], ["train.py", "python train.py"]])
        plots = drawn["plots"][drawn["first"]]
        self.assertEqual([len(plot["datasets"][0]["data"]) if type(plot) is dict else plot for plot in plots.values()],
                         [1, 1, "No pieces were measured.", 99])
        self.assertEqual(plots["speedups"]["datasets"][-1]["data"], [{"x": 2, "y": 1}, {"x": 2, "y": 1}])  # from the first run's cores on


if __name__ == "__main__":
    PAGE_MAKER, CHROMIUM = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
