"""The one error a user causes."""

import errno
import reprlib

FULL = (errno.ENOSPC, errno.EDQUOT)  # of an OSError: a disk, or a share of it


class InputError(ValueError):
    """A bad input, told in one line: what is wrong, where, and what to do.

    Command lines print the message on stderr and exit with code 2; nothing is half-written.
    """


def shown(value: object) -> str:
    """`value` as a message shows it: its beginning and end where it is long, however deep or often it holds others."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 120
    short.maxlist = short.maxtuple = short.maxdict = short.maxset = short.maxlevel = 4
    return short.repr(value)


def nearest(name: str, valid: list[str]) -> str:
    """`" (did you mean 'x'?)"` for the valid name closest to `name`, or the list of valid names."""
    import difflib

    if len(name) > 200:  # nobody's slip of the pen
        return f" (valid: {', '.join(valid)})"
    match = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else f" (valid: {', '.join(valid)})"


def choice(name: str, valid: list[str]) -> str:
    """`" (valid: x, y; did you mean 'x'?)"`: all of a few choices, and the one that may be meant."""
    meant = nearest(name, valid)
    return f" (valid: {', '.join(valid)}{'; ' + meant[2:-1] if meant.startswith(' (did') else ''})"
