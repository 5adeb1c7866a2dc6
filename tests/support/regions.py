"""Make an engine a region, and fill it with the strands of writers far away."""

from collections.abc import Iterable, Sequence
from typing import Any

import braidstream
from braidstream import lua as functions
from braidstream.model.ids import ZERO, Id, text
from braidstream.model.registry import Registry
from braidstream.model.strand import CopyTarget, Strand
from braidstream.operations.membership import initialise, tune_id_mode
from braidstream.plan.lookup import registry_of
from braidstream.plan.plan import Batch, Plan
from tests.support.cluster import become_cluster
from tests.support.replicas import Site
from tests.support.servers import Engine


def become(engine: Engine | Site, *, region: int = 1, name: str = "us-east", id_mode: str = "strict") -> None:
    """Do to an engine what `braid init` and `braid tune id-mode` do."""
    if isinstance(engine, Engine) and engine.cluster:
        become_cluster(engine, region=region, name=name, id_mode=id_mode)
        return
    with braidstream.Redis.from_url(engine.url) as client:
        client.run_plan(initialise(region, name))
        client.run_plan(functions.load())
        client.run_plan(tune_id_mode(id_mode))


def make_older(engine: Engine, version: int) -> None:
    """As `braid init` of an earlier release leaves a region."""
    with engine.client() as client:
        client.function_load(functions.source(version), replace=True)
        client.hset("bs:config", "library", version)


def client_of(engine: Engine, **options: Any) -> braidstream.Redis:
    return braidstream.Redis.from_url(engine.url, **options)


def position(entry: str) -> tuple[int, int]:
    """An ID as numbers, to compare."""
    ms, seq = entry.split("-")
    return int(ms), int(seq)


def apply(strand: Strand, entries: Iterable[tuple[Id, Sequence[bytes]]], after: Id = ZERO) -> Plan[int]:
    """Append entries to a strand of any writer, as a link does."""
    listed = [(text(native), fields) for native, fields in entries]
    [reply] = yield Batch([registry_of(strand.name)])
    bell = Registry.parse(strand.name, reply).bell
    [applied] = yield Batch([strand.apply(after, listed, ZERO, CopyTarget(bell=bell))])
    return int(applied)


def apply_even(strand: Strand, entries: Iterable[tuple[Id, Sequence[bytes]]], after: Id = ZERO) -> Plan[int]:
    """The same for entries of equal width, in the form that links use for long pages."""
    listed = list(entries)
    [reply] = yield Batch([registry_of(strand.name)])
    bell = Registry.parse(strand.name, reply).bell
    head = strand.apply_even(after, (len(listed), len(listed[0][1])), CopyTarget(bell=bell))
    words = [word for native, fields in listed for word in (text(native), *fields)]
    [applied] = yield Batch([(*head, *words)])
    return int(applied)
