#!/usr/bin/env python3
"""Holds the size of the repository: lines of code, words and pages of Markdown, files, seconds of the suite.

    tests/repository/size.py               counts, and fails where a number is over its limit
    tests/repository/size.py --seconds N   says how long the suite took beside its limit; fails nothing, since machines differ

The limits are in tests/size_limits.json. A change that needs a higher one takes something else away, or says in its commit what is worth it.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMITS = pathlib.Path("tests/size_limits.json")
CODE = re.compile(r"\.(cpp|hpp|c|h|py|sh|js|css|html|cmake|in)$|(^|/)CMakeLists\.txt$")
CHAPTER = re.compile(r"0\d_\w+/README\.md$")


def count(texts):
    """@param texts by name, of all files. @return the numbers that have limits"""
    sizes = {"product_lines": 0, "test_lines": 0, "markdown_words": 0, "readme_lines": 0, "chapter_lines": 0, "docs_pages": 0, "files": len(texts)}
    for name, text in texts.items():
        if CODE.search(name) or not pathlib.PurePath(name).suffix and text.startswith("#!"):
            side = "test_lines" if name.startswith("tests/") else "product_lines"
            sizes[side] += sum(1 for line in text.splitlines() if line.strip())
        elif name.endswith(".md"):
            sizes["markdown_words"] += len(text.split())
            sizes["docs_pages"] += name.startswith("docs/")
            lines = "readme_lines" if name == "README.md" else "chapter_lines" if CHAPTER.match(name) else None
            if lines:
                sizes[lines] = max(sizes[lines], len(text.splitlines()))
    return sizes


def main():
    limits = json.loads((ROOT / LIMITS).read_text())
    if sys.argv[1:2] == ["--seconds"]:
        print(f"suite: {float(sys.argv[2]):.0f} s, of at most {limits['suite_seconds']} on two cores")
        return 0
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], check=True, capture_output=True, text=True).stdout.split("\0")
    sizes = count({name: (ROOT / name).read_text(errors="replace") for name in listed if (ROOT / name).is_file()})
    # Less than half is a mistake in the counting, or a limit to lower.
    wrong = [f"{name}: got {size}, expected at most {limits[name]}, and more than half of it" for name, size in sizes.items()
             if not limits[name] / 2 < size <= limits[name]]
    for name, size in sizes.items():
        print(f"{name:<16}{size:>7} of at most {limits[name]}")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
