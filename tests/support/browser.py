"""A real headless Chromium, and what tests ask of a page in it."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from support.waiting import until

_LOOKING_FOR_SERVER = re.compile(r"/device/_stcore/(health|host-config) .* 404 ")
# Without these Chromium looks up its maker's hosts at every start, and waits for them.
_QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip


def artefacts() -> Path:
    """The folder for screenshots."""
    folder = Path(os.environ.get("DECODEWATCH_ARTEFACTS", "artefacts"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Browser:
    """One window of Chromium. `zone` is the time zone that its pages see."""

    def __init__(self, profile: Path, zone: str = "Europe/Berlin") -> None:
        options = Options()
        for flag in (*_QUIET, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.binary_location = _program("chromium")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, Service(_program("chromedriver")))
        self.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": zone})
        self.look(1360)

    def look(self, width: int, *, dark: bool = False, height: int = 900) -> None:
        """Look at pages in this width, and in this mode."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, address: str) -> None:
        """Open a page and wait until it is drawn."""
        self.driver.get(address)
        self.settle()

    def settle(self) -> None:
        """Wait until the page's script has run and its charts are drawn."""
        until(self._drawn, 30, "page drawn")

    def _drawn(self) -> bool:
        return bool(
            self.driver.execute_script(
                """
                const app = document.querySelector('[data-testid="stApp"]');
                const charts = [...document.querySelectorAll('[data-testid="stVegaLiteChart"]')];
                return app && app.dataset.testScriptState === 'notRunning'
                    && document.querySelector('[data-testid="stMain"] [data-testid="stMarkdown"]')
                    && !document.querySelector('[data-testid="stSkeleton"]')
                    && charts.every(one => one.querySelector('canvas, svg'));
                """
            )
        )

    def all(self, selector: str) -> list[WebElement]:
        """Everything that a CSS selector finds."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = '[data-testid="stMain"]') -> str:
        """What the first match shows as text."""
        return str(self.driver.find_element(By.CSS_SELECTOR, selector).text)

    def script(self, code: str, *arguments: Any) -> Any:
        """Run JavaScript in the page."""
        return self.driver.execute_script(code, *arguments)

    def picture(self, name: str) -> Path:
        """Keep a picture of the whole page."""
        height = self.script("return document.querySelector('.stMainBlockContainer').scrollHeight")
        width = self.script("return window.innerWidth")
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height + 64, "deviceScaleFactor": 1, "mobile": False},
        )
        self.settle()
        file = artefacts() / f"{name}.png"
        self.driver.save_screenshot(str(file))
        return file

    def problems(self) -> list[str]:
        """Exceptions that the page shows, and errors in the console since the last call.

        Streamlit looks for its server below the page's own address first; these 404s are its way.
        """
        shown = [one.text for one in self.all('[data-testid="stException"]')]
        log = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        errors = [line["message"] for line in log if line["level"] == "SEVERE"]
        return shown + [text for text in errors if not _LOOKING_FOR_SERVER.search(text)]

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()


def _program(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not installed: `make test` installs it"
    return found


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser for the time of a with statement."""
    made = Browser(profile)
    try:
        yield made
    finally:
        made.close()
