"""The sink, called as Spark calls it: tasks write, the driver commits, any of it may happen again or half.

Killing real processes under Spark is test_kill.py's; here a step fails at a chosen point, quickly.
"""

import os
import random
import signal
import time
from base64 import b64encode
from typing import Any

import pytest
import redis

from braidstream.errors import OptionError, SinkError
from braidstream.operations.adoption import adopt, release
from braidstream.spark.sink.ledger import Book, Publisher
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.sinks import Crash, Job, Sink, crash_after, numbers, plain_and_region

place = plain_and_region


def leftovers(engine: Engine) -> list[bytes]:
    with engine.client() as client:
        return client.keys("bs:stage:*")  # type: ignore[return-value]


def test_rows_arrive_in_the_order_of_partitions_and_leave_nothing_behind(place: Engine) -> None:
    Sink(place.url).run(0, [1, 2, 3, 4, 5], [6, 7], [8])
    assert numbers(place) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert leftovers(place) == []


def test_a_replayed_batch_changes_nothing_whatever_the_shuffle_made_of_it(place: Engine) -> None:
    sink = Sink(place.url)
    sink.run(0, [1, 2, 3], [4])
    sink.run(0, [4, 3], [2, 1])
    sink.run(1, [5])
    assert numbers(place) == [1, 2, 3, 4, 5]
    assert leftovers(place) == []


def test_of_two_attempts_of_a_task_one_counts(place: Engine) -> None:
    sink = Sink(place.url)
    sink.write([{"n": 1}])  # an attempt that was lost, or a speculative twin that came second
    sink.commit(0, sink.write([{"n": 1}]))
    assert numbers(place) == [1]
    with place.client() as client:
        [left] = leftovers(place)
        assert 0 < client.ttl(left) <= 86_400


@pytest.mark.parametrize(
    ("kind", "step", "times"),
    [
        (Book, "are_complete", 1),
        (Book, "decide", 1),
        (Book, "are_complete", 2),
        (Publisher, "_append", 1),
        (Publisher, "_append", 2),
        (Book, "publish", 1),
        (Book, "_change", 2),
        (Book, "discard", 1),
    ],
)
def test_a_driver_that_dies_anywhere_leaves_a_batch_that_the_next_one_completes(
    place: Engine, monkeypatch: pytest.MonkeyPatch, kind: type, step: str, times: int
) -> None:
    sink = Sink(place.url)
    sink.run(0, [0])
    with monkeypatch.context() as patched:
        crash_after(patched, kind, step, times)
        with pytest.raises(Crash):
            sink.run(1, [1, 2, 3], [4, 5])
    sink.run(1, [5, 4, 3], [2, 1])  # the replay is shuffled in another way
    sink.run(2, [6])
    assert sorted(numbers(place)) == [0, 1, 2, 3, 4, 5, 6]


def expire_stages(engine: Engine) -> None:
    with engine.client() as client:
        for key in leftovers(engine):
            assert client.ttl(key) > 0
            client.delete(key)


def test_rows_that_a_dead_driver_had_not_decided_on_expire(
    place: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink(place.url, stagingTtl="2h")
    message = sink.write([{"n": n} for n in range(3)])
    with place.client() as client:
        [staged] = leftovers(place)
        client.expire(staged, 60)  # the task was done a while ago
        with monkeypatch.context() as patched:
            crash_after(patched, Book, "are_complete")
            with pytest.raises(Crash):
                sink.commit(0, message)
        sink.run(0, [0, 1, 2])
        assert leftovers(place) == [staged]
        assert 60 < client.ttl(staged) <= 7200
    assert numbers(place) == [0, 1, 2]


def test_rows_that_expired_after_they_were_decided_on_are_written_by_the_replay(
    place: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink(place.url)
    sink.run(0, [0])
    with monkeypatch.context() as patched:
        crash_after(patched, Book, "decide")
        with pytest.raises(Crash):
            sink.run(1, [1, 2, 3], [4, 5])
    expire_stages(place)
    sink.run(1, [5, 4], [3, 2, 1])
    sink.run(2, [6])
    assert sorted(numbers(place)) == [0, 1, 2, 3, 4, 5, 6]
    assert leftovers(place) == []


def test_rows_that_expired_after_they_were_decided_on_are_not_passed_over_in_silence(
    place: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Job(place.url, txnAppId="nightly", txnVersion=version) for version in (7, 8))
    with monkeypatch.context() as patched:
        crash_after(patched, Book, "decide")
        with pytest.raises(Crash):
            first.save([1, 2])
    expire_stages(place)
    with pytest.raises(SinkError, match="batch 7 was begun.*Run it again, then batch 8"):
        second.save([3])
    first.save([1, 2])
    second.save([3])
    assert numbers(place) == [1, 2, 3]


def test_a_batch_that_another_driver_finishes_meanwhile_is_done(
    place: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink(place.url)
    message = sink.write([{"n": n} for n in range(5)])
    with monkeypatch.context() as patched:
        crash_after(patched, Book, "decide")
        with pytest.raises(Crash):
            sink.commit(0, message)
    again, real = sink.write([{"n": n} for n in range(5)]), Book.are_complete

    def overtaken(self: Any, *args: Any, **options: Any) -> bool:
        monkeypatch.setattr(Book, "are_complete", real)
        sink.commit(0, message)
        return real(self, *args, **options)

    monkeypatch.setattr(Book, "are_complete", overtaken)
    sink.commit(0, again)
    assert numbers(place) == [0, 1, 2, 3, 4]
    assert leftovers(place) == []


@pytest.mark.parametrize("ttl", ["500ms", "0", "-1s", "nan", "1e30d"])
def test_a_stage_lives_for_a_second_at_least(engine: Engine, ttl: str) -> None:
    with pytest.raises(OptionError, match="stagingTtl.*below 1s"):
        Sink(engine.url, stagingTtl=ttl).write([{"n": 1}])


@pytest.mark.parametrize(("kind", "step"), [(Book, "are_complete"), (Book, "decide"), (Publisher, "_append")])
def test_spark_aborts_a_batch_whose_commit_died_and_it_is_still_written_once(
    place: Engine, monkeypatch: pytest.MonkeyPatch, kind: type, step: str
) -> None:
    """When the process that commits is killed, Spark calls abort: what was decided by then must stay."""
    sink = Sink(place.url)
    message = sink.write([{"n": n} for n in range(5)])
    with monkeypatch.context() as patched:
        crash_after(patched, kind, step)
        with pytest.raises(Crash):
            sink.commit(0, message)
    sink.abort(0, message)
    sink.run(0, [4, 3], [2, 1, 0])
    assert sorted(numbers(place)) == [0, 1, 2, 3, 4]
    assert leftovers(place) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_driver_killed_at_any_moment_is_completed_by_the_next(place: Engine, seed: int) -> None:
    """SIGKILL of a process that runs batches, ten times, at random moments; Spark is not needed for that."""
    dice, sink, committed = random.Random(seed), Sink(place.url, rowsPerStep=1), 0
    began = time.monotonic()
    sink.run(0, [0])
    took_s = time.monotonic() - began
    for _ in range(10):
        first = committed + 1
        told, said = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for batch in range(first, first + 50):
                    rows = [batch * 10 + n for n in range(6)]
                    random.Random(os.getpid() + batch).shuffle(rows)
                    sink.run(batch, rows[:2], rows[2:])
                    os.write(said, b".")  # Spark notes that the batch is done
            finally:
                os._exit(0)
        time.sleep(dice.random() * took_s * 8)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(said)
        committed += len(os.read(told, 100))
        os.close(told)
        rows = [(committed + 1) * 10 + n for n in range(6)]
        sink.run(committed + 1, rows[::2], rows[1::2])  # the batch after the last that Spark knows of
        committed += 1
    wanted = [0, *(batch * 10 + n for batch in range(1, committed + 1) for n in range(6))]
    assert sorted(numbers(place)) == wanted


def test_two_drivers_that_publish_one_batch_at_once_append_it_once(place: Engine) -> None:
    """A driver that is believed dead and is not."""
    sink = Sink(place.url)
    messages = [sink.write([{"n": n} for n in range(10)])]
    real = Publisher._append
    with pytest.MonkeyPatch.context() as patched:

        def overtaken(self: Any, *args: Any) -> Any:
            patched.setattr(Publisher, "_append", real)
            sink.commit(0, *messages)  # the other one comes by in the middle of a step
            return real(self, *args)

        patched.setattr(Publisher, "_append", overtaken)
        sink.commit(0, *messages)
    assert numbers(place) == list(range(10))


def test_two_sinks_write_to_one_stream_at_once(place: Engine) -> None:
    """The other publishes everything while one is in the middle of a step."""
    one, two = Sink(place.url, txnAppId="query-1"), Sink(place.url, txnAppId="query-2")
    first, second = one.write([{"n": n} for n in range(10)]), two.write([{"n": n} for n in range(10, 20)])
    real = Publisher._append
    with pytest.MonkeyPatch.context() as patched:

        def interrupted(self: Any, *args: Any) -> Any:
            patched.setattr(Publisher, "_append", real)
            two.commit(0, second)
            return real(self, *args)

        patched.setattr(Publisher, "_append", interrupted)
        one.commit(0, first)
    two.commit(0, second)
    one.run(1, [20])
    assert sorted(numbers(place)) == list(range(21))


LINE_ENDS = "base64:" + b64encode(b"a\r\nb").decode()


def test_a_name_may_hold_line_ends(place: Engine) -> None:
    Sink(place.url, stream=LINE_ENDS).run(0, [1, 2], [3])
    assert numbers(place, "a\r\nb") == [1, 2, 3]


@pytest.mark.parametrize("name", ["out", LINE_ENDS])
def test_a_server_that_becomes_a_region_gets_what_was_staged_before(engine: Engine, name: str) -> None:
    sink = Sink(engine.url, stream=name)
    message = sink.write([{"n": n} for n in range(5)])
    become(engine)
    sink.commit(0, message)
    assert numbers(engine, "out" if name == "out" else "a\r\nb") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["out", "}odd"])
def test_a_sink_continues_while_its_stream_is_adopted_and_made_native_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sink, plain = Sink(engine.url, stream=name), Sink(engine.url, stream=name, idempotence="none")
    sink.run(0, [1, 2, 3])
    become(engine)
    sink.run(1, [4, 5])
    plain.run(0, [6])
    with client_of(engine) as client:
        with monkeypatch.context() as patched:
            crash_after(patched, Publisher, "_append")
            with pytest.raises(Crash):
                sink.run(2, [7, 8, 9])
        assert client.run_plan(adopt(name.encode())).problem == ""
        sink.run(2, [9, 8, 7])
        plain.run(0, [10])
        assert client.run_plan(release(name.encode())).problem == ""
        sink.run(3, [11])
    assert numbers(engine, name) == list(range(1, 12))


def test_a_stream_that_is_adopted_in_the_middle_of_a_step_gets_each_row_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, real = Sink(engine.url), Publisher._append
    sink.run(0, [1])
    become(engine)

    def overtaken(self: Any, *args: Any) -> Any:
        monkeypatch.setattr(Publisher, "_append", real)
        with client_of(engine) as client:
            assert client.run_plan(adopt(b"out")).problem == ""
        return real(self, *args)

    monkeypatch.setattr(Publisher, "_append", overtaken)
    sink.run(1, [2, 3, 4])
    assert numbers(engine) == [1, 2, 3, 4]


def test_rows_are_not_appended_beside_a_stream_that_cannot_be_created(engine: Engine) -> None:
    """A user who may append but not create: the function is refused, the XADDs after it are not."""
    become(engine)
    with client_of(engine) as ours, engine.client() as client:
        ours.xgroup_create("out", "jobs", id="0", mkstream=True)
        client.execute_command("ACL", "SETUSER", "spark", "on", ">secret", "~*", "+@all", "-xgroup|create")
        client.delete("bs:1:s:{out}")
        refused = Sink(engine.url, **{"redis.username": "spark", "redis.password": "secret"})
        with pytest.raises(SinkError, match="refused rows for"):
            refused.run(0, [1, 2])
        assert not client.exists("bs:1:s:{out}")
        Sink(engine.url).run(0, [2, 1])
        [[_, given]] = ours.xreadgroup("jobs", "ann", {"out": ">"})
        assert sorted(int(fields[b"n"]) for _, fields in given) == [1, 2]


def test_without_idempotence_rows_go_straight_to_the_stream(place: Engine) -> None:
    sink = Sink(place.url, idempotence="none")
    message = sink.write([{"n": n} for n in range(5)])
    assert numbers(place) == list(range(5))
    sink.commit(0, message)
    assert numbers(place) == list(range(5))


@pytest.mark.parametrize("idempotence", ["exactly-once", "none"])
def test_a_region_that_was_emptied_gets_no_row(engine: Engine, idempotence: str) -> None:
    become(engine)
    Sink(engine.url).run(0, [1])
    with engine.client() as operator:
        operator.flushall()
        sink = Sink(engine.url, txnAppId="another", idempotence=idempotence)
        with pytest.raises(SinkError, match="braid region rejoin"):
            sink.run(0, [2])
        assert operator.keys("*") == []
        operator.execute_command("FUNCTION", "DELETE", "braidstream")
    sink.run(0, [3])
    assert numbers(engine) == [3]


def test_a_plain_database_beside_a_region_takes_rows(engine: Engine) -> None:
    become(engine)
    url = f"{engine.url.removesuffix('/0')}/1"
    Sink(url).run(0, [1])
    with redis.Redis.from_url(url) as operator:
        assert operator.xlen("out") == 1


def test_a_batch_write_with_a_transaction_is_done_once_and_resumed(
    place: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(place.url, txnAppId="nightly", txnVersion=20260101)
    with monkeypatch.context() as patched:
        crash_after(patched, Publisher, "_append", 1)
        with pytest.raises(Crash):
            job.save([1, 2, 3, 4, 5])
    job.save([1, 2, 3, 4, 5])
    job.save([1, 2, 3, 4, 5])
    Job(place.url, txnAppId="nightly", txnVersion=20260102).save([6])
    assert numbers(place) == [1, 2, 3, 4, 5, 6]


def test_two_writes_of_one_transaction_to_two_streams_are_not_taken_for_one(place: Engine) -> None:
    """As in foreachBatch: the second would be skipped in silence."""
    to_out, to_copy = (Job(place.url, txnAppId="copier", txnVersion=7, stream=name) for name in ("out", "b"))
    to_out.save([1, 2])
    with pytest.raises(SinkError, match="batch 7 was written to out.* write is to b.*its own txnAppId"):
        to_copy.save([1, 2])
    to_out.save([1, 2])
    Job(place.url, txnAppId="copier-b", txnVersion=7, stream="b").save([1, 2])
    assert [numbers(place), numbers(place, "b"), leftovers(place)] == [[1, 2], [1, 2], []]


def test_a_batch_write_without_one_leaves_no_ledger_and_no_mark(place: Engine) -> None:
    Job(place.url, txnAppId=None).save([1, 2, 3])
    assert numbers(place) == [1, 2, 3]
    with place.client() as client:
        assert client.keys("bs:sink:*") == []
        assert [field for field in client.hkeys("bs:meta:{out}") if field.startswith(b"q:")] == []


def test_a_sink_that_is_new_to_a_checkpoint_wants_to_be_told(engine: Engine) -> None:
    with pytest.raises(SinkError, match="nothing of it is known here"):
        Sink(engine.url).run(7, [1])
    Sink(engine.url, takeOver="true").run(7, [1])
    Sink(engine.url).run(8, [2])
    assert numbers(engine) == [1, 2]
