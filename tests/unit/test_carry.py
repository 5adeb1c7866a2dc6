"""What a pipeline remembers of its commands."""

import time

from braidstream.model.region import Region
from braidstream.model.strand import Strand
from braidstream.plan.view import Carriage, View

NAMES = [b"k%d" % number for number in range(50_000)]


def test_a_deletion_of_many_keys_in_a_multi_takes_linear_time() -> None:
    """It runs on the gateway's loop: all other clients wait for it."""
    view = View(Region(1, "one", 1), carriage=Carriage.MULTI, plain_keys=set(NAMES))
    for name in NAMES:
        view.expect_home(Strand(name, "s", 1))
    began = time.process_time()
    for name in NAMES[1:]:
        view.expect_deleted(name)
    assert time.process_time() - began < 2
    assert view.plain_keys == {NAMES[0]}
    assert not view.needs_create(Strand(NAMES[0], "s", 1))
    assert view.needs_create(Strand(NAMES[1], "s", 1))
