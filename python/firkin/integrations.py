"""Callbacks that tune on the first batches of a training and give its DistributedDataParallel the chosen buckets.

    trainer.add_callback(firkin.integrations.for_transformers(trainer))    # Transformers' Trainer, also with PEFT
    Trainer(callbacks=[firkin.integrations.for_lightning()])               # Lightning

Both take the arguments of firkin.tune (time_budget_s, caps_mib, ...); the callback's `result` holds the outcome.
Training then starts as it would have without them: what firkin.tune restores is as before, and the callback reads
loaders through an iterator of its own.

With watch=True the callback tunes nothing and watches the training: it takes the arguments of firkin.watch, and
`result` is its Watch. Accelerate has no callbacks: firkin.watch(accelerator.prepare(model), writer=accelerator.log).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from firkin import _ddp
from firkin._core import InputError
from firkin._result import TuneResult
from firkin._profile import Step
from firkin._torch import torch
from firkin._tune import tune
from firkin._watch import watch as watch_training
from torch.nn.parallel import DistributedDataParallel as DDP

_BATCHES = 16  # how many batches are read, then reused
# Arguments copied from the program's DistributedDataParallel, with PyTorch's defaults.
_KEPT = {"find_unused_parameters": False, "broadcast_buffers": True, "gradient_as_bucket_view": False, "static_graph": False,
         "device_ids": None, "output_device": None}  # fmt: skip

_log = logging.getLogger("firkin")


def tune_wrapped(ddp: DDP, step: Step, **arguments: Any) -> TuneResult:
    """Runs firkin.tune for the model in `ddp`, which has not stepped yet, and gives `ddp` the chosen buckets."""
    options = {name: value for name, default in _KEPT.items() if (value := getattr(ddp, name, default)) != default}
    hooks = list(ddp._comm_hooks)
    _ddp.remove_hooks(ddp)

    def wrap(module: torch.nn.Module, *, into: DDP | None = None, **kwargs: Any) -> DDP:
        if into is None:
            into = DDP(module, **kwargs)
        else:
            # In place, since the framework holds this object.
            into.__init__(module, **kwargs)  # type: ignore[misc]
        for hook, state in hooks:
            into.register_comm_hook(state, hook)
        return into

    module: torch.nn.Module = ddp.module
    result = tune(module, step, process_group=ddp.process_group, ddp_kwargs=options, wrap=wrap, **arguments)
    wrap(module, into=ddp, **result.ddp_kwargs())
    return result


def _again_and_again(loader: Iterable[Any], end: Callable[[], None] = lambda: None) -> Iterator[Any]:
    first = list(itertools.islice(loader, _BATCHES))
    end()
    while first:
        yield from first


def _to_tune(callback: Any, what: str, model: Any, watch: bool, arguments: dict[str, Any]) -> DDP | None:
    """The model, if the callback is to tune it now; begins the watch if it is to be watched."""
    if not isinstance(model, DDP):
        _log.warning("%s: the model is a %s, not a DistributedDataParallel: nothing was done", what, type(model).__name__)
        return None
    if callback.result is None and watch:
        callback.result = watch_training(model, **arguments)
    return model if callback.result is None else None


def for_transformers(trainer: Any, *, watch: bool = False, **arguments: Any) -> Any:
    """A TrainerCallback for trainer.add_callback(). watch: watch the training instead of tuning."""
    from transformers import TrainerCallback  # type: ignore[import-not-found]

    class Callback(TrainerCallback):  # type: ignore[misc]
        result: Any = None

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if watch and self.result is not None:
                self.result.close()

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if (ddp := _to_tune(self, "for_transformers", trainer.model_wrapped, watch, arguments)) is None:
                return
            trainer.current_gradient_accumulation_steps = 1  # the Trainer's loop sets it again with every batch
            loader = kwargs["train_dataloader"]
            batches = _again_and_again(loader, getattr(loader, "end", lambda: None))

            def step(model: torch.nn.Module) -> None:
                trainer.training_step(model, next(batches))
                if args.max_grad_norm:
                    trainer.accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                trainer.optimizer.step()
                trainer.optimizer.zero_grad()

            self.result = tune_wrapped(ddp, step, **arguments)

    return Callback()


def for_lightning(*, watch: bool = False, **arguments: Any) -> Any:
    """A Callback for Trainer(callbacks=[...]). watch: watch the training instead of tuning."""
    from lightning.pytorch import Callback as LightningCallback  # type: ignore[import-not-found]

    class Callback(LightningCallback):  # type: ignore[misc]
        result: Any = None

        def on_train_end(self, trainer: Any, module: Any) -> None:
            if watch and self.result is not None:
                self.result.close()

        def on_train_start(self, trainer: Any, module: Any) -> None:
            if (ddp := _to_tune(self, "for_lightning", trainer.strategy.model, watch, arguments)) is None:
                return
            if not module.automatic_optimization:
                raise InputError("for_lightning: automatic_optimization is False; expected firkin.tune with your own step")
            batches = _again_and_again(trainer.train_dataloader)
            scaler = getattr(trainer.precision_plugin, "scaler", None) or torch.amp.GradScaler(enabled=False)
            (optimizer,) = trainer.optimizers

            def step(model: torch.nn.Module) -> None:
                batch = trainer.strategy.batch_to_device(next(batches))
                optimizer.zero_grad()
                with trainer.precision_plugin.train_step_context():
                    loss = trainer.strategy._forward_redirection(model, module, "training_step", batch, 0)
                scaler.scale(loss["loss"] if isinstance(loss, Mapping) else loss).backward()
                scaler.step(optimizer)
                scaler.update()

            module.log = module.log_dict = lambda *_, **__: None  # what tuning's steps log is not training's
            try:
                self.result = tune_wrapped(ddp, step, **arguments)
            finally:
                del module.log, module.log_dict

    return Callback()
