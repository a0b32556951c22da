"""The step log of a rank, and what rank 0 reports at the end; the contract is in ../README.md."""

import json
import math
import os
import pathlib
import sys

from .command_line import PeerError

sys.path.append(str(pathlib.Path(__file__).parents[3] / "tools"))
from step_log import StepLog  # noqa: E402


def start_log(options, rank=0):
    return StepLog(options.metrics or os.devnull, rank)


def write_report(log, options, moved, gather=lambda value: [value]):
    """Writes the rows, on all ranks. Then rank 0 prints the last line and writes the summary.
    @param moved distance of all parameters from their initial values @param gather returns all ranks' values
    @throws PeerError on rank 0 if the weights are not finite"""
    if log.rank == 0 and not math.isfinite(moved):
        raise PeerError(f"the weights moved by {moved}, expected a finite distance; a smaller --lr may help")
    with open("/proc/self/status") as file:
        peak_rss_kib = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
    log.close()
    peak_rss_mib = gather(peak_rss_kib / 1024)
    if log.rank == 0:
        print(f"moved {moved:#.6g}", flush=True)
        with open(log.file, "a") as file:
            file.write(json.dumps({"summary": {"global_batch": options.global_batch, "moved": moved, "peak_rss_mib": peak_rss_mib}}) + "\n")
