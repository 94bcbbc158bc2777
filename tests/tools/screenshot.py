"""The picture of the page in the documentation: run by `make screenshot`."""

from __future__ import annotations

import sys
from pathlib import Path
from sysconfig import get_path
from tempfile import TemporaryDirectory

from selenium.webdriver.common.by import By

from pypm.rules import attention
from pypm.tools import show
from tests.tools.browser import browser
from tests.tools.pages import exported_llama


def screenshot(path: Path) -> None:
    """A rewrite of Llama with 16 layers, before it is made."""
    page = show(exported_llama(), attention.RULES, title="Llama, 16 layers")
    with TemporaryDirectory() as folder, browser(1440, 980) as driver:
        page.save(written := Path(folder) / "page.html")
        text = written.read_text(encoding="utf-8").replace(f"{get_path('purelib')}/", "")
        written.write_text(text, encoding="utf-8")
        driver.get(written.as_uri())
        driver.find_element(By.CSS_SELECTOR, "#world .group.region text.title").click()
        driver.execute_script("lookAtView()")
        driver.save_screenshot(str(path))


if __name__ == "__main__":
    screenshot(Path(sys.argv[1]))
