#!/usr/bin/env python3
"""What --trace writes is a Chrome trace of the run's last steps: phases that are the step, and every collective with its bytes.

usage: tests/trace_test.py BUILD_DIR
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest
from itertools import groupby

BUILD = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build").resolve()
TIMEOUT_S = 120
KEPT = 16  # StepTrace::kSteps
PHASES = {"data", "forward", "backward", "communication", "optimizer"}
# Each bucket holds a layer, the first one two.
LAYERS = [64, 64, 64, 64, 64, 16]  # each tensor is a multiple of 64 bytes, so that buckets have no padding
MODEL = ["--layers", ",".join(map(str, LAYERS)), "--dataset-size", "1280", "--bucket-mib", "0.01"]
BUCKETS = 4
PARAMETERS = sum((before + 1) * after for before, after in zip(LAYERS, LAYERS[1:]))
ROUNDING_US = 0.01  # of a time written with a nanosecond's digits, some of which a double does not have


def complete_events(document):
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def end(event):
    return event["ts"] + event["dur"]


def of_step(event):
    return event["pid"], event["args"]["epoch"], event["args"]["step"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Trace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-trace-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, program, *arguments):
        return subprocess.Popen([BUILD / "bin" / program, *arguments], cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})

    def finish(self, process):
        out, err = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 0, err)
        return out

    def traced(self, program, *arguments, ranks=2, metrics=True):
        """Runs a program for two epochs; what it prints, its trace, which is looked at, and its summary."""
        files = ["--trace", "t.json", *(["--metrics", "m.jsonl"] if metrics else [])]
        out = self.finish(self.start(program, "2", "9", "--quiet", *MODEL, *arguments, *files))
        summary = json.loads((self.folder / "m.jsonl").read_text().splitlines()[-1])["summary"] if metrics else None
        document = json.loads((self.folder / "t.json").read_text())
        self.assertEqual(document["otherData"]["program"], program)
        self.check(document, ranks)
        if metrics:
            self.check_times(document, ranks)
        return out, document, summary

    def check(self, document, ranks):
        """What holds of any trace."""
        about = document["otherData"]
        self.assertEqual((about["world_size"], about["layers"], about["parameters"]), (ranks, LAYERS, PARAMETERS))
        events = complete_events(document)
        self.assertEqual({event["pid"] for event in events}, set(range(ranks)))
        names = {(event["pid"], event["tid"]): event["args"]["name"] for event in document["traceEvents"]
                 if event["name"] == "thread_name"}
        lanes = {lane: sorted(group, key=lambda event: event["ts"]) for lane, group in
                 groupby(sorted(events, key=lambda event: (event["pid"], event["tid"])), key=lambda event: (event["pid"], event["tid"]))}
        self.assertEqual(set(lanes), set(names), "a lane without a name, or without events")
        for lane, inside in lanes.items():
            for before, after in zip(inside, inside[1:]):
                self.assertLessEqual(end(before), after["ts"] + ROUNDING_US, f"{lane}: {before} and {after}")
        for rank in range(ranks):
            steps = lanes[rank, 0]
            self.assertEqual([event["name"] for event in steps], ["step"] * KEPT)
            last = [event["args"] for event in steps][-1]
            numbers = [event["args"]["step"] for event in steps]
            self.assertEqual(numbers, list(range(last["step"] - KEPT + 1, last["step"] + 1)))
            self.assertEqual({event["args"]["epoch"] for event in steps}, {1})
            for step in steps:
                parts = [event for event in lanes[rank, 1] if of_step(event) == of_step(step)]
                self.assertLessEqual({event["name"] for event in parts}, PHASES)
                self.assertLessEqual(PHASES - {"communication"}, {event["name"] for event in parts})
                # Without gaps from beginning to end.
                for time, event in zip([step["ts"], *map(end, parts)], parts):
                    self.assertAlmostEqual(time, event["ts"], delta=ROUNDING_US)
                self.assertAlmostEqual(sum(event["dur"] for event in parts), step["dur"], delta=len(parts) * ROUNDING_US)
                for event in events:
                    if event["tid"] > 1 and of_step(event) == of_step(step):
                        self.assertGreater(event["args"]["bytes"], 0)
                        self.assertGreaterEqual(event["ts"], step["ts"] - ROUNDING_US)
                        self.assertGreater(event["dur"], 0)  # begun and ended
                        self.assertLessEqual(end(event), end(step) + ROUNDING_US)

    def check_times(self, document, ranks):
        """They are the last steps that --metrics has, and of each the times."""
        rows = [json.loads(line) for line in (self.folder / "m.jsonl").read_text().splitlines()[:-1]]
        of_rows = {}  # where steps are counted on over the epochs
        for row in sorted(rows, key=lambda row: row["step"]):
            first = of_rows.setdefault((row["rank"], row["epoch"], 0), row)["step"]
            of_rows[row["rank"], row["epoch"], row["step"] - first] = row
        steps = {of_step(event): event for event in complete_events(document) if event["name"] == "step"}
        self.assertEqual(sorted(steps), sorted(key for rank in range(ranks) for key in sorted(key for key in of_rows if key[0] == rank)[-KEPT:]))
        for step, event in steps.items():
            self.assertAlmostEqual(event["dur"], 1e3 * of_rows[step]["step_ms"], delta=ROUNDING_US)
            for phase in PHASES:
                parts = [part["dur"] for part in complete_events(document) if part["tid"] == 1 and part["name"] == phase and of_step(part) == step]
                expected = 1e3 * of_rows[step]["exposed_comm_ms" if phase == "communication" else f"{phase}_ms"]
                self.assertAlmostEqual(sum(parts), expected, delta=(len(parts) + 1) * ROUNDING_US, msg=f"{phase} of {step}")

    def check_meetings(self, document, ranks):
        """No rank's all-reduce has ended before every rank has begun it: the clock is one that processes share."""
        by_rank = [{step[0]["args"]["step"]: step for step in self.collectives(document) if step[0]["pid"] == rank} for rank in range(ranks)]
        for step in by_rank[0]:
            for together in zip(*(rank[step] for rank in by_rank), strict=True):
                self.assertLess(max(event["ts"] for event in together), min(map(end, together)) + ROUNDING_US, together)

    def collectives(self, document):
        """Of each step, in the order in which they were begun."""
        steps = {of_step(event): [] for event in complete_events(document) if event["name"] == "step"}
        for event in sorted(complete_events(document), key=lambda event: event["ts"]):
            if event["tid"] > 1:
                steps[of_step(event)].append(event)
        return list(steps.values())

    def check_buckets(self, document, all_reduce_bytes):
        for step in self.collectives(document):
            self.assertEqual([event["args"]["bucket"] for event in step], list(range(len(all_reduce_bytes))))
            self.assertEqual([event["args"]["bytes"] for event in step], all_reduce_bytes)
            self.assertEqual({event["name"].split(" of ")[0] for event in step}, {"all_reduce"})

    def test_one_process_sends_nothing(self):
        for program, *arguments in (["01_single_gpu"], ["01_single_gpu", "--speedup", "fused"], ["02_data_parallel", "--nprocs", "2"],
                                    ["02_data_parallel_mirrored", "--nprocs", "2"]):
            with self.subTest(program=program, arguments=arguments):
                _, document, _ = self.traced(program, *arguments, ranks=1)
                self.assertFalse(any(self.collectives(document)))
                self.assertNotIn("communication", {event["name"] for event in complete_events(document)})

    def test_each_bucket_is_an_event_with_its_bytes(self):
        for backend in ("gloo", "shm"):
            for speedup in ("none", "fused"):
                with self.subTest(backend=backend, speedup=speedup):
                    _, document, summary = self.traced("03_ddp_spawn", "--nprocs", "2", "--backend", backend, "--speedup", speedup)
                    self.assertEqual(document["otherData"]["backend"], backend)
                    self.assertEqual(len(summary["all_reduce_bytes"]), BUCKETS)
                    self.assertEqual(sum(summary["all_reduce_bytes"]), 4 * PARAMETERS)
                    self.check_buckets(document, summary["all_reduce_bytes"])
                    self.check_meetings(document, ranks=2)
                    calls = {event["args"]["call"] for step in self.collectives(document) for event in step}
                    called = "called at 03_ddp_spawn/main.cpp:" if speedup == "none" else "called by --speedup fused"
                    self.assertTrue(all(call.startswith(called) for call in calls), calls)

    def test_without_communication_there_is_none(self):
        _, document, _ = self.traced("03_ddp_spawn", "--nprocs", "2", "--no-communication")
        self.assertFalse(any(self.collectives(document)))

    def test_ranks_of_a_launcher_end_in_one_file(self):
        port = str(free_port())
        for program in ("04_ddp_launcher", "05_multinode"):
            with self.subTest(program=program):
                ranks = [self.start(program, "2", "9", "--quiet", *MODEL, "--trace", "t.json", "--rank", rank, "--world-size", "2",
                                    "--local-rank", rank, "--local-world-size", "2", "--master-addr", "127.0.0.1", "--master-port", port)
                         for rank in ("0", "1")]
                for rank in ranks:
                    self.finish(rank)
                self.check(json.loads((self.folder / "t.json").read_text()), ranks=2)

    def test_a_trace_alone_changes_no_weight(self):
        out, document, _ = self.traced("03_ddp_spawn", "--nprocs", "2", metrics=False)
        self.assertTrue(all(len(step) == BUCKETS for step in self.collectives(document)))
        without = self.finish(self.start("03_ddp_spawn", "2", "9", "--quiet", *MODEL, "--nprocs", "2"))
        self.assertEqual(out.split(" | step")[0], without.split(" | step")[0])

    def test_a_file_that_takes_nothing_is_an_error(self):
        process = self.start("01_single_gpu", "1", "9", "--quiet", "--trace", "/dev/full")
        _, err = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual((process.returncode, err), (1, "01_single_gpu: error: --trace: cannot write /dev/full (No space left on device), "
                                                        "expected a writable file\n"))


if __name__ == "__main__":
    unittest.main()
