"""The settings file; errors for the user; files that nobody else may write."""

import argparse
import difflib
import os
import re
import stat
import sys

import yaml

from command_line import local_path, one_line

FAILED, USAGE, NO_ANSWER = 1, 2, 75  # submit's exit codes


class Failure(Exception):
    """Message for the user in one line, and submit's exit code."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def refuse(name, got, expected):
    raise Failure(USAGE, f"{name}: got {got}, expected {expected}")


def say(text):
    print(f"submit: {one_line(text)}", file=sys.stderr, flush=True)


def owned(path, look=os.lstat, others=0o022, owners=()):
    """@return the path. Refuses what somebody else can have written, because submit runs what stands in its files."""
    status = look(path)
    foreign = {status.st_uid, os.lstat(path).st_uid} - {os.geteuid(), *owners}
    if foreign or status.st_mode & others:  # of a link the mode is lrwxrwxrwx
        refuse(path, f"{stat.filemode(status.st_mode)} of user {min(foreign or {status.st_uid})}",
               f"no link, the owner {os.geteuid()}, and that nobody else can write it (chmod go-w)")
    return path


def private(path, flags):
    """As open()'s opener: a file that only its owner may read, because arguments may hold secrets."""
    if os.path.lexists(path):
        owned(path)
    return os.open(path, flags, 0o600)


def write(file, text):
    with open(file, "w", errors="surrogateescape", opener=private) as stream:  # as in paths
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def matching(pattern, expected, convert=str):
    def parse(name, value, _folder):
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.S) or not value.isprintable():
            refuse(name, f'"{value}"' if isinstance(value, str) else "keys or a list", expected)
        return convert(value)
    return parse


def path(name, value, folder):
    text = matching(r".*[^\\]", "a path")(name, value, folder)
    try:
        return os.path.normpath(os.path.join(folder, local_path(os.path.expandvars(text))))
    except argparse.ArgumentTypeError as error:
        raise Failure(USAGE, f"{name}: {error}") from None


def words(name, value, _folder):
    if not isinstance(value, list) or not all(isinstance(word, str) and "\0" not in word for word in value):
        refuse(name, "something else", "a list of words, e.g. [50, 10, --lr, 0.1]")
    return value


COUNT = matching("[1-9][0-9]{0,8}", "a number from 1 on", int)
NATURAL = matching("0|[1-9][0-9]{0,8}", "a number from 0 on", int)
NAME = matching(r"[\w.,:@+/-]+", "a name of letters, digits and .,:@+/-_")
KEYS = {
    "script_path": path, "out_dir": path, "arguments": words, "nodes": COUNT, "account": NAME, "partition": NAME,
    "time": matching("([0-9]+-)?[0-9]+(:[0-9]{2}){0,2}", "a limit as Slurm has it, e.g. 90, 12:00:00 or 1-12"),
    "local.device": matching("auto|cpu|cuda", "auto, cpu or cuda"),
    "local.condor.bid": NATURAL, "local.condor.num_cpus": COUNT, "local.condor.memory_cpus": COUNT,
    "local.condor.num_gpus": NATURAL, "local.condor.memory_gpus": COUNT,
}
SECTIONS = ("local", "local.condor")
DEFAULTS = {"arguments": [], "nodes": 1, "local.device": "auto", "local.condor.num_gpus": 0}
OVERRIDES = ("nodes", "time", "account", "partition")  # options of the command line, too


def last_word(key):
    return key.rpartition(".")[2]


def plain(node):
    """YAML node as text, or as a list of texts; None for what is deeper. Text stays as it is written: 010, 1e-3, yes."""
    if isinstance(node, yaml.SequenceNode):
        return [item.value if isinstance(item, yaml.ScalarNode) else None for item in node.value]
    return node.value if isinstance(node, yaml.ScalarNode) else None


def read_map(file, folder, node, prefix, settings):
    if not isinstance(node, yaml.MappingNode):
        refuse(f"{file}:{node.start_mark.line + 1}: {prefix.rstrip('.') or 'settings'}", "no keys", "keys and values")
    for key, value in node.value:
        name, place = f"{prefix}{plain(key)}", f"{file}:{key.start_mark.line + 1}: "
        if name in settings:
            refuse(f"{place}{name}", "the key twice", "it once")
        elif name in SECTIONS:
            settings[name] = None
            read_map(file, folder, value, name + ".", settings)
        elif name in KEYS:
            settings[name] = KEYS[name](place + name, plain(value), folder)
        else:
            near = difflib.get_close_matches(name, (*KEYS, *SECTIONS), 1, 0.5) or [f"one of {', '.join(KEYS)}"]
            refuse(f"{place}unknown key", name, near[0])


def read_settings(file):
    """@return the settings by the last words of their keys; None where there is no default"""
    try:
        # Whoever owns the settings can make you run anything: only you, root and this program's owner may.
        text = owned(file, os.stat, 0o002, {0, os.stat(__file__).st_uid}).read_text("utf-8-sig", "surrogateescape")
        # As in text from web pages and word processors, whose spaces are no spaces of YAML.
        for number, line in enumerate(re.split("\r\n?|\n", text), 1):
            if odd := [c for c in line.partition("#")[0] if not c.isprintable() and c != "\t"]:
                refuse(f"{file}:{number}", f"the invisible character U+{ord(odd[0]):04X}", "a space or nothing")
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except OSError as error:
        refuse("--settings-file", f"{file} ({error.strerror})", "a YAML file")
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        refuse(f"{file}:{mark.line + 1}" if mark else file, getattr(error, "problem", None) or str(error).splitlines()[0], "YAML")
    if node is None:
        refuse(file, "an empty file", "settings, e.g. script_path: /path/to/program")
    settings = {}
    read_map(file, os.path.dirname(os.path.abspath(file)), node, "", settings)
    for name in ("script_path", "out_dir"):
        if name not in settings:
            refuse(file, f"no {name}", f"{name}: /a/path")
    return {last_word(key): settings.get(key, DEFAULTS.get(key)) for key in KEYS}
