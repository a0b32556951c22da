#!/usr/bin/env python3
"""Runs bench on made-up programs, and once on the real programs.

usage: bench_test.py FOLDER_OF_PROGRAMS GOOGLE_COMPARE [unittest options]     GOOGLE_COMPARE: Google Benchmark's compare.py
"""

import concurrent.futures
import gzip
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from clusters.stages import wait_until  # noqa: E402
from support.scratch import ROOT, Scratch  # noqa: E402

PROGRAMS = GOOGLE_COMPARE = pathlib.Path()
FAKE = ROOT / "tests/bench/fake_programs.py"
STAGES = [row.split()[0].removesuffix("/main").replace("/", "_") for row in (ROOT / "stages.list").read_text().splitlines() if row[0] != "#"]
SMALL = ["--models", "T", "--world-sizes", "2", "--stages", "03_ddp_spawn", "--steps", "20"]


class Fakes(Scratch):
    """A folder of made-up programs for each test."""

    def setUp(self):
        super().setUp()
        self.bin, self.path, self.tmp, self.peers = (self.folder / name for name in ("bin", "path", "tmp", "bench/peers"))
        for folder in (self.bin, self.path, self.tmp, self.peers):
            folder.mkdir(parents=True)
        self.script("tools/compile_step", 'for last; do :; done; echo "compile_step $*" >>bin/CALLS; : >"$last"; : >"${last%.pt2}.safetensors"')
        self.install(self.bin, *STAGES, "bench_micro")
        (self.path / "python3").symlink_to(sys.executable)
        self.environment = {"PATH": str(self.path), "TMPDIR": str(self.tmp), "RANK": "7", "WORLD_SIZE": "9"}

    def install(self, folder, *names):
        for name in names:
            self.script(folder / name, FAKE.read_text())

    def behave(self, name, python):
        (self.bin / f"{name}.behaviour").write_text(python)

    def command(self, *arguments):
        return [PROGRAMS / "bench", *arguments, "--stage-dir", self.bin, "--peers-dir", self.peers]

    def run_bench(self, *arguments, **options):
        result = subprocess.run(self.command(*arguments), env=self.environment, capture_output=True, text=True, cwd=self.folder,
                                timeout=120, **options)
        self.assertEqual(list(self.tmp.iterdir()), [])
        return result

    def measure(self, *arguments, code=0):
        """@return the object ddp_scaling; standard output is only the document"""
        result = self.run_bench(*arguments, "--json")
        self.assertEqual(result.returncode, code, result.stderr)
        self.document = json.loads(result.stdout)
        self.err = result.stderr
        return self.document["ddp_scaling"]

    def calls(self, name=""):
        file = self.bin / "CALLS"
        return [line for line in file.read_text().splitlines() if line.startswith(name)] if file.exists() else []

    def refused(self, *arguments):
        """@return the error line"""
        result = self.run_bench(*arguments)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertRegex(result.stderr, r"\Abench: error: [^\n]+\n\Z")
        return result.stderr


def run_of(report, stage, world_size=None, kind="stage", **fields):
    """The run with these fields."""
    found = [run for run in report["runs"] if run["stage"] == stage and run["kind"] == kind
             and world_size in (None, run["world_size"]) and all(run[name] == value for name, value in fields.items())]
    assert len(found) == 1, [run["name"] for run in found]
    return found[0]


class Measuring(Fakes):
    def test_what_follows_from_the_runs(self):
        self.behave("03_ddp_spawn", "peak_rss_mib, moved = 50.0 if calls_before >= 10 else peak_rss_mib, 0.50004")  # in the last block
        scaling = self.measure(*SMALL)
        self.assertEqual(scaling["schema_version"], 3)
        self.assertFalse(scaling["partial"])
        run = run_of(scaling, "03_ddp_spawn", 2)
        self.assertEqual([run["parity"][name] for name in ("moved", "reference_moved", "ok")], [0.50004, 0.5, True])
        self.assertEqual(len(run["repetitions"]), 6)
        for repetition in run["repetitions"]:
            self.assertEqual(len(repetition["samples_ms"]), 20)
            self.assertAlmostEqual(repetition["samples_ms"][0], 1.25, places=3)  # without the first step, which is longer
            self.assertAlmostEqual(repetition["no_comm_median_ms"], 1.1 + 0.01 * repetition["block"], places=3)
            self.assertRegex(repetition["started"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual([repetition["block"] for repetition in run["repetitions"]], list(range(6)))
        self.assertAlmostEqual(run["step_ms"]["median"], 1.25, places=3)
        self.assertAlmostEqual(run["exposed_comm_ms"], 0.125, places=3)
        self.assertEqual((run["global_batch"], run["parameters"], run["peak_rss_mib"]), (64, 21, 200))
        self.assertTrue(0 < run["startup_ms"] < 60000)
        self.assertEqual(run["pieces_ms"], {"data": 0.01, "forward": 0.3, "backward": 0.5, "update": 0.1, "all_reduce": 0.2})
        self.assertEqual(run["limit_ms"], 0.4)  # median of 0.2, 0.4 and 0.8
        micro = [line.partition(" --benchmark")[0].partition("--layers ")[2] for line in self.calls("bench_micro")]
        self.assertEqual(sorted(micro), [f"20,1 --batch {options}" for options in (
            "32 --nprocs 1 --threads 1 --device cpu", "32 --nprocs 2 --threads 1 --device cpu --backend shm",
            "64 --nprocs 1 --threads 2 --device cpu") for _ in range(3)])
        threads = run_of(scaling, "01_single_gpu", threads=2)
        self.assertEqual((threads["world_size"], threads["global_batch"], threads["speedup"], threads["efficiency"]), (1, 64, 2, 1))
        self.assertIsNone(threads["pieces_ms"]["all_reduce"])
        self.assertLessEqual({"control", "baseline", "threads"}, {comparison["kind"] for comparison in scaling["comparisons"]})
        listed = self.run_bench(*SMALL, "--benchmark_list_tests").stdout.split()
        self.assertEqual({entry["run_name"] for entry in self.document["benchmarks"]}, set(listed))

    def test_other_programs_on_its_cores(self):
        cores = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, {min(cores)})
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        self.addCleanup(busy.wait)
        self.addCleanup(busy.kill)
        machine = self.measure(*SMALL, "--repetitions", "1")["machine"]
        self.assertGreater(min(machine["other_cores_before"], machine["other_cores_during"]), 0.2)
        self.assertLess(machine["other_cores_during"], 0.99)  # without bench's own programs, which have half of it
        self.assertIn("\n" + machine["warning"][:30], self.err)  # on the screen too

    def test_google_s_compare_reads_two_documents(self):
        self.behave("03_ddp_spawn_fused", "sys.exit(3)")
        runs = self.measure(*SMALL, "--stages", "03_ddp_spawn,03_ddp_spawn_fused", code=1)["runs"]
        launches = [(each["median_ms"], run["global_batch"] / each["median_ms"] * 1e3) for run in runs for each in run["repetitions"] if not run["error"]]
        timed = [entry for entry in self.document["benchmarks"] if "error_message" not in entry]
        self.assertEqual([(entry["real_time"], entry["samples_per_second"]) for entry in timed], launches)
        self.assertEqual({entry["error_message"] for entry in self.document["benchmarks"] if entry not in timed}, {run["error"] for run in runs} - {None})
        (self.folder / "a.json").write_text(json.dumps(self.document))
        for entry in timed:
            entry["real_time"] *= 1.5
        (self.folder / "b.json").write_text(json.dumps(self.document))
        said = subprocess.run([sys.executable, GOOGLE_COMPARE, "--no-color", "benchmarks", "a.json", "b.json"], cwd=self.folder, check=True,
                              capture_output=True, text=True).stdout
        self.assertEqual(len(re.findall(r"^T/weak/\S+ +\+0\.5000 ", said, re.MULTILINE)), len(launches), said)
        self.assertIn("_pvalue", said)

    def test_blocks_are_random_and_the_seed_decides(self):
        orders = []
        for seed in ("1", "1", "2"):
            (self.bin / "CALLS").unlink(missing_ok=True)
            self.measure(*SMALL, "--seed", seed, "--repetitions", "4", "--world-sizes", "1,2")
            # Three commands to compare weights, then blocks of the stages, the runs without communication and the controls.
            calls = [" ".join(line.partition(" --resume")[0].split()) + (" N" if "--no-comm" in line else "")
                     for line in self.calls("0")]
            timed = calls[4:]
            self.assertEqual(len(timed), 4 * 7)
            blocks = [timed[i:i + 7] for i in range(0, len(timed), 7)]
            for block in blocks:
                self.assertEqual(sorted(block), sorted(blocks[0]))
            self.assertGreater(len({tuple(block) for block in blocks}), 1)
            orders.append([line.replace("--seed 2", "--seed 1") for line in timed])
        self.assertEqual(orders[0], orders[1])
        self.assertNotEqual(orders[0], orders[2])

    def test_strong_scaling_keeps_the_global_batch(self):
        scaling = self.measure(*SMALL, "--scaling", "weak,strong", "--repetitions", "2")
        batches = {(run["scaling"], run["world_size"] * run["threads"]): run["global_batch"] for run in scaling["runs"]}
        self.assertEqual(batches, {("weak", 1): 32, ("weak", 2): 64, ("strong", 1): 64, ("strong", 2): 64})
        speedup = run_of(scaling, "03_ddp_spawn", 2, scaling="strong")["speedup"]
        self.assertAlmostEqual(speedup, 1 / 1.25, places=3)

    def test_launchers(self):
        self.install(self.path, "torchrun", "mpirun")
        scaling = self.measure(*SMALL[:4], "--stages", "04,05", "--repetitions", "1", "--steps", "20")
        for stage in ("04_ddp_launcher", "05_multinode"):
            for launcher in ("torchrun", "mpirun"):
                self.assertTrue(run_of(scaling, stage, 2, launcher=launcher, variant="main")["parity"]["ok"])
        scaling = self.measure(*SMALL[:4], "--stages", "04", "--backends", "mpi", "--repetitions", "1", "--steps", "20")
        self.assertEqual(run_of(scaling, "04_ddp_launcher", 2, variant="main")["pieces_ms"]["all_reduce"], 0.2)
        self.assertIn("--oversubscribe --bind-to none --allow-run-as-root -np 2 " + str(self.bin / "bench_micro"), (self.path / "CALLS").read_text())
        scaling = self.measure(*SMALL[:4], "--repetitions", "2", "--steps", "20")
        self.assertEqual([len(run_of(scaling, stage, 2)["repetitions"]) for stage in ("02_data_parallel", "05_multinode")], [2, 1])
        (self.path / "is_mpich").touch()
        scaling = self.measure(*SMALL[:4], "--stages", "04", "--repetitions", "1", "--steps", "20")
        self.assertEqual({run["launcher"] for run in scaling["runs"] if run["stage"] == "04_ddp_launcher"}, {"torchrun"})
        self.assertIn("mpirun", [entry["what"] for entry in scaling["not_run"]])
        self.assertIn("Open MPI", self.refused("--launchers", "mpirun", "--dry-run"))

    def test_several_nodes(self):
        self.install(self.path, "srun")
        self.assertIn("no allocation", self.refused("--launchers", "srun"))
        self.environment |= {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "2", "SLURMD_NODENAME": "n1", "SLURM_CPUS_PER_TASK": "3"}
        self.behave("05_multinode", f"os.environ['TMPDIR'] == {str(self.tmp)!r} or sys.exit(3)")  # a folder of every node
        arguments = ["--launchers", "srun", "--stages", "05", "--nodes", "1,2", "--models", "T", "--repetitions", "1"]
        runs = self.measure(*arguments, "--world-sizes", "1,2")["runs"]
        self.assertEqual([(run["nodes"], run["world_size"], run["backend"], run["global_batch"]) for run in runs if run["stage"] == "05_multinode"],
                         [(1, 1, "gloo", 32), (1, 2, "gloo", 64), (2, 4, "gloo", 128)])
        self.assertIsNone(self.document["ddp_scaling"]["machine"]["other_cores_during"])  # srun's ranks are not its children
        commands = (self.path / "CALLS").read_text()
        self.assertIn("--relative=0 --nodes=2 --ntasks=4 --ntasks-per-node=2", commands)
        self.assertIn("--nodelist=n1 --nodes=1 --ntasks=2 --ntasks-per-node=2", commands)
        for per_node, cpus in ((1, 2), (2, 1)):
            self.assertRegex(commands, rf"-node={per_node} --kill-on-bad-exit=1 --chdir=\S+ --cpus-per-task={cpus} /")
        self.assertNotIn("04_ddp", self.run_bench("--launchers", "srun", "--nodes", "1,2", "--models", "T", "--dry-run").stdout)
        self.assertIn("SLURM_JOB_NUM_NODES: got 2, expected at least 4", self.refused(*arguments, "--nodes", "4"))
        too_many = len(os.sched_getaffinity(0)) + 2  # on each node; the job has two CPUs there
        plan = self.run_bench(*arguments, "--nodes", "2", "--world-sizes", str(too_many), "--dry-run").stdout
        self.assertRegex(plan, rf"--cpus-per-task=1 --overcommit (?s:.*)Note: {too_many} ranks take turns")
        strong = [*arguments, "--scaling", "strong", "--world-sizes", "1,2", "--dry-run"]
        self.assertEqual(set(re.findall(r"strong +(\d+)", self.run_bench(*strong).stdout)), {str(4 * 32)})

    def test_a_step_is_compiled_once_and_kept(self):
        arguments = [*SMALL[:4], "--steps", "20", "--repetitions", "1", "--stages", "03_ddp_spawn_compiled"]
        for _ in range(2):
            self.measure(*arguments)
        self.assertIn("compile_step --layers 20,1 --seed 42 --device cpu --output ", self.calls("compile_step ")[0])
        self.assertEqual(len(self.calls("compile_step ")), 1)
        self.assertRegex(self.calls("03_ddp_spawn_compiled ")[-1], r"--step \S+/steps/20-1-seed42-cpu-torch\S+\.pt2 ")
        self.script("tools/compile_step", "echo 'no compiler' >&2; exit 2")
        scaling = self.measure(*arguments, "--seed", "7")
        self.assertIn({"what": "T/03_ddp_spawn_compiled", "reason": "exit code 2: no compiler"}, scaling["not_run"])
        self.assertNotIn("compiled", [run["variant"] for run in scaling["runs"]])

    def test_peers(self):
        self.install(self.peers, "install.sh", "pytorch.py", "jax.py", "accelerate.py", "tensorflow.py")
        (self.peers / "jax.py.behaviour").write_text("moved = moved if '--nprocs' in arguments else 0.6")
        scaling = self.measure(*SMALL[:4], "--steps", "20", "--stages", "01", "--repetitions", "1", "--peers",
                               "pytorch,accelerate,tensorflow,jax", code=1)
        rows = {(run["stage"], run["variant"], run["launcher"], run["backend"], run["world_size"], run["threads"], run["global_batch"])
                for run in scaling["runs"] if run["kind"] == "peer"}
        self.assertEqual(rows, {
            ("pytorch", "tuned", "spawn", "gloo", 2, 1, 64), ("pytorch", "tuned", "spawn", "shm", 2, 1, 64),
            ("pytorch", "tuned", "none", "none", 1, 2, 64), ("pytorch", "compiled", "spawn", "gloo", 2, 1, 64),
            ("accelerate", "ddp", "spawn", "gloo", 2, 1, 64), ("tensorflow", "mirrored", "none", "none", 2, 1, 64),
            ("jax", "jit", "none", "none", 1, 2, 64), ("jax", "jit", "none", "none", 2, 1, 64)})
        self.assertEqual([(run["variant"], run["threads"]) for run in scaling["runs"] if run["error"]], [("jit", 2)])
        self.assertTrue(run_of(scaling, "03_ddp_spawn", 2, backend="gloo")["parity"]["ok"])  # the same transport
        for variant in "fused", "compiled":  # beside JAX
            self.assertEqual(run_of(scaling, "03_ddp_spawn", 2, variant=variant, backend="shm")["pieces_ms"]["forward"], None)
            self.assertEqual(len(self.calls(f"03_ddp_spawn_{variant} ")), 2)
        (self.bin / "03_ddp_spawn_fused").chmod(0o644)
        self.assertIn("Not run: 03_ddp_spawn_fused (it is not built)", self.run_bench("--dry-run").stdout)
        (self.peers / "no_network").touch()
        self.assertIn("no network", self.run_bench(*SMALL, "--peers", "jax").stderr)


class Programs(Fakes):
    """Programs of the user's, started by bench itself on one and two ranks."""

    LOG = """
        import json, os, sys, time
        rank, ranks, samples = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
        assert os.environ["LOCAL_RANK"] == os.environ["RANK"] and int(os.environ["MASTER_PORT"]) > 0 and os.environ["OMP_NUM_THREADS"] == "1"
        assert [os.environ[name] for name in ("MASTER_ADDR", "LOCAL_WORLD_SIZE", "PYTHONPATH")] == ["127.0.0.1", str(ranks), "/mine"]
        loss = lambda step: 1 / (1 + step)
        more, steps = {}, 50
        exec(sys.argv[2] if len(sys.argv) > 2 else "")
        begin = time.monotonic_ns()
        rows = [{"rank": rank, "step": step, "step_ms": 2.0, "end_ns": begin + step * 2_000_000, "loss": loss(step), "samples": samples, **more}
                for step in range(steps)]
        with open(os.environ["DDP_METRICS"], "a") as file:
            file.write("".join(json.dumps({key: value for key, value in row.items() if value != ""}) + "\\n" for row in rows))"""

    def programs(self, *commands, code=0, options=()):
        """@return the runs of each program by ranks"""
        self.write("train.py", textwrap.dedent(self.LOG))
        self.environment["PYTHONPATH"] = "/mine"
        words = [word for command in commands for word in ("--program", command)]
        self.scaling = self.measure(*words, "--world-sizes", "2", "--launchers", "spawn", "--repetitions", "2", *options, code=code)
        return [{run["world_size"]: run for run in self.scaling["runs"] if run["model"] == f"P{i + 1}" and run["kind"] == "program"}
                for i in range(len(commands))]

    def test_speeds_and_losses(self):
        weak, strong, named, bare, unsure, silent = self.programs(
            "python3 train.py 32", "python3 train.py $((64 / $WORLD_SIZE)) 'time.monotonic_ns = lambda: 10**18'",
            "python3 train.py $((32 * {ranks} / $WORLD_SIZE)) 'time.monotonic_ns = lambda: 0'",
            "python3 train.py 32 'more = dict(loss=\"\", samples=\"\", end_ns=\"\")'", "python3 train.py 32 'more = dict(samples=\"\")'",
            "python3 train.py $((64 / $WORLD_SIZE)) 'steps = 7; loss = lambda step: 1 if ranks > 1 else \"\"'")
        self.assertEqual([run["stage"] for run in self.scaling["runs"]], ["train.py"] * len(self.scaling["runs"]))  # and no stage
        self.assertEqual([len(run["repetitions"]) for run in weak.values()], [2, 2])
        self.assertEqual([len(each["samples_ms"]) for each in weak[1]["repetitions"]], [30, 30])  # without warm-up
        self.assertEqual([(run[2]["global_batch"], run[2]["speedup"], run[2]["parity"]["ok"]) for run in (weak, strong, named, bare, unsure, silent)],
                         [(64, 2, None), (64, 1, True), (64, 2, True), (None, 2, None), (None, 2, None), (64, 1, None)])
        self.assertEqual((silent[2]["parity"]["unchecked"], strong[2]["parity"]["loss_difference"]), ("one process logs no losses", 0))
        self.assertEqual([len(each["samples_ms"]) for each in silent[2]["repetitions"]], [4, 4])  # 7 - 7 // 2
        self.assertEqual(self.calls("bench_micro"), [])
        self.assertEqual((strong[2]["startup_ms"], named[2]["startup_ms"]), (None, None))  # another clock
        self.assertEqual((weak[2]["samples_per_second"], bare[2]["samples_per_second"]), (32000, None))
        self.assertEqual((weak[2]["efficiency"], weak[2]["step_ms"]["median"], weak[2]["parity"]["loss_difference"]), (1, 2, None))
        self.assertEqual(weak[2]["command"], "python3 train.py 32")
        self.assertTrue(0 < weak[2]["startup_ms"] < 60000)
        self.assertIn("Nobody checked what was trained: on P1 2 ranks take 64 samples in a step, one process 32;\n"
                      "on P4 train.py logs no losses;\non P5 train.py logs no samples, so that its batches may differ;\n"
                      "on P6 one process logs no losses.", [one["text"] for one in self.scaling["sentences"]])
        self.assertEqual({run["kind"] for run in self.scaling["runs"]}, {"program", "control"})
        shared = self.programs("python3 train.py 8 'more = dict(samples=\"\")'", options=["--scaling", "strong", "--steps", "10"])[0][2]
        self.assertEqual((shared["speedup"], shared["parity"]["ok"], len(shared["repetitions"][0]["samples_ms"])), (1, True, 10))

    def test_ranks_that_train_otherwise_have_no_speed(self):
        half = "$((64 / $WORLD_SIZE))"
        for change, error in (("loss = lambda step: 1 / (1 + step) * (1 + 2e-5 * ranks * (step == 7))", "loss 0.125005 in step 7, with one process 0.1250025"),
                              ("loss = lambda step: None if ranks > 1 and step > 3 else 1", "loss nan in step 4, with one process 1"),
                              ("rank and sys.exit(0)", "1 of 2 ranks wrote step 0, expected all of them"),
                              ("seen = f\"a{rank * 10 + ranks}\"; samples += os.path.exists(seen); open(seen, \"w\")", "its launches took different numbers of samples in a step"),
                              ("seen = f\"b{rank * 10 + ranks}\"; os.path.exists(seen) and sys.exit(0); open(seen, \"w\")", "it logged steps in some of its launches only"), ("ranks > 1 and sys.exit(0)", None)):
            run = self.programs(f"python3 train.py {half} '{change}'", code=1 if error else 0)[0][2]
            self.assertIn(error or "None", str(run["error"]))
            self.assertIsNone(run["speedup"])
        few = self.programs("python3 train.py 8", code=1, options=["--steps", "51"])[0]
        self.assertEqual([run["error"] for run in few.values()], ["it made 50 steps, expected at least 51"] * 2)

    def test_programs_that_say_nothing_crash_hang_or_talk(self):
        self.write("a b.py", """import sys; sys.argv[1:] == ["it's", 'a "b"'] or sys.exit(3)""")
        self.write("talk.py", "for i in range(1_000_000): print('line', i)")
        self.write("crash.py", "import os, time\nif os.environ['RANK'] == '1': raise ValueError('boom')\ntime.sleep(60 * (os.environ['WORLD_SIZE'] == '2'))")
        self.write("hang.py", "import os, time\nif os.environ['RANK'] == '1': time.sleep(54321)")
        runs = self.programs("python3 'a b.py' \"it's\" 'a \"b\"'", "python3 talk.py")
        self.assertEqual([run[2]["timed"] for run in runs], ["run", "run"])
        self.assertEqual([run[2]["parity"]["ok"] for run in runs], [None, None])
        self.assertGreater(runs[1][2]["step_ms"]["median"], 100)
        self.assertEqual(runs[0][1]["stage"], "a b.py")
        self.assertIn("on P2 talk.py logs no steps, so these are whole runs", self.err)
        crash, hang, quote, absent, long = self.programs("python3 crash.py", "python3 hang.py", "python3 'x", "pyton3 x", "/bin/sleep 54322", code=1,
                                                         options=["--timeout", "5"])
        self.assertRegex(absent[2]["error"], r"^exit code 127: rank [01]: /bin/sh: 1: pyton3: not found$")
        self.assertEqual(long[2]["error"], "not started, because one process did not end: see --timeout")
        self.assertEqual(crash[2]["error"], "exit code 1: rank 1: ValueError: boom")
        self.assertRegex(hang[2]["error"], "^still running after [56] s, see --timeout$")
        self.assertIn("P2/weak/hang.py/spawn/ranks:2: still running", self.err)
        self.assertIsNone(hang[1]["error"])
        self.assertIn("Syntax error", quote[1]["error"])
        self.assertEqual(subprocess.run(["pgrep", "-f", "hang.py$"], capture_output=True).stdout, b"")

    def test_its_launchers_and_what_is_printed_before(self):
        self.install(self.path, "torchrun", "mpirun")
        self.environment["OMP_NUM_THREADS"] = "3"
        plan = self.run_bench("--program", "python3 train.py --ranks {ranks}", "--world-sizes", "1,2", "--dry-run").stdout
        rows = [line.split()[1:6] for line in plan.splitlines() if line.startswith("program ")]
        self.assertEqual(rows, [["train.py", launcher, "none", ranks, "3"] for launcher in ("spawn", "torchrun", "mpirun") for ranks in "12"])
        self.assertRegex(plan, r"P1/weak/train.py/mpirun/threads:3/ranks:2: DDP_METRICS=FOLDER/metrics.jsonl .* --bind-to none .* -np 2 /bin/sh -c "
                               r"'export RANK=\$OMPI_COMM_WORLD_RANK LOCAL_RANK=\$OMPI_COMM_WORLD_LOCAL_RANK; .*; python3 train.py --ranks 2'")
        self.assertIn("01_single_gpu", self.run_bench("--program", "true", "--models", "T", "--dry-run").stdout)  # beside the stages
        self.install(self.path, "srun")
        self.environment |= {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1"}
        plan = self.run_bench("--program", "true", "--launchers", "srun", "--world-sizes", "2", "--dry-run").stdout
        self.assertRegex(plan, rf"--ntasks=2 .* --chdir={self.folder} .*export RANK=\$SLURM_PROCID LOCAL_RANK=\$SLURM_LOCALID; ")
        for words, said in (("--scaling weak,strong".split(), "expected one beside --program"), (["--nodes", "2"], "expected 1 beside --program"),
                            (["--program", " "], "expected a command"), (["train.py"], "train.py")):
            self.assertIn(said, self.refused("--program", "true", *words))
        self.assertEqual(self.run_bench("--program", "x" * 100_000, "--dry-run").returncode, 0)

    def test_reports_beside_it(self):
        self.measure(*SMALL, "--repetitions", "2")
        other = self.document
        with gzip.open(self.folder / "a.json.gz", "wt") as file:
            json.dump(other, file)
        run_of(other["ddp_scaling"], "03_ddp_spawn", 2)["speedup"] = 1.75
        self.write("b.json", json.dumps(other))
        scaling = self.measure(*SMALL, "--repetitions", "2", "--beside", "a.json.gz", "b.json")
        elsewhere = run_of(scaling, "03_ddp_spawn", 2)["elsewhere"]
        self.assertEqual([(one["report"], round(one["speedup"], 2)) for one in elsewhere], [("a.json.gz", 1.6), ("b.json", 1.75)])
        self.assertRegex(self.err, r" 03_ddp_spawn +spawn +shm .* 1.60-1.75 of 2 ")
        whole = (self.folder / "a.json.gz").read_bytes()
        for name, content in (("cut.gz", whole[:len(whole) // 2]), ("other.json", b'{"benchmarks": []}'), ("old.json", json.dumps(other).replace('"schema_version": 3', '"schema_version": 2').encode()),
                              ("text", b"no report"), ("list.json", b'[{"ddp_scaling": 1}]')):
            (self.folder / name).write_bytes(content)
            self.assertIn(f'--beside: got "{name}", expected a report of bench', self.refused("--beside", "b.json", name))
        self.assertIn('"/no/such"', self.refused("--beside", "/no/such"))
        self.assertIn("--beside", [one["what"] for one in self.measure("--models", "S", *SMALL[2:], "--repetitions", "1", "--beside", "b.json")["not_run"]])


class Failing(Fakes):
    def failed(self, message, *arguments, tries=1):
        """Checks that a run fails with that message and has no speed, and that the other runs have a speed."""
        scaling = self.measure(*SMALL, "--repetitions", "2", *arguments, code=1)
        run = run_of(scaling, "03_ddp_spawn", 2)
        self.assertRegex(run["error"], message)
        self.assertIn(run["error"], self.err)
        for field in ("samples_per_second", "speedup", "efficiency", "limit_ms"):
            self.assertIsNone(run[field], field)
        self.assertIsNotNone(run_of(scaling, "01_single_gpu", threads=1)["samples_per_second"])
        self.assertEqual(len(self.calls("03")), tries)
        self.assertNotIn(run["name"], [name for c in scaling["comparisons"] for name in (c["a"], c["b"])])
        return run

    def test_what_fails_without_harm(self):
        self.behave("03_ddp_spawn", "'--no-communication' in arguments and sys.exit(3)")
        scaling = self.measure(*SMALL, "--repetitions", "2")
        self.assertIsNone(run_of(scaling, "03_ddp_spawn", 2)["exposed_comm_ms"])
        self.assertIn({"what": "T/weak/03_ddp_spawn/spawn/shm/ranks:2/no_communication", "reason": "exit code 3"}, scaling["not_run"])
        self.behave("03_ddp_spawn", "open(here + '/tries', 'a').write('x'), os.path.getsize(here + '/tries') > 2 or sys.exit(75)")
        (self.bin / "CALLS").unlink()
        self.measure(*SMALL, "--repetitions", "1")
        self.assertEqual(len(self.calls("03")), 4)  # twice once more
        for program, reason in (("/nonexistent", "bench_micro"), ("/bin/true", "cut off")):
            (self.bin / "bench_micro").unlink()
            (self.bin / "bench_micro").symlink_to(program)
            scaling = self.measure(*SMALL, "--repetitions", "2")
            self.assertIsNone(run_of(scaling, "03_ddp_spawn", 2)["limit_ms"])
            self.assertIn(reason, " ".join(entry["reason"] for entry in scaling["not_run"]))
            what = [entry["what"] for entry in scaling["not_run"]]
            self.assertEqual(len(set(what)), len(what), what)  # once, and not for each call

    def test_what_has_no_speed(self):
        table = [  # behaviour of 03_ddp_spawn, its error, number of its starts
            ("moved = 0.5 * (1 + 2e-4)", "parity: moved 0.5001, stage 01 moved 0.5", 1),
            ("moved = None", "its weights are not numbers", 1),
            ("print('page of a launcher\\nx: error: no\\x1b[2J memory\\nmore', file=sys.stderr); sys.exit(3)", r"^exit code 3: x: error: no\\x1b\[2J memory$", 1),
            ("os.kill(os.getpid(), 9)", "killed by signal 9", 1),
            ("os._exit(0)", "the program wrote none", 1),
            ("print = lambda text, file: 'summary' in text or file.write(text[:-1] + ', \"samples\": 32}\\n')", "the last line is no summary: the program was cut off", 1),
            ("global_batch = 7", "it trained with a global batch of 7, expected 64", 1),
            ("steps = 5 if steps > 64 else steps", "it made 5 steps, expected at least 20", 4),
            # Both equal commands fail; the run without communication does not.
            ("steps > 64 and '--no-comm' not in ' '.join(arguments) and sys.exit('x: error: late')", "x: error: late", 5)]
        for behaviour, message, tries in table:
            with self.subTest(behaviour):
                (self.bin / "CALLS").unlink(missing_ok=True)
                self.behave("03_ddp_spawn", behaviour)
                self.failed(message, tries=tries)

    def test_hang(self):
        """A run that is late gets SIGTERM and time to end; then all of it is killed."""
        # Its child has a session of its own and ignores the signal, as torchrun's may.
        self.behave("03_ddp_spawn", "import subprocess, signal\n"
                    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                    f"subprocess.Popen(['/bin/sleep', '54321.{os.getpid()}'], start_new_session=True)\n"
                    "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(2), open(here + '/had_time', 'w')))\n"
                    "time.sleep(1000)")
        self.failed("still running after", "--timeout", "3")
        self.assertTrue((self.bin / "had_time").exists())
        self.assertEqual(subprocess.run(["pgrep", "-f", f"sleep 54321.{os.getpid()}$"], capture_output=True).stdout, b"")

    def test_without_a_reference(self):
        self.behave("01_single_gpu", "sys.exit(1)")
        scaling = self.measure(*SMALL, "--repetitions", "1", code=1)
        self.assertIn("no reference", run_of(scaling, "03_ddp_spawn", 2)["error"])

    def test_open_mpi_in_the_environment(self):
        """Its settings reach the programs, but not where bench itself is a rank."""
        for rank, wanted in (({}, "1"), ({"OMPI_COMM_WORLD_RANK": "0"}, None)):
            self.behave("01_single_gpu", f"('OMPI_COMM_WORLD_RANK' in os.environ or os.environ.get('OMPI_MCA_x') != {wanted!r}) and sys.exit(3)")
            self.environment |= {"OMPI_MCA_x": "1", **rank}
            self.measure(*SMALL, "--repetitions", "1")
        of_others = {"PYTHONPATH": "/other", "PYTHONSAFEPATH": "1", "LWS_GROUP_SIZE": "2", "SM_HOSTS": '["a", "b"]', "CLUSTER_SPEC": "{", "NODE_RANK": "0", "NNODES": "2", "PBS_TASKNUM": "2"}
        self.behave("01_single_gpu", f"set(os.environ) & set({[*of_others]}) - {{'NNODES'}} and sys.exit(3)")
        self.environment |= of_others
        self.measure(*SMALL, "--repetitions", "1")

    def test_full_disk(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run(self.command(*SMALL, "--repetitions", "1", "--json"), env=self.environment, stdout=full,
                                    stderr=subprocess.PIPE, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot write the report to standard output", result.stderr)

    def test_a_report_that_cannot_be_written_leaves_the_old_one_and_the_other_report(self):
        files = [self.folder / name for name in ("r.json", "r.html")]
        for limit, written in ((None, ("r.json", "r.html")), (100_000, ("r.json",)), (2000, ())):
            for file in files:
                file.write_text("old")
            result = self.run_bench(*SMALL, "--repetitions", "1", "--json", files[0], "--html", files[1],
                                    preexec_fn=limit and (lambda limit=limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))))
            self.assertEqual(result.returncode, 0 if limit is None else 1, result.stderr)
            for file in files:
                kept = file.name not in written
                self.assertEqual((file.read_text() == "old", f"report {file} cannot be written: File too large" in result.stderr), (kept, kept))
            self.assertEqual(sorted(path.name for path in self.folder.glob("r.*")), ["r.html", "r.json"])

    def stop(self, number, suspended=False):
        """Stops bench while a timed run goes on. @return its exit code and what it printed"""
        sleeps = f"open('{self.bin}/ASLEEP', 'w'), time.sleep(1000)"
        if suspended:  # in a process with a session of its own, as torchrun's
            sleeps = f'subprocess.run([sys.executable, "-c", "import time; {sleeps}"], start_new_session=True)'
        self.behave("03_ddp_spawn", f"import subprocess\nsteps > 64 and ({sleeps})")
        with subprocess.Popen(self.command(*SMALL, "--json", "--timeout", "5"), env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, cwd=self.folder, process_group=0) as bench:
            try:
                wait_until((self.bin / "ASLEEP").exists, 30, lambda: "the step that sleeps")
                if suspended:  # for longer than the time limit
                    bench.send_signal(signal.SIGSTOP)
                    time.sleep(6)
                    bench.send_signal(signal.SIGCONT)
                bench.send_signal(number)
                out = bench.communicate(timeout=60)[0]
            finally:
                bench.kill()
        of_this_test = ["pgrep", "-f", str(self.bin)]
        wait_until(lambda: subprocess.run(of_this_test, capture_output=True).returncode == 1, 30, lambda: "the end of the programs")
        return bench.returncode, out

    def test_interrupt_writes_what_there_is(self):
        for number, suspended in ((signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)):
            (self.bin / "ASLEEP").unlink(missing_ok=True)
            code, out = self.stop(number, suspended)
            self.assertEqual(code, 1)
            scaling = json.loads(out)["ddp_scaling"]
            self.assertTrue(scaling["partial"])
            self.assertIn("interrupted", run_of(scaling, "03_ddp_spawn", 2)["error"])
            self.assertEqual(list(self.tmp.iterdir()), [])

    def test_children_do_not_outlive_it(self):
        self.assertEqual(self.stop(signal.SIGKILL), (-9, ""))


class Options(Fakes):
    def test_dry_run_prints_the_plan(self):
        self.install(self.path, "torchrun", "mpirun")
        lines = self.run_bench("--dry-run", "--world-sizes", "2,1,2").stdout.splitlines()
        self.assertEqual(self.calls(), [])
        table = lines[1:lines.index("")]
        self.assertLessEqual(max(map(len, table)), 100)
        self.assertEqual([" ".join(line.split()) for line in table if not line.startswith("no comm")],
                         pathlib.Path(__file__).with_name("default_plan.txt").read_text().splitlines())
        self.assertEqual(sum(line.startswith("no comm") for line in table), 4)
        self.assertEqual(sum("FOLDER/metrics.jsonl" in line for line in lines), len(table))
        self.assertIn("M/weak/03_ddp_spawn/spawn/gloo/ranks:2: bin/03_ddp_spawn ", "\n".join(lines))
        for name, options in (("01_single_gpu/threads:2/ranks:1", "--threads 2 "), ("02_data_parallel/ranks:2", "--nprocs 2 --threads 1 ")):
            self.assertRegex("\n".join(lines), rf"M/weak/{name}: bin/\w+ (\d+) \1 --global-batch 128 --layers 784,512,512,10 .* {options}")

    def test_what_the_options_leave_in_the_plan(self):
        self.install(self.path, "torchrun", "mpirun")
        for arguments, counts in [  # how many lines of the plan match a pattern
                ("--models T --world-sizes 2,4 --scaling weak,strong", {"no comm ": 6, "control .* 2 .* strong": 0, "control .* 4 .* strong": 1}),
                ("--models T --world-sizes 2 --stages 02,03,03_ddp_spawn_fused", {"stage ": 7, "no comm ": 2, "no comm .*(by_hand|mirrored)": 0}),
                ("--models T,S --world-sizes 1,2 --quick", {"stage +02_data_parallel .* T$": 1, "stage +03_ddp_spawn +spawn +shm +1 ": 0}),
                ("--world-sizes 1", {".* gloo": 0, ".* srun": 0}),
                ("--launchers spawn", {".*fused": 0}),
                ("--world-sizes 4096 --peers jax", {"Note: 4096 ranks take turns": 1, "Not run: 4096": 0, r".*: \$\(bench/peers/install.sh jax\) bench/peers/jax.py ": 4}),
                # torchrun takes seconds to start, so it repeats less often.
                ("--world-sizes 1,2 --full", {"stage .* S$": 14, "stage .* L$": 14, "stage .*by_hand .* M$": 1, "stage .*(fused|mirrored) .* M$": 2,
                                              "stage .*torchrun .* 6  M$": 1, "stage .*mpirun .* 15  M$": 3}),
                ("--world-sizes 2 --peers pytorch,accelerate,tensorflow", {"stage .*fused": 2, "peer +pytorch compiled": 1, r"peer .*\nstage +03_ddp_spawn +spawn +gloo": 1}),
                ("--world-sizes 2 --peers pytorch --full", {"peer +pytorch compiled": 8})]:  # on four models in both ways
            plan = self.run_bench("--dry-run", *arguments.split()).stdout
            self.assertEqual({pattern: len(re.findall(f"^{pattern}", plan, re.MULTILINE)) for pattern in counts}, counts, arguments)
        for pattern, there, absent in (("threads", "threads:2", "03_ddp"), ("-threads", "03_ddp", "threads:2|gloo")):
            listed = self.run_bench(*SMALL, f"--benchmark_filter={pattern}", "--benchmark_list_tests").stdout
            self.assertIn(there, listed)
            self.assertIn("01_single_gpu/ranks:1/", listed)
            self.assertNotRegex(listed, absent)

    def test_it_does_what_it_prints(self):
        arguments = ["--models", "S", "--world-sizes", "2", "--repetitions", "1", "--quick"]
        printed = [line.partition(": ")[2].split(" --quiet")[0].split(" --snapshot")[0]
                   for line in self.run_bench(*arguments, "--dry-run").stdout.splitlines() if "FOLDER/" in line]
        self.measure(*arguments)
        made = [f"bin/{line.split(' --quiet')[0].split(' --snapshot')[0].replace(f'{self.folder}/', '')}" for line in self.calls("0")]
        self.assertEqual(len(made), 2 * len(printed))
        self.assertEqual(sorted(printed), sorted(made[len(printed):]))

    def test_where_the_report_goes(self):
        result = self.run_bench(*SMALL, "--repetitions", "1", "--json", "a.json", "--html", "a.html", "--no_samples")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("wrote a.json", result.stdout)
        self.assertIn("samples/s", result.stdout)
        document = json.loads((self.folder / "a.json").read_text())
        self.assertTrue(all(not r["samples_ms"] for run in document["ddp_scaling"]["runs"] for r in run["repetitions"]))
        self.assertIn("</html>", (self.folder / "a.html").read_text())
        result = self.run_bench(*SMALL, "--benchmark_repetitions=1", "--benchmark_format=json", "--benchmark_out=b.json",
                                "--benchmark_out_format=json")
        self.assertEqual(json.loads(result.stdout), json.loads((self.folder / "b.json").read_text()))
        # As bench/run.sh calls it: the last file counts.
        result = self.run_bench("--json", "no.json", "--html", "no.html", *SMALL, "--repetitions", "1", "--json", "--html", "b.html")
        json.loads(result.stdout)
        self.assertFalse([*self.folder.glob("no.*")])

    def test_mistakes(self):
        self.environment["CUDA_VISIBLE_DEVICES"] = ""
        for arguments, expected in [
                ("--bogus", "--bogus"), ("--model M", "did you mean --models?"), ("--models X", '"X"'),
                ("--backends tcp", "tcp"), ("--world-sizes 0", "--world-sizes"), ("--repetitions 0", "--repetitions"),
                ("--repetitions 1.5", "--repetitions"), ("--timeout x", "--timeout"), ("--seed -1", "--seed"),
                ("--quick --full", "--full"), ("--json /nonexistent/x", "/nonexistent/x"), ("--json a --html ./a", "twice"),
                ("--stages 07", '"07"'), ("--stages 04", "--stages 04"), ("--nodes 2", "--launchers srun"),
                ("--html /nonexistent/x", "/nonexistent/x"), ("--benchmark_filter=(", "regular expression"), ("--benchmark_min_time=1", "--benchmark-min-time"),
                ("--backends mpi", "mpi"), ("--device cuda", "CUDA"), ("extra", "extra")]:
            with self.subTest(arguments):
                self.assertIn(expected, self.refused(*arguments.split()))
        self.assertEqual(self.calls(), [])


class Real(Scratch):
    def test_the_program_of_the_page(self):
        command = f"{sys.executable} docs/guides/your_program.py --global-batch 64 --epochs 1"
        result = subprocess.run([PROGRAMS / "bench", "--program", command, "--world-sizes", "2", "--launchers", "spawn", "--repetitions", "1", "--json"],
                                cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        runs = json.loads(result.stdout)["ddp_scaling"]["runs"]
        self.assertEqual([(run["world_size"], run["global_batch"], run["parity"]["ok"]) for run in runs], [(1, 64, None), (2, 64, True)])

    def test_the_real_stages(self):
        result = subprocess.run([PROGRAMS / "bench", "--models", "S", "--stages", "02_data_parallel,03_ddp_spawn", "--world-sizes", "2",
                                 "--repetitions", "2", "--steps", "50", "--json"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        scaling = json.loads(result.stdout)["ddp_scaling"]
        for run in scaling["runs"]:
            with self.subTest(run["name"]):
                self.assertTrue(run["parity"]["ok"])
                self.assertGreater(run["samples_per_second"], 0)
                source = (ROOT / run["stage"] / (run["variant"] + ".cpp")).read_text()
                self.assertEqual(run["lines_of_code"], len(re.findall(r"^[ \t]*(?!//)[^ \t\n]", source, re.MULTILINE)))
                self.assertGreater(run["peak_rss_mib"], 50)
                self.assertGreater(run["startup_ms"], 50)
        run = run_of(scaling, "03_ddp_spawn", 2)
        pieces = run["pieces_ms"]
        self.assertTrue(all(pieces[name] > 0 for name in ("data", "forward", "backward", "update", "all_reduce")), pieces)
        self.assertTrue(0 < run["limit_ms"] < 10)
        self.assertIsNone(run_of(scaling, "02_data_parallel", 2)["pieces_ms"]["forward"])
        self.assertIsNotNone(run["exposed_comm_ms"])


if __name__ == "__main__":
    PROGRAMS, GOOGLE_COMPARE = pathlib.Path(sys.argv.pop(1)).resolve(), sys.argv.pop(1)
    if sys.argv[1:]:
        unittest.main()
    # Side by side, because bench listens to the machine for a second before it measures.
    suites = map(unittest.defaultTestLoader.loadTestsFromTestCase, (Measuring, Programs, Failing, Options, Real))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        sys.exit(not all(result.wasSuccessful() for result in pool.map(unittest.TextTestRunner(verbosity=2).run, suites)))
