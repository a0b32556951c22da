#!/usr/bin/env python3
"""Checks the order of the folders of common/: a file includes only from its own folder and from folders below it.

Also: every folder of common/ is in the order, and stage.hpp is all that a stage's main.cpp includes of common/.
"""
import re
import sys
from pathlib import Path

# From the bottom to the top: a folder may use the folders before it.
ORDER = ["base", "launch", "backends", "data", "fused", "parallel", "training"]
# Built without LibTorch, so that programs without it start fast and the thread sanitizer sees all of shm.
WITHOUT_TORCH = ["common/base", "common/launch", "common/backends/shm", "common/backends/mpi", "bench", "tools", "simulator"]
BUT = ("tools/collectives.cpp", "bench/micro/", "bench/peers/")  # they run on a process group


def included(source):
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', source.read_text(), re.MULTILINE)


def violations(root):
    for source in sorted((root / "common").glob("*/**/*.[ch]pp")):
        name = source.relative_to(root).as_posix()
        own = name.split("/")[1]
        below = ORDER[:ORDER.index(own) + 1] if own in ORDER else []
        for header in included(source):
            top, _, rest = header.partition("/")
            if top in ("bench", "tools", "tests") or top == "common" and rest.split("/")[0] not in below:
                yield f"{name}: includes {header}, expected of common/ only {', '.join(below)}"
    for source in sorted(root.glob("0*/*.cpp")):
        for header in included(source):
            if header.startswith("common/") and header != "common/stage.hpp":
                yield f"{source.relative_to(root)}: includes {header}, expected common/stage.hpp alone"
    for folder in WITHOUT_TORCH:
        for source in sorted((root / folder).rglob("*.[ch]pp")):
            for header in included(source):
                if re.match(r"(torch|ATen|c10)/", header) and not source.relative_to(root).as_posix().startswith(BUT):
                    yield f"{source.relative_to(root)}: includes {header}, expected no LibTorch in {folder}"


if __name__ == "__main__":
    found = list(violations(Path(__file__).resolve().parent.parent))
    print(*found, f"include_order: {len(found)} violations", sep="\n")
    sys.exit(bool(found))
