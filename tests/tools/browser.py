"""A headless Chromium, Debian's or another that is installed, driven by selenium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


@contextmanager
def browser(width: int = 1440, height: int = 900) -> Iterator[Chrome]:
    """A window of a given size, of a browser that has never been anywhere."""
    assert CHROMIUM is not None
    assert DRIVER is not None
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (*ARGUMENTS, f"--window-size={width},{height}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()
