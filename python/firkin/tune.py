"""`torchrun --nproc-per-node N -m firkin.tune my_script.py:build`: firkin.tune for a script's model.

build() returns the model and the step and, optionally, other arguments of DistributedDataParallel, for example
`model, step, {"static_graph": True}`. It is called on every rank once there is a process group: the one that the script
makes when it is imported, else one of NCCL if there is a GPU, or of Gloo. The GPU, that of LOCAL_RANK, is set before
the script is imported. An init_process_group() in build() does nothing. Arguments after `--` are the script's:
`... -m firkin.tune my_script.py:build -- --layers 12`. A script that imports relatively is named as a module of its
package, as for `torchrun -m`: `... -m firkin.tune package.script:build`.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib
import importlib.util
import os
import pathlib
import re
import sys
import time
import types
from collections.abc import Callable
from typing import Any, NoReturn
from unittest import mock

import firkin

_RANK_0_FIRST_S = 2.0

if __name__ != "__main__":
    # So that firkin.tune remains the function after `import firkin.tune`.
    sys.modules[__name__] = firkin.tune  # type: ignore[assignment]


def load_builder(target: str) -> Callable[[], Any]:
    """The function that FILE.py:FUNCTION or MODULE:FUNCTION names. Raises InputError if there is none."""
    script, _, name = target.rpartition(":")
    path = pathlib.Path(script)
    is_file = path.suffix == ".py"
    if not name or not (path.is_file() if is_file else all(map(str.isidentifier, script.split(".")))):
        raise firkin.InputError(f"'{target}': expected FILE.py:FUNCTION, with an existing file, or MODULE:FUNCTION")
    try:
        module = _imported(path) if is_file else importlib.import_module(script)
    except ModuleNotFoundError as error:
        if is_file or not f"{script}.".startswith(f"{error.name}."):  # one that the script imports
            raise
        raise firkin.InputError(f"'{target}': {error}; expected FILE.py:FUNCTION, or a module that python -m finds") from None
    except ImportError as error:
        if not is_file or "with no known parent package" not in str(error):
            raise
        as_module = ".".join(pathlib.Path(os.path.relpath(path)).with_suffix("").parts)
        raise firkin.InputError(f"{script}: ImportError: {error}; expected its name as for torchrun -m: {as_module}:{name}") from None
    builder: Any = getattr(module, name, None)
    if not callable(builder):
        raise firkin.InputError(f"{script}: no function '{name}'")
    function: Callable[[], Any] = builder
    return function


def _imported(path: pathlib.Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules.setdefault(path.stem, module)  # a script may be called like a module that is in use
    spec.loader.exec_module(module)
    return module


def built(builder: Callable[[], Any]) -> tuple[Any, Any, dict[str, Any]]:
    made = builder()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        what = type(made).__name__
        raise firkin.InputError(f"{builder.__name__}() returned a {what}; expected (model, step) or (model, step, ddp_kwargs)")
    return made[0], made[1], dict(made[2]) if len(made) == 3 else {}


def run(arguments: argparse.Namespace) -> int:
    if arguments.link is not None or arguments.world is not None:
        firkin.init_modelled_link(arguments.link or "", arguments.world)
    elif "RANK" not in os.environ:
        load_builder(arguments.target)  # report an error in the target before missing ranks
        raise firkin.InputError("no ranks; expected a start by torchrun: torchrun --nproc-per-node 2 -m firkin.tune FILE.py:FUNCTION")
    from firkin import _core
    from firkin._ranks import Ranks
    from firkin._torch import dist, torch

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    with mock.patch.object(dist, "init_process_group") if arguments.link else contextlib.nullcontext():
        builder = load_builder(arguments.target)
    if not dist.is_initialized():
        rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE")
        try:
            if size and int(rank) >= int(size):
                raise ValueError(f"RANK is {rank} and WORLD_SIZE {size}")  # PyTorch would wait for the others
            dist.init_process_group("nccl" if on_gpu else "gloo")
        except ValueError as error:
            print(f"firkin: {error}; expected RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them", file=sys.stderr)
            raise SystemExit(2) from None
    try:
        ranks = Ranks(None)
        ranks.attempt(lambda: ranks.rank != 0 or _core.check_output_folder(arguments.out, "--out"))  # type: ignore[func-returns-value]
        with mock.patch.object(dist, "init_process_group"):
            model, step, ddp_kwargs = ranks.attempt(lambda: built(builder))
        asked = {"caps_mib": arguments.cap_mib, "time_budget_s": arguments.time_budget_s, "seed": arguments.seed}
        # Nothing is trained afterwards.
        result = firkin.tune(model, step, ddp_kwargs=ddp_kwargs, restore=False, **asked)
        if dist.get_rank() == 0:
            result.save(arguments.out)
            try:
                print(result.results_json if arguments.json else f"{result}wrote {arguments.out}", flush=True)
            except BrokenPipeError:
                pass  # the reader, such as head, has seen what it wanted; the files are written
            except (OSError, ValueError) as error:  # a full disk; a stream that the script has closed
                print(f"firkin: standard output cannot be written: {error}", file=sys.stderr, flush=True)
                return 1
    finally:
        dist.destroy_process_group()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="firkin.tune", description="Chooses gradient buckets for a script's model, under torchrun.")
    returns = "FUNCTION() returns model, step[, arguments of DistributedDataParallel]"
    parser.add_argument("target", metavar="TARGET", help=f"FILE.py:FUNCTION or, as for torchrun -m, MODULE:FUNCTION. {returns}")
    parser.add_argument("--cap-mib", type=float, nargs="*", default=[], help="bucket caps to measure besides the best predicted ones")
    parser.add_argument("--time-budget-s", type=float, default=150.0, help="approximate total time (default: %(default)s)")
    parser.add_argument("--link", help="one rank, without torchrun, over a modelled link, as firkin.init_modelled_link() takes it")
    parser.add_argument("--world", type=int, help="the ranks that the link is modelled for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="firkin-out/tune", help="folder for results.json and report.html (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print results.json instead of text")
    words, of_script = sys.argv[1:], []
    if "--" in words:
        words, of_script = words[: words.index("--")], words[words.index("--") + 1 :]
    # The target is put first: --cap-mib would take one that follows its numbers for another number.
    targets = [word for word in words if re.search(r"(\.py|^[A-Za-z_][\w.]*):[A-Za-z_]\w*$", word)][:1]
    arguments = parser.parse_args(targets + [word for word in words if word not in targets])
    sys.argv = [arguments.target.rpartition(":")[0], *of_script]
    try:
        return run(arguments)
    except firkin.InputError as error:
        if os.environ.get("RANK", "0") != "0":
            # Rank 0 mostly fails with the same line. Its launcher then ends this rank while it waits, and the line is printed once.
            time.sleep(_RANK_0_FIRST_S)
        print(f"firkin: {error}", file=sys.stderr, flush=True)
        return 2


def leave(code: int) -> NoReturn:
    """Ends the process without shutting down the interpreter, where a thread of Gloo's with a tensor to release would abort.

    DistributedDataParallel keeps such threads even after destroy_process_group() (PyTorch 2.13; pytorch issue 190489).
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, its reader has gone, or the program has closed it
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
