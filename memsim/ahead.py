"""Reading ahead: a thread makes the next item while the present one is in use.

Pays where making an item is long work of numpy, Arrow or compiled loops, which let go of Python's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from queue import Empty, Queue
from threading import Event, Thread
from typing import TypeVar

Item = TypeVar("Item")


class _Ended(Exception):
    """There are no more items."""


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items in the same order, one of them ready before it is asked for.

    What making an item raises is raised where that item is asked for. The thread ends with this iterator,
    also where that is closed early.
    """
    ready: Queue[tuple[Item] | BaseException] = Queue(1)
    unwanted = Event()
    maker = Thread(target=_make, args=(items, ready, unwanted), daemon=True)
    maker.start()
    try:
        while not isinstance(found := ready.get(), BaseException):
            yield found[0]
        if not isinstance(found, _Ended):
            raise found
    finally:
        unwanted.set()
        _make_room(ready)
        maker.join()


def _make(items: Iterator[Item], ready: Queue[tuple[Item] | BaseException], unwanted: Event) -> None:
    try:
        for item in items:
            ready.put((item,))
            if unwanted.is_set():
                return
        ready.put(_Ended())
    except BaseException as fault:  # belongs to whoever asks for the item
        ready.put(fault)


def _make_room(ready: Queue[tuple[Item] | BaseException]) -> None:
    """Let a thread go on that waits to hand out what nobody wants."""
    try:
        ready.get_nowait()
    except Empty:
        return
