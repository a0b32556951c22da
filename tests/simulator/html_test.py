#!/usr/bin/env python3
"""Checks the page of sim_* --html in a browser: sliders show what the program prints for the same options, and time can be played.

usage: html_test.py FOLDER_OF_PROGRAMS CHROMIUM [unittest options]
"""

import html
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))

import page_test  # noqa: E402

LOOK = """<script>{
const lane = () => byId("lanes"), list = (query, get) => Array.from(document.querySelectorAll(query), get);
const look = () => ({
  command: byId("command").textContent, numbers: list("#numbers b", (one) => one.textContent.replaceAll(",", "")), text: byId("numbers").innerText,
  ranks: list(".rank", (one) => one.title), overflow: list("html", (one) => one.scrollWidth - one.clientWidth)[0],
  width: lane().clientWidth, left: lane().offsetLeft, legend: list("#legend span", (one) => one.textContent),
  bars: list("i", (one) => [one.title, one.offsetLeft, one.offsetWidth, one.offsetHeight, one.textContent,
    one.parentNode.parentNode.matches(":last-child")]),
  colors: new Set(list("#legend span", (one) => one.style.borderColor)).size,
  mark: list(".mark", (one) => one.offsetLeft)[0], axis: list(".axis span", (one) => [parseFloat(one.textContent.replace(",", "")), one.offsetLeft]),
});
const seen = [look()];
for (const [name, value] of MOVES) {
  const slider = document.querySelector(`[name="${name}"]`);
  slider.value = choices[name].indexOf(value);
  slider.dispatchEvent(new Event("input"));
  seen.push(look());
}
byId("fit").click();
seen.push(look());
byId("play").click();
const [played] = lane().getAnimations(), { left, top } = lane().getBoundingClientRect();
const shown = [0.1, 0.5, 0.9].map((part) => {
  played.pause();
  played.currentTime = part * 7000;
  return [part - 0.04, part + 0.04].map((place) => document.elementFromPoint(left + place * lane().clientWidth, top + 15).tagName === "I");
});
const paper = getComputedStyle(document.body).backgroundColor;
add(document.body, "pre", { id: "said", textContent: JSON.stringify({ seen, shown, wrong, paper }) });
}</script>"""


def show(program, *moves, options=()):
    """@return what the browser shows after each move of a slider, and how the program ended"""
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run([f"{PROGRAMS}/{program}", "--html", f"{folder}/page.html"], capture_output=True, text=True)
        page = pathlib.Path(folder, "page.html").read_text()
    look = LOOK.replace("MOVES", json.dumps(moves))
    copy = look.join(page.replace("<head>", page_test.WATCH, 1).rsplit("</body>", 1))
    said = json.loads(html.unescape(re.search(r'<pre id="said">(.*?)</pre>', page_test.browse(copy, "--dump-dom", *options), re.DOTALL)[1]))
    assert said["wrong"] == [] and len(page) < 400_000, (said["wrong"], len(page))
    return said, ran


class Html(unittest.TestCase):
    def test_sliders_show_what_the_program_prints_for_the_command_above_them(self):
        for program, moves in {
            "sim_buckets": [("bucket_mib", 1e-6), ("bucket_mib", 1000), ("--alpha-us", 30), ("--nprocs", 8), ("--beta-us-per-mib", 1000)],
            "sim_ring_all_reduce": [("--nprocs", 3)], "sim_late_rank": [("--alpha-us", 1)], "sim_after_backward": [("--nprocs", 4)],
        }.items():
            for seen in show(program, *moves)[0]["seen"]:
                name, *options = seen["command"].split()
                self.assertEqual(name, program)
                ran = subprocess.run([f"{PROGRAMS}/{name}", *options], capture_output=True, text=True, check=True)
                rows = re.findall(r"^\d+ +([\d.]+) +([\d.]+) +(\d+) +(\d+)$", ran.stdout, re.MULTILINE)
                self.assertEqual(seen["numbers"], [max(column, key=float) for column in zip(*rows)], seen["command"])
                self.assertEqual(seen["ranks"], [f"rank {rank}" for rank in range(len(rows))])
        self.assertEqual(options, ["--alpha-us", "10", "--beta-us-per-mib", "100", "--nprocs", "4"])

    def test_bars_stand_at_their_times_at_a_scale_that_stays_until_a_run_is_longer(self):
        said, _ = show("sim_buckets", ("bucket_mib", 1000), ("--beta-us-per-mib", 1000), ("--beta-us-per-mib", 10))
        scales = []
        for seen, end in zip(said["seen"], (2223.32, 2325.473, 4624.727, 4624.727, 2095.547), strict=True):
            scales.append(seen["width"] / end)
            for title, left, width, height, text, is_lower in seen["bars"]:
                kind, name, begin, until = re.fullmatch("(.*), (.*): (.*) to (.*) us", title).groups()
                self.assertAlmostEqual(left, float(begin) * scales[-1], delta=1)
                self.assertAlmostEqual(width, max(2, (float(until) - float(begin)) * scales[-1]), delta=1)
                self.assertEqual([height, text], [22, name if kind != "waiting" and width > 56 else ""])
                self.assertEqual(is_lower, kind == "communication")
            for us, left in [*seen["axis"], [2223.32, seen["mark"]]]:
                self.assertAlmostEqual(left, us * scales[-1], delta=1)
        self.assertEqual(said["seen"][0]["legend"], ["data", "forward", "backward", "optimizer", "waiting", "all_reduce"])
        self.assertEqual([said["seen"][0]["colors"], [us for us, _ in said["seen"][0]["axis"]]], [6, [0, 500, 1000, 1500]])
        self.assertEqual(said["shown"], 3 * [[True, False]])


if __name__ == "__main__":
    PROGRAMS, page_test.CHROMIUM = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
