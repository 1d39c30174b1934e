"""How the lanes of a region are dealt to the channels of a tier, and how far away those lie.

Both engines follow these rules, which stand in docs/model.md. Integers in, integers out.
"""

from __future__ import annotations

from memsim.jit import jit
from memsim.rules import mixed
from memsim.system import Tier


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


@jit
def away_ps(channel, spread_ps):
    """What a load of a channel takes more than one of the nearest: they lie at different distances [ps].

    The square of a fraction mixed from the channel's number: most are near, some far, with no order.
    """
    share = mixed(channel) * 1000 >> 32
    return spread_ps * share * share // 1_000_000


def mean_away_ps(channels: int, spread_ps: int) -> int:
    """The mean of away_ps over all channels."""
    return sum(int(away_ps(channel, spread_ps)) for channel in range(channels)) // channels


def nearest_ps(tier: Tier) -> int:
    """Idle latency of a load of the nearest channel: latency_ps is the mean of all."""
    return tier.latency_ps[0] - (mean_away_ps(tier.channels, tier.spread_ps) if tier.spread_ps else 0)
