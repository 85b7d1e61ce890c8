"""An audit: run each rank once more, alone, with the answers that the hub gave it, and compare its results.

Ranks of one world run at the same time on one machine, so they might exchange values behind the hub's back, through how
long one of them sleeps, say. In a replay a rank has only its inputs and the recorded answers. If it comes to the same
result, that result is its own. If not, a person should look at the answer: it may only have asked for the time of day.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grader.inside import codec
from grader.inside.codec import Breach
from grader.inside.orders import RunOrder, packed_order
from grader.judging.hub_rank import Placeholders, RankResult, Stays
from grader.judging.rank_connection import Exchange, RankConnection
from grader.judging.ranks import Ranks


class Diverged(Exception):
    """A rank sent something else than the first time, although it had received the same answers."""


def differs_alone(
    ranks: Ranks, order: RunOrder, log: Sequence[Exchange], stays: Sequence[Stays], result: RankResult
) -> bool:
    """Whether a rank comes to another result alone, or to none. Raises HostGone.

    log  its exchanges with the hub. It may receive as many bytes now as all ranks together did then
    """
    [process] = ranks.start(1)
    try:
        [connection] = ranks.connect([process])
        connection.send(packed_order(order))
        return packed(replay(log, connection, Placeholders(stays).resolve)) != packed(result)
    except (Diverged, Breach, OSError, KeyError):
        return True
    finally:
        ranks.end([process])


def replay(log: Sequence[Exchange], connection: RankConnection, resolve: Callable[[Any], Any]) -> RankResult:
    """Give a rank the answers in `log`. Raises Diverged, Breach, TimeoutError, KeyError if it fails."""
    for digest, answer in log[:-1]:
        connection.receive_unread()
        if connection.log[-1].digest != digest:
            raise Diverged
        if answer:
            connection.send(answer)
    last = connection.receive(resolve)
    if last is None:
        raise Diverged
    return RankResult(last["result"], last["after"], last["shared"])


def packed(result: RankResult) -> bytes:
    """A result as bytes that can be compared."""
    return codec.pack({"result": result.result, "after": result.inputs_after, "shared": result.shared})
