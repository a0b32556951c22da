#!/usr/bin/env -S PYTHONSAFEPATH= python3
"""Keeps the pages true: runs the commands of their console blocks, compares what they print, follows links, looks options up in --help.

    tools/pages.py [PAGE...]           fails where a command fails, prints something else, or a link leads nowhere

Every command runs with the PATH of a new shell, on CPUs, in a folder that looks like this checkout. In a ```console block the lines after `$ ` are
commands, and the lines below a command are what it prints, in any order. A command without lines below it only has to succeed. So does a
command in the last cell of a table of the course (COURSE). Commands that must not run stand in a ```sh block, in the course only those of
NOT_HERE. Wildcards:

    ...           a line of its own: any lines; within a line: any text
    12.3 ms       any number: times, rates and memory, which have one of the units in UNIT
    0123456789abcdef (16 digits)  any digest, since another kind of processor adds in another order
    1.40743       a number that differs by one in a thousand at most, or by one in the last digit
"""

import argparse
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import command_line  # noqa: F401, for the output

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT_S = 300
SHELL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COURSE = re.compile(r"^(README|0\d_\w+/README|docs/questions)\.md$")
NOT_HERE = {  # of the course's commands: what runs them, or their like
    "./bench/run.sh": "tests/run.sh begins with the same set-up, and tests/bench runs bench",
    ".venv/bin/torchrun --nnodes=2 --nproc_per_node=8": "tests/clusters, on two nodes",
    "sbatch ": "tests/slurm, on two nodes", "apt-get ": "as tools/setup.sh", "cmake -": "tests/packaging, with a prefix as a centre has it"}
CELL = re.compile(r"\| `((?:build/bin|\.venv/bin|tools)/[^`]+)` \|$", re.MULTILINE)
CONSOLE = re.compile(r"(?<=```console\n).*?(?=```\n)", re.DOTALL)
NUMBER = re.compile(r"\b[0-9a-f]{16}\b|\d+(?:\.\d+)?(?:e[-+]?\d+)?")
for _number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:  # so that run() ends what it has started
    if signal.getsignal(_number) != signal.SIG_IGN:  # of nohup
        signal.signal(_number, lambda number, _: sys.exit(128 + number))
UNIT = re.compile(r" ?(?:ms|us|s|min|samples/s|[MG]B/s|MiB)\b")


def pages():
    """Every page, the checkout's first."""
    return [page for pattern in ("*.md", "*/README.md", "bench/peers/README.md", "docs/**/*.md") for page in sorted(ROOT.glob(pattern))
            if not page.relative_to(ROOT).parts[0].startswith((".", "build"))]


def table_rows(name):
    """Rows of a table of text such as stages.list, in which two blanks or more stand between cells."""
    return [re.split(" {2,}", line) for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]


def same_number(expected, got, after):
    if len(expected) == 16 and "." not in expected:
        return len(got) == 16
    if UNIT.match(after):
        return True
    if "." not in expected:
        return expected == got
    unit = 10 ** -len(expected.partition(".")[2].partition("e")[0])
    return abs(float(expected) - float(got)) <= max(1e-3 * abs(float(expected)), 1.001 * unit)


def same_line(expected, got):
    """True if a line is equal to a page's line, apart from wildcards and the number of blanks."""
    expected, got = " ".join(expected.split()), " ".join(got.split())
    pattern = f"({NUMBER.pattern})".join(".*".join(map(re.escape, text.split("..."))) for text in NUMBER.split(expected))
    match = re.fullmatch(pattern, got)
    return match is not None and all(same_number(number[0], value, expected[number.end():])
                                     for number, value in zip(NUMBER.finditer(expected), match.groups()))


def differences(expected, got):
    """Lines of a page that the command did not print, and the other way round. @param expected lines; empty: no comparison"""
    left, missing = [line for line in got if line.strip()], []
    for line in (line for line in expected if line.strip() not in ("", "...")):
        found = next((other for other in left if same_line(line, other)), None)
        if found is None:
            missing.append(f"not printed: {line}")
        else:
            left.remove(found)
    return missing + [f"not on the page: {line}" for line in left if expected and "..." not in expected]


def joined(block):
    return re.sub(r"\\\n\s*", "", block)


def commands(block):
    """Commands of a console block, each with the lines below it."""
    result = []
    for line in joined(block).splitlines():
        if line.startswith("$ "):
            result.append((line[2:], []))
        elif result:
            result[-1][1].append(line)
    return result


def run(script, folder, environment, timeout_s=TIMEOUT_S):
    """Runs a script of bash, and leaves no process behind. @return its exit code and its output"""
    # PYTHONPATH may lead .venv's Python to packages of another one.
    environment = {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    # A session of its own can be killed as a whole. A pipe would wait for processes in the background.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return code, output.read()


@contextlib.contextmanager
def checkout():
    """A folder to run a page's commands in, so that nothing is left behind, and the environment for them."""
    with tempfile.TemporaryDirectory(prefix="ddp-pages-") as name:
        folder = pathlib.Path(name)
        (folder / "build").mkdir()
        for path in [*ROOT.iterdir(), *(ROOT / "build").iterdir()]:
            if path.name == ".venv" or not path.name.startswith((".", "build")) and ".safetensors" not in path.name:
                (folder / path.relative_to(ROOT)).symlink_to(path)
        yield folder, dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="",
                           TMPDIR=name, PATH=SHELL_PATH)


def run_pages(chosen):
    """Complaints about the outputs on these pages. A command on several pages runs once."""
    complaints, printed = [], {}
    with checkout() as (folder, environment):
        for page in chosen:
            text, name = page.read_text(), page.relative_to(ROOT)
            found = [each for block in CONSOLE.findall(text) for each in commands(block)]
            if COURSE.match(f"{name}"):
                found += [(command, []) for command in CELL.findall(text)]
                complaints += [f"{name}: {command}: expected it in a ```console block, or what runs it in NOT_HERE"
                               for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for command in joined(block).splitlines()
                               if not command.startswith(tuple(NOT_HERE))]
            for command, expected in found:
                if command not in printed:
                    printed[command] = run(command.replace("CUDA_VISIBLE_DEVICES=$node ", ""), folder, environment)
                code, output = printed[command]
                wrong = [f"exit code {code}:\n{output[-2000:]}"] if code else differences(expected, output.splitlines())
                print(f"{'FAILED' if wrong else 'ok    '} {name}: {command}", flush=True)
                complaints += [f"{name}: {command}: {complaint}" for complaint in wrong]
    return complaints


def anchors(page):
    """Anchors that GitHub makes of headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)}


def wrong_links(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https://)([^)]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{page.relative_to(ROOT)}: {link}: there is no such file"
        elif anchor and anchor not in anchors(target):
            yield f"{page.relative_to(ROOT)}: {link}: there is no such heading"


def unknown_options(page, helps):
    """Options that the page gives to a program and its --help lacks. @param helps text of --help by program, filled here"""
    for program, words in re.findall(r"\b((?:build/bin|tools)/[\w-]+)\b(?!\.py)([^`|;&\n]*(?:\\\\\n[^`|;&\n]*)*)", page.read_text()):
        own = re.split(r" -- |   |'", words)[0]  # the rest is for another program, or a comment
        options = set(re.findall(r"(?<=\s)--(?!benchmark)[a-z][\w-]*", own))
        if options and (ROOT / program).is_file():
            if program not in helps:
                helps[program] = subprocess.run([ROOT / program, "--help"], capture_output=True, text=True, check=True).stdout.replace("_", "-")
            yield from (f"{page.relative_to(ROOT)}: {program} {option}: there is no such option" for option in sorted(options)
                        if not re.search(rf"(?<![\w-]){option.replace('_', '-')}\b(?!-)", helps[program]))


def rewrite(update, tool, description, arguments=None, other_complaints=list):
    """The main() of a tool that writes blocks of the pages. @param update gives a page's text as it should be, and complaints"""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a page is out of date")
    check = parser.parse_args(arguments).check
    complaints = other_complaints()
    for page in pages():
        text = page.read_text()
        expected, page_complaints = update(page, text)
        complaints += page_complaints
        if text != expected and check:
            complaints.append(f"{page.relative_to(ROOT)}: out of date; run {tool}")
        elif text != expected:
            page.write_text(expected)
    print(*complaints, sep="\n", end="\n" if complaints else "", file=sys.stderr)
    return 1 if complaints else 0


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=pathlib.Path, metavar="PAGE", help="default: all")
    chosen, helps = [page.resolve() for page in parser.parse_args(arguments).pages] or pages(), {}
    complaints = [complaint for page in chosen for complaint in (*wrong_links(page), *unknown_options(page, helps))]
    # tests/docs/exercises_test.py runs the commands of the exercises.
    complaints += run_pages([page for page in chosen if page.parent.name != "exercises"])
    print(*complaints, sep="\n", end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
