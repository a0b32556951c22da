#!/usr/bin/env python3
"""Checks the order of the folders of common/: a file includes only from its own folder and from folders below it, and no circles.

Also: every folder of common/ is in the order, stage.hpp is all that a stage's main.cpp includes of common/, and what has a room of its own
is named nowhere else: backends, launchers, the device's streams, and whether there is a process group.
"""
import re
import sys
from pathlib import Path

# From the bottom to the top: a folder may use the folders before it.
ORDER = ["base", "meet", "device", "backends", "launch", "data", "model", "fused", "compiled", "parallel", "training"]
# Built without LibTorch, so that programs without it start fast and the thread sanitizer sees all of shm.
WITHOUT_TORCH = ["common/base", "common/meet", "common/device", "common/launch", "common/backends/shm", "common/backends/mpi", "bench", "tools", "simulator"]
# They run on a process group, or are libraries of their own (ddp_meet_torch, ddp_device_torch).
BUT = ("tools/collectives.cpp", "bench/micro/", "bench/peers/", "common/meet/store.", "common/meet/board.", "common/device/device.")


# What nobody outside of its room names: pattern, room, and how often the rest of the code may.
ROOMS = [
    (r'"(shm|gloo|mpi|nccl)"', "common/backends/", 0),
    (r'"(spawn|torchrun|mpirun|openmpi|srun|slurm|htcondor|environment|flags)"', "common/meet/", 0),
    (r"VirtualGuardImpl", "common/device/", 0),
    (r"\b\w*group_? [!=]= nullptr", "common/parallel/default_group.", 0),
]


def named_elsewhere(root):
    sources = [*(root / "common").rglob("*.[ch]pp"), *(root / "bench").rglob("*.[ch]pp"), *(root / "tools").glob("*.cpp")]
    for pattern, room, most in ROOMS:
        names = [source.relative_to(root).as_posix() for source in sorted(sources) for line in source.read_text().splitlines()
                 if re.search(pattern, line)]
        if len(found := [name for name in names if not name.startswith(room)]) > most:
            yield f"{pattern}: got {len(found)} lines outside {room} ({', '.join(sorted(set(found)))}), expected at most {most}"


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
    yield from circles(root)
    yield from named_elsewhere(root)
    for source in sorted(root.glob("0*/*.cpp")):
        for header in included(source):
            if header.startswith("common/") and header != "common/stage.hpp":
                yield f"{source.relative_to(root)}: includes {header}, expected common/stage.hpp alone"
    for folder in WITHOUT_TORCH:
        for source in sorted((root / folder).rglob("*.[ch]pp")):
            for header in included(source):
                if re.match(r"(torch|ATen|c10)/", header) and not source.relative_to(root).as_posix().startswith(BUT):
                    yield f"{source.relative_to(root)}: includes {header}, expected no LibTorch in {folder}"


def circles(root):
    """A header and its source are one node: a circle of nodes cannot be understood one by one."""
    uses = {}
    for source in (root / "common").rglob("*.[ch]pp"):
        node = source.relative_to(root).with_suffix("").as_posix()
        uses.setdefault(node, set()).update(header.removesuffix(".hpp") for header in included(source) if header.startswith("common/"))
    for node in sorted(uses):
        seen, ahead = set(), uses[node] - {node}
        while ahead - seen:
            seen |= ahead
            ahead = {used for other in seen for used in uses.get(other, ())}
        if node in seen:
            yield f"{node}: includes itself through {', '.join(sorted(other for other in uses[node] & seen if other != node))}"


if __name__ == "__main__":
    found = list(violations(Path(__file__).resolve().parents[2]))
    print(*found, f"include_order: {len(found)} violations", sep="\n")
    sys.exit(bool(found))
