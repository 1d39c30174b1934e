"""Compiled loops over CPU memory and a file. They release the GIL: Python threads run them side by side.

Enters: arrays of 64-bit words (and a file descriptor). Leaves: sums, so that nothing is optimised away.
numba is imported at the top: whoever measures imports this module late and says what is missing.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numba import njit

_pread = ctypes.CDLL(None).pread
_pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
_pread.restype = ctypes.c_int64


@njit(nogil=True)
def fill(words, seed):
    """Random bits (splitmix64) into words: uint64[n]."""
    state = np.uint64(seed)
    for i in range(len(words)):
        state += np.uint64(0x9E3779B97F4A7C15)
        z = state
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        words[i] = z ^ (z >> np.uint64(31))


@njit(nogil=True)
def read(words, passes):
    """Sum of words: uint64[n], `passes` times; the salt keeps the passes from being one."""
    total = np.uint64(0)
    for salt in range(passes):
        for i in range(len(words)):
            total += words[i] ^ np.uint64(salt)
    return total


@njit(nogil=True)
def write(words, passes):
    """Another number each pass and place into words: uint64[n] (ordinary stores: the line is read first)."""
    for salt in range(passes):
        for i in range(len(words)):
            words[i] = np.uint64(i) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)


@njit(nogil=True)
def copy(source, target, passes):
    """target = source ^ pass; uint64[n] both (ordinary stores)."""
    for salt in range(passes):
        for i in range(len(source)):
            target[i] = source[i] ^ np.uint64(salt)


@njit(nogil=True)
def gather(words, starts, row_words):
    """Sum of the rows of `row_words` words that begin at starts: int64[rows].

    Unsigned indices: signed ones are tested for wrapping, and the branches keep fewer rows under way.
    """
    total = np.uint64(0)
    for r in range(len(starts)):
        start = np.uint64(starts[r])
        for i in range(row_words):
            total += words[start + np.uint64(i)]
    return total


@njit(nogil=True)
def chase(words, at, hops):
    """Follows words: uint64[n], each the index of the next; returns where it ends. One load at a time."""
    at = np.uint64(at)
    for _ in range(hops):
        at = words[at]
    return at


@njit(nogil=True)
def read_blocks(fd, address, block_bytes, blocks, seed, done, stop):
    """pread of random blocks of a file until stop[0]: int64[1] is set; done: int64[1] counts them.

    address is that of a buffer of block_bytes bytes, aligned as the file wants it. Returns 1 if a read failed
    or came back short, else 0.
    """
    state = np.uint64(seed)
    while stop[0] == 0:
        state += np.uint64(0x9E3779B97F4A7C15)
        z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        block = np.int64((z ^ (z >> np.uint64(31))) % np.uint64(blocks))
        if _pread(fd, address, block_bytes, block * block_bytes) != block_bytes:
            return 1
        done[0] += 1
    return 0
