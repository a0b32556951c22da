#!/usr/bin/env python3
"""Checks the page of reports: it shows the document's content, and needs no other file.

usage: page_test.py PAGE_MAKER NODE [unittest options]
"""

import gzip
import html.parser
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRAW, REPORT = ROOT / "tests/bench/draw_page.js", ROOT / "results/S-M-L-peers.json.gz"
PAGE_MAKER = NODE = ""
HOSTILE = 'x</script><script>alert(1)</script><img src=x onerror="alert(2)"><!--<script>\x1b[2J\n\'&amp;'


def default_report():
    """A report that is kept, of two models: with steps, a run whose numbers are known, and a run that failed."""
    document = json.loads(gzip.decompress(REPORT.read_bytes()))
    scaling = document["ddp_scaling"]
    runs = scaling["runs"] = [run for run in scaling["runs"] if run["model"] in "SM"]
    known = next(run for run in runs if run["world_size"] == 2 and run["pieces_ms"]["forward"])
    known |= {"step_ms": {"median": 5.2288, "p10": 4.706, "p90": 7.3203, "n": 30}, "samples_per_second": 24480.0, "speedup": 1.53,
              "speedup_ci95": [1.4994, 1.5606], "efficiency": 0.765, "exposed_comm_ms": 1.0458, "exposed_comm_ci95_ms": [0.5229, 1.5686],
              "limit_ms": 2.6144, "peak_rss_mib": 150.0, "startup_ms": 600.0, "lines_of_code": 60}
    for run in runs:
        for repetition in run["repetitions"]:
            repetition["samples_ms"] = [run["step_ms"]["median"] * factor for factor in (0.9, 1, 1, 1.1, 1.5)]
    nothing = dict.fromkeys(("samples_per_second", "speedup", "speedup_ci95", "efficiency"))
    runs.append(known | nothing | {"launcher": "mpirun", "error": "rank 1: exit code 75: " + "why " * 40})
    scaling["not_run"] = [{"what": "srun", "reason": "not in a Slurm allocation"}]
    return document, known


def with_a_speed(document, model):
    return [run for run in document["ddp_scaling"]["runs"] if run["model"] == model and not run["error"] and run["kind"] != "control"]


def show(document, workload=""):
    """@return the output of the page's script, and the page itself"""
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.html"
        made = subprocess.run([PAGE_MAKER, page], input=json.dumps(document), capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        drawn = subprocess.run([NODE, DRAW, page, *([workload] if workload else [])], capture_output=True, text=True)
        assert drawn.returncode == 0, drawn.stderr
        return json.loads(drawn.stdout), page.read_text()


class Markup(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.texts = [], {}
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        name = self.tags[-1][1].get("id", self.tags[-1][0]) if self.tags else ""
        self.texts[name] = self.texts.get(name, "") + data


class Page(unittest.TestCase):
    def test_the_table_has_the_runs_of_the_document(self):
        document, known = default_report()
        drawn, _ = show(document)
        runs = document["ddp_scaling"]["runs"]
        self.assertEqual(len(drawn["rows"]), 1 + len(runs))
        self.assertEqual(drawn["rows"][0][4:8], ["ranks", "step ms", "p10–p90", "samples/s"])
        for cells, run in zip(drawn["rows"][1:], runs):
            self.assertEqual(cells[0], f"{run['model']}, weak scaling, cpu")
            if run["error"]:
                self.assertEqual(cells[5:], [run["error"]])
            else:
                self.assertAlmostEqual(float(cells[5]), run["step_ms"]["median"], delta=0.005 * run["step_ms"]["median"])
        self.assertEqual(drawn["rows"][1 + runs.index(known)][1:], [
            "03_ddp_spawn", "spawn", "shm", "2", "5.23", "4.71–7.32", "24,480", "1.53 (1.5–1.56)", "0.77", "1.05 (0.523–1.57)", "2.61", "150", "0.6", "60"])
        self.assertEqual(drawn["texts"]["sentences"], [one["text"] for one in document["ddp_scaling"]["sentences"]])

    def test_the_four_plots_show_the_runs_of_the_workload_that_have_a_speed(self):
        document, _ = default_report()
        for model in "SM":
            drawn, _ = show(document, f"{model}, weak scaling, cpu")
            runs = with_a_speed(document, model)
            plots = drawn["plots"]
            self.assertEqual(set(plots), {"speeds", "speedups", "pieces", "steps"})
            self.assertEqual(plots["speeds"]["datasets"][0]["data"], [run["samples_per_second"] for run in runs])
            self.assertEqual(len(set(plots["speeds"]["labels"])), len(runs))
            *measured, ideal = plots["speedups"]["datasets"]
            self.assertCountEqual([point["y"] for line in measured for point in line["data"]], [run["speedup"] for run in runs])
            self.assertCountEqual([ci for line in measured for ci in line["intervals"]], [run["speedup_ci95"] for run in runs])
            self.assertEqual(ideal["data"], [{"x": 1, "y": 1}, {"x": 2, "y": 2}])
            self.assertEqual([line["data"][49]["x"] for line in plots["steps"]["datasets"]], [run["step_ms"]["median"] for run in runs])
            runs = [run for run in runs if run["pieces_ms"]["forward"]]
            step = [sum(values) for values in zip(*(one["data"] for one in plots["pieces"]["datasets"] if one["stack"] == "step"))]
            for value, run in zip(step, runs, strict=True):
                self.assertAlmostEqual(value, run["step_ms"]["median"])
            pieces = {one["label"]: one["data"] for one in plots["pieces"]["datasets"] if one["stack"] == "pieces"}
            self.assertEqual(pieces, {name.replace("_", "-"): [run["pieces_ms"][name] for run in runs] for name in runs[0]["pieces_ms"]})
            self.assertEqual(plots["pieces"]["datasets"][-1]["data"], [max(run["exposed_comm_ms"] or 0, 0) for run in runs])
            self.assertEqual(plots["pieces"]["datasets"][0]["limits"], [run["limit_ms"] for run in runs])

    def test_it_needs_nothing_from_outside_and_hostile_text_stays_text(self):
        document, _ = default_report()
        scaling = document["ddp_scaling"]
        scaling["machine"].update({"host": HOSTILE, HOSTILE: [HOSTILE]})
        scaling["sentences"][0]["text"] = scaling["not_run"][0]["what"] = HOSTILE
        for name in "model", "stage", "variant", "launcher", "backend", "device":
            scaling["runs"][2][name] = HOSTILE
        scaling["runs"][-1]["error"] = HOSTILE
        drawn, page = show(document)
        markup, plain = Markup(page), Markup(show(default_report()[0])[1])
        self.assertEqual(markup.tags, plain.tags)
        self.assertEqual(json.loads(markup.texts["document"]), document)
        for tag, attributes in markup.tags:
            self.assertFalse({"src", "href", "srcset"} & set(attributes) or any(name.startswith("on") for name in attributes), (tag, attributes))
        self.assertTrue("default-src 'none'" in page)
        self.assertNotRegex(markup.texts["style"], r"url\(|@import")
        code = re.sub(r"/\*!.*?\*/", "", markup.texts["script"], flags=re.DOTALL)
        self.assertEqual(re.findall(r"https?://|fetch\(|XMLHttpRequest|\bimport\(", code), [])
        self.assertTrue("Copyright (c) 2014-2022 Chart.js Contributors" in page and "Permission is hereby granted" in page)
        self.assertEqual(drawn["texts"]["sentences"][0], HOSTILE)

    def test_a_report_without_samples_pieces_or_runs_gives_a_smaller_page(self):
        bare, _ = default_report()
        for run in bare["ddp_scaling"]["runs"]:
            run.update(speedup_ci95=None, limit_ms=None, exposed_comm_ms=None, exposed_comm_ci95_ms=None, lines_of_code=None,
                       pieces_ms=dict.fromkeys(run["pieces_ms"]))
            for repetition in run["repetitions"]:
                repetition["samples_ms"] = []
        drawn, _ = show(bare)
        self.assertEqual([len(line["data"]) for line in drawn["plots"]["steps"]["datasets"]], [3] * len(with_a_speed(bare, "S")))
        empty, _ = default_report()
        empty["ddp_scaling"].update(runs=[], sentences=[], not_run=[], machine={}, software={}, partial=True)
        self.assertEqual(len(show(empty)[0]["rows"]), 1)


if __name__ == "__main__":
    PAGE_MAKER, NODE = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
