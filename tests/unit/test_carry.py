"""What a pipeline remembers of its commands."""

import time

from braidstream.model.strand import Strand
from braidstream.plan.view import Carriage

NAMES = [b"k%d" % number for number in range(50_000)]


def test_a_deletion_of_many_keys_in_a_multi_takes_linear_time() -> None:
    """It runs on the gateway's loop: all other clients wait for it."""
    carriage = Carriage(pipelined=True, in_multi=True)
    carriage.note_plain_keys(NAMES)
    for name in NAMES:
        carriage.mark_created(Strand(name, "s", 1))
    began = time.process_time()
    for name in NAMES[1:]:
        carriage.expect_deleted(name)
    assert time.process_time() - began < 2
    assert [name for name in NAMES if carriage.is_plain_key(name)] == NAMES[:1]
    assert not carriage.needs_create(Strand(NAMES[0], "s", 1), ())
    assert carriage.needs_create(Strand(NAMES[1], "s", 1), ())
