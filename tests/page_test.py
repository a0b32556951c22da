#!/usr/bin/env python3
"""Checks the page of reports: it shows the document's content, and needs no other file.

usage: page_test.py PAGE_MAKER NODE [unittest options]
"""

import html.parser
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

DRAW = pathlib.Path(__file__).parent / "support/draw_page.js"
PAGE_MAKER = NODE = ""
HOSTILE = 'x</script><script>alert(1)</script><img src=x onerror="alert(2)"><!--<script>\x1b[2J\n\'&amp;'


def make_run(model, stage, world_size, speedup, variant="main", kind="stage", threads=1, **more):
    """Run of a report; its median step follows from its speed-up."""
    layers, batch, step = {"T": ([20, 1], 32, 0.04), "M": ([784, 512, 512, 10], 64, 4.0)}[model]
    cores = world_size * threads
    median = step * cores / speedup
    several = world_size > 1
    samples = [median * factor for factor in (0.9, 1, 1, 1.1, 1.5)]
    run = {
        "name": f"{model}/weak/{stage}/{variant}/{kind}/ranks:{world_size}/{threads}", "kind": kind, "stage": stage, "variant": variant,
        "launcher": "torchrun" if stage[:2] in ("04", "05") else "none", "backend": "shm" if several else "none", "device": "cpu",
        "model": model, "layers": layers, "parameters": 1000, "scaling": "weak", "nodes": 1, "world_size": world_size,
        "threads": threads, "global_batch": batch * cores,
        "repetitions": [{"block": i, "started": "2026-01-02T03:04:05Z", "samples_ms": samples, "median_ms": median,
                         "no_comm_median_ms": median * 0.8 if several else None, "startup_ms": 600}
                        for i in range(6)],
        "step_ms": {"median": median, "p10": median * 0.9, "p90": median * 1.4, "n": 30},
        "samples_per_second": batch * cores / median * 1000, "speedup": speedup, "speedup_ci95": [speedup * 0.98, speedup * 1.02],
        "efficiency": speedup / cores,
        "pieces_ms": {"data": median * 0.08, "forward": median * 0.3, "backward": median * 0.4, "update": median * 0.12,
                      "all_reduce": median * 0.1 if several else None},
        "exposed_comm_ms": median * 0.2 if several else None, "exposed_comm_ci95_ms": [median * 0.1, median * 0.3] if several else None,
        "limit_ms": median * 0.5, "peak_rss_mib": 150.0, "startup_ms": 600.0, "lines_of_code": 60, "gpu": None,
        "parity": {"moved": 0.134512, "reference_moved": 0.134512, "ok": True}, "error": None,
    }
    return run | more


def without_speed(run, **more):
    nothing = {"samples_per_second": None, "speedup": None, "speedup_ci95": None, "efficiency": None}
    return run | nothing | more


def default_report():
    """Report of the size of a default run's: two models, ten rows each, five sentences of two lines."""
    runs = []
    for model in "TM":
        runs += [make_run(model, "01_single_gpu", 1, 1.0), make_run(model, "01_single_gpu", 1, 1.7, threads=2)]
        runs += [make_run(model, stage, 2, 1.5 + 0.01 * i) for i, stage in enumerate(
            ["02_data_parallel", "03_ddp_spawn", "04_ddp_launcher", "05_multinode"])]
        runs += [make_run(model, "03_ddp_spawn", 1, 0.99), make_run(model, "03_ddp_spawn", 2, 1.1, variant="by_hand", backend="gloo"),
                 make_run(model, "pytorch", 2, 0.8, variant="compiled", kind="peer", backend="gloo"),
                 without_speed(make_run(model, "04_ddp_launcher", 2, 1.0, launcher="mpirun"), error="rank 1: exit code 75: " + "why " * 40),
                 make_run(model, "01_single_gpu", 1, 1.0, kind="control", variant="main")]
    sentence = "Of two ranks on two cores the fastest program is the one that this sentence of two lines names here. "
    return {"context": {"date": "2026-01-02"}, "benchmarks": [], "ddp_scaling": {
        "schema_version": 3, "machine": {"host": "h", "cpu_model": "A Processor", "cores": 2}, "software": {"libtorch": "2.11.0"},
        "settings": {"steps": None, "models": ["T", "M"]}, "runs": runs, "comparisons": [],
        "sentences": [{"code": code, "runs": [], "text": (2 * sentence)[:190]} for code in "abcde"],
        "not_run": [{"what": "srun", "reason": "not in a Slurm allocation"}], "partial": False}}


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
        document = default_report()
        drawn, _ = show(document)
        runs = document["ddp_scaling"]["runs"]
        self.assertEqual(len(drawn["rows"]), 1 + len(runs))
        for cells, run in zip(drawn["rows"][1:], runs):
            self.assertEqual(cells[0], f"{run['model']}, weak scaling, cpu")
            if run["error"]:
                self.assertEqual(cells[5:], [run["error"]])
            else:
                self.assertAlmostEqual(float(cells[5]), run["step_ms"]["median"], delta=0.005 * run["step_ms"]["median"])
        self.assertEqual(drawn["rows"][17], ["M, weak scaling, cpu", "05_multinode", "torchrun", "shm", "2", "5.23", "4.71–7.32", "24,480",
                                             "1.53 (1.5–1.56)", "0.77", "1.05 (0.523–1.57)", "2.61", "150", "0.6", "60"])
        self.assertEqual(drawn["texts"]["sentences"], [one["text"] for one in document["ddp_scaling"]["sentences"]])

    def test_the_four_plots_show_the_runs_of_the_workload_that_have_a_speed(self):
        document = default_report()
        for model in "TM":
            drawn, _ = show(document, f"{model}, weak scaling, cpu")
            runs = [run for run in document["ddp_scaling"]["runs"]
                    if run["model"] == model and not run["error"] and run["kind"] != "control"]
            plots = drawn["plots"]
            self.assertEqual(set(plots), {"speeds", "speedups", "pieces", "steps"})
            self.assertEqual(plots["speeds"]["datasets"][0]["data"], [run["samples_per_second"] for run in runs])
            self.assertEqual(len(set(plots["speeds"]["labels"])), len(runs))
            *measured, ideal = plots["speedups"]["datasets"]
            self.assertEqual(sorted(point["y"] for line in measured for point in line["data"]), sorted(run["speedup"] for run in runs))
            self.assertEqual(sorted(ci for line in measured for ci in line["intervals"]), sorted(run["speedup_ci95"] for run in runs))
            self.assertEqual(ideal["data"], [{"x": 1, "y": 1}, {"x": 2, "y": 2}])
            step = [sum(values) for values in zip(*(one["data"] for one in plots["pieces"]["datasets"] if one["stack"] == "step"))]
            for value, run in zip(step, runs, strict=True):
                self.assertAlmostEqual(value, run["step_ms"]["median"])
            pieces = {one["label"]: one["data"] for one in plots["pieces"]["datasets"] if one["stack"] == "pieces"}
            self.assertEqual(pieces, {name.replace("_", "-"): [run["pieces_ms"][name] for run in runs] for name in runs[0]["pieces_ms"]})
            self.assertEqual(plots["pieces"]["datasets"][-1]["data"], [run["exposed_comm_ms"] or 0 for run in runs])
            self.assertEqual(plots["pieces"]["datasets"][0]["limits"], [run["limit_ms"] for run in runs])
            self.assertEqual([line["data"][49]["x"] for line in plots["steps"]["datasets"]], [run["step_ms"]["median"] for run in runs])

    def test_it_needs_nothing_from_outside_and_hostile_text_stays_text(self):
        document = default_report()
        scaling = document["ddp_scaling"]
        scaling["machine"].update({"host": HOSTILE, HOSTILE: [HOSTILE]})
        scaling["sentences"][0]["text"] = scaling["not_run"][0]["what"] = HOSTILE
        for name in "model", "stage", "variant", "launcher", "backend", "device":
            scaling["runs"][2][name] = HOSTILE
        scaling["runs"][9]["error"] = HOSTILE
        drawn, page = show(document)
        markup, plain = Markup(page), Markup(show(default_report())[1])
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
        bare = default_report()
        for run in bare["ddp_scaling"]["runs"]:
            run.update(speedup_ci95=None, limit_ms=None, exposed_comm_ms=None, exposed_comm_ci95_ms=None, lines_of_code=None,
                       pieces_ms=dict.fromkeys(run["pieces_ms"]))
            for repetition in run["repetitions"]:
                repetition["samples_ms"] = []
        drawn, _ = show(bare)
        self.assertEqual([len(line["data"]) for line in drawn["plots"]["steps"]["datasets"]], [3] * 9)
        empty = default_report()
        empty["ddp_scaling"].update(runs=[], sentences=[], not_run=[], machine={}, software={}, partial=True)
        self.assertEqual(len(show(empty)[0]["rows"]), 1)


if __name__ == "__main__":
    PAGE_MAKER, NODE = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
