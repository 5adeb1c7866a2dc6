"""What an audit found, as JSON and as a page with a picture for each pair of regions."""

from dataclasses import asdict
from html import escape
from itertools import combinations
from typing import Any, Final

from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.spark.jobs.audit import Anomaly, Report, Stretch

WIDTH, ROW = 860, 26
GOOD, WAITS, WRONG, HEALED = "#4c956c", "#e9b44c", "#c8553d", "#5b84b1"
SHOWN: Final = 500

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem }
body { color: #222; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; margin: .5rem 0 } td, th { padding: .2rem .8rem .2rem 0; text-align: left }
td.n { text-align: right; font-variant-numeric: tabular-nums } code { font-size: .9em }
.verdict { padding: .6rem 1rem; border-radius: .4rem; color: #fff; display: inline-block }
.key span { display: inline-block; width: .9em; height: .9em; margin: 0 .3em 0 1em; border-radius: .15em }
"""


def as_facts(report: Report) -> dict[str, Any]:
    """Stable names, for machines."""
    return {
        "regions": list(report.regions),
        "entries": report.rows,
        "behind": {str(region): count for region, count in report.behind.items()},
        "removing": {str(region): count for region, count in report.removing.items()},
        "wrong": report.wrong,
        "healed": sum(each.healed for each in report.anomalies),
        "anomalies": [asdict(each) for each in report.anomalies],
        "seconds": round(report.seconds, 3),
    }


def verdict(report: Report) -> tuple[str, str]:
    """One sentence, and its colour."""
    if report.wrong:
        return f"{report.wrong:,} entries or groups are wrong.", WRONG
    waiting = sum(report.behind.values()) + sum(report.removing.values())
    if waiting:
        return f"Nothing is wrong. {waiting:,} entries are still replicating.", WAITS
    return "All regions are alike.", GOOD


def as_page(report: Report) -> str:
    sentence, colour = verdict(report)
    pairs = "".join(_pair(report, *pair) for pair in combinations(report.regions, 2))
    head = "<!doctype html><html lang='en'><meta charset='utf-8'><title>braid audit</title>"
    return (
        f"{head}<style>{_STYLE}</style><h1>Audit of {len(report.regions)} regions</h1>"
        f"<p class='verdict' style='background:{colour}'>{escape(sentence)}</p>"
        f"<p>{report.rows:,} entries read in {report.seconds:.1f} s.</p>{_regions(report)}{_key()}{pairs}"
        f"{_anomalies(report)}</html>\n"
    )


def _key() -> str:
    named = ((GOOD, "alike"), (WAITS, "still replicating"), (WRONG, "wrong"), (HEALED, "healed"))
    return "<p class='key'>" + "".join(f"<span style='background:{c}'></span>{t}" for c, t in named) + "</p>"


def _regions(report: Report) -> str:
    rows = ""
    for region in report.regions:
        mine = [each for each in report.anomalies if each.region == region]
        counts = (
            report.behind[region],
            report.removing[region],
            len(mine),
            sum(each.healed for each in mine),
        )
        cells = "".join(f"<td class='n'>{count:,}</td>" for count in counts)
        rows += f"<tr><td>region {region}</td>{cells}</tr>"
    titles = ("", "has not seen yet", "has still to remove", "wrong", "of these healed")
    return f"<table><tr>{''.join(f'<th>{each}</th>' for each in titles)}</tr>{rows}</table>"


def _pair(report: Report, one: int, two: int) -> str:
    """A strip for each strand, oldest entries left; a cell for each range that was compared."""
    strands = dict[tuple[str, str], list[Stretch]]()
    for each in report.stretches:
        strands.setdefault((each.stream, each.place), []).append(each)
    height = ROW * len(strands) + 4
    strips = "".join(
        _strip(report, (one, two), name, stretches, at * ROW)
        for at, (name, stretches) in enumerate(sorted(strands.items()))
    )
    title = f"Region {one} and region {two}"
    return (
        f"<h2>{title}</h2><svg role='img' aria-label='{title}' width='100%' viewBox='0 0 {WIDTH} {height}' "
        f"font-family='system-ui, sans-serif' font-size='12'>{strips}</svg>"
    )


def _strip(
    report: Report, pair: tuple[int, int], name: tuple[str, str], stretches: list[Stretch], top: int
) -> str:
    label = f"{name[0]} {name[1]}"
    parts = [f"<text x='0' y='{top + 15}'>{escape(label[:24])}</text>"]
    ordered = sorted(stretches, key=lambda each: _id(each.low))
    total = sum(max(1, *(each.rows.get(region, 0) for region in pair)) for each in ordered)
    at, room = 170.0, WIDTH - 180.0
    for each in ordered:
        rows = max(1, *(each.rows.get(region, 0) for region in pair))
        width = room * rows / total
        title = f"{each.low} to {each.high}: " + ", ".join(
            f"region {one} {each.rows.get(one, 0):,}" for one in pair
        )
        colour = _colour(pair, each)
        parts.append(
            f"<rect x='{at:.2f}' y='{top + 2}' width='{max(1.5, width - 0.6):.2f}' height='{ROW - 8}' "
            f"fill='{colour}'><title>{escape(title)}</title></rect>"
        )
        parts += [_mark(report, each, bad, at, width, top) for bad in _bad(report, pair, each)[:SHOWN]]
        at += width
    return "".join(parts)


def _bad(report: Report, pair: tuple[int, int], stretch: Stretch) -> list[Anomaly]:
    return [
        each
        for each in report.anomalies
        if each.region in pair
        and (each.stream, each.place) == (stretch.stream, stretch.place)
        and each.note != "group"
        and _id(stretch.low)[0] <= _id(each.id)[0] <= _id(stretch.high)[0]
    ]


def _mark(report: Report, stretch: Stretch, bad: Anomaly, at: float, width: float, top: int) -> str:
    """A thin line at the time of the entry."""
    low, high, here = (_id(each)[0] for each in (stretch.low, stretch.high, bad.id))
    first = min((_id(each.id)[0] for each in report.anomalies if each.note != "group"), default=low)
    low = max(low, first - max(1, (high - first) // 20)) if low == 0 else low
    x = at + width * min(1.0, max(0.0, (here - low) / max(1, high - low)))
    colour = HEALED if bad.healed else WRONG
    title = escape(f"{bad.id} {bad.kind} in region {bad.region}")
    place = f"x='{x:.2f}' y='{top}' width='3' height='{ROW - 4}'"
    return f"<rect {place} fill='{colour}'><title>{title}</title></rect>"


def _colour(pair: tuple[int, int], stretch: Stretch) -> str:
    waits = any(stretch.behind.get(one, 0) or stretch.removing.get(one, 0) for one in pair)
    return WAITS if waits else GOOD


def _anomalies(report: Report) -> str:
    if not report.anomalies:
        return ""
    rows = "".join(_row(each) for each in report.anomalies[:SHOWN])
    more = len(report.anomalies) - SHOWN
    rest = f"<p>and {more:,} more; all of them are in the JSON.</p>" if more > 0 else ""
    head = "<tr><th>what</th><th>stream</th><th>strand</th><th>entry or group</th><th></th></tr>"
    return f"<h2>What is wrong</h2><table>{head}{rows}</table>{rest}"


def _row(each: Anomaly) -> str:
    what = f"{each.kind} in region {each.region}"
    note = f"{'healed' if each.healed else ''} {each.note}"
    cells = "".join(f"<td>{escape(text)}</td>" for text in (what, each.stream, each.place, each.id, note))
    return f"<tr>{cells}</tr>"


def _id(text: str) -> Id:
    return ids.native(text.encode())
