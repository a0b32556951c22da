#!/usr/bin/env python3
"""Every command on a page, in a block or between backticks, names programs, options, values and files that there are.

usage: page_commands.py BUILD_DIR

readme_commands.py, exact_outputs.py, diagnosis_test.py and exercises_test.py run what runs here in seconds. This one looks at what wants a
cluster, GPUs or minutes too: an option must stand in the program's --help, a value among those that it lists. And a whole command of ours is run
as far as it gets without work: a stage with --dump-env, bench and submit with --dry-run, bench_micro with --benchmark_list_tests.
"""

import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))

from stage_diffs import ROOT, pages  # noqa: E402
from readme_commands import NOT_HERE  # noqa: E402
from transcripts import copy_of_checkout  # noqa: E402

SUBCOMMANDS = {"bench": ("compare", "html", "predict"), "submit": ("list", "status", "logs", "cancel", "resubmit")}
# What others understand of what the pages say. Who adds one looks it up in their manual.
OTHERS = {
    "torchrun": "nnodes nproc-per-node node-rank rdzv-backend rdzv-id rdzv-endpoint standalone no-python max-restarts",
    "mpirun": "host oversubscribe bind-to", "mpiexec": "env", "flux": "env",
    "srun": "nodes ntasks-per-node gpus-per-node gpus-per-task gpu-bind kill-on-bad-exit mpi",
    "sbatch": "nodes ntasks-per-node gpus-per-node gpus-per-task cpus-per-gpu cpus-per-task array export signal",
    "docker": "file tag rm volume gpus ipc network", "apptainer": "nv",
    "cmake": "preset build target install prefix workflow", "ctest": "preset test-dir",
    "chromium": "headless hide-scrollbars window-size virtual-time-budget blink-settings screenshot", "pngquant": "force ext",
    "diff": "color", "mount": "bind", "python3": "bind", "pip": "no-build-isolation",
}
STAGE = re.compile(r"0\d_\w+|peer_\w+|hook_per_parameter\w*|faulty_ranks|hangs|differs")
# Blocks that show something else than commands.
NO_COMMANDS = ("diff", "cpp", "cmake", "python", "text", "html", "yaml", "json", "mermaid")
PROMPT = re.compile(r"(?:\w+)?\$ ")
PROGRAM = re.compile(r"\bbuild/(?:bin|tests|diagnosis)/([a-z0-9][\w-]*)(?![\w*{-])")
REPOSITORY_PATH = re.compile(r"(?:^|(?<=[\s'\"=(]))(?:\./)?((?:common|bench|tools|tests|docs|slurm|condor|container|simulator|results|0\d_\w+)/"
                             r"[\w./-]*)(?![:\w*{$-])")
OPTION = re.compile(r"--([a-z][\w-]*)(?:=(.*))?", re.DOTALL)
# Words that stand for others, and what only a reader has.
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]{2,}|\.\.\.|[{}\[\]$|]|\bN\b|\bphotos\b")
# After these a program's name is no value.
FLAGS = ("--no-python", "--standalone", "--nv")
LISTED = re.compile(r"(?:[\w-]+, )*[\w-]+ or [\w-]+")
# What a program says, and of that the words that no value stands between.
SAID = re.compile(r"(?:\w+: )?(?:(?:error|note|WARNING|--\w+ \w+): |\[CPU\d\] )")
WORDS = re.compile(r"(?<![\w'-])[a-z]+(?: [a-z]+){2,}(?![\w'-])")
TIMEOUT_S = 60


def plain(option):
    return option.replace("_", "-")


class Program:
    """What its --help, or of a script its source, says that it understands."""

    def __init__(self, text):
        self.options = {plain(name) for name in re.findall(r"--([a-z][\w-]*)", text)}
        self.choices = {}
        for line in text.splitlines():
            # --one,--other WHAT (default ...)   what it is for
            entry = re.match(r"\s+((?:-\w,)?--[\w,-]+)(?: (.*?))?(?: \(default .*?\))?(?:\s{2,}(.*))?$", line)
            if entry:
                names, values, words = entry[1], entry[2] or "", entry[3] or ""
                braces = re.search(r"\{([\w,]+)\}", values)
                listed = braces[1].split(",") if braces else re.split(", | or ", values) if LISTED.fullmatch(values) \
                    else re.split(", | or ", words) if values == "NAME" and LISTED.fullmatch(words) else []
                if listed:
                    self.choices.update({plain(name): set(listed) for name in re.findall(r"--([\w-]+)", names)})


def printed_by(commands, folder, environment):
    """Their exit codes and outputs, as many at a time as there are processors."""
    def run(command):
        result = subprocess.run(command, cwd=folder, env=environment, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return result.returncode, result.stdout

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(run, commands))


def other_programs():
    return {name: Program(" ".join(f"--{option}" for option in options.split())) for name, options in OTHERS.items()}


def known_programs(build, environment):
    """By name; a subcommand is a program of its own."""
    paths = [path for folder in ("bin", "diagnosis") for path in (build / folder).iterdir()] + [build / "tests/faulty_ranks"]
    asked = [[path, *subcommand] for path in paths for subcommand in [(), *((name,) for name in SUBCOMMANDS.get(path.name, ()))]]
    programs = {}
    for (path, *subcommand), (code, text) in zip(asked, printed_by([[*command, "--help"] for command in asked], None, environment)):
        if code != 0:
            raise SystemExit(f"{path} {' '.join(subcommand)} --help: exit code {code}, expected 0:\n{text}")
        programs[" ".join([path.name, *subcommand])] = Program(text)
    for path in [*ROOT.glob("tools/*"), *ROOT.glob("tests/*.sh"), *ROOT.glob("bench/*.sh"), *ROOT.glob("bench/peers/*"), *ROOT.glob("slurm/*.sh"),
                 *ROOT.glob("tests/gpu.py")]:
        if path.is_file() and path.suffix in ("", ".py", ".sh"):
            text = path.read_text()
            if path.parent.name == "peers":
                text += "".join(source.read_text() for source in path.parent.glob("ddp_peers/*.py"))
            programs[str(path.relative_to(ROOT))] = Program(text)
    programs["bench/run.sh"].options |= programs["bench"].options  # which it hands on
    programs["bench/run.sh"].choices = programs["bench"].choices
    programs["tests/gpu.sh"].options |= programs["tests/gpu.py"].options
    for script in (ROOT / "slurm").glob("0*.sh"):
        programs[f"slurm/{script.name}"] = programs[script.stem]
    return {**programs, **other_programs()}


def commands_of(text):
    """The lines of a page's blocks that may be commands, and what stands between backticks; each with whether another test runs it."""
    lines, info, prose, block = iter(re.sub(r"\\\n\s*", "", text).splitlines()), None, [], []
    for line in lines:
        fence = re.match(r"\s*```(\S*)", line)
        if fence and info is None:
            info, block = fence[1] or "sh", []
        elif fence:
            shown = [line for line in block if PROMPT.match(line)]
            if info not in NO_COMMANDS:
                for line in shown or (block if info == "sh" else []):
                    command = PROMPT.sub("", line, count=1)
                    yield command, info in ("console", "shell-session") and not command.startswith(NOT_HERE)
            info = None
        elif info is not None:
            block.append(line)
        elif line.startswith("    ") and "-->" not in line:
            yield line.strip(), False
        else:
            prose.append(line)
    for _, code in re.findall(r"(?<!`)(`+)([^`]+?)\1(?!`)", "\n".join(prose)):
        yield " ".join(code.replace(r"\|", "|").split()), False


def words_of(command):
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:  # a quote that is an apostrophe
        return command.split()


def segments_of(command):
    """The simple commands of a shell's line, as words."""
    segment = []
    for word in words_of(re.sub(r"\s# .*|\s\d?>&?\s*\S+", "", command)):
        if re.fullmatch(r"[;|&()<>]+", word) or word in ("do", "done", "then"):
            yield segment
            segment = []
        else:
            segment.append(word)
    yield segment


def with_option(option, command):
    return command if option in command else [command[0], option, *command[1:]]


class Check:
    """What is wrong with the commands of pages. programs: by name, see known_programs()."""

    def __init__(self, build, programs):
        self.build, self.programs = build, programs
        self.ours = [program for name, program in self.programs.items() if name not in OTHERS]
        self.targets = "\n".join((ROOT / name).read_text() for name in ("CMakeLists.txt", "simulator/CMakeLists.txt"))
        self.presets = (ROOT / "CMakePresets.json").read_text()
        self.sources = "\n".join(path.read_text() for folder in ("common", "bench", "tests", "tools", "slurm", "container", "cmake") for path in
                                 (ROOT / folder).rglob("*") if path.suffix in (".cpp", ".hpp", ".py", ".sh", ".def", ".txt", ".cmake"))
        # A text over several lines, as it is printed; a value may stand for a word at its end or beginning.
        self.texts = re.sub(r"\s+", " ", re.sub(r'"\s*\n\s*f?"', "", self.sources))
        self.complaints = []
        self.whole = {}  # commands of ours that no other test runs, as words, and where they stand

    def complain(self, page, command, what):
        self.complaints.append(f"{page}: {command}: {what}")

    def program_named(self, word, words_before):
        """The key of the program that a word starts, if it does."""
        name, before = re.sub(r"^\./", "", word), words_before[-1] if words_before else ""
        is_value = before.startswith("--") and before not in ("--", *FLAGS) and "=" not in before
        if name in self.programs and ("/" in name or not is_value):
            return name
        place, _, name = word.rpartition("/")
        return name if place.endswith(("build/bin", "build/tests", "build/diagnosis", ".venv/bin")) and name in self.programs else None

    def check_option(self, page, command, name, value, programs, whose):
        if not any(plain(name) in program.options or name.startswith("benchmark_") for program in programs):
            self.complain(page, command, f"--{name} is no option of {whose}")
        # Where one program takes anything, anything may be meant.
        choices = [program.choices.get(plain(name)) for program in programs if plain(name) in program.options]
        if value and choices and None not in choices:
            for one in re.split(r"[,|]", value):
                if not PLACEHOLDER.search(one) and not any(one in listed for listed in choices):
                    self.complain(page, command, f"--{name} {one}: expected one of {', '.join(sorted(set().union(*choices)))}")

    def check_segment(self, page, command, words, is_run):
        current, start = None, 0
        for index, word in enumerate(words):
            before = words[:index]
            named = self.program_named(word, before)
            if named and before[-1:] != ["--program"]:
                current, start = named, index
                continue
            if current in SUBCOMMANDS and index == start + 1 and f"{current} {word}" in self.programs:
                current = f"{current} {word}"
                continue
            if current == "submit" and word == "--":  # a stage's options follow
                self.note(page, command, current, words[start + 1:], is_run)
                current, is_run = "03_ddp_spawn", True  # noted already
                continue
            option = OPTION.fullmatch(word)
            if not option:
                continue
            name, value = option[1], option[2]
            if value is None and index + 1 < len(words) and not words[index + 1].startswith("-"):
                value = words[index + 1]
            if value and (" " in value or value.startswith("--")):
                self.check_command(page, value, is_run)
            if current:
                self.check_option(page, command, name, value, [self.programs[current]], current)
            elif OPTION.fullmatch(words[0]) or words[0].isdigit():  # without its program
                self.check_option(page, command, name, value, self.ours if words[0].isdigit() else list(self.programs.values()), "any program")
        self.note(page, command, current, words[start + 1:], is_run)

    def note(self, page, command, program, arguments, is_run):
        if program and program not in OTHERS and not is_run:
            self.whole.setdefault((program, *arguments), (page, command))

    def check_command(self, page, command, is_run):
        for path in REPOSITORY_PATH.findall(command):
            if "NAME" not in path and not (ROOT / path.rstrip(".,")).exists() and not (re.match(r"0\d", path) and "." not in path):
                self.complain(page, command, f"there is no {path}")
        if SAID.match(command):
            for words in WORDS.findall(command):
                if not any(part in self.texts for part in (words, words.rpartition(" ")[0], words.partition(" ")[2])):
                    self.complain(page, command, f"nothing here says: {words}")
            return
        for segment in segments_of(command):
            if segment:
                self.check_segment(page, command, segment, is_run)

    def check_page(self, path):
        page, text = path.relative_to(ROOT), path.read_text()
        for name in PROGRAM.findall(text):
            if "NAME" not in name and not any((self.build / folder / name).exists() for folder in ("bin", "tests", "diagnosis")):
                self.complain(page, name, "no such program is built")
        for target in re.findall(r"--target ([\w ]+)", text):
            for name in target.split():
                if name not in self.programs and not re.search(rf"\b{name}\b", self.targets):
                    self.complain(page, f"--target {name}", "no such target")
        for preset in re.findall(r"--preset ([\w-]+)", text):
            if f'"name": "{preset}"' not in self.presets:
                self.complain(page, f"--preset {preset}", "no such preset")
        for variable in re.findall(r"\bDDP_[A-Z_]+\b", text):
            if not re.search(rf"\b{variable}\b", self.sources + self.targets):
                self.complain(page, variable, "nothing here knows it")
        count = 0
        for command, is_run in commands_of(text):
            count += 1
            self.check_command(page, command, is_run or page.parent.name == "exercises")
        return count

    def without_work(self, program, arguments):
        """The command that only reads its command line, or None if this is not a whole one."""
        if not arguments or any(PLACEHOLDER.search(word) for word in arguments):
            return None
        if STAGE.fullmatch(program):
            is_whole = arguments[0].isdigit() and arguments[1:2] and arguments[1].isdigit() or "--total-epochs" in map(plain, arguments)
            folder = next(folder for folder in ("bin", "tests", "diagnosis") if (self.build / folder / program).exists())
            return with_option("--dump-env", [self.build / folder / program, *arguments]) if is_whole else None
        path = self.build / "bin" / program.split()[0]
        if program in ("bench", "bench/run.sh"):
            if "srun" in arguments:  # wants an allocation
                return None
            # Nothing is measured, so there is nothing to write.
            kept = [word for before, word in zip(["", *arguments], arguments)
                    if word not in ("--json", "--html", "--no-samples") and (before not in ("--json", "--html") or word.startswith("-"))]
            return with_option("--dry-run", [self.build / "bin/bench", *kept])
        if program == "submit":
            return with_option("--dry-run", [path, *arguments])
        # MPI joins no other processes.
        mpi = ["mpirun", "-np", "2"] if re.search(r"--backends? mpi", " ".join(arguments)) else []
        if program == "bench_micro":
            return [*mpi, path, *arguments, "--benchmark_list_tests"]
        if program == "collectives" or program == "bench predict" and len(arguments) > 1:
            return [*mpi, path, *arguments]
        return None


def main():
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve()
    with copy_of_checkout() as (folder, environment):
        environment["CUDA_VISIBLE_DEVICES"] = ""  # no test but `gpu` sees one
        check = Check(build, known_programs(build, environment))
        count = sum(map(check.check_page, [*pages(), *sorted(ROOT.glob("docs/exercises/[0-9]*.md"))]))
        wholes = [(place, check.without_work(program, arguments)) for (program, *arguments), place in check.whole.items()]
        wholes = [(place, reading) for place, reading in wholes if reading]
        results = printed_by([reading for _, reading in wholes], folder, environment)
        for ((page, command), reading), (code, text) in zip(wholes, results):
            if code != 0:
                check.complain(page, command, f"exit code {code} of {shlex.join(map(str, reading))}: {text[-500:]}")
    complaints = dict.fromkeys(check.complaints)  # a page may say it twice
    for complaint in complaints:
        print(complaint)
    print(f"{count} commands and words, {len(results)} run without work, {len(complaints)} complaints")
    return 1 if complaints or not count or not results else 0


if __name__ == "__main__":
    sys.exit(main())
