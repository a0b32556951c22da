#!/usr/bin/env python3
"""The scripts that keep the pages true see what is false: tools/pages.py, tools/stage_diffs.py, tools/tables.py."""

import contextlib
import io
import json
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import pages  # noqa: E402
import stage_diffs  # noqa: E402
import tables  # noqa: E402

SUMMARY = "moved 1.40743 | loss 0.0115 | digest e140e1c0f8c962d2 | step 0.040 ms | 1600000 samples/s"
EPOCH = "[CPU{}] Epoch {} | Batchsize: 32 | Steps: 32 | Loss: 0.0108"


class TemporaryTree(unittest.TestCase):
    """The scripts work on a tree of the test's own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-pages-test-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "build").mkdir()
        for module in (pages, stage_diffs, tables):
            self.addCleanup(setattr, module, "ROOT", module.ROOT)
            module.ROOT = self.root

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def run_quietly(self, main, *arguments):
        """Its exit code, and what it wrote."""
        written = io.StringIO()
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
            code = main(list(arguments))
        return code, written.getvalue()


class Wildcards(unittest.TestCase):
    def test_what_may_differ(self):
        for expected, got in (
                (SUMMARY, SUMMARY.replace("0.040 ms", "12.5 ms").replace("1600000 s", "7 s").replace("e140e1c0f8c962d2", "996dc34e5e1be155")),
                (SUMMARY, SUMMARY.replace("1.40743", "1.40750").replace("0.0115", "0.0116")),
                ("moved ... samples/s", SUMMARY), ("a  1 |", "a 1    |"), ("step 0.04 ms", "step 1.5e-05 ms")):
            with self.subTest(got):
                self.assertTrue(pages.same_line(expected, got))

    def test_what_may_not(self):
        for expected, got in (
                (SUMMARY, SUMMARY.replace("1.40743", "1.41743")), (SUMMARY, SUMMARY.replace("0.0115", "0.0118")),
                (SUMMARY, SUMMARY.replace("0.0115", "nan")), (SUMMARY, SUMMARY.replace("0.040 ms", "nan ms")),
                (SUMMARY, SUMMARY.replace("1600000", "inf")), (SUMMARY, SUMMARY.replace("e140e1c0f8c962d2", "e140")),
                (EPOCH.format(0, 3), EPOCH.format(1, 3)), ("Steps: 32", "Steps: 33"), ("a", "a b")):
            with self.subTest(got):
                self.assertFalse(pages.same_line(expected, got))

    def test_lines_may_come_in_any_order_and_none_is_left_over(self):
        self.assertEqual(pages.differences(["a", "b"], ["b", "a"]), [])
        self.assertEqual(pages.differences([], ["b"]), [])
        self.assertEqual(pages.differences(["...", "b"], ["a", "b", "c"]), [])
        self.assertEqual(len(pages.differences(["a"], ["a", "a"])), 1)
        self.assertEqual(len(pages.differences(["a", "a"], ["a"])), 1)


class Pages(TemporaryTree):
    def page(self, block, text=""):
        self.write("README.md", f"# A title\n\n{text}\n\n```console\n{block}```\n")

    def test_outputs_are_compared(self):
        for block, code in {"$ echo a\na\n": 0, "$ echo a\nb\n": 1, "$ echo a\n": 0, "$ false\n": 1, "$ echo a \\\n    b\na b\n": 0,
                            "$ echo a >&2\na\n$ echo b\nc\n": 1, "$ touch left && ls left\nleft\n": 0}.items():
            with self.subTest(block):
                self.page(block)
                self.assertEqual(self.run_quietly(pages.main)[0], code)
        self.assertFalse((self.root / "left").exists())

    def test_links_lead_somewhere(self):
        self.write("docs/a.md", "# The page: a\n")
        for link, code in {"docs/a.md": 0, "docs/a.md#the-page-a": 0, "#a-title": 0, "https://a.org/b": 0, "docs/b.md": 1, "docs/a.md#b": 1}.items():
            with self.subTest(link):
                self.page("$ true\n", f"[words]({link})")
                self.assertEqual(self.run_quietly(pages.main)[0], code)


    def test_options_are_those_of_the_program(self):
        self.write("build/bin/a", "#!/bin/sh\necho '--a-b N'\n")
        (self.root / "build/bin/a").chmod(0o755)
        for command, code in {"build/bin/a --a-b 1": 0, "build/bin/a --a_b 1 | cat --c": 0, "build/bin/a --a": 1, "build/bin/a --a-bc": 1}.items():
            with self.subTest(command):
                self.page("$ true\n", f"`{command}`")
                self.assertEqual(self.run_quietly(pages.main)[0], code)


class StageDiffs(TemporaryTree):
    def setUp(self):
        super().setUp()
        for after, before, _ in stage_diffs.DIFFS:
            for path in (after, before):
                self.write(path, "// A stage.\n#include \"common/stage.hpp\"\nint a;\nint b;\nint c;\nint d;\nint e;\nint f;\n")
        self.stage = self.root / "02_data_parallel/main.cpp"

    def check(self, *arguments):
        return self.run_quietly(stage_diffs.main, *arguments)

    def test_a_long_stage_a_large_diff_and_a_conditional_are_seen(self):
        self.assertEqual(self.check("--check")[0], 0)
        text = self.stage.read_text()
        for what, added in {"lines": "// \n" * 65, "diff": "int x;\n" * 11, "ifdef": "#ifdef X\n"}.items():
            with self.subTest(what):
                self.stage.write_text(text + added)
                self.assertEqual(self.check("--check")[0], 1)

    def test_a_hunk_stays_under_its_heading(self):
        page = self.root / "02_data_parallel/README.md"
        marker = "<!-- hunk 02_data_parallel/main.cpp: int {} -->\n"
        page.write_text("# First\n\n" + marker.format("aa") + "\n# Last\n\n" + marker.format("ff"))
        for text in ("int aa;\nint b;\nint c;\nint d;\nint e;\nint ff;\n", "int aa;\nint new;\nint b;\nint c;\nint d;\nint e;\nint ff;\n"):
            for source in self.stage, self.stage.with_name("mirrored.cpp"):  # which builds on it, with no hunk of its own
                source.write_text("// A stage.\n#include \"common/stage.hpp\"\n" + text)
            self.assertEqual(self.check("--check")[0], 1)
            self.assertEqual(self.check()[0], 0)
            first, last = page.read_text().split("# Last")
            self.assertIn("+int aa;", first)
            self.assertIn("+int ff;", last)

    def test_new_lines_of_several_hunks(self):
        page = self.root / "02_data_parallel/README.md"
        marker = "<!-- hunk 02_data_parallel/main.cpp, new lines: int {} | int ff -->\n"
        text = "// A stage.\n#include \"common/stage.hpp\"\nint aa;\nint b;\nint c;\nint d;\nint e;\nint ff;\n"
        for source in self.stage, self.stage.with_name("mirrored.cpp"):
            source.write_text(text)
        page.write_text(marker.format("aa"))
        self.assertEqual(self.check("--check")[0], 1)
        self.assertEqual(self.check()[0], 0)
        self.assertEqual(page.read_text(), marker.format("aa") + "```diff\n+int aa;\n int b;\n+int ff;\n```\n")
        page.write_text(marker.format("zz"))
        self.assertEqual(self.check()[0], 1)

    def test_an_excerpt_is_in_its_file(self):
        for code, expected in ("int b;\n  int c;\n", 0), ("int b;\nint d;\n", 1):
            self.write("README.md", f"<!-- excerpt 01_single_gpu/main.cpp -->\n```cpp\n{code}```\n")
            self.assertEqual(self.check("--check")[0], expected)


def run(name, ranks, step_ms, kind="stage", variant="main", **fields):
    """As bench writes it, see bench/record.hpp."""
    return {"name": f"{kind}/{name}/{variant}/{ranks}", "kind": kind, "stage": name, "variant": variant, "launcher": "none", "backend": "shm",
            "model": "M", "scaling": "weak", "world_size": ranks, "threads": 1, "global_batch": 64 * ranks, "error": None, "parity": {"ok": True},
            "step_ms": {"median": step_ms}, "samples_per_second": 64e3 * ranks / step_ms, "speedup": 1.5, "speedup_ci95": [1.25, 1.75],
            "efficiency": 0.75, "pieces_ms": dict.fromkeys(tables.PIECES, 0.5), "exposed_comm_ms": 0.1, "exposed_comm_ci95_ms": None,
            "limit_ms": 1.5, "peak_rss_mib": 130.0, "lines_of_code": 34, **fields}


class Tables(TemporaryTree):
    MARKERS = ("scaling T,M", "pieces M", "peers", "pays M:03_ddp_spawn", "origin")

    def setUp(self):
        super().setUp()
        stages = [run(name, ranks, 3.0, variant=variant, model=model) for model in "TM" for name, ranks, variant in
                  (("01_single_gpu", 1, "main"), ("03_ddp_spawn", 2, "main"), ("03_ddp_spawn", 2, "by_hand"))]
        failed = run("05_multinode", 2, 3.0, parity={"ok": False})
        peer = run("jax", 2, 2.0, kind="peer", variant="jit", backend="none")
        self.report = {"schema_version": 3, "partial": False, "runs": [*stages, failed, peer],
                       "machine": {"cpu_model": "A", "cores": 2}, "software": {"libtorch": "2.11.0", "git_commit": "abc"},
                       "settings": {"repetitions": 6, "command": "bench"},
                       "comparisons": [{"kind": "peer", "a": stages[4]["name"], "b": peer["name"], "ratio": 0.67, "ci95": [0.5, 0.75]}]}
        self.write("README.md", "\n\n".join(f"<!-- table: {kind} results/a.json -->\nold" for kind in self.MARKERS) + "\n\nText.\n")

    def fill(self, *arguments):
        self.write("results/a.json", json.dumps({"ddp_scaling": self.report}))
        return self.run_quietly(tables.main, *arguments)

    def test_tables_are_those_of_the_report(self):
        self.assertEqual(self.fill("--check")[0], 1)
        self.assertEqual(self.fill(), (0, ""))
        self.assertEqual(self.fill("--check"), (0, ""))
        text = (self.root / "README.md").read_text()
        self.assertIn("| M: 03_ddp_spawn_by_hand | none | shm | 2 | 3.00 | 42,667 | 1.50 (1.25 to 1.75) | 0.750 |".replace("none", "-"), text)
        self.assertIn("| M: jax jit | 2 | - | 2.00 | 34 | 130 | 03_ddp_spawn, 2, shm | 3.00 | 0.670 (0.500 to 0.750) |", text)
        self.assertIn("| 03_ddp_spawn | 2 | shm | 3.00 | 1.50 |\n", text)
        self.assertNotIn("05_multinode", text)  # it trained something else
        self.assertNotIn("old", text)
        self.assertTrue(text.endswith("\n\nText.\n"))

    def test_a_report_that_is_none_is_seen(self):
        for change in {"schema_version": 2}, {"partial": True}, {"runs": []}, {"machine": {}}:
            before, self.report = self.report, {**self.report, **change}
            with self.subTest(change):
                self.assertEqual(self.fill()[0], 1)
            self.report = before
        for content in "[" * 100_000, "{", "":
            (self.root / "results/a.json").write_text(content)
            self.assertEqual(self.run_quietly(tables.main)[0], 1)
        (self.root / "results/a.json").unlink()
        self.assertEqual(self.run_quietly(tables.main)[0], 1)


class Repository(unittest.TestCase):
    def test_every_program_that_the_course_runs_is_built_by_its_first_command(self):
        cmake = (ROOT / "bench/CMakeLists.txt").read_text()
        built = set(" ".join(re.findall(r"(?:add_custom_target|add_dependencies)\(benchmark ([^)]*)\)", cmake)).split())
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
