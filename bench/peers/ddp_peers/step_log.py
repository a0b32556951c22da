"""Times the steps of a rank and reports them as the stages do; the contract is in ../README.md."""

import json
import math
import statistics
import time

from .command_line import PeerError


class StepLog:
    def __init__(self, options, rank=0, mean_over_ranks=lambda value: value):
        """@param mean_over_ranks called by all ranks at the end of an epoch, where the stages' ranks meet too"""
        self.options, self.rank, self.mean_over_ranks = options, rank, mean_over_ranks
        self.rows = []
        self.first_step_unix_ms = None

    # On the host's steady clock, CLOCK_MONOTONIC, as in the stages.
    def _mark(self):
        return time.perf_counter_ns()

    def _times_ns(self, marks):
        return marks

    def _synchronize(self):
        pass

    def begin_epoch(self, epoch):
        self.epoch = epoch
        self.losses = []  # (loss, samples of the step / ranks)
        self._synchronize()
        self.begin_ns = time.perf_counter_ns()
        self.marks = [self._mark()]

    def end_step(self, loss, share):
        """@param loss float() must be able to read it once the device is idle @param share samples of the step / ranks"""
        self.marks.append(self._mark())
        self.losses.append((loss, share))
        if self.first_step_unix_ms is None:
            self._synchronize()
            self.first_step_unix_ms = int(time.time() * 1e3)

    def end_epoch(self):
        times_ns = self._times_ns(self.marks)
        losses = [(float(loss), share) for loss, share in self.losses]
        for begin_ns, end_ns, (loss, _) in zip(times_ns, times_ns[1:], losses):
            # JSON has no NaN.
            self.rows.append({"rank": self.rank, "epoch": self.epoch, "step": len(self.rows), "end_ns": end_ns,
                              "step_ms": (end_ns - begin_ns) / 1e6, "loss": loss if math.isfinite(loss) else None})
        samples = sum(share for _, share in losses)
        self.loss = self.mean_over_ranks(sum(loss * share for loss, share in losses) / samples)

    def of_rank(self):
        """Values of this rank for report()."""
        with open("/proc/self/status") as file:
            peak_rss_kib = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
        return {"rows": self.rows, "peak_rss_mib": peak_rss_kib / 1024}

    def report(self, ranks, parameters, moved, backend=None):
        """Rank 0 prints the last line and writes --metrics.
        @param ranks of_rank() of each rank @param moved distance of all parameters from their initial values
        @throws PeerError if the weights are not finite"""
        if not math.isfinite(moved):
            raise PeerError(f"the weights moved by {moved}, expected a finite distance; a smaller --lr may help")
        options = self.options
        warmup_steps = min(20, len(self.rows) // 2)
        step_ms = max(statistics.median(row["step_ms"] for row in rank["rows"][warmup_steps:]) for rank in ranks)
        samples_per_second = options.global_batch / step_ms * 1e3
        print(f"moved {moved:#.6g} | loss {self.loss:.4f} | step {step_ms:.3f} ms | {samples_per_second:.0f} samples/s", flush=True)
        if not options.metrics:
            return
        summary = {
            "program": options.program, "variant": options.variant, "backend": backend, "device": options.device,
            "world_size": options.processes, "threads": options.threads, "global_batch": options.global_batch,
            "layers": options.layers, "parameters": parameters, "epochs": options.total_epochs, "steps": len(self.rows),
            "warmup_steps": warmup_steps, "step_ms": step_ms, "samples_per_second": samples_per_second, "moved": moved,
            "loss": self.loss, "peak_rss_mib": [rank["peak_rss_mib"] for rank in ranks],
            "first_step_unix_ms": self.first_step_unix_ms,
        }
        lines = [row for rank in ranks for row in rank["rows"]] + [{"summary": summary}]
        try:
            with open(options.metrics, "w") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        except OSError as error:
            raise PeerError(f"--metrics: cannot write {options.metrics} ({error.strerror}), expected a writable file") from None
