"""Writes how long each training step took into the file that `bench --program` names in $DDP_METRICS. Without it, does nothing.

    from step_log import StepLog
    log = StepLog()                           # just before the first epoch, and after torch.cuda.set_device()
    log.step(loss, samples=len(input))        # at the end of each step

Copy this file beside your program: it needs only Python's standard library. Each rank appends a JSON line for each step:

    {"rank": 1, "step": 40, "step_ms": 2.75, "end_ns": 81234567890, "loss": 0.6931, "samples": 32}

`step` counts from 0 over all epochs. `end_ns` is the end of the step on CLOCK_MONOTONIC, which all processes of a host share.
"""

import atexit
import json
import math
import os
import sys
import time


class StepLog:
    def __init__(self, file=None, rank=None):
        """Starts the first step. @param file default: $DDP_METRICS @param rank default: $RANK, or 0 without a launcher"""
        self.file = file or os.environ.get("DDP_METRICS")
        self.rank = int(os.environ.get("RANK", 0)) if rank is None else rank
        self.steps, self.written, self.process = [], 0, os.getpid()
        if self.file:
            open(self.file, "ab").close()  # fails now if it cannot be written; without rows it says that steps were lost
        atexit.register(self.close)
        self.begin()

    def begin(self):
        """Starts an epoch. You need it only to leave out the time since the last step. Waits for the GPU."""
        self.mark = self._mark(wait=True) if self.file else None

    def step(self, loss=None, samples=None):
        """Ends a step, without waiting for the GPU: the loss is read when it is written.
        @param loss mean over this rank's samples, a number or a tensor with one element. Clone it if the next step overwrites
        it, as in a CUDA graph. @param samples number of this rank's samples in the step"""
        if not self.file:
            return
        before, self.mark = self.mark, self._mark(wait=not self.mark[1])
        self.steps.append((before, self.mark, loss.detach() if hasattr(loss, "detach") else loss, samples))
        if len(self.steps) == 10_000:  # limits the memory
            self.close()
            self.begin()

    def close(self):
        """Writes the steps so far. Is called at exit, but not if the process ends by os._exit(), by a signal, or as a fork of
        multiprocessing."""
        rows = self.rows() if os.getpid() == self.process else []  # a fork has copies of its parent's steps
        text = "".join(json.dumps(row, default=float) + "\n" for row in rows).encode()
        while text:  # one write, so that ranks do not mix; only a full disk takes less, and fails the second time
            with open(self.file, "ab", buffering=0) as file:
                text = text[file.write(text):]

    def rows(self):
        """@return lines of the steps since the last call"""
        rows, last, end_ns = [], None, 0
        for before, after, loss, samples in self.steps:
            step_ns = after[0] - before[0]
            if before[1]:  # elapsed_time() has 24 bits, so it is exact only between neighbors
                after[1].synchronize()
                step_ns = round(before[1].elapsed_time(after[1]) * 1e6)
            end_ns = (end_ns if before is last else before[0]) + step_ns
            row = {"rank": self.rank, "step": self.written + len(rows), "step_ms": step_ns / 1e6, "end_ns": end_ns}
            if loss is not None:
                row["loss"] = value if math.isfinite(value := float(loss)) else None  # JSON has no NaN
            rows.append(row if samples is None else row | {"samples": samples})
            last = after
        self.steps, self.written = [], self.written + len(rows)
        return rows

    def _mark(self, wait):
        """@return host's time in ns, and an event on the current stream if the process uses a GPU"""
        torch, event = sys.modules.get("torch"), None
        if torch and torch.cuda.is_initialized():
            if wait:
                torch.cuda.synchronize()
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return time.perf_counter_ns(), event
