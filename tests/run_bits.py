"""Every file with a run bit starts: its first line names an interpreter that is there, which can read the file.

usage: run_bits.py ROOT
"""

import pathlib
import shutil
import subprocess
import sys


def fault(path):
    """@return why the file does not start, or None"""
    first, _, rest = path.read_text().partition("\n")
    words = first.removeprefix("#!").split()
    if not first.startswith("#!") or not words or not shutil.which(words[-1]):
        return f"got {first!r} as the first line, expected #! and a program that is there"
    if "python" in words[-1]:
        try:
            compile(rest, path, "exec")
        except SyntaxError as error:
            return str(error)
    elif subprocess.run([words[-1], "-n", path]).returncode != 0:
        return f"{words[-1]} cannot read it"
    return None


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    if not (root / ".git").exists():
        sys.exit(f"{root}: got no .git, expected a checkout, whose files are listed")
    lines = subprocess.run(["git", "-C", root, "ls-files", "--stage"], check=True, capture_output=True, text=True).stdout.splitlines()
    files = [root / line.split("\t", 1)[1] for line in lines if line.startswith("100755")]
    found = {file: fault(file) for file in files if file.exists()}
    print(*(f"{file}: {text}" for file, text in found.items() if text), sep="\n")
    sys.exit(not found or any(found.values()))
