"""Acceptance test of a computing centre, for ReFrame 4.10: do the ranks train as one process does, and how fast? See docs/guides/cluster.md."""

import json
import pathlib
import statistics

import reframe as rfm
from reframe.core.exceptions import SanityError
from reframe.utility.sanity import make_performance_function

COMPARED_STEPS = 20  # rounding grows with the steps
STEPS_PER_EPOCH = 4  # few, and few inputs of a sample, because each rank holds all samples of an epoch
# Nodes, and ranks of each; None: as many as GPUs, or else cores. Where there are GPUs, a "core" is a GPU.
SCALES = {"1_core": (1, 1), "2_cores": (1, 2), "4_cores": (1, 4), "1_node": (1, None)} | {f"{nodes}_nodes": (nodes, None) for nodes in (2, 4, 8, 16)}


@rfm.simple_test
class DdpCpp(rfm.RunOnlyRegressionTest):
    descr = "Data-parallel training: equal to one process, and efficient"
    scale = parameter(SCALES)
    folder = variable(str, value=str(pathlib.Path(__file__).resolve().parents[2] / "build/bin"))  # of the programs
    references = variable(str, value="")  # the site's YAML file
    arguments = variable(str, value="")  # more options of the programs
    layers = variable(str, value="64,512,512,10")
    batch_size = variable(int, value=64)  # of a rank
    steps = variable(int, value=100)
    repetitions = variable(int, value=6)
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    sourcesdir = None
    exclusive_access = True
    time_limit = "30m"

    @run_after("init")
    def set_tags(self):
        self.tags = {self.scale}

    @run_after("setup")
    def set_ranks(self):
        nodes, per_node = SCALES[self.scale]
        gpus = sum(device.num_devices for device in self.current_partition.select_devices("gpu"))
        processor = self.current_partition.processor
        units = gpus or processor.num_cores or processor.num_cpus or 0
        self.skip_if(units < (per_node or 1), f"{self.current_partition.fullname}: got {units} cores or GPUs, expected at least {per_node or 1}")
        self.spawns = self.current_partition.launcher_type.registered_name == "local"
        self.skip_if(nodes > 1 and (self.spawns or self.is_local()),
                     f"{self.current_partition.fullname}: got no scheduler or no launcher, expected both for {nodes} nodes")
        self.num_tasks_per_node = per_node or units
        self.num_tasks = nodes * self.num_tasks_per_node
        self.num_cpus_per_task = (processor.num_cpus or units) // units
        self.num_gpus_per_node = self.num_tasks_per_node if gpus else None
        self.device = "cuda" if gpus else "cpu"
        if self.references:  # not before, because ReFrame leaves out a test that fails before
            self.reference = {"$ref": self.references}

    @run_before("run")
    def set_commands(self):
        """One process and all ranks run in turns, so that a slow minute hits both."""
        self.rates, self.efficiencies = [], []

        def words(program, steps, batch_size, metrics, more=""):
            epochs = -(-steps // STEPS_PER_EPOCH)
            return f'"{self.folder}/{program}" {epochs} {epochs} --global-batch {batch_size} --dataset-size {STEPS_PER_EPOCH * batch_size} ' \
                   f"--layers {self.layers} --device {self.device} --quiet --resume never --metrics {metrics}.jsonl {more} {self.arguments}"

        all_batches = self.num_tasks * self.batch_size
        program, more = ("03_ddp_spawn", f"--nprocs {self.num_tasks}") if self.spawns else ("05_multinode", "")
        self.prerun_cmds = ["set -e", "rm -f *.jsonl finished", words("01_single_gpu", COMPARED_STEPS, all_batches, "reference"),
                            f"for i in {{1..{self.repetitions}}}; do", words("01_single_gpu", self.steps, self.batch_size, "one-$i")]
        self.executable = words(program, self.steps, all_batches, "ranks-$i", more)
        self.postrun_cmds = ["done", "touch finished"]

    def read(self, name, ranks=1):
        """@return the first losses, each the mean over the ranks; and the summary"""
        *rows, last = map(json.loads, pathlib.Path(name + ".jsonl").read_text().splitlines())
        losses = {(row["step"], row["rank"]): row["loss"] for row in rows}
        return [sum(losses[step, rank] for rank in range(ranks)) / ranks for step in range(COMPARED_STEPS)], last["summary"]

    @sanity_function
    def trains_as_one_process(self):
        if not pathlib.Path("finished").exists():
            raise SanityError("the job ended early")
        expected, _ = self.read("reference")
        for i in range(1, self.repetitions + 1):
            losses, summary = self.read(f"ranks-{i}", self.num_tasks)
            for step in range(COMPARED_STEPS):
                if not abs(losses[step] - expected[step]) <= 1e-5 * abs(expected[step]):  # NaN too
                    raise SanityError(f"loss of step {step}: got {losses[step]:.7g}, expected {expected[step]:.7g}, that of one process")
            # A program writes its summary after its ranks have compared their weights, unless they do not communicate.
            ranks = summary["world_size"] if summary["communicates"] else "no communication"
            if ranks != self.num_tasks:
                raise SanityError(f"ranks with equal weights: got {ranks}, expected {self.num_tasks}")
            self.rates.append(summary["samples_per_second"])
            self.efficiencies.append(self.rates[-1] / self.num_tasks / self.read(f"one-{i}")[1]["samples_per_second"])
        if not self.rates:
            raise SanityError(f"repetitions: got {self.repetitions}, expected at least 1")
        return True

    @run_before("performance")
    def set_performance(self):
        """Of six ratios, the least and the largest have the median of all between them, 97 times in 100."""
        self.perf_variables = {name: make_performance_function(function, unit, values) for name, function, unit, values in (
            ("samples_per_second", statistics.median, "samples/s", self.rates), ("efficiency", statistics.median, "1", self.efficiencies),
            ("efficiency_low", min, "1", self.efficiencies), ("efficiency_high", max, "1", self.efficiencies))}
