"""Text that has hurt generators of job files, and which of it may be refused."""

import re

PIECES = [
    "\n", "\r\n", "\r", "\0", "\t", " ", "  ", "'", "''", '"', '""', "\\", "\\\\", "\\\n", "`touch canary`",
    "$(touch canary)", ";touch canary", "&&touch canary", "|touch canary", ">canary", "\ntouch canary\n",
    "$(HOME)", "$(DOLLAR)", "$$(Memory)", "$$([1+1])", "$$(DOLLARDOLLAR)", "$ENV(HOME)", "$RANDOM_INTEGER(1,9)",
    "$CHOICE(0,a,b)", "$F(executable)", "$", "$$", "$$$", "$(ClusterId)", "$(Node)", "${HOME}", "$HOME", "$((1+1))",
    "#", "#SBATCH --wrap=x", "\n#SBATCH --wrap=x\n", "\nqueue\n", "queue", "\nqueue 10\nfoo=bar\n", "=", "==", ":",
    "+Owner=1", "@=end", "@end", "\n@end\n", "--", "-", "-n", "~", "*", "?", "[a-z]", "{a,b}", "!", "!!", "^", "%j",
    "%", "%%", "<", "<<EOF", "(", ")", "[0]=x", "a=b", "A", "x", "0", "1e3", "yes", "null", "é", "日本", "😀",
    "\u2028", "\u202e", "\x1b[31m", "\x07", "\x7f", ",", ".", "/", "if", "include : /etc/passwd", "use feature : x",
]
RAW = [b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"]


def hostile(rng):
    """Bytes; mostly text."""
    text = b"".join(rng.choice(PIECES).encode() for _ in range(rng.randint(0, 6)))
    if rng.random() < 0.05:
        at = rng.randint(0, len(text))
        text = text[:at] + rng.choice(RAW) + text[at:]
    if rng.random() < 0.02:
        text *= 200
    return text


def is_carried(text):
    """The rule of tools/submit/text.hpp, written down a second time."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError:
        return False
    return not any((c < " " and c != "\t") or c == "\x7f" for c in decoded)


def condor_can(text):
    """A single dollar in front of (DOLLAR) is the one text that HTCondor cannot be given."""
    return not re.search(rb"(?<!\$)(\$\$)*\$\(DOLLAR\)", text, re.IGNORECASE)
