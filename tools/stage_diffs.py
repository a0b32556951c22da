#!/usr/bin/env -S PYTHONSAFEPATH= python3
"""Keeps what stages.list promises about the stages: short files, small diffs, and pages that show exactly those.

Below a marker `<!-- hunk STAGE/FILE.cpp: TEXT -->` stands the hunk of that file, against the one that it builds on, which has TEXT in one of
its changed lines. `<!-- hunk STAGE/FILE.cpp, new lines: TEXT | TEXT -->` shows of several hunks what is new, and the line after it. Below
`<!-- excerpt FILE -->` stands code of that file. Without --check, rewrites the hunks; with it, changes nothing and fails if a page is out of
date. Either way fails if a diff is over its budget, or a stage too long or has a preprocessor conditional.
"""

import difflib
import re
import sys

from pages import ROOT, rewrite, table_rows

MAX_LINES = 70
# file, a file whose text it changes, budget in changed lines that are neither blank nor comment.
DIFFS = [(f"{after}.cpp", f"{before}.cpp", int(budget) if budget else None) for after, changes, *_ in table_rows("stages.list") if changes != "-"
         for before, _, budget in (change.partition(":") for change in changes.split(","))]
BUILDS_ON = {after: before for after, before, _ in reversed(DIFFS)}  # the first counts
HUNK = re.compile(r"(<!-- hunk (\S+\.cpp)(, new lines)?: (.+?) -->\n)(?:```diff\n.*?```\n)?", re.DOTALL)
EXCERPT = re.compile(r"<!-- excerpt (\S+) -->\n```cpp\n(.*?)```\n", re.DOTALL)


def lines_of(path):
    return (ROOT / path).read_text().splitlines()


def changed_code_lines(after, before):
    diff = list(difflib.unified_diff(lines_of(before), lines_of(after), n=0, lineterm=""))[2:]
    return sum(1 for line in diff if line[0] in "+-" and line[1:].strip()[:2] not in ("", "//"))


def hunks(after):
    """The lines of each hunk, with one line of context, without the files' first comments."""
    def body(path):
        lines = lines_of(path)
        return lines[next(i for i, line in enumerate(lines) if line.startswith("#include")):]

    result = []
    for line in list(difflib.unified_diff(body(BUILDS_ON[after]), body(after), n=1, lineterm=""))[2:]:
        if line.startswith("@@"):
            result.append([])
        else:
            result[-1].append(line.rstrip())
    return result


def update_page(path, page):
    """What the page's text should be, and complaints."""
    name, complaints = path.relative_to(ROOT), []

    def block(match):
        marker, after, is_new, texts = match.groups()
        lines = []
        for text in texts.split(" | ") if is_new else [texts]:
            found = [hunk for hunk in hunks(after) if any(line[:1] in "+-" and text in line for line in hunk if line)]
            if len(found) != 1:
                complaints.append(f"{name}: {marker.strip()}: {len(found)} hunks change a line with {text}, expected 1")
                return match[0]
            hunk = found[0]
            if is_new:
                hunk = [line for line in hunk if line[:1] != "-" and line.strip("+ ")]
                hunk = hunk[next((i for i, line in enumerate(hunk) if line[0] == "+"), len(hunk)):]
            lines += hunk
        return "\n".join([f"{marker}```diff", *lines, "```\n"])

    expected = HUNK.sub(block, page)
    for source, code in EXCERPT.findall(page):
        # Indentation aside: a page shows code without that of what surrounds it.
        if "\n".join(map(str.strip, code.splitlines())) not in "\n".join(map(str.strip, lines_of(source))):
            complaints.append(f"{name}: shows what is not in {source}: {code.splitlines()[0]} ...")
    return expected, complaints


def wrong_stages():
    complaints = []
    for after, before, budget in DIFFS:
        count = changed_code_lines(after, before)
        print(f"{before} -> {after}: {count} changed lines of code, budget {budget or 'none'}")
        if budget is not None and count > budget:
            complaints.append(f"{after}: {count} changed lines, expected at most {budget}")
    for source in sorted(ROOT.glob("0?_*/*.cpp")):
        name = source.relative_to(ROOT).as_posix()
        lines = [line for line in lines_of(name) if line.strip()]
        print(f"{name}: {len(lines)} non-blank lines, at most {MAX_LINES}")
        if len(lines) > MAX_LINES:
            complaints.append(f"{name}: {len(lines)} non-blank lines, expected at most {MAX_LINES}")
        complaints += [f"{name}: {line.strip()}: expected no '{match[0].strip()}' in a stage" for line in lines
                       if (match := re.match(r"\s*#\s*(if|el|endif)", line))]
    return complaints


def main(arguments=None):
    return rewrite(update_page, "tools/stage_diffs.py", __doc__, arguments, wrong_stages)


if __name__ == "__main__":
    sys.exit(main())
