"""A real HTCondor pool on one machine: all daemons of Debian's minicondor, one machine with a partitionable slot of eight CPUs.

HTCondor is not in every Debian, so the pool lives in a Debian trixie of its own, made once by debootstrap from the mirror of this
machine's apt sources and kept in the build folder. What the pool writes goes into memory, over that: every pool starts fresh.
This checkout is at its own path inside, as a shared file system would have it, and jobs run as the ordinary user `alice`.
"""

import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import namespaces  # noqa: E402
from namespaces import run  # noqa: E402
from stages import wait_until  # noqa: E402

HOST = "condorhost"
USER = "alice"
SUITE = "trixie"
PACKAGES = ("minicondor", "python3-yaml")
CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
START_SECONDS = 90

# PER_JOB_NAMESPACES, MOUNT_*: nested namespaces are not allowed here. Parallel universe needs the dedicated scheduler.
CONF = """\
CONDOR_HOST = 127.0.0.1
NETWORK_INTERFACE = 127.0.0.1
NETWORK_HOSTNAME = {host}
MOUNT_PRIVATE_DEV_SHM = False
MOUNT_UNDER_SCRATCH =
PER_JOB_NAMESPACES = False
NUM_CPUS = 8
MEMORY = 16384
SLOT_TYPE_1 = 100%
SLOT_TYPE_1_PARTITIONABLE = True
NUM_SLOTS_TYPE_1 = 1
DedicatedScheduler = "DedicatedScheduler@{host}"
STARTD_ATTRS = $(STARTD_ATTRS), DedicatedScheduler
RANK = Scheduler =?= $(DedicatedScheduler)
START = True
SUSPEND = False
PREEMPT = False
KILL = False
SCHEDD_INTERVAL = 2
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_CYCLE_DELAY = 1
UPDATE_INTERVAL = 5
"""


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
        (self.root / "etc/condor/config.d/90-pool").write_text(CONF.format(host=HOST))
        run("chroot", self.root, "useradd", "--create-home", USER)
        self.home = pathlib.Path("/home") / USER
        self._share_checkout(memory)
        run("chroot", self.root, "condor_master")
        wait_until(self._is_ready, START_SECONDS, lambda: f"a slot and a queue\n{self.logs()}")

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
