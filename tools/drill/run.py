"""Runs the parts of `tools/gpu-drill run` and prints one line for each. What a part leaves in its folder is packed into OUT/NAME.tar.gz.

With --quick every part takes seconds, and with --dry the CPU takes the GPU's place as well: then times prove nothing, and only what must be
right is judged.
"""

import argparse
import json
import pathlib
import shutil
import sys
import tarfile
import time

from drill import ROOT, Drill, Failed, Finding, Refused, stop
from parts import PARTS

LIMIT_S = 540  # of all parts together
MOST_BYTES = 16 << 20  # of a file in OUT


def pack(folder, archive):
    """All files of a folder, from the smallest on, as far as they fit; then the folder goes."""
    files = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    while True:
        with tarfile.open(archive, "w:gz") as tar:
            for path in files:
                tar.add(path, arcname=path.relative_to(folder.parent))
        if archive.stat().st_size <= MOST_BYTES:
            break
        print(f"gpu-drill: {files.pop().name} is left out of {archive.name}: too large", file=sys.stderr)
    shutil.rmtree(folder)


def outcome(drill, part):
    """PASS, FAIL or SKIP, and the line that says why: what was found until something failed."""
    found, results = [], {}
    for command in part.commands:
        try:
            found.append(command(drill, results))
        except Exception as error:  # a part that is broken itself does not stop the others
            text = str(error) if isinstance(error, (Failed, Refused)) else f"{type(error).__name__}: {error}"
            if getattr(command, "is_judged", True):
                found.append(Finding("", refused=text) if isinstance(error, Refused) else Finding(text, right=False))
                break
            found.append(Finding(text))
    found = [finding for finding in found if finding is not None]
    texts, fast = [finding.text for finding in found if finding.text], all(finding.fast for finding in found)
    if not fast and drill.quick:
        texts.append("times missed their bars, which count in a whole run on a GPU")
    refused = [f"refused: {finding.refused}" for finding in found if finding.refused]
    is_wrong = not all(finding.right for finding in found) or not (fast or drill.quick)
    return "FAIL" if is_wrong else "SKIP" if refused else "PASS", "; ".join(texts + refused)


def main():
    parser = argparse.ArgumentParser(prog="gpu-drill run")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT", help="folder for results.json and what each part left")
    parser.add_argument("--quick", action="store_true", help="seconds for each part: whether it runs; times are not judged")
    parser.add_argument("--dry", action="store_true", help="--quick with the CPU in the GPU's place")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-drill/kit", help="folder with the programs (build-drill/kit)")
    parser.add_argument("--only", default="", help="parts, by their numbers: 1,3")
    arguments = parser.parse_args()
    if not (arguments.build / "firkin").exists():
        print(f"gpu-drill: {arguments.build} holds no firkin; expected what tools/gpu-drill build makes, or a build", file=sys.stderr)
        return 2
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    drill = Drill(out, arguments.build.resolve(), arguments.dry, arguments.quick, LIMIT_S)
    results = {"dry": arguments.dry, "quick": drill.quick, "parts": []}
    only = {int(number) for number in arguments.only.split(",") if number} or set(range(1, len(PARTS) + 1))
    if len(PARTS) in only:
        try:
            drill.package.begin(drill.folder_of(len(PARTS), PARTS[-1]))
        except Exception as error:  # the package's part will fail, and no other
            print(f"gpu-drill: the Python package is not built: {type(error).__name__}: {error}", file=sys.stderr)
    drill.deadline = time.monotonic()
    for number, part in enumerate(PARTS, 1):
        if number not in only:
            continue
        began = time.monotonic()
        drill.deadline += part.seconds  # and what the parts before have left of theirs
        drill.folder = drill.folder_of(number, part)
        status, text = outcome(drill, part)
        seconds = time.monotonic() - began
        print(f"{status} {number} {part.name}, {seconds:.0f} s: {text}", flush=True)
        results["parts"].append({"name": part.name, "status": status, "text": text, "seconds": round(seconds, 1)})
        pack(drill.folder, out / f"{drill.folder.name}.tar.gz")
        results["environment"] = drill.machine
        (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    if drill.package.process is not None:
        stop(drill.package.process)
    return any(part["status"] == "FAIL" for part in results["parts"])


if __name__ == "__main__":
    sys.exit(main())
