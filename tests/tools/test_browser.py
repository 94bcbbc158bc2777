"""The page in a real browser: clicks, keys, search, steps; nothing hostile runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="no selenium: `make env` installs it")

from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from pypm.rules import attention
from pypm.tools import Page, show
from tests.tools.browser import CHROMIUM, DRIVER, browser
from tests.tools.pages import (
    HOSTILE,
    choose,
    clamped,
    exported,
    exported_llama,
    exported_small,
    hostile,
    large,
    once,
)

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no Chromium with its driver: `make browser` installs it"
)


@pytest.fixture(scope="module")
def driver() -> Iterator[Chrome]:
    with browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def llama() -> Page:
    return show(exported_llama(), attention.RULES, near=False, title="Llama")


@pytest.fixture(autouse=True)
def _quiet(driver: Chrome) -> Iterator[None]:
    """Nothing is said in the console: no errors, and nothing that was to be loaded."""
    yield
    assert driver.get_log("browser") == []


class Reader:
    """One who looks at a page."""

    def __init__(self, driver: Chrome, page: Page, folder: Path) -> None:
        self.driver = driver
        self.clicks = 0
        path = folder / "page.html"
        page.save(path)
        driver.get(path.as_uri())
        assert driver.execute_script("return document.body.dataset.ready") == "true"

    def click(self, css: str) -> None:
        self.driver.find_element(By.CSS_SELECTOR, css).click()
        self.clicks += 1
        self.wait()

    def press(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)
        self.wait()

    def wait(self) -> None:
        """Until a large graph is drawn."""
        WebDriverWait(self.driver, 30, 0.02).until(
            lambda driver: not driver.execute_script("return 'busy' in document.body.dataset")
        )

    def text(self, css: str) -> str:
        return self.driver.find_element(By.CSS_SELECTOR, css).text

    def texts(self, css: str) -> list[str]:
        return [found.text for found in self.driver.find_elements(By.CSS_SELECTOR, css)]

    def count(self, css: str) -> int:
        return len(self.driver.find_elements(By.CSS_SELECTOR, css))

    def fits(self, css: str) -> bool:
        """Whether an element shows all of its text in its width."""
        found = f"document.querySelector({css!r})"
        return bool(self.script(f"{found}.scrollWidth <= {found}.clientWidth"))

    def script(self, code: str) -> Any:
        return self.driver.execute_script(f"return {code}")


def test_a_small_model(driver: Chrome, tmp_path: Path) -> None:
    page = show(exported_small(), [clamped, once])
    reader = Reader(driver, page, tmp_path)
    assert reader.text("#summary") == f"2 rewrites on {len(page.recording.start)} nodes"
    assert len(reader.texts("#world .node.region")) == 2
    assert "relu" in " ".join(reader.texts("#world .node text"))
    reader.click("#world .node.region")
    assert "Fused by clamped, rewrite " in reader.text("#detail .fate")
    reader.click("#detail .fate")
    assert reader.text("#detail h2") == "clamped"
    assert "aten.relu.default" in reader.text("#detail pre.before")
    assert "aten.clamp.default" in reader.text("#detail pre.after")
    assert "def Relu(x):" in reader.text("#detail")
    assert "torch.relu(" in reader.text("#detail")


def test_near_misses(driver: Chrome, tmp_path: Path) -> None:
    reader = Reader(driver, show(exported_small(), [clamped, once]), tmp_path)
    reader.click("[data-kind='Near misses']")
    assert "x.dtype" in reader.text("#detail pre")
    said = "#detail .said"
    assert "1 site fails only because" in reader.text(said)
    assert reader.fits(said)
    assert reader.fits("[data-kind='Near misses'] .grow")
    assert len(reader.texts("#world .chosen")) == 1


def test_near_misses_beyond_a_few_are_folded(driver: Chrome, tmp_path: Path) -> None:
    page = show(exported_small(), [clamped, once])
    page = replace(page, misses=page.misses * (10 // len(page.misses)))
    reader = Reader(driver, page, tmp_path)
    rows = "[data-kind='Near misses']"
    assert len([text for text in reader.texts(rows) if text]) == 8
    reader.click("#contents > .folded:last-child > summary")
    assert reader.text("#contents > .folded:last-child > summary") == "2 more"
    assert len([text for text in reader.texts(rows) if text]) == 10
    reader.click(f".folded {rows}")
    assert reader.text("#detail h2") == "once nearly matches"


def test_costs(driver: Chrome, tmp_path: Path) -> None:
    page = show(exported_small(), [clamped, once], choose=choose, near=False)
    reader = Reader(driver, page, tmp_path)
    chosen = "[data-kind='Chosen by cost']"
    assert [text.split("\n") for text in reader.texts(chosen)] == [
        ["relu: clamped", "1.67 times as fast"],
        ["relu_1: left as it is", "0.25 times as fast"],
    ]
    assert "5 us, 40 % of the bound" in reader.text("#world .node.region")
    assert reader.count("#world .left") == 0
    driver.find_elements(By.CSS_SELECTOR, chosen)[1].click()
    assert reader.text("#detail h2") == "Left as it is"
    for words in ("clamped", "saves nothing", "5 us", "40 %", "20 us", "10 %", "at best 2 us"):
        assert words in reader.text("#detail table")
    assert len(reader.texts("#world .chosen")) == 1
    reader.press(Keys.ARROW_RIGHT)
    rows = reader.texts("#detail .costs tr")
    assert rows[1:] == ["as it is 5 us 40 %", "replaced 3 us 67 %", "at best 2 us 100 %"]
    assert "1.67 times as fast, as the test says" in reader.text("#detail")


def test_headroom_is_told_by_text_and_border_too(driver: Chrome, tmp_path: Path) -> None:
    page = show(exported_small(), [clamped, once], choose=choose, near=False)
    reader = Reader(driver, page, tmp_path)
    assert reader.count("#world .h1, #world .h2") == 0
    reader.click("#headroom")
    assert reader.count("#world .region.h2") == 2
    left = reader.text("#world .left")
    assert left.startswith("relu\n")
    assert left.endswith("5 us, 40 % of the bound")
    assert len(reader.texts("#legend li")) == 5
    assert "most headroom" in reader.text("#legend")
    borders = (
        "[...document.querySelectorAll('#legend rect')]"
        ".map((rect) => getComputedStyle(rect).strokeDasharray)"
    )
    assert len({*reader.script(borders)}) == 5
    region = "getComputedStyle(document.querySelector('#world .h2 > rect')).strokeDasharray"
    assert reader.script(region) == reader.script(borders)[2]
    reader.click("#after")
    assert "3 us, 67 % of the bound" in " ".join(reader.texts("#world .region.h1"))
    reader.click("#world .left")
    reader.click("#detail .fate")
    assert reader.text("#detail h2") == "Left as it is"
    reader.click("#headroom")
    assert reader.count("#world .left") == 0
    assert not driver.find_element(By.ID, "legend").is_displayed()


def test_without_bounds_there_is_no_headroom(driver: Chrome, tmp_path: Path) -> None:
    for options in ({}, {"choose": lambda candidate: 1e-6}):
        page = show(exported_small(), clamped, near=False, **options)
        reader = Reader(driver, page, tmp_path)
        assert not driver.find_element(By.ID, "headroom").is_displayed()
        reader.press(Keys.ARROW_RIGHT)
        assert reader.text("#position") == "1 of 2, before"


def test_heads_are_not_broken_inside_words(driver: Chrome, tmp_path: Path) -> None:
    named = [replace(clamped, name="clamped_" * 12), replace(once, name="once_" * 20)]
    reader = Reader(driver, show(exported_small(), named), tmp_path)
    reader.click("#detail .folded summary")
    heights = reader.script("[...document.querySelectorAll('th')].map((th) => th.offsetHeight)")
    assert len(set(heights)) == 1
    assert len(heights) == 12
    reader.click("#contents [data-rule='0'] summary")
    assert reader.text("#detail h2") == named[0].name
    assert reader.count("#detail h2 wbr") == 11


def test_rules_that_rewrote_nothing_are_folded(driver: Chrome, tmp_path: Path) -> None:
    reader = Reader(driver, show(exported_small(), [clamped, once]), tmp_path)
    for place in ("#contents", "#detail"):
        folded = f"{place} .folded"
        assert reader.texts(f"{folded} > summary") == ["1 rule rewrote nothing"]
        assert "once" not in reader.text(folded)
        reader.click(f"{folded} > summary")
        assert "once" in reader.text(folded)
        assert "clamped" not in reader.text(folded)


def test_a_narrow_screen_has_room_for_the_graph(
    driver: Chrome, tmp_path: Path, llama: Page
) -> None:
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        reader = Reader(driver, llama, tmp_path)
        size = "(({ width, height }) => [width, height])(svg.getBoundingClientRect())"
        width, height = reader.script(size)
        assert width == 390
        assert height > 350
        reader.click("#forward")
        assert reader.text("#position") == "1 of 16, before"
        assert reader.script("document.documentElement.scrollWidth") == 390
        assert reader.script("window.scrollY") == 0
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_steps_by_keys(driver: Chrome, tmp_path: Path) -> None:
    page = show(exported_small(), [clamped], near=False)
    reader = Reader(driver, page, tmp_path)
    shown = []
    for _ in range(5):
        operators = [text.split("\n")[0] for text in reader.texts("#world .node")]
        shown.append((reader.text("#position"), operators.count("relu"), operators.count("clamp")))
        reader.press(Keys.ARROW_RIGHT)
    assert shown == [
        ("all 2 rewrites", 2, 0),
        ("1 of 2, before", 2, 0),
        ("1 of 2, after", 1, 1),
        ("2 of 2, before", 1, 1),
        ("2 of 2, after", 0, 2),
    ]
    reader.press(Keys.ARROW_LEFT)
    assert reader.text("#position") == "2 of 2, before"
    reader.press(Keys.SPACE)
    assert reader.text("#position") == "2 of 2, after"
    reader.press(Keys.ESCAPE)
    assert reader.text("#position") == "all 2 rewrites"
    assert reader.script("[...replay(data, 2).keys()].length") == len(page.recording.at(2))


def test_which_rule_fused_a_node_takes_two_clicks(
    driver: Chrome, tmp_path: Path, llama: Page
) -> None:
    node = llama.report.rewrites[-1].before[-1].name
    reader = Reader(driver, llama, tmp_path)
    reader.click("#search")
    reader.press(node)
    reader.click("[data-hit]")
    assert reader.text("#detail .fate") == "Fused by sdpa, rewrite 16 of 16"
    assert reader.clicks == 2
    assert reader.text("#world .chosen").startswith("matmul")


def test_llama(driver: Chrome, tmp_path: Path, llama: Page) -> None:
    reader = Reader(driver, llama, tmp_path)
    assert len(llama.html) < 1_000_000
    assert reader.count("#world .node, #world .group") < 250
    reader.click("#world .group.region text.title")
    assert reader.text("#detail h2") == "sdpa"
    assert "of 16, before" in reader.text("#position")
    reader.click("#after")
    step = int(reader.text("#position").split()[0]) - 1
    current = [text.split("\n")[0] for text in reader.texts("#world .node.current")]
    assert "scaled_dot_product_attention" in current
    assert len(current) == len(llama.report.rewrites[step].after)
    reader.click("#before")
    closed = "document.querySelector('#world .group.current.open')"
    reader.script(f"{closed}.dispatchEvent(new MouseEvent('dblclick', {{bubbles: true}}))")
    assert reader.script(closed) is None
    reader.press("/")
    reader.press("layers.3 softmax")
    assert len(reader.texts("[data-hit]")) == 1


CROSSED = """
const between = (low, at, high) => low + 1 < at && at < high - 1;
const inside = (box, { x, y }) =>
  between(box.left, x, box.right) && between(box.top, y, box.bottom);
const boxes = [...document.querySelectorAll("#world > g")].map((found) => {
  const { x, y, width, height } = found.querySelector("rect").getBBox();
  const key = found.dataset.group ?? `n${found.dataset.node}`;
  return { key, left: x, top: y, right: x + width, bottom: y + height };
});
const around = (key) => {
  const item = key[0] === "n" ? scene.items.get(Number(key.slice(1))) : scene.groups.get(key);
  const found = new Set();
  for (let at = item; at; at = at.parent) found.add(at.items ? at.key : key);
  return found;
};
return [...document.querySelectorAll("#world .edge")].flatMap((edge) => {
  const { from, to } = edge.dataset, own = new Set([...around(from), ...around(to)]);
  const length = edge.getTotalLength() / 2;
  const points = Array.from({ length }, (_, i) => edge.getPointAtLength(2 * i));
  return boxes.filter((box) => !own.has(box.key) && points.some((point) => inside(box, point)))
    .map((box) => `${from} to ${to} through ${box.key}`);
});
"""


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_no_edge_passes_under_what_it_has_nothing_to_do_with(
    driver: Chrome, tmp_path: Path, name: str
) -> None:
    reader = Reader(driver, show(exported(name, 1), attention.RULES, near=False), tmp_path)
    for action in ("#before", "#forward", "#after", "#expand"):
        reader.click(action)
        assert reader.count("#world .group.open")
        assert reader.count("#world .edge") > 20
        assert driver.execute_script(CROSSED) == []


def test_five_thousand_nodes(driver: Chrome, tmp_path: Path) -> None:
    page = show(large(), clamped, near=False)
    reader = Reader(driver, page, tmp_path)
    assert len(page.report) == 500
    assert reader.count("#world .node, #world .group") < 250
    reader.press(Keys.ARROW_RIGHT)
    assert int(reader.script("document.body.dataset.drawn")) < 5000
    reader.click("#expand")
    assert reader.count("#world .node") > 5000
    reader.click("#collapse")
    assert reader.count("#world .node") < 250


def test_a_large_graph_says_that_it_is_drawn(driver: Chrome, tmp_path: Path) -> None:
    reader = Reader(driver, show(large(), clamped, near=False), tmp_path)
    said = "getComputedStyle(document.querySelector('main'), '::after').content"
    assert reader.script(said) == "none"
    driver.execute_script(
        f"document.getElementById('after').click();"
        f"window.during = [{said}, document.getElementById('after').ariaPressed]"
    )
    assert reader.script("window.during") == ['"Drawing …"', "false"]
    reader.wait()
    assert reader.script(said) == "none"
    assert reader.script("document.getElementById('after').ariaPressed") == "true"


def test_hostile_names_are_text(driver: Chrome, tmp_path: Path) -> None:
    reader = Reader(driver, hostile(), tmp_path)
    assert reader.text("h1") == HOSTILE.strip("\u2028")
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT):
        reader.press(key)
        assert "onerror" in reader.text("#detail")
    for row in driver.find_elements(By.CSS_SELECTOR, "#contents button.row"):
        row.click()
    reader.press("f")
    reader.click("#world .node")
    assert "onerror" in reader.text("#detail pre")
    reader.press("/")
    reader.press("img")
    assert len(reader.texts("[data-hit]")) == 3
    assert reader.script("document.images.length") == 0
    assert reader.script("window.hostile") is None
