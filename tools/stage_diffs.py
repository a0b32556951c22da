#!/usr/bin/env python3
"""Keeps what the stages promise about each other: short files, small diffs, and pages that show exactly those.

Without --check, rewrites the diffs that pages show: below a marker `<!-- hunk STAGE/FILE.cpp: TEXT -->` stands the hunk of that file,
against the one it builds on, that has TEXT in one of its changed lines. So a hunk stays under its heading wherever its lines move. A
stage's README shows each of its hunks once. With --check, changes nothing and fails if a page is out of date. Either way fails if a diff
is over its budget, an exercise's too, a stage is too long or holds a word that is none of its business, a code block after a marker
`<!-- excerpt FILE -->` does not stand in that file line by line, or a page has a comment that is no marker.
"""

import argparse
import difflib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_LINES = 70
# file, the file it builds on, budget in changed lines that are neither blank nor comment
DIFFS = [
    ("02_data_parallel/main.cpp", "01_single_gpu/main.cpp", 8),
    ("02_data_parallel/mirrored.cpp", "02_data_parallel/main.cpp", 7),
    ("03_ddp_spawn/main.cpp", "02_data_parallel/main.cpp", 20),
    ("03_ddp_spawn/by_hand.cpp", "03_ddp_spawn/main.cpp", 16),
    ("04_ddp_launcher/main.cpp", "03_ddp_spawn/main.cpp", 2),
    ("04_ddp_launcher/accelerated.cpp", "04_ddp_launcher/main.cpp", 25),
    ("05_multinode/main.cpp", "04_ddp_launcher/main.cpp", 2),
]
BUILDS_ON = {after: before for after, before, _ in DIFFS}
# An exercise that is written into a stage, and its solution: the rest of both stays that stage's.
EXERCISES = [
    ("docs/exercises/hook_per_parameter.cpp", "03_ddp_spawn/by_hand.cpp", 11),
    ("docs/exercises/hook_per_parameter_solution.cpp", "docs/exercises/hook_per_parameter.cpp", 14),
]
# Not the lesson: common/ does this without a word in the stage. by_hand.cpp writes out what DDP does, and may name them.
NOT_IN_A_STAGE = ("fused", "Phase", "accumulate", "no_sync", "completes_step", "leave_if")
MAY_NAME_THEM = "03_ddp_spawn/by_hand.cpp"
EXCERPT = re.compile(r"<!-- excerpt (\S+) -->\n```cpp\n(.*?)```\n", re.DOTALL)
HUNK = re.compile(r"(<!-- hunk (\S+\.cpp): (.+?) -->\n)(?:```diff\n.*?```\n)?", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
# What the comments of pages may begin with: here, in transcripts.py, in results.py.
MARKERS = {"hunk", "excerpt", "transcript", "transcripts", "end of transcripts", "quoted", "table", "columns", "index", "end of index"}


def lines_of(path):
    return (ROOT / path).read_text().splitlines()


def pages():
    """Every page of the repository; those with commands first, in the order in which they are read."""
    return [page for pattern in ("README.md", "*/README.md", "*/*/README.md", "docs/*.md") for page in sorted(ROOT.glob(pattern))]


def strange_comments(page, markers, own):
    """Complaints about comments of a page that are none of these markers, which begin with `own`, and do not begin as those of another script."""
    text = page.read_text()
    for marker in markers:
        text = marker.sub("", text)
    return [f"{page.relative_to(ROOT)}: {comment}: no such marker, or not what has to follow it" for comment in COMMENT.findall(text)
            if not re.match(rf"<!-- (?:{'|'.join(MARKERS - own)})\b", comment)]


def is_code(line):
    return bool(line.strip()) and not line.strip().startswith("//")


def code_lines(path):
    return sum(map(is_code, lines_of(path)))


def changed_code_lines(before, after):
    diff = list(difflib.unified_diff(lines_of(before), lines_of(after), n=0, lineterm=""))[2:]
    return sum(1 for line in diff if line[0] in "+-" and is_code(line[1:]))


def hunks(before, after):
    """The hunks with one line of context, without the file header: its comment is each stage's own."""
    def body(path):
        lines = lines_of(path)
        return lines[next(i for i, line in enumerate(lines) if line.startswith("#include")):]

    result = []
    for line in list(difflib.unified_diff(body(before), body(after), n=1, lineterm=""))[2:]:
        if line.startswith("@@"):
            result.append([])
        else:
            result[-1].append(line.rstrip())
    return ["\n".join(hunk) for hunk in result]


def hunks_with(text, all_hunks):
    return [hunk for hunk in all_hunks if any(line[0] in "+-" and text in line for line in hunk.splitlines() if line)]


def update_page(path):
    """Returns the page's text, what it should be, and complaints."""
    page, name = path.read_text(), path.relative_to(ROOT)
    complaints = []
    shown = {after: [] for after in BUILDS_ON}

    def block(match):
        marker, after, text = match.groups()
        if after not in BUILDS_ON:
            complaints.append(f"{name}: {marker.strip()}: no such stage, expected one of {', '.join(BUILDS_ON)}")
            return match.group(0)
        found = hunks_with(text, hunks(BUILDS_ON[after], after))
        if len(found) != 1:
            complaints.append(f"{name}: {marker.strip()}: {len(found)} hunks change a line with that text, expected 1")
            return match.group(0)
        shown[after].append(found[0])
        return f"{marker}```diff\n{found[0]}\n```\n"

    expected = HUNK.sub(block, page)
    for after, before in BUILDS_ON.items():
        if path == (ROOT / after).parent / "README.md":
            complaints += [f"{name}: shows this hunk of {after} {shown[after].count(hunk)} times, expected once:\n{hunk}"
                           for hunk in hunks(before, after) if shown[after].count(hunk) != 1]
    return page, expected, complaints


def wrong_excerpts(page):
    complaints = []
    for path, code in EXCERPT.findall(page.read_text()):
        # Indentation aside: a page shows code without that of what surrounds it.
        source = "\n".join(line.strip() for line in lines_of(path))
        if "\n".join(line.strip() for line in code.splitlines()) not in source:
            complaints.append(f"{page.relative_to(ROOT)}: shows what is not in {path}: {code.splitlines()[0]} ...")
    return complaints


def wrong_stages():
    complaints = []
    for after, before, budget in DIFFS + EXERCISES:
        count = changed_code_lines(before, after)
        print(f"{before} -> {after}: {count} changed lines of code, budget {budget}")
        if count > budget:
            complaints.append(f"{after}: {count} changed lines, expected at most {budget}")
    for source in sorted(ROOT.glob("0?_*/*.cpp")):
        name = str(source.relative_to(ROOT))
        lines = [line for line in source.read_text().splitlines() if line.strip()]
        print(f"{name}: {len(lines)} non-blank lines, at most {MAX_LINES}")
        if len(lines) > MAX_LINES:
            complaints.append(f"{name}: {len(lines)} non-blank lines, expected at most {MAX_LINES}")
        for line in lines:
            if re.match(r"\s*#\s*(if|el|endif)", line):
                complaints.append(f"{name}: {line.strip()}: expected no conditional compilation in a stage")
            complaints += [f"{name}: {line.strip()}: expected no '{word}' in a stage"
                           for word in NOT_IN_A_STAGE if re.search(rf"\b{word}\b", line) and name != MAY_NAME_THEM]
    return complaints


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a page is out of date")
    check = parser.parse_args(arguments).check
    complaints = wrong_stages()
    for path in pages():
        page, expected, page_complaints = update_page(path)
        complaints += page_complaints + wrong_excerpts(path) + strange_comments(path, (HUNK, EXCERPT), {"hunk", "excerpt"})
        if page != expected and check:
            complaints.append(f"{path.relative_to(ROOT)}: its diffs are not those of the code; run tools/stage_diffs.py")
        elif page != expected:
            path.write_text(expected)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
