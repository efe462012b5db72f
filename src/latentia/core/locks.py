"""A lock on a folder: one writer at a time among the processes and threads of a machine.

The lock is an advisory one of the operating system (``flock``) on a small file, so it vanishes with its process,
however that ends; a file that a killed process left behind locks nothing. The file says who holds the lock, and is
removed when the lock is given back. The thread that holds a lock may take it again: every function that writes
takes it while it writes, whether its caller holds it or not.

Where the system or the file system has no such locks, only the threads of this process are kept apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import platform
import threading
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

#: How often, and how many seconds apart, to try before a lock counts as held by another: looking takes it shortly.
TRIES, PAUSE = 5, 0.02
_SOMEBODY = "another process"


class Busy(Exception):
    """Somebody else holds the lock; the text says who, as far as that is known."""


@dataclasses.dataclass
class _Held:
    """A lock of this process: its open file (None without ``flock``), its thread, and how often it was taken."""

    descriptor: int | None
    thread: int
    times: int = 1


_held: dict[Path, _Held] = {}
_guard = threading.Lock()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock whose file is ``path``, and make its folder; :class:`Busy` if somebody else has it."""
    key = path.resolve()
    _take(key)
    try:
        yield
    finally:
        _give_back(key)


def holder(path: Path) -> str | None:
    """Who else holds the lock whose file is ``path``; None if it is free, or this thread's own."""
    key = path.resolve()
    with _guard:
        if key in _held:
            return None if _held[key].thread == threading.get_ident() else _another_thread()
    if fcntl is None:
        return None
    try:
        descriptor = os.open(key, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return _owner(descriptor) if _is_taken(error) else None
    finally:
        os.close(descriptor)
    return None


def _take(path: Path) -> None:
    with _guard:
        known = _held.get(path)
        if known is None:
            _held[path] = _Held(_lock_file(path), threading.get_ident())
        elif known.thread == threading.get_ident():
            known.times += 1
        else:
            raise Busy(_another_thread())


def _give_back(path: Path) -> None:
    with _guard:
        known = _held.get(path)
        if known is None:  # in a fork of the process that took it
            return
        known.times -= 1
        if known.times:
            return
        del _held[path]
        if known.descriptor is not None:
            # The name goes before the lock: whoever opened the file meanwhile notices that it has no name any more.
            if _is_at(known.descriptor, path):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            os.close(known.descriptor)


def _lock_file(path: Path) -> int | None:
    """An open file with the lock on it; None where there are no locks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        return None
    owner = _SOMEBODY
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE)
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # whoever had made the folder has just removed it
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            taken, owner = _is_taken(error), _owner(descriptor)
            os.close(descriptor)
            if taken:
                continue
            with contextlib.suppress(OSError):
                os.unlink(path)
            return None  # a file system without locks
        if _is_at(descriptor, path):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {platform.node()}\n".encode())
            return descriptor
        os.close(descriptor)
    raise Busy(owner)


def _is_taken(error: OSError) -> bool:
    return error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        here, there = os.fstat(descriptor), os.stat(path)
    except OSError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _owner(descriptor: int) -> str:
    return os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or _SOMEBODY


def _another_thread() -> str:
    return "another thread of this process"


def _forget() -> None:
    """In a fork: its locks are those of the process that it was made from, which goes on to hold them."""
    global _guard
    _guard = threading.Lock()
    for known in _held.values():
        if known.descriptor is not None:
            os.close(known.descriptor)  # the lock itself stays while the other process has the file open
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
