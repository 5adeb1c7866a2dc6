"""What `braid status --json` prints."""

from typing import Any

from braidstream.admin.daemon_status import LinkStatus
from braidstream.admin.region_status import Overview, View


def as_json(found: Overview) -> dict[str, Any]:
    """An overview, for scripts."""
    regions = [
        {
            "id": view.id,
            "name": view.name,
            "error": view.error or None,
            "engine": view.engine,
            "functions": _functions(view),
            "id_mode": view.region.id_mode if view.region else None,
            "peers": list(view.region.peers) if view.region else None,
            "memory": {"used": view.memory.used, "max": view.memory.most},
            "clock_ms": round(view.clock_ms),
            "daemons": [
                {"host": each.host, "pid": each.pid, "version": each.version, "durability": each.durability,
                 "held_ms": each.held_ms, "held_why": each.held_why, "waived_ms": each.waived_ms,
                 "tuned": each.tuned, "reported_ms_ago": view.now_ms - each.at_ms}
                for each in view.daemons
            ],
        }
        | ({"nodes": list(view.nodes)} if view.nodes else {})
        for view in found.views
    ]  # fmt: skip
    links = [
        {"from": link.source, "to": link.target, "state": link.status.state if link.status else "unknown"}
        | ({} if link.status is None else _link_facts(link.status))
        for link in found.links
    ]
    problems = [
        {"kind": each.kind, "where": each.where, "text": each.text, "fix": each.fix}
        | ({"nodes": list(each.nodes)} if each.nodes else {})
        for each in found.problems
    ]
    return {"ok": not problems, "regions": regions, "links": links, "problems": problems}


def _functions(view: View) -> int | None:
    """Their version in the engine; if that is unknown, the version that bs:config notes."""
    if view.functions is None and view.region is not None:
        return view.region.library
    return view.functions


def _link_facts(status: LinkStatus) -> dict[str, Any]:
    names = ("since_ms", "why", "lag_entries", "lag_ms", "entries", "bytes", "refused", "refusal", "clock_ms")
    return {name: getattr(status, name) for name in names}
