"""Times the steps and reports them as the stages do: see Note [Timing] in common/training/step_timer.hpp.

What is timed, and which fields must be there, is the contract in bench/peers/README.md.
"""

import importlib.metadata
import json
import math
import os
import resource
import sys
import time

import numpy as np

from .errors import PeerError

WARMUP_STEPS = 20
USAGE = ("cpu_time_ms", "timed_wall_ms", "minor_faults", "major_faults", "voluntary_switches", "involuntary_switches")
DATA, FORWARD, BACKWARD, OPTIMIZER = range(4)


class Alone:
    """The only process. A peer with several gives TrainingLog an object with the same members."""

    rank = 0
    world_size = 1
    backend = None

    def sum(self, values):
        return list(values)

    def gather(self, table):
        """@return every rank's table, by rank; all have the same shape"""
        return [table]


class HostClock:
    def mark(self):
        return time.perf_counter()

    def milliseconds(self, begin, end):
        return (end - begin) * 1e3

    def synchronize(self):
        pass


def peak_rss_mib():
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return math.nan


def process_age_s():
    """To the kernel's clock tick, usually 10 ms."""
    with open("/proc/self/stat") as file:
        start_ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")


def versions(*packages):
    return {"python": sys.version.split()[0], **{name: importlib.metadata.version(name) for name in (*packages, "numpy")}}


def _number(value):
    """JSON has no NaN."""
    return float(value) if math.isfinite(value) else None


class TrainingLog:
    def __init__(self, options, total_steps, device="cpu", group=None, clock=None, has_phases=True):
        """@param total_steps of the whole run, the same on every rank
        @param has_phases false: forward, backward and update cannot be told apart, and all phases are null"""
        self.options = options
        self.device = device
        self.group = group or Alone()
        self.clock = clock or HostClock()
        self.has_phases = has_phases and options.metrics is not None
        self.warmup_steps = min(WARMUP_STEPS, total_steps // 2)
        self.total_steps = total_steps
        self.rows = []
        self.startup_ms = self.first_step_unix_ms = None
        self.usage = []  # as USAGE, at the first and at the end of the last timed step

    def begin_epoch(self, epoch):
        self.epoch = epoch
        self.steps = []
        if not self.usage and len(self.rows) >= self.warmup_steps:
            self._take_usage()
        self.clock.synchronize()
        self.marks = [self.clock.mark()]
        self.epoch_begin = time.perf_counter() * 1e3, self.marks[0]

    def begin(self, phase):
        """Ends the phase before. DATA begins with the step; the others are begun in their order, once a step."""
        if self.has_phases:
            assert len(self.marks) == phase
            self.marks.append(self.clock.mark())

    def end(self, loss, share):
        """Ends the step. @param loss what float() can read once the device is idle
        @param share samples of the step / ranks"""
        done = len(self.rows) + len(self.steps) + 1
        if done == self.warmup_steps:
            # Before the mark with which the timed steps begin, as after their last one: should the process lose its processor here,
            # that is in the wall time of the steps, or in neither.
            self._take_usage()
        self.marks.append(self.clock.mark())
        self.steps.append((self.marks, loss, share))
        if done == 1:
            self.clock.synchronize()
            self.startup_ms = process_age_s() * 1e3
            self.first_step_unix_ms = int(time.time() * 1e3)
        if done == self.total_steps:
            self._take_usage()
        # On a device a mark is a place in its queue, which the host may have left behind.
        self.marks = [self.marks[-1]]

    def _take_usage(self):
        used = resource.getrusage(resource.RUSAGE_SELF)
        self.usage.append((time.process_time() * 1e3, time.perf_counter() * 1e3, used.ru_minflt, used.ru_majflt, used.ru_nvcsw,
                           used.ru_nivcsw))

    def end_epoch(self):
        self.clock.synchronize()
        loss_sum = samples = 0
        begin_ms, first_mark = self.epoch_begin
        for marks, loss, share in self.steps:
            parts = [self.clock.milliseconds(a, b) for a, b in zip(marks, marks[1:])]
            phases = parts if self.has_phases else [math.nan] * 4
            # What DDP waited for is a part of its backward that it does not tell; without DDP there is no wait.
            exposed = 0.0 if self.group.backend is None and self.has_phases else math.nan
            end_ms = begin_ms + self.clock.milliseconds(first_mark, marks[-1])
            self.rows.append([self.epoch, end_ms, self.clock.milliseconds(marks[0], marks[-1]), *phases[:3], exposed,
                              phases[3], float(loss)])
            loss_sum += self.rows[-1][-1] * share
            samples += share
        # Every epoch the ranks meet here, as the stages' do.
        mean = self.group.sum([loss_sum / samples])[0] / self.group.world_size
        if not self.options.quiet:
            label = "GPU" if self.device == "cuda" else "CPU"
            print(f"[{label}{self.group.rank}] Epoch {self.epoch} | Batchsize: {self.options.batch_per_rank} | "
                  f"Steps: {len(self.steps)} | Loss: {mean:.4f}\n", end="", flush=True)

    def report(self, dataset, *, parameters, moved, loss, accuracy, software):
        """Prints the last line on rank 0 and writes --metrics.
        @param dataset has a name, layers and a loss_floor
        @param accuracy None for regression
        @throws PeerError if the weights are not finite"""
        if not math.isfinite(moved):
            raise PeerError(f"the weights moved by {moved}, expected a finite distance; a smaller --lr may help")
        options, group = self.options, self.group
        tables = group.gather(np.array(self.rows, dtype=np.float64))
        usage = np.subtract(*reversed(self.usage))
        per_rank = np.stack(group.gather(np.array([[peak_rss_mib(), self.startup_ms, *usage]]))).squeeze(1)
        if group.rank != 0:
            return
        step_ms = max(float(np.median(table[self.warmup_steps:, 2])) for table in tables)
        speed = options.global_batch / step_ms * 1e3
        print(f"moved {moved:#.6g} | loss {loss:.4f}" + (f" | accuracy {accuracy:.4f}" if accuracy is not None else "")
              + f" | step {step_ms:.3f} ms | {speed:.0f} samples/s", flush=True)
        if not options.metrics:
            return
        summary = {
            "program": options.program, "variant": options.variant.name, "software": software,
            "launcher": "none" if group.world_size == 1 else "spawn", "backend": group.backend, "speedup": "none",
            "device": self.device, "dataset": dataset.name, "layers": list(dataset.layers),
            "world_size": options.processes, "local_world_size": options.processes, "nodes": 1,
            "batch_per_rank": options.batch_per_rank, "global_batch": options.global_batch, "accumulate": 1,
            "optimizer": "sgd", "threads": options.threads,
            "epochs": options.total_epochs, "steps": len(self.rows), "warmup_steps": self.warmup_steps,
            "step_ms": _number(step_ms), "samples_per_second": _number(speed), "moved": _number(moved),
            "loss": _number(loss), "accuracy": accuracy, "loss_floor": _number(dataset.loss_floor), "digest": None,
            "parameters": parameters, "bytes_per_step": 0 if group.world_size == 1 else 4 * parameters,
            **{name: [_number(value) for value in per_rank[:, column]] for column, name in
               enumerate(("peak_rss_mib", "startup_ms", *USAGE))},
            "first_step_unix_ms": self.first_step_unix_ms,
        }
        self._write(tables, summary)

    def _write(self, tables, summary):
        names = ("end_ms", "step_ms", "data_ms", "forward_ms", "backward_ms", "exposed_comm_ms", "optimizer_ms", "loss")
        try:
            with open(self.options.metrics, "w") as file:
                for rank, table in enumerate(tables):
                    for step, (epoch, *values) in enumerate(table.tolist()):
                        row = {"rank": rank, "epoch": int(epoch), "step": step}
                        row.update(zip(names, map(_number, values)))
                        file.write(json.dumps(row) + "\n")
                file.write(json.dumps({"summary": summary}) + "\n")
        except OSError as error:
            raise PeerError(f"--metrics: cannot write {self.options.metrics} ({error.strerror}), "
                            "expected a writable file") from None
