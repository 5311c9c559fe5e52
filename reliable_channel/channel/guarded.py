"""The one place where a fault of the state machine on one input is caught: the input is set aside and named.

Messages come from strangers, and an input on which the program fails would fail again whenever the journal is replayed.
Such an input is left out, the application hears of it (``ChannelProblem`` of kind ``input_failed``), and the channel
goes on with the state it had before the input.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from reliable_channel.channel.effects import Emit
from reliable_channel.channel.events import ChannelProblem
from reliable_channel.channel.inputs import Heard, Input, SendRequested
from reliable_channel.channel.machine import ChannelMachine, Outcome
from reliable_channel.errors import ReliableChannelError
from reliable_channel.wire.malformed import Malformed
from reliable_channel.wire.sds import decode_sds_message

_log = logging.getLogger(__name__)

KIND = "input_failed"
LONGEST_DETAIL = 300


def applied(machine: ChannelMachine, given: Input, rewind: Callable[[], None]) -> Outcome:
    """What ``given`` leads to. When the machine fails on it, ``rewind`` brings the machine back to its state before
    the input, and the outcome is one event that names the input; it is not to be kept.

    Raises what the machine raises for the application (``ReliableChannelError``), and the fault itself for a send: the
    application has the payload and hears of it at once."""
    try:
        return machine.apply(given)
    except (ReliableChannelError, MemoryError):
        raise
    except Exception as error:
        rewind()
        if isinstance(given, SendRequested):
            raise
        problem = _problem(machine, given, error)
        _log.warning("channel %r: %s", machine.channel_id, problem.detail)
        return Outcome(given, (Emit(problem),), keep=False)


def is_failure(outcome: Outcome) -> bool:
    """Whether an outcome is that of an input that was set aside."""
    return any(
        isinstance(effect, Emit) and isinstance(effect.event, ChannelProblem) and effect.event.kind == KIND
        for effect in outcome.effects
    )


def _problem(machine: ChannelMachine, given: Input, error: Exception) -> ChannelProblem:
    """Class and place of the error; its text may hold what must not be logged."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" in {frame.name}, line {frame.lineno}" for frame in last)
    sender, sds_id = "", ""
    if isinstance(given, Heard):
        message = decode_sds_message(given.data, machine.sds_config.wire_family)
        if not isinstance(message, Malformed):
            sender, sds_id = f" of {message.sender_id!r}", message.message_id
    detail = f"{type(given).__name__}{sender}: {type(error).__name__}{where}"[:LONGEST_DETAIL]
    return ChannelProblem(channel_id=machine.channel_id, at=machine.now, kind=KIND, detail=detail, sds_id=sds_id)
