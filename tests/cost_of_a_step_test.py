#!/usr/bin/env python3
"""Every number of docs/cost_of_a_step.md is what `bench predict` says, and what that says of the reports in results/ is what they hold.

usage: cost_of_a_step_test.py BENCH            checks
       cost_of_a_step_test.py BENCH --write    puts the tables into the page; numbers in bold are yours to change

On the page a table belongs to the function of TABLES whose first line is its own, and the numbers in bold, in the text as in the answers, are those
of BOLD, in order.
"""

import functools
import gzip
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/cost_of_a_step.md"
REPORT = re.search(r"\]\(\.\./(results/\S+\.json\.gz)\)", PAGE.read_text())[1]  # that the page names
TABLE = re.compile(r"^\|.*\n\|[-|]+\n(?:\|.*\n)*", re.MULTILINE)
BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
ANSWER = re.compile(r"<details>\n<summary>Answer</summary>\n(.*?)</details>", re.DOTALL)
# The project's, as bench names them: docs/performance.md#the-models.
MODELS = {"T": ("20,1", 32), "S": ("64,128,128,10", 32), "M": ("784,512,512,10", 64), "L": ("1024,1024,1024,1024", 64)}
NETWORK = "25,1.25"  # the page's: alpha in us, GB/s a link
QUESTIONS = 8


@functools.cache
def predict(*arguments, report=None):
    """The JSON document; `report`: a file of results/, unpacked."""
    given = [] if report is None else ["--report", unpacked(report)]
    result = subprocess.run([BENCH, "predict", *arguments, *given, "--json"], capture_output=True, text=True, timeout=60, check=False)
    if result.returncode != 0:
        raise AssertionError(f"bench predict {' '.join(arguments)}: exit code {result.returncode}: {result.stderr}")
    return json.loads(result.stdout)


@functools.cache
def unpacked(name):
    path = pathlib.Path(FOLDER.name) / pathlib.Path(name).name.removesuffix(".gz")
    path.write_bytes(gzip.decompress((ROOT / name).read_bytes()))
    return str(path)


@functools.cache
def scaling(name):
    return json.loads(pathlib.Path(unpacked(name)).read_text())["ddp_scaling"]


def model(name, *more, batch=None, ranks=2, network=NETWORK):
    layers, own_batch = MODELS[name]
    return predict("--layers", layers, "--batch", str(batch or own_batch), "--ranks", str(ranks),
                   *(() if ranks == 1 else ("--network", network)), *more)


def count(number):
    return f"{number:,.0f}"


def digits(number):
    """Three that count, without an exponent."""
    if number == 0:
        return "0"
    shown = f"{number:.3g}"
    return count(float(shown)) if abs(float(shown)) >= 100 or "e+" in shown else f"{float(shown):.6f}".rstrip("0").rstrip(".")


def ms(number):
    return f"{digits(1e3 * number)} us" if 0 < number < 0.01 else f"{digits(number)} ms"


def size(number):
    return f"{digits(number / 1e6)} MB" if number >= 1e6 else f"{digits(number / 1e3)} KB" if number >= 1e3 else f"{number:.0f} bytes"


def batch_text(document):
    """Below which communication bounds the step."""
    batch = document["not_bound_by_communication_from_batch"]
    return "never" if batch == 1 else "always" if batch is None else count(batch)


def arithmetic_table():
    yield "| model | layers, batch | parameters | 6 x parameters x batch | FLOP of a step | arithmetic |"
    for name, (layers, batch) in MODELS.items():
        it = model(name, ranks=1)
        yield (f"| {name} | {layers.replace(',', '-')}, {batch} | {count(it['parameters'])} | {count(6 * it['parameters'] * batch)} | "
               f"{count(it['flops'])} | {ms(it['time_ms']['arithmetic'])} |")


def update_table():
    yield "| model | sgd | momentum | adam, adamw | while it computes |"
    for name in MODELS:
        times = [model(name, "--optimizer", optimizer, ranks=1)["time_ms"] for optimizer in ("sgd", "momentum", "adam")]
        yield f"| {name} | {' | '.join(ms(time['update']) for time in times)} | {ms(times[0]['weight_traffic'])} |"


def memory_table():
    yield "| model | weights | gradients | state, adam | the same, sharded over 4 | activations | together, adam |"
    for name in MODELS:
        whole = model(name, "--optimizer", "adam", ranks=4)["memory_bytes"]
        sharded = model(name, "--optimizer", "adam", "--shard-optimizer", ranks=4)["memory_bytes"]
        yield (f"| {name} | {size(whole['weights'])} | {size(whole['gradients'])} | {size(whole['optimizer_state'])} | "
               f"{size(sharded['optimizer_state'])} | {size(whole['activations'])} | {size(whole['total'])} |")


def ring_table():
    yield "| ranks | sent by each rank | messages | communication | of it alpha |"
    for ranks in (2, 4, 8, 64, 1024):
        it = model("M", ranks=ranks)
        messages = 2 * (ranks - 1) * len(it["bucket_bytes"])
        alpha_ms = messages * it["rates"]["network"]["regimes"][0]["alpha_us"] / 1e3
        yield (f"| {ranks} | {size(it['sent_bytes'])} | {count(messages)} | {ms(it['time_ms']['communication'])} | "
               f"{ms(alpha_ms)} |")


def turning_table():
    yield "| model | its batch | 2 ranks | 8 ranks | 64 ranks | 64 ranks, ten times the links | 64 ranks, a tenth of alpha |"
    for name, (_, batch) in MODELS.items():
        cells = [model(name, ranks=ranks, network=network)
                 for ranks, network in ((2, NETWORK), (8, NETWORK), (64, NETWORK), (64, "25,12.5"), (64, "2.5,1.25"))]
        yield f"| {name} | {batch} | {' | '.join(map(batch_text, cells))} |"


def scaling_table():
    yield "| ranks | weak: 64 each | exposed | speed-up | efficiency | strong: 1,024 in all | exposed | speed-up | efficiency |"
    for ranks in (1, 2, 4, 8, 16, 32, 64):
        cells = []
        for it in model("M", batch=64, ranks=ranks), model("M", "--scaling", "strong", batch=1024, ranks=ranks):
            cells += [ms(it["time_ms"]["step"]), ms(it["time_ms"]["exposed"]), f"{it['speedup']:.2f}", f"{100 * it['speedup'] / ranks:.0f} %"]
        yield f"| {ranks} | {' | '.join(cells)} |"


def run_of(name, more=""):
    return f"{name}/weak/03_ddp_spawn/spawn/shm{more}/ranks:2"


def measured_table():
    yield "| model | on paper | measured, fused | over paper | measured, autograd | over paper |"
    for name in MODELS:
        cells = []
        for more in ("/fused", ""):
            it = predict("--run", run_of(name, more), report=REPORT)
            step_ms, measured_ms = it["time_ms"]["step"], it["run"]["step_ms"]["median"]
            cells = cells or [ms(step_ms)]
            cells += [ms(measured_ms), f"{digits(measured_ms / step_ms)}x"]
        yield f"| {name} | {' | '.join(cells)} |"


TABLES = (arithmetic_table, update_table, memory_table, ring_table, turning_table, scaling_table, measured_table)


def rendered(table):
    head, *rows = table()
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows]) + "\n"


def bold_in_text():
    """Of the page but for the answers."""
    rates = model("M")["rates"]
    factor = 4 / 3 * rates["gflops"] / float(NETWORK.split(",")[1])  # FLOP over bytes
    loaded = scaling(REPORT)
    limit = next(one for one in loaded["limits"] if one["world_size"] == 2)
    tutorial = next(run for run in loaded["runs"] if run["name"] == "T/weak/01_single_gpu/ranks:1")
    shm = next(one for one in loaded["communication_models"] if one["backend"] == "shm")["regimes"][0]
    return [digits(limit["fp32_gflops"]), digits(min(rate["gbps"] for rate in limit["memory"])), digits(max(rate["gbps"] for rate in limit["memory"])),
            digits(shm["alpha_us"]), digits(2 ** 20 / (2 / 2 * shm["beta_us_per_mib"]) / 1e3),
            count(tutorial["peak_rss_mib"]), f"{factor / 2:.0f}", f"{factor:.0f}"]


def answers():
    m = model("M", ranks=1)
    yield [count(m["flops"]), count(6 * m["parameters"] * 64), count(2 * 64 * 784 * 512)]

    large = [model("L", "--optimizer", "adam", *more, ranks=4)["memory_bytes"] for more in ((), ("--shard-optimizer",))]
    yield [size(large[0]["total"]), size(large[0]["optimizer_state"]), size(large[1]["optimizer_state"]), size(large[1]["total"])]

    two, many = model("M", ranks=2), model("M", ranks=64)
    yield [size(two["sent_bytes"]), size(many["sent_bytes"]), f"{many['sent_bytes'] / two['sent_bytes']:.2f}"]

    ring, tree = model("S", ranks=64), model("S", "--algorithm", "tree", ranks=64)
    alpha_ms = 2 * 63 * 25 / 1e3
    yield [ms(ring["time_ms"]["communication"]), ms(alpha_ms), f"{100 * alpha_ms / ring['time_ms']['communication']:.0f} %",
           ms(tree["time_ms"]["communication"])]

    slow, fast = model("M", network="50,0.125"), model("M", network="5,12.5")
    yield [ms(slow["time_ms"]["arithmetic"]), ms(slow["time_ms"]["exposed"]), batch_text(slow), ms(fast["time_ms"]["exposed"]), batch_text(fast),
           model("M", batch=1, network="5,12.5")["bound"]]

    hidden = model("M")["time_ms"]
    first_bytes, last_bytes = model("M")["bucket_bytes"]
    last_ms = (2 * 25 + last_bytes / 1.25e3) / 1e3
    yield [ms(hidden["communication"]), ms(hidden["hidden"]), ms(hidden["exposed"]), ms(last_ms), size(first_bytes), size(last_bytes)]

    strong = {ranks: model("M", "--scaling", "strong", batch=256, ranks=ranks) for ranks in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
    best = max(strong, key=lambda ranks: strong[ranks]["speedup"])
    yield [str(best), f"{strong[best]['speedup']:.2f}", f"{strong[256]['speedup']:.2f}", ms(strong[256]["time_ms"]["arithmetic"]),
           ms(strong[256]["time_ms"]["communication"])]

    tutorial = predict("--run", run_of("T"), report=REPORT)
    measured_ms = tutorial["run"]["step_ms"]["median"]
    work_ms = tutorial["time_ms"]["step"] - tutorial["time_ms"]["exposed"]
    fused_ms = predict("--run", run_of("T", "/fused"), report=REPORT)["run"]["step_ms"]["median"]
    yield [ms(work_ms), ms(tutorial["time_ms"]["communication"]), ms(measured_ms), count(measured_ms / tutorial["time_ms"]["step"]), ms(fused_ms)]


class Page(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.text = PAGE.read_text()

    def test_the_tables_are_what_bench_predicts(self):
        found = TABLE.findall(self.text)
        self.assertEqual([table.split("\n", 1)[0] for table in found], [next(iter(table())) for table in TABLES])
        for table, own in zip(found, TABLES, strict=True):
            with self.subTest(own.__name__):
                self.assertEqual(table, rendered(own))

    def test_the_numbers_in_the_text_are_computed(self):
        self.assertEqual(BOLD.findall(ANSWER.sub("", self.text)), bold_in_text())

    def test_the_answers_are_computed(self):
        found, computed = ANSWER.findall(self.text), list(answers())
        self.assertEqual((len(found), len(computed)), (QUESTIONS, QUESTIONS))
        for number, (answer, expected) in enumerate(zip(found, computed, strict=True), start=1):
            with self.subTest(f"question {number}"):
                self.assertEqual(BOLD.findall(answer), expected)

    def test_the_page_names_one_report(self):
        self.assertEqual(set(re.findall(r"results/[\w.-]+\.json\.gz", self.text)), {REPORT})


class Words(unittest.TestCase):
    """What is printed for a reader is what --json has."""

    def printed(self, *arguments, report=None):
        given = [] if report is None else ["--report", unpacked(report)]
        return subprocess.run([BENCH, "predict", *arguments, *given], capture_output=True, text=True, timeout=60, check=True).stdout

    def assert_shown(self, pattern, text, *expected):
        """The numbers in the groups, each shown with three digits."""
        match = re.search(pattern, text, re.MULTILINE)
        self.assertIsNotNone(match, f"{pattern}\n{text}")
        for shown, number in zip(match.groups(), expected, strict=True):
            self.assertAlmostEqual(float(shown.replace(",", "")) / number, 1, delta=0.0051, msg=f"{pattern}\n{text}")

    def test_words_are_the_documents(self):
        job = ("--layers", "784,512,512,10", "--batch", "256", "--network", "25,1.25")
        for more in (("--ranks", "4", "--scaling", "strong", "--gflops", "50", "--memory-gbps", "20"), ("--ranks", "8", "--optimizer", "adam"),
                     ("--ranks", "8", "--algorithm", "tree", "--shard-optimizer")):
            with self.subTest(more):
                text, it = self.printed(*job, *more), predict(*job, *more)
                times, ranks, batch = it["time_ms"], it["world_size"], it["batch_per_rank"]
                for part, key in (("arithmetic", "arithmetic"), ("weights' traffic", "weight_traffic"), ("update", "update"),
                                  ("communication", "communication"), ("hidden, at most", "hidden"), ("exposed, at least", "exposed")):
                    self.assert_shown(rf"^  {part} +([\d.]+) ms", text, times[key])
                self.assert_shown(r"^  together +([\d.]+) ms  ([\d.]+) ms without overlap$", text, times["step"], times["step_without_overlap"])
                self.assert_shown(r"^  arithmetic .* ([\d.,]+) MFLOP$", text, it["flops"] / ranks / 1e6)
                self.assert_shown(r"^  activations .* (\d+) samples x (\d+) values$", text, batch, 784 + 512 + 512 + 10)
                self.assert_shown(r"by communication below ([\d,]+) samples per rank$", text, it["not_bound_by_communication_from_batch"])
                self.assert_shown(r"^([\d.]+) times the samples/s of one rank, whose step takes ([\d.]+) ms$", text, it["speedup"], it["one_rank_step_ms"])
                self.assert_shown(r": (\d+) ranks with (\d+) samples each", text, ranks, batch)
                if "strong" in more:
                    self.assert_shown(r"their part of (\d+) \(strong scaling\)", text, it["global_batch"])
                for source in it["sources"]:
                    self.assertIn(f"\n  {source['what']}: {source['from']}\n", text)
                self.assertEqual([source["from"] for source in it["sources"][:2]] == ["--gflops", "--memory-gbps"], "--gflops" in more)

    def test_a_measured_run_is_beside_its_prediction(self):
        text, it = self.printed("--run", run_of("T"), report=REPORT), predict("--run", run_of("T"), report=REPORT)
        measured = text.partition(f"\nmeasured, {run_of('T')}\n")[2]
        self.assert_shown(r"^  without communication +([\d.]+) ms", measured, it["run"]["no_comm_step_ms"])
        self.assert_shown(r"^  bench's prediction +([\d.]+) ms", measured, it["run"]["predicted_step_ms"])
        self.assert_shown(r"^  step +([\d.]+) ms  p10 ([\d.]+), p90 ([\d.]+)$", measured, *(it["run"]["step_ms"][key] for key in ("median", "p10", "p90")))


class Reports(unittest.TestCase):
    """Of every kept report, every run that is a stage's."""

    def test_what_is_predicted_of_a_run_is_what_its_report_holds(self):
        predicted = floors = buckets = 0
        for path in sorted((ROOT / "results").glob("*.json.gz")):
            name = str(path.relative_to(ROOT))
            if "ddp_scaling" not in json.loads(gzip.decompress(path.read_bytes())):
                continue  # a sweep
            for run in scaling(name)["runs"]:
                if run["kind"] != "stage" or run["threads"] != 1 or (run["world_size"] > 1 and run["launcher"] == "none"):
                    continue
                if run["variant"] == "by_hand" and run["world_size"] > 1:  # which sends each parameter by itself
                    self.assertIn("expected a run whose gradients travel in the", self.refused("--run", run["name"], report=name))
                    continue
                with self.subTest(f"{name}: {run['name']}"):
                    it = predict("--run", run["name"], report=name)
                    self.assertEqual(it["parameters"], run["parameters"])
                    self.assertEqual(it["flops"], run["flops"])
                    self.assertEqual(it["global_batch"], run["global_batch"])
                    self.assertEqual(it["run"]["predicted_step_ms"], run["predicted_step_ms"])
                    self.assertEqual(it["run"]["reason"], run["prediction"]["reason"])
                    if run["world_size"] > 1:
                        self.assertEqual(it["bucket_bytes"], run["comm"]["bucket_bytes"])
                    if run["floor"]["compute_ms"] is not None:
                        self.assertAlmostEqual(it["time_ms"]["arithmetic"] / run["floor"]["compute_ms"], 1, places=12)
                        floors += 1
                    predicted += run["predicted_step_ms"] is not None
                    buckets += len(run["comm"]["bucket_bytes"])
                    if run["world_size"] == 1:
                        self.assertEqual((it["time_ms"]["communication"], it["sent_bytes"], it["speedup"]), (0, 0, 1))
        self.assertGreater(min(predicted, floors, buckets), 10)

    def refused(self, *arguments, report=REPORT):
        result = subprocess.run([BENCH, "predict", *arguments, "--report", unpacked(report)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
        return result.stderr

    def test_what_a_report_does_not_say_is_refused(self):
        layers = ("--layers", "784,512,512,10", "--batch", "64")
        self.assertIn("has all-reduces of gloo, shm, expected --backend to choose one", self.refused(*layers))
        self.assertIn('has all-reduces of gloo, shm, got "mpi"', self.refused(*layers, "--backend", "mpi"))
        self.assertIn("--ranks 4: the all-reduces were measured with 2 ranks alone", self.refused(*layers, "--backend", "shm", "--ranks", "4"))
        name = run_of("M").replace("ranks:2", "ranks:3")
        self.assertIn(f'has no run "{name}", expected "{name[:-1]}', self.refused("--run", name))
        self.assertIn("--batch: --run", self.refused("--run", run_of("M"), "--batch", "64"))
        peer = next(run["name"] for run in scaling(REPORT)["runs"] if run["kind"] == "peer")
        self.assertIn("expected a stage's", self.refused("--run", peer))

    def test_a_run_has_its_own_network(self):
        document = json.loads(pathlib.Path(unpacked(REPORT)).read_text())
        run = next(one for one in document["ddp_scaling"]["runs"] if one["name"] == run_of("M"))
        here = next(one for one in document["ddp_scaling"]["communication_models"] if one["backend"] == "shm")
        slower = [{**regime, "beta_us_per_mib": 100 * regime["beta_us_per_mib"]} for regime in here["regimes"]]
        between = {**here, "across_nodes": True, "regimes": slower}
        on_gpus = {**here, "device": "cuda", "regimes": slower}
        edited = pathlib.Path(FOLDER.name) / "edited.json"
        for nodes, models, wanted in ((1, [between, on_gpus, here], here), (2, [on_gpus, here, between], between), (2, [on_gpus, here], None)):
            with self.subTest(nodes=nodes, models=len(models)):
                run["nodes"] = nodes
                document["ddp_scaling"]["communication_models"] = models
                edited.write_text(json.dumps(document))
                arguments = [BENCH, "predict", "--report", edited, "--run", run_of("M"), "--json"]
                result = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
                if wanted is None:
                    self.assertEqual((result.returncode, result.stdout), (2, ""))
                    self.assertIn("has no all-reduces of shm on cpu between nodes", result.stderr)
                else:
                    self.assertEqual(json.loads(result.stdout)["rates"]["network"]["regimes"], wanted["regimes"], result.stderr)

    def test_a_run_that_was_not_measured_without_communication(self):
        document = json.loads(pathlib.Path(unpacked(REPORT)).read_text())
        run = next(one for one in document["ddp_scaling"]["runs"] if one["name"] == run_of("M"))
        run["no_comm_step_ms"] = None
        edited = pathlib.Path(FOLDER.name) / "quick.json"
        edited.write_text(json.dumps(document))
        result = subprocess.run([BENCH, "predict", "--report", edited, "--run", run_of("M")], capture_output=True, text=True, timeout=60, check=True)
        self.assertEqual(re.findall(r"^  (without communication|bench's prediction) +(.*)$", result.stdout, re.MULTILINE),
                         [("without communication", "none"), ("bench's prediction", "none")])

    def test_a_report_of_gpus_alone_gives_their_rates(self):
        document = json.loads(pathlib.Path(unpacked(REPORT)).read_text())
        for entry in document["ddp_scaling"]["limits"] + document["ddp_scaling"]["communication_models"]:
            entry["device"] = "cuda"
        edited = pathlib.Path(FOLDER.name) / "gpus.json"
        edited.write_text(json.dumps(document))
        job = ("--layers", "64,256,10", "--batch", "32", "--backend", "shm")
        result = subprocess.run([BENCH, "predict", *job, "--report", edited, "--json"], capture_output=True, text=True, timeout=60, check=True)
        self.assertEqual(json.loads(result.stdout)["rates"]["gflops"], predict(*job, report=REPORT)["rates"]["gflops"])

    def test_of_several_fits_the_first_that_knows_the_ranks_is_taken(self):
        document = json.loads(pathlib.Path(unpacked(REPORT)).read_text())
        of_two = next(one for one in document["ddp_scaling"]["communication_models"] if one["backend"] == "shm")
        document["ddp_scaling"]["communication_models"] = [of_two, *({**of_two, "algorithm": algorithm, "world_sizes": [2, 4]}
                                                                     for algorithm in ("tree", "ring"))]
        path = pathlib.Path(FOLDER.name) / "several_fits.json"
        path.write_text(json.dumps(document))
        for ranks, algorithm in (2, None), (4, "tree"), (16, "tree"):
            it = predict("--layers", "64,256,10", "--batch", "32", "--ranks", str(ranks), "--report", str(path))
            self.assertEqual(it["rates"]["network"]["algorithm"], algorithm)

    def test_a_report_gives_rates_to_other_models(self):
        it = predict("--layers", "64,256,10", "--batch", "32", "--backend", "shm", report=REPORT)
        limit = next(one for one in scaling(REPORT)["limits"] if one["world_size"] == 2)
        self.assertEqual((it["rates"]["gflops"], it["rates"]["memory"]), (limit["fp32_gflops"], limit["memory"]))
        over_network = predict("--layers", "64,256,10", "--batch", "32", "--ranks", "64", "--network", "2,5", report=REPORT)
        self.assertEqual((over_network["rates"]["gflops"], over_network["rates"]["network"]["regimes"][0]["alpha_us"]), (limit["fp32_gflops"], 2))


def write():
    text = PAGE.read_text()
    for table in TABLES:
        head = next(iter(table()))
        for old in TABLE.findall(text):
            if old.startswith(head + "\n"):
                text = text.replace(old, rendered(table))
    PAGE.write_text(text)
    print("in bold in the text:", bold_in_text())
    for number, expected in enumerate(answers(), start=1):
        print(f"in bold in answer {number}:", expected)


if __name__ == "__main__":
    BENCH, *options = sys.argv[1:]
    FOLDER = tempfile.TemporaryDirectory(prefix="ddp-cost-test-")
    if options == ["--write"]:
        write()
    else:
        unittest.main(argv=[sys.argv[0], *options])
