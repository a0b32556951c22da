#!/usr/bin/env python3
"""packaging/reframe/ddp_cpp.py under ReFrame on this machine. tests/slurm/slurm_test.py runs it on two nodes.

usage: reframe_test.py BIN_DIR
"""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from clusters import stages  # noqa: E402
from support.scratch import Scratch  # noqa: E402

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
# Writes FILE of `--metrics FILE`, and if it has several ranks, with the fault that the last argument names.
PROGRAM = """#!/bin/bash
fault=${{@: -1}}
while [[ $1 != --metrics ]]; do shift; done
cp '{good}' "$2"
[[ $2 == ranks-* ]] || exit 0
sed -i "s/100/${{2//[!0-9]/}}00/" "$2"
case $fault in
nan) sed -i '1s/1.5/NaN/' "$2" ;;
null) sed -i '1s/1.5/null/' "$2" ;;
differs) sed -i '1s/1.5/1.49996/' "$2" ;;  # 1.3e-5 of the mean over two ranks
half) sed -i '$d' "$2" ;;
one-rank) sed -i '/"rank": 1/d' "$2" ;;
alone) sed -i '$s/: 2/: 1/' "$2" ;;
unchecked) sed -i 's/true/false/' "$2" ;;
missing) rm "$2" ;;
weights) exit 1 ;;
slow) sed -i 's/00}}/0}}/' "$2" ;;
esac
"""


class Reframe(Scratch):
    def test_stages(self):
        found = stages.reframe(self, "2_cores", ("--quiet", "--no-communication"), "-S", f"folder={BIN}")
        self.assertEqual(found["--quiet"]["result"], "pass", found)
        self.assertRegex(found["--no-communication"]["fail_reason"], "^sanity error: loss of step 1: got ")

    def test_faults(self):
        folder = self.folder / "the programs"
        for name, ranks in (("01_single_gpu", 1), ("03_ddp_spawn", 2)):
            rows = [{"rank": rank, "step": step, "loss": 1.5} for step in range(20) for rank in range(ranks)]
            summary = {"world_size": ranks, "communicates": True, "samples_per_second": 100}
            good = self.write(f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in (*rows, {"summary": summary})))
            self.script(folder / name, PROGRAM.format(good=good))
        of_scale = "{2_cores: {samples_per_second: [200, -0.1, 0.1]}}"
        references = self.write("references.yaml", "DdpCpp: {$index: [$partition, scale], 'generic:default': " + of_scale + "}")
        expected = {
            "none": "None", "nan": "sanity error: loss of step 0: got nan", "differs": "sanity error: loss of step 0: got 1.49998, expected 1.5,",
            "null": "type error", "half": r"key error: \(19, 1\)", "one-rank": r"key error: \(0, 1\)", "missing": "file not found error",
            "alone": "sanity error: ranks with equal weights: got 1, expected 2", "unchecked": "sanity error: ranks .* got no communication",
            "weights": "sanity error: the job ended early", "slow": "performance error: failed to meet reference.*: samples_per_second=20"}
        found = stages.reframe(self, "2_cores", expected, "-S", f"folder={folder}", "-S", "repetitions=3", "-S", f"references={references}")
        found |= stages.reframe(self, "2_cores", ("never",), "-S", f"folder={folder}", "-S", "repetitions=0")
        for fault, reason in (expected | {"never": "sanity error: repetitions: got 0"}).items():
            self.assertRegex(str(found[fault]["fail_reason"]), reason, fault)
            phase = None if fault == "none" else "performance" if fault == "slow" else "sanity"
            self.assertEqual(found[fault]["fail_phase"], phase, fault)
        values = {name.rpartition(":")[2]: value[0] for name, value in found["none"]["perfvalues"].items()}
        self.assertEqual(values, {"samples_per_second": 200, "efficiency": 1, "efficiency_low": 0.5, "efficiency_high": 1.5})


if __name__ == "__main__":
    unittest.main()
