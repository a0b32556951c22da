"""A real Slurm cluster on one machine: a controller and two nodes, node1 and node2, each with its own address, host name, /tmp and
/dev/shm; a partition `gpu` of four nodes that claim to have eight GPUs each, to see what Slurm says there; and a partition `bound` of
one node with this machine's processors and two such GPUs, where tasks are bound to processors and, if cgroups are of version 1 and ours
to make, jobs see nothing but their own.

Run as a program, it starts the cluster and a shell in it:  tests/clusters/slurm_fixture.py
"""

import atexit
import contextlib
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import namespaces  # noqa: E402
from namespaces import run  # noqa: E402

CONTROLLER = "controller"
NODES = ("node1", "node2")
BOUND_GPUS = ((1, 5), (1, 7))  # the device numbers of /dev/zero and /dev/full, which nothing here opens
CGROUPS = pathlib.Path("/sys/fs/cgroup")
CONTROLLERS = ("cpuset", "devices", "freezer")
START_SECONDS = 180

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
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
GresTypes=gpu
NodeName=node[1-2] CPUs=8 RealMemory=4000 State=UNKNOWN
NodeName=gpu[1-4] NodeHostname={controller} NodeAddr=10.77.0.1 Port=[7101-7104] CPUs=16 RealMemory=4000 Gres=gpu:8 State=UNKNOWN
NodeName={bound} NodeHostname={controller} NodeAddr=10.77.0.1 Port=7105 CPUs={cpus} RealMemory=4000 Gres=gpu:{bound_gpus} State=UNKNOWN
PartitionName=bound Nodes={bound} MaxTime=INFINITE State=UP
PartitionName=main Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
PartitionName=gpu Nodes=gpu[1-4] MaxTime=INFINITE State=UP
"""

CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint={cgroups}
ConstrainCores=yes
ConstrainDevices=yes
IgnoreSystemd=yes
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
        # The name is that of its cgroups too, which all on this machine share.
        self.bound = f"bound{os.stat('/proc/self/ns/pid').st_ino}"
        with open("/etc/hosts", "a") as hosts:
            hosts.write(f"10.77.0.1 {self.bound}\n")
        self.cpus = len(os.sched_getaffinity(0))
        conf.write_text(CONF.format(controller=CONTROLLER, state=self.state, bound=self.bound, cpus=self.cpus,
                                    bound_gpus=len(BOUND_GPUS)))
        (self.state / "gres.conf").write_text(f"NodeName=gpu[1-4] Name=gpu File={self.state}/gpu[0-7]\n")
        for number in range(8):
            # Slurm wants device files, and counts them, whatever the device: this one is /dev/null.
            os.mknod(self.state / f"gpu{number}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        version = re.search(r"(\d+)\.(\d+)", run("slurmctld", "-V"))
        if (int(version[1]), int(version[2])) >= (23, 11):  # before, nothing here asks for cgroups
            (self.state / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        os.environ["SLURM_CONF"] = str(conf)
        for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "SRUN_")) and name != "SLURM_CONF"]:
            del os.environ[name]
        self._daemons = {}
        self._start("slurmctld", ["slurmctld", "-D", "-i", "-f", conf])
        # A slurmd that finds no controller tries again only after a while.
        self._wait_until("the controller answers", lambda: " is UP" in self._ask("scontrol", "ping"))
        for host in self.hosts:
            self.start_node(host)
        for number in range(1, 5):
            self._start(f"gpu{number}", ["slurmd", "-D", "-N", f"gpu{number}", "-f", conf])
        self._start_bound(conf)
        self.wait_until_idle()

    def _start_bound(self, main_conf):
        """A slurmd with a configuration of its own."""
        folder = self.state / "bound"
        folder.mkdir()
        self.bound_gpus = [folder / f"gpu{number}" for number in range(len(BOUND_GPUS))]
        for path, device in zip(self.bound_gpus, BOUND_GPUS):
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(*device))
        (folder / "gres.conf").write_text("".join(f"NodeName={self.bound} Name=gpu File={path}\n" for path in self.bound_gpus))
        self.has_cgroups = all((CGROUPS / name / "release_agent").exists() and os.access(CGROUPS / name, os.W_OK)
                               for name in CONTROLLERS)
        text, plugins = main_conf.read_text(), "task/affinity"
        if self.has_cgroups:
            text, plugins = text.replace("proctrack/linuxproc", "proctrack/cgroup"), "task/cgroup,task/affinity"
            (folder / "cgroup.conf").write_text(CGROUP_CONF.format(cgroups=CGROUPS))
            atexit.register(self._remove_cgroups)
        elif (self.state / "cgroup.conf").exists():
            (folder / "cgroup.conf").write_text((self.state / "cgroup.conf").read_text())
        (folder / "slurm.conf").write_text(f"{text}TaskPlugin={plugins}\n")
        self._start(self.bound, ["slurmd", "-D", "-N", self.bound, "-f", folder / "slurm.conf"])

    def _remove_cgroups(self):
        """They do not end with the namespace."""
        self._daemons[self.bound].kill()
        self._daemons[self.bound].wait()
        for name in CONTROLLERS:
            for folder, _, _ in os.walk(CGROUPS / name / f"slurm_{self.bound}", topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)

    def start_node(self, host):
        self._start(host.name, host.command(f"exec slurmd -D -N {host.name} -f {self.state / 'slurm.conf'}"))

    def wait_until_idle(self):
        names = sorted([*NODES, *(f"gpu{number}" for number in range(1, 5)), self.bound])
        idle = [f"{name} idle" for name in names]
        self._wait_until("the nodes are idle", lambda: sorted(self._ask("sinfo", "--noheader", "--Node", "--format=%N %t").splitlines()) == idle)

    def kill_node(self, host):
        """All that runs there, Slurm's own daemons too: as when its power fails, but that its connections are closed."""
        network = os.stat(f"/run/netns/{host.name}").st_ino
        for process in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and os.stat(process / "ns/net").st_ino == network:
                    os.kill(int(process.name), signal.SIGKILL)
        self._daemons.pop(host.name).wait()

    def _start(self, name, command):
        log = open(self.state / f"{name}.out", "w")
        self._daemons[name] = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log,
                                               stderr=subprocess.STDOUT)

    def _ask(self, *command):
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout

    def _wait_until(self, what, condition):
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    raise RuntimeError(f"{name} ended with exit code {daemon.returncode}\n{self.logs()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {START_SECONDS} s: {what}\n{self._ask('sinfo', '--Node')}\n{self.logs()}")
            time.sleep(0.2)

    def logs(self):
        text = ""
        for path in sorted(self.state.glob("*.out")):
            text += f"---- {path.name}\n" + "\n".join(path.read_text().splitlines()[-30:]) + "\n"
        return text

    def _commands_on_nodes(self):
        ours = os.readlink("/proc/self/ns/uts")
        for process in pathlib.Path("/proc").iterdir():
            try:
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if process.name.isdigit() and words and os.readlink(process / "ns/uts") != ours:
                    yield words
            except OSError:
                continue  # it ended meanwhile

    def processes_on_nodes(self):
        """Command lines of what runs on the nodes besides Slurm itself."""
        return [words for words in self._commands_on_nodes() if "slurm" not in words.split()[0]]

    def steps_on_nodes(self):
        """What Slurm itself runs on the nodes, one process for each step."""
        return [words for words in self._commands_on_nodes() if words.startswith("slurmstepd")]


if __name__ == "__main__":
    cluster = SlurmCluster()
    print(run("sinfo"), end="", flush=True)
    sys.exit(subprocess.call(sys.argv[1:] or ["bash"], cwd=cluster.folder))
