"""A session between the user's own streams and a command on a host: bytes pass both ways until it ends."""

import contextlib
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

READY = b"tfdeploy-ready"


def size() -> tuple[int, int]:
    columns, lines = shutil.get_terminal_size()
    return columns, lines


def plain(channel: Any) -> int:
    """Our standard input to it, its two outputs to ours."""
    sender = threading.Thread(target=_send_input, args=(channel,), daemon=True)
    errors = threading.Thread(target=_pass_on, args=(channel.recv_stderr, sys.stderr.buffer), daemon=True)
    sender.start()
    errors.start()
    _pass_on(channel.recv, sys.stdout.buffer)
    errors.join()
    return int(channel.recv_exit_status())


def on_a_tty(channel: Any, password: str | None) -> int:
    """The user's terminal is the command's; a password is typed for the user while nothing is echoed."""
    if password is not None:
        said = b""
        while READY not in said and (chunk := channel.recv(1024)):
            said += chunk
        channel.sendall(f"{password}\n".encode())
    with _raw(channel):
        _exchange(channel)
    return int(channel.recv_exit_status())


def _exchange(channel: Any) -> None:
    keyboard = sys.stdin.fileno()
    while True:
        readable, _, _ = select.select([channel, keyboard], [], [])
        if channel in readable:
            chunk = channel.recv(65536)
            if not chunk:
                return
            os.write(sys.stdout.fileno(), chunk)
        if keyboard in readable:
            typed = os.read(keyboard, 65536)
            channel.sendall(typed or b"\x04")


@contextlib.contextmanager
def _raw(channel: Any) -> Iterator[None]:
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    previous = signal.signal(signal.SIGWINCH, lambda *_: channel.resize_pty(*size()))
    try:
        tty.setraw(sys.stdin.fileno())
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, previous)


def _send_input(channel: Any) -> None:
    with contextlib.suppress(OSError):
        while chunk := os.read(sys.stdin.fileno(), 65536):
            channel.sendall(chunk)
        channel.shutdown_write()


def _pass_on(receive: Any, to: Any) -> None:
    while chunk := receive(65536):
        to.write(chunk)
        to.flush()
