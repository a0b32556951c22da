#!/usr/bin/env python3
"""Keeps the outputs that pages show true: all are from one run of one commit on one machine.

A page marks a console block whose outputs are generated:

    <!-- transcript lines=3 same_digest=two_ranks same_moved=batch_32 -->

`lines` is how many lines of each command's output are shown, the last ones, ranks in order (they print in any). Blocks with the same name
after `same_digest` or `same_moved`, on whatever page, must show the same digest or, to 1e-4, the same `moved`.

A paragraph that repeats numbers of another page says so above: `<!-- quoted from docs/speedup.md: 1.09 | 1.00 | 1.26 -->`. What follows the
colon must stand on that page, and its numbers, in that order, in the paragraph.

Without --check, builds the programs that the blocks name, runs every command once in a copy of the checkout, and rewrites the blocks and
the line in README.md that says when, where and of which commit they are. It wants an idle machine and a checkout whose changes are
committed (pages, pictures and results/ aside). With --check, changes nothing and fails if an output was not written by that run, or cannot be true:
samples/s x step is not the batch, lines are out of order, something is no number, a digest is not the one it should be.
"""

import argparse
import contextlib
import datetime
import hashlib
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from stage_diffs import ROOT, pages, strange_comments

CONSOLE = re.compile(r"```console\n(.*?)```\n", re.DOTALL)
TRANSCRIPT = re.compile(r"<!-- transcript((?: \w+=\w+)+) -->\n```console\n(.*?)```\n", re.DOTALL)
ORIGIN = re.compile(r"<!-- transcripts (\w+) -->\n(.*?)\n<!-- end of transcripts -->\n", re.DOTALL)
QUOTED = re.compile(r"<!-- quoted from (\S+): (.+?) -->\n")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
LOG_LINE = re.compile(r"\[(?:CPU|GPU)(\d+)\] Epoch (\d+) \| Batchsize: (\d+) \| Steps: (\d+) \| Loss: (\S+)")
SUMMARY = re.compile(r"moved (\S+) \| loss (\S+) \|(?: accuracy (\S+) \|)? digest ([0-9a-f]{16}) \| step (\S+) ms \| (\S+) samples/s")
# The step is printed in ms with three decimals, samples/s as an integer.
STEP_ROUNDING_MS = 0.0005
SAMPLES_PER_SECOND_ROUNDING = 0.5
MOVED_TOLERANCE = 1e-4
TRAINING_SAMPLES = {"synthetic": 2048, "digits": 1437, "fashion-mnist": 60000}
TIMEOUT_S = 300
# The shell's own forgets what became of the jobs that it waited for.
WAIT = ("trap '[[ -z ${!:-} ]] || started[$!]=1' DEBUG; "
        'wait() { local job code=0; for job in "${!started[@]}"; do builtin wait "$job" || code=$?; done; return $code; }')


def commands(block):
    """The commands of a console block, each with the lines below it."""
    command, output = None, []
    for line in re.sub(r"\\\n\s*", "", block).splitlines():
        if line.startswith("$ "):
            if command:
                yield command, output
            command, output = line[2:].strip(), []
        else:
            output.append(line)
    if command:
        yield command, output


@contextlib.contextmanager
def copy_of_checkout():
    """A folder to run a page's commands in, and the environment for them, so that nothing is left behind."""
    def not_copied(folder, names):
        # Hidden folders and what .gitignore has at the top.
        at_top = pathlib.Path(folder) == ROOT
        return [name for name in names if name == "__pycache__" or at_top and
                (name.startswith((".", "build", "report.")) or name == "out" or ".safetensors" in name)]

    with tempfile.TemporaryDirectory(prefix="ddp-pages-") as scratch:
        folder, temporary = pathlib.Path(scratch) / "checkout", pathlib.Path(scratch) / "tmp"
        shutil.copytree(ROOT, folder, ignore=not_copied, symlinks=True)
        (folder / "build").mkdir()
        for programs in "bin", "tests":
            (folder / "build" / programs).symlink_to(ROOT / "build" / programs)
        temporary.mkdir()
        yield folder, dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TMPDIR=str(temporary),
                           PATH=f"{ROOT}/.venv/bin:{os.environ['PATH']}")


def run_command(command, folder, environment, **streams):
    """As a reader would. Fails too if something fails that the command left in the background and waited for."""
    return subprocess.run(["bash", "-c", f"{WAIT}\n{command}"], cwd=folder, env=environment, timeout=TIMEOUT_S, text=True, **streams)


def log_order(line):
    """Epoch by epoch, in an epoch rank by rank; the summary last."""
    match = LOG_LINE.fullmatch(line)
    return (int(match.group(2)), int(match.group(1))) if match else (math.inf, 0)


def shown_lines(output, count):
    """The last lines of what a stage printed, in order."""
    lines = sorted((line for line in output if LOG_LINE.fullmatch(line) or SUMMARY.fullmatch(line)), key=log_order)
    if sum(1 for line in lines if SUMMARY.fullmatch(line)) != 1:
        raise ValueError("expected one line of the form 'moved ... | loss ... | digest ... | step ... ms | ... samples/s'")
    return (["..."] if len(lines) > count else []) + lines[-count:]


def world_size_of(command):
    """How many ranks the command starts, by its own words."""
    def given(option, default):
        match = re.search(rf"{option}[= ](\d+)", command)
        return int(match.group(1)) if match else default

    if "build/bin/01_" in command or "build/bin/02_" in command:
        return 1
    if "torchrun" in command:
        return given("--nproc[-_]per[-_]node", 1) * given("--nnodes", 1)
    if "mpirun" in command:
        return given("-np", 0)
    return given("--nprocs", 0)


def batch_of(command):
    """The batch over all ranks."""
    match = re.search(r"--global[-_]batch[= ](\d+)", command)
    if match:
        return int(match.group(1))
    match = re.search(r"--batch[-_]size[= ](\d+)", command)
    return (int(match.group(1)) if match else 32) * world_size_of(command)


def steps_of(command):
    """Of an epoch."""
    size = re.search(r"--dataset[-_]size[= ](\d+)", command)
    name = re.search(r"--dataset[= ](\S+)", command)
    return math.ceil((int(size.group(1)) if size else TRAINING_SAMPLES[name.group(1) if name else "synthetic"]) / batch_of(command))


def epochs_of(command):
    match = re.search(r"--total[-_]epochs[= ](\d+)", command) or re.search(r"build/bin/\w+ (\d+) ", command)
    return int(match.group(1)) if match else 0


def wrong_output(command, output, count):
    """Why these lines cannot be what the command printed; empty if they can."""
    lines = output[1:] if output[:1] == ["..."] else output
    if not lines:
        return ["no output yet; run tools/transcripts.py"]
    complaints = [f"{line}: neither a line of the log nor a summary"
                  for line in lines[:-1] if not LOG_LINE.fullmatch(line)]
    if len(lines) > count:
        complaints.append(f"{len(lines)} lines, expected {count}")
    order = [log_order(line) for line in lines]
    if any(later <= earlier for earlier, later in zip(order, order[1:])):
        complaints.append("its lines are not in order of epoch and rank")
    batch, world_size = batch_of(command), world_size_of(command)
    if batch <= 0:
        return complaints + ["says nowhere how many ranks it starts"]
    for line in lines[:-1]:
        match = LOG_LINE.fullmatch(line)
        if match and int(match.group(3)) * world_size != batch:
            complaints.append(f"{line}: expected a batch of {batch} over {world_size} ranks")
        if match and int(match.group(4)) != steps_of(command):
            complaints.append(f"{line}: expected {steps_of(command)} steps")
        if match and int(match.group(2)) >= epochs_of(command):
            complaints.append(f"{line}: expected epochs below {epochs_of(command)}")
    summary = SUMMARY.fullmatch(lines[-1])
    if not summary:
        return complaints + [f"{lines[-1]}: expected the summary"]
    texts = [text for index, text in enumerate(summary.groups()) if text is not None and index != 3]
    texts += [match.group(5) for match in map(LOG_LINE.fullmatch, lines[:-1]) if match]
    try:
        numbers = [float(text) for text in texts]
    except ValueError as error:
        return complaints + [str(error)]
    if not all(map(math.isfinite, numbers)):
        return complaints + [f"not all finite: {' '.join(texts)}"]
    step_ms, samples_per_second = float(summary.group(5)), float(summary.group(6))
    rounding = samples_per_second * STEP_ROUNDING_MS / 1000 + step_ms / 1000 * SAMPLES_PER_SECOND_ROUNDING
    if not abs(samples_per_second * step_ms / 1000 - batch) <= rounding:
        complaints.append(f"{samples_per_second:.0f} samples/s x {step_ms} ms is {samples_per_second * step_ms / 1000:.1f} samples, expected {batch}")
    return complaints


def attributes_of(text):
    attributes = dict(word.split("=") for word in text.split())
    if not attributes.keys() <= {"lines", "same_digest", "same_moved"} or not int(attributes.get("lines", 0)) > 0:
        raise SystemExit(f"<!-- transcript{text} -->: expected lines=N, same_digest=NAME, same_moved=NAME")
    return attributes


def transcripts():
    """All of them: page, attributes, command, output."""
    for page in pages():
        for attributes, block in TRANSCRIPT.findall(page.read_text()):
            for command, output in commands(block):
                yield page.relative_to(ROOT), attributes_of(attributes), command, output


def fingerprint(origin, outputs):
    """Ties the outputs to the line that says where they are from. outputs: of (command, output)."""
    whole = "\n".join([origin, *sorted({"\n".join([command, *output]) for command, output in outputs})])
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def wrong_quotes(page):
    """Complaints about paragraphs that do not have the numbers that they say they have from another page."""
    text = page.read_text()
    for match in QUOTED.finditer(text):
        name, quoted = match.groups()
        source = ROOT / name
        complaint = f"{page.relative_to(ROOT)}: quoted from {name}: {quoted}: "
        if not source.is_file() or quoted not in QUOTED.sub("", source.read_text()):
            yield complaint + "does not stand there"
        paragraph = QUOTED.sub("", text[match.end():].lstrip("\n")).partition("\n\n")[0]
        numbers = iter(NUMBER.findall(paragraph))
        for number in NUMBER.findall(quoted):
            if number not in numbers:  # which also goes on to behind it
                yield complaint + f"no {number} where it is expected in the paragraph below"
                break


def wrong_pages():
    complaints, summaries = [], {}
    found = list(transcripts())
    for name, attributes, command, output in found:
        why = wrong_output(command, output, int(attributes["lines"]))
        complaints += [f"{name}: {command}: {reason}" for reason in why]
        summary = None if why else SUMMARY.fullmatch(output[-1])
        for kind in ("same_digest", "same_moved"):
            if kind in attributes:
                summaries.setdefault((kind, attributes[kind]), []).append((name, command, summary))
    for (kind, group), members in summaries.items():
        if len({command for _, command, _ in members}) < 2:
            complaints.append(f"{kind}={group}: one command, expected several to compare")
        first = next((summary for _, _, summary in members if summary), None)
        for name, command, summary in members:
            if not summary:
                continue
            if kind == "same_digest" and summary.group(4) != first.group(4):
                complaints.append(f"{name}: {command}: digest {summary.group(4)}, expected {first.group(4)} as elsewhere")
            moved, expected = float(summary.group(1)), float(first.group(1))
            if kind == "same_moved" and not abs(moved - expected) <= MOVED_TOLERANCE * abs(expected):
                complaints.append(f"{name}: {command}: moved {moved}, expected {expected} as elsewhere")
    for page in pages():
        complaints += strange_comments(page, (TRANSCRIPT, ORIGIN, QUOTED), {"transcript", "transcripts", "end of transcripts", "quoted"})
        complaints += wrong_quotes(page)
        # What is in no transcript is checked by nobody.
        for block in CONSOLE.findall(TRANSCRIPT.sub("", page.read_text())):
            complaints += [f"{page.relative_to(ROOT)}: {command}: has an output, but no marker <!-- transcript ... --> above its block"
                           for command, output in commands(block) if any(line.strip() for line in output)]
    origins = ORIGIN.findall((ROOT / "README.md").read_text())
    if len(origins) != 1:
        complaints.append(f"README.md: {len(origins)} blocks <!-- transcripts ... -->, expected 1")
    elif origins[0][0] != fingerprint(origins[0][1], [(command, output) for _, _, command, output in found]):
        complaints.append("README.md: the outputs on the pages are not those of the run that it names; run tools/transcripts.py")
    return complaints


def text_of(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def origin_of_this_run():
    changed = [path for path in text_of("git", "diff", "--name-only", "HEAD").splitlines()
               if not path.endswith((".md", ".svg")) and not path.startswith("results/")]
    if changed:
        raise SystemExit(f"transcripts.py: not committed: {' '.join(changed)}; outputs of a commit are wanted")
    cpu = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    version = re.search(r"LibTorch [^,]+", text_of("build/bin/01_single_gpu", "--version")).group(0)
    real_time = ", with real-time priority (chrt -r 5)" if os.sched_getscheduler(0) == os.SCHED_RR else ""
    return (f"All outputs on these pages are from one run: {datetime.date.today()}, commit {text_of('git', 'rev-parse', '--short=12', 'HEAD')}, "
            f"{cpu.group(1) if cpu else 'unknown processor'}, {len(os.sched_getaffinity(0))} cores, {version}{real_time}.")


def rewrite_pages():
    found = list(transcripts())
    programs = sorted(set(re.findall(r"build/bin/([\w-]+)", " ".join(command for _, _, command, _ in found))))
    subprocess.run(["cmake", "--build", "build", "--target", *programs], cwd=ROOT, check=True)
    origin = origin_of_this_run()
    printed = {}
    with copy_of_checkout() as (folder, environment):
        for command in dict.fromkeys(command for _, _, command, _ in found):
            print(f"$ {command}", flush=True)
            result = run_command(command, folder, environment, capture_output=True)
            if result.returncode != 0:
                raise SystemExit(f"transcripts.py: exit code {result.returncode}, expected 0: {command}\n{result.stderr}")
            printed[command] = result.stdout.splitlines()

    outputs = []

    def block(match):
        text = ""
        for command, _ in commands(match.group(2)):
            lines = shown_lines(printed[command], int(attributes_of(match.group(1))["lines"]))
            outputs.append((command, lines))
            text += "\n".join([f"$ {command}", *lines]) + "\n"
        return f"<!-- transcript{match.group(1)} -->\n```console\n{text}```\n"

    written = {page: TRANSCRIPT.sub(block, page.read_text()) for page in pages()}
    readme = ROOT / "README.md"
    written[readme] = ORIGIN.sub(
        f"<!-- transcripts {fingerprint(origin, outputs)} -->\n{origin}\n<!-- end of transcripts -->\n", written[readme])
    for page, text in written.items():
        page.write_text(text)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if an output cannot be true")
    if not parser.parse_args(arguments).check:
        rewrite_pages()
    complaints = wrong_pages()
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    if not complaints:
        print(f"{len(list(transcripts()))} outputs, all of one run")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
