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

from drawing import DARK, LIGHT, MONO, Drawing

PHASES = {"data": "d", "forward": "F", "backward": "B", "communication": "~", "optimizer": "o"}
WAITING = "communication"
PHASE_LANE = 1  # of a trace; 0 has the steps, and what follows the collectives

COLUMNS, LABEL_COLUMNS = 100, 16

WIDTH, TOP, LEFT, RIGHT = 760, 8, 62, 8
HEADING, PHASE_HEIGHT, RANK_GAP, RUN_GAP = 24, 18, 8, 30
MESSAGE_HEIGHT, MOST_TRAVEL_HEIGHT = 13, 65  # of a message, and of all that are on their way at a time
LABEL_WIDTH = 46
LEAST_WIDTH = 0.25  # of a phase, to be drawn by itself
LEAST_DRAWN = 0.4
# Of a phase: what it is filled with, its line, its opacity.
FILLS = {"data": ("muted", "none", 0.6), "forward": ("blue", "none", 0.5), "backward": ("blue", "none", 1), WAITING: ("none", "line", 1),
         "optimizer": ("muted", "none", 1)}
MESSAGE_COLOUR = "orange"


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


def travel_lanes(messages):
    """How many lanes messages need in a picture, and the height of one; few have a lane each, where there is room for what is said of them."""
    if len(messages) * MESSAGE_HEIGHT <= MOST_TRAVEL_HEIGHT:
        return len(messages), MESSAGE_HEIGHT
    lanes = len({event["tid"] for event in messages})
    return lanes, min(MESSAGE_HEIGHT, MOST_TRAVEL_HEIGHT / lanes)


def rank_height(messages):
    lanes, height = travel_lanes(messages)
    return PHASE_HEIGHT + 2 + lanes * height + RANK_GAP


def run_height(run):
    return HEADING + sum(rank_height(run.drawn().messages(rank)) for rank in range(run.ranks)) + RUN_GAP


def draw_messages(drawing, messages, y, begin, scale):
    lanes, height = travel_lanes(messages)
    tids = sorted({event["tid"] for event in messages})
    for index, event in enumerate(messages):
        left, width = LEFT + scale * (event["ts"] - begin), max(scale * event["dur"], LEAST_DRAWN)
        top = y + (index if lanes == len(messages) else tids.index(event["tid"])) * height
        drawing.box(round(left, 1), round(top, 1), round(width, 1), round(height - min(1, height / 4), 1), MESSAGE_COLOUR, "none", radius=0)
        is_inside = width >= LABEL_WIDTH
        if height == MESSAGE_HEIGHT and (is_inside or lanes == len(messages)):
            drawing.text(round(left + 4 if is_inside else left + width + 4, 1), round(top + 10, 1), size_text(event["args"]["bytes"]),
                         "on_bar" if is_inside else "muted", 11)


def draw_run(drawing, run, y, scale):
    step = run.drawn()
    drawing.text(4, y + 12, run.title(), size=14, family=MONO, weight="600")
    y += HEADING
    for rank in range(run.ranks):
        drawing.text(4, y + 14, f"rank {rank}", size=13)
        for event in visible(step.phases[rank], LEAST_WIDTH / scale):
            fill, line, opacity = FILLS[event["name"]]
            drawing.box(round(LEFT + scale * (event["ts"] - step.begin()), 1), y, round(max(scale * event["dur"], LEAST_DRAWN), 1), PHASE_HEIGHT,
                        fill, line, opacity, radius=0)
        draw_messages(drawing, step.messages(rank), y + PHASE_HEIGHT + 2, step.begin(), scale)
        y += rank_height(step.messages(rank))
    drawing.text(LEFT, y + 8, run.summary(), size=13)


def picture(runs, colours):
    """The SVG as text."""
    longest = max(run.drawn().duration() for run in runs)
    scale = (WIDTH - LEFT - RIGHT) / longest
    bottom = TOP + sum(map(run_height, runs))
    title = "What the ranks did in one step, and what travelled meanwhile: " + "; ".join(run.title() for run in runs)
    drawing = Drawing(title, bottom + 54, colours, WIDTH)
    for number in range(int(longest / tick_us(longest)) + 1):
        at = number * tick_us(longest)
        x = round(LEFT + scale * at, 1)
        drawing.path(f"M{x:g} {TOP} V{bottom:g}", "line", 1)
        drawing.text(x, bottom + 16, f"{at / 1e3:g}", "muted", 12, anchor="middle")
    drawing.text(4, bottom + 16, "ms", "muted", 12)
    y = TOP
    for run in runs:
        draw_run(drawing, run, y, scale)
        y += run_height(run)
    x = LEFT
    for name, (fill, line, opacity) in [*FILLS.items(), ("a message on its way", (MESSAGE_COLOUR, "none", 1))]:
        drawing.box(x, bottom + 30, 14, 14, fill, line, opacity, radius=0)
        label = "waits" if name == WAITING else name
        drawing.text(x + 20, bottom + 42, label, size=13)
        x += 36 + 7 * len(label)
    return str(drawing)


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
