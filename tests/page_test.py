#!/usr/bin/env python3
"""Checks the page of a report: its tables and plots say what the report says, and it needs nothing else.

usage: page_test.py PAGE_MAKER BENCH NODE [unittest options]

The plots are drawn by the page's own script in Node.js, on a canvas that records (support/draw_page.js).
"""

import copy
import html.parser
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).parent
FULL = json.loads((TESTS / "support/full_report.json").read_text())
TWO_RANKS, CONTROL, FAILED = 1, 3, 5
SECTIONS = ["summary", "step-time", "speed-up", "efficiency", "phases", "prediction", "extrapolation", "crossover", "accuracy",
            "all-reduce", "ratios",
            "resources", "trust", "problems", "method"]
VOID = {"meta"}
KNOWN = VOID | set("html head title style body header main footer section nav div p ul li b i a h1 h2 h3 dl dt dd pre table caption "
                   "thead tbody tr th td details summary span button script noscript".split())
NO_NUMBER = re.compile(r"\b(nan|inf|infinity|undefined|null)\b", re.IGNORECASE)


class Element:
    def __init__(self, name, attributes):
        self.name, self.attributes, self.children, self.text = name, attributes, [], ""

    def all(self, name, css_class=None):
        found = [self] if name == self.name and (css_class is None or css_class in self.attributes.get("class", "").split()) else []
        return found + [element for child in self.children for element in child.all(name, css_class)]


class Page(html.parser.HTMLParser):
    """The elements of a page, strictly: each known, closed in order, with no way out of the page."""

    def __init__(self, text):
        super().__init__()
        self.root = Element("", {})
        self.stack = [self.root]
        self.ids = {}
        assert not re.search("[\0-\x08\x0b-\x1f]", text), "a control character"
        self.feed(text)
        self.close()
        assert len(self.stack) == 1, f"<{self.stack[-1].name}> is not closed"

    def handle_starttag(self, tag, attrs):
        assert tag in KNOWN, f"an element that no page has: <{tag}>"
        assert len(attrs) == len(dict(attrs)), f"<{tag}>: an attribute twice"
        for name, value in attrs:
            assert name != "src" and not name.startswith("on") and (name != "href" or value.startswith("#")), f"<{tag} {name}={value!r}>"
        element = Element(tag, dict(attrs))
        self.stack[-1].children.append(element)
        if "id" in element.attributes:
            assert element.attributes["id"] not in self.ids, f"id {element.attributes['id']} twice"
            self.ids[element.attributes["id"]] = element
        if tag not in VOID:
            self.stack.append(element)

    def handle_endtag(self, tag):
        assert self.stack[-1].name == tag, f"</{tag}> closes <{self.stack[-1].name}>"
        self.stack.pop()

    def handle_data(self, data):
        for element in self.stack:
            element.text += data

    def rows(self, table):
        """The text and the number of each cell of each row."""
        return [[(cell.text, cell.attributes.get("data-value")) for cell in row.all("td")] for row in table.all("tr") if row.all("td")]

    def table(self, caption):
        return self.rows(next(table for table in self.root.all("table") if table.all("caption")[0].text == caption))

    def check(self):
        for name in "td", "dd", "p", "title", "li":
            for element in self.root.all(name):
                assert not NO_NUMBER.search(element.text.replace("w", "")), f"no number: {element.text[:200]}"
        for table in self.root.all("table"):
            columns = len(table.all("thead")[0].all("th"))
            for cells in self.rows(table):
                assert len(cells) == columns and all(value is None or math.isfinite(float(value)) for _, value in cells), cells
        for link in self.root.all("a"):
            is_script_s = link.attributes.get("id") == "download"  # the script gives it its address
            assert is_script_s or link.attributes["href"][1:] in self.ids, f"a link to nowhere: {link.attributes}"
        assert len(self.root.all("script")) == 4 and len(self.root.all("h1")) == 1
        return self


def make_pages(documents):
    """Or why there is none. @nan, @infinity and @bytes in a document are what JSON cannot hold."""
    made = subprocess.run([PAGE_MAKER], input=json.dumps(documents), capture_output=True, text=True, encoding="utf-8")
    assert made.returncode == 0, made.stderr
    return made.stdout.split("\0")[:-1]


def run_scripts(pages):
    return subprocess.run([NODE, TESTS / "support/draw_page.js"], input="".join(page + "\0" for page in pages), capture_output=True,
                          text=True, encoding="utf-8")


def check_plot(plot):
    """What has to hold for all plots: axes that can be read, texts that are none too many, nothing outside."""
    for axis, extent in (plot["x"], ("left", "right")), (plot["y"], ("top", "bottom")):
        low, high = (plot["area"][end] for end in extent)
        ticks = sorted(axis["ticks"], key=lambda tick: tick["at"])
        assert all(low - 0.5 <= tick["at"] <= high + 0.5 for tick in ticks), (plot["place"], axis)
        if isinstance(axis["title"], str) and axis["title"]:
            assert 1 <= len(ticks) <= 12 and len({tick["label"] for tick in ticks}) == len(ticks), (plot["place"], axis)
            assert all(b["at"] - a["at"] > 9 for a, b in zip(ticks, ticks[1:])), (plot["place"], axis)
    for dataset in plot["datasets"]:
        for point, drawn in zip(dataset["data"], dataset["drawn"]):
            assert not NO_NUMBER.search(point.get("tip", "").replace("w", "")), point
            if drawn["x"] is not None and drawn["y"] is not None:
                assert plot["area"]["left"] - 1 <= drawn["x"] <= plot["area"]["right"] + 1, (plot["place"], point, drawn)
                assert plot["area"]["top"] - 1 <= drawn["y"] <= plot["area"]["bottom"] + 1, (plot["place"], point, drawn)
    assert not any(NO_NUMBER.search(text["text"].replace("w", "")) for text in plot["texts"] if isinstance(text["text"], str)), plot["texts"]


def draw(pages):
    result = run_scripts(pages)
    assert result.returncode == 0, result.stderr
    plots = json.loads(result.stdout)
    for plot in (plot for page in plots for plot in page):
        check_plot(plot)
    return plots


def check_all(documents):
    """Their pages and plots, checked; in pieces that fit into memory. What is no report is refused with the place."""
    checked = []
    for first in range(0, len(documents), 100):
        pages = make_pages(documents[first:first + 100])
        for page in pages:
            assert not page.startswith("refused") or re.match("refused: the document: .*expected ", page), page
        pages = [page for page in pages if not page.startswith("refused")]
        checked += zip((Page(page).check() for page in pages), draw(pages), strict=True)
    return checked


def check_one(document):
    return check_all([document])[0]


def changed(change):
    document = copy.deepcopy(FULL)
    change(document["ddp_scaling"])
    return document


def places(value, path=()):
    """The path of everything in it."""
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def value_at(document, path):
    for key in path:
        document = document[key]
    return document


def replace_all(kinds, by):
    """The document with every value of these types replaced."""
    return damage((path, by) for path in places(FULL) if type(value_at(FULL, path)) in kinds)


ERASED = object()


def damage(changes):
    """The document with these paths replaced or erased, as far as each is there when its turn comes; the deepest first."""
    document = copy.deepcopy(FULL)
    for path, value in sorted(changes, key=lambda change: -len(change[0])):
        if value is not ERASED:
            value_at(document, path[:-1])[path[-1]] = value
        elif isinstance(path[-1], str):
            del value_at(document, path[:-1])[path[-1]]
    return document


def in_groups(changes, size=12):
    """What lies far apart together, so that few documents hold many changes and one change hides few others."""
    count = -(-len(changes) // size)
    return [changes[i::count] for i in range(count)]


class Tables(unittest.TestCase):
    def test_the_page_says_what_the_document_says(self):
        page, _ = check_one(FULL)
        self.assertEqual([section.attributes["id"] for section in page.root.all("section")], SECTIONS)
        self.assertEqual([link.attributes["href"][1:] for link in page.root.all("nav")[0].all("a")], SECTIONS)
        # The document's own sentences: answers under their question, all others as reasons for trust.
        answers = [answer.text.split("\n") for answer in page.root.all("div", "answer")]
        self.assertEqual([[line for line in lines if line] for lines in answers],
                         [["Which program?", FULL["ddp_scaling"]["conclusions"][0]["text"]]])
        trust, = [section for section in page.root.all("section") if section.attributes["id"] == "trust"]
        self.assertEqual([item.text for item in trust.all("li")], [FULL["ddp_scaling"]["conclusions"][1]["text"]])
        runs = [run for run in FULL["ddp_scaling"]["runs"] if run["kind"] != "control"]
        rows = page.table("All configurations")
        self.assertEqual(len(rows), len(runs))
        for cells, run in zip(rows, runs):
            texts, values = zip(*cells)
            self.assertEqual((texts[0], values[3]), (run["stage"], str(run["world_size"])))
            if run["error"]:
                self.assertEqual((texts[5], values[5]), ("no speed", None))
                continue
            exact = [run["step_ms"]["median"], run["samples_per_second"], run["relative_speedup"], run["efficiency"]]
            self.assertEqual([float(values[i]) for i in (5, 7, 8, 9)], exact)
            self.assertEqual(texts[10], "ok")
        self.assertEqual([text for text, _ in rows[1]], ["03_ddp_spawn", "spawn", "gloo", "2", "64", "0.625", "0.500 – 0.938", "102,400",
                                                         "1.60×", "0.80", "ok"])
        for section, text in [("problems", "rank 1 exited with 1: no route to 10.0.0.7"), ("problems", "one node only"),
                              ("method", "bench --models S"), ("method", "64-128-128-10, synthetic classes, batch 32"),
                              ("extrapolation", "The network stays as it is."),
                              ("phases", "102 KiB, 1.00 MiB"), ("resources", "rank 1, 61 % of steps, +4.2 %"), ("resources", "41.5"),
                              ("prediction", "fused_sgd"), ("phases", "38 %"), ("prediction", "+9.5 %")]:
            self.assertIn(text, page.ids[section].text)
        self.assertIn("3d196e62d607-dirty", page.root.text)

    def test_every_number_that_was_measured_can_be_read_from_a_table(self):
        page, _ = check_one(FULL)
        shown = {float(value) for table in page.root.all("table") for cells in page.rows(table) for _, value in cells if value}
        scaling = FULL["ddp_scaling"]
        parts = ["crossover", "all_reduce", "communication_models", "extrapolations", "limits", "micro", "comparisons"]
        measured = [run for run in scaling["runs"] if not run["error"] and run["kind"] != "control"]
        unused = {"repetitions", "floor", "parity", "bucket_bytes", "world_sizes", "slowest_rank", "nodes", "steps"}
        for part in [measured, *(scaling[part] for part in parts)]:
            for path in places(part):
                value = value_at(part, path)
                # A spread is shown beside its median where the table has no column for it.
                if unused.isdisjoint(path) and type(value) in (int, float) and not (part is scaling["micro"] and "time_us" in path[:-1] and path[-1] != "median"):
                    if path[-1] not in ("p95", "n") or part is measured:
                        self.assertIn(value, shown, path)

    def test_the_page_needs_nothing_from_outside_and_holds_the_document(self):
        document = changed(lambda scaling: scaling["settings"].update(command="</script><!-- <script> \\u003c \""))
        text, = make_pages([document])
        page = Page(text).check()
        self.assertEqual(json.loads(page.ids["document"].text), document)
        self.assertTrue(page.root.all("meta")[1].attributes["content"].startswith("default-src 'none'; "))
        style, library, script = page.root.all("style")[0].text, *(one.text for one in page.root.all("script")[2:])
        for outside in "url(", "@import", "http:", "https:", "fetch(", "XMLHttpRequest", "import(", "eval(":
            self.assertNotIn(outside, style + script)
        for notice in ("Chart.js v3.", "Copyright (c) 2014-2022 Chart.js Contributors", "Copyright (c) 2022 Jukka Kurkela", "MIT License",
                       "Permission is hereby granted, free of charge,", "shall be included in all copies", "WITHOUT WARRANTY OF ANY KIND"):
            self.assertIn(notice, library)

    def test_hostile_text_stays_text_in_every_field(self):
        hostile = "x</script></title><script>alert(1)</script><img src=x onerror=alert(2)>\"'>&amp;{{command}}{{{names}}}<!--\x01\x7f@bytes]]>"
        strings = [path for path in places(FULL) if isinstance(value_at(FULL, path), str) and path[-1] != "algorithm"]
        self.assertGreater(len(strings), 80)
        # A report whose runs have equal names is refused, as is a control of nothing; "kind" makes none of them one here.
        everywhere = [damage((path, text + str(i)) for i, path in enumerate(strings)) for text in (hostile, "w" * 20000)]
        apart = [path for path in strings if path[-1] != "name" and path[1:3] != ("comparisons", CONTROL)]
        documents = everywhere + [damage((path, hostile) for path in group) for group in in_groups(apart)]
        self.assertEqual(len(check_all(documents)), len(documents))
        # Keys are shown too: the facts of the machine are listed as they are.
        page, _ = check_one(changed(lambda scaling: scaling["machine"].update({hostile: 3})))
        self.assertIn("x</script></title><script>alert(1)</script><img src=x onerror=alert(2)>\"'>&amp;{{command}}", page.root.all("dl")[0].text)

    def test_a_damaged_document_is_refused_or_gives_a_smaller_page_never_a_wrong_one(self):
        values = [None, "text", -1, 0, 1e308, -1e308, 1e-320, True, [], {}, "@nan", "@infinity", [None, "x", {}]]
        documents = [replace_all([int, float], value) for value in [None, 0, -1, 1, 1e308, 5e-324, -1e308, "@nan"]]
        # Another value for each place, places erased, and each number replaced. Runs 2 and 4 are as the others.
        paths = [path for path in places(FULL) if path[1:3] not in [("runs", 2), ("runs", 4)]]
        documents += [damage([(path, values[i % len(values)])]) for i, path in enumerate(paths[::4])]
        documents += [damage([(path, ERASED)]) for path in [path for path in paths if isinstance(path[-1], str)][::10]]
        numbers = [path for path in paths if isinstance(value_at(FULL, path), float) and path[-1] != "bucket_mib"]
        for value in 0.0, -1.5, 1e308, 1e-320, "@nan", "@infinity":
            documents += [damage((path, value) for path in group) for group in in_groups(numbers)]
        self.assertGreater(len(check_all(documents)), 60)

    def test_a_report_of_nothing(self):
        page, plots = check_one({"context": {}, "benchmarks": [], "ddp_scaling": {
            key: [] if isinstance(value, list) else {} if isinstance(value, dict) else value for key, value in FULL["ddp_scaling"].items()}})
        self.assertEqual(plots, [])
        self.assertEqual(page.root.all("div", "answer"), [])

    def test_a_partial_report_and_failed_runs_are_announced(self):
        page, _ = check_one(FULL)
        self.assertEqual([banner.text[:29] for banner in page.root.all("header")[0].all("p", "banner")], ["1 of 6 configurations failed "])
        page, _ = check_one(changed(lambda scaling: scaling.update(partial=True)))
        self.assertIn("Partial report", page.root.all("header")[0].all("p", "banner")[0].text)

        def fail(scaling):
            scaling["runs"] = [scaling["runs"][FAILED] | {"name": name} for name in ("one", "other")]
            scaling.update({part: [] for part in ("conclusions", "comparisons", "all_reduce", "communication_models", "extrapolations", "limits", "micro",
                                                "crossover", "time_to_accuracy")})
        page, plots = check_one(changed(fail))
        self.assertIn("2 of 2 configurations failed", page.root.all("header")[0].text)
        self.assertEqual([section.attributes["id"] for section in page.root.all("section")], ["summary", "trust", "problems", "method"])
        self.assertEqual(plots, [])

    def test_a_report_of_an_earlier_version_is_shown_as_far_as_it_goes(self):
        def make_old(scaling):
            del scaling["runs"][CONTROL], scaling["comparisons"][3]
            for run in scaling["runs"]:
                for key in "repetitions", "bucket_mib", "gradient_compression", "shard_optimizer", "gpu", "slowest_rank":
                    run.pop(key, None)
                if run["kind"] == "stage":
                    del run["kind"]
                run.update(floor_ms=None, predicted_step_ms=None)
            scaling.update({key: [] for key in ("limits", "all_reduce", "communication_models", "extrapolations", "assumptions", "micro",
                                               "crossover", "time_to_accuracy")})
            scaling["comparisons"][0]["verdict"] = None
            del scaling["conclusions"]
        page, plots = check_one(changed(make_old))
        self.assertEqual([section.attributes["id"] for section in page.root.all("section")],
                         ["summary", "step-time", "speed-up", "efficiency", "phases", "ratios", "resources", "trust", "problems", "method"])
        # Its sentences are drawn from its numbers now.
        self.assertIn("Which program?", page.root.all("div", "answer")[0].text)
        # A verdict is the document's to give.
        notes = [note for plot in plots if plot["place"] == "plot-ratios" for note in plot["rowNotes"]]
        self.assertIn("1.25×", [note.strip() for note in notes])

    def test_one_process_alone(self):
        page, _ = check_one(changed(lambda scaling: scaling.update(runs=scaling["runs"][:1], comparisons=[], conclusions=[])))
        self.assertIn("S: most samples/s: 01_single_gpu (one process).", page.root.all("div", "answer")[0].text)
        check_one(changed(lambda scaling: scaling.update(runs=scaling["runs"][1:2], comparisons=[])))


class Plots(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.plots = check_one(FULL)[1]
        cls.scaling = FULL["ddp_scaling"]
        cls.measured = [run for run in cls.scaling["runs"] if not run["error"] and run["kind"] != "control"]

    def of(self, place):
        return [plot for plot in self.plots if plot["place"] == place]

    def points(self, plot, *keys):
        """Of all curves that are no guides, in the order of the document."""
        return sorted([tuple(point[key] for key in keys) for dataset in plot["datasets"] for point in dataset["data"] if "tip" in point])

    def test_by_number_of_ranks(self):
        for place, number in [("plot-speed-up", "relative_speedup"), ("plot-efficiency", "efficiency")]:
            plot, = self.of(place)
            self.assertEqual(self.points(plot, "x", "y"), sorted((run["world_size"], run[number]) for run in self.measured))
        plot, = self.of("plot-step-time")
        self.assertEqual(sorted(self.points(plot, "y", "low", "high")),
                         sorted((run["step_ms"]["median"], run["step_ms"]["p10"], run["step_ms"]["p90"]) for run in self.measured))
        # Side by side, each nearest to its own number of ranks.
        self.assertEqual(sorted(2 ** round(math.log2(x)) for x, in self.points(plot, "x")), sorted(run["world_size"] for run in self.measured))
        self.assertEqual([tick["label"] for tick in plot["x"]["ticks"]], ["1", "2", "4"])
        self.assertEqual([dataset["label"] for dataset in plot["datasets"]], ["01", "03", "pytorch", "ideal"])
        guides = {dataset["label"]: [(point["x"], point["y"]) for point in dataset["data"]] for dataset in
                  plot["datasets"] + self.of("plot-speed-up")[0]["datasets"][-1:] + self.of("plot-efficiency")[0]["datasets"][-1:]}
        self.assertEqual(guides["one process"], [(1, 1), (2, 1), (4, 1)])
        self.assertEqual(guides["ideal"], [(1, 1), (2, 1), (4, 1)])
        self.assertEqual([(point["x"], point["y"]) for point in plot["datasets"][3]["data"]], [(1, 0.5), (2, 0.5), (4, 0.5)])
        self.assertEqual([(point["x"], point["y"]) for point in self.of("plot-speed-up")[0]["datasets"][3]["data"]], [(1, 1), (2, 2), (4, 4)])

        def make_strong(scaling):
            for run in scaling["runs"]:
                run["scaling"] = "strong"
        strong = next(plot for plot in check_one(changed(make_strong))[1] if plot["place"] == "plot-step-time")
        self.assertEqual([(point["x"], point["y"]) for point in strong["datasets"][3]["data"]], [(1, 0.5), (2, 0.25), (4, 0.125)])

    def test_points_stand_where_the_axes_say(self):
        for plot in self.of("plot-step-time") + self.of("plot-efficiency") + self.of("plot-all-reduce") + self.of("plot-ratios"):
            for name in "x", "y":
                axis = plot[name]
                scale = math.log if axis["type"] == "logarithmic" else float
                first, last = axis["ticks"][0], axis["ticks"][-1]
                if first is last:
                    continue
                for dataset in plot["datasets"]:
                    for point, drawn in zip(dataset["data"], dataset["drawn"]):
                        share = (scale(point[name]) - scale(first["value"])) / (scale(last["value"]) - scale(first["value"]))
                        self.assertAlmostEqual(drawn[name], first["at"] + share * (last["at"] - first["at"]), delta=0.6)

    def test_bars_are_as_long_as_their_values(self):
        plot, = self.of("plot-phases")
        phases = [run["phases_ms"] for run in self.measured]
        zero, unit = plot["x"]["ticks"][0]["at"], (plot["x"]["ticks"][1]["at"] - plot["x"]["ticks"][0]["at"]) / plot["x"]["ticks"][1]["value"]
        for row, run in enumerate(phases):
            end = zero
            for dataset, ms in zip(plot["datasets"], run.values()):
                self.assertEqual(dataset["data"][row]["x"], ms)
                self.assertAlmostEqual(dataset["drawn"][row]["base"], end, delta=0.7)
                end += ms * unit
                self.assertAlmostEqual(dataset["drawn"][row]["x"], end, delta=0.7)
        for dataset, number in zip(plot["datasets"][6:], ["floor_ms", "predicted_step_ms"]):
            self.assertEqual([point["x"] for point in dataset["data"]], [run[number] for run in self.measured])
            self.assertAlmostEqual(dataset["drawn"][0]["x"], zero + self.measured[0][number] * unit, delta=0.7)
        self.assertEqual(plot["rowNotes"], ["0.5 ms", "0.625 ms", "0.875 ms", "0.925 ms"])
        memory, startup = self.of("plot-resources")
        self.assertEqual([point["x"] for point in memory["datasets"][0]["data"]], [run["peak_rss_mib"] for run in self.measured])
        self.assertEqual([a["x"] + b["x"] for a, b in zip(memory["datasets"][0]["data"], memory["datasets"][1]["data"])],
                         [run["job_peak_rss_mib"] for run in self.measured])
        self.assertEqual([point["x"] for point in startup["datasets"][0]["data"]], [run["startup_ms"] / 1e3 for run in self.measured])

    def test_the_sweep_of_a_crossover(self):
        plot, = self.of("plot-crossover")
        sweep, = self.scaling["crossover"]
        self.assertEqual([(point["x"], point["y"], point.get("low"), point.get("high")) for point in plot["datasets"][0]["data"]],
                         [(one["value"], one["speedup"], *(one["ci95"] or (None, None))) for one in sweep["values"]])
        self.assertEqual([(point["x"], point["y"]) for point in plot["datasets"][1]["data"]], [(17, 1), (272, 1)])

    def test_ratios_and_their_intervals(self):
        panels = self.of("plot-ratios")
        self.assertEqual([(plot["title"], plot["note"]) for plot in panels],
                         [("S, weak scaling", "against one process"), ("S, weak scaling", "against peers"),
                          ("Controls", "the same configuration, measured twice")])
        for plot, kind in zip(panels, ["baseline", "peer", "control"]):
            expected = [one for one in self.scaling["comparisons"] if one["kind"] == kind]
            for point, one in zip(plot["datasets"][0]["data"], expected, strict=True):
                self.assertEqual([point["x"], point.get("low"), point.get("high")], [one["ratio_median"], *(one["ci95"] or [None, None])])
            for note, one in zip(plot["rowNotes"], expected, strict=True):
                self.assertIn(one["verdict"] if kind != "control" and one["verdict"] else "×", note)
        # Two ranks handle twice the samples.
        self.assertEqual([point["x"] for point in panels[0]["datasets"][1]["data"]], [2, 4])
        self.assertEqual(panels[2]["band"], [0.97, 1.03])

    def test_predictions_and_extrapolations(self):
        plot, = self.of("plot-prediction")
        self.assertEqual(self.points(plot, "x", "y"),
                         sorted((run["predicted_step_ms"], 100 * run["prediction"]["residual"]) for run in self.measured))
        extrapolations = self.scaling["extrapolations"]
        for plot, ours, theirs in zip(self.of("plot-extrapolation"), ["median", "efficiency"], ["predicted_step_ms", "efficiency"], strict=True):
            known, predicted = plot["datasets"]
            own = [run for run in self.measured if run["stage"] == "03_ddp_spawn"]
            value = lambda run: run["step_ms"]["median"] if ours == "median" else run["efficiency"]
            self.assertEqual([(point["x"], point["y"]) for point in known["data"]], [(run["world_size"], value(run)) for run in own])
            self.assertEqual((known["borderDash"], bool(predicted["borderDash"])), ([], True))
            start = next(run for run in own if run["name"] == extrapolations[0]["from"])
            self.assertEqual([(point["x"], point["y"]) for point in predicted["data"]],
                             [(start["world_size"], value(start)), *((one["world_size"], one[theirs]) for one in extrapolations)])

    def test_the_line_of_the_fitted_model_goes_through_what_the_model_says(self):
        alpha_us, beta_us = 20, 250
        sizes = [2 ** power for power in range(2, 27, 3)]
        for algorithm in "ring", "tree", None:
            for n in 2, 4:
                times = [2 * (n - 1) * alpha_us + 2 * (n - 1) / n * size / 2 ** 20 * beta_us if algorithm == "ring" else
                         2 * math.log2(n) * alpha_us + 2 * size / 2 ** 20 * beta_us if algorithm == "tree" else
                         alpha_us + size / 2 ** 20 * beta_us for size in sizes]

                def measure(scaling):
                    model = {"backend": "gloo", "device": "cpu", "algorithm": algorithm, "world_sizes": [n], "points": 9,
                             "regimes": [{"from_bytes": 0, "alpha_us": alpha_us, "beta_us_per_mib": beta_us}], "median_relative_error": 0.1}
                    worse = copy.deepcopy(model) | {"median_relative_error": 0.2}
                    worse["regimes"][0]["alpha_us"] = 1000
                    elsewhere = copy.deepcopy(worse) | {"algorithm": None, "world_sizes": [7], "median_relative_error": 0.0}
                    scaling["communication_models"] = [worse, model, elsewhere]
                    scaling["all_reduce"] = [{"backend": "gloo", "device": "cpu", "world_size": n, "bytes": size, "time_us": {"median": us, "n": 1},
                                              "bus_bandwidth_gbps": size / us * 1e-3 * 2 * (n - 1) / n} for size, us in zip(sizes, times)]
                plots = [plot for plot in check_one(changed(measure))[1] if plot["place"] == "plot-all-reduce"]
                self.assertEqual(len(plots), 2)
                for plot in plots:
                    points, line = plot["datasets"]
                    self.assertEqual((len(points["data"]), len(line["data"])), (9, 25))
                    for point, on_line in zip(points["data"], line["data"][::3]):
                        self.assertAlmostEqual(on_line["x"] / point["x"], 1, delta=1e-9)
                        self.assertAlmostEqual(on_line["y"] / point["y"], 1, delta=1e-9)

    def test_many_configurations_have_labels_that_do_not_touch(self):
        def multiply(scaling):
            for model in "T", "M", "L", "digits":
                for kind in "weak", "strong":
                    for backend in ("gloo", "mpi", "shm", *(f"backend {i}" for i in range(12))):
                        for ranks in 2, 4, 8:
                            scaling["runs"].append(scaling["runs"][TWO_RANKS] | {
                                "name": f"{model}{kind}{backend}{ranks}", "model": model, "scaling": kind, "backend": backend, "world_size": ranks})
        plots = [plot for plot in check_one(changed(multiply))[1] if plot["place"] == "plot-step-time"]
        self.assertEqual(len(plots), 9)
        for plot in plots[1:]:
            labels = sorted({text["y"] for text in plot["texts"] if text["x"] == plot["area"]["right"] + 13})
            self.assertEqual(len(labels), 15)
            self.assertTrue(all(b - a >= 13.9 for a, b in zip(labels, labels[1:])) and 0 < labels[0] and labels[-1] < plot["height"], labels)
            # Enough of them that their names need the backend.
            self.assertIn("03 shm", [text["text"] for text in plot["texts"]])

    def test_axes_can_be_read_whatever_the_range(self):
        documents = []
        for low in 3e-8, 0.04, 7.3, 5000, 2e9:
            for factor in 1.0001, 1.02, 1.3, 2, 9, 40, 1e3, 1e5:
                def stretch(scaling):
                    for run, median in zip(scaling["runs"][:3], [low, low * math.sqrt(factor), low * factor]):
                        run["step_ms"] = {"median": median}
                        run["relative_speedup"] = run["efficiency"] = median
                documents.append(changed(stretch))
        for _, plots in check_all(documents):
            self.assertEqual(sum(plot["place"] == "plot-step-time" for plot in plots), 1)

    def test_an_error_of_the_script_is_seen(self):
        page, = make_pages([FULL])
        for good, bad in [('"use strict";\n\n(() =>', '"use strict";\nthrow new Error("broken");\n(() =>'), ("const drawAll = ", "const drawNone = "),
                          ("--hue-03:", "--hue-o3:"), ("ctx.fillText(one.label, ", "ctx.fillText(one.label, 0 / 0 + ")]:
            self.assertIn(good, page)
            self.assertEqual(run_scripts([page.replace(good, bad)]).returncode, 1, bad)


class Program(unittest.TestCase):
    def test_bench_html_makes_the_page_of_a_report_that_is_there(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            run = lambda *arguments: subprocess.run([BENCH, "html", *arguments], capture_output=True, text=True, encoding="utf-8")
            (folder / "report.json").write_text(json.dumps(FULL))
            to_stdout = run(folder / "report.json")
            self.assertEqual((to_stdout.returncode, to_stdout.stderr), (0, ""))
            self.assertEqual([to_stdout.stdout], make_pages([FULL]))
            # Written whole, over the one before.
            (folder / "page.html").write_text("old")
            self.assertEqual((run(folder / "report.json", folder / "page.html").stdout, len(list(folder.iterdir()))), ("", 2))
            self.assertEqual((folder / "page.html").read_text(encoding="utf-8"), to_stdout.stdout)

            damaged = {"text": "not JSON", "other": '{"benchmarks": []}', "deep": "[" * 100000 + "]" * 100000,
                       "version": json.dumps(changed(lambda scaling: scaling.update(schema_version=3))),
                       "runs": json.dumps(changed(lambda scaling: scaling.update(runs="x"))), "empty": json.dumps(FULL | {"ddp_scaling": {}})}
            for name, text in damaged.items():
                (folder / f"{name}.json").write_text(text)
            for arguments, error in [
                    ([], "REPORT.json"), (["missing.json"], "missing.json: cannot be read"), (["text.json"], "text.json:1: not JSON"),
                    (["other.json"], 'other.json: no member "ddp_scaling"'), (["deep.json"], "deep.json: nested more than"), (["."], "is a folder"),
                    (["version.json"], "version.json: /ddp_scaling/schema_version: expected 1 or 2, got 3"),
                    (["empty.json"], "empty.json: no /ddp_scaling/schema_version"),
                    (["runs.json"], 'runs.json: /ddp_scaling/runs: expected a list, got "x"'), (["report.json", "no/page.html"], "no/page.html"),
                    (["report.json", "/proc/page.html"], "expected a file that can be written"), (["report.json", "--nonsense"], "--nonsense"),
                    (["report.json", "page.html", "third"], "third")]:
                result = run(*(argument if argument.startswith("-") else folder / argument for argument in arguments))
                self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), (arguments, result.stderr))
                self.assertIn(error, result.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    PAGE_MAKER, BENCH, NODE = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
