"""How the lanes of a region are dealt to the channels of a tier, and how far away those lie.

Both engines follow these rules, which stand in docs/model.md. Integers in, integers out.
"""

from __future__ import annotations

from functools import lru_cache

from memsim.jit import jit
from memsim.rules import mixed
from memsim.system import Cache, Tier

NEAR = 450  # thousandths of the channels: loads of half of them would, were it not for those that are late
LINE_BYTES = 128  # that lie in one slice of a cache


@jit
def turn_begins(turn, channels):
    """Channel of the first lane of a turn."""
    return mixed(turn) * channels >> 32


@jit
def dealt_lane(lane, channels):
    """(turn, channel, place) of a lane (interleave_bytes of a region): its place is that in the turn.

    Lanes are dealt in turns, which give one to each channel and begin at any of them, as the turn's number,
    mixed, says.
    """
    turn = lane // channels
    place = lane - turn * channels
    channel = place + turn_begins(turn, channels)
    return turn, channel - channels if channel >= channels else channel, place


@jit
def channel_of_lane(lane, channels):
    """Channel that serves a lane."""
    return dealt_lane(lane, channels)[1]


@jit
def next_lane(turn, channel, place, channels):
    """What dealt_lane gives for the lane after one for which it gave these, without a division."""
    if place + 1 == channels:
        return turn + 1, turn_begins(turn + 1, channels), 0
    return turn, channel + 1 if channel + 1 < channels else 0, place + 1


@jit
def channel_of(offset, interleave_bytes, channels):
    """Channel that serves a byte offset of a region."""
    return channel_of_lane(offset // interleave_bytes, channels)


def away_ps(channel: int, tier: Tier) -> int:
    """What a load of a channel takes more than one of the nearest [ps].

    Channels of the near half (NEAR thousandths of them), then of the far one, lie at even distances; the
    latest of the far half wait for more than the way, few of them long: the fourth power. Which channel
    is which follows its number times the golden section, without an order that lanes would meet.
    """
    within_ps, far_ps, late_ps = tier.spread_ps
    place = channel * 618_034 % 1_000_000 // 1_000
    if place < NEAR:
        return within_ps * (place * 1_000 // NEAR) // 1_000
    along = (place - NEAR) * 1_000 // (1_000 - NEAR)
    square = along * along
    return far_ps + within_ps * along // 1_000 + late_ps * square // 1_000_000 * square // 1_000_000


@lru_cache
def nearest_ps(tier: Tier) -> int:
    """Idle latency of a load of the nearest channel: latency_ps is the mean of all."""
    if not any(tier.spread_ps):
        return tier.latency_ps[0]
    mean_ps = sum(away_ps(channel, tier) for channel in range(tier.channels)) // tier.channels
    return max(0, tier.latency_ps[0] - mean_ps)


@jit
def slice_ps(offset, spread_ps):
    """What a hit takes more than one in the nearest slice of the cache: lines lie in any of them [ps]."""
    return spread_ps * (mixed(offset // LINE_BYTES) * 1_000 >> 32) // 1_000


def nearest_slice_ps(cache: Cache) -> int:
    """Idle latency of a hit in the nearest slice: latency_ps is the mean of all."""
    return cache.latency_ps - cache.spread_ps // 2
