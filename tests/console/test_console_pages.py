"""The pages of the console in a real browser: wide and narrow, by keyboard, with hostile names and values.

BRAID_RECORD=1 writes the pictures in docs/images anew.
"""

import io
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

import braidstream
from braidstream.consumers.dead_letters import DeadLetter
from tests.support.consoles import WIDTHS, WITHIN_S, Browser, console
from tests.support.daemons import all_replicating, numbered, write_config
from tests.support.matrix import installed
from tests.support.regions import client_of
from tests.support.servers import NEWEST, Engine
from tests.support.waiting import eventually

AGE: Final = re.compile(r"^[0-9.]+[sm]$")
HOSTILE: Final = "<script>document.title='owned'</script>\"'&\n\x1b[2J"
PAGES: Final = (
    "/",
    "/streams",
    "/streams?pattern=sensor-*",
    "/stream?name=orders",
    "/entries?name=orders&count=10",
    "/entries?name=orders&dir=newer&field=customer&text=ann",
    "/tail?name=orders",
    "/groups",
    "/group?name=orders&group=billing",
    "/dead",
    "/dead?name=orders.dead",
    "/logs",
    "/log?name=payments",
    "/doctor",
    "/audit",
)
# Pictures for the docs: name, and height of the window.
PICTURES: Final = {
    ("/", 1280): ("console-map", 860),
    ("/", 390): ("console-map-phone", 844),
    ("/entries?name=orders&count=10", 1280): ("console-entries", 640),
    ("/group?name=orders&group=billing", 1280): ("console-group", 700),
}
IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"


@dataclass(frozen=True)
class Scene:
    """Two regions with daemons, a console for them, and a browser."""

    engines: tuple[Engine, ...]
    config: Path
    url: str
    browser: Browser

    def client(self, region: int) -> braidstream.Redis:
        return client_of(self.engines[region - 1], decode_responses=True)

    def open(self, path: str, *, width: int = 1280) -> Page:
        return self.browser.open(self.url + path, width=width)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder, flavour = tmp_path_factory.mktemp("console"), installed(NEWEST[0])
    with ExitStack() as stack:
        engines = tuple(stack.enter_context(Engine(flavour)) for _ in range(2))
        stack.enter_context(all_replicating(folder, numbered(engines)))
        config = folder / "braid.toml"
        url = stack.enter_context(console(config))
        found = Scene(engines, config, url, stack.enter_context(Browser()))
        fill(found)
        yield found


def fill(scene: Scene) -> None:
    with scene.client(1) as client:
        for number in range(120):
            body = json.dumps({"total": number, "items": [{"sku": "A-17", "quantity": number}] * 2})
            client.xadd("orders", {"order": number, "customer": ("ann", "bob")[number % 2], "body": body})
            client.xadd(f"sensor-{number:03}", {"t": number})
        client.xadd(HOSTILE, {HOSTILE: HOSTILE, b"\xff\x00": b"\xfe" * 3_000, "json": f'["{"x" * 90}<b>"]'})
        client.xgroup_create("orders", "billing", "0")
        client.xreadgroup("billing", "worker-1", {"orders": ">"}, count=30)
        client.twrite("payments", entries=[("paid", f"order {number}") for number in range(120)])
        for number in range(3):
            why = f"<i>fault {number}</i>"
            trace = f"Traceback:\n  <b>{number}</b>"
            letter = DeadLetter(
                "orders", f"{number}-1", "billing", "worker-1", 5, why, (b"order", b"9"), trace
            )
            words = letter.to_words()
            client.xadd("orders.dead", dict(zip(words[::2], words[1::2], strict=True)))


def record(page: Page, name: str, height: int) -> None:
    """Write a picture of a page. 64 colours are enough, and small."""
    page.set_viewport_size({"width": page.viewport_size["width"], "height": height})
    IMAGES.mkdir(exist_ok=True)
    whole = Image.open(io.BytesIO(page.screenshot()))
    whole.convert("RGB").quantize(64).save(IMAGES / f"{name}.png", optimize=True)


@contextmanager
def traffic(scene: Scene) -> Iterator[None]:
    """For pictures: both regions write, since a minute."""
    ended = threading.Event()

    def write(region: int) -> None:
        with scene.client(region) as client:
            while not ended.wait(0.05):
                client.xadd(f"sensor-{region:03}", {"t": 1})

    writers = [threading.Thread(target=write, args=(region,)) for region in (1, 2)]
    for writer in writers:
        writer.start()
    time.sleep(60)
    yield
    ended.set()
    for writer in writers:
        writer.join()


def test_every_page_fits_its_window_and_nothing_is_logged(scene: Scene) -> None:
    with traffic(scene) if os.environ.get("BRAID_RECORD") else nullcontext():
        _visit_every_page(scene)
    assert scene.browser.complaints == []


def _visit_every_page(scene: Scene) -> None:
    page = scene.open("/")
    for path in PAGES:
        page.goto(scene.url + path)
        assert page.locator("h1").count() == 1, path
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            too_wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert too_wide <= 0, f"{path} is {too_wide} pixels too wide"
            clipped = (
                "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth)"
            )
            if width < 640:
                assert page.evaluate(f"{clipped}.length") == 0, f"{path} has text beyond the edge of a table"
            if os.environ.get("BRAID_RECORD") and (path, width) in PICTURES:
                record(page, *PICTURES[path, width])
    page.context.close()


def test_names_and_values_are_text_never_markup(scene: Scene) -> None:
    page = scene.open("/streams?pattern=script")
    page.get_by_role("link", name="<script>").click()
    expect(page.locator("h1")).to_contain_text("<script>document.title='owned'</script>\"'&\\n\\x1b[2J")
    page.get_by_role("link", name="Entries").click()
    expect(page.locator("th").nth(1)).to_contain_text("<script>")
    expect(page.locator(".fields pre").first).to_contain_text("<b>")
    expect(page.get_by_text("2.9 kB in all")).to_be_visible()
    with page.expect_navigation():
        page.locator("td.id a").first.click()
    assert page.locator("main script, main b").count() == 0
    assert "owned" not in page.title().replace(HOSTILE.split("\n")[0], "")
    page.context.close()
    assert scene.browser.complaints == []


def test_all_of_it_works_by_keyboard(scene: Scene) -> None:
    page = scene.open("/streams")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    expect(page.locator(":focus")).to_have_attribute("id", "main")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_attribute("name", "region")
    page.keyboard.press("Tab")
    page.keyboard.type("order")
    page.keyboard.press("Enter")
    page.wait_for_url("**pattern=order**")
    page.get_by_role("link", name="orders", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("orders")
    page.context.close()


def test_entries_are_paged_filtered_and_found_by_time_and_id(scene: Scene) -> None:
    page = scene.open("/entries?name=orders&count=50")
    assert page.locator("td.id").count() == 50
    newest = page.locator("td.id a").first.inner_text()
    for _ in range(2):
        with page.expect_navigation():
            page.get_by_role("link", name="Older entries").click()
    expect(page.locator("td.id")).to_have_count(20)
    expect(page.get_by_role("link", name="Older entries")).to_have_count(0)
    page.get_by_role("link", name="Newest").click()
    page.get_by_label("Field").fill("customer")
    page.get_by_label("Contains").fill("bob")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("50 of 99 entries match.")).to_be_visible()
    page.get_by_label("From").fill(newest)
    page.get_by_label("Contains").fill("")
    page.get_by_label("Order").select_option("newer")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("td.id a")).to_have_text([newest])
    page.get_by_label("From").fill("2020-01-01 00:00")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("td.value").first).to_have_text("0")
    page.context.close()


def test_fields_that_entries_share_are_columns_and_long_ones_stand_beside_them(scene: Scene) -> None:
    page = scene.open("/entries?name=orders&dir=newer&count=10")
    heads = page.locator("th")
    expect(heads).to_have_text(["ID, time (UTC), region", "order", "customer", "other fields"])
    row = page.locator("tbody tr").nth(1)
    expect(row.locator("td.value")).to_have_text(["1", "bob"])
    expect(row.locator(".fields dt")).to_have_text(["body"])
    page.goto(f"{scene.url}/entries?name=sensor-001")
    expect(page.locator("th")).to_have_text(["ID, time (UTC), region", "t"])
    page.context.close()


def test_a_tail_shows_entries_of_all_regions_as_they_arrive(scene: Scene) -> None:
    page = scene.open("/tail?name=orders")
    with scene.client(2) as far:
        entry = far.xadd("orders", {"order": "from far away"})
    first = page.locator("#tail tbody tr").first
    expect(first).to_contain_text(str(entry), timeout=WITHIN_S * 1000)
    expect(first).to_contain_text("from far away")
    expect(first.locator(".writer")).to_have_text("region-2")
    page.context.close()
    assert scene.browser.complaints == []


def test_the_map_refreshes_by_itself_and_keeps_the_focus(scene: Scene) -> None:
    page = scene.open("/")
    expect(page.locator(".fine")).to_have_text("No problems found.", timeout=WITHIN_S * 1000)
    page.evaluate("document.querySelector('#fresh').dataset.mark = 'old'")
    page.evaluate("document.querySelector('.fine').dataset.mark = 'old'")
    link = page.get_by_role("link", name="region-1: ")
    link.focus()
    expect(page.locator(".fine[data-mark]")).to_have_count(0)
    expect(link).to_be_focused()
    page.get_by_role("link", name="region-2: ").click()
    page.wait_for_url("**/streams?region=region-2")
    page.context.close()


def test_a_group_shows_its_lag_in_every_region_and_who_has_which_entries(scene: Scene) -> None:
    page = scene.open("/groups?pattern=orders")
    row = page.get_by_role("row", name="orders billing")
    with scene.client(1) as client:
        lag = client.xlen("orders") - 30
    expect(row).to_contain_text(f"{lag}")
    row.get_by_role("link", name="billing").click()
    here, there = (page.get_by_role("row", name=f"region-{number}") for number in (1, 2))
    expect(here.get_by_role("cell")).to_contain_text(["region-1", f"{lag}", "30", AGE, "1"])
    expect(there.get_by_role("cell").first).to_have_text("region-2")
    [consumers] = page.locator("h2:has-text('Consumers') + .scroll tbody tr").all()
    expect(consumers.get_by_role("cell")).to_contain_text(["worker-1", "30", "ago"])
    assert page.locator("td.id a").count() == 30
    page.context.close()


def test_a_group_of_scope_once_shows_which_region_delivers_what(scene: Scene) -> None:
    with scene.client(1) as client:
        client.execute_command("XGROUP CREATE", "orders", "mail", "$", "SCOPE", "ONCE")
        client.execute_command("XGROUP TAKE", "orders", "mail", "REGION", "2")
    page = scene.open("/group?name=orders&group=mail")
    expect(page.get_by_text("Scope ONCE: each entry is delivered in one region.")).to_be_visible()
    for number, owned in ((1, "region-1, region-2"), (2, "none")):
        row = page.get_by_role("row", name=f"region-{number}")
        expect(row.get_by_role("cell").last).to_have_text(owned, timeout=20_000)
    page.context.close()
    with scene.client(1) as client:
        client.xgroup_destroy("orders", "mail")


def test_dead_letters_are_retried_and_dropped_only_if_writing_is_allowed(scene: Scene) -> None:
    page = scene.open("/dead?name=orders.dead")
    expect(page.locator(".reason").first).to_have_text("<i>fault 0</i>")
    page.get_by_text("traceback").first.click()
    expect(page.locator(".trace pre").first).to_have_text("Traceback:\n  <b>0</b>")
    assert page.get_by_role("button", name="chosen").count() == 0
    with scene.client(1) as client, console(scene.config, "--allow-write") as url:
        before = client.xlen("orders")
        page.goto(url)
        page.get_by_role("link", name="Dead letters").click()
        row = page.get_by_role("row", name="orders.dead")
        expect(row.get_by_role("cell")).to_contain_text(
            ["orders.dead", "3", "ago", "billing", "<i>fault 2</i>"]
        )
        row.get_by_role("link").click()
        expect(page.locator("td.id").first).to_contain_text(
            re.compile(r"died 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d")
        )
        page.get_by_role("button", name="Retry chosen").click()
        expect(page.get_by_role("status")).to_have_text("Nothing was chosen, or what was chosen is gone.")
        page.get_by_role("checkbox").nth(1).check()
        page.get_by_role("button", name="Retry chosen").click()
        expect(page.get_by_role("status")).to_have_text("1 retried.")
        assert client.xrevrange("orders", count=1)[0][1] == {"order": "9"}
        assert (client.xlen("orders"), client.xlen("orders.dead")) == (before + 1, 2)
        page.once("dialog", lambda dialog: dialog.dismiss())
        page.get_by_label("all on this page").check()
        page.get_by_role("button", name="Drop chosen").click()
        assert client.xlen("orders.dead") == 2
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Drop chosen").click()
        expect(page.get_by_role("status")).to_have_text("2 dropped.")
        assert client.xlen("orders.dead") == 0
    page.context.close()
    assert scene.browser.complaints == []


def test_a_region_that_is_down_leads_to_the_others(scene: Scene, tmp_path: Path) -> None:
    config = write_config(tmp_path / "braid.toml", {1: "redis://127.0.0.1:1", 2: scene.engines[1].url})
    with scene.client(2) as client:
        eventually(lambda: client.xlen("orders"), within_s=WITHIN_S, why="region 2 should have the orders")
    with console(config) as url:
        page = scene.browser.open(f"{url}/stream?name=orders")
        expect(page.locator(".problems")).to_be_visible()
        page.get_by_role("link", name="region-2").click()
        expect(page.locator("h1")).to_have_text("orders")
        page.context.close()
    scene.browser.complaints.clear()  # Chromium logs the answer 502


def test_a_log_is_shown_by_offset(scene: Scene) -> None:
    page = scene.open("/logs?pattern=pay")
    page.get_by_role("link", name="payments").click()
    expect(page.locator("td.id").last).to_have_text("120 paid")
    page.get_by_role("link", name="Earlier offsets").click()
    expect(page.locator("td.id").first).to_have_text("21 paid")
    page.get_by_label("From offset").fill("7")
    page.keyboard.press("Enter")
    expect(page.locator("td.value").first).to_have_text("order 6")
    expect(page.get_by_text("home region-1")).to_be_visible()
    page.context.close()


def test_a_stream_shows_its_policy_and_what_waits_for_it(scene: Scene) -> None:
    with scene.client(1) as client:
        client.xadd("reminders", {"n": "1"})
        for number in range(3):
            client.xadd("reminders", {"n": str(number)}, delay=3600)
        client.xadd("braid.retention", {"streams": "reminders", "max-age": "7d", "acked": "1"})
    page = scene.open("/stream?name=reminders")
    expect(page.get_by_text("retention: max age 7d, acked")).to_be_visible()
    page.get_by_role("link", name="3 wait for later").click()
    expect(page.locator("td.id")).to_have_count(3)
    page.context.close()
