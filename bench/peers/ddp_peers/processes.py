"""Starts a process per rank, and ends them together."""

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys

from .command_line import PeerError, guarded


def end_with(parent):
    """From now on SIGKILL ends this process when its parent ends. @param parent the parent's process id, from before the start"""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before prctl()


def _run_rank(rank, parent, program, body, arguments):
    """Runs a rank, and ends without the interpreter's shutdown. Gloo's threads may still hold Python's tensors. If such a
    thread asks for the interpreter's lock during the shutdown, it aborts the process after a good run."""
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends the ranks
    os._exit(guarded(f"{program}: [rank {rank}]", lambda: body(rank, *arguments)))


def _check(exit_codes):
    """Ends with the first failure: a death by signal is the cause of others. A rank prints its own error."""
    rank, code = min(((rank, code) for rank, code in enumerate(exit_codes) if code), key=lambda failure: failure[1])
    if code > 0:
        sys.exit(code)
    raise PeerError(f"rank {rank} was killed by signal {-code} ({signal.strsignal(-code)})")


def run_ranks(program, count, body, *arguments):
    """Runs body(rank, *arguments) in `count` processes. The first failure ends all processes.
    @throws PeerError if a process was killed; SystemExit with the exit code of a process that printed its error"""
    context = multiprocessing.get_context("spawn")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    ranks = [context.Process(target=_run_rank, args=(rank, os.getpid(), program, body, arguments)) for rank in range(count)]
    try:
        for process in ranks:
            process.start()
        running = {process.sentinel: process for process in ranks}
        while running:
            for sentinel in multiprocessing.connection.wait(list(running)):
                running.pop(sentinel).join()  # a sentinel is ready a moment before the exit code
            exit_codes = [process.exitcode for process in ranks]
            if any(exit_codes):
                _check(exit_codes)
    finally:
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
