#!/usr/bin/env python3
"""The batch scripts as any user can try them: `srun` and `scontrol` are stubs that write down how they are called.
tests/slurm_test.py has a real Slurm.

usage: slurm_scripts_test.py [TEST...]
"""

import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
STAGE = "05_multinode"

# Runs one task; says which variables and words it got.
SRUN = """#!/bin/bash
printf '%s\\0' srun "$@" >>"$STUB/srun.log"; printf '\\n' >>"$STUB/srun.log"
env -0 >"$STUB/env"
while [[ $1 == --* ]]; do shift; done
"$@"
"""

# One file per job, named by its id, with the lines of `scontrol show job`.
SCONTROL = """#!{python}
import os, pathlib, re, sys
stub = pathlib.Path(os.environ["STUB"])
words = [word for word in sys.argv[1:] if not word.startswith("--")]
with open(stub / "scontrol.log", "a") as calls:
    print(*words, file=calls)
def records(name):
    array, _, task = name.partition("_")
    for path in sorted(stub.glob("job-*")):
        first = path.read_text().split("JobName")[0]
        if task and f"ArrayJobId={{array}} ArrayTaskId={{task}} " in first or not task and re.search(f"JobId={{array}} ", first):
            yield path
if words[:2] == ["show", "hostnames"]:
    print(*words[2].split(","), sep="\\n")
elif words[:2] == ["show", "job"]:
    found = [path.read_text() for path in records(words[2])]
    if "--details" not in sys.argv:
        found = [re.sub("JOB_GRES=.*", "", text) for text in found]
    print(*(" ".join(text.split()) if "--oneliner" in sys.argv else text for text in found), sep="\\n")
    sys.exit(not found)
elif words[0] == "update":
    path, = records(words[1].removeprefix("JobId="))
    if (stub / "no-updates").exists():
        sys.exit(1)
    path.write_text(re.sub(r"   Comment=.*\\n", "", path.read_text()) + f"   {{words[2]}} \\n")
"""


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.stub = pathlib.Path(folder.name) / "stub"
        self.checkout = pathlib.Path(folder.name) / "check out"
        self.bin = self.checkout / "build" / "bin"
        self.bin.mkdir(parents=True)
        self.stub.mkdir()
        shutil.copytree(ROOT / "slurm", self.checkout / "slurm")
        self.program("exit 0")
        self.executable(self.stub / "srun", SRUN)
        self.executable(self.stub / "scontrol", SCONTROL.format(python=sys.executable))
        self.job(7)

    def executable(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def program(self, text, name=STAGE):
        self.executable(self.bin / name, f"#!/bin/bash\necho began\n{text}\n")

    def job(self, number, array="", state="RUNNING", restarts=0, gpus="", comment=""):
        """What Slurm knows. `array` is its id and the task's."""
        (self.stub / f"job-{number}").write_text(
            f"JobId={number} " + ("ArrayJobId={} ArrayTaskId={} ".format(*array.split("_")) if array else "") + "JobName=any\n"
            f"   JobState={state} Reason=None\n   Requeue=1 Restarts={restarts} BatchFlag=1\n   TRES=cpu=2,node=1\n"
            f"   Command={self.checkout}/slurm/{STAGE}.sh 2 2\n   WorkDir=/gpu\n"
            + (f"   {gpus}\n" if gpus else "") + (f"   Comment={comment} \n" if comment else ""))

    def command(self, script, *arguments, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "SRUN_", "DDP_"))}
        environment |= {"PATH": f"{self.stub}:{environment['PATH']}", "STUB": str(self.stub), "SLURM_JOB_ID": "7",
                        "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n1,n2", "SLURM_NTASKS_PER_NODE": "2",
                        "SLURM_CPUS_ON_NODE": "64", **variables}
        path = script if "/" in str(script) else self.checkout / "slurm" / f"{script}.sh"
        return {"args": [path, *arguments], "env": environment, "cwd": self.stub, "text": True}

    def run_script(self, *arguments, script=STAGE, **variables):
        if script != STAGE:
            self.program("exit 0", script)
            variables = {"SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n1"} | variables
        return subprocess.run(**self.command(script, *arguments, **variables), capture_output=True)

    def calls(self, name):
        path = self.stub / name
        return path.read_text().splitlines() if path.exists() else []

    def steps(self):
        return [line.split("\0")[:-1] for line in self.calls("srun.log")]

    def task_environment(self):
        return dict(item.split("=", 1) for item in (self.stub / "env").read_text().split("\0") if item)

    def changes(self):
        """What the script had Slurm do."""
        return [call for call in self.calls("scontrol.log") if not call.startswith("show ")]


class ExitCodes(Scripts):
    def test_75_is_tried_again_twice(self):
        self.program("echo >>attempts; (($(wc -l <attempts) == 3)) || exit 75")
        result = self.run_script()
        self.assertEqual((result.returncode, len(self.steps())), (0, 3), result.stderr)
        self.assertEqual(re.findall(r"exit code 75, trying again \((.*)\)", result.stderr), ["1 of 2", "2 of 2"])
        self.program("exit 75")
        self.assertEqual((self.run_script().returncode, len(self.steps())), (75, 6))
        self.assertEqual(self.changes(), [])

    def test_stopped_with_a_snapshot_or_before_it_began(self):
        for code in (85, 128 + signal.SIGUSR1, 128 + signal.SIGUSR2):
            with self.subTest(code=code):
                self.job(7)
                self.program(f"exit {code}")
                before = len(self.changes())
                result = self.run_script()
                self.assertEqual(result.returncode, code)
                self.assertEqual(self.changes()[before:], ["update JobId=7 Comment=ddp_requeues=1", "requeue 7"])
                self.assertIn("asking Slurm to start the job again (1 of at most 3 times)", result.stderr)

    def test_others_are_the_job_s(self):
        for code in (1, 2, 3, 42, 128 + signal.SIGTERM, 128 + signal.SIGKILL):
            self.program(f"exit {code}")
            self.assertEqual(self.run_script().returncode, code)
        self.assertEqual((self.changes(), len(self.steps())), ([], 6))

    def test_signals_are_handed_on(self):
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            with self.subTest(number=number):
                self.job(7)
                self.program(f"trap 'got=1' {number.name[3:]}; touch ready; until [[ ${{got:-}} ]]; do sleep 0.01; done; exit 85",
                             "03_ddp_spawn")  # the script's own child
                (self.stub / "ready").unlink(missing_ok=True)
                command = self.command("03_ddp_spawn", SLURM_JOB_NUM_NODES="1", SLURM_JOB_NODELIST="n1")
                with subprocess.Popen(**command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as script:
                    while not (self.stub / "ready").exists():
                        self.assertIsNone(script.poll())
                        time.sleep(0.01)
                    script.send_signal(number)
                    self.assertEqual(script.wait(60), 85)


class Requeues(Scripts):
    """How many starts a job has left."""

    def setUp(self):
        super().setUp()
        self.program("exit 85")

    def comment(self):
        return "".join(re.findall(r"   Comment=(.*) \n", (self.stub / "job-7").read_text()))

    def test_only_its_own_count(self):
        """Slurm's number has preemptions, lost nodes and the administrator's in it."""
        self.job(7, restarts=5)
        for number in (1, 2, 3):
            result = self.run_script(SLURM_RESTART_COUNT=str(5 + number))
            self.assertIn(f"start the job again ({number} of at most 3 times)", result.stderr)
        result = self.run_script(SLURM_RESTART_COUNT="9")
        self.assertEqual(result.returncode, 85)
        self.assertIn("started again 3 times already (DDP_MAX_REQUEUES=3), so not once more", result.stderr)
        self.assertEqual(self.changes().count("requeue 7"), 3)

    def test_the_user_s_comment_stays(self):
        self.job(7, comment="project 12, ask Ann")
        self.run_script()
        self.assertEqual(self.comment(), "project 12, ask Ann ddp_requeues=1")
        self.run_script()
        self.assertEqual(self.comment(), "project 12, ask Ann ddp_requeues=2")

    def test_where_comments_are_refused_every_restart_counts(self):
        (self.stub / "no-updates").touch()
        self.job(7, restarts=2)
        self.assertIn("start the job again (3 of at most 3 times)", self.run_script(SLURM_RESTART_COUNT="2").stderr)
        self.assertIn("started again 3 times already", self.run_script(SLURM_RESTART_COUNT="3").stderr)
        self.assertEqual(self.changes().count("requeue 7"), 1)

    def test_another_limit(self):
        self.assertIn("started again 0 times already (DDP_MAX_REQUEUES=0)", self.run_script(DDP_MAX_REQUEUES="0").stderr)
        self.job(7, comment="ddp_requeues=08")
        self.assertIn("(9 of at most 9 times)", self.run_script(DDP_MAX_REQUEUES="09").stderr)

    def test_a_cancelled_job_stays_so(self):
        self.job(7, state="COMPLETING")
        self.assertIn("the job is COMPLETING, so it is not started again", self.run_script().stderr)
        (self.stub / "job-7").unlink()
        self.assertIn("the job is gone, so it is not started again", self.run_script().stderr)
        self.assertEqual(self.changes(), [])


class Arrays(Scripts):
    """The last task to start has the array's own number."""

    LAST = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    FIRST = {"SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}

    def setUp(self):
        super().setUp()
        self.job(7, array="7_2")
        self.job(8, array="7_1")

    def test_a_task_acts_on_itself_alone(self):
        self.program("exit 85")
        self.job(8, array="7_1", state="COMPLETED")
        self.run_script(**self.LAST)
        self.assertEqual(self.changes(), ["update JobId=7_2 Comment=ddp_requeues=1", "requeue 7_2"])
        self.job(8, array="7_1")
        self.assertIn("(1 of at most 3 times)", self.run_script(**self.FIRST).stderr)
        self.assertEqual(self.changes()[2:], ["update JobId=7_1 Comment=ddp_requeues=1", "requeue 7_1"])

    def test_a_task_keeps_its_restarts(self):
        self.job(7, array="7_2", restarts=1)
        self.run_script(SLURM_RESTART_COUNT="1", **self.LAST)
        self.assertEqual(self.task_environment()["SLURM_RESTART_COUNT"], "1")
        self.run_script(SLURM_RESTART_COUNT="1", **self.FIRST)
        self.assertNotIn("SLURM_RESTART_COUNT", self.task_environment())

    def test_each_has_its_snapshot(self):
        for script, variables in ((STAGE, self.LAST), ("04_ddp_launcher", self.FIRST)):
            self.run_script("5", "1", script=script, **variables)
            self.assertEqual(self.steps()[-1][-4:], ["5", "1", "--snapshot", f"{script}-{variables['SLURM_ARRAY_TASK_ID']}.safetensors"])
        self.run_script(**self.LAST)
        self.assertEqual(self.steps()[-1][-4:], ["50", "10", "--snapshot", f"{STAGE}-2.safetensors"])
        for words in (("--snapshot", "mine"), ("--snapshot=mine",)):
            self.run_script("5", "1", *words, **self.LAST)
            self.assertEqual(self.steps()[-1][-2 - len(words):], ["5", "1", *words])
        self.job(7)
        self.run_script("5", "1")
        self.assertEqual(self.steps()[-1][-2:], ["5", "1"])

    def test_the_checkout_is_found_from_slurm_s_copy(self):
        spool = self.stub / "slurm_script"
        shutil.copy(ROOT / "slurm" / f"{STAGE}.sh", spool)
        result = subprocess.run(**self.command(spool, **self.LAST), capture_output=True)
        self.assertEqual((result.returncode, result.stdout), (0, "began\n"), result.stderr)


class Environment(Scripts):
    def test_the_tasks_get_it_whole(self):
        """Also where sbatch was told --export=NONE, which srun would repeat."""
        self.run_script(SLURM_EXPORT_ENV="NONE", SRUN_EXPORT_ENV="NONE")
        environment = self.task_environment()
        self.assertEqual(environment["SLURM_EXPORT_ENV"], "ALL")
        self.assertNotIn("SRUN_EXPORT_ENV", environment)

    def test_so_do_those_that_bench_starts(self):
        self.program("srun true", "bench")
        subprocess.run(**self.command("bench", SLURM_EXPORT_ENV="NONE"), capture_output=True)
        self.assertEqual(self.task_environment()["SLURM_EXPORT_ENV"], "ALL")
        self.assertRegex(self.task_environment()["DDP_STORE_KEY"], r"\A[0-9a-f]{32}\Z")

    def test_the_key_of_the_store(self):
        self.program('echo "$DDP_STORE_KEY" >>"$STUB/keys"; exit 75')
        result = self.run_script()
        keys = self.calls("keys")
        self.assertEqual(len(keys), 3)
        self.assertEqual(len(set(keys)), 1)
        self.assertRegex(keys[0], r"\A[0-9a-f]{32}\Z")
        self.assertNotIn(keys[0], result.stdout + result.stderr + "".join(self.calls("srun.log")) + "".join(self.calls("scontrol.log")))
        self.run_script()
        self.assertNotEqual(self.calls("keys")[3], keys[0])
        self.run_script(DDP_STORE_KEY="mine")
        self.assertEqual(self.calls("keys")[-1], "mine")
        self.executable(self.stub / "od", "#!/bin/bash\necho 12 34\n")
        result = self.run_script()
        self.assertEqual((result.returncode, result.stderr.splitlines()[1:]),
                         (2, [f"{STAGE}: error: no key of 128 bits came from od and /dev/urandom"]))

    def test_a_job_submitted_from_within_another(self):
        """Slurm leaves what it does not set itself: the other's array, GPUs, restarts and step."""
        other = {"SLURM_ARRAY_JOB_ID": "3", "SLURM_ARRAY_TASK_ID": "5", "SLURM_GPUS_PER_NODE": "8", "SLURM_CPUS_PER_GPU": "4",
                 "SLURM_RESTART_COUNT": "2", "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_STEP_NUM_TASKS": "1",
                 "SLURM_CPU_BIND": "quiet,mask_cpu:0x1"}
        self.program("exit 85")
        result = self.run_script(**other)
        self.assertIn(" | tasks 4 | GPUs per node 0 | ", result.stderr)
        self.assertEqual(other.keys() & self.task_environment().keys(), set())
        self.assertEqual(self.steps()[-1][-2:], ["50", "10"])
        self.assertEqual(self.changes(), ["update JobId=7 Comment=ddp_requeues=1", "requeue 7"])

    def test_its_own_stays(self):
        self.job(7, array="7_5", restarts=2, gpus="JOB_GRES=gpu:8")
        own = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "5", "SLURM_GPUS_PER_NODE": "8", "SLURM_CPUS_PER_GPU": "4",
               "SLURM_RESTART_COUNT": "2", "SLURM_CPU_BIND": "cores"}
        self.run_script(**own)
        environment = self.task_environment()
        self.assertEqual({name: environment.get(name) for name in own}, own)


class Steps(Scripts):
    def gpus(self, expected_per_node, **variables):
        self.job(7, gpus="TresPerNode=gres:gpu:1")
        result = self.run_script(**variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f" | tasks {2 * expected_per_node} | GPUs per node {expected_per_node} | ", result.stderr)
        words = self.steps()[-1]
        self.assertLessEqual({f"--ntasks={2 * expected_per_node}", f"--ntasks-per-node={expected_per_node}"}, set(words))

    def test_gpus_of_a_node(self):
        for text, number in (("8", 8), ("a100:8", 8), ("a100:4,h100:2", 6), ("08", 8), ("gpu:a100:3", 3)):
            with self.subTest(text=text):
                self.gpus(number, SLURM_GPUS_PER_NODE=text)
                self.gpus(number, SLURM_GPUS_ON_NODE=text)
        self.gpus(4, SLURM_GPUS="8", SLURM_GPUS_ON_NODE="4")

    def test_each_task_sees_all_gpus(self):
        """What binds tasks to GPUs is the job's, or the site's, and stays out of the step. With --gpu-bind=none Slurm 22.05 takes
        CUDA_VISIBLE_DEVICES away too."""
        self.job(7, gpus="TresPerNode=gres:gpu:4")
        binding = {"SLURM_GPU_BIND": "single:1", "SLURM_GPUS_PER_TASK": "1", "SLURM_NTASKS_PER_GPU": "1", "SLURM_TRES_PER_TASK": "gres/gpu:1",
                   "SLURM_TRES_BIND": "gres/gpu:single:1"}
        seen = {"CUDA_VISIBLE_DEVICES": "5,6", "SLURM_GPUS_ON_NODE": "4"}
        self.run_script(**binding, **seen)
        environment = self.task_environment()
        self.assertEqual({name for name in environment if "BIND" in name or name.endswith(("PER_TASK", "PER_GPU"))}, set())
        self.assertEqual({name: environment[name] for name in seen}, seen)
        self.assertEqual([word for word in self.steps()[-1] if "bind" in word], [])

    def test_gpus_that_make_no_sense(self):
        self.job(7, gpus="TresPerNode=gres:gpu:1")
        for variables, message in (({"SLURM_GPUS_PER_NODE": "a100"}, 'GPUs per node: got "a100", expected numbers'),
                                   ({"SLURM_GPUS": "7", "SLURM_GPUS_ON_NODE": "4"}, "--gpus=7: got 4 GPUs on the first of 2 nodes")):
            result = self.run_script(**variables)
            self.assertEqual((result.returncode, self.steps()), (2, []))
            self.assertIn(f"{STAGE}: error: {message}", result.stderr)

    def test_few_processors(self):
        """The script's header asks for two tasks per node, each GPU gets one: with CPUs for two."""
        self.job(7, gpus="TresPerNode=gres/gpu:8")
        for script in (STAGE, "04_ddp_launcher", "03_ddp_spawn"):
            lines = self.run_script(script=script, SLURM_GPUS_PER_NODE="8", SLURM_CPUS_ON_NODE="2").stderr.splitlines()
            self.assertRegex(lines[1], rf"\A{script}: WARNING: 8 tasks share 2 CPUs of each node, expected 8: .* for 2 tasks per node; "
                                       r"sbatch --cpus-per-gpu=N gives N to each GPU's task\Z")
            self.assertEqual(len(lines), 2)
        self.assertIn("--overcommit", self.steps()[-1])
        result = self.run_script(SLURM_GPUS_PER_NODE="8", SLURM_CPUS_ON_NODE="16", SLURM_CPUS_PER_TASK="8")
        self.assertIn("WARNING: 8 tasks share 16 CPUs of each node, expected 64: ", result.stderr)
        self.assertIn("--cpus-per-task=2", self.steps()[-1])
        self.assertNotIn("SLURM_CPUS_PER_TASK", self.task_environment())  # srun would want as many
        result = self.run_script(SLURM_GPUS_PER_NODE="8", SLURM_CPUS_ON_NODE="16", SLURM_CPUS_PER_TASK="2")
        self.assertNotIn("WARNING", result.stderr)
        self.assertIn("--cpus-per-task=2", self.steps()[-1])

    def test_a_log_for_each_task(self):
        self.run_script(DDP_TASK_LOGS="1")
        self.assertLessEqual({f"--output={STAGE}-%j-%t.out", "--open-mode=append"}, set(self.steps()[-1]))

    def test_a_dry_run_starts_nothing(self):
        result = self.run_script("7", "3", "--snapshot", "it's a file", DDP_DRY_RUN="1")
        self.assertEqual((result.returncode, self.steps(), self.changes()), (0, [], []))
        self.assertEqual(shlex.split(result.stdout),
                         ["srun", "--nodes=2", "--ntasks=4", "--kill-on-bad-exit=1", "--wait=60", "--ntasks-per-node=2",
                          str(self.bin / STAGE), "7", "3", "--snapshot", "it's a file"])

    def test_more_nodes_than_a_stage_takes(self):
        result = self.run_script(script="04_ddp_launcher", SLURM_JOB_NUM_NODES="2", SLURM_JOB_NODELIST="n1,n2")
        self.assertEqual((result.returncode, self.steps()), (2, []))
        self.assertIn("error: --nodes=2: expected 1; slurm/05_multinode.sh is for several", result.stderr)


if __name__ == "__main__":
    unittest.main()
