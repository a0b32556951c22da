#!/usr/bin/env python3
"""Ranks and launchers that are killed or stopped at random moments, and disks that are full, under the real launchers: a line says why,
nobody is left, and a restart ends on the bits of a run that nothing disturbed.

usage: faults_test.py BUILD_DIR [CASE...]     CASE: the beginning of a case's name
DDP_TEST_REPEATS=100 tries every case with something random so often (default: a few times). DDP_TEST_SEED repeats a run's random moments.
Exit code 0 if every check holds, else 1. Three tries run at a time, because most of a try is waiting.
"""

import contextlib
import errno
import functools
import itertools
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from clusters import stages  # noqa: E402
from support.scratch import check, run_cases  # noqa: E402

BIN = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve() / "bin"
SEED = int(os.environ.get("DDP_TEST_SEED", time.time_ns() % 10**6))
RANKS = 3
EPOCHS = 150  # a few milliseconds each, so that most of a run is left when the fault comes
ENDLESS = 10**6
WORKLOAD = ["5", "--dataset-size", "512", "--optimizer", "adam", "--device", "cpu", "--snapshot", "s", "--resume", "auto"]
HANG_SECONDS = 120  # longer than any step here, also on a busy machine
# From a kill, or the end of --timeout, until all processes are gone: 2 to 5 s on an idle machine. Ranks that are not ended are noticed,
# also on a busy machine: they wait for ten minutes, or train on.
GONE_S = 25
MARK = "DDP_TEST_RUN"  # a variable of all processes of a run, to find them by
PROGRAM = {"spawn": "03_ddp_spawn", "torchrun": "04_ddp_launcher", "mpirun": "04_ddp_launcher"}

numbers = itertools.count()


def check_gone(begin, what, run, more_s=0):
    seconds = time.monotonic() - begin
    check(seconds < GONE_S + more_s, f"{what}: {seconds:.2f} s, allowed are {GONE_S + more_s}\n{run.texts()}")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def command(launcher, *options, ranks=RANKS, epochs=EPOCHS):
    program = [BIN / PROGRAM[launcher], str(epochs), *WORKLOAD, *options]
    return {"spawn": [*program, "--nprocs", str(ranks)],
            "torchrun": [stages.torchrun(), "--standalone", f"--nproc-per-node={ranks}", "--no-python", *program],
            "mpirun": ["mpirun", "--oversubscribe", "-np", str(ranks), *program]}[launcher]


class Run:
    """Training under a launcher, in a process group of its own, with output to files. Its remaining processes are killed at the end."""

    def __init__(self, argv, variables=None, folder=None):
        """@param folder default: a folder of its own, for the time of the run"""
        self.own_folder = contextlib.nullcontext(folder) if folder else tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.own_folder.__enter__())
        self.mark = f"{os.getpid()}.{next(numbers)}"
        self.out, self.err = (self.folder / f"{name}.{self.mark}" for name in ("out", "err"))
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.launcher = subprocess.Popen([str(word) for word in argv], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                             env=stages.own_variables() | (variables or {}) | {MARK: self.mark}, process_group=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while self.processes() or self.launcher.poll() is None:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.own_folder.__exit__(None, None, None)

    def processes(self):
        """Program and variables of the run's living processes, the launcher's too, by process id."""
        return {pid: (program, variables) for pid, program, variables in stages.processes() if variables.get(MARK) == self.mark}

    def ranks(self):
        """Process ids of the training's ranks, by rank."""
        return {int(variables[name]): pid for pid, (program, variables) in self.processes().items() if program.startswith(str(BIN))
                for name in ("RANK", "OMPI_COMM_WORLD_RANK") if name in variables}

    def wait_until(self, condition, what, pause_s=0.05):
        """@param pause_s a look at all processes costs milliseconds"""
        stages.wait_until(condition, HANG_SECONDS, lambda: f"{what}, of {[one[0] for one in self.processes().values()]}\n{self.texts()}", pause_s)

    def wait_for_epoch(self, epoch):
        """@return True if it has reached the epoch and trains on"""
        line = f"[CPU0] Epoch {epoch} |".encode()
        self.wait_until(lambda: line in self.out.read_bytes() or self.launcher.poll() is not None, line, pause_s=0.01)
        return self.launcher.poll() is None

    def wait(self):
        """Waits until no process is left. @return the exit code"""
        self.wait_until(lambda: self.launcher.poll() is not None, "the launcher's end")
        self.wait_until(lambda: not self.processes(), "its processes' end")
        return self.launcher.returncode

    def texts(self):
        return f"{self.out.read_text(errors='replace')[-2000:]}\n{self.err.read_text(errors='replace')}"

    def errors(self):
        """Lines on stderr, without launchers' messages."""
        return [line for line in self.err.read_text(errors="replace").splitlines() if ": error: " in line]


def finish(folder, launcher, *options):
    """Runs to the end, from the snapshot if it is there. @return the digest"""
    goes_on = any(pathlib.Path(folder, name).exists() for name in ("s", "s.prev"))
    with Run(command(launcher, *options), folder=folder) as run:
        code = run.wait()
        check(code == 0, f"{launcher}: exit code {code}\n{run.texts()}")
        check((b"] Epoch 0 |" in run.out.read_bytes()) != goes_on, f"{launcher}: a snapshot is there: {goes_on}\n{run.texts()}")
        return stages.last_line(run.out.read_text())[1]


@functools.cache
def unbroken_digest(backend):
    with tempfile.TemporaryDirectory() as folder:
        return finish(folder, "spawn", "--backend", backend)


def check_undisturbed(run, backend):
    """Checks that a run ends well, on the bits of a run that nothing disturbed."""
    code = run.wait()
    check(code == 0, f"exit code {code}\n{run.texts()}")
    check(stages.last_line(run.out.read_text())[1] == unbroken_digest(backend), f"other bits\n{run.texts()}")


def in_training(launcher, options, chance, epochs=EPOCHS):
    """Run at a random moment before its end; starts again if the run was too fast."""
    for _ in range(20):
        with contextlib.ExitStack() as stack:
            run = stack.enter_context(Run(command(launcher, *options, epochs=epochs)))
            if run.wait_for_epoch(chance.randrange(EPOCHS // 2)):
                time.sleep(chance.uniform(0, 0.005))
                stack.pop_all()
                return run
    raise AssertionError(f"{launcher}: 20 runs were over before they could be disturbed")


def backend_of(number):
    return ("shm", "gloo")[number % 2]


def names_killed(launcher, rank, run):
    """True if a line names the killed rank."""
    text = run.err.read_text(errors="replace") + run.out.read_text(errors="replace")
    named = {"spawn": rf"03_ddp_spawn: error: rank {rank} was killed by signal 9 \(Killed\)\n",
             "mpirun": rf"process rank {rank} with PID \d+ on node \S+ exited on\s+signal 9",
             "torchrun": rf"rank +: {rank} \(local_rank: {rank}\)\s+exitcode +: -9"}
    return re.search(named[launcher], text) is not None


def check_killed_rank(launcher, number, chance):
    options = ["--backend", backend_of(number)]
    rank = chance.randrange(RANKS)
    with in_training(launcher, options, chance) as run:
        pids = run.ranks()
        check(len(pids) == RANKS, f"{launcher}: got ranks {pids}, expected {RANKS}\n{run.texts()}")
        begin = time.monotonic()
        os.kill(pids[rank], signal.SIGKILL)
        code = run.wait()
        check_gone(begin, f"{launcher}: a rank is killed, the launcher too is gone after", run)
        good = code == 128 + signal.SIGKILL if launcher == "spawn" else code != 0
        check(good and names_killed(launcher, rank, run), f"{launcher}, rank {rank} killed: exit code {code}\n{run.texts()}")
        check(finish(run.folder, launcher, *options) == unbroken_digest(backend_of(number)),
              f"{launcher}: another digest after rank {rank} was killed")


def check_killed_launcher(launcher, number, chance):
    """Kills the launcher, every second time during the start. Ranks that are not ended would train on."""
    options = ["--backend", backend_of(number // 2)]
    starts = number % 2 == 1
    with (Run(command(launcher, *options, epochs=ENDLESS)) if starts else
          in_training(launcher, options, chance, epochs=ENDLESS)) as run:
        if starts:
            run.wait_until(lambda: run.ranks() or run.launcher.poll() is not None, "a rank")
            time.sleep(chance.uniform(0, 0.7))
        begin = time.monotonic()
        os.kill(run.launcher.pid, signal.SIGKILL)
        run.launcher.wait()
        run.wait_until(lambda: not run.processes(), "its ranks' end")
        check_gone(begin, f"{launcher}: the launcher is killed, the last rank is gone after", run)


def check_restarted_rank():
    """torchrun --max-restarts starts all ranks again after one was killed, and they go on from the snapshot."""
    argv = ["restart" if word == "auto" else word for word in command("torchrun", "--backend", "shm")]
    with Run([argv[0], "--max-restarts=1", *argv[1:]]) as run:
        check(run.wait_for_epoch(10), f"over before it could be disturbed\n{run.texts()}")
        os.kill(run.ranks()[1], signal.SIGKILL)
        check_undisturbed(run, "shm")
        check(run.out.read_text().count("[CPU0] Epoch 0 |") == 1, run.texts())


def check_stopped_rank(launcher, number, chance):
    """Stops a rank without ending it, which only a timeout can notice. The other ranks name it, and not the one that comes later."""
    timeout_s, backend = 4, backend_of(number)
    rank = chance.randrange(RANKS)
    # Three processes load LibTorch within the timeout on an idle machine.
    with in_training(launcher, ["--backend", backend, "--timeout", str(timeout_s)], chance) as run:
        ranks = run.ranks()
        begin = time.monotonic()
        os.kill(ranks[rank], signal.SIGSTOP)
        others = {pid for number, pid in ranks.items() if number != rank}
        os.kill(min(others), signal.SIGSTOP)
        time.sleep(timeout_s - 1.2)  # a second of it counts for --timeout
        os.kill(min(others), signal.SIGCONT)
        run.wait_until(lambda: not others & set(run.processes()), "the end of the other ranks")
        check_gone(begin, f"{launcher} over {backend}: a rank is stopped, the others gone after", run, timeout_s)
        if launcher == "torchrun":  # its SIGTERM has no effect on a stopped rank, and SIGKILL comes after 30 s
            os.kill(ranks[rank], signal.SIGCONT)
        code = run.wait()
        errors = run.errors()
        others_named = [line for line in errors if re.search(rf"\brank (?!{rank} )[\d, ]+(\(pid \d+\) )?did not arrive", line)]
        named = [line for line in errors if re.search(rf"\brank {rank}\b(?!\])", line)]
        check(code != 0 and named and not others_named, f"{launcher} over {backend}, rank {rank} stopped: exit code {code}\n{run.texts()}")


def check_suspended(launcher, number, chance):
    """The whole job stands still for longer than --timeout, as when Slurm suspends it, and then goes on to the same bits."""
    backend = backend_of(number)
    with in_training(launcher, ["--backend", backend, "--timeout", "2"], chance, EPOCHS) as run:
        processes = run.processes()
        for signal_number, pause_s in ((signal.SIGSTOP, 4), (signal.SIGCONT, 0)):
            for pid in processes:
                os.kill(pid, signal_number)
            time.sleep(pause_s)
        check_undisturbed(run, backend)


def check_terminal_stop(_launcher, number, chance):
    """Ctrl-Z: the shell sees that the program has stopped, and the ranks stop too, until fg."""
    def states(pids):
        return {pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] for pid in pids}

    backend = backend_of(number)
    with in_training("spawn", ["--backend", backend], chance, EPOCHS) as run:
        processes = [run.launcher.pid, *run.ranks().values()]
        os.kill(run.launcher.pid, signal.SIGTSTP)
        run.wait_until(lambda: states(processes) == {"T"}, "all processes stopped")
        os.kill(run.launcher.pid, signal.SIGCONT)
        check_undisturbed(run, backend)


def check_suspended_start():
    """A rank that is suspended for longer than --timeout while it waits for the others, or for the store of rank 0."""
    port = free_port()
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def has_store():
        """True if a program is connected to the port."""
        return any(re.search(rf":{port:04X} \S+ 01 ", pathlib.Path(f"/proc/net/{table}").read_text()) for table in ("tcp", "tcp6"))

    def start(rank):
        return Run([BIN / "04_ddp_launcher", "1", "1", "--timeout", "10"], variables | {"RANK": rank})

    for early, late in ("01", "10"):
        with start(early) as first:
            first.wait_until(lambda: early == "1" or has_store(), "rank 0's store")
            time.sleep(1.5)
            os.kill(first.launcher.pid, signal.SIGSTOP)
            time.sleep(11)
            os.kill(first.launcher.pid, signal.SIGCONT)
            with start(late) as second:
                codes = [first.wait(), second.wait()]
                check(codes == [0, 0], f"exit codes {codes}\n{first.texts()}{second.texts()}")


def check_told_cause(launcher, number, chance):
    """Rank 0 finds the disk full at a save, and prints the reason before other ranks print anything."""
    ranks = chance.randrange(2, 5)
    with tempfile.TemporaryDirectory() as folder:
        variables = {"LD_PRELOAD": str(BIN.parent / "lib/libfaulty_calls.so"), "DDP_FAULT_FOLDER": os.path.realpath(folder),
                     "DDP_FAULT": str(errno.ENOSPC), "DDP_FAULT_CALL": chance.choice(["pwrite", "fsync"]), "DDP_FAULT_AT": "1"}
        with Run(command(launcher, "--backend", backend_of(number), ranks=ranks), variables, folder) as run:
            code = run.wait()
            cause = rf"{PROGRAM[launcher]}: error: \[rank 0\] snapshot s cannot be written: No space left on device, expected room for \d+ bytes"
            said = [line for line in run.errors() if line.startswith(PROGRAM[launcher])]  # torchrun repeats it
            told = said if launcher == "mpirun" else said[:1]  # mpirun reads one pipe of each rank, in any order
            check(code == 1 and any(re.fullmatch(cause, line) for line in told), f"{launcher}, {ranks} ranks: exit code {code}\n{run.texts()}")


def main():
    print(f"DDP_TEST_SEED={SEED}", flush=True)
    cases = [("restarted rank", check_restarted_rank), ("suspended start", check_suspended_start)]  # nothing random: once
    for kind, body, tries in (("killed rank", check_killed_rank, {"spawn": 2, "mpirun": 2, "torchrun": 2}),
                              ("killed launcher", check_killed_launcher, {"spawn": 3, "mpirun": 2, "torchrun": 2}),
                              ("stopped rank", check_stopped_rank, {"spawn": 2, "mpirun": 2, "torchrun": 2}),
                              ("suspended job", check_suspended, {"spawn": 2, "torchrun": 2}),
                              ("terminal's stop", check_terminal_stop, {"spawn": 2}),
                              ("told cause", check_told_cause, {"spawn": 2, "mpirun": 1, "torchrun": 1})):
        for launcher, default in tries.items():
            for number in range(int(os.environ.get("DDP_TEST_REPEATS", default))):
                chance = random.Random(f"{SEED} {kind}, {launcher} {number}")
                cases.append((f"{kind}, {launcher}, try {number}", functools.partial(body, launcher, number, chance)))
    return run_cases([case for case in cases if case[0].startswith(tuple(sys.argv[2:] or [""]))], 3)


if __name__ == "__main__":
    stages.need_launchers()
    sys.exit(main())
