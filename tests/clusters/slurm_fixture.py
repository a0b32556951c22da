#!/usr/bin/env python3
"""A real Slurm cluster on one machine: a controller and two nodes, node1 and node2, each with its own address, host name, /tmp and
/dev/shm; and a partition `gpu` of four nodes that claim to have eight GPUs each, to see what Slurm says there.

Run as a program, it starts the cluster and a shell in it:  tests/clusters/slurm_fixture.py
"""

import os
import pathlib
import re
import stat
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from clusters import namespaces  # noqa: E402
from clusters.namespaces import run  # noqa: E402
from clusters.stages import wait_until  # noqa: E402

CONTROLLER = "controller"
NODES = ("node1", "node2")
GPU_NODES = ("gpu1", "gpu2", "gpu3", "gpu4")
START_SECONDS = 180


class SlurmCluster:
    """Cluster that the constructor starts; it ends with the namespace. All nodes share `folder`, like home directories."""

    def __init__(self):
        namespaces.enter(CONTROLLER)
        hosts = namespaces.make_hosts(NODES, CONTROLLER)
        self.state = pathlib.Path("/var/tmp/slurm")
        self.folder = pathlib.Path("/var/tmp/home")
        for folder in (self.state, self.folder):
            folder.mkdir()
        conf = self.state / "slurm.conf"
        conf.write_text(pathlib.Path(__file__).with_name("slurm.conf").read_text().format(controller=CONTROLLER, state=self.state))
        (self.state / "gres.conf").write_text(f"NodeName=gpu[1-4] Name=gpu File={self.state}/gpu[0-7]\n")
        for number in range(8):
            # Slurm counts device files of any kind: here /dev/null.
            os.mknod(self.state / f"gpu{number}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        version = re.search(r"(\d+)\.(\d+)", run("slurmctld", "-V"))
        if (int(version[1]), int(version[2])) >= (23, 11):  # older versions do not need cgroups here
            (self.state / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "SRUN_"))]:
            del os.environ[name]
        os.environ["SLURM_CONF"] = str(conf)
        self._start("slurmctld", ["slurmctld", "-D", "-i", "-f", conf])
        # A slurmd without a controller tries again only after a while.
        self._wait_until("the controller answers", lambda: " is UP" in self._ask("scontrol", "ping"))
        for host in hosts:
            self._start(host.name, host.command(f"exec slurmd -D -N {host.name} -f {conf}"))
        for name in GPU_NODES:
            self._start(name, ["slurmd", "-D", "-N", name, "-f", conf])
        idle = [f"{name} idle" for name in sorted([*NODES, *GPU_NODES])]
        self._wait_until("the nodes are idle", lambda: sorted(self._ask("sinfo", "--noheader", "--Node", "--format=%N %t").splitlines()) == idle)

    def _start(self, name, command):
        with open(self.state / f"{name}.out", "w") as log:
            subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def _ask(self, *command):
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout

    def _wait_until(self, what, condition):
        wait_until(condition, START_SECONDS, lambda: f"{what}\n{self._ask('sinfo', '--Node')}\n{self.logs()}")

    def logs(self):
        return "".join(f"---- {path.name}\n" + "\n".join(path.read_text().splitlines()[-30:]) + "\n" for path in sorted(self.state.glob("*.out")))

    def processes_on_nodes(self):
        """Command lines of the processes on the nodes, without Slurm's daemons: stages, and a slurmstepd for each step."""
        ours, found = os.readlink("/proc/self/ns/uts"), []
        for process in pathlib.Path("/proc").iterdir():
            try:
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if process.name.isdigit() and words and os.readlink(process / "ns/uts") != ours and not words.startswith("slurmd "):
                    found.append(words)
            except OSError:
                continue  # it ended meanwhile
        return found


if __name__ == "__main__":
    cluster = SlurmCluster()
    print(run("sinfo"), end="", flush=True)
    sys.exit(subprocess.call(sys.argv[1:] or ["bash"], cwd=cluster.folder))
