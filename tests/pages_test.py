#!/usr/bin/env python3
"""The scripts that keep the pages true see what is false: stage_diffs.py, transcripts.py, pictures.py, page_commands.py; what
launches.py counts; what results.py keeps."""

import contextlib
import copy
import io
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import xml.dom.minidom

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import launches  # noqa: E402
import page_commands  # noqa: E402
import performance_table  # noqa: E402
import pictures  # noqa: E402
import results  # noqa: E402
import stage_diffs  # noqa: E402
import transcripts  # noqa: E402

TWO_RANKS = "build/bin/03_ddp_spawn 50 10 --nprocs 2"
BY_HAND = "build/bin/03_ddp_spawn_by_hand 50 10 --nprocs 2"
SUMMARY = "moved 1.40743 | loss 0.0115 | digest e140e1c0f8c962d2 | step 0.040 ms | 1600000 samples/s"
OUTPUT = ["...", "[CPU0] Epoch 49 | Batchsize: 32 | Steps: 32 | Loss: 0.0108",
          "[CPU1] Epoch 49 | Batchsize: 32 | Steps: 32 | Loss: 0.0108", SUMMARY]


class TemporaryTree(unittest.TestCase):
    """The scripts work on a tree of the test's own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-pages-test-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "docs").mkdir()
        for module in (stage_diffs, transcripts, pictures):
            self.addCleanup(setattr, module, "ROOT", module.ROOT)
            module.ROOT = self.root

    def write(self, path, text):
        (self.root / path).parent.mkdir(exist_ok=True)
        (self.root / path).write_text(text)

    def run_quietly(self, function, *arguments):
        """What it returned, and what it wrote."""
        written = io.StringIO()
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
            result = function(*arguments)
        return result, written.getvalue()


class Transcripts(TemporaryTree):
    def page(self, attributes, command, output):
        return f"<!-- transcript {attributes} -->\n```console\n$ {command}\n" + "".join(f"{line}\n" for line in output) + "```\n"

    def write_pages(self, output=OUTPUT, other_summary=SUMMARY):
        origin = "All outputs on these pages are from one run."
        outputs = [(TWO_RANKS, output), (BY_HAND, [other_summary])]
        self.write("README.md", self.page("lines=3 same_digest=two_ranks same_moved=two_ranks", TWO_RANKS, output) +
                   f"<!-- transcripts {transcripts.fingerprint(origin, outputs)} -->\n{origin}\n<!-- end of transcripts -->\n")
        self.write("03_ddp_spawn/README.md",
                   self.page("lines=1 same_digest=two_ranks same_moved=two_ranks", BY_HAND, [other_summary]))

    def test_an_output_that_can_be_true_passes(self):
        self.assertEqual(transcripts.wrong_output(TWO_RANKS, OUTPUT, 3), [])
        self.write_pages()
        self.assertEqual(transcripts.wrong_pages(), [])

    def test_an_output_that_cannot_be_true_is_seen(self):
        for what, output in {
            "no output": [],
            "another batch": [*OUTPUT[:3], SUMMARY.replace("1600000", "800000")],
            "NaN": [*OUTPUT[:3], SUMMARY.replace("0.0115", "nan")],
            "NaN as a step": [*OUTPUT[:3], SUMMARY.replace("0.040", "nan")],
            "NaN in a log line": [OUTPUT[0], OUTPUT[1].replace("0.0108", "nan"), *OUTPUT[2:]],
            "infinite": [*OUTPUT[:3], SUMMARY.replace("1.40743", "inf")],
            "no number": [*OUTPUT[:3], SUMMARY.replace("1.40743", "far")],
            "ranks out of order": [OUTPUT[0], OUTPUT[2], OUTPUT[1], SUMMARY],
            "a line twice": [OUTPUT[0], OUTPUT[1], OUTPUT[1], SUMMARY],
            "summary first": [OUTPUT[0], SUMMARY, OUTPUT[1], OUTPUT[2]],
            "another batch in the log": [OUTPUT[0], OUTPUT[1].replace(": 32 | Steps", ": 64 | Steps"), *OUTPUT[2:]],
            "steps of another data set": [OUTPUT[0], OUTPUT[1].replace("Steps: 32", "Steps: 33"), *OUTPUT[2:]],
            "an epoch too many": [OUTPUT[0], *(line.replace("Epoch 49", "Epoch 50") for line in OUTPUT[1:3]), SUMMARY],
            "too many lines": [OUTPUT[0], OUTPUT[1].replace("49", "48"), *OUTPUT[1:]],
            "something else": [OUTPUT[0], "Segmentation fault", SUMMARY],
        }.items():
            with self.subTest(what):
                self.assertNotEqual(transcripts.wrong_output(TWO_RANKS, output, 3), [])

    def test_the_batch_is_that_of_the_command(self):
        for command, batch in {
            "build/bin/01_single_gpu 50 10": 32,
            "build/bin/02_data_parallel 50 10 --nprocs 2": 32,
            TWO_RANKS: 64,
            TWO_RANKS + " --global-batch 32": 32,
            "mpirun -np 3 build/bin/04_ddp_launcher 50 10 --batch_size 16": 48,
            "torchrun --standalone --nproc_per_node=2 --no-python build/bin/04_ddp_launcher 50 10": 64,
            "torchrun --nnodes=2 --node_rank=0 --no-python build/bin/05_multinode 50 10": 64,
        }.items():
            with self.subTest(command):
                self.assertEqual(transcripts.batch_of(command), batch)

    def test_ranks_are_shown_in_order_however_they_were_printed(self):
        printed = ["[CPU1] Epoch 48 | Batchsize: 32 | Steps: 32 | Loss: 0.0108", OUTPUT[2], SUMMARY, OUTPUT[1]]
        self.assertEqual(transcripts.shown_lines(printed, 3), OUTPUT)
        with self.assertRaises(ValueError):
            transcripts.shown_lines(OUTPUT[1:3], 3)

    def test_a_page_of_another_run_is_seen(self):
        for what, change in {
            "a number": (SUMMARY.replace("0.0115", "0.0116"), SUMMARY),
            "the fingerprint": ("<!-- transcripts ", "<!-- transcripts 0"),
            "when it was": ("from one run", "from one good run"),
            "an output without a marker": ("<!-- transcripts ", f"```console\n$ {TWO_RANKS}\n{SUMMARY}\n```\n<!-- transcripts "),
            "a marker that is none": ("<!-- transcripts ", "<!-- trancript lines=3 -->\n<!-- transcripts "),
            "a marker without its block": ("<!-- transcripts ", "<!-- transcript lines=3 -->\n<!-- transcripts "),
            "a marker with a stray word": ("<!-- transcripts ", "<!-- transcript lines 3 -->\n```console\n$ true\n```\n<!-- transcripts "),
        }.items():
            with self.subTest(what):
                self.write_pages()
                readme = self.root / "README.md"
                before = readme.read_text()
                readme.write_text(before.replace(change[1], change[0]) if what == "a number" else before.replace(*change))
                self.assertNotEqual(readme.read_text(), before)
                self.assertNotEqual(transcripts.wrong_pages(), [])

    def test_another_digest_or_distance_is_seen(self):
        for other in (SUMMARY.replace("e140", "e141"), SUMMARY.replace("1.40743", "1.40843")):
            self.write_pages(other_summary=other)
            self.assertEqual(len(transcripts.wrong_pages()), 1)
        self.write_pages(other_summary=SUMMARY.replace("1.40743", "1.40744"))
        self.assertEqual(transcripts.wrong_pages(), [])

    def test_a_number_that_is_another_where_it_is_quoted_is_seen(self):
        for quoted, paragraph, complaints in (
                ("1.09 | 1.00", "Of S and M 1.09 and 1.00 times as long.", 0),
                ("1.09 | 1.00", "Of S and M 1.00 and 1.09 times as long.", 1),
                ("1.09 | 1.00", "Of S and M 1.09 and 1.0 times as long.\n\n1.00", 1),
                ("1.09 | 1.00", "Of S and M 11.09 and 1.00 times as long.", 1),
                ("1.09 | 1.01", "Of S and M 1.09 and 1.01 times as long.", 1)):
            with self.subTest(f"{quoted}: {paragraph}"):
                self.write("README.md", "| S | M |\n| 1.09 | 1.00 |\n")
                self.write("common/README.md", f"<!-- quoted from README.md: {quoted} -->\n{paragraph}\n")
                self.assertEqual(len(list(transcripts.wrong_quotes(self.root / "common/README.md"))), complaints)
        self.write("common/README.md", "<!-- quoted from nowhere.md: 1.09 -->\n1.09\n")
        self.assertEqual(len(list(transcripts.wrong_quotes(self.root / "common/README.md"))), 1)

    def test_what_fails_in_the_background_is_seen(self):
        for command, code in {"true & true & wait": 0, "false & true & wait": 1, "for i in 0 3; do exit $i & done; wait": 3, "wait": 0}.items():
            with self.subTest(command):
                self.assertEqual(transcripts.run_command(command, self.root, None).returncode, code)

    def test_a_command_over_several_lines_is_one(self):
        self.assertEqual(list(transcripts.commands("$ a --b \\\n    --c\nout\n$ d\n")), [("a --b --c", ["out"]), ("d", [])])


class StageDiffs(TemporaryTree):
    def setUp(self):
        super().setUp()
        for after, before, _ in stage_diffs.DIFFS + stage_diffs.EXERCISES:
            for path in (after, before):
                self.write(path, "// A stage.\n#include \"common/stage.hpp\"\nint a;\nint b;\nint c;\nint d;\nint e;\nint f;\n")
        self.stage = self.root / "02_data_parallel/main.cpp"
        self.write("README.md", "")

    def complaints(self):
        return self.run_quietly(stage_diffs.wrong_stages)[0]

    def test_every_page_is_read(self):
        pages = ["README.md", "02_data_parallel/README.md", "bench/peers/README.md", "common/README.md", "data/README.md", "docs/slurm.md"]
        for page in pages:
            (self.root / page).parent.mkdir(parents=True, exist_ok=True)
            self.write(page, "")
        self.assertEqual([page.relative_to(self.root).as_posix() for page in stage_diffs.pages()],
                         ["README.md", "02_data_parallel/README.md", "common/README.md", "data/README.md", "bench/peers/README.md", "docs/slurm.md"])

    def test_a_comment_that_is_no_marker_is_seen(self):
        self.write("common/README.md", "<!-- hunk 02_data_parallel/main.cpp: int a -->\n<!-- transcript lines=1 -->\n")
        self.assertEqual(stage_diffs.strange_comments(self.root / "common/README.md", (stage_diffs.HUNK,), {"hunk"}), [])
        for comment in "<!-- hunks 02_data_parallel/main.cpp: a -->", "<!-- hunk 02_data_parallel/main.cpp -->", "<!-- excerpt README.md -->\n":
            self.write("common/README.md", comment)
            with self.subTest(comment):
                self.assertIn("no such marker", self.run_quietly(stage_diffs.main, ["--check"])[1])

    def test_a_short_stage_with_a_small_diff_passes(self):
        self.assertEqual(self.complaints(), [])

    def test_a_long_stage_a_large_diff_and_a_word_are_seen(self):
        text = self.stage.read_text()
        for what, added in {"lines": "int x;\n" * 65, "diff": "int x;\n" * 9, "word": "fused();\n", "ifdef": "#ifdef X\n"}.items():
            with self.subTest(what):
                self.stage.write_text(text + added)
                self.assertNotEqual(self.complaints(), [])
        self.stage.write_text(text)
        self.write(stage_diffs.MAY_NAME_THEM, text + "completes_step();\n")
        self.assertEqual(self.complaints(), [])

    def test_an_exercise_that_is_no_longer_its_stage_is_seen(self):
        exercise = self.root / stage_diffs.EXERCISES[0][0]
        exercise.write_text(exercise.read_text() + "int x;\n" * 12)
        self.assertIn(f"{stage_diffs.EXERCISES[0][0]}: 12 changed lines, expected at most 11", self.complaints())

    def test_a_hunk_stays_under_its_heading(self):
        page = self.root / "02_data_parallel/README.md"
        marker = "<!-- hunk 02_data_parallel/main.cpp: int {} -->\n"
        page.write_text("# First\n\n" + marker.format("aa") + "\n# Last\n\n" + marker.format("ff"))
        for text in ("int aa;\nint b;\nint c;\nint d;\nint e;\nint ff;\n", "int aa;\nint new;\nint b;\nint c;\nint d;\nint e;\nint ff;\n"):
            for source in self.stage, self.stage.with_name("mirrored.cpp"):  # which builds on it, with no hunk of its own
                source.write_text("// A stage.\n#include \"common/stage.hpp\"\n" + text)
            _, expected, complaints = stage_diffs.update_page(page)
            self.assertEqual(complaints, [])
            self.assertNotEqual(page.read_text(), expected)
            page.write_text(expected)
            first, last = expected.split("# Last")
            self.assertIn("+int aa;", first)
            self.assertIn("+int ff;", last)

    def test_a_hunk_without_or_with_two_places_is_seen(self):
        page = self.root / "02_data_parallel/README.md"
        self.stage.write_text(self.stage.read_text().replace("int a;", "int aa;"))
        for count in (0, 2):
            page.write_text("<!-- hunk 02_data_parallel/main.cpp: int aa -->\n" * count)
            self.assertNotEqual(stage_diffs.update_page(page)[2], [])
        page.write_text("<!-- hunk 02_data_parallel/main.cpp: int zz -->\n")
        self.assertNotEqual(stage_diffs.update_page(page)[2], [])


class Pictures(TemporaryTree):
    def setUp(self):
        super().setUp()
        for page in ROOT.glob("0?_*/README.md"):  # a snapshot of a stage may lie beside its folder
            shutil.copytree(page.parent, self.root / page.parent.name)
        self.document = json.loads((ROOT / "tests/support/full_report.json").read_text())
        self.failed = [run for run in self.runs() if run["error"]]
        self.document["ddp_scaling"]["runs"] = [run for run in self.runs() if not run["error"]]
        self.comparison("baseline")["ci95"] = [1.25, 2.0]

    def comparison(self, kind):
        """Of stage 03 at its most ranks, or of its control."""
        return [entry for entry in self.document["ddp_scaling"]["comparisons"]
                if entry["kind"] == kind and entry["a"].startswith("S/weak/03_ddp_spawn/")][-1]

    def runs(self):
        return self.document["ddp_scaling"]["runs"]

    def test_it_shows_the_stages_and_the_reports_numbers(self):
        svg = pictures.stages(self.document, pictures.LIGHT)
        texts = [node.firstChild.data for node in xml.dom.minidom.parseString(svg).getElementsByTagName("text")]
        for stage, _ in pictures.STAGES:
            self.assertIn(stage, texts)
        self.assertIn("2.29", texts)  # of stage 03 at 4 ranks
        self.assertEqual(texts.count("not measured"), 3)
        between = stage_diffs.changed_code_lines("03_ddp_spawn/main.cpp", "04_ddp_launcher/main.cpp")
        self.assertIn(f"{between} lines", texts)
        self.assertTrue(any("AMD EPYC" in line and "2026-01-02" in line for line in texts))

    def test_a_report_that_says_nothing_is_refused(self):
        run = next(run for run in self.runs() if run["stage"] == "03_ddp_spawn")
        for field, value in (("parity", {"ok": False}), ("parity", {"ok": None}), ("error", "exit code 1"), ("launcher", "bsub"), ("backend", "x"),
                             ("relative_speedup", math.nan), ("relative_speedup", None), ("relative_speedup", 0)):
            before, run[field] = run[field], value
            with self.subTest(f"{field} {value}"), self.assertRaises(pictures.Refused):
                pictures.stages(self.document, pictures.DARK)
            run[field] = before
        self.assertTrue(self.failed)
        self.document["ddp_scaling"]["runs"] += self.failed
        with self.assertRaises(pictures.Refused):
            pictures.stages(self.document, pictures.DARK)

    def test_a_report_without_intervals_is_refused(self):
        for kind in "control", "baseline":
            comparison = self.comparison(kind)
            before, comparison["ci95"] = comparison["ci95"], None
            with self.subTest(kind), self.assertRaisesRegex(pictures.Refused, "interval, expected 6 repetitions or more"):
                pictures.stages(self.document, pictures.DARK)
            comparison["ci95"] = before
        self.document["ddp_scaling"]["comparisons"] = [self.comparison("baseline")]
        with self.assertRaisesRegex(pictures.Refused, "without an A/A control"):
            pictures.stages(self.document, pictures.DARK)

    def test_intervals_are_those_of_the_report(self):
        run = next(run for run in self.runs() if run["name"] == self.comparison("baseline")["a"])
        self.assertEqual(run["world_size"], 4)  # so 4 times the samples in a step
        self.document["ddp_scaling"]["comparisons"].insert(0, {**self.comparison("baseline"), "kind": "variant", "ci95": [3.0, 4.0]})
        self.assertEqual(pictures.speedup(run, self.document), (run["relative_speedup"], 4 / 2.0, 4 / 1.25))
        self.assertEqual(pictures.control_range(self.document), tuple(self.comparison("control")["ci95"]))
        svg = pictures.stages(self.document, pictures.LIGHT)
        self.assertIn("Equal commands took 0.97 to 1.02 times as long", svg)
        self.assertEqual(svg.count("v8 M"), 1)  # one stage has an interval

    def test_only_the_stages_themselves_are_drawn(self):
        drawn = pictures.stages(self.document, pictures.LIGHT)
        run = next(run for run in self.runs() if run["stage"] == "03_ddp_spawn" and run["world_size"] == 4)
        at = self.runs().index(run)
        for field, value in (("kind", "peer"), ("variant", "by_hand"), ("speedup", "fused"), ("scaling", "strong"), ("gradient_compression", "bf16"),
                             ("shard_optimizer", True), ("launcher", "srun"), ("backend", "mpi")):
            self.runs().insert(at, {**run, "relative_speedup": 3.5, field: value})
            with self.subTest(field):
                self.assertEqual(pictures.stages(self.document, pictures.LIGHT), drawn)
            del self.runs()[at]
        self.runs().insert(at, {**run, "relative_speedup": 3.5, "backend": "shm"})  # which comes before gloo
        self.assertIn(">3.50<", pictures.stages(self.document, pictures.LIGHT))
        self.document["ddp_scaling"]["partial"] = True
        with self.assertRaisesRegex(pictures.Refused, "broken off"):
            pictures.stages(self.document, pictures.LIGHT)

    def test_a_commit_with_changes_is_drawn_as_such(self):
        for commit, shown in (("0123456789abcdef", "commit 0123456789ab."), ("0123456789abcdef-dirty", "commit 0123456789ab-dirty.")):
            self.document["ddp_scaling"]["software"]["git_commit"] = commit
            self.assertIn(shown, pictures.stages(self.document, pictures.LIGHT))

    def test_another_picture_is_seen(self):
        report = self.root / "report.json"
        report.write_text(json.dumps(self.document))
        arguments = [str(report)]
        self.assertEqual(self.run_quietly(pictures.main, ["--check", *arguments])[0], 1)
        self.assertEqual(pictures.main(arguments), 0)
        self.assertEqual(pictures.main(["--check", *arguments]), 0)
        for name, before, after in (("stages_dark", "2.29", "3.29"), ("data_parallel_light", "scatter", "gather"), ("all_reduce_dark", "rank 2", "rank 1"),
                                    ("nodes_light", "GPU 3", "GPU 11"), ("whose_samples_dark", "order[4]", "order[3]")):
            path = self.root / f"docs/{name}.svg"
            drawn = path.read_text()
            self.assertIn(before, drawn)
            path.write_text(drawn.replace(before, after))
            code, said = self.run_quietly(pictures.main, ["--check", *arguments])
            self.assertEqual((code, said.count("\n")), (1, 1))
            self.assertIn(f"docs/{name}.svg", said)
            path.write_text(drawn)
        for text in "{", "{}", "[]", '{"ddp_scaling": 3}':
            report.write_text(text)
            code, said = self.run_quietly(pictures.main, arguments)
            self.assertEqual((code, said.count("\n")), (1, 1))


class Explanations(unittest.TestCase):
    """The pictures that show no measurement; and of all of them, that they can be read."""

    drawn = {path.stem: xml.dom.minidom.parseString(svg) for path, svg in pictures.drawn(performance_table.load(pictures.REPORT)).items()}

    def texts(self, name):
        return self.drawn[name].getElementsByTagName("text")

    def contents(self, name):
        return [node.firstChild.data for node in self.texts(name)]

    def place(self, node):
        """Left, top, right, bottom, with letters as wide as those of a wide font."""
        size, content = float(node.getAttribute("font-size")), node.firstChild.data
        bold = 1.06 if node.getAttribute("font-weight") == "600" else 1
        width = len(content) * size * (0.603 if "mono" in node.getAttribute("font-family") else 0.54 * bold)
        left = float(node.getAttribute("x")) - {"start": 0, "middle": 0.5, "end": 1}[node.getAttribute("text-anchor")] * width
        bottom = float(node.getAttribute("y"))
        return left, bottom - 0.72 * size, left + width, bottom + 0.2 * size

    def test_no_text_is_cut_or_on_another(self):
        self.assertEqual(len(self.drawn), 10)
        for name, document in self.drawn.items():
            svg = document.documentElement
            self.assertEqual(svg.getAttribute("role"), "img")
            self.assertEqual(svg.getAttribute("aria-label"), svg.getElementsByTagName("title")[0].firstChild.data)
            width, height = (float(svg.getAttribute(side)) for side in ("width", "height"))
            self.assertEqual(width, 560)
            places = [(self.place(node), node.firstChild.data) for node in self.texts(name)]
            for index, ((left, top, right, bottom), content) in enumerate(places):
                with self.subTest(f"{name}: {content}"):
                    self.assertTrue(0 <= left and right <= width and 0 <= top and bottom <= height, (left, top, right, bottom))
                    for (other_left, other_top, other_right, other_bottom), other in places[:index]:
                        self.assertFalse(left < other_right and other_left < right and top < other_bottom and other_top < bottom, f"on {other}")

    def test_text_has_contrast(self):
        def luminance(colour):
            parts = [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]
            red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
            return 0.2126 * red + 0.7152 * green + 0.0722 * blue

        for page, colours in (("#ffffff", pictures.LIGHT), ("#0d1117", pictures.DARK)):
            pairs = [(colours[letters], ground) for letters in ("text", "muted", "blue", "orange") for ground in (page, colours["box"])]
            pairs += [(colours["on_bar"], colours[ground]) for ground in ("muted", "blue", "orange")]
            for pair in pairs:
                darker, lighter = sorted(map(luminance, pair))
                with self.subTest(pair):
                    self.assertGreaterEqual((lighter + 0.05) / (darker + 0.05), 4.5)  # WCAG 2, level AA

    def test_what_is_called_is_in_the_stages(self):
        for name, sources in (("data_parallel", ["02_data_parallel/main.cpp", "common/parallel/data_parallel.hpp"]),
                              ("all_reduce", ["03_ddp_spawn/main.cpp", "03_ddp_spawn/by_hand.cpp"])):
            source = "".join((ROOT / path).read_text() for path in sources)
            called = [node.firstChild.data for node in self.texts(f"{name}_light")[1:] if "mono" in node.getAttribute("font-family")]
            self.assertGreater(len(called), 5)
            for function in called:
                self.assertRegex(source, rf"\b{re.escape(function)}", name)

    def test_ranks_make_equal_updates_of_different_gradients(self):
        bars = {}  # heights by the line that they stand on and their column
        for rect in self.drawn["all_reduce_dark"].getElementsByTagName("rect"):
            x, y, width, height = (float(rect.getAttribute(field)) for field in ("x", "y", "width", "height"))
            if width < 15 and not rect.getAttribute("rx"):
                row, column = int((y - pictures.FIRST_ROW) // pictures.PITCH), int((x - pictures.COLUMNS[0]) // 134)
                bars.setdefault(row, {}).setdefault(column, []).append((y, height))
        rows = [list(bars[row].values()) for row in sorted(bars)]
        self.assertEqual([len(row) for row in rows], [3] * 4)
        self.assertEqual([all(values == row[0] for values in row) for row in rows], [True, False, True, True])
        means = [sum(gradients) / 3 for gradients in zip(*pictures.GRADIENTS)]
        for values, row in ((pictures.WEIGHTS, rows[0]), (means, rows[2]), ([w - 0.6 * g for w, g in zip(pictures.WEIGHTS, means)], rows[3])):
            for value, (_, height) in zip(values, row[0], strict=True):
                self.assertAlmostEqual(height, abs(value) * 13, delta=0.06)

    def test_a_rank_is_above_its_device(self):
        where = {}
        for node in self.texts("nodes_dark"):
            where.setdefault(node.getAttribute("x"), []).append(node.firstChild.data)
        columns = [column for column in where.values() if any(content.startswith("GPU") for content in column)]
        self.assertEqual(columns, [[str(gpu), str(gpu), f"GPU {gpu}", str(8 + gpu), str(gpu), f"GPU {gpu}"] for gpu in range(8)])
        self.assertIn("rank 11 = node 1 × 8 + local rank 3", self.contents("nodes_dark"))
        self.assertIn("rank 11 on the second node of eight GPUs each has local rank 3 and GPU 3",
                      (ROOT / "05_multinode/README.md").read_text().replace("\n", " "))

    def test_the_samples_are_those_that_the_stages_read(self):
        # As core_test sees shuffled_indices() give.
        order = [6, 3, 0, 7, 10, 15, 2, 12, 14, 9, 8, 5, 4, 13, 11, 1]
        self.assertEqual(pictures.shuffled_indices(16, 42, 0), order)
        self.assertIn(str(order).replace("[", "{").replace("]", "}"), re.sub(r"\s+", " ", (ROOT / "tests/core_test.cpp").read_text()))
        self.assertEqual(pictures.shuffled_indices(16, 41, 1), order)
        numbers = [int(content) for content in self.contents("whose_samples_light") if content.isdigit()]
        one, *ranks = numbers[:16], numbers[16:24], numbers[24:]
        self.assertEqual((one, ranks), (order, [order[0::2], order[1::2]]))
        for step in range(4):
            self.assertEqual({index for rank in ranks for index in rank[2 * step:2 * step + 2]}, set(one[4 * step:4 * step + 4]))


class Launches(unittest.TestCase):
    def test_slow_launches_are_counted(self):
        fast = [launches.Launch(0.04, 1_600_000 - 100 * number, 100 + number, 5) for number in range(18)]
        slow = [launches.Launch(0.053, 64e6 / 52.5, 4000, 7), launches.Launch(0.052, 64e6 / 51.9, 200, 6)]  # 1.31 and 1.297 times the fastest
        said = launches.summary(fast + slow)
        self.assertEqual(said, "step us 40 40.01 40.02 51.9 52.5, p90/p10 1.30, over 1.3 x fastest 1 of 20 (switches voluntary 4000), "
                         "switches voluntary 110 (most 4000), involuntary 5 (most 7)")

    def test_variants_are_compared_turn_by_turn(self):
        first = [launches.Launch(0.04, 1_600_000 + number, 1, 1) for number in range(9)]
        slower = [launches.Launch(0.05, (1_600_000 + number) / (1 + number / 100), 1, 1) for number in range(9)]
        self.assertEqual(launches.show_ratio(slower, first), "step over the first variant's 1.0400 (1.0100 to 1.0700)")
        self.assertIn("too few turns", launches.show_ratio(slower[:3], first[:3]))

    def test_phases_tell_a_slow_rank_from_a_slow_wait(self):
        rows = [{"summary": {}}]
        for step, (slowest_ms, fastest_ms, last_waits_ms) in enumerate([(0.3, 0.17, 0.003), (0.34, 0.18, 0.005), (0.32, 0.1, 0.001)]):
            for rank, own_ms in enumerate([slowest_ms, fastest_ms]):
                wait_ms = last_waits_ms + slowest_ms - own_ms
                rows.append({"rank": rank, "epoch": 0, "step": step, "step_ms": own_ms + wait_ms, "exposed_comm_ms": wait_ms})
        phases = launches.Phases.of("\n".join(map(json.dumps, rows)))
        for measured, expected in zip((phases.slowest_us, phases.fastest_us, phases.least_comm_us), (320, 170, 3)):
            self.assertAlmostEqual(measured, expected)
        even = launches.Launch(0.2, 320_000, 100, 5, launches.Phases(172, 171, 2.6))
        said = launches.summary([even, launches.Launch(0.36, 177_000, 700, 5, phases)])
        self.assertIn("\n  without what it waits the slowest rank of a step takes over 1.3 x the least in 1 of 2"
                      "\n  slow ones: without what it waits the slowest rank takes 320 us, the fastest 170; communication of the last one 3\n"
                      "  others: without what it waits the slowest rank takes 172 us, the fastest 171; communication of the last one 2.6", said)
        self.assertNotIn("slow ones", launches.summary([even, even]))

    def test_phases_are_those_of_the_launch(self):
        rows = [{"rank": rank, "epoch": 0, "step": 0, "step_ms": 0.04, "exposed_comm_ms": 0.01} for rank in (0, 1)]
        script = [sys.executable, "-c", f"import sys; assert sys.argv[1] == '--metrics'; open(sys.argv[2], 'w').write({chr(10).join(map(json.dumps, rows))!r});"
                  f" print({SUMMARY!r})"]
        launched = launches.launch_with_phases(script)
        self.assertEqual(launched.samples_per_s, 1600000)
        for measured, expected in zip((launched.phases.slowest_us, launched.phases.fastest_us, launched.phases.least_comm_us), (30, 30, 10)):
            self.assertAlmostEqual(measured, expected)
        with self.assertRaises(SystemExit) as refused:
            launches.Phases.of('{"summary": {}}')
        self.assertIn("no step", refused.exception.code)

    def test_a_run_that_fails_is_no_launch(self):
        script = [sys.executable, "-c", "import sys; print(sys.argv[1]); sys.exit(int(sys.argv[2]))"]
        launched = launches.launch([*script, SUMMARY, "0"])
        self.assertEqual((launched.step_ms, launched.samples_per_s), (0.040, 1600000))
        for printed, code in (SUMMARY, "1"), ("", "0"), (SUMMARY.replace("0.040", "nan"), "0"):
            with self.assertRaises(SystemExit) as refused:
                launches.launch([*script, printed, code])
            self.assertIn(f"exit code {code}", refused.exception.code)


class CommandLines(unittest.TestCase):
    def test_what_is_no_option_changes_nothing(self):
        for script in stage_diffs, transcripts, pictures:
            for arguments in ["--chek"], ["--check", "one", "two"]:
                with self.subTest(f"{script.__name__} {arguments}"), contextlib.redirect_stderr(io.StringIO()), \
                        self.assertRaises(SystemExit) as refused:
                    script.main(arguments)
                self.assertEqual(refused.exception.code, 2)


class Links(unittest.TestCase):
    def anchors(self, page):
        """As GitHub makes them of headings."""
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
                for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)}

    def test_every_link_within_the_repository_leads_somewhere(self):
        count = 0
        for page in stage_diffs.pages():
            text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
            for link in re.findall(r"\]\(([^)]+)\)", text) + re.findall(r"<(?:img|source)[^>]* src(?:set)?=\"([^\"]+)", text):
                if link.startswith("http"):
                    continue
                count += 1
                path, _, anchor = link.partition("#")
                target = (page.parent / path).resolve() if path else page
                with self.subTest(f"{page.relative_to(ROOT)}: {link}"):
                    self.assertTrue(target.exists())
                    if anchor:
                        self.assertIn(anchor, self.anchors(target))
        self.assertGreater(count, 0)

    def test_links_to_others_are_well_formed(self):
        count = 0
        for page in [*stage_diffs.pages(), *sorted((ROOT / "docs/exercises").glob("[0-9]*.md"))]:
            for link in re.findall(r"(?:\]\(|<|\bhref=\")(\w+:(?!:)[^)>\s\"]*)", page.read_text()):
                count += 1
                with self.subTest(f"{page.relative_to(ROOT)}: {link}"):
                    self.assertRegex(link, r"^https://[a-z0-9-]+(?:\.[a-z0-9-]+)+(?:/[\w./~%+#?=&@:,-]*)?$")
                    self.assertNotRegex(link, r"[.,:]$")
        self.assertGreater(count, 40)


class FirstSetup(unittest.TestCase):
    """What `./bench/run.sh`, the first page's one command, builds."""

    def test_every_program_that_the_course_runs_is_built(self):
        cmake = (ROOT / "bench/CMakeLists.txt").read_text()
        built = set(" ".join(re.findall(r"(?:add_custom_target|add_dependencies)\(benchmark ([^)]*)\)", cmake)).split())
        pages = [ROOT / "README.md", *ROOT.glob("0?_*/README.md"), ROOT / "docs/collectives.md", *(ROOT / "docs/exercises").glob("*.md")]
        programs = {program for page in pages for program in re.findall(r"\bbuild/bin/([\w-]+)", page.read_text())}
        self.assertGreater(len(programs), 8)
        # After `tools/setup.sh`, as the first page says; by the command that the exercise begins with.
        exercise = (ROOT / "docs/exercises/18_hook_per_parameter.md").read_text()
        own = set(re.search(r"`cmake --build build --target ([\w ]+)`", exercise)[1].split())
        for program in programs - {"submit"} - own:
            self.assertIn("simulations" if program.startswith("sim_") else program, built)


class Chapters(unittest.TestCase):
    """The stages' READMEs: the same parts in the same order, words said once and before they are used, questions with one right answer."""

    HEADINGS = ["Words", "The idea", "Run it", "Compared with", "Try", "Check yourself"]
    # Of the field, which a newcomer does not know; a chapter may define more.
    WORDS = {"rank", "world size", "local rank", "process group", "backend", "collective", "all-reduce", "store", "rendezvous", "hook", "bucket",
             "replica", "snapshot", "launcher", "node"}
    # Without its questions five minutes for who reads 240 in a minute; code and tables are not counted.
    MAX_WORDS = 1200
    chapters = {page.parent.name: page.read_text() for page in sorted(ROOT.glob("0?_*/README.md"))}

    def prose(self, text):
        return re.sub(r"```.*?```|<[^>]+>|`[^`\n]*`|\]\([^)]*\)|^\|.*$", "", text, flags=re.DOTALL | re.MULTILINE)

    def wrong_questions(self, chapter):
        """Complaints about the questions of a chapter."""
        complaints = []
        questions = re.split(r"^\*\*(\d)\. ", chapter.partition("## Check yourself\n")[2], flags=re.MULTILINE)[1:]
        if questions[::2] != list("12345"):
            complaints.append(f"questions {' '.join(questions[::2])}, expected 1 to 5")
        rights = set()
        for number, text in zip(questions[::2], questions[1::2]):
            asked, _, answer = text.partition("<details>\n<summary>Answer</summary>\n\n")
            choices = re.findall(r"^\* ([a-z])\. \S", asked, re.MULTILINE)
            right = re.findall(r"^\*\*([a-z]) is right\*\*: \S", answer, re.MULTILINE)
            wrong = re.findall(r"^\* ([a-z]): \*[^*]+\*\. \S", answer, re.MULTILINE)
            rights.update(right)
            if len(choices) not in (3, 4) or choices != list("abcd")[:len(choices)]:
                complaints.append(f"{number}: answers {' '.join(choices)}, expected a to c or d")
            if len(right) != 1 or sorted(right + wrong) != choices:
                complaints.append(f"{number}: right {' '.join(right)}, misconceptions of {' '.join(wrong)}, expected one of {' '.join(choices)}, and the rest")
            if answer.count("</details>") != 1 or "?" not in asked.partition("**")[0]:
                complaints.append(f"{number}: expected a question in bold, and its answer folded")
        if len(rights) < 2:
            complaints.append("the same letter is right in every question")
        return complaints

    def test_each_has_its_parts_in_order(self):
        self.assertEqual(len(self.chapters), 5)
        for name, text in self.chapters.items():
            with self.subTest(name):
                self.assertRegex(text, rf"^# {name}: .+\n\nBuilds on .+\n\n\*\*The question\*\*: [^\n]+\?\n\n## Words\n")
                headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
                places = [next((place for place, heading in enumerate(headings) if heading.startswith(wanted)), -1) for wanted in self.HEADINGS]
                self.assertNotIn(-1, places, headings)
                self.assertEqual(places, sorted(places), headings)
                self.assertRegex(text, r"(?s)## Compared with.*<!-- table \d of --beside .*results/.*## Try\n.*docs/exercises/.*```console\n\$ .*## Check")
                self.assertRegex(text, r"\n(?:Next: \[|Back to \[).*\n$")
                # Its picture: drawn, or of letters.
                self.assertRegex(text.partition("## The idea")[2].partition("\n## ")[0], r"<picture>|\n    \S.*>")
                self.assertLess(len(self.prose(text.partition("## Check yourself")[0]).split()), self.MAX_WORDS)

    def test_words_are_defined_once_and_before_they_are_used(self):
        definition = re.compile(r"^\* \*\*(.+?)\*\*: \S", re.MULTILINE)
        defined = [word for text in self.chapters.values() for word in definition.findall(text)]
        self.assertEqual(sorted(defined), sorted(set(defined)))
        self.assertLessEqual(self.WORDS, set(defined))
        sections = []
        for name, text in self.chapters.items():
            self.assertIn(len(definition.findall(text.partition("## Words\n")[2].partition("\n## ")[0])), (3, 4, 5), name)
            # What leads on to another chapter may use that one's words.
            sections += re.split(r"^(?=#+ )", re.sub(r"^Next: .*$", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
        for word in defined:
            used = re.compile(rf"\b{word}s?\b", re.IGNORECASE)
            for section in sections:
                if f"* **{word}**: " in section:
                    break
                with self.subTest(f"{word} in: {section.splitlines()[:1]}"):
                    self.assertNotRegex(self.prose(section), used)

    def test_each_has_five_questions_with_one_right_answer(self):
        for name, text in self.chapters.items():
            self.assertEqual(self.wrong_questions(text), [], name)

    def test_a_question_that_is_none_is_seen(self):
        text = self.chapters["01_single_gpu"]
        for what, change in {"none right": ("**b is right**", "b"), "two right": ("* a: *a step is a sample*. ", "**a is right**: "),
                             "a wrong one without its misconception": ("* c: *an epoch is a step*. ", "* c: "),
                             "a letter that is no choice": ("**b is right**", "**e is right**"), "a question too few": ("**5. ", "5. "),
                             "a choice too few": ("* c. 1\n", ""), "not folded": ("<details>\n<summary>Answer</summary>", "Answer")}.items():
            with self.subTest(what):
                self.assertIn(change[0], text)
                self.assertNotEqual(self.wrong_questions(text.replace(*change, 1)), [])

    def test_every_exercise_is_in_a_chapter(self):
        exercises = sorted((ROOT / "docs/exercises").glob("[0-9]*.md"))
        self.assertGreater(len(exercises), 5)
        for exercise in exercises:
            links = sum(text.partition("## Try\n")[2].partition("\n## ")[0].count(f"](../docs/exercises/{exercise.name})") for text in self.chapters.values())
            self.assertEqual(links, 1, exercise.name)


class Defaults(unittest.TestCase):
    """docs/defaults.md, and the digests that the READMEs print."""

    page = (ROOT / "docs/defaults.md").read_text()
    options_hpp = (ROOT / "common/launch/options.hpp").read_text()
    sources = {path: path.read_text() for path in [*(ROOT / "common").rglob("*.[ch]pp"), *(ROOT / "tools/submit").glob("*.cpp")]}
    # What LibTorch and CUDA read themselves.
    of_others = {"PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES"}

    def test_what_it_names_is_there(self):
        options = set(re.findall(r"--[a-z][a-z-]+", self.page))
        self.assertGreater(len(options), 15)
        known = (ROOT / "common/launch/options.cpp").read_text()
        for option in options:
            self.assertRegex(known, rf'[",]{option}[",]', "no stage has this option")
        variables = set(re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", self.page))
        self.assertGreater(len(variables), 10)
        everything = "\n".join(self.sources.values())
        for variable in variables - self.of_others:
            self.assertIn(f'"{variable}"', everything, "nothing reads or sets this variable")

    def test_every_variable_that_is_set_is_named(self):
        set_by_name = {variable for text in self.sources.values() for variable in re.findall(r'setenv\("(\w+)"', text)}
        self.assertEqual(len(set_by_name), 4, set_by_name)
        # In a loop over their names.
        in_a_loop = set(re.findall(r'"(TORCH_NCCL_\w+)"', self.sources[ROOT / "common/backends/cuda/cuda.cpp"]))
        self.assertEqual(len(in_a_loop), 4, in_a_loop)
        for variable in set_by_name | in_a_loop:
            self.assertIn(f"`{variable}`", self.page)
        self.assertEqual(sum(text.count("setenv(name") for text in self.sources.values()), 1, "another loop sets variables")

    def test_the_options_defaults_are_those_of_the_code(self):
        fields = {"batch-size": "batch_per_rank"}
        rows = re.findall(r"^\| `--([a-z-]+)` \| ([\w.]+) \|", self.page, re.MULTILINE)
        self.assertGreater(len(rows), 8)
        for option, default in rows:
            with self.subTest(option):
                field = fields.get(option, option.replace("-", "_"))
                self.assertRegex(self.options_hpp, rf'\b{field} = "?{re.escape(default)}"?;')
        # In the tables by subject.
        for default in ("bucket_mib = 25;", "timeout_seconds = 120;", 'bind = "none";', 'backend = "auto";',
                        'gradient_compression = "none";'):
            self.assertIn(default, self.options_hpp)

    def test_a_page_that_prints_a_digest_says_what_it_depends_on(self):
        printing = [page for page in stage_diffs.pages() if re.search(r"\| digest [0-9a-f]{16} \|", page.read_text())]
        self.assertGreater(len(printing), 5)
        for page in printing:
            self.assertIn("another kind of processor", page.read_text().replace("\n", " ").replace("On an", "on an"), page)


class PageCommands(TemporaryTree):
    """page_commands.py, with two programs that are made up."""

    def complaints(self, text):
        programs = page_commands.other_programs()
        programs["bench"] = page_commands.Program("  --models NAME,... ...   T, S (default: all)\n  --quick   one\n"
                                                  "  --scaling NAME,...:{weak,strong} ...   weak: a\n")
        programs["03_ddp_spawn"] = page_commands.Program("  --backend auto, shm or gloo (default auto)\n  --lr RATE (default 1)   rate\n"
                                                         "  --inject NAME (default none)   none, no-mean or mismatched\n")
        for name in programs:
            (self.root / "build/bin").mkdir(parents=True, exist_ok=True)
            (self.root / "build/bin" / name).touch()
        check = page_commands.Check(self.root / "build", programs)
        self.write("page.md", text)
        check.check_page(self.root / "page.md")
        return check.complaints

    def setUp(self):
        super().setUp()
        self.addCleanup(setattr, page_commands, "ROOT", page_commands.ROOT)
        for name in "CMakeLists.txt", "simulator/CMakeLists.txt", "CMakePresets.json", "docs/a.md":
            self.write(name, 'simulations DDP_KNOWN "name": "dev"')
        page_commands.ROOT = self.root

    def test_a_page_that_is_right_passes(self):
        self.assertEqual(self.complaints("""`--lr 0.1` and `--backend auto|gloo`, `docs/a.md`, `50 10 --lr 1`
```console
$ torchrun --nnodes=2 --no-python build/bin/03_ddp_spawn 50 10 --backend shm --inject no-mean 2>&1 | grep x || true
```

    build/bin/bench --models T,S --scaling weak,strong --quick > docs/a.md   # why --not
    DDP_KNOWN=1 cmake --build build --target simulations && cmake --preset dev
"""), [])

    def test_what_is_not_there_is_seen(self):
        for what, text in {
            "a program": "`build/bin/04_ddp_spawn`",
            "an option": "`build/bin/03_ddp_spawn 50 10 --models T`",
            "an option of no program": "`--learning-rate`",
            "an option in a block": "```sh\nbuild/bin/bench --models T \\\n  --slow\n```",
            "an option below a prompt": "```console\n$ build/bin/bench --slow\n```",
            "an indented option": "Text:\n\n    build/bin/bench --slow",
            "an option of the launcher": "`torchrun --nnodes=2 --no-python build/bin/03_ddp_spawn 50 10 --nnodes 2`",
            "an option of another launcher": "`torchrun --nodes=2 --no-python build/bin/03_ddp_spawn 50 10`",
            "an option behind a pipe": "`zcat a.gz | bench --slow`",
            "a value": "`build/bin/03_ddp_spawn 50 10 --backend nccl`",
            "a value of a list": "`bench --scaling weak,medium`",
            "a value that a name stands for": "`--inject no-such`",
            "a file": "`docs/b.md`",
            "a script": "```sh\ntools/exercises 01\n```",
            "what a program says": "`bench: error: words that no program here says`",
            "a preset": "`cmake --preset devel`",
            "a variable": "`DDP_UNKNOWN`",
            "a target": "`cmake --build build --target simulation`",
        }.items():
            with self.subTest(what):
                self.assertEqual(len(self.complaints(text)), 1, self.complaints(text))


class Results(unittest.TestCase):
    """results/, and the tables and pictures on pages that are from there."""

    documents = {path.name: performance_table.load(path) for path in results.files()}

    def report(self):
        return next(copy.deepcopy(document) for document in self.documents.values() if "ddp_scaling" in document)

    def tree(self):
        """A repository of its own with one page, of which it is told the folder and a commit."""
        folder = tempfile.TemporaryDirectory(prefix="ddp-results-test-")
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name).resolve()
        for module in results, stage_diffs:
            self.addCleanup(setattr, module, "ROOT", module.ROOT)
            module.ROOT = root
        (root / "results").mkdir()
        (root / "tools").mkdir()
        (root / "tools/pictures.py").write_text("")
        (root / "results/README.md").write_text("<!-- index -->\n<!-- end of index -->\n")
        git = ["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a"]
        for command in ["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=first"]:
            subprocess.run([*git, *command], check=True)
        commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        return root, commit, git

    def run_main(self, *arguments):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = results.main([str(argument) for argument in arguments])
        return code, said.getvalue()

    def test_every_file_keeps_the_rules_and_every_table_is_its_files(self):
        self.assertGreater(len(self.documents), 2)
        self.assertEqual(self.run_main("--check"), (0, ""))
        shown = {marker[1:3] for page in stage_diffs.pages() for marker in results.TABLE.findall(page.read_text())}
        self.assertGreater(len(shown), 8)
        heads = [results.table(int(number), arguments)[:7] for number, arguments in sorted(shown, key=lambda one: (one[1], one[0]))]
        for head in ("| step ", "| ratio", "| our o", "| all-r", "Equal c", "| S, tw", "| S on ", "|  | T ", "| model"):
            self.assertIn(head, heads)

    def test_programs_side_by_side_are_those_of_the_report(self):
        report = next(str(path) for path in results.files() if path.name.startswith("T-M_"))
        rows = results.table(1, f"--beside 01_single_gpu/1,02_data_parallel_mirrored/2 {report}").splitlines()[2:]
        self.assertEqual([row.split(" | ")[0] for row in rows],
                         [f"| {model}: {program}" for model in "TM" for program in ("01 single_gpu, 1", "02 data_parallel_mirrored, 2")])
        for row in rows:
            samples, step_ms, samples_per_second = map(float, row.split(" | ")[1:4])
            # The step is shown with two figures at least.
            self.assertAlmostEqual(samples / step_ms * 1000 / samples_per_second, 1, delta=0.05)
        for wrong in "01_single_gpu/3", "01_single_gpu", "nothing/1":
            said = io.StringIO()
            with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as refused:
                performance_table.main(["--beside", wrong, report])
            self.assertEqual(refused.exception.code, 2)
            self.assertIn(f"got {wrong}", said.getvalue())

    def test_the_fastest_run_that_ended_well_is_shown_with_one_thread_and_no_speedup(self):
        document = next(copy.deepcopy(document) for name, document in self.documents.items() if name.startswith("T-M_"))
        scaling = document["ddp_scaling"]

        def shown():
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                performance_table.print_beside(performance_table.Report(document), ["01_single_gpu/1", "03_ddp_spawn/2"])
            return said.getvalue()

        before = shown()
        faster = [{**run, "step_ms": {**run["step_ms"], "median": run["step_ms"]["median"] / 2}} for run in scaling["runs"] if run["kind"] == "stage"]
        for field, value in (("error", "exit code 1"), ("threads", 2), ("speedup", "fused")):
            with self.subTest(field):
                scaling["runs"] += [{**run, field: value} for run in faster]
                self.assertEqual(shown(), before)
                del scaling["runs"][-len(faster):]
        # A ratio that the report has the other way round.
        scaling["comparisons"] = [{"a": run["name"], "b": other["name"], "kind": "variant", "ratio_median": 2.0, "ci95": [1.6, 4.0]}
                                  for run in scaling["runs"] for other in scaling["runs"] if run["stage"] == "01_single_gpu"]
        self.assertEqual(shown().count("| 0.50 (0.25 to 0.62) |"), 2)

    def test_a_broken_file_is_named(self):
        good = self.report()
        good["ddp_scaling"]["software"]["git_commit"] = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
        good["ddp_scaling"]["machine"]["cpu_governor"] = None
        stem = results.name_of(good)
        self.assertEqual(results.broken_rules(good, stem), [])
        for part, field, value, said in (
                ("machine", "cpu_model", None, "does not say its cpu_model"), ("machine", "cores", None, "its cores"), ("machine", "os", None, "its os"),
                ("software", "libtorch", None, "its libtorch"), ("settings", "command", None, "its command"),
                ("settings", "repetitions", None, "its repetitions"), ("software", "git_commit", "0" * 40, "expected one in this history"),
                ("software", "git_commit", good["ddp_scaling"]["software"]["git_commit"] + "-dirty", "without further changes"),
                ("settings", "command", "bench --json /home/me/a.json", "names a path of its machine, /home/me/a.json")):
            broken = copy.deepcopy(good)
            broken["ddp_scaling"][part][field] = value
            with self.subTest(f"{field} {value}"):
                self.assertIn(said, "\n".join(results.broken_rules(broken, stem)))
        del good["ddp_scaling"]["machine"]["cpu_governor"]
        self.assertEqual(results.broken_rules(good, stem), ["does not say its cpu_governor"])
        good["ddp_scaling"].update(partial=True, machine={**good["ddp_scaling"]["machine"], "cpu_governor": "performance"})
        good["ddp_scaling"]["runs"][0]["error"] = "exit code 1"
        self.assertEqual([rule.split(" ")[0] for rule in results.broken_rules(good, "report")], ["is", good["ddp_scaling"]["runs"][0]["name"], "has"])
        self.assertEqual(len(results.broken_rules([], "a")), 1)

    def test_a_new_file_takes_the_place_of_an_older_one(self):
        root, commit, git = self.tree()
        document = self.report()
        document["ddp_scaling"]["software"]["git_commit"] = commit
        document["ddp_scaling"]["software"]["launchers"]["mpirun"] = {"path": "/opt/me/bin/mpirun", "version": "4"}
        models = results.name_of(document).split("_")[0]
        for date in "2027-01-02", "2027-03-04":
            document["context"]["date"] = f"{date}T10:00:00+00:00"
            (root / "new.json").write_text(json.dumps(document))
            code, said = self.run_main("--add", root / "new.json")
            self.assertEqual(code, 0, said)
            name = f"{models}_amd-epyc-2_{date}.json.gz"
            self.assertEqual([path.name for path in results.files()], [name])
            self.assertEqual(performance_table.load(root / "results" / name)["ddp_scaling"]["software"]["launchers"]["mpirun"]["path"], "mpirun")
            self.assertIn(f"| [{name}]({name}) | {date} | AMD EPYC, 2 cores, governor none |", (root / "results/README.md").read_text())
            if date == "2027-01-02":
                kind = "--peers" if models == "S" else "--stages"
                (root / "README.md").write_text(f"[{name}](results/{name})\n\n<!-- table 1 of {kind} results/{name} -->\n| old |\n\nText.\n")
                subprocess.run([*git, "add", "."], check=True)
        page = (root / "README.md").read_text()
        self.assertEqual((page.count(name), page.count("2027-01-02")), (3, 0))
        self.assertRegex(page, r"-->\n\| .*step.*\n\|---(?s:.*)\n\nText.\n$")
        self.assertEqual(self.run_main("--check"), (0, ""))
        for change, other, said in (("| 0", "| 1", "not what results/ gives"), ("](results/", "](", "no link to results/"),
                                    ("<!-- table 1 of", "<!-- table of", "no such marker")):
            (root / "README.md").write_text(page.replace(change, other, 1))
            self.assertIn(said, self.run_main("--check")[1])
        (root / "README.md").write_text(page.replace(name, "gone.json"))
        self.assertIn("there is no results/gone.json", self.run_main("--check")[1])
        (root / "README.md").write_text(page)
        (root / "results/notes.txt").write_text("")
        self.assertIn("notes.txt: expected a .json", self.run_main("--check")[1])
        (root / "results/notes.txt").rename(root / "results/notes.json")
        self.assertIn("notes.json: Expecting value", self.run_main("--check")[1])

    def test_columns_of_a_typed_table_are_its_files(self):
        typed = "| stage | step, ms | what is new |\n|---|---|---|\n| [01](01) | 9.99 | nothing, 5 |\n| [02](02) |  | a | \n"
        printed = "| stage | step, ms |\n|---|---|\n| [01](01) | 0.50 |\n| [02](02) | - |"
        right = "| stage | step, ms | what is new |\n|---|---|---|\n| [01](01) | 0.50 | nothing, 5 |\n| [02](02) | - | a |\n"
        self.assertEqual(results.with_columns(typed, printed), right)
        self.assertEqual(results.with_columns(right, printed), right)
        for change, other in ("step, ms", "step"), ("[02](02)", "[03](03)"), ("| [02](02) |  | a | \n", ""):
            with self.subTest(change), self.assertRaises(ValueError):
                results.with_columns(typed.replace(change, other), printed)
        page = (ROOT / "README.md").read_text()
        self.assertEqual(len(results.COLUMNS.findall(page)), 1)
        for change, other, said in (("| [05_multinode](05_multinode) | ", "| [05_multinode](05_multinode) | 1", None),
                                    ("| lines of code |", "| lines |", "expected the columns")):
            self.assertIn(change, page)
            changed = unittest.mock.Mock(**{"read_text.return_value": page.replace(change, other, 1),
                                            "relative_to.return_value": pathlib.Path("README.md")})
            _, expected, complaints = results.update_page(changed)
            self.assertEqual(expected == page, said is None)
            self.assertIn(said or "", "\n".join(complaints))

    def test_sentences_of_a_report_are_its_own(self):
        document = self.report()
        document["ddp_scaling"]["conclusions"] = [{"code": "ranks", "text": "M: two ranks win."}, {"code": "bound", "text": "M: by arithmetic."}]
        report, said = performance_table.Report(document), io.StringIO()
        with contextlib.redirect_stdout(said):
            performance_table.print_sentences(report, "^ranks M")
        self.assertEqual(said.getvalue(), "* M: two ranks win.\n")
        with self.assertRaisesRegex(ValueError, "--sentences: got '\\^ranks L', expected"):
            performance_table.print_sentences(report, "^ranks L")

    def test_what_breaks_a_rule_is_not_taken_in(self):
        root, _, _ = self.tree()
        (root / "new.json").write_text(json.dumps(self.report()))  # of a commit of another repository
        code, said = self.run_main("--add", root / "new.json")
        self.assertEqual((code, results.files()), (1, []))
        self.assertIn("expected one in this history", said)

    def test_a_sweep_is_named_by_its_suite(self):
        document = {"context": {"date": "2027-01-02T03:04:05+00:00", "cpu_model": "AMD EPYC 9654 (Zen 4)", "num_cpus": 2},
                    "benchmarks": [{"name": f"all_reduce/{backend}/ranks:2/bytes:4", "repetitions": count}
                                   for backend, count in (("shm", 1), ("shm", 3), ("gloo", 2))]}
        self.assertEqual(results.name_of(document), "all_reduce-shm-gloo_amd-epyc-9654-zen-4-2_2027-01-02")
        self.assertEqual(results.facts_of(document)["repetitions"], 3)

    def test_measured_pictures_name_their_file(self):
        measured = [path for path in (ROOT / "docs").rglob("*.svg") if "Measured by bench" in path.read_text()]
        self.assertGreater(len(measured), 1)
        for path in measured:
            self.assertTrue(any(f"results/{name}" in path.read_text() for name in self.documents), path)

    def test_tables_of_numbers_say_where_they_are_from(self):
        number = re.compile(r"\s*-?[\d.,]+(?: \(.*\))?(?: [a-zA-Z%]+)?\s*")
        source = re.compile(r"\bresults/|\b(?:build|bench|tests|tools)/\w+|\b0\d_\w+|`[^`\n]*--[a-z]|computed from|performance\.md#the-models")
        count = 0
        for page in stage_diffs.pages():
            for section in re.split(r"^(?=#+ )", page.read_text(), flags=re.MULTILINE):
                for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
                    cells = [cell for row in table.splitlines()[2:] for cell in row.strip().strip("|").split("|")[1:]]
                    if sum(bool(number.fullmatch(cell)) for cell in cells) > len(cells) / 2:
                        count += 1
                        with self.subTest(f"{page.relative_to(ROOT)}: {table.splitlines()[0]}"):
                            self.assertRegex(section, source, "expected a file in results/ or the command beside a table of numbers")
        self.assertGreater(count, 15)


    def test_tables_that_no_report_holds_say_when_they_were_measured(self):
        held = re.compile(r"<!-- (?:table|columns|quoted)\b.*-->\n$")
        # By cost_of_a_step_test.py, timeline_test.py, simulator/side_by_side.py, the classes above and below; and what only names or limits are.
        elsewhere = {"docs/cost_of_a_step.md", "docs/overlap.md", "docs/simulator.md", "docs/reliability.md: promise", "docs/bench.md", "README.md",
                     "docs/performance.md: name", "docs/data_and_model_parallelism.md: ", "docs/errors.md"}
        count = 0
        for page in stage_diffs.pages():
            for section in re.split(r"^(?=#+ )", page.read_text(), flags=re.MULTILINE):
                for match in re.finditer(r"(?:^\|.*\n)+", section, re.MULTILINE):
                    head, _, *rows = match[0].splitlines()
                    name = f"{page.relative_to(ROOT)}: {head.split('|')[1].strip()}"
                    cells = [cell.strip() for row in rows for cell in row.strip("|").split("|")[1:] if cell.strip()]
                    if sum(bool(re.match(r"[-+]?\d", cell)) for cell in cells) <= len(cells) / 2 or held.search(section[:match.start()]):
                        continue
                    if not {name, name.split(":")[0]} & elsewhere:
                        count += 1
                        with self.subTest(name):
                            self.assertRegex(section, r"\b20\d\d-\d\d-\d\d\b", "expected a marker <!-- table ... -->, or the day")
        self.assertGreater(count, 8)


    def test_sentences_that_repeat_a_report_are_true(self):
        def report_of(start):
            return next(document["ddp_scaling"] for name, document in self.documents.items() if name.startswith(start))

        def run_of(report, name):
            return next(run for run in report["runs"] if run["name"] == name)

        def takes(run):
            return f"{run['peak_rss_mib']:.0f} MiB", run["startup_ms"] / 1e3

        report = report_of("T-S-M-L_")
        page = " ".join((ROOT / "docs/performance.md").read_text().split())
        (memory, alone_s), (each, two_s), (python, python_s) = (takes(run_of(report, f"T/weak/{name}")) for name in (
            "01_single_gpu/ranks:1", "03_ddp_spawn/spawn/shm/ranks:2", "pytorch_tuned/spawn/gloo/ranks:2"))
        self.assertIn(f"takes {memory} of memory at its peak and {alone_s:.2f} s from the command", page)
        self.assertIn(f"two ranks {each} each and {two_s:.2f} s, Python's DDP {python} and {python_s:.0f} s", page)
        fused = run_of(report, "T/weak/01_single_gpu/fused/ranks:1")
        self.assertIn(f"T's fused step is {fused['step_ms']['median'] * 1e3:.1f} us", page)

        report = report_of("S_")
        page = " ".join((ROOT / "bench/peers/README.md").read_text().split())
        equal = next(row for row in report["comparisons"] if row["kind"] == "control" and "03_ddp_spawn" in row["a"])
        self.assertIn(f"differed by {performance_table.show((equal['ratio_median'], *equal['ci95']))} in that session", page)
        launches_of = [[launch["median_ms"] for launch in run["repetitions"] if launch] for run in report["runs"]]
        slow = sum(median > 1.5 * min(medians) for medians in launches_of for median in medians)
        self.assertIn(f"{slow} of all {sum(map(len, launches_of))} launches", page)
        apart = max(abs(run["parity"]["moved"] / run["parity"]["reference_moved"] - 1) for run in report["runs"])
        self.assertIn(f"`moved` within {apart:.0e} of stage 01's".replace("e-0", "e-"), page)


class Arithmetic(unittest.TestCase):
    """Numbers that pages compute."""

    def test_data_and_model_parallelism(self):
        page = (ROOT / "docs/data_and_model_parallelism.md").read_text()
        ranks, batch, widths = 2, 64, {"M": (784, 512, 512, 10), "L": (1024, 1024, 1024, 1024)}
        share = (ranks - 1) / ranks

        def parameters(layers):
            return sum((inputs + 1) * outputs for inputs, outputs in zip(layers, layers[1:]))

        def row(*cells):
            self.assertIn("| " + " | ".join(cells) + " |\n", page)

        def mb(size):
            return f"{size / 1e6:.1f} MB" if size >= 5e6 else f"{size / 1e6:.2f} MB"

        def both(name, state, states, sent, sizes):
            row(name, state, *map(mb, states), sent, *map(mb, sizes))

        for model, layers in widths.items():
            count = parameters(layers)
            row(model, "-".join(map(str, layers)), f"{count:,}", f"{16 * count / 1e6:.1f} MB", f"{4 * batch * sum(layers) / 1e6:.2f} MB")
        counts = [parameters(layers) for layers in widths.values()]
        gradients = [2 * share * 4 * count for count in counts]
        both("data parallel", "16P", [16 * count for count in counts], "2(n-1)/n 4P", gradients)
        both("ZeRO-1: optimizer divided", "8P + 8P/n", [(8 + 8 / ranks) * count for count in counts], "the same", gradients)
        both("ZeRO-2: gradients too", "4P + 12P/n", [(4 + 12 / ranks) * count for count in counts], "the same", gradients)
        both("ZeRO-3, FSDP: weights too", "16P/n", [16 / ranks * count for count in counts], "3(n-1)/n 4P", [1.5 * size for size in gradients])
        at_cut = [4 * batch * ranks * layers[1] for layers in widths.values()]
        both("tensor", "about 16P/n", [16 / ranks * count for count in counts], "see below", [2 * share * at_cut[0], 5 * share * at_cut[1]])
        both("pipeline, cut after M's first, L's second layer", "the larger part's",
             [16 * parameters(widths["M"][:2]), 16 * parameters(widths["L"][:3])], "4Bw at each cut", at_cut)
        self.assertIn(f"at B = {round(gradients[1] / (5 * share * 4 * widths['L'][1]), -1):,.0f} the two would be even", page)
        whole = parameters((4096, 4096, 10))
        self.assertIn(f"P = {whole:,}, where 4P bytes are {4 * whole / 2**20:.1f} MiB", " ".join(page.split()))
        row("whole", f"{4 * whole + 24:,}", "0", "535.9 and 537.6")
        self.assertIn(f"should save 8P/2 = {8 * whole / 2 / 2**20:.1f} MiB", page)

    def test_lines_of_the_accelerator(self):
        lines = [stage_diffs.code_lines(f"04_ddp_launcher/{name}") for name in ("main.cpp", "accelerated.cpp")]
        self.assertIn(f"| lines of code | {lines[0]} | {lines[1]} |\n", (ROOT / "docs/accelerator.md").read_text())


class Promises(unittest.TestCase):
    """docs/reliability.md."""

    def test_every_test_that_it_names_is_there(self):
        cells = re.findall(r"`(\w+)`: ([^|\n]+?) *(?:\||\)\.|$)", (ROOT / "docs/reliability.md").read_text(), re.MULTILINE)
        self.assertGreater(len(cells), 30)
        registered = (ROOT / "tests/CMakeLists.txt").read_text()
        for test, case in cells:
            with self.subTest(f"{test}: {case}"):
                self.assertTrue(re.search(rf"\b{test}\b", registered), "CTest has no test of that name")
                command = re.search(rf"\b{test} \w+ \d+ COMMAND .*?(?:\b(\w+_test)\b|tests/(\w+)\.py)", registered)
                stem = f"{test}_test" if command is None else command[1] or command[2]
                in_python = command is not None and command[2] or not (ROOT / f"tests/{stem}.cpp").exists()
                source = (ROOT / f"tests/{stem}{'.py' if in_python else '.cpp'}").read_text()
                # A fault's name has its launcher's after it; a name that is split over lines is one.
                name = case.split(", ")[0] if test == "faults" else case.replace('"', '\\"')
                self.assertTrue(name in re.sub(r'"\s*\n\s*"', "", source), f"not in {stem}")


if __name__ == "__main__":
    unittest.main()
