#!/usr/bin/env python3
"""Keeps what the stages promise about each other: small diffs, and READMEs that show exactly those.

usage: stage_diffs.py [--check]

Without --check, rewrites the diff blocks in the stages' READMEs: the text after each marker `<!-- hunk N -->` is the N-th
hunk between the stage and the one it builds on. With --check, changes nothing and fails if a README is out of date, a diff is over
its budget, a stage is too long, or one holds an #ifdef. Either way fails if a code block in docs/ after a marker
`<!-- excerpt FILE -->` does not stand in that file line by line.
"""

import difflib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_LINES = 110
# from, to, budget in changed lines that are neither blank nor comment
DIFFS = [
    ("01_single_gpu/main.cpp", "02_data_parallel/main.cpp", 12),
    ("02_data_parallel/main.cpp", "03_ddp_spawn/main.cpp", 40),
    ("03_ddp_spawn/main.cpp", "04_ddp_launcher/main.cpp", 16),
    ("04_ddp_launcher/main.cpp", "05_multinode/main.cpp", 12),
]
TOTAL_BUDGET = 80  # from the first stage to the last
EXCERPT = re.compile(r"<!-- excerpt (\S+) -->\n```cpp\n(.*?)```\n", re.DOTALL)
HUNK = re.compile(r"(<!-- hunk (\d+) -->\n)(?:```diff\n.*?```\n)?", re.DOTALL)


def lines_of(path):
    return (ROOT / path).read_text().splitlines()


def changed_code_lines(before, after):
    def is_code(line):
        text = line[1:].strip()
        return text and not text.startswith("//")

    diff = list(difflib.unified_diff(lines_of(before), lines_of(after), n=0, lineterm=""))[2:]
    return sum(1 for line in diff if line[0] in "+-" and is_code(line))


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


def update_readme(before, after):
    """Returns the README's text and what it should be, and complaints."""
    path = (ROOT / after).parent / "README.md"
    text = path.read_text()
    expected_hunks = hunks(before, after)
    used = [int(number) for _, number in HUNK.findall(text)]
    complaints = []
    if sorted(used) != list(range(1, len(expected_hunks) + 1)):
        complaints.append(f"{path.relative_to(ROOT)}: shows hunks {used}, expected each of 1 to {len(expected_hunks)} once")
    def block(match):
        index = int(match.group(2)) - 1
        if index >= len(expected_hunks):
            return match.group(0)
        return f"{match.group(1)}```diff\n{expected_hunks[index]}\n```\n"

    return path, text, HUNK.sub(block, text), complaints


def wrong_excerpts():
    complaints = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        for path, code in EXCERPT.findall(page.read_text()):
            # Indentation aside: a page shows code without that of what surrounds it.
            source = "\n".join(line.strip() for line in lines_of(path))
            if "\n".join(line.strip() for line in code.splitlines()) not in source:
                complaints.append(f"{page.relative_to(ROOT)}: shows what is not in {path}: {code.splitlines()[0]} ...")
    return complaints


def main(check):
    complaints = wrong_excerpts()
    total = 0
    for before, after, budget in DIFFS:
        count = changed_code_lines(before, after)
        total += count
        print(f"{before} -> {after}: {count} changed lines of code, budget {budget}")
        if count > budget:
            complaints.append(f"{after}: {count} changed lines, expected at most {budget}")
        path, text, expected, readme_complaints = update_readme(before, after)
        complaints += readme_complaints
        if text != expected:
            if check:
                complaints.append(f"{path.relative_to(ROOT)}: its diffs are not those of the code; run tools/stage_diffs.py")
            else:
                path.write_text(expected)
    if total > TOTAL_BUDGET:
        complaints.append(f"all stages together: {total} changed lines, expected at most {TOTAL_BUDGET}")
    for source in sorted(ROOT.glob("0?_*/*.cpp")):
        lines = [line for line in source.read_text().splitlines() if line.strip()]
        name = source.relative_to(ROOT)
        if len(lines) > MAX_LINES:
            complaints.append(f"{name}: {len(lines)} non-blank lines, expected at most {MAX_LINES}")
        complaints += [f"{name}: {line.strip()}" for line in lines if re.match(r"\s*#\s*(if|el|endif)", line)]
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
