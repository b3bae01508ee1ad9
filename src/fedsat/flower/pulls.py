"""How soon Flower asks again for a part of a message that is still being uploaded.

A message is announced before its parts are there, so whoever asks often finds one without its parts. Flower then waits
a second, and twice as long after every further attempt. That is most of the time of an exchange if nodes have little to
compute. Flower has no setting for it.
"""

from __future__ import annotations

from flwr.supercore.inflatable import inflatable_utils

FIRST = 0.02
"""Seconds before the second attempt; as in Flower, the time doubles with every further attempt."""


def ask_again_soon() -> None:
    """Shorten the first pauses between attempts in this process and those that are forked from it."""
    for pull in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        pull.__kwdefaults__ = {**(pull.__kwdefaults__ or {}), "initial_backoff": FIRST}
