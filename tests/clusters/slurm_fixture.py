"""A real Slurm cluster on one machine: a controller and two nodes, node1 and node2, each with its own address, host name, /tmp and
/dev/shm; and a partition `gpu` of four nodes that claim to have eight GPUs each, to see what Slurm says there.

Run as a program, it starts the cluster and a shell in it:  tests/clusters/slurm_fixture.py
"""

import os
import pathlib
import stat
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import namespaces  # noqa: E402
from namespaces import run  # noqa: E402

CONTROLLER = "controller"
NODES = ("node1", "node2")
START_SECONDS = 60

CONF = """\
ClusterName=ddp
SlurmctldHost={controller}(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={state}/controller
SlurmdSpoolDir={state}/spool-%n
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
GresTypes=gpu
NodeName=node[1-2] CPUs=8 RealMemory=4000 State=UNKNOWN
NodeName=gpu[1-4] NodeHostname={controller} NodeAddr=10.77.0.1 Port=[7101-7104] CPUs=16 RealMemory=4000 Gres=gpu:8 State=UNKNOWN
PartitionName=main Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
PartitionName=gpu Nodes=gpu[1-4] MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """Started by the constructor; ends with the namespace. `folder` is shared by all nodes, as home directories are."""

    def __init__(self):
        namespaces.enter(CONTROLLER)
        self.hosts = namespaces.make_hosts(NODES, CONTROLLER)
        self.state = pathlib.Path("/var/tmp/slurm")
        self.folder = pathlib.Path("/var/tmp/home")
        for folder in (self.state, self.folder):
            folder.mkdir()
        conf = self.state / "slurm.conf"
        conf.write_text(CONF.format(controller=CONTROLLER, state=self.state))
        (self.state / "gres.conf").write_text(f"NodeName=gpu[1-4] Name=gpu File={self.state}/gpu[0-7]\n")
        for number in range(8):
            # Slurm wants device files, and counts them, whatever the device: this one is /dev/null.
            os.mknod(self.state / f"gpu{number}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        os.environ["SLURM_CONF"] = str(conf)
        for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "SRUN_")) and name != "SLURM_CONF"]:
            del os.environ[name]
        self._daemons = {}
        self._start("slurmctld", ["slurmctld", "-D", "-i", "-f", conf])
        for host in self.hosts:
            self._start(host.name, host.command(f"exec slurmd -D -N {host.name} -f {conf}"))
        for number in range(1, 5):
            self._start(f"gpu{number}", ["slurmd", "-D", "-N", f"gpu{number}", "-f", conf])
        self._wait_until_idle()

    def _start(self, name, command):
        log = open(self.state / f"{name}.out", "w")
        self._daemons[name] = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log,
                                               stderr=subprocess.STDOUT)

    def _wait_until_idle(self):
        deadline = time.monotonic() + START_SECONDS
        state = ""
        while time.monotonic() < deadline:
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    raise RuntimeError(f"{name} ended with exit code {daemon.returncode}\n{self.logs()}")
            result = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%N %t"], capture_output=True, text=True)
            state = result.stdout + result.stderr
            if result.returncode == 0 and state.count(" idle\n") == len(NODES) + 4:
                return
            time.sleep(0.2)
        raise RuntimeError(f"the nodes are not idle after {START_SECONDS} s, but:\n{state}\n{self.logs()}")

    def logs(self):
        text = ""
        for path in sorted(self.state.glob("*.out")):
            text += f"---- {path.name}\n" + "\n".join(path.read_text().splitlines()[-30:]) + "\n"
        return text

    def processes_on_nodes(self):
        """Command lines of what runs on the nodes besides Slurm itself."""
        found = []
        ours = os.readlink("/proc/self/ns/uts")
        for process in pathlib.Path("/proc").iterdir():
            try:
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if process.name.isdigit() and words and os.readlink(process / "ns/uts") != ours and "slurm" not in words.split()[0]:
                    found.append(words)
            except OSError:
                continue  # it ended meanwhile
        return found


if __name__ == "__main__":
    cluster = SlurmCluster()
    print(run("sinfo"), end="", flush=True)
    sys.exit(subprocess.call(sys.argv[1:] or ["bash"], cwd=cluster.folder))
