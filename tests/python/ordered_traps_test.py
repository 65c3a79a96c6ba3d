"""Programs under the strategy "ordered", as they are: to the bits of "bucketed", or to one line that says what to write instead."""

import copy
import io
import unittest

import firkin
import torch
import torch.distributed as dist
from models import Layers, batch, numbers, parameters_of, raised, seeded, share
from ranks import with_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

WIDTH = 48
STEPS = 6  # the first ones leave nothing on its way


def wrapped(strategy="ordered", **options):
    """Over a link so slow that gradients are on their way when backward() returns."""
    options = {"strategy": strategy, "cap_mib": 0.01, "experiment": {"link": "100mbit"}, **options}
    return firkin.DistributedDataParallel(seeded(Layers, [WIDTH] * 7), **options)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def loss_of(model, step):
    return model(share(batch(step, WIDTH))).square().mean()


def train(model, optimizer, steps, after_backward=lambda: None, after_step=lambda: None):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        after_backward()
        optimizer.step()
        after_step()


def resumes_with_a_schedule(model):
    inner = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(inner, 0.7)
    train(model, firkin.OverlappedOptimizer(model, inner), range(STEPS), after_step=schedule.step)
    saved = copy.deepcopy((inner.state_dict(), schedule.state_dict()))

    inner = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(inner, 0.7)
    optimizer = firkin.OverlappedOptimizer(model, inner)  # before its state is loaded
    inner.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])
    train(model, optimizer, range(STEPS), after_step=schedule.step)


def loads_right_after_a_step(model):
    optimizer = firkin.OverlappedOptimizer(model, sgd(model.parameters()))
    saved = copy.deepcopy(model.state_dict())
    layer = {name: torch.full_like(value, 0.01) for name, value in model.module.layers[3].state_dict().items()}
    train(model, optimizer, range(STEPS))
    model.load_state_dict(saved)
    train(model, optimizer, range(STEPS))
    model.module.layers[3].load_state_dict(layer)


def loads_the_optimizer_right_after_a_step(model):
    inner = sgd(model.parameters())
    optimizer = firkin.OverlappedOptimizer(model, inner)
    train(model, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, range(STEPS))
    optimizer.load_state_dict(saved)
    train(model, optimizer, range(STEPS))
    return [state["momentum_buffer"] for state in inner.state_dict()["state"].values()]


def steps_plainly(model):
    train(model, sgd(model.parameters()), range(2 * STEPS), after_step=model.drain)


def steps_plainly_beside_an_overlapped_one(model):
    """A second phase with an optimiser of its own; the first one's is still there."""
    first = firkin.OverlappedOptimizer(model, sgd(model.parameters()))
    train(model, first, range(STEPS))
    train(model, sgd(model.parameters()), range(STEPS), after_step=model.state_dict)
    first.drain()


def clips_the_unwrapped_module(model):
    optimizer = firkin.OverlappedOptimizer(model, sgd(model.parameters()))
    train(model, optimizer, range(2 * STEPS), lambda: nn.utils.clip_grad_norm_(model.module.parameters(), 0.05))


def clips_a_layer_and_steps_plainly(model):
    layer = model.module.layers[0]
    train(model, sgd(model.parameters()), range(2 * STEPS), lambda: nn.utils.clip_grad_norm_(layer.parameters(), 0.01))


def clips_a_list_and_steps_plainly(model):
    parameters = list(model.module.parameters())
    train(model, sgd(parameters), range(2 * STEPS), lambda: nn.utils.clip_grad_norm_(parameters, 0.05))


def scales(model, overlapped=True):
    optimizer = sgd(model.parameters())
    if overlapped:
        optimizer = firkin.OverlappedOptimizer(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
    for step in range(2 * STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        scaler.scale(loss * (torch.inf if step == 7 and dist.get_rank() == 0 else 1)).backward()  # one step overflows
        scaler.step(optimizer)
        scaler.update()
    return [torch.tensor(scaler.get_scale())]


def scales_and_steps_plainly(model):
    return scales(model, overlapped=False)


def steps_by_hand(model):
    parameters = list(model.parameters())
    for step in range(2 * STEPS):
        loss_of(model, step).backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 0.1 * parameter.grad
                parameter.grad = None


def averages(model):
    """The unwrapped module's parameters, read right after a step."""
    optimizer = firkin.OverlappedOptimizer(model, sgd(model.parameters()))
    averaged = torch.optim.swa_utils.AveragedModel(model.module)
    of_wrapped = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda mean, now, _: 0.9 * mean + 0.1 * now)

    def update():
        averaged.update_parameters(model.module)
        of_wrapped.update_parameters(model)

    train(model, optimizer, range(2 * STEPS), after_step=update)
    with torch.no_grad():
        output = of_wrapped(share(batch(0, WIDTH)))
    return [*averaged.parameters(), *of_wrapped.parameters(), output]


def schedules_and_checkpoints_the_overlapped_one(model):
    optimizer = firkin.OverlappedOptimizer(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.8**epoch)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, step).backward()
        optimizer.step()
        schedule.step()
    saved = copy.deepcopy((optimizer.state_dict(), schedule.state_dict()))
    optimizer = firkin.OverlappedOptimizer(model, torch.optim.AdamW(model.parameters()))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.8**epoch)
    optimizer.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        return loss

    for _ in range(STEPS):
        assert optimizer.step(closure).item() > 0
        schedule.step()
    return [torch.tensor(group["lr"]) for group in optimizer.param_groups]


def joins_and_steps_plainly(model):
    optimizer = sgd(model.parameters())
    with model.join(optimizer.step):
        train(model, optimizer, range(STEPS + 2 * dist.get_rank()))


def joins(model):
    optimizer = firkin.OverlappedOptimizer(model, sgd(model.parameters()))
    with model.join(optimizer.step):
        train(model, optimizer, range(STEPS + 2 * dist.get_rank()))


def ends_its_steps_by_itself(model):
    model = wrapped(model.strategy, finish_with_backward=False)
    parameters = list(model.parameters())
    optimizer = sgd(parameters)

    def finish():
        model.finish_gradient_synchronization()
        nn.utils.clip_grad_norm_(parameters, 0.05)

    train(model, optimizer, range(2 * STEPS), finish)
    return parameters


def drops_gradients(model):
    optimizer = firkin.OverlappedOptimizer(model, sgd(model.parameters()))
    train(model, optimizer, range(STEPS))
    loss_of(model, 0).backward()  # and no step
    train(model, optimizer, range(STEPS))


PROGRAMS = (
    resumes_with_a_schedule,
    loads_right_after_a_step,
    loads_the_optimizer_right_after_a_step,
    steps_plainly,
    steps_plainly_beside_an_overlapped_one,
    clips_the_unwrapped_module,
    clips_a_layer_and_steps_plainly,
    clips_a_list_and_steps_plainly,
    scales,
    scales_and_steps_plainly,
    steps_by_hand,
    averages,
    schedules_and_checkpoints_the_overlapped_one,
    joins,
    joins_and_steps_plainly,
    ends_its_steps_by_itself,
    drops_gradients,
)


def run_programs(rank):
    """The largest difference in what each reaches, and whether anything could have been on its way."""
    found = {}
    for program in PROGRAMS:
        reached = {}
        for strategy in ("bucketed", "ordered"):
            model = wrapped(strategy)
            results = program(model) or []
            reached[strategy] = [t.detach().clone() for t in [*results, *model.module.state_dict().values()]]
        worst = max(float((a - b).abs().max()) for a, b in zip(reached["bucketed"], reached["ordered"]))
        found[program.__name__] = worst, model.stats().awaited_bytes > 0 or program is ends_its_steps_by_itself
    return found


def compile_blocks(rank):
    """What the compiler was shown while an optimiser stepped within the forward of a compiled block."""
    shown = set()

    def backend(graph, _inputs):
        shown.update(node.target.__name__ for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    model = wrapped()
    for layer in model.module.layers:
        layer.compile(backend=backend)
    train(model, firkin.OverlappedOptimizer(model, torch.optim.AdamW(model.parameters())), range(2 * STEPS))
    compiled = numbers(parameters_of(model))
    plain = wrapped()
    train(plain, firkin.OverlappedOptimizer(plain, torch.optim.AdamW(plain.parameters())), range(2 * STEPS))
    return sorted(shown), compiled, compiled == numbers(parameters_of(plain)), model.stats().awaited_bytes > 0


def unpickled(saved):
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def copies(rank):
    """Each trains on as the original does, and the original as if nothing had been."""
    results = {}
    for name, make in {
        "deepcopy": copy.deepcopy,
        "torch.save": unpickled,
        "deepcopy of the module": lambda model: firkin.DistributedDataParallel(copy.deepcopy(model.module)),
        "torch.save of the module": lambda model: firkin.DistributedDataParallel(unpickled(model.module)),
        "deepcopy of a layer": lambda model: (copy.deepcopy(model.module.layers[5]), model)[1],
    }.items():
        for strategy in ("bucketed", "ordered"):
            model = wrapped(strategy)
            optimizer = firkin.OverlappedOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
            train(model, optimizer, range(STEPS))
            made = make(model)  # while gradients are on their way
            train(model, optimizer, range(STEPS))
            if made is not model:
                train(made, firkin.OverlappedOptimizer(made, torch.optim.SGD(made.parameters(), lr=0.1)), range(STEPS))
            same = all(torch.equal(a, b) for a, b in zip(parameters_of(model), parameters_of(made)))
            apart = made is model or all(a is not b for a, b in zip(model.module.parameters(), made.module.parameters()))
            results[name, strategy] = same and apart and list(made.module.state_dict()) == list(model.module.state_dict())
    module = wrapped().module
    results["nothing of ours in a copy"] = "firkin" not in str([vars(part) for part in copy.deepcopy(module).modules()])
    return results


def compresses(rank):
    results = {}
    for hook, name in ((default_hooks.fp16_compress_hook, "fp16"), (default_hooks.bf16_compress_hook, "bf16")):
        for strategy in ("ordered", "overlap"):
            reached = []
            for register in (True, False):
                module = seeded(Layers, [WIDTH] * 3).float()
                model = firkin.DistributedDataParallel(module, experiment={"strategy": strategy}, compression="none" if register else name)
                if register:
                    model.register_comm_hook(None, hook)
                model(share(batch(0, WIDTH)).float()).square().mean().backward()
                model.drain()
                reached.append([p.grad.clone() for p in module.parameters()])
            stats = model.stats().buckets[0]
            results[name, strategy] = all(torch.equal(a, b) for a, b in zip(*reached)) and stats.bytes_on_wire < 0.6 * stats.bytes
    results["late"] = raised(lambda: model.register_comm_hook(None, default_hooks.fp16_compress_hook))
    model = wrapped()
    results["unknown"] = raised(lambda: model.register_comm_hook(None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)))
    optimizer = firkin.OverlappedOptimizer(model, sgd(model.parameters()))
    results["after the optimizer"] = raised(lambda: model.register_comm_hook(None, default_hooks.fp16_compress_hook))
    train(model, optimizer, range(1))  # nothing is left of what was refused
    return results


def takes_arguments_of_pytorch(rank):
    def make(*arguments, **options):
        return len(firkin.DistributedDataParallel(seeded(Layers, [WIDTH] * 7), *arguments, **options).buckets())

    with_cap, plain = make(cap_mib=0.02), make()
    accepted = [
        firkin.DataParallel is firkin.DistributedDataParallel,
        with_cap == make(bucket_cap_mb=0.02) > plain,
        plain == make(cap_mib=None) == make(bucket_cap_mb=None),
        plain == make(None, None, gradient_as_bucket_view=True),
        plain == make(device_ids=[], static_graph=False, init_sync=True, dim=0),
    ]
    return {
        "accepted": accepted,
        "both caps": raised(lambda: make(cap_mib=1, bucket_cap_mb=2)),
        "views": raised(lambda: make(gradient_as_bucket_view=False)),
        "device": raised(lambda: make([0])),
        "devices": raised(lambda: make(device_ids=[0, 1])),
        "output": raised(lambda: make(output_device=0)),
        "list": raised(lambda: make(bucket_cap_mb_list=[1, 2])),
        "static": raised(lambda: make(static_graph=True)),
        "no GPU": raised(lambda: make(device_ids=["cpu"])),
        "mesh": raised(lambda: make(device_mesh="mesh")),
        "unknown": raised(lambda: make(bucket_cap=1)),
    }


def refuses(rank):
    model = wrapped()
    inner = sgd(model.parameters())
    optimizer = firkin.OverlappedOptimizer(model, inner)
    results = {
        "step of the inner one": raised(lambda: train(model, inner, range(1))),
        "copy of the optimizer": raised(lambda: copy.deepcopy(optimizer)),
    }
    train(model, optimizer, range(STEPS))  # nothing is left of what was refused
    other = dist.new_group([0, 1])
    model = wrapped(process_group=other)
    results["copy with a group"] = raised(lambda: copy.deepcopy(model))
    model = wrapped("bucketed")
    train(model, inner := sgd(model.parameters()), range(2))
    optimizer = firkin.OverlappedOptimizer(model, inner)
    train(model, inner, range(2))  # nothing is late
    return results


HOOKS_REFUSED = {
    "late": "expected before the first step",
    "after the optimizer": "before an OverlappedOptimizer",
    "unknown": "expected bucketed or planned",
}
ARGUMENTS_REFUSED = {
    "both caps": "expected one, since they mean the same",
    "views": "expected True",
    "device": "device_ids [0], output_device None for a module on cpu; expected its one GPU, or None",
    "devices": "device_ids [0, 1]",
    "output": "output_device 0",
    "list": "expected plan=",
    "static": "expected find_unused_parameters=True",
    "no GPU": "expected its one GPU",
    "mesh": "expected process_group=mesh.get_group()",
}
REFUSED = {
    "step of the inner one": "expected OverlappedOptimizer.step()",
    "copy of the optimizer": "expected its state_dict()",
    "copy with a group": "expected the default one",
}


class OrderedTraps(unittest.TestCase):
    def test_programs_train_as_they_do_under_another_strategy(self):
        for found in with_ranks(2, run_programs):
            self.assertEqual(found, {program.__name__: (0, True) for program in PROGRAMS})

    def test_a_compiled_block_shows_the_compiler_nothing_of_the_optimizer(self):
        (shown, first, same, late), (_, second, *_) = with_ranks(2, compile_blocks)
        self.assertTrue(late)
        self.assertEqual(shown, ["linear"])
        self.assertEqual(first, second)
        self.assertTrue(same)

    def test_copies_and_pickles(self):
        for results in with_ranks(2, copies):
            self.assertEqual([name for name, good in results.items() if not good], [])

    def test_comm_hooks_of_pytorch_that_compress(self):
        for results in with_ranks(2, compresses):
            for name, words in HOOKS_REFUSED.items():
                self.assert_refused(results.pop(name), words)
            self.assertEqual(results, dict.fromkeys(results, True))

    def test_arguments_are_pytorchs_or_refused_in_one_line(self):
        for results in with_ranks(2, takes_arguments_of_pytorch):
            self.assertEqual(results.pop("accepted"), [True] * 5)
            self.assertEqual(results.pop("unknown")[0], "TypeError")
            for name, words in ARGUMENTS_REFUSED.items():
                self.assert_refused(results.pop(name), words)
            self.assertEqual(results, {})

    def test_what_would_train_otherwise_is_refused_in_one_line(self):
        for results in with_ranks(2, refuses):
            for name, words in REFUSED.items():
                self.assert_refused(results.pop(name), words)
            self.assertEqual(results, {})

    def assert_refused(self, error, words):
        kind, text = error
        self.assertEqual(kind, "InputError", text)
        self.assertIn(words, text)
        self.assertNotIn("\n", text)


if __name__ == "__main__":
    unittest.main()
