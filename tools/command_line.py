"""What the Python tools share: their output and packages, errors in one line, and paths."""

import argparse
import errno
import importlib
import io
import os
import pathlib
import re
import sys

VENV, NAME = pathlib.Path(__file__).resolve().parent.parent / ".venv", pathlib.Path(sys.argv[0]).name


class Output(io.FileIO):
    """A stream that goes on without its reader, because the work matters more than the report about it."""

    def write(self, data):
        try:
            return super().write(data)
        except OSError as error:
            if self.fileno() == 1 and error.errno not in (errno.EPIPE, errno.EIO):  # EIO: the terminal has gone
                print(f"{NAME}: error: standard output: got {error.strerror}, expected a stream that takes it all", file=sys.stderr, flush=True)
                os._exit(1)
            return len(data)


while (_null := os.open(os.devnull, os.O_RDWR)) < 3:  # for closed streams, whose numbers files would get
    os.set_inheritable(_null, True)
for _number, _name in (1, "stdout"), (2, "stderr"):
    if isinstance(_old := getattr(sys, _name) or open(_number, "w", closefd=False), io.TextIOWrapper):  # not a test's
        _raw = io.BufferedWriter(Output(_old.fileno(), "w", closefd=False))
        # Names may have characters that a terminal's encoding lacks.
        setattr(sys, _name, io.TextIOWrapper(_raw, _old.encoding, "backslashreplace", line_buffering=_old.line_buffering or _old.write_through))


def one_line(text):
    """`text` on one line, with escapes for what a terminal would obey or hide."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in str(text))


def refuse(message, code=2):
    print(f"{pathlib.Path(sys.argv[0]).name}: error: {one_line(message)}", file=sys.stderr)
    sys.exit(code)


def require(*modules):
    """Starts the program again with the Python of .venv, which PYTHONPATH must not mislead, if this one does not load a module."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # another Python's package fails in any way
            if not sys.flags.ignore_environment and (VENV / "bin/python").exists():
                os.execv(VENV / "bin/python", [VENV / "bin/python", "-E", *sys.argv])
            while error.__cause__:
                error = error.__cause__
            refuse(f"{sys.executable}: {module}: got {error}, expected the packages of requirements.txt (tools/setup.sh installs them)")


def local_path(text):
    """@return the path, with a leading ~ expanded, as the stages read theirs"""
    path = os.path.expanduser(text)
    if re.match(r"[a-z][a-z0-9+.-]*://|~|.*\$[a-z_{(]", path, re.IGNORECASE | re.DOTALL):
        raise argparse.ArgumentTypeError(f'got "{text}", expected a path of this machine, without a URL, $VARIABLE or unknown ~USER')
    return pathlib.Path(path)
