"""Headless Chromium for tests: a page's document after its scripts ran, what was logged, and what was asked for.

CHROMIUM names the browser (default: chromium on the path; None where there is none).
"""

import os
import pathlib
import re
import shutil
import subprocess

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")


def open_page(url: str, width: int, height: int, folder: pathlib.Path) -> tuple[str, str]:
    """The page's document after its scripts ran, and what the browser logged. `folder` is for the browser's own files."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--enable-logging=stderr"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync", f"--window-size={width},{height}"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000", "--dump-dom"]
    command += [f"--log-net-log={folder / 'net.json'}", url]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return result.stdout, result.stderr


def requests_elsewhere(folder: pathlib.Path) -> list[str]:
    """What the last page asked for that is no file, as the browser's network log says; the browser's own errands have no page as their origin."""
    log = (folder / "net.json").read_text()
    requested = re.findall(r'"initiator":"(?:file|null)[^}]*?"url":"([^"]+)"', log)
    requested += re.findall(r'"url":"([^"]+)"[^}]*?"initiator":"(?:file|null)', log)
    return [url for url in requested if not url.startswith(("file:", "data:", "blob:", "chrome", "devtools"))]
