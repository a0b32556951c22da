#!/usr/bin/env python3
"""The batch scripts without Slurm: `srun` and `scontrol` are stubs that record their calls.
tests/slurm/slurm_test.py has a real Slurm.

usage: slurm_scripts_test.py [TEST...]
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.scratch import ROOT, Scratch  # noqa: E402

STAGE = "05_multinode"
# Runs a task, and records its variables and words.
SRUN = """#!/bin/bash
printf '%s\\0' "$@" >"$STUB/step"
env -0 >"$STUB/env"
while [[ $1 == --* ]]; do shift; done
"$@"
"""
SCONTROL = """#!/bin/bash
case "$*" in
    *show*) printf 'JobId=7 JobName=any%s\\n   JobState=%s Reason=None\\n   Command=%s\\n' "$RECORD" "${STATE:-RUNNING}" "$COMMAND" |
        if [[ $1 == --oneliner ]]; then tr -s '\\n ' ' '; else cat; fi ;;
    *) printf '%s\\0' "$*" >>"$STUB/changes"; exit ${REFUSED:-0} ;;
esac
"""


class Scripts(Scratch):
    def setUp(self):
        super().setUp()
        self.stub, self.checkout = self.folder / "stub", self.folder / "check out"
        shutil.copytree(ROOT / "slurm", self.checkout / "slurm")
        self.script(self.stub / "srun", SRUN)
        self.script(self.stub / "scontrol", SCONTROL)
        for name in (STAGE, "03_ddp_spawn", "04_ddp_launcher", "bench"):
            self.program('printf "%s\\0" "$@" >"$STUB/argv"; exit ${CODE:-0}', name)

    def program(self, text, name=STAGE):
        self.script(self.checkout / "build/bin" / name, f"#!/bin/bash\n{text}\n")

    def start(self, name, *arguments, stderr=subprocess.PIPE, **variables):
        """Runs a copy of the script in another folder, like slurmd."""
        script = self.stub / "slurm_script"
        shutil.copy(self.checkout / "slurm" / f"{name}.sh", script)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_", "SRUN_", "DDP_"))}
        environment |= {"PATH": f"{self.stub}:{environment['PATH']}", "STUB": str(self.stub), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]",
                        "SLURM_JOB_NUM_NODES": "2" if name in (STAGE, "bench") else "1", "SLURM_NTASKS_PER_NODE": "2",
                        "SLURM_CPUS_ON_NODE": "64", "COMMAND": f"{self.checkout}/slurm/{name}.sh 2 2", **variables}
        return subprocess.Popen([script, *arguments], env=environment, cwd=self.stub, text=True, stdout=subprocess.DEVNULL, stderr=stderr)

    def run_script(self, name, *arguments, code=0, **variables):
        """Its output; other results are in files."""
        for file in ("step", "env", "argv", "changes"):
            (self.stub / file).unlink(missing_ok=True)
        process = self.start(name, *arguments, **variables)
        said = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, code, said)
        return said

    def words(self, file):
        path = self.stub / file
        return path.read_text().split("\0")[:-1] if path.exists() else None

    def test_the_step(self):
        plain = ["--kill-on-bad-exit=1", "--wait=60"]
        for variables, options in (
                ({}, plain), ({"SLURM_CPUS_ON_NODE": ""}, plain), ({"SLURM_CPUS_PER_TASK": "32"}, [*plain, "--cpus-per-task=32"]),  # all of the node
                ({"SLURM_GPUS_ON_NODE": "8"}, [*plain, "--ntasks=16", "--ntasks-per-node=8"]),
                ({"SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_ON_NODE": "2"}, [*plain, "--ntasks=16", "--ntasks-per-node=8", "--overcommit"]),
                ({"SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_ON_NODE": "15", "SLURM_CPUS_PER_TASK": "8"},
                 [*plain, "--ntasks=16", "--ntasks-per-node=8", "--cpus-per-task=1"])):
            said = self.run_script(STAGE, "5", "it's", **variables)
            self.assertEqual(self.words("step"), [*options, f"{self.checkout}/build/bin/{STAGE}", "5", "it's"])
            self.assertEqual("share" in said, any("overcommit" in word or "task=1" in word for word in options), said)
        self.assertTrue(said.endswith("05_multinode: exit code 0\n"), said)
        self.assertFalse([item for item in self.words("env") if item.startswith("SLURM_CPUS_PER_TASK")])  # srun reads it too
        self.assertIn("| tasks 3 |", self.run_script(STAGE, SLURM_NTASKS="3"))
        self.assertIn("| nodes 1 | tasks 1 |", self.run_script(STAGE, SLURM_JOB_NUM_NODES="", SLURM_NTASKS_PER_NODE=""))
        self.assertEqual(self.words("argv"), ["50", "10"])
        self.program("", "own")
        for nodes in (1, 2):
            self.run_script("job", f"{self.checkout}/build/bin/own", SLURM_JOB_NUM_NODES=str(nodes))
            self.assertEqual(self.words("step") is None, nodes == 1)

    def test_stage_03_starts_its_processes_itself(self):
        for variables, arguments, words in (({}, [], ["50", "10", "--nprocs", "2"]), ({"SLURM_GPUS_ON_NODE": "8"}, [], ["50", "10"]),
                                            ({"SLURM_NTASKS_PER_NODE": ""}, [], ["50", "10", "--nprocs", "1"]),
                                            ({}, ["5", "1", "--nprocs=3"], ["5", "1", "--nprocs=3"])):
            said = self.run_script("03_ddp_spawn", *arguments, SLURM_CPUS_ON_NODE="2", SLURM_CPUS_PER_TASK="2", **variables)
            self.assertEqual((self.words("step"), self.words("argv"), "share" in said), (None, words, False))
        for name in ("03_ddp_spawn", "04_ddp_launcher"):
            self.assertIn("--nodes=2: expected 1", self.run_script(name, code=2, SLURM_JOB_NUM_NODES="2"))

    def test_the_benchmark_on_all_nodes(self):
        said = self.run_script("bench", "--models", "S", SLURM_JOB_NUM_NODES="4", SLURM_NTASKS_PER_NODE="6", SLURM_CPUS_ON_NODE="5")
        self.assertIn("6 tasks share 5 CPUs", said)
        self.assertIsNone(self.words("step"))  # bench calls srun
        self.assertEqual(self.words("argv"), ["--launchers", "srun", "--stages", STAGE, "--nodes", "1,2,4", "--world-sizes", "1,2,4,6",
                                              "--json", "bench-7.json", "--models", "S"])

    def test_exit_codes(self):
        array = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}
        for code, variables, changes in (
                (85, {}, ["requeue 7"]), (75, {}, ["requeue 7"]), (85, array, ["requeue 5_2"]), (85, {**array, "RECORD": " ArrayTaskId=2 Restarts=0"}, ["requeue 5_2"]),
                (85, {**array, "RECORD": " Restarts=0"}, ["requeue 7"]), (75, {"SLURM_RESTART_COUNT": "3", "RECORD": " Restarts=0"}, ["requeue 7"]), (42, {}, None), (85, {"STATE": "COMPLETING"}, None),
                (75, {"SLURM_RESTART_COUNT": "2"}, ["requeue 7"]), (75, {"SLURM_RESTART_COUNT": "3"}, None),
                (85, {"SLURM_RESTART_COUNT": "3", "DDP_MAX_REQUEUES": "3"}, None), (85, {"SLURM_RESTART_COUNT": "99"}, ["requeue 7"]), (85, {"REFUSED": "1"}, ["requeue 7"])):
            with self.subTest(code=code, variables=variables):
                said = self.run_script(STAGE, code=code, CODE=str(code), **variables)
                self.assertEqual((self.words("changes"), "asking Slurm" in said), (changes, changes is not None))
                self.assertEqual(said.endswith(f": exit code {code}\n"), changes is None or "REFUSED" in variables, said)
        (self.stub / "changes").unlink()
        with open("/dev/full", "w") as full:  # as on a full disk
            self.assertEqual((self.start(STAGE, stderr=full, CODE="85").wait(60), self.words("changes")), (85, ["requeue 7"]))

    def test_signals_are_passed_on(self):
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            self.program(f"trap 'exit 85' {number.name[3:]}; touch ready; while :; do sleep 0.01; done", "03_ddp_spawn")
            (self.stub / "ready").unlink(missing_ok=True)
            with self.start("03_ddp_spawn") as process:
                while not (self.stub / "ready").exists():
                    self.assertIsNone(process.poll())
                    time.sleep(0.01)
                process.send_signal(number)
                self.assertEqual(process.wait(60), 85)

    def test_the_environment_of_the_tasks(self):
        gone = dict.fromkeys(("SRUN_EXPORT_ENV", *(f"SLURM_{name}" for name in (
            "GPU_BIND GPUS GRES GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK NTASKS_PER_GPU NTASKS_PER_CORE NTASKS_PER_SOCKET TRES_PER_TASK "
            "TRES_BIND MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE HINT CONSTRAINT CORE_SPEC THREAD_SPEC THREADS_PER_CORE "
            "STEP_ID STEPID STEP_NUM_TASKS CPU_BIND CPU_BIND_TYPE MEM_BIND MEM_BIND_TYPE").split())), "of another job")
        self.run_script(STAGE, SLURM_EXPORT_ENV="NONE", CUDA_VISIBLE_DEVICES="5,6", **gone)
        environment = dict(item.split("=", 1) for item in self.words("env"))
        self.assertEqual(gone.keys() & environment.keys(), set())
        self.assertEqual((environment["SLURM_EXPORT_ENV"], environment["CUDA_VISIBLE_DEVICES"]), ("ALL", "5,6"))
        self.run_script(STAGE, SLURM_CPU_BIND="none")  # without a step it is the user's own
        self.assertLessEqual({"SLURM_CPU_BIND=none", "SLURM_EXPORT_ENV=ALL"}, set(self.words("env")))

    def test_numbers_that_are_none(self):
        """bash runs the commands in a variable with which it computes."""
        for name in ("JOB_NUM_NODES", "GPUS_ON_NODE", "NTASKS_PER_NODE", "NTASKS", "CPUS_PER_TASK", "CPUS_ON_NODE", "RESTART_COUNT", "DDP_MAX_REQUEUES"):
            variable = name if name.startswith("DDP") else f"SLURM_{name}"
            for script, value in (*((script, "PATH[$(touch x)0]") for script in ("03_ddp_spawn", "04_ddp_launcher", "bench")),
                                  *((STAGE, value) for value in ("1+1", "08", "1\n2", "name", "9" * 20))):
                with self.subTest(variable=variable, value=value, script=script):
                    said = self.run_script(script, code=2, CODE="85", **{variable: value})
                    self.assertRegex(said, rf"\A{script}: error: {variable}: got .*, expected a number\n\Z")
                    self.assertEqual((list(self.stub.glob("x")), self.words("argv")), ([], None))

    def test_arrays_and_containers(self):
        array = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
        self.run_script(STAGE, "5", "1", **array)
        self.assertEqual(self.words("argv"), ["5", "1", "--snapshot", f"{STAGE}-2.safetensors"])
        self.run_script(STAGE, "5", "1", "--snapshot=mine", **array)
        self.assertEqual(self.words("argv"), ["5", "1", "--snapshot=mine"])
        self.script(self.stub / "apptainer", "#!/bin/sh\n")
        self.run_script(STAGE, DDP_CONTAINER="an image.sif")
        self.assertEqual(self.words("step")[2:], ["apptainer", "exec", "--nv", "an image.sif", STAGE, "50", "10"])

    def test_what_is_missing_is_said_in_one_line(self):
        for name in ("03_ddp_spawn", "04_ddp_launcher", STAGE, "bench"):
            self.assertRegex(self.run_script(name, code=2, COMMAND="/elsewhere/my.sh"), rf"\A{name}: error: no checkout in .*\n\Z")
            self.run_script(name, "5", COMMAND="/elsewhere/my.sh", SLURM_SUBMIT_DIR=str(self.checkout))
            self.assertIn("5", self.words("argv"))
        (self.checkout / "build/bin" / STAGE).unlink()
        self.assertRegex(self.run_script(STAGE, code=2), rf"\A{STAGE}: error: .*/build/bin/{STAGE} is not there, expected a build: .*\n\Z")
        self.assertEqual(self.run_script("job", code=2), "job.sh: error: got no command, expected sbatch slurm/job.sh COMMAND...\n")
        self.assertIn("SLURM_JOB_ID is not set", self.run_script(STAGE, code=2, SLURM_JOB_ID=""))


if __name__ == "__main__":
    unittest.main()
