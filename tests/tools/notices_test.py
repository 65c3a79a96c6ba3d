"""THIRD_PARTY_NOTICES names what is linked and embedded, and the built program and its pages show it.

FIRKIN_SOURCE_DIR is the repository, FIRKIN the built program. Needs the Python with the wheel that the pages' JavaScript came from.
"""

import html
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(os.environ["FIRKIN_SOURCE_DIR"])
from folders import InAFolder
from third_party_notices import INLINED, NOTICES_OF_PAGES, embedded_modules

FIRKIN = os.environ["FIRKIN"]
NOTICES = (ROOT / "THIRD_PARTY_NOTICES").read_text(encoding="utf-8")
INTRODUCTION, _, REST = NOTICES.partition("-" * 80)
OF_PROGRAM, _, OF_PAGES = REST.partition(f"\n{NOTICES_OF_PAGES}\n")

# The first folder of an included header -> the name in THIRD_PARTY_NOTICES; None: of the system.
LIBRARIES = {"CLI": "CLI11", "fmt": "fmt", "gloo": "Gloo", "nlohmann": "nlohmann-json", "nanobind": "nanobind", "pybind11": "pybind11", "torch": "PyTorch",
             "ATen": "PyTorch", "c10": "PyTorch", "caffe2": "PyTorch", "sys": None, "netinet": None, "arpa": None, "net": None, "linux": None}  # fmt: skip
SYSTEM_HEADERS = {"dirent.h", "dlfcn.h", "errno.h", "fcntl.h", "netdb.h", "poll.h", "pthread.h", "sched.h", "signal.h", "spawn.h", "stdio.h",
                  "stdlib.h", "unistd.h"}  # fmt: skip; those of C++ have no dot
MODULES = {path.name for path in (ROOT / "src").iterdir()} | {"firkin"}
LINKED = re.compile(r"lib(torch\w*|c10\w*|cudart|stdc\+\+|m|gcc_s|c|rt|dl|pthread|gomp|asan|ubsan)\.so|ld-linux")  # LibTorch (cudart with its CUDA build), and the system


def includes() -> dict[str, str]:
    """Every header that is included as <...>, with a file that does."""
    folders = [ROOT / "include", ROOT / "src", ROOT / "python"]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in (".h", ".cpp")]
    include = re.compile(r"#\s*include\s*<([^>]+)>")
    return {header: str(file.relative_to(ROOT)) for file in sorted(files) for header in include.findall(file.read_text())}


class Notices(InAFolder):
    def test_every_included_library_has_its_notice(self):
        found = includes()
        self.assertIn("CLI/App.hpp", found)
        for header, file in found.items():
            folder = header.split("/")[0]
            if folder in MODULES or "." not in header or header in SYSTEM_HEADERS:
                continue
            self.assertIn(folder, LIBRARIES, f"{file} includes <{header}>, of a library that is not known to have a notice")
            if name := LIBRARIES[folder]:
                self.assertRegex(OF_PROGRAM, rf"(?m)^{name} [0-9]", f"{file} includes <{header}>")
                self.assertRegex(INTRODUCTION, rf"\b{name} [0-9]")

    def test_the_copies_of_headers_are_those_of_the_notices(self):
        copies = ROOT / "third_party"
        fmt = int(re.search(r"define FMT_VERSION (\d+)", (copies / "fmt/fmt/base.h").read_text())[1])
        json = re.findall(r"define NLOHMANN_JSON_VERSION_\w+ (\d+)", (copies / "nlohmann_json/nlohmann/detail/abi_macros.hpp").read_text())
        cli11 = re.search(r'define CLI11_VERSION "([\d.]+)"', (copies / "cli11/CLI/Version.hpp").read_text())[1]
        versions = {"CLI11": cli11, "fmt": f"{fmt // 10000}.{fmt // 100 % 100}.{fmt % 100}", "nlohmann-json": ".".join(json)}
        for name, version in versions.items():
            self.assertIn(f"{name} {version}", INTRODUCTION.replace("\n    ", " "))
            self.assertIn(f"| {name} {version} |", (copies / "README.md").read_text())

    def test_every_linked_library_is_libtorchs_or_the_systems(self):
        for program in filter(os.path.exists, (FIRKIN, f"{FIRKIN}-measure")):
            dynamic = subprocess.run(["readelf", "-d", program], check=True, capture_output=True, text=True).stdout
            linked = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
            self.assertIn("libstdc++.so.6", linked)
            self.assertEqual([name for name in linked if not LINKED.match(name)], [])

    def test_every_script_in_the_pages_has_its_notice_and_nothing_else_has(self):
        embedded = {f"{name} {version}" for name, version in embedded_modules().items()}
        self.assertGreaterEqual({name.partition(" ")[0] for name in embedded}, {"vega", "vega-lite", "vega-embed"})
        heads = "\n".join(re.findall(r"-{80}\n(.*?)\n\n", OF_PAGES, re.DOTALL)).replace("\n", " ")
        noted = set(re.findall(r"(?<!part of )(?<![\w-])([a-z][a-z0-9-]+ \d+\.\d+\.\d+)(?!, in )(?![\w.])", re.sub(r" {2,}", " ", heads)))
        self.assertEqual(embedded - noted, set(), "run tools/third_party_notices.py")
        self.assertEqual(noted - embedded, set(), "run tools/third_party_notices.py")
        for module, inlined in INLINED.items():
            for name in inlined:
                self.assertRegex(OF_PAGES, rf"{name} [\d.]+, in {module}")

    def test_the_program_prints_them(self):
        result = subprocess.run([FIRKIN, "--licenses"], check=True, capture_output=True, text=True)
        self.assertEqual(result.stdout, NOTICES)

    def test_a_page_shows_those_of_its_scripts(self):
        subprocess.run([FIRKIN, "report", ROOT / "tests/report/data/tune.json", "--out", self.folder], check=True, capture_output=True)
        text = (self.folder / "report.html").read_text(encoding="utf-8")
        shown = re.search(r"<summary>Licences of the code in this page</summary>.*?<pre>(.*?)</pre>", text, re.DOTALL)
        self.assertIsNotNone(shown)
        self.assertEqual(html.unescape(shown[1]), OF_PAGES.partition("\n")[2].strip())
