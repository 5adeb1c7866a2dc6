"""Offsets are stored in checkpoints: their form is frozen. Options are parsed once, and refused by name."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from braidstream.errors import OptionError
from braidstream.model.frontier import Frontier
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.spark.lag import LagListener, lags
from braidstream.spark.options import OPTIONS, sink_options, source_options
from braidstream.spark.source import offsets
from braidstream.spark.source.offsets import Offset

# The kinds, writers and lives of strands.
PLACES: list[tuple[Any, int, int]] = [
    ("s", 1, 0),
    ("s", 12, 0),
    ("c", 3, 0),
    ("c", 3, 12),
    ("t", 1, 0),
    ("p", 0, 0),
]
STORED = json.loads((Path(__file__).parent / "offset.json").read_text())


def test_an_offset_that_was_stored_is_read_and_written_as_it_is() -> None:
    for stored in STORED.values():
        assert Offset.parse(stored).stored == stored


def test_what_a_stored_offset_means() -> None:
    offset = Offset.parse(STORED["braid"])
    wanted: dict[Strand, Id] = {
        Strand(b"orders", "s", 1): (1794702853882, 4),
        Strand(b"orders", "s", 2): (1794702853880, 0),
        Strand(b"orders", "c", 1, 2): (7, 1),
        Strand(b"\xff", "s", 1023): (1, 0),
    }
    assert offset.frontier == Frontier(wanted)
    assert offset.count(Strand(b"orders", "s", 1), 1) == 1021
    assert offset.count(Strand(b"orders", "s", 1), 2) is None


# An offset of two streams, as it was packed once.
PACKED = (
    "eJyrViouKUpNzC1WslKIVsovSkktKlaK1VFQKshJTE4Fi0YrJRvqGSkBxYoNlWJBcmmZRcUl8WA95rVcDDDwmcGNYQ"
    "HDHYaFDIwgLiMLAyr4x8CMzAUAxJEYTg=="
)


def test_an_offset_of_many_strands_is_packed_and_means_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [b"\xff", b"base64:", *(b"s%d" % n for n in range(500))]
    strands = [Strand(name, *place) for name in names for place in PLACES]
    at = {strand: (1_794_702_853_882 + n, 2**64 - 1 - n) for n, strand in enumerate(strands)}
    counts = {strand: n for n, strand in enumerate(strands) if n % 3}
    offset = Offset(Frontier(at), counts, 2, Frontier(dict.fromkeys(strands[:7], (0, 0))))
    stored = json.loads(json.dumps(offset.stored))
    monkeypatch.setattr(offsets, "_recent", {})
    again = Offset.parse(stored)
    assert again == offset
    assert again.stored == stored
    assert len(json.dumps(stored)) < 8 * len(strands)


def test_a_packed_offset_that_was_stored_can_be_read() -> None:
    wanted = {Strand(b"orders", "s", 1): (1794702853882, 4), Strand(b"orders", "c", 1, 2): (7, 1)}
    assert Offset.parse({"packed": PACKED, "region": 1}) == Offset(
        Frontier(wanted), {Strand(b"orders", "s", 1): 1021}, 1
    )


def test_the_lag_of_many_streams_is_known() -> None:
    one, many = ({Strand(b"s%d" % n, "s", 1): (end, 0) for n in range(1200)} for end in (1000, 3500))
    end, latest = Offset(Frontier(one)), Offset(Frontier(many))
    registry = CollectorRegistry()
    progress = SimpleNamespace(
        name="q",
        runId="r",
        sources=[SimpleNamespace(endOffset=json.dumps(end.stored), latestOffset=json.dumps(latest.stored))],
    )
    LagListener(registry).onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]
    labels = {"query": "q", "stream": "s1199"}
    assert registry.get_sample_value("braidstream_spark_lag_seconds", labels) == 2.5


@pytest.mark.parametrize("stored", [{"orders": {"x1": "1-1"}}, {"orders": {"s1": "soon"}}])
def test_a_frontier_that_cannot_be_read_is_refused(stored: dict[str, dict[str, str]]) -> None:
    with pytest.raises(ValueError, match="is not a strand and its native ID"):
        Frontier.parse(stored)


def test_the_lag_is_known_by_counts_and_by_time() -> None:
    orders = Strand(b"orders", "s", 1)
    end = Offset(Frontier({orders: (1000, 0)}), {orders: 10}, 1)
    latest = Offset(Frontier({orders: (3500, 0)}), {orders: 25}, 1)
    assert list(lags(end, latest)) == [("orders", 15, 2.5)]
    elsewhere = Offset(latest.frontier, latest.counts, 2)
    assert list(lags(end, elsewhere)) == [("orders", None, 2.5)]


def test_a_stream_of_which_nothing_was_read_is_not_current() -> None:
    orders, users = Strand(b"orders", "s", 1), Strand(b"users", "s", 1)
    latest = Offset(Frontier({orders: (3500, 0), users: (3500, 0)}), {orders: 25, users: 9}, 1)
    registry = CollectorRegistry()
    listener = LagListener(registry)

    def shown(name: str, stream: str) -> float | None:
        return registry.get_sample_value(f"braidstream_spark_lag_{name}", {"query": "q", "stream": stream})

    end = Offset(Frontier({orders: (3500, 0)}), {orders: 25}, 1)
    for now_s in (100.0, 130.0):
        listener.note("q", end, latest, now_s)
    assert (shown("seconds", "orders"), shown("entries", "orders")) == (0, 0)
    assert (shown("seconds", "users"), shown("entries", "users")) == (30, None)
    listener.note("q", latest, latest, 140.0)
    assert (shown("seconds", "users"), shown("entries", "users")) == (0, 0)
    listener.note("q", Offset(latest.frontier, latest.counts, 2), latest, 150.0)
    assert shown("entries", "users") is None  # not a number of another time


SOURCE = {"url": "redis://h", "streams": "a"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"streams": "a"}, "option url: missing"),
        ({**SOURCE, "streamPattern": "a*"}, "option streams: give either"),
        ({**SOURCE, "nonsense": "1"}, "option nonsense: unknown"),
        ({**SOURCE, "minPartitions": "0"}, "option minPartitions: must be 1 or more"),
        ({**SOURCE, "maxEntriesPerTrigger": "many"}, "option maxEntriesPerTrigger: 'many' is not"),
        ({**SOURCE, "failOnDataLoss": "maybe"}, "option failOnDataLoss"),
        ({**SOURCE, "mode": "lenient"}, "option mode: 'lenient' is none of"),
        ({**SOURCE, "startingTimestamp": "soon"}, "option startingTimestamp: 'soon' is neither"),
        ({**SOURCE, "startingTimestamp": '{"a": "soon"}'}, "option startingTimestamp: 'soon' is neither"),
        ({**SOURCE, "startingTimestamp": "{a}"}, "option startingTimestamp: neither a time nor JSON"),
        ({**SOURCE, "maxEntriesPerPartition": "0"}, "option maxEntriesPerPartition: must be 1 or more"),
        ({**SOURCE, "startingOffsets": "[]"}, "option startingOffsets: JSON must be"),
        ({**SOURCE, "startingOffsets": '{"a": {"z": "1"}}'}, "option startingOffsets: a: z is not a strand"),
        ({**SOURCE, "startingOffsets": "latest", "startingTimestamp": "1"}, "option startingTimestamp: give"),
        ({**SOURCE, "replicationWait": "soon"}, "option replicationWait: 'soon' is not a duration"),
    ],
)
def test_a_wrong_option_of_the_source_is_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        source_options(given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"stream": "a"}, "option url: missing"),
        ({"url": "redis://h", "stream": "a", "idempotence": "some"}, "option idempotence: 'some' is neither"),
        ({"url": "redis://h", "txnAppId": "a b"}, "option txnAppId: must be 1 to 200"),
        (
            {"url": "redis://h", "streams": "a"},
            "option streams: unknown. Did you mean stream[?] The options are: url",
        ),
    ],
)
def test_a_wrong_option_of_the_sink_is_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        sink_options(given)


def test_every_option_of_the_table_is_taken_and_no_other() -> None:
    for where, parse in (("source", source_options), ("sink", sink_options)):
        with pytest.raises(OptionError) as refused:
            parse({"url": "redis://h", "nonsense": "1"})
        taken = str(refused.value).split("The options are: ")[1].split(", ")
        listed = [each.name for each in OPTIONS if each.where in (where, "both")]
        assert sorted(taken) == sorted([*listed, "redis.*"])


def test_options_as_people_write_them() -> None:
    options = source_options(
        {
            "URL": "redis://a",
            "fallbackurls": "redis://b, redis://c",
            "streams": '["with,comma", "b"]',
            "startingOffsets": json.dumps(STORED["braid"]),
            "redis.ssl_ca_certs": "/ca.pem",
            "maxTriggerDelay": "5m",
            "regions": "1,3",
            "checkpointLocation": "/tmp/x",
        }
    )
    assert options.servers.urls == ("redis://a", "redis://b", "redis://c")
    assert options.servers.redis == {"ssl_ca_certs": "/ca.pem"}
    assert options.streams == (b"with,comma", b"b")
    assert options.start.at[b"orders"]["s1"] == (1794702853882, 4)
    assert (options.max_delay_s, options.regions) == (300.0, frozenset((1, 3)))
