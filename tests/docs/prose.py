#!/usr/bin/env python3
"""Words that make pages hard to read, lines over 100 columns, and paragraphs over five lines.

    tests/docs/prose.py [PAGE...]      default: all Markdown
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from pages import pages  # noqa: E402

BANNED = re.compile(r"\b(that of|those of|of which|of whom|whose|the one|another one|likewise|the former|the latter|anew)\b", re.IGNORECASE)
NOT_PROSE = re.compile(r"```.*?```|<!--.*?-->|^(?:    |\|)[^\n]*", re.DOTALL | re.MULTILINE)


def complaints(text):
    prose = NOT_PROSE.sub(lambda match: re.sub(r"[^\n]+", "|", match[0]), text)  # as many lines as before
    for number, line in enumerate(prose.splitlines(), 1):
        if len(line) > 100 and "](" not in line:
            yield f"{number}: {len(line)} columns, expected at most 100"
    for match in BANNED.finditer(re.sub(r"\s", " ", prose)):
        yield f"{prose.count(chr(10), 0, match.start()) + 1}: {match[0]}: repeat the noun"
    for match in re.finditer(r"(?:^(?![#|<\n])[^\n]+\n){6,}", re.sub(r"^( *[-*] | *\d+\. )", r"\n\1", prose, flags=re.MULTILINE), re.MULTILINE):
        yield f"a paragraph of {match[0].count(chr(10))} lines, expected at most 5: {match[0].split(chr(10))[0]}"


if __name__ == "__main__":
    assert len(list(complaints(f"{'a ' * 60}\n\nthe color of\nwhich\n\n{'b' * 9}\n" + "b\n" * 5 + "\n```\nwhose\n```\n"))) == 3
    chosen = [pathlib.Path(page) for page in sys.argv[1:]] or pages()
    found = [f"{page}:{complaint}" for page in chosen for complaint in complaints(page.read_text())]
    print(*found, sep="\n")
    sys.exit(bool(found))
