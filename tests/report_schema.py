#!/usr/bin/env python3
"""Checks documents of `bench --json` against their schema, and against what one field says about another.

usage: report_schema.py SCHEMA DOCUMENT...
       report_schema.py SCHEMA FOLDER_OF_DOCUMENTS
       report_schema.py --self-test SCHEMA DOCUMENT

With --self-test the document has to be a valid one that uses every field of the schema; it is damaged in every place and in every
way, and each damaged one has to be refused. Needs the package jsonschema. Exit codes: 0 all good, 1 not, 2 usage.
"""

import copy
import json
import math
import pathlib
import statistics
import sys

import jsonschema


def refuse_constant(text):
    raise ValueError(f"{text} is not JSON")


def finite_float(text):
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value


def unique_keys(pairs):
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"the key {key!r} stands twice in one object")
    return dict(pairs)


def parse(text):
    """Strict: Python's own reader takes NaN, numbers that overflow, and keys that stand twice."""
    return json.loads(text, parse_constant=refuse_constant, parse_float=finite_float, object_pairs_hook=unique_keys)


def is_close(a, b):
    """True also if one of both is not there."""
    return a is None or b is None or math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


def divided(a, b):
    return None if a is None or not b else a / b


def paired_ratio(ratios):
    """Hodges and Lehmann's estimate, of their logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.median((a + b) / 2 for i, a in enumerate(logs) for b in logs[: i + 1]))


def check_distribution(values, where):
    ordered = [values[key] for key in ("p10", "median", "p90", "p95") if values[key] is not None]
    if ordered != sorted(ordered):
        yield f"{where}: percentiles are not in order"


def check_launches(run, launches):
    name = run["name"]
    medians = [launch["median_ms"] for launch in launches if launch["median_ms"]]
    for number, launch in enumerate(launches):
        own = launch["samples_ms"]
        if own and None not in own and not is_close(launch["median_ms"], statistics.median(own)):
            yield f"{name}: median_ms of launch {number} is not that of its samples_ms"
        if any(len(rank) != len(own) for rank in launch["rank_samples_ms"]):
            yield f"{name}: launch {number} has ranks with other numbers of steps than the job"
    slow = sum(median > SLOW_LAUNCH * min(medians) for median in medians)
    if run["slow_launches"] != {"k": slow, "n": len(medians)}:
        yield f"{name}: slow_launches is {run['slow_launches']}, by the medians {slow} of {len(medians)}"


def check_bound(run, median):
    several = run["launcher"] != "none" and run["world_size"] > 1
    exposed = run["phases_ms"]["exposed_comm"] if several else 0
    own = median and median - (run["phases_ms"]["imbalance"] or 0)
    expected = [run["bound"]]
    if not run["floor_ms"] or not own or exposed is None:
        expected = [None]
    elif exposed > own / 2:
        expected = ["communication"]
    elif own > 20 * run["floor_ms"]:
        expected = ["overhead"]
    if run["bound"] not in expected:
        yield f"{run['name']}: bound is {run['bound']}, expected {expected[0]} by its waits and its floor"


def check_run(run):
    name = run["name"]
    median = run["step_ms"]["median"]
    launches = [launch for launch in run["repetitions"] if launch]
    samples = [sample for launch in launches for sample in launch["samples_ms"]]
    yield from check_distribution(run["step_ms"], f"{name}: step_ms")
    if samples and run["step_ms"]["n"] != len(samples):
        yield f"{name}: step_ms.n is {run['step_ms']['n']}, but there are {len(samples)} samples"
    if samples and None not in samples and not is_close(median, statistics.median(samples)):
        yield f"{name}: step_ms.median is not that of samples_ms"
    yield from check_launches(run, launches)
    if median and not is_close(run["samples_per_second"], run["global_batch"] / median * 1e3):
        yield f"{name}: samples_per_second is not global_batch / median step"
    if samples and None not in samples:
        wall = run["global_batch"] * len(samples) / sum(samples) * 1e3
        if not is_close(run["wall_samples_per_second"], wall):
            yield f"{name}: wall_samples_per_second is {run['wall_samples_per_second']}, its steps give {wall}"
    if not is_close(run["gflops"], divided(run["flops"], median and median * 1e6)):
        yield f"{name}: gflops is not flops / median step"
    phases = run["phases_ms"].values()
    if median and None not in phases and not math.isclose(sum(phases), median, rel_tol=1e-6):
        yield f"{name}: its phases add up to {sum(phases)}, its median step is {median}"
    if not is_close(run["efficiency"], divided(run["relative_speedup"], run["world_size"] * run["threads"])):
        yield f"{name}: efficiency is not relative_speedup / (world_size * threads)"
    if run["name"].endswith("/control") != (run["kind"] == "control"):
        yield f"{name}: kind is {run['kind']}"
    floor = [part for part in run["floor"].values() if part is not None]
    if run["floor_ms"] != max(floor, default=None):
        yield f"{name}: floor_ms is not the largest of its parts"
    yield from check_bound(run, median)
    alone, exchange = run["comm"]["alone_ms"], run["floor"]["comm_ms"]
    if alone and exchange and exchange > alone * (1 + 1e-6):
        yield f"{name}: floor.comm_ms is {exchange}, but its exchange took {alone} alone"
    if run["prediction"]["reason"] and run["predicted_step_ms"] is not None:
        yield f"{name}: it has a prediction and a reason for having none"
    ratios = [launch["median_ms"] / (launch["no_comm_median_ms"] + run["prediction"]["comm_ms"]) for launch in launches
              if run["predicted_step_ms"] and launch["median_ms"] and launch["no_comm_median_ms"]]
    residual, expected = run["prediction"]["residual"], paired_ratio(ratios) - 1 if ratios else None
    if (residual is None) != (expected is None) or not is_close(residual, expected):
        yield f"{name}: residual is {residual}, its launches give {expected}"


CONTROL_TOLERANCE = 0.03
SLOW_LAUNCH = 1.5


def verdict_of(ci95, even):
    low, high = ci95
    if even * (1 - CONTROL_TOLERANCE) <= low and high <= even * (1 + CONTROL_TOLERANCE):
        return "same"
    return "faster" if high < even else "slower" if low > even else None


def check_verdict(comparison, runs, comparisons):
    """A verdict follows from its interval, and needs a control of the kind of either run that holds."""
    if comparison["verdict"] is None:
        return
    where = f"comparisons: the verdict on {comparison['a']}"
    a, b = (runs[comparison[side]] for side in ("a", "b"))
    even = a["global_batch"] / b["global_batch"] if comparison["kind"] == "baseline" else 1
    expected = comparison["ci95"] and verdict_of(comparison["ci95"], even)
    if comparison["verdict"] != expected:
        yield f"{where} is {comparison['verdict']}, but its interval is {comparison['ci95']}, and {even} is even"
    for run in (a, b) if comparison["kind"] != "control" else ():
        if not any(control["kind"] == "control" and control["a"] in runs
                   and kind_of(runs[control["a"]]) == kind_of(run)
                   and control["ci95"] and all(abs(end - 1) <= CONTROL_TOLERANCE for end in control["ci95"])
                   for control in comparisons):
            yield f"{where} has no control that holds for {run['name']}"


def kind_of(run):
    """Replicas are threads of one process: no launcher starts it."""
    one_process = run["launcher"] == "none" or run["world_size"] == 1
    return run["model"], run["scaling"], run["device"], one_process


def check_meaning(document):
    """What a schema cannot say; only for documents that conform to it."""
    scaling = document["ddp_scaling"]
    names = [run["name"] for run in scaling["runs"]]
    for name in {name for name in names if names.count(name) > 1}:
        yield f"two runs have the name {name}"
    for run in scaling["runs"]:
        yield from check_run(run)
    runs = {run["name"]: run for run in scaling["runs"]}
    for comparison in scaling["comparisons"]:
        missing = [side for side in ("a", "b") if comparison[side] not in runs]
        for side in missing:
            yield f"comparisons: {side} is {comparison[side]}, which is no run"
        if comparison["ci95"] and comparison["ci95"][0] > comparison["ci95"][1]:
            yield f"comparisons: the interval of {comparison['a']} is upside down"
        elif not missing:
            yield from check_verdict(comparison, runs, scaling["comparisons"])
    for extrapolation in scaling["extrapolations"]:
        if extrapolation["from"] not in names:
            yield f"extrapolations: from is {extrapolation['from']}, which is no run"
    for sample in scaling["all_reduce"]:
        where = f"all_reduce of {sample['bytes']} bytes, {sample['world_size']} ranks"
        yield from check_distribution(sample["time_us"], where)
        expected = divided(sample["bytes"] / 1e3, sample["time_us"]["median"])
        if not is_close(sample["algorithm_bandwidth_gbps"], expected):
            yield f"{where}: algorithm_bandwidth_gbps is not bytes / median time"
        factor = 2 * (sample["world_size"] - 1) / sample["world_size"]
        if expected is not None and not is_close(sample["bus_bandwidth_gbps"], expected * factor):
            yield f"{where}: bus_bandwidth_gbps is not algorithm bandwidth * 2(n-1)/n"
    for limit in scaling["limits"]:
        rates = limit["memory"]
        if [rate["bytes"] for rate in rates] != sorted({rate["bytes"] for rate in rates}):
            yield f"limits: memory of {limit['world_size']} ranks is not by ascending size"
        if rates and not is_close(limit["memory_bandwidth_gbps"], rates[-1]["gbps"]):
            yield f"limits: memory_bandwidth_gbps of {limit['world_size']} ranks is not that of the largest size"
    for model in scaling["communication_models"]:
        starts = [regime["from_bytes"] for regime in model["regimes"]]
        if starts != sorted(set(starts)):
            yield f"communication_models: regimes of {model['backend']} start at {starts}, expected ascending sizes"
    for crossover in scaling["crossover"]:
        values = [value["value"] for value in crossover["values"]]
        if values != sorted(set(values)):
            yield f"crossover: {crossover['sweep']} has the values {values}, expected ascending ones"
        for name in (value["run"] for value in crossover["values"]):
            if name not in names:
                yield f"crossover: {name} is no run"
        if crossover["crosses_at"] and not values[0] <= crossover["crosses_at"] <= values[-1]:
            yield f"crossover: {crossover['sweep']} crosses at {crossover['crosses_at']}, which was not measured"
    for check in scaling["parity_only"]:
        if check["name"] in names:
            yield f"parity_only: {check['name']} is timed"
        if check["same_step_as"] not in (None, *names):
            yield f"parity_only: same_step_as is {check['same_step_as']}, which is no run"
    for entry in scaling["time_to_accuracy"]:
        if entry["accuracy"] is not None and entry["accuracy"] < entry["target"]:
            yield f"time_to_accuracy: {entry['accuracy']} on {entry['dataset']} is below the target"
    for piece in scaling["micro"]:
        yield from check_distribution(piece["time_us"], piece["name"])


def complaints(validator, text):
    """A generator: the first one costs a fraction of them all."""
    try:
        document = parse(text)
    except ValueError as error:
        yield f"not JSON: {error}"
        return
    conforms = True
    for error in validator.iter_errors(document):
        conforms = False
        yield f"/{'/'.join(str(part) for part in error.absolute_path)}: {error.message[:300]}"
    if conforms:
        yield from check_meaning(document)


def paths(value, path=()):
    """Of all values in the document, itself first."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in items:
        yield from paths(member, path + (key,))


def at(document, path):
    for key in path:
        document = document[key]
    return document


def changed(document, path, value):
    result = copy.deepcopy(document)
    at(result, path[:-1])[path[-1]] = value
    return result


def removed(document, path):
    result = copy.deepcopy(document)
    del at(result, path[:-1])[path[-1]]
    return result


def fields(schema, node, path=()):
    """(path, name) of every field that the schema knows, as paths of the schema."""
    if "$ref" in node:
        target = schema
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        yield from fields(schema, target, path)
    for name, member in node.get("properties", {}).items():
        yield path + (name,)
        yield from fields(schema, member, path + (name,))
    for member in (node.get("items"), node.get("additionalProperties")):
        if isinstance(member, dict):
            yield from fields(schema, member, path + ("*",))


def damaged(document):
    """(what was done, text) of documents that must all be refused."""
    seen = set()
    for path in list(paths(document)):
        value = at(document, path)
        # Once for each place of the schema and kind of value: elements of a list are alike.
        place = tuple("*" if isinstance(part, int) else part for part in path), type(value)
        if place in seen:
            continue
        seen.add(place)
        where = "/" + "/".join(str(part) for part in path)
        ours = path[:1] == ("ddp_scaling",)
        if not path:
            for key in value:
                yield f"/{key} removed", json.dumps(removed(document, (key,)))
        if path and ours:
            if not isinstance(path[-1], int):
                yield f"{where} removed", json.dumps(removed(document, path))
            wrongs = [{"x": 1}, [[]], math.nan]
            if isinstance(value, str):
                wrongs += [7, ""]
            elif value is not None:
                wrongs += ["text"]
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                wrongs += [True]
                yield f"{where} = 1e999", json.dumps(changed(document, path, "HERE")).replace('"HERE"', "1e999")
            if isinstance(value, dict):
                wrongs += [{**value, "another_field": 1}]
            for wrong in wrongs:
                yield f"{where} = {str(wrong)[-100:]}", json.dumps(changed(document, path, wrong))

    run = ("ddp_scaling", "runs", 2)
    launch = run + ("repetitions", 0)
    failed = ("ddp_scaling", "runs", 4)
    for path, value in [
        (("ddp_scaling", "schema_version"), 1),
        (run + ("kind",), "friend"),
        (run + ("kind",), "control"),
        (run + ("device",), "abacus"),
        (run + ("scaling",), "sideways"),
        (run + ("name",), "T/weak/01_single_gpu/ranks:1"),
        (run + ("name",), "03_ddp_spawn"),
        (run + ("world_size",), 0),
        (run + ("world_size",), 2.5),
        (launch + ("samples_ms", 0), -1.0),
        (launch + ("samples_ms",), []),
        (launch + ("samples_ms",), [2.0] * 5),
        (launch + ("samples_ms",), [3.0] * 2),
        (launch + ("rank_samples_ms", 0), [2.0]),
        (launch + ("started",), "yesterday"),
        (launch + ("median_ms",), 5.0),
        (run + ("slow_launches", "k"), 1),
        (run + ("slow_launches", "n"), 2),
        (run + ("wall_samples_per_second",), 1.0),
        (run + ("gflops",), 1.0),
        (run + ("phases_ms", "data"), 0.5),
        (run + ("layers",), [20]),
        (run + ("step_ms", "p10"), 2.5),
        (run + ("samples_per_second",), None),
        (run + ("samples_per_second",), 31000.0),
        (run + ("efficiency",), 1.0),
        (run + ("floor_ms",), 1.0),
        (run + ("floor", "comm_ms"), 1.5),
        (run + ("bound",), "luck"),
        (run + ("prediction", "residual"), 0.0),
        (run + ("prediction", "residual"), None),
        (launch + ("no_comm_median_ms",), 1.5),
        (run + ("prediction", "reason"), "none"),
        (run + ("error",), "exit code 1"),
        (run + ("error",), "two\nlines"),
        (run + ("parity", "ok"), False),
        (failed + ("error",), None),
        (failed + ("repetitions", 0), document["ddp_scaling"]["runs"][2]["repetitions"][0]),
        (failed + ("samples_per_second",), 1.0),
        (("ddp_scaling", "comparisons", 0, "b"), "T/weak/09/ranks:1"),
        (("ddp_scaling", "comparisons", 0, "ci95"), [2.0, 1.0]),
        (("ddp_scaling", "comparisons", 0, "ci95"), [1.0]),
        (("ddp_scaling", "comparisons", 0, "verdict"), "better"),
        (("ddp_scaling", "comparisons", 0, "verdict"), "slower"),
        (("ddp_scaling", "comparisons", 0, "ci95"), [0.5, 9.98]),
        (("ddp_scaling", "comparisons", 0, "ci95"), None),
        (("ddp_scaling", "comparisons", 1, "ci95"), None),
        (("ddp_scaling", "comparisons", 1, "ci95"), [0.99, 1.04]),
        (("ddp_scaling", "comparisons", 2, "ci95"), [0.96, 1.01]),
        (("ddp_scaling", "comparisons", 2, "kind"), "peer"),
        (("ddp_scaling", "extrapolations", 0, "from"), "nothing"),
        (("ddp_scaling", "crossover", 0, "values", 0, "run"), "nothing"),
        (("ddp_scaling", "crossover", 0, "values", 0, "value"), 64),
        (("ddp_scaling", "crossover", 0, "crosses_at"), 15.0),
        (("ddp_scaling", "parity_only", 0, "same_step_as"), "nothing"),
        (("ddp_scaling", "parity_only", 0, "name"), "T/weak/03_ddp_spawn/spawn/nccl/ranks:2"),
        (("ddp_scaling", "parity_only", 0, "ok"), False),
        (("ddp_scaling", "time_to_accuracy", 0, "accuracy"), 0.94),
        (("ddp_scaling", "time_to_accuracy", 0, "epochs"), None),
        (("ddp_scaling", "extrapolations", 0, "world_size"), 65),
        (("ddp_scaling", "all_reduce", 0, "bus_bandwidth_gbps"), 1.0),
        (("ddp_scaling", "all_reduce", 0, "algorithm_bandwidth_gbps"), 1.0),
        (("ddp_scaling", "all_reduce", 0, "pass_spread"), 0.9),
        (("ddp_scaling", "limits", 0, "memory", 0, "bytes"), 2**32),
        (("ddp_scaling", "communication_models", 0, "regimes", 1, "from_bytes"), 0),
        (("benchmarks",), {}),
        (("benchmarks", 0, "time_unit"), "ns"),
        (("benchmarks", 0, "real_time"), "fast"),
    ]:
        yield f"/{'/'.join(str(part) for part in path)} = {value!r}", json.dumps(changed(document, path, value))

    text = json.dumps(document)
    yield "cut off", text[:-1]
    yield "a key twice", text.replace('"schema_version": 2', '"schema_version": 2, "schema_version": 2')
    yield "empty", ""


def self_test(schema, validator, text):
    failures = [f"the valid document is refused: {complaint}" for complaint in complaints(validator, text)]
    document = parse(text)

    used = {tuple("*" if isinstance(part, int) else part for part in path)
            for path in paths(document) if at(document, path) is not None}
    used |= {tuple("*" if path[:3] == ("ddp_scaling", "software", "launchers") and i == 3 else part
                   for i, part in enumerate(path)) for path in used}
    for path in fields(schema, schema["properties"]["ddp_scaling"], ("ddp_scaling",)):
        if path not in used:
            failures.append(f"the valid document does not use /{'/'.join(path)}")

    count = 0
    for what, damaged_text in damaged(document):
        count += 1
        if next(complaints(validator, damaged_text), None) is None:
            failures.append(f"not refused: {what}")
    print(f"{count} damaged documents, {len(failures)} failures")
    return failures


def main(arguments):
    testing = arguments[:1] == ["--self-test"]
    files = arguments[1:] if testing else arguments
    if len(files) < 2 or (testing and len(files) != 2):
        print(__doc__, file=sys.stderr)
        return 2
    schema = parse(pathlib.Path(files[0]).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    documents = [pathlib.Path(name) for name in files[1:]]
    if len(documents) == 1 and documents[0].is_dir():
        documents = sorted(documents[0].iterdir())
        if not documents:
            print(f"{files[1]}: expected documents in there", file=sys.stderr)
            return 1

    failed = False
    for document in documents:
        text = document.read_text(encoding="utf-8")
        found = self_test(schema, validator, text) if testing else list(complaints(validator, text))
        for complaint in found:
            print(f"{document}: {complaint}", file=sys.stderr)
        if not found:
            print(f"{document}: ok")
        failed = failed or bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
