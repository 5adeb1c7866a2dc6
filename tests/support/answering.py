"""Regions without daemons that answer what their groups need (plan/ask_peers.py)."""

from collections.abc import Callable, Mapping
from typing import Any

from braidstream.model import keys
from braidstream.model.ids import Id
from braidstream.model.registry import Registry
from braidstream.plan.ask_peers import Needs, answer, read_needs, read_question, say
from braidstream.plan.plan import Plan, send_one

Run = Callable[[Plan[Any]], Any]


def answer_question(name: bytes, number: int, regions: Mapping[int, Run]) -> None:
    """Answer the question of a region, if there is one, as a daemon does that reaches all peers."""
    question, ours = regions[number](read_question(name, number))
    if not question:
        return
    strands, acked = Registry.parse(name, ours).strands, dict[tuple[int, bytes], dict[bytes, Id]]()
    for peer in regions.keys() - {number}:
        found = regions[peer](read_needs(name, strands, ours))
        acked.update({(peer, group): upto for group, upto in found.items()})
    words = answer(question, regions.keys() - {number}, Needs({}, acked))
    regions[number](send_one(say(keys.questions(name, number), *words)))
