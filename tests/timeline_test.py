#!/usr/bin/env python3
"""tools/timeline.py: its numbers and lanes, what it refuses, and that docs/overlap.md shows what it draws from the traces that are kept."""

import contextlib
import gzip
import io
import json
import pathlib
import re
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))

import timeline  # noqa: E402
from drawing import DARK, LIGHT  # noqa: E402

PAGE = (ROOT / "docs/overlap.md").read_text()
# From by hand to buckets.
KEPT = [ROOT / "docs/overlap" / f"{name}.json.gz" for name in ("by_hand", "hook_per_parameter", "buckets")]
LAYERS = 30
PARAMETERS = 30 * (64 * 64 + 64)


def event(rank, lane, name, begin, duration, step, **args):
    return {"name": name, "ph": "X", "pid": rank, "tid": lane, "ts": begin, "dur": duration, "args": {"epoch": 0, "step": step, **args}}


def step_events(rank, begin, wait, step):
    """A step of 600 us and what is waited at the end, in which two buckets travel side by side."""
    return [event(rank, 0, "step", begin, 600 + wait, step), event(rank, 1, "data", begin, 100, step),
            event(rank, 1, "forward", begin + 100, 200, step), event(rank, 1, "backward", begin + 300, 300, step),
            event(rank, 1, "communication", begin + 600, wait, step),
            event(rank, 2, "all_reduce of bucket 0", begin + 400, 200, step, bytes=1000, bucket=0),
            event(rank, 3, "all_reduce of bucket 1", begin + 500, 100 + wait, step, bytes=234, bucket=1)]


def document(waits, ranks=2):
    events = [row for step, wait in enumerate(waits) for rank in range(ranks) for row in step_events(rank, 1e6 * (step + 1), wait + 20 * rank, step)]
    return {"traceEvents": [{"name": "thread_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "steps"}}, *events],
            "otherData": {"program": "stage", "backend": "gloo", "world_size": ranks}}


class Timeline(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-timeline-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, content, name="t.json"):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    def printed(self, *arguments, code=0):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.assertEqual(timeline.main([str(argument) for argument in arguments]), code)
        return out.getvalue() if code == 0 else err.getvalue()

    def test_numbers_are_medians_over_steps_of_means_over_ranks(self):
        run = timeline.Run(self.file(document([100, 900, 200])))
        messages, size, waited_ms, step_ms = run.numbers()
        self.assertEqual((messages, size), (2, 1234))
        self.assertAlmostEqual(waited_ms, 0.210)  # 200 and 220
        self.assertAlmostEqual(step_ms, 0.820)  # the slower rank's
        self.assertEqual({event["args"]["step"] for event in run.drawn().whole.values()}, {2})
        self.assertIn("| `stage` | 2 | 1,234 | 0.21 ms | 0.82 ms |", self.printed(self.file(document([100, 900, 200])), "--table"))

    def test_lanes_of_several_runs_have_one_axis(self):
        long, short = self.file(document([240], ranks=1), "long.json"), self.file(gzip.compress(json.dumps(document([30], ranks=1)).encode()), "short.gz")
        lines = self.printed(long, short).splitlines()
        self.assertLessEqual(max(map(len, lines)), timeline.COLUMNS)
        # 840 us are 84 columns.
        self.assertEqual(lines[1], "rank 0 does     " + 10 * "d" + 20 * "F" + 30 * "B" + 24 * "~")
        self.assertEqual(lines[2], "  on its way    " + 40 * " " + 20 * "0" + 24 * "1")
        self.assertEqual(lines[6], "rank 0 does     " + 10 * "d" + 20 * "F" + 30 * "B" + 3 * "~")
        # Whichever is the first, and in whatever order their events are.
        backwards = document([240], ranks=1)
        backwards["traceEvents"].reverse()
        self.assertEqual(self.printed(short, self.file(backwards, "backwards.json")).splitlines()[5:8], lines[:3])

    def test_pictures_are_xml_and_name_every_run(self):
        light, dark = self.folder / "l.svg", self.folder / "d.svg"
        self.printed(self.file(document([100])), self.file(document([300]), "u.json"), "--svg", light, dark)
        for path in light, dark:
            self.assertEqual(path.read_text().count("stage, 2 ranks over gloo</text>"), 2)
            xml.etree.ElementTree.parse(path)
        self.assertNotEqual(light.read_text(), dark.read_text())

    def test_what_is_no_trace_is_refused_in_one_line(self):
        no_ranks = document([100])
        no_ranks["otherData"]["world_size"] = 3
        no_whole = document([100])
        no_whole["traceEvents"] = [event for event in no_whole["traceEvents"] if (event["pid"], event["name"]) != (1, "step")]
        for content in (b"", b"{", b"[]", b"{}", b"\x1f\x8bxx", {"traceEvents": []}, {"traceEvents": [{}], "otherData": {}}, document([]), no_ranks,
                        no_whole):
            with self.subTest(content=str(content)[:40]):
                self.assertRegex(self.printed(self.file(content), code=2), r"\Atimeline.py: error: .*t\.json: .*, expected .*\n\Z")
        self.assertRegex(self.printed(self.folder / "none", code=2), r"\Atimeline.py: error: .*none: No such file or directory, expected .*\n\Z")
        svg = self.folder / "no" / "l.svg"
        self.assertRegex(self.printed(self.file(document([100])), "--svg", svg, svg, code=2), r"\A.*error: --svg: cannot write .*l\.svg .*\n\Z")


class Overlap(unittest.TestCase):
    """docs/overlap.md"""
    maxDiff = None

    def test_the_page_shows_what_is_drawn_from_the_traces(self):
        runs = [timeline.Run(path) for path in KEPT]
        for name, colours in (("light", LIGHT), ("dark", DARK)):
            self.assertEqual((ROOT / f"docs/overlap_{name}.svg").read_text(), timeline.picture(runs, colours), "run the page's command")
        self.assertEqual([timeline.table(runs)], re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE))
        lanes = re.search(r"^\$ tools/timeline.py (docs/\S+.*)\n```\n\n```text\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)
        self.assertEqual([ROOT / path for path in lanes[1].split()], KEPT)
        self.assertEqual(lanes[2], timeline.in_text(runs))

    def test_what_the_page_says_in_words(self):
        by_hand, hooks, buckets = (timeline.Run(path) for path in KEPT)
        self.assertEqual([run.program for run in (by_hand, hooks, buckets)], ["03_ddp_spawn_by_hand", "hook_per_parameter_solution", "03_ddp_spawn"])
        self.assertEqual({(run.backend, run.ranks, len(run.steps)) for run in (by_hand, hooks, buckets)}, {("gloo", 2, 16)})
        numbers = [run.numbers() for run in (by_hand, hooks, buckets)]
        self.assertEqual([(messages, size) for messages, size, _, _ in numbers], [(2 * LAYERS, 4 * PARAMETERS)] * 2 + [(5, 4 * PARAMETERS)])
        # Each rung waits less than the one before.
        self.assertEqual(sorted((waited for _, _, waited, _ in numbers), reverse=True), [waited for _, _, waited, _ in numbers])
        for rank in 0, 1:
            # A lane for each that is on its way at a time.
            self.assertTrue(all(len({message["tid"] for message in step.messages(rank)}) == 1 for step in by_hand.steps))
            self.assertTrue(all(len({message["tid"] for message in step.messages(rank)}) > LAYERS for step in hooks.steps))
            for run in hooks, buckets:
                step = run.drawn()
                first = step.messages(rank)[0]["ts"]
                backward = [phase for phase in step.phases[rank] if phase["name"] == "backward"]
                self.assertGreater(sum(phase["dur"] for phase in backward if phase["ts"] > first), sum(phase["dur"] for phase in backward) / 2)


if __name__ == "__main__":
    unittest.main()
