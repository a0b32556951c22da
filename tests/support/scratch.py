"""A test case with a folder of its own."""

import os
import pathlib
import subprocess
import tempfile
import unittest


class Scratch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, path, content, mode=0o644):
        path = self.folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        return path

    def run_here(self, *command, options={}, **variables):
        """Runs a command in the folder, with no input. @param options of subprocess.run() @param variables of the environment
        @return the result, with texts"""
        return subprocess.run(list(map(str, command)), cwd=self.folder, env=os.environ | variables, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=300, **options)

    def script(self, path, text):
        return self.write(path, text, 0o755)
