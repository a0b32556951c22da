#!/usr/bin/env python3
"""Holds the size of the repository: lines of code, words and pages of Markdown, files, seconds of the suite.

    tests/size.py               counts, and fails where a number is over its limit
    tests/size.py --seconds N   says how long the suite took beside its limit; fails nothing, since machines differ

The limits are in size_limits.json. A change that needs a higher one takes something else away, or says in its commit what is worth it.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMITS = pathlib.Path("tests/size_limits.json")
CODE = re.compile(r"\.(cpp|hpp|c|h|py|sh|js|css|html|cmake|in)$|(^|/)CMakeLists\.txt$")
CHAPTER = re.compile(r"0\d_\w+/README\.md$")


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True).stdout


def is_code(name, text):
    return bool(CODE.search(name)) or (not pathlib.PurePath(name).suffix and text.startswith("#!"))


def count(texts):
    """@param texts by name, of all files. @return the numbers that have limits"""
    sizes = {"product_lines": 0, "test_lines": 0, "markdown_words": 0, "readme_lines": 0, "chapter_lines": 0, "docs_pages": 0, "files": len(texts)}
    for name, text in texts.items():
        if is_code(name, text):
            side = "test_lines" if name.startswith("tests/") else "product_lines"
            sizes[side] += sum(1 for line in text.splitlines() if line.strip())
        elif name.endswith(".md"):
            sizes["markdown_words"] += len(text.split())
            sizes["docs_pages"] += name.startswith("docs/")
            lines = "readme_lines" if name == "README.md" else "chapter_lines" if CHAPTER.match(name) else None
            if lines:
                sizes[lines] = max(sizes[lines], len(text.splitlines()))
    return sizes


def over(sizes, limits):
    return [f"{name}: got {size}, expected at most {limits[name]}" for name, size in sizes.items() if size > limits[name]]


def self_test():
    sizes = count({"a.cpp": "x\n\n  \ny\n", "tool": "#!/bin/sh\n", "tests/b.py": "z\n", "README.md": "one two\nthree", "data": "no\n",
                   "01_a/README.md": "\n", "02_b/README.md": "\n\n", "docs/a/b.md": ""})
    assert sizes == {"product_lines": 3, "test_lines": 1, "markdown_words": 3, "readme_lines": 2, "chapter_lines": 2, "docs_pages": 1, "files": 8}, sizes
    assert not over(sizes, sizes) and len(over(sizes, {**sizes, "files": 4})) == 1


def main():
    limits = json.loads((ROOT / LIMITS).read_text())
    if sys.argv[1:2] == ["--seconds"]:
        print(f"suite: {float(sys.argv[2]):.0f} s, of at most {limits['suite_seconds']} on two cores")
        return 0
    self_test()
    present = [name for name in git("ls-files", "-z").split("\0") if (ROOT / name).is_file()]
    sizes = count({name: (ROOT / name).read_text(errors="replace") for name in present})
    wrong = over(sizes, limits)
    for name, size in sizes.items():
        print(f"{name:<16}{size:>7} of at most {limits[name]}")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
