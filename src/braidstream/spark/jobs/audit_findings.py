"""What an audit finds, and how it judges an entry that differs between regions.

For an entry that region X has and region Y has not, Y's last ID and its present entries decide:

    above Y's last ID            behind        has not arrived in Y yet
    below Y's first, or cut      removing      trimmed or deleted in Y, not yet in X
    a journal names it           removing      until X has applied that journal; then it is RESURRECTED in X
    else                         LOST in Y     Y had it, no one deleted it, and no link sends it again

Also: DIVERGED, two copies have different fields under one ID. DUPLICATED, one user ID in two strands. A group
that the registry has and a strand has not is LOST too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from braidstream.model import ids
from braidstream.model.frontier import name_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.spark.jobs.snapshots import Snapshots


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One anomaly. id: the user ID; for a group its name. certain: a repair may rely on it."""

    kind: str
    stream: str
    place: str
    id: str
    region: int
    certain: bool = True
    healed: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Suspect:
    """An entry that differs between regions: {region: digest of its fields}, for regions that have it."""

    strand: Strand
    native: Id
    found: Mapping[int, str] = field(default_factory=dict)


def lost_groups(snapshots: Snapshots) -> list[Anomaly]:
    name = name_text(snapshots.name)
    return [
        Anomaly(
            "lost", name, place_text(strand), group.decode("utf-8", "backslashreplace"), region, note="group"
        )
        for region, strand, group in snapshots.lost_groups
    ]


def judge(before: Suspect, suspect: Suspect, snapshots: Snapshots) -> list[Anomaly]:
    """The anomalies of an entry that was read before and after the snapshots.

    A removal and its record are one step. So the snapshots explain an entry that was missing before them; and
    an entry that a region knew to be deleted by then must be missing after them.
    """
    strand, native = suspect.strand, suspect.native
    what = name_text(strand.name), place_text(strand), id_text(strand.user(native))
    found = list[Anomaly]()
    if len(set(suspect.found.values())) > 1:
        right = suspect.found.get(snapshots.home(strand))
        wrong = [region for region, digest in suspect.found.items() if digest != right]
        note = "" if right is not None else "its own region no longer has it"
        found += [Anomaly("diverged", *what, region, right is not None, note=note) for region in wrong]
    named = snapshots.deletion(strand, native)
    for region, here in snapshots.by_region.items():
        if region in suspect.found:
            if named is not None and here.journal_at(named[0]) >= named[1]:
                found.append(Anomaly("resurrected", *what, region))
        elif region not in before.found and named is None and not _is_explained(snapshots, region, suspect):
            # Daemons trim journals. But XDEL, also of a link, moves the highest deleted ID of a copy.
            sure = not snapshots.forgot_deletions or native > snapshots.copy(region, strand).deleted
            note = "" if sure else "or deleted: a journal no longer has all deletions"
            found.append(Anomaly("lost", *what, region, sure, note=note))
    return found


def _is_explained(snapshots: Snapshots, region: int, suspect: Suspect) -> bool:
    """Whether an entry is missing because it has not arrived, was trimmed, or was deleted with its stream."""
    copy, native = snapshots.copy(region, suspect.strand), suspect.native
    if native > copy.last or native <= copy.cut or snapshots.is_over(region, suspect.strand):
        return True
    return copy.there and (copy.first is None or native < copy.first)


def id_text(entry: Id) -> str:
    return ids.text(entry).decode()
