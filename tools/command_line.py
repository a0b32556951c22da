"""What the Python tools share: their packages, errors in one line, and paths."""

import argparse
import importlib
import os
import pathlib
import re
import sys

VENV = pathlib.Path(__file__).resolve().parent.parent / ".venv"


def one_line(text):
    """`text` on one line, with escapes for what a terminal would obey or hide."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in str(text))


def refuse(message, code=2):
    print(f"{pathlib.Path(sys.argv[0]).name}: error: {one_line(message)}", file=sys.stderr)
    sys.exit(code)


def require(*modules):
    """Starts the program again with the Python of .venv if this one lacks a module."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            if (VENV / "bin/python").exists() and not VENV.samefile(sys.prefix):
                os.execv(VENV / "bin/python", [VENV / "bin/python", *sys.argv])
            refuse(f"{sys.executable} has no {module}, expected the packages of requirements.txt (tools/setup.sh installs them)")


def local_path(text):
    """@return the path, with a leading ~ expanded, as the stages read theirs"""
    path = os.path.expanduser(text)
    if re.match(r"[a-z][a-z0-9+.-]*://|~|.*\$[a-z_{(]", path, re.IGNORECASE | re.DOTALL):
        raise argparse.ArgumentTypeError(f'got "{text}", expected a path of this machine, without a URL, $VARIABLE or unknown ~USER')
    return pathlib.Path(path)
