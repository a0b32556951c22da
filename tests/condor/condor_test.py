#!/usr/bin/env python3
"""submit on a real HTCondor pool: the example, two nodes, exit code 85, unchanged text, and a killed submission.

usage: condor_test.py BUILD_FOLDER [TEST...]     as root

The pool is a real one on one machine: all daemons of Debian's minicondor, one machine with a partitionable slot of eight CPUs. HTCondor is not
in every Debian, so the pool lives in a Debian trixie of its own, made once by debootstrap from the mirror of this machine's apt sources and kept
in the build folder. What the pool writes goes into memory, over that: every pool starts fresh. This checkout is at its own path inside, as a
shared file system would have it, and jobs run as the ordinary user `alice`.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from clusters import namespaces, stages  # noqa: E402
from clusters.namespaces import CHECKOUT, run  # noqa: E402

BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve()
BIN = BUILD / "bin"
HOST = "condorhost"
USER = "alice"
SUITE = "trixie"
PACKAGES = ("minicondor", "python3-yaml")
START_SECONDS = 90


def make_root(cache):
    """Folder with trixie and HTCondor, made once. An incomplete folder is never used."""
    cache = pathlib.Path(cache).resolve()
    root, new, log = cache / f"{SUITE}-{'-'.join(PACKAGES)}", cache / "new", cache / "new.log"
    if root.exists():
        return root
    mirror = re.search(r"^\S+/debian/?$", run("apt-get", "indextargets", "--format", "$(REPO_URI)"), re.MULTILINE)
    if mirror is None:
        raise RuntimeError("no Debian mirror in apt's sources, expected one, to install HTCondor's packages from")
    cache.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(new, ignore_errors=True)
    print(f"making a Debian {SUITE} with {', '.join(PACKAGES)} in {root}: about 40 s, 560 MB", flush=True)
    # In a mount namespace, so that the inner /proc is unmounted after the installation.
    script = (
        'set -e; exec >"$1.log" 2>&1; debootstrap --variant=minbase "$2" "$1" "$3"\n'
        'echo "deb $3 $2 main" >"$1/etc/apt/sources.list"; mount -t proc proc "$1/proc"\n'
        'printf "#!/bin/sh\\nexit 101\\n" >"$1/usr/sbin/policy-rc.d"; chmod 755 "$1/usr/sbin/policy-rc.d"\n'
        'export DEBIAN_FRONTEND=noninteractive; chroot "$1" apt-get update\n'
        'chroot "$1" apt-get install -y --no-install-recommends "${@:4}"\n'
        'chroot "$1" apt-get clean\n')
    result = subprocess.run(["unshare", "--mount", "bash", "-c", script, "make_root", str(new), SUITE, mirror[0], *PACKAGES])
    if result.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise RuntimeError(f"could not make {root} from {mirror[0]}:\n{tail}")
    new.rename(root)
    return root


class CondorPool:
    """Pool that the constructor starts; it ends with the namespace."""

    def __init__(self, build_folder):
        base = make_root(pathlib.Path(build_folder) / "condor-pool")  # before the network is closed
        namespaces.enter(HOST)
        memory = pathlib.Path("/var/tmp/condor")
        memory.mkdir()
        self.root = memory / "root"
        self._overlay(base, memory / "base", self.root)
        run("mount", "-t", "proc", "proc", self.root / "proc")
        run("mount", "--rbind", "/dev", self.root / "dev")
        run("mount", "-t", "tmpfs", "none", self.root / "dev/shm")
        (self.root / "etc/hosts").write_text(f"127.0.0.1 {HOST} localhost\n")
        (self.root / "etc/hostname").write_text(f"{HOST}\n")
        (self.root / "etc/condor/config.d/90-pool").write_text(pathlib.Path(__file__).with_name("condor.conf").read_text().format(host=HOST))
        run("chroot", self.root, "useradd", "--create-home", USER)
        self.home = pathlib.Path("/home") / USER
        self._share_checkout(memory)
        run("chroot", self.root, "condor_master")
        stages.wait_until(self._is_ready, START_SECONDS, lambda: f"a slot and a queue\n{self.logs()}")

    def _overlay(self, lower, work, target):
        for folder in (work / "upper", work / "work", target):
            folder.mkdir(parents=True)
        run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={work}/upper,workdir={work}/work", target)

    def _share_checkout(self, memory):
        """Mounts a folder at the same path. alice's writes to it stay in memory."""
        inside = self.root / str(CHECKOUT).lstrip("/")
        self._overlay(CHECKOUT, memory / "checkout", inside)
        for folder in inside.parents[:len(CHECKOUT.parents) - 1]:
            folder.chmod(folder.stat().st_mode | 0o011)  # also where the checkout is below root's own home
        venv = CHECKOUT / ".venv"
        if venv.is_dir():
            run("mount", "--rbind", venv.resolve(), inside / ".venv")
        run("chroot", self.root, "chown", USER, CHECKOUT)

    def _is_ready(self):
        slots = self.run("condor_status", "-af", "Name")
        return slots.returncode == 0 and "slot1@" in slots.stdout and self.run("condor_q", "-totals").returncode == 0

    def run(self, *command, user=USER):
        """Runs a command in the pool as alice. @return the result of subprocess.run"""
        variables = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(self.home), "USER": user, "LANG": "C.UTF-8"}
        start = ["chroot", f"--userspec={user}", self.root, "/usr/bin/env", "--ignore-environment",
                 f"--chdir={self.home}", *(f"{name}={value}" for name, value in variables.items())]
        return subprocess.run([str(part) for part in [*start, *command]], capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL)

    def path(self, inside):
        """Path from outside of a path in the pool."""
        return self.root / str(inside).lstrip("/")

    def logs(self):
        text = ""
        for path in sorted(self.path("/var/log/condor").glob("S[ch]*Log")):
            text += f"---- {path.name}\n" + "\n".join(line[:200] for line in path.read_text(errors="replace").splitlines()[-10:]) + "\n"
        return text


pool = None


class Pool(stages.Submitted, unittest.TestCase):
    """All files belong to alice."""

    def setUp(self):
        self.folder = pool.home / self.id().rpartition(".")[2]
        self.out = self.folder / "out"

    def write(self, name, text):
        inside = pool.path(self.folder / name)
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.write_text(text)
        inside.chmod(0o755)
        pool.run("chown", "-R", "alice", pool.home, user="root")
        return self.folder / name

    def run_submit(self, *arguments):
        return pool.run(CHECKOUT / "tools/submit", *arguments)

    def read(self, job, name):
        return pool.path(job["folder"]).joinpath(name.format(**job)).read_text()

    def test_the_example(self):
        """Submits condor/settings.yaml unchanged."""
        settings, out = CHECKOUT / "condor/settings.yaml", CHECKOUT / "out/condor"
        self.tool("--settings-file", settings, "--", "5", "1", "--dataset", "digits", "--nprocs", "2")
        job, = self.wait_for("done", out=out)
        self.assertIn("CPU1] Epoch 4", self.read(job, "job-{id}.out"))
        self.assertTrue(pool.path(out / "submission_file.sub").exists())
        self.assertLessEqual({"snapshot.safetensors", "metrics.jsonl"}, {path.name for path in pool.path(job["folder"]).iterdir()})
        self.assertIn("moved ", self.tool("logs", "0", "--settings-file", settings, "--lines", "1"))

    def test_two_nodes_stopped_in_the_middle(self):
        """A rank is asked to stop: all ranks end with 85, HTCondor starts them again, and they end on the unbroken run's bits."""
        epochs = "200"  # the output comes in blocks of some 60 epochs
        training = [epochs, epochs, "--layers", "64,64,10", "--dataset-size", "1024", "--global-batch", "64", "--optimizer", "adam"]
        expected = stages.spawned(BIN, 2, workload=training)
        self.submit(BIN / "05_multinode", "--nodes", "2", "--", *training)
        job, = self.jobs()
        output = pool.path(job["folder"]) / f"job-{job['id']}.0.out"
        stages.wait_until(lambda: output.exists() and "Epoch 2 " in output.read_text(), stages.WAIT_SECONDS, self.jobs, pause_s=0.01)
        os.kill(stages.ranks_of(BIN / "05_multinode", "_CONDOR_PROCNO")[1], signal.SIGUSR1)
        done, = self.wait_for("done")
        self.assertEqual((done["id"], done["attempt"], done["exit_code"]), (job["id"], 1, 0))
        self.assertEqual(pool.run("condor_history", job["id"], "-af", "NumJobStarts").stdout.split()[0], "2")
        text = output.read_text()
        self.assertEqual(stages.last_line(text), expected, text[-1000:])
        again = [int(epoch) for epoch in re.findall(r"^\[CPU0\] Epoch (\d+) ", text, re.MULTILINE)]
        # HTCondor overwrites the output: the second start went on where the first start stopped.
        self.assertGreater(again[0], 2)
        self.assertEqual(again, list(range(again[0], int(epochs))))

    def test_a_sweep_held_and_cancelled(self):
        self.submit(self.write("broken", "#!/no/such/interpreter\n"))
        self.assertIn("Failed to execute", self.wait_for("held")[0]["reason"])
        self.submit(self.write("point", '#!/bin/sh\necho "$@"; [ "$2" = 1 ] || exec sleep 1000\n'), "--sweep", "x=1,2", "y=a b")
        jobs = self.wait_for("held", "done", "running")
        self.assertEqual(self.read(jobs[1], "job-{id}.out"), "--x 1 --y a b\n")
        self.tool("cancel", "--all", self.out)
        self.wait_for("cancelled", "done", "cancelled")
        queue = pool.run("condor_q", *(job["id"] for job in jobs), "-af", "JobStatus").stdout
        self.assertRegex(queue, r"\A(3\n)*\Z")  # gone, or on the way


if __name__ == "__main__":
    pool = CondorPool(BUILD)
    stages.run_tests(pool.logs)
