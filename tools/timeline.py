#!/usr/bin/env python3
"""Draws what the ranks of a run did in one step, from traces that `--trace` wrote: several on one time axis.

Prints lanes of text, or with --svg writes two pictures, for light and for dark pages. Of each trace the step is drawn whose time is the median of its
steps; a step's time is that of its slowest rank. Below stand messages and bytes of a rank, and how long it waited (exposed communication): of each step
the mean over the ranks, and of these the median. With --table, prints these numbers as a table of Markdown instead.
"""

import argparse
import gzip
import json
import pathlib
import statistics
import sys

from pictures import DARK, LIGHT, MONO, text

PHASES = {"data": "d", "forward": "F", "backward": "B", "communication": "~", "optimizer": "o"}
WAITING = "communication"
PHASE_LANE = 1  # of a trace; 0 has the steps, and what follows the collectives

COLUMNS, LABEL_COLUMNS = 100, 16

WIDTH, LEFT, RIGHT = 760, 62, 8
HEADING, PHASE_HEIGHT, RANK_GAP, RUN_GAP = 24, 18, 8, 30
MESSAGE_HEIGHT, MOST_TRAVEL_HEIGHT = 13, 65  # of a message, and of all that are on their way at a time
LABEL_WIDTH = 46
LEAST_WIDTH = 0.25


class Refused(Exception):
    """What is wrong with a file, in one line."""


class Step:
    """What each rank did in a step; times in us."""

    def __init__(self):
        self.whole, self.phases, self.collectives = {}, {}, {}  # by rank: an event, events, events

    def begin(self):
        return min(event["ts"] for event in self.whole.values())

    def duration(self):
        return max(event["dur"] for event in self.whole.values())

    def waited(self):
        return statistics.mean(sum(event["dur"] for event in events if event["name"] == WAITING) for events in self.phases.values())

    def messages(self, rank):
        return self.collectives.get(rank, [])


class Run:
    """A trace."""

    def __init__(self, path):
        try:
            raw = path.read_bytes()
            document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
            about, events = document["otherData"], [event for event in document["traceEvents"] if event["ph"] == "X"]
            self.program, self.backend, self.ranks = about["program"], about["backend"], about["world_size"]
            steps = {}
            for event in sorted(events, key=lambda event: event["ts"]):
                step = steps.setdefault((event["args"]["epoch"], event["args"]["step"]), Step())
                if event["name"] == "step":
                    step.whole[event["pid"]] = event
                else:
                    lanes = step.phases if event["tid"] == PHASE_LANE else step.collectives
                    lanes.setdefault(event["pid"], []).append(event)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}, expected a file that --trace wrote") from None
        except (ValueError, EOFError, KeyError, TypeError, AttributeError) as error:
            raise Refused(f"{path}: {error!r}, expected a file that --trace wrote") from None
        self.steps = [step for step in steps.values() if set(step.whole) == set(step.phases) == set(range(self.ranks))]
        if not self.steps:
            raise Refused(f"{path}: no step of all {self.ranks} ranks, expected one at least")

    def title(self):
        return self.program + (f", {self.ranks} ranks over {self.backend}" if self.ranks > 1 else "")

    def drawn(self):
        return sorted(self.steps, key=Step.duration)[(len(self.steps) - 1) // 2]

    def numbers(self):
        """Of a step: messages and bytes of rank 0, ms that a rank waited, ms of the step."""
        messages = self.drawn().messages(0)
        return (len(messages), sum(event["args"]["bytes"] for event in messages),
                statistics.median(step.waited() for step in self.steps) / 1e3, statistics.median(map(Step.duration, self.steps)) / 1e3)

    def summary(self):
        messages, size, waited, step = self.numbers()
        return f"{messages} messages, {size:,} bytes; waits {waited:.2f} ms of {step:.2f} ms (medians of {len(self.steps)} steps)"


def table(runs):
    """The numbers of runs, in Markdown."""
    rows = ["| program | messages in a step | bytes | exposed communication | step |", "|---|---|---|---|---|"]
    for run in runs:
        messages, size, waited, step = run.numbers()
        rows.append(f"| `{run.program}` | {messages} | {size:,} | {waited:.2f} ms | {step:.2f} ms |")
    return "\n".join(rows) + "\n"


def covered(event, begin, end):
    return max(0, min(event["ts"] + event["dur"], end) - max(event["ts"], begin))


def text_lane(events, letter_of, origin, column_us):
    """A letter a column: of the event that takes the most of it, and of those the one that began first."""
    lane = ""
    for column in range(COLUMNS - LABEL_COLUMNS):
        begin = origin + column * column_us
        shares = [(covered(event, begin, begin + column_us), event) for event in events]
        share, event = max(shares, key=lambda pair: pair[0], default=(0, None))
        lane += letter_of(event) if share > 0 else " "
    return lane.rstrip()


def message_letter(event):
    bucket = event["args"]["bucket"]
    return "=" if bucket is None else str(bucket % 10)


def in_text(runs):
    """The lanes of runs, one below the other."""
    longest = max(run.drawn().duration() for run in runs)
    column_us = longest / (COLUMNS - LABEL_COLUMNS)
    lines = []
    for run in runs:
        step = run.drawn()
        lines.append(run.title())
        for rank in range(run.ranks):
            lines.append(f"{f'rank {rank} does':{LABEL_COLUMNS}}"
                         + text_lane(step.phases[rank], lambda event: PHASES[event["name"]], step.begin(), column_us))
            if step.messages(rank):
                lines.append(f"{'  on its way':{LABEL_COLUMNS}}" + text_lane(step.messages(rank), message_letter, step.begin(), column_us))
        lines += [run.summary(), ""]
    letters = ", ".join(f"{letter} {'waits for communication' if name == WAITING else name}" for name, letter in PHASES.items())
    return "\n".join([*lines, letters, f"= a message on its way, 0 to 9 a bucket's; a column is {column_us:.0f} us", ""])


def size_text(size):
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB" if size >= 1e3 else f"{size} B"


def tick_us(longest):
    """A round distance of ticks, 4 to 10 of which there are."""
    step = 1
    while longest / step > 10:
        step *= 2.5 if str(step).startswith("2") else 2
    return step


def visible(events, least_us):
    """The same without those that are too short to be seen, which the one before stands for."""
    result = []
    for event in events:
        if result and (event["dur"] < least_us or event["name"] == result[-1]["name"]):
            result[-1] = {**result[-1], "dur": event["ts"] + event["dur"] - result[-1]["ts"]}
        else:
            result.append(event)
    return result


def picture(runs, colours):
    """The SVG as text."""
    longest = max(run.drawn().duration() for run in runs)
    scale = (WIDTH - LEFT - RIGHT) / longest
    fills = {"data": (colours["muted"], 0.6), "forward": (colours["bars"][0], 0.5), "backward": (colours["bars"][0], 1),
             WAITING: ("none", 1), "optimizer": (colours["muted"], 1)}

    def rect(left_us, width_us, y, height, fill, opacity=1.0, stroke="none"):
        return (f'<rect x="{LEFT + scale * left_us:.1f}" y="{y:.1f}" width="{max(scale * width_us, 0.4):.1f}" height="{height:.1f}" '
                f'fill="{fill}" fill-opacity="{opacity:g}" stroke="{stroke}"/>')

    parts, y = [], 8
    for run in runs:
        step = run.drawn()
        parts.append(text(4, y + 12, run.title(), colours["text"], size=14, family=MONO, weight="600"))
        y += HEADING
        for rank in range(run.ranks):
            parts.append(text(4, y + 14, f"rank {rank}", colours["text"], size=13))
            for event in visible(step.phases[rank], LEAST_WIDTH / scale):
                fill, opacity = fills[event["name"]]
                parts.append(rect(event["ts"] - step.begin(), event["dur"], y, PHASE_HEIGHT, fill, opacity,
                                  colours["line"] if event["name"] == WAITING else "none"))
            y += PHASE_HEIGHT + 2
            messages = step.messages(rank)
            if messages:
                # Few have a lane each, where there is room for what is said of them.
                is_few = len(messages) * MESSAGE_HEIGHT <= MOST_TRAVEL_HEIGHT
                lanes = sorted({event["tid"] for event in messages}) if not is_few else range(len(messages))
                height = min(MESSAGE_HEIGHT, MOST_TRAVEL_HEIGHT / len(lanes))
                for index, event in enumerate(messages):
                    top = y + (index if is_few else lanes.index(event["tid"])) * height
                    begin = event["ts"] - step.begin()
                    parts.append(rect(begin, event["dur"], top, height - min(1, height / 4), colours["bars"][1]))
                    is_inside = scale * event["dur"] >= LABEL_WIDTH
                    if height == MESSAGE_HEIGHT and (is_inside or is_few):
                        x = LEFT + scale * begin + 4 if is_inside else LEFT + scale * (begin + event["dur"]) + 4
                        parts.append(text(round(x, 1), round(top + 10, 1), size_text(event["args"]["bytes"]),
                                          colours["on_bar" if is_inside else "muted"], size=11))
                y += height * len(lanes)
            y += RANK_GAP
        parts.append(text(LEFT, y + 8, run.summary(), colours["text"], size=13))
        y += RUN_GAP
    bottom = y
    axis = []
    for number in range(int(longest / tick_us(longest)) + 1):
        at = number * tick_us(longest)
        x = LEFT + scale * at
        axis.append(f'<path d="M{x:.1f} 8 V{bottom}" stroke="{colours["line"]}"/>')
        axis.append(text(round(x, 1), bottom + 16, f"{at / 1e3:g}", colours["muted"], size=12, anchor="middle"))
    axis.append(text(4, bottom + 16, "ms", colours["muted"], size=12))
    x = LEFT
    for name, (fill, opacity) in [*fills.items(), ("message", (colours["bars"][1], 1))]:
        stroke = colours["line"] if name == WAITING else "none"
        parts.append(f'<rect x="{x}" y="{bottom + 30}" width="14" height="14" fill="{fill}" fill-opacity="{opacity:g}" stroke="{stroke}"/>')
        name = {"message": "a message on its way", WAITING: "waits"}.get(name, name)
        parts.append(text(x + 20, bottom + 42, name, colours["text"], size=13))
        x += 36 + 7 * len(name)
    title = "What the ranks did in one step, and what travelled meanwhile: " + "; ".join(run.title() for run in runs)
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 54}" width="{WIDTH}" height="{bottom + 54}" '
                      f'role="img" aria-label="{title}">', f"<title>{title}</title>", *axis, *parts, "</svg>"]) + "\n"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=pathlib.Path, metavar="TRACE", help="a file that --trace wrote, as it is or compressed by gzip")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--svg", nargs=2, type=pathlib.Path, metavar=("LIGHT", "DARK"), help="write pictures to these files")
    how.add_argument("--table", action="store_true", help="print a table of the numbers")
    options = parser.parse_args(arguments)
    try:
        runs = [Run(path) for path in options.traces]
        if options.svg:
            for path, colours in zip(options.svg, (LIGHT, DARK)):
                path.write_text(picture(runs, colours))
        else:
            print(table(runs) if options.table else in_text(runs), end="")
    except Refused as error:
        print(f"timeline.py: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"timeline.py: error: --svg: cannot write {error.filename} ({error.strerror}), expected a writable file", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
