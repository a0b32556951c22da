"""What the pictures of the pages are drawn with: GitHub's colours, fonts that every system has, texts, boxes and arrows, as an SVG."""

import math
from xml.sax.saxutils import escape, quoteattr

# Colours of GitHub's own pages.
LIGHT = {"text": "#1f2328", "muted": "#59636e", "box": "#f6f8fa", "line": "#d1d9e0",
         "blue": "#0969da", "orange": "#bc4c00", "on_bar": "#ffffff"}
DARK = {"text": "#f0f6fc", "muted": "#9198a1", "box": "#151b23", "line": "#3d444d",
        "blue": "#4493f8", "orange": "#db6d28", "on_bar": "#0d1117"}
SANS = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', 'Liberation Mono', monospace"

# Narrow, so that a telephone shows the letters at two thirds of their size.
WIDTH = 560


class Drawing:
    """An SVG that grows from back to front."""

    def __init__(self, title, height, colours, width=WIDTH):
        self.colours = colours
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" height="{height:g}" role="img" '
                      f'aria-label={quoteattr(title)}>', f"<title>{escape(title)}</title>"]

    def __str__(self):
        return "\n".join([*self.parts, "</svg>"]) + "\n"

    def text(self, x, y, content, colour="text", size=15, family=SANS, anchor="start", weight="normal"):
        self.parts.append(f'<text x="{x:g}" y="{y:g}" fill="{self.colours.get(colour, colour)}" font-size="{size}" font-family="{family}" '
                          f'text-anchor="{anchor}" font-weight="{weight}">{escape(content)}</text>')

    def path(self, d, colour="muted", width=1.5, dashed=False):
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self.parts.append(f'<path d="{d}" fill="none" stroke="{self.colours.get(colour, colour)}" stroke-width="{width}"{dash}/>')

    def box(self, x, y, width, height, fill="box", line="line", opacity=1, radius=6):
        fill, line = (self.colours.get(colour, colour) for colour in (fill, line))
        see_through = f' fill-opacity="{opacity}"' if opacity != 1 else ""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" fill="{fill}"{see_through} '
                          f'stroke="{line}"/>')

    def label_box(self, x, y, width, height, label, colour, full=False):
        """A box with its text in the middle; full: of the colour itself, else of a tint of it."""
        self.box(x, y, width, height, colour, colour, 1 if full else 0.15, 4)
        self.text(x + width / 2, y + height / 2 + 5, label, "on_bar" if full else "text", 14, anchor="middle")

    def arrow(self, points, colour="muted"):
        """Along straight lines from the first point to the last, where its head is."""
        (before_x, before_y), (x, y) = points[-2:]
        angle = math.atan2(y - before_y, x - before_x)
        head = [(x - 7 * math.cos(angle + side), y - 7 * math.sin(angle + side)) for side in (0.6, -0.6)]
        corners = " L".join(f"{corner_x:g} {corner_y:g}" for corner_x, corner_y in points)
        self.path(f"M{corners} M{head[0][0]:.1f} {head[0][1]:.1f} L{x:g} {y:g} L{head[1][0]:.1f} {head[1][1]:.1f}", colour)

    def bars(self, x, y, width, height, values, colour):
        """Small bars up and down from a line in the middle; a value is -1 to 1."""
        middle, step = y + height / 2, width / len(values)
        for index, value in enumerate(values):
            size = abs(value) * height / 2
            self.parts.append(f'<rect x="{x + step * (index + 0.15):.1f}" y="{middle - max(value, 0) * height / 2:.1f}" width="{step * 0.7:.1f}" '
                              f'height="{size:.1f}" fill="{self.colours.get(colour, colour)}"/>')
        self.path(f"M{x:g} {middle:g} h{width:g}", width=1)
