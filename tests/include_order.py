#!/usr/bin/env python3
"""Checks the order of the folders of common/: a file includes only from its own folder and from folders below it.

usage: include_order.py [ROOT]
Also: every folder of common/ is in the order, and stage.hpp is all that a stage's main.cpp includes of common/.
"""
import re
import sys
from pathlib import Path

# From the bottom to the top: a folder may use the folders on earlier lines.
ORDERS = {"common": ["base", "launch", "backends", "data", "fused", "parallel", "training"]}
# Built without LibTorch, so that programs without it start fast and the thread sanitizer sees all of shm.
WITHOUT_TORCH = ["common/base", "common/launch", "common/backends/shm", "common/backends/mpi", "bench", "tools", "simulator"]
BUT = ("tools/collectives.cpp", "bench/micro/", "bench/peers/")  # they run on a process group


def included(source):
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', source.read_text(), re.MULTILINE)


def violations(root):
    common = root / "common"
    for folder in sorted(path.name for path in common.iterdir() if path.is_dir()):
        if folder not in ORDERS["common"]:
            yield f"common/{folder}: is not in the order, expected one of {', '.join(ORDERS['common'])}"
    for tree, order in ORDERS.items():
        for source in sorted((root / tree).rglob("*.[ch]pp")):
            name = source.relative_to(root).as_posix()
            own = name.split("/")[1]
            for header in included(source):
                top, _, rest = header.partition("/")
                if tree == "common" and top in ("bench", "tools", "tests"):
                    yield f"{name}: includes {header}, expected nothing from outside common/"
                if top != tree or own not in order:
                    continue
                other = rest.split("/")[0]
                if other not in order or order.index(other) > order.index(own):
                    yield f"{name}: includes {header}, expected a folder below {own}: {', '.join(order[:order.index(own)])}"
    for source in sorted(root.glob("0*/*.cpp")):
        for header in included(source):
            if header.startswith("common/") and header != "common/stage.hpp":
                yield f"{source.relative_to(root)}: includes {header}, expected common/stage.hpp alone"
    for folder in WITHOUT_TORCH:
        for source in sorted((root / folder).rglob("*.[ch]pp")):
            for header in included(source):
                if re.match(r"(torch|ATen|c10)/", header) and not source.relative_to(root).as_posix().startswith(BUT):
                    yield f"{source.relative_to(root)}: includes {header}, expected no LibTorch in {folder}"


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = list(violations(root))
    for line in found:
        print(line, file=sys.stderr)
    print(f"include_order: {len(found)} violations")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
