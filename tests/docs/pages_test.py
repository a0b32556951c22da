#!/usr/bin/env python3
"""The scripts that keep the pages true see what is false: tools/pages.py, tools/stage_diffs.py, tools/tables.py."""

import contextlib
import gzip
import io
import json
import pathlib
import re
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.scratch import ROOT, Scratch  # noqa: E402
sys.path.insert(0, str(ROOT / "tools"))

import pages  # noqa: E402
import stage_diffs  # noqa: E402
import tables  # noqa: E402

SUMMARY = "moved 1.40743 | loss 0.0115 | digest e140e1c0f8c962d2 | step 0.040 ms | 1600000 samples/s"


class TemporaryTree(Scratch):
    """The scripts work on a tree of the test's own."""

    def setUp(self):
        super().setUp()
        (self.folder / "build").mkdir()
        for module in (pages, stage_diffs, tables):
            self.addCleanup(setattr, module, "ROOT", module.ROOT)
            module.ROOT = self.folder

    def run_quietly(self, main, *arguments):
        """Its exit code, and what it wrote."""
        written = io.StringIO()
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
            code = main(list(arguments))
        return code, written.getvalue()


class Wildcards(unittest.TestCase):
    def test_what_may_differ_in_a_line(self):
        for old, new, same in (
                ("0.040 ms", "12.5 ms", True), ("1600000 s", "7 s", True), ("e140e1c0f8c962d2", "996dc34e5e1be155", True), ("e140e1c0f8c962d2", "e140", False),
                ("1.40743", "1.40750", True), ("1.40743", "1.41743", False), ("0.0115", "0.0116", True), ("0.0115", "0.0118", False),
                ("0.0115", "nan", False), ("0.040 ms", "nan ms", False), ("1600000", "inf", False)):
            with self.subTest(new):
                self.assertEqual(pages.same_line(SUMMARY, SUMMARY.replace(old, new)), same)
        for expected, got, same in (
                ("moved ... samples/s", SUMMARY, True), ("a  1 |", "a 1    |", True), ("step 0.04 ms", "step 1.5e-05 ms", True),
                ("[CPU0] Epoch 3", "[CPU1] Epoch 3", False), ("Steps: 32", "Steps: 33", False), ("32 steps", "33 steps", False), ("a", "a b", False)):
            with self.subTest(got):
                self.assertEqual(pages.same_line(expected, got), same)

    def test_lines_may_come_in_any_order_and_none_is_left_over(self):
        self.assertEqual(pages.differences(["a", "b"], ["b", "a"]), [])
        self.assertEqual(pages.differences([], ["b"]), [])
        self.assertEqual(pages.differences(["...", "b"], ["a", "b", "c"]), [])
        self.assertEqual(len(pages.differences(["a"], ["a", "a"])), 1)
        self.assertEqual(len(pages.differences(["a", "a"], ["a"])), 1)


class Pages(TemporaryTree):
    def check(self, cases, page):
        """@param cases what is in place of {} on the page, and the exit code"""
        for content, code in cases.items():
            with self.subTest(content), mock.patch.dict("os.environ", PYTHONPATH="x", CUDA_VISIBLE_DEVICES="0", PATH=f"/x:{pages.SHELL_PATH}"):
                self.write("README.md", page.format(content))
                self.assertEqual(self.run_quietly(pages.main)[0], code)

    def test_outputs_are_compared(self):
        self.check({f"$ (sleep 0.1; touch {self.folder}/left) &\n": 0, "$ echo a\na\n": 0, "$ echo a\nb\n": 1, "$ echo a\n": 0, "$ false\n": 1, "$ echo a \\\n    b\na b\n": 0,
                    "$ echo a >&2\na\n$ echo b\nc\n": 1, "$ echo a\nb\n$ echo c\nc\n": 1, "$ touch $TMPDIR/left && ls left\nleft\n": 0,
                    "$ echo ${PYTHONPATH-none}$CUDA_VISIBLE_DEVICES\nnone\n": 0, "$ sleep 0.3\n": 0}, "```console\n{}```\n")
        self.assertFalse((self.folder / "left").exists())

    def test_the_course_runs_what_it_shows_in_a_new_shell(self):
        self.script("tools/a", "#!/bin/sh\nexit $1\n")
        self.check({"tools/a 0": 0, "tools/a 1": 1}, "| x | `{}` |\n")
        self.check({"sbatch x": 0, "tools/a 0": 1}, "```sh\n{}\n```\n")
        self.assertTrue(pages.CELL.search((ROOT / "README.md").read_text()) and pages.COURSE.match("05_multinode/README.md"))
        self.check({f"$ echo $PATH\n{pages.SHELL_PATH}\n": 0}, "```console\n{}```\n")

    def test_links_lead_somewhere(self):
        self.write("docs/a.md", "# The page: a\n")
        self.check({"docs/a.md": 0, "docs/a.md#the-page-a": 0, "#a-title": 0, "https://a.org/b": 0, "docs/b.md": 1, "docs/a.md#b": 1, "#b": 1},
                   "# A title\n\n[words]({})\n")

    def test_options_are_those_of_the_program(self):
        self.script("build/bin/a", "#!/bin/sh\necho '--a-b N'\n")
        self.check({"build/bin/a --a-b 1 -- --c": 0, "build/bin/a --a_b 1 | cat --c": 0, "build/bin/a --a": 1, "build/bin/a --a-bc": 1}, "`{}`\n")


class StageDiffs(TemporaryTree):
    def setUp(self):
        super().setUp()
        for path in {path for pair in stage_diffs.DIFFS for path in pair[:2]}:
            self.write_stage(path, "a", "f")
        # mirrored.cpp builds on it, with no hunk of its own.
        self.changed = "02_data_parallel/main.cpp", "02_data_parallel/mirrored.cpp"

    def write_stage(self, path, first, last, more=""):
        self.write(path, f"// A stage.\n#include \"common/stage.hpp\"\nint {first};\n{more}int b;\nint c;\nint d;\nint e;\nint {last};\n")

    def check(self, *arguments):
        return self.run_quietly(stage_diffs.main, *arguments)[0]

    def test_a_long_stage_a_large_diff_and_a_conditional_are_seen(self):
        self.assertEqual(self.check("--check"), 0)
        self.assertIn(("03_ddp_spawn/main.cpp", "01_single_gpu/main.cpp", 24), stage_diffs.DIFFS)  # for readers that leave stage 02 out
        self.assertEqual(stage_diffs.BUILDS_ON["03_ddp_spawn/main.cpp"], "02_data_parallel/main.cpp")
        for what, added in {"lines": "// \n" * 65, "diff": "int x;\n" * 11, "ifdef": "#ifdef X\n"}.items():
            with self.subTest(what):
                self.write_stage(self.changed[0], "a", "f", added)
                self.assertEqual(self.check("--check"), 1)

    def test_an_excerpt_is_in_its_file(self):
        for code, expected in ("int b;\n  int c;\n", 0), ("int b;\nint d;\n", 1):
            self.write("README.md", f"<!-- excerpt 01_single_gpu/main.cpp -->\n```cpp\n{code}```\n")
            self.assertEqual(self.check("--check"), expected)


def run(name, ranks, step_ms, kind="stage", variant="main", **fields):
    """As bench writes it, see bench/record.hpp."""
    return {"name": f"{kind}/{name}/{variant}/{ranks}", "kind": kind, "stage": name, "variant": variant, "launcher": "none", "backend": "shm",
            "model": "M", "scaling": "weak", "world_size": ranks, "threads": 1, "global_batch": 64 * ranks, "error": None, "parity": {"ok": True},
            "step_ms": {"median": step_ms}, "samples_per_second": 64e3 * ranks / step_ms, "speedup": 1.5, "speedup_ci95": [1.25, 1.75],
            "efficiency": 0.75, "pieces_ms": {key.partition(".")[2]: 0.5 for key in tables.PIECES}, "exposed_comm_ms": 0.1, "exposed_comm_ci95_ms": None,
            "limit_ms": 1.5, "peak_rss_mib": 130.0, "lines_of_code": 34,
            "repetitions": [{"started": "2026-11-30T01:02:03Z"}], **fields}


class Tables(TemporaryTree):
    MARKERS = ("scaling T,M", "pieces M", "peers", "pays T,M:03_ddp_spawn,05_multinode", "normal")

    def setUp(self):
        super().setUp()
        stages = [run(name, ranks, 3.0, variant=variant, model=model) for model in "TM" for name, ranks, variant in
                  (("01_single_gpu", 1, "main"), ("03_ddp_spawn", 2, "main"), ("03_ddp_spawn", 2, "by_hand"))]
        stages += [run("05_multinode", 2, 3.0, model="M", quotient=1.7), run("05_multinode", 2, 3.0, model="T", speedup=None, speedup_ci95=None)]
        failed = [run("05_multinode", 2, 3.0) | wrong | {"stage": "04_ddp_launcher"} for wrong in ({"parity": {"ok": False}}, {"error": "killed"}, {"step_ms": {"median": None}})]
        peer = run("jax", 2, 2.0, kind="peer", variant="jit", backend="none")
        self.report = {"schema_version": 3, "partial": False, "runs": [*stages, run("03_ddp_spawn", 1, 3.0, model="T"), *failed, peer],
                       "machine": {"cpu_model": "A", "cores": 2, "gpus": []}, "software": {"libtorch": "2.11.0", "git_commit": "abc"},
                       "settings": {"repetitions": 6, "command": "bench a|b"},
                       "comparisons": [{"kind": "peer", "a": stages[4]["name"], "b": b["name"], "ratio": 0.67, "ci95": [0.5, 0.75]} for b in (peer, *failed)]}
        rungs = dict.fromkeys("03 03b 08 09 wrapper compiled".split(), {"messages": 60, "step_ms": [8.0, 6.0, 7.0], "wrapper_step_ms": [3.5]})
        self.write("results/lessons.json", json.dumps({"ladder": rungs}))
        markers = [f"{kind} results/a.json" for kind in self.MARKERS] + ["ladder results/lessons.json"]
        self.write("README.md", "\n\n".join(f"<!-- table: {marker} -->\nold" for marker in markers) + "\n\nText.\n")

    def fill(self, *arguments):
        self.write("results/a.json", text := json.dumps({"ddp_scaling": self.report}))
        (self.folder / "results/b.json.gz").write_bytes(gzip.compress(text.encode()))
        return self.run_quietly(tables.main, *arguments)

    def test_tables_are_those_of_the_report(self):
        self.assertEqual(self.fill("--check")[0], 1)
        self.assertEqual(self.fill(), (0, ""))
        self.assertEqual(self.fill("--check"), (0, ""))
        text = (self.folder / "README.md").read_text()
        self.assertIn("| M: 03_ddp_spawn_by_hand | none | shm | 2 | 3.00 | 42,667 | 1.50 (1.25 to 1.75) | 0.750 |".replace("none", "-"), text)
        self.assertIn("| M: jax jit | 2 | - | 2.00 | 03_ddp_spawn, 2, shm | 3.00 | 0.670 (0.500 to 0.750) |", text)
        self.assertIn("| 03_ddp_spawn | 2 | shm | 3.00 | 1.50 | 3.00 | 1.50 |\n", text)
        self.assertIn("| 05_multinode | 2 | shm | 3.00 | 1 launch | 3.00 | 1.50~ |\n", text)
        self.assertIn("| shm | 2 | 3.00 | 42,667 | 1.50~ (1.25 to 1.75) | 0.750 |", text)
        self.assertIn(r"| A, 2 cores | 2 | shm | 0.750 (0.625 to 0.875) | - | 2026-11-30 | 2.11.0 |", text)
        self.assertIn("| a hook per parameter | during backward | 08 | 60 | 7.00 (6.00 to 8.00) | 2.00 |", text)
        self.assertNotIn("04_ddp_launcher", text)  # it failed, or trained something else
        self.assertNotIn("old", text)
        self.assertTrue(text.endswith("\n\nText.\n"))

        self.report["partial"] = True
        self.assertEqual(self.fill()[0], 1)


class Repository(unittest.TestCase):
    def test_every_program_that_the_course_runs_is_built_by_its_first_command(self):
        cmake = (ROOT / "bench/CMakeLists.txt").read_text()
        built = set(" ".join(re.findall(r"add_custom_target\(benchmark ([^)]*)\)", cmake)).split())
        self.assertIn("${stages}", built)
        built |= {str(path.relative_to(ROOT)).removesuffix(".cpp").removesuffix("/main").replace("/", "_") for path in ROOT.glob("0*/*.cpp")}
        chapters = [ROOT / "README.md", *ROOT.glob("0?_*/README.md"), ROOT / "docs/learn/collectives.md"]
        programs = {program for page in chapters for program in re.findall(r"\bbuild/bin/([\w-]+)", page.read_text())}
        self.assertGreater(len(programs), 6)
        self.assertEqual(programs - built, set())

    def test_tests_that_promises_name_are_there(self):
        named = set(re.findall(r"\| `(\w+)` \|", (ROOT / "tests/README.md").read_text()))
        self.assertGreater(len(named), 5)
        registered = (ROOT / "tests/CMakeLists.txt").read_text()
        self.assertEqual([name for name in named if not re.search(rf"\b{name}\b", registered)], [])


if __name__ == "__main__":
    unittest.main()
