"""firkin.DataParallel, the C++ engine from Python, on real ranks over Gloo on the loopback interface."""

import copy
import gc
import logging

import firkin
import torch
import torch.distributed as dist
from firkin._native import check_built_for
from models import (
    WIDTH, Layers, Shuffled, TestCase, WithUnused, loss_of, parameters_of, raised, refusals, same, seeded, sgd, train, unlike,
)  # fmt: skip
from ranks import on_ranks
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.optimizer import _global_optimizer_pre_hooks, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.testing._internal.two_tensor import TwoTensor



def two_linear_layers(width=WIDTH):
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


def two_buckets(module):
    sizes = {name: p.nbytes for name, p in module.named_parameters()}
    last, *others = reversed(sizes)
    return firkin.Plan(((last,), tuple(others)), sizes)


class Fragile(nn.Module):
    """Its forward or its backward can fail between its layers, the latter when some gradients are there."""

    def __init__(self):
        super().__init__()
        self.first, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.fails_in = ""

    def forward(self, x):
        x = self.first(x)
        if self.fails_in == "forward":
            self.fail()
        if self.fails_in == "backward":
            x.register_hook(self.fail)
        return self.last(torch.tanh(x))

    def fail(self, *_):
        raise ValueError("boom")


def come_and_go(times):
    """Wrappers that are dropped while threads of their groups still let go of the last collective."""
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 4)).double()
    for i in range(times):
        model = firkin.DataParallel(module, strategy=("bucketed", "ordered")[i % 2])
        for step in range(2):
            module.zero_grad()
            loss_of(model, step).backward()
        if i % 4 > 1:
            model.drain()
        del model


def with_buffer(name, value):
    module = two_linear_layers()
    module.register_buffer(name, value)
    return module


def of_two_tensors():
    module = nn.Linear(WIDTH, WIDTH)
    module.weight = nn.Parameter(TwoTensor(module.weight.detach(), module.weight.detach().clone()))
    return module


def with_wide_gradients():
    module = nn.Linear(WIDTH, WIDTH).bfloat16()
    module.weight.grad_dtype = torch.float32
    return module


def stepped_in_backward():
    module = seeded(two_linear_layers)
    _apply_optimizer_in_backward(torch.optim.SGD, [module[0].bias], {"lr": 0.1})
    return module


class Lookahead(torch.optim.Optimizer):
    """In the shape of public ones."""

    def __init__(self, optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups


class Engine(TestCase):
    @on_ranks(2)
    def test_hooks_of_the_user_see_the_ranks_own_gradient(self):
        gradients, module, plain = [], seeded(two_linear_layers), seeded(two_linear_layers)
        module[0].weight.register_post_accumulate_grad_hook(lambda p: gradients.append(p.grad.clone()))
        model = firkin.DataParallel(module)
        module[2].weight.register_post_accumulate_grad_hook(lambda p: gradients.append(p.grad.clone()))
        module[2].bias.register_hook(lambda gradient: gradient * 2)
        for step in range(3):
            model.zero_grad()
            loss_of(model, step).backward()
        loss_of(plain, 2).backward()
        self.assertEqual(len(gradients), 6)
        self.assertTrue(same(gradients[-2:], [plain[2].weight.grad, plain[0].weight.grad]))
        mean = plain[2].bias.grad * 2
        dist.all_reduce(mean)
        torch.testing.assert_close(module[2].bias.grad, mean / 2)

    @on_ranks(2)
    def test_join_with_and_without_a_step(self):
        model = firkin.DataParallel(seeded(two_linear_layers))
        optimizer = sgd(model.parameters())
        with model.join(optimizer.step):
            train(model, optimizer, range(2 + 3 * dist.get_rank()))
        self.assertEqual(unlike([*parameters_of(model), *(s["momentum_buffer"] for s in optimizer.state.values())]), 0)
        with model.join():
            train(model, optimizer, range(1 + dist.get_rank()))
        self.assertEqual(unlike(parameters_of(model)), 0)

    @on_ranks(2)
    def test_bad_batches_in_a_row_fail_their_own_steps_and_name_the_rank(self):
        model, good = firkin.DataParallel(seeded(Fragile), cap_mib=1), []
        for step, where in enumerate(("", "forward", "forward", "", "backward", "forward", "forward", "")):
            model.module.fails_in = where if dist.get_rank() == 1 else ""
            model.zero_grad()
            try:
                loss_of(model, 0).backward()
                self.assertEqual(where, "")
                good.append([p.grad.clone() for p in model.parameters()])
            except (firkin.StepError, ValueError) as error:
                self.assertIn("boom", str(error))
                if dist.get_rank() == 0:
                    self.assertEqual((error.rank, error.step, error.reason), (1, step, "boom"))
                self.assertEqual([p.grad for p in model.parameters()], [None] * 4)
                for _ in range(2):
                    model.abandon_step(str(error))
        self.assertTrue(all(same(each, good[0]) for each in good))
        self.assertEqual(model.stats().steps, 3)

    @on_ranks(2)
    def test_bad_input_is_one_line_on_every_rank(self):
        rank, good, wrapped = dist.get_rank(), seeded(two_linear_layers), seeded(two_linear_layers)
        _kept = firkin.DataParallel(wrapped)
        ordered = firkin.DataParallel(seeded(two_linear_layers), strategy="ordered")
        self.assert_refused(refusals({
            "no trainable parameter": lambda: firkin.DataParallel(nn.Tanh()),
            "weight of a lazy module has no shape yet": lambda: firkin.DataParallel(nn.LazyLinear(3)),
            "weight is torch.bfloat16, and its gradient torch.float32": lambda: firkin.DataParallel(with_wide_gradients()),
            "weight is a TwoTensor, which holds other tensors": lambda: firkin.DataParallel(of_two_tensors()),
            "mask is sparse, and only dense tensors travel": lambda: firkin.DataParallel(with_buffer("mask", torch.eye(2).to_sparse())),
            "running_wm is expanded": lambda: firkin.DataParallel(with_buffer("running_wm", torch.eye(2).expand(3, 2, 2))),
            "an optimiser steps 0.bias in backward": lambda: firkin.DataParallel(stepped_in_backward()),
            "0.weight is wrapped already; expected one DataParallel over a module that holds": lambda: firkin.DataParallel(wrapped),
            "rank 1 has": lambda: firkin.DataParallel(two_linear_layers(16 + rank)),
            "rank 1: DataParallel: cap_mib: -1 is not a size; expected MiB": lambda: firkin.DataParallel(good, cap_mib=-1 if rank == 1 else 1),
            "rank 0 has cap 1048576 bytes; rank 1 has cap 2097152 bytes": lambda: firkin.DataParallel(good, cap_mib=1 + rank),
            "rank 1: strategy telepathy": lambda: firkin.DataParallel(good, strategy="telepathy" if rank == 1 else "bucketed"),
            "expected none, bf16 or fp16": lambda: firkin.DataParallel(good, compression="zip"),
            "--link slow": lambda: firkin.DataParallel(good, link="slow"),
            "made for another model": lambda: firkin.DataParallel(good, plan=firkin.Plan((("nobody",),), {"nobody": 8})),
            "expected None or 'automatic'": lambda: firkin.DataParallel(good, buckets="best"),
            "expected bucketed or ordered": lambda: firkin.DataParallel(good, buckets="automatic", strategy="flat"),
            "expected planned or ordered": lambda: firkin.DataParallel(good, plan=two_buckets(good), strategy="flat"),
            "0.weight is on meta": lambda: firkin.DataParallel(two_linear_layers().to("meta")),
            "Lookahead is not known to step each element by itself": lambda: firkin.OverlappedOptimizer(ordered, Lookahead(sgd(ordered.parameters()))),
            "torch.jit.script has compiled 0": lambda: firkin.DataParallel(nn.Sequential(torch.jit.script(good)), strategy="ordered"),
        }))  # fmt: skip
        loss_of(firkin.DataParallel(good), 0).backward()  # nothing is left of what failed

    def test_without_a_process_group(self):
        self.assert_refused(refusals({"init_process_group": lambda: firkin.DataParallel(two_linear_layers())}))

    @on_ranks(2)
    def test_unused_parameters_are_an_error_or_allowed(self):
        model = firkin.DataParallel(seeded(WithUnused, WIDTH))
        self.assertIn("no gradient for spare.weight, spare.bias", raised(lambda: loss_of(model, 0).backward())[1])
        model = firkin.DataParallel(seeded(WithUnused, WIDTH), find_unused_parameters=True)
        loss_of(model, 0).backward()
        self.assertEqual([name for name, p in model.module.named_parameters() if p.grad is None], ["spare.weight", "spare.bias"])

    @on_ranks(2)
    def test_automatic_buckets_are_chosen_and_said(self):
        """Over a link whose latency makes a bucket for each tensor a bad choice."""
        lines, handler = [], logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())
        logging.getLogger("firkin").addHandler(handler)
        self.addCleanup(logging.getLogger("firkin").removeHandler, handler)
        model = firkin.DataParallel(seeded(Layers, [WIDTH] * 3), buckets="automatic", cap_mib=0.0004, link="1gbit,2ms")
        optimizer, steps = torch.optim.SGD(model.parameters(), lr=0.01), 0
        while steps < 3 or steps < 400 and "SETTLED" not in str(model.stats().automatic):
            train(model, optimizer, [steps])
            steps += 1
        self.assertEqual(str(model.stats().automatic), "AutomaticPhase.SETTLED")
        self.assertEqual(unlike(parameters_of(model)), 0)
        self.assert_same(len(model.buckets()))
        self.assertLess(len(model.buckets()), 4)  # of one for each tensor
        if dist.get_rank() == 0:
            self.assertRegex(lines[0], r"buckets? .* instead of")
        else:
            self.assertEqual(lines, [])

    @on_ranks(2)
    def test_goes_without_a_trace(self):
        module = seeded(Layers, [WIDTH] * 3)
        for strategy in ("bucketed", "ordered"):
            model = firkin.DataParallel(module, strategy=strategy)
            loss_of(model, 0).backward()
            model.drain()
            del model
            gc.collect()
        places = ("_forward_pre_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_forward_hooks")
        self.assertEqual([place for part in module.modules() for place in places if len(vars(part).get(place, ()))], [])
        self.assertEqual([key for part in module.modules() for key in vars(part) if "firkin" in str(type(vars(part)[key]))], [])
        torch.jit.script(copy.deepcopy(module))
        self.assertLessEqual(len(_global_optimizer_pre_hooks), 1)  # one for all engines, which stays
        self.assertEqual([p._post_accumulate_grad_hooks or {} for p in module.parameters()], [{}] * 4)
        module.zero_grad()
        loss_of(module, dist.get_rank()).backward()  # alone again: no collective

    @on_ranks(2)
    def test_may_be_collected_while_pytorch_calls_hooks_of_another_ones_optimizer(self):
        def collect(*_):
            gc.collect()

        for strategy in ("bucketed", "ordered", "sharded"):
            for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook):
                gone = firkin.DataParallel(seeded(Layers, [WIDTH] * 3), strategy=strategy)
                stays = firkin.DataParallel(seeded(Layers, [WIDTH] * 3))
                gone.__dict__["itself"] = gone
                del gone
                handle = register(collect)
                train(stays, sgd(stays.parameters()), range(2))
                handle.remove()

    @on_ranks(2)
    def test_an_overlapped_optimizer_may_be_collected_while_the_inner_one_is_saved(self):
        model = firkin.DataParallel(seeded(Layers, [WIDTH] * 3), strategy="ordered")
        inner = sgd(model.parameters())
        gone = firkin.OverlappedOptimizer(model, inner)
        gone.__dict__["itself"] = gone
        del gone
        inner.register_state_dict_pre_hook(lambda *_: gc.collect())
        self.assertEqual(len(inner.state_dict()["param_groups"]), 1)

    @on_ranks(2)
    def test_can_be_dropped_as_soon_as_a_step_has_ended(self):
        come_and_go(20)

    @on_ranks(2)
    def test_names_and_attributes_that_programs_read_are_those_of_pytorch(self):
        ours, theirs = (wrap(seeded(Shuffled), find_unused_parameters=True) for wrap in (firkin.DataParallel, DDP))
        self.assertEqual(list(ours.state_dict()), list(theirs.state_dict()))
        self.assertEqual([n for n, _ in ours.named_parameters()], [n for n, _ in theirs.named_parameters()])
        self.assertEqual(str(ours.load_state_dict(theirs.state_dict())), "<All keys matched successfully>")
        for name in ("broadcast_buffers", "device", "device_ids", "dim", "find_unused_parameters", "output_device", "process_group", "static_graph"):
            self.assertEqual(getattr(ours, name), getattr(theirs, name), name)

    def test_an_engine_for_another_pytorch_is_refused_and_for_another_build_of_it_taken(self):
        check_built_for(torch.__version__.split("+")[0] + "+cu999")
        self.assert_refused(refusals({f"built for torch 2.0.1, but this is {torch.__version__}": lambda: check_built_for("2.0.1")}))
