#!/usr/bin/env python3
"""Keeps results/: reports of bench and sweeps of bench_micro as they wrote them, what each must tell, and the pages that show them.

A file's name is what its contents say, `<models>_<machine>_<date>.json[.gz]`: a report's models, or of a sweep the suite and its backends; the
processor, the number of cores, and the GPUs if any computed. Without an argument, rewrites the index in results/README.md and the tables on
pages: below a marker `<!-- table N of ARGUMENTS -->` stands the Nth table that `tools/performance_table.py ARGUMENTS` prints, from 1 on; below
`<!-- columns of ARGUMENTS -->` a table that has the columns of the first one, row by row, beside others that are typed. With
--check, changes nothing and fails if a file breaks a rule, a page is out of date, or shows a table without naming its file. With --add, takes
files in: each gets its name, loses the paths of its machine, is compressed, replaces an older one of the same models and machine wherever that
is named, and the pages and the picture follow.
"""

import argparse
import contextlib
import gzip
import io
import json
import pathlib
import re
import shlex
import subprocess
import sys

import performance_table
from stage_diffs import ROOT, pages

# What a result must tell; a governor is null where the kernel has none, as in most virtual machines.
FACTS = ("date", "cpu_model", "cores", "cpu_governor", "os", "libtorch", "git_commit", "command", "repetitions")
MAY_BE_NULL = ("cpu_governor",)
# A path that another machine has too says nothing of this one.
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?!usr/|proc/|sys/|dev/)[\w.-]+(?:/[\w.-]+)+")
TABLE = re.compile(r"(<!-- table (\d) of (.+?) -->\n)(.*?)(?=\n\n|\Z)", re.DOTALL)
COLUMNS = re.compile(r"(<!-- columns of (.+?) -->\n)((?:\|.*\n)+)")
INDEX = re.compile(r"(?<=<!-- index -->\n)(.*?)(?=<!-- end of index -->)", re.DOTALL)


def facts_of(document):
    """What the file says of itself, by the names in FACTS; a sweep has all of it in Google Benchmark's context."""
    context, scaling = document["context"], document.get("ddp_scaling")
    if scaling is None:
        repetitions = max((entry.get("repetitions", 0) for entry in document["benchmarks"]), default=None)
        return {"cores": context.get("num_cpus"), "repetitions": repetitions, **context}
    return {"date": context["date"], **scaling["machine"], **scaling["software"], **scaling["settings"]}


def name_of(document):
    """@throws KeyError naming what the document does not say"""
    facts, scaling = facts_of(document), document.get("ddp_scaling")
    if scaling is None:
        parts = [entry["name"].split("/") for entry in document["benchmarks"]]
        what = list(dict.fromkeys([part[0] for part in parts] + [part[1] for part in parts if part[0] == "all_reduce"]))
        gpus = []
    else:
        what = list(dict.fromkeys(run["model"] for run in scaling["runs"]))
        gpus = scaling["machine"]["gpus"] if any(run["device"] == "cuda" for run in scaling["runs"]) else []
    machine = " ".join([facts["cpu_model"], str(facts["cores"]), *dict.fromkeys(gpus), *([str(len(gpus))] if gpus else [])])
    return f"{'-'.join(what)}_{re.sub('[^a-z0-9]+', '-', machine.lower()).strip('-')}_{facts['date'][:10]}"


def strings_in(value):
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in strings_in(part)]


def without_paths(value):
    """The same document; of a path of its machine the last name is left."""
    if isinstance(value, str):
        return MACHINE_PATH.sub(lambda path: path.group(0).rsplit("/", 1)[1], value)
    if isinstance(value, dict):
        return {key: without_paths(part) for key, part in value.items()}
    return [without_paths(part) for part in value] if isinstance(value, list) else value


def in_history(commit):
    """Whether it is one of HEAD's commits; true where that cannot be known, in a copy without git or without all commits."""
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        return True
    return git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


def broken_rules(document, stem):
    """What is wrong with a result of that name, in words."""
    try:
        facts = facts_of(document)
    except (KeyError, TypeError, AttributeError) as error:
        return [f"{error!r}, expected a report of bench or a sweep of bench_micro"]
    broken = [f"does not say its {fact}" for fact in FACTS if fact not in facts or facts[fact] is None and fact not in MAY_BE_NULL]
    broken += [f"names a path of its machine, {path.group(0)}" for path in map(MACHINE_PATH.search, strings_in(document)) if path]
    commit = str(facts.get("git_commit"))
    if "git_commit" in facts and not (re.fullmatch("[0-9a-f]{40}", commit) and in_history(commit)):
        broken.append(f"is of commit {commit}, expected one in this history without further changes")
    scaling = document.get("ddp_scaling", {})
    if scaling.get("partial"):
        broken.append("is partial, expected a report that was not broken off")
    broken += [f"{run['name']} failed: {run['error']}" for run in scaling.get("runs", ()) if run["error"]]
    with contextlib.suppress(KeyError, TypeError):  # said above
        if stem != name_of(document):
            broken.append(f"has the name {stem}, expected {name_of(document)}")
    return broken


def files():
    return sorted(path for path in (ROOT / "results").iterdir() if path.name != "README.md")


def wrong_results():
    complaints = []
    for path in files():
        if not path.name.endswith((".json", ".json.gz")):
            complaints.append(f"{path.name}: expected a .json or .json.gz")
            continue
        try:
            broken = broken_rules(performance_table.load(path), path.name.split(".json")[0])
        except (OSError, ValueError) as error:
            broken = [f"{error}, expected JSON"]
        complaints += [f"{path.name}: {rule}" for rule in broken]
    return complaints


def index():
    rows = ["| file | taken | machine | software | repetitions | command | shown in |", "|---|---|---|---|---|---|---|"]
    for path in files():
        facts = facts_of(performance_table.load(path))
        shown = [page.relative_to(ROOT).as_posix() for page in pages() if path.name in page.read_text() and page.parent != path.parent]
        told = {fact: facts[fact] or "none" for fact in FACTS}
        machine = f"{told['cpu_model']}, {told['cores']} cores, governor {told['cpu_governor']}"
        links = ", ".join(f"[{page}](../{page})" for page in shown)
        rows.append(f"| [{path.name}]({path.name}) | {told['date'][:10]} | {machine} | LibTorch {told['libtorch']}, commit "
                    f"{told['git_commit'][:12]} | {told['repetitions']} | `{told['command']}` | {links} |")
    return "\n".join(rows) + "\n"


def table(number, arguments):
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        performance_table.main([str(ROOT / word) if word.startswith("results/") else word for word in shlex.split(arguments)])
    return written.getvalue().strip().split("\n\n")[number - 1]


def with_columns(typed, printed):
    """The typed table with the numbers of the printed one. @throws ValueError unless it has the same rows, and its columns among others"""
    (head, _, *rows), (columns, _, *lines) = ([[cell.strip() for cell in row.strip().strip("|").split("|")] for row in text.splitlines()]
                                              for text in (printed, typed))
    if not set(head) <= set(columns) or [row[0] for row in rows] != [line[0] for line in lines]:
        raise ValueError(f"expected the columns {', '.join(head)} and the rows {', '.join(row[0] for row in rows)}")
    for line, row in zip(lines, rows):
        for column, value in zip(head, row):
            line[columns.index(column)] = value
    return "\n".join(["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def update_page(page):
    """Its text, what it should be, and complaints."""
    text, name = page.read_text(), page.relative_to(ROOT)
    complaints = []

    def has_files(match, arguments):
        for file in re.findall(r"results/(\S+)", arguments):
            if not re.search(rf"\]\([./]*results/{re.escape(file)}\)", text):
                complaints.append(f"{name}: {match.group(1).strip()}: no link to results/{file}, expected one for who reads the table")
            if not (ROOT / "results" / file).is_file():
                complaints.append(f"{name}: {match.group(1).strip()}: there is no results/{file}")
                return False
        return True

    def rendered(match):
        return match.group(1) + table(int(match.group(2)), match.group(3)) if has_files(match, match.group(3)) else match.group(0)

    def filled(match):
        try:
            return match.group(1) + with_columns(match.group(3), table(1, match.group(2))) if has_files(match, match.group(2)) else match.group(0)
        except ValueError as error:
            complaints.append(f"{name}: {match.group(1).strip()}: {error}")
            return match.group(0)

    complaints += [f"{name}: {marker.group(0)}: no such marker" for marker in re.finditer(r"^<!-- (?:table|columns) .*", text, re.MULTILINE)
                   if not TABLE.match(text, marker.start()) and not COLUMNS.match(text, marker.start())]
    expected = COLUMNS.sub(filled, TABLE.sub(rendered, text))
    if name == pathlib.Path("results/README.md"):
        expected = INDEX.sub(lambda _: index(), expected)
    return text, expected, complaints


def update_pages(check):
    complaints = []
    for page in pages():
        text, expected, page_complaints = update_page(page)
        complaints += page_complaints
        if text != expected and check:
            complaints.append(f"{page.relative_to(ROOT)}: not what results/ gives; run tools/results.py")
        elif text != expected:
            page.write_text(expected)
    return complaints


def add(path):
    document = without_paths(performance_table.load(path))
    try:
        stem = name_of(document)
    except (KeyError, TypeError) as error:
        return [f"{path}: {error!r} is not told, expected a report of bench or a sweep of bench_micro"]
    if broken := broken_rules(document, stem):
        return [f"{path}: {rule}" for rule in broken]
    new = ROOT / "results" / f"{stem}.json.gz"
    older = [file for file in files() if file.name.rsplit("_", 1)[0] == stem.rsplit("_", 1)[0]]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    for old in older:
        for source in (ROOT / name for name in tracked if name.endswith((".md", ".py")) and (ROOT / name).exists()):
            text = source.read_text()
            if old.name in text:
                source.write_text(text.replace(old.name, new.name))
        old.unlink()
    new.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
    print(f"{new.relative_to(ROOT)}{' instead of ' + ', '.join(old.name for old in older) if older else ''}")
    return []


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a file or a page is not as it should be")
    parser.add_argument("--add", nargs="+", type=pathlib.Path, default=[], metavar="FILE", help="reports and sweeps to take in")
    options = parser.parse_args(arguments)
    complaints = [complaint for path in options.add for complaint in add(path)]
    if not complaints:
        complaints = wrong_results() or update_pages(options.check)
        if options.add:  # it reads the new name
            subprocess.run([sys.executable, ROOT / "tools/pictures.py"], check=True)
    for complaint in complaints:
        print(f"results.py: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
