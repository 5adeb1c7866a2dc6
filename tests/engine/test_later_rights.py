"""Without one of the rights that promoting needs, an entry is appended and deleted, or neither."""

from contextlib import suppress

import pytest

import braidstream
from braidstream.model import ids
from braidstream.operations.later_promotion import find_strands, promote
from braidstream.operations.membership import meet
from braidstream.plan.view import Carriage
from tests.support.limited_rights import IDEMPOTENT, OWN
from tests.support.servers import Engine

RIGHTS = [*OWN, "+hsetnx", "+unlink", "+xdel", "+xgroup|create", "+xgroup|destroy", *IDEMPOTENT]


@pytest.mark.parametrize("peers", [True, False])
def test_without_one_right_nothing_is_half_done(
    region: braidstream.Redis, engine: Engine, peers: bool
) -> None:
    if peers:
        region.run_plan(meet((1, 2)))
    url = engine.url.replace("//", "//link:any@", 1)
    promoted = 0
    for right in [right for right in RIGHTS if right.startswith("+")] + ["none"]:
        region.xadd(right, {"n": 1}, delay=0)
        later = b"{%b}.later" % right.encode()
        [strand] = region.run_plan(find_strands([later]))[later]
        with engine.client() as operator:
            operator.execute_command("ACL", "DELUSER", "link")
            rights = [each for each in RIGHTS if each != right]
            operator.execute_command("ACL", "SETUSER", "link", "on", "nopass", "~bs:*", *rights)
            due = [(strand, ids.native(entry)) for entry, _ in operator.xrange(strand.key)]
        with braidstream.Redis.from_url(url) as limited, suppress(braidstream.ResponseError):
            limited.converse(lambda of, due=due, name=right: promote(of(Carriage.ALONE), name.encode(), due))  # type: ignore[misc]
        there, waits = region.xlen(right), region.xlen(later.decode())
        assert there + waits == 1, right
        promoted += there
    assert promoted >= 1
    assert region.xlen("none") == 1
