"""Errors that know their exit code: the stages' own codes, see common/base/exit_codes.hpp."""

import signal
import sys

DONE = 0
TRAINING_FAILED = 1
USAGE = 2
TRANSIENT = 75
SIGNAL_BASE = 128


class PeerError(Exception):
    """str() is one line: what is wrong, its value, what was expected."""

    def __init__(self, message, code=TRAINING_FAILED):
        super().__init__(message)
        self.code = code


class UsageError(PeerError):
    """The user's mistake, in the command line or the environment."""

    def __init__(self, message):
        super().__init__(message, USAGE)


class TransientError(PeerError):
    """A port or a rendezvous that was not there: the same command may work later."""

    def __init__(self, message):
        super().__init__(message, TRANSIENT)


class Stopped(PeerError):
    """A signal asked this process to end."""

    def __init__(self, name, number):
        super().__init__(f"stopped by {name}", SIGNAL_BASE + number)


def describe(error):
    """Any exception as (exit code, one line)."""
    if isinstance(error, KeyboardInterrupt):
        error = Stopped("SIGINT", signal.SIGINT)
    if isinstance(error, PeerError):
        return error.code, str(error)
    # Python's last line of a multi-line text says little; LibTorch's first says what went wrong.
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return TRAINING_FAILED, f"{type(error).__name__}: {text}"


def guarded(program, body):
    """Runs `body`; an error is one line on stderr. @return the exit code"""
    try:
        body()
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, ImportError):
            error = UsageError(f"{sys.executable} cannot import {error.name or error}, expected the interpreter that "
                               f"bench/peers/install.sh {program} prints")
        code, line = describe(error)
        print(f"{program}: error: {line}", file=sys.stderr, flush=True)
        return code
    return DONE
