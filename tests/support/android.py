"""Runs a command as Android runs an app: no psutil, its platform's name, its forbidden calls."""

# Before anything is imported: the platform's name as Python has it there since 3.13, and no psutil,
# whose import raises there. A call that modifies or asks for the clock's discipline ends an app
# with SIGSYS; the same filter is set here, for this process and its children.
_PRELUDE = """
import sys
if {platform!r} == "android":
    sys.platform = "android"
else:
    sys.getandroidapilevel = lambda: 24
sys.modules["psutil"] = None
import ctypes, os, struct
calls = {{"x86_64": (159, 305), "aarch64": (171, 266)}}.get(os.uname().machine)
if calls is None:
    sys.exit(99)
def op(code, jump_true, jump_false, value):
    return struct.pack("HBBI", code, jump_true, jump_false, value)
program = b"".join((
    op(0x20, 0, 0, 0),               # load the number of the system call
    op(0x15, 1, 0, calls[0]),        # adjtimex
    op(0x15, 0, 1, calls[1]),        # clock_adjtime
    op(0x06, 0, 0, 0x00030000),      # trap
    op(0x06, 0, 0, 0x7FFF0000),      # allow
))
code = ctypes.create_string_buffer(program, len(program))
filter = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
unsigned = ctypes.c_ulong
assert libc.prctl(38, unsigned(1), unsigned(0), unsigned(0), unsigned(0)) == 0  # no new privileges
if libc.prctl(22, unsigned(2), ctypes.c_char_p(filter), unsigned(0), unsigned(0)) != 0:
    sys.exit(99)
"""
NO_FILTER = 99
"""The exit status where this machine's kernel lets no filter be set."""


def as_app(statements: str, platform: str = "android") -> str:
    """A program that runs these statements as an app of Android does.

    `platform` is `linux` for Python before 3.13.
    """
    return _PRELUDE.format(platform=platform) + statements
