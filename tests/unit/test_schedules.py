"""When schedules are due, without a server; and how braid.toml may say it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from braidstream.config import ScheduleConfig, changes, load
from braidstream.errors import ConfigError
from braidstream.replication.schedules import due_times

REGION = '[[region]]\nid = 1\nname = "one"\nurl = "redis://one:6379"\n'


def schedule(**words: Any) -> ScheduleConfig:
    return ScheduleConfig(**{"name": "n", "stream": "jobs", "fields": {"job": "x"}} | words)


def due_on(day: str, cron: str, zone: str) -> list[str]:
    """The UTC times of a schedule in the 36 hours from noon before a day on."""
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(hours=12)
    first, last = (round(each.timestamp() * 1000) for each in (begin, begin + timedelta(hours=36)))
    found = due_times(schedule(cron=cron, timezone=zone), first, last)
    return [datetime.fromtimestamp(ms / 1000, UTC).strftime("%d %H:%M") for ms in found]


# In Berlin clocks go forward on 2026-03-29 at 01:00 UTC, and back on 2026-10-25 at 01:00 UTC. In
# New York on 2026-03-08 at 07:00 UTC and 2026-11-01 at 06:00 UTC. Lord Howe changes by half an hour.
DST = [
    # An hour that does not exist: what is due in it is due when it would have ended.
    ("2026-03-29", "30 2 * * *", "Europe/Berlin", ["29 01:00"]),
    ("2026-03-29", "0 3 * * *", "Europe/Berlin", ["29 01:00"]),
    ("2026-03-29", "0 1 * * *", "Europe/Berlin", ["29 00:00", "29 23:00"]),
    ("2026-03-28", "30 2 * * *", "Europe/Berlin", ["28 01:30"]),
    ("2026-03-30", "30 2 * * *", "Europe/Berlin", ["30 00:30"]),
    ("2026-03-08", "30 2 * * *", "America/New_York", ["08 07:00"]),
    ("2026-10-04", "15 2 * * *", "Australia/Lord_Howe", ["03 15:30", "04 15:15"]),
    # An hour that comes twice: due once.
    ("2026-10-25", "30 2 * * *", "Europe/Berlin", ["25 00:30"]),
    ("2026-10-25", "0 3 * * *", "Europe/Berlin", ["25 02:00"]),
    ("2026-11-01", "30 1 * * *", "America/New_York", ["01 05:30"]),
    # Every hour: by time that passes, not by the clock on the wall.
    (
        "2026-03-29",
        "15 * * * *",
        "Europe/Berlin",
        [f"28 {hour:02}:15" for hour in range(12, 24)] + [f"29 {hour:02}:15" for hour in range(24)],
    ),
    (
        "2026-10-25",
        "15 * * * *",
        "Europe/Berlin",
        [f"24 {hour:02}:15" for hour in range(12, 24)] + [f"25 {hour:02}:15" for hour in range(24)],
    ),
    ("2026-10-25", "0 2-4 * * *", "Europe/Berlin", ["25 00:00", "25 02:00", "25 03:00"]),
    # Days of weeks and months
    ("2026-03-29", "0 12 * * SUN", "Europe/Berlin", ["29 10:00"]),
    ("2026-03-30", "0 12 * * SUN", "Europe/Berlin", []),
    ("2028-02-29", "0 0 29 2 *", "UTC", ["29 00:00"]),
    ("2026-02-28", "0 0 L * *", "UTC", ["28 00:00"]),
]


@pytest.mark.parametrize(("day", "cron", "zone", "expected"), DST)
def test_when_a_line_of_crontab_is_due(day: str, cron: str, zone: str, expected: list[str]) -> None:
    assert due_on(day, cron, zone) == expected


def test_due_times_do_not_depend_on_how_time_is_cut_into_looks() -> None:
    for cron in ("30 2 * * *", "*/7 * * * *", "0 */5 * * *"):
        wanted = schedule(cron=cron, timezone="Europe/Berlin")
        begin = round(datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp() * 1000)
        step, found = 7_919, list[int]()
        for at in range(begin, begin + 86_400_000, step * 1000):
            found += due_times(wanted, at, min(at + step * 1000, begin + 86_400_000))
        assert found == sorted(set(found))
        hours = [due_times(wanted, at, at + 3_600_000) for at in range(begin, begin + 86_400_000, 3_600_000)]
        assert found == [ms for some in hours for ms in some]


def test_every_counts_from_1970_and_the_last_hundred_are_sent_at_most() -> None:
    wanted = schedule(every="15m")
    assert due_times(wanted, 0, 2_700_000) == [900_000, 1_800_000, 2_700_000]
    assert due_times(wanted, 900_000, 1_799_999) == []
    assert due_times(schedule(every="1s"), 0, 3_600_000) == [*range(3_501_000, 3_601_000, 1000)]
    assert len(due_times(schedule(cron="* * * * *"), 0, 86_400_000)) == 100
    assert due_times(wanted, 5_000_000, 1_000_000) == [], "a clock went back"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ('cron = "0 3 * * *"\nevery = "15m"', "either every or cron"),
        ("", "either every or cron"),
        ('every = "0s"', "'0s' is not a time like"),
        ('every = "-5m"', "is not a time like"),
        ('cron = "61 3 * * *"', "Bad minute"),
        ('cron = "* * * * * *"', "has not five fields"),
        ('cron = "* * */20 * 1L"', "is never due"),
        ('cron = "0 3 * * *"\ntimezone = "Europe/Berlyn"', "knows no timezone 'Europe/Berlyn'"),
        ('cron = "0 3 * * *"\ntimezone = "../../etc/passwd"', "knows no timezone"),
        ('every = "1h"\ntimezone = 3', 'timezone must be a text like "Europe/Berlin"'),
        ('every = "1h"\nfeilds = {}', "Did you mean fields"),
    ],
)
def test_a_wrong_schedule_is_refused_in_words(tmp_path: Path, lines: str, why: str) -> None:
    path = tmp_path / "braid.toml"
    path.write_text(f'{REGION}[[schedule]]\nname = "n"\nstream = "s"\nfields = {{ a = "1" }}\n{lines}\n')
    with pytest.raises(ConfigError) as refused:
        load(path)
    assert why in str(refused.value)


def test_changed_schedules_are_named(tmp_path: Path) -> None:
    def read(*lines: str) -> Any:
        path = tmp_path / "braid.toml"
        path.write_text(REGION + "".join(f'[[schedule]]\n{line}\nfields = {{ a = "1" }}\n' for line in lines))
        return load(path)

    one, two = 'name = "a"\nstream = "s"\nevery = "1h"', 'name = "b"\nstream = "s"\nevery = "2h"'
    assert changes(read(one), read(two)) == "schedule b added; schedule a removed"
    assert changes(read(one), read(one.replace("1h", "3h"))) == "schedule a changed"
    with pytest.raises(ConfigError, match="two schedules have the name 'a'"):
        read(one, one)
