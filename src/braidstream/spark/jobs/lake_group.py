"""The archive as a consumer group: `braid spark archive --group lake`.

After each commit the group moves to where the streams are archived, by one native XGROUP SETID for each
strand. Links take that for acknowledgements and replicate it. So XTRIM ACKED, XDELEX ACKED and retention
policies with `acked`, in every region, keep what is not in the lake, and `braid groups` shows how far the
archive is behind. If the archive is killed between the two steps, less is removed, and never more.
"""

from collections.abc import Mapping
from functools import partial
from itertools import groupby

from braidstream.commands.table import TABLE
from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.strand import Command, Strand
from braidstream.plan.lookup import read_any_region
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View
from braidstream.spark.source.survey import Surveyor


def move_group(surveyor: Surveyor, group: bytes, archived: Mapping[Strand, Id]) -> None:
    """Move the group to the end of what is archived of each strand; create it where it is missing."""
    listed = sorted((strand for strand in archived if not strand.is_of_log), key=lambda strand: strand.name)
    for name, some in groupby(listed, key=lambda strand: strand.name):
        ends = {strand: archived[strand] for strand in some}
        surveyor.run(partial(_move, name, group, ends), next(iter(ends)).key)


def _move(name: bytes, group: bytes, ends: Mapping[Strand, Id]) -> Plan[None]:
    commands: list[Command] = [("XGROUP", "SETID", at.key, group, ids.text(end)) for at, end in ends.items()]
    replies = yield Batch(commands, resend=True, attempt=True)
    if not any(isinstance(reply, ReplyError) and reply.code == "NOGROUP" for reply in replies):
        return
    if all(strand.is_plain for strand in ends):
        yield Batch([("XGROUP", "CREATE", strand.key, group, "0") for strand in ends], attempt=True)
    else:
        words = [b"XGROUP", b"CREATE", name, group, b"0"]
        try:
            yield from TABLE[b"XGROUP"].plan(View((yield from read_any_region())), words)
        except ReplyError as error:
            if error.code != "BUSYGROUP":
                raise
    yield Batch(commands, resend=True, attempt=True)
