"""The step log of a rank, and what rank 0 reports at the end; the contract is in ../README.md."""

import json
import math
import os
import pathlib
import statistics
import sys

from .command_line import PeerError

sys.path.append(str(pathlib.Path(__file__).parents[3] / "tools"))
from step_log import StepLog  # noqa: E402


class PeerLog(StepLog):
    """Keeps the rows for report(), also those of a run without --metrics."""

    def __init__(self, options, rank=0):
        self.options, self.kept = options, []
        super().__init__(options.metrics or os.devnull, rank)

    def rows(self):
        rows = super().rows()
        self.kept += rows
        return rows

    def report(self, parameters, moved, backend=None, gather=lambda value: [value]):
        """Writes the rows, on all ranks. Then rank 0 prints the last line and writes the summary.
        @param moved distance of all parameters from their initial values @param gather returns all ranks' values
        @throws PeerError on rank 0 if the weights are not finite"""
        options = self.options
        if self.rank == 0 and not math.isfinite(moved):
            raise PeerError(f"the weights moved by {moved}, expected a finite distance; a smaller --lr may help")
        with open("/proc/self/status") as file:
            peak_rss_kib = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
        self.close()
        ranks = gather((self.kept, peak_rss_kib / 1024))
        if self.rank > 0:
            return
        warmup_steps = min(20, self.written // 2)
        step_ms = max(statistics.median(row["step_ms"] for row in rows[warmup_steps:]) for rows, _ in ranks)
        samples_per_second = options.global_batch / step_ms * 1e3
        last_epoch = [row for rows, _ in ranks for row in rows[-(self.written // options.total_epochs):]]
        losses = (math.nan if row["loss"] is None else row["loss"] * row["samples"] for row in last_epoch)
        loss = sum(losses) / options.dataset_size
        print(f"moved {moved:#.6g} | loss {loss:.4f} | step {step_ms:.3f} ms | {samples_per_second:.0f} samples/s", flush=True)
        summary = {
            "program": options.program, "variant": options.variant, "backend": backend, "device": options.device,
            "world_size": options.processes, "threads": options.threads, "global_batch": options.global_batch,
            "layers": options.layers, "parameters": parameters, "epochs": options.total_epochs, "steps": self.written,
            "warmup_steps": warmup_steps, "step_ms": step_ms, "samples_per_second": samples_per_second, "moved": moved,
            "loss": loss, "peak_rss_mib": [peak_rss_mib for _, peak_rss_mib in ranks],
        }
        with open(self.file, "a") as file:
            file.write(json.dumps({"summary": summary}) + "\n")
