"""The strategy "ordered" with torch.compile, copies, PyTorch's hooks and arguments; and what it refuses. Its programs: overlap_test.py."""

import ast
import concurrent.futures
import copy
import functools
import io
import os

import firkin
import torch
import torch.distributed as dist
from torch import nn
from models import (
    WIDTH, Lamb, Layers, TestCase, batch, layers, loss_of, of_all, optimizer_of, over_a_slow_link, parameters_of, raised, refusals, same, seeded,
    sgd, train, unlike,
)  # fmt: skip
from ranks import on_ranks
from torch._dynamo import compiled_autograd
from torch.optim.optimizer import register_optimizer_step_post_hook

STEPS = 5  # the first ones leave nothing on its way


def unpickled(saved):
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class Products(torch.optim.Optimizer):
    """Steps by a product of matrices, and makes its state anew in every step."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                last = self.state[p].get("last", torch.zeros_like(p)).mul_(0.5).add_(p.grad)
                self.state[p]["last"] = last.clone()
                rows = last.view(len(p), -1)
                p.sub_((rows @ rows.T @ rows + rows).view_as(p), alpha=group["lr"])


class ScheduleFree(torch.optim.SGD):
    """Its shape: the optimiser moves parameters."""

    def eval(self):
        pass


class Ordered(TestCase):
    @on_ranks(2)
    def test_the_optimizer_steps_without_the_modes_of_the_forward_in_which_it_does(self):
        """Autocast would round its products, inference mode spoil its state for steps elsewhere, and torch.func take no step."""
        models = {strategy: over_a_slow_link(strategy, layers()) for strategy in ("bucketed", "ordered")}
        for model in models.values():
            optimizer = optimizer_of(model, Products, lr=0.1, promises=["elementwise"])
            for step in range(2 * STEPS):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = loss_of(model, step)
                loss.backward()
                optimizer.step()
                if step % 2:
                    with torch.inference_mode():
                        model(batch(step))
                else:
                    torch.func.jvp(model, (batch(step),), (batch(step),))
        self.assertGreater(models["ordered"].stats().awaited_bytes, 0)
        self.assertTrue(same(*map(parameters_of, models.values())))

    @on_ranks(2)
    def test_a_profile_may_end_while_tensors_are_on_their_way(self):
        """PyTorch's ends the process if it has seen their collectives begin, so it sees only those that end with backward."""
        for strategy, recorded in {"bucketed": {"all_reduce"}, "ordered": set(), "sharded": {"all_to_all"}}.items():
            model = over_a_slow_link(strategy)
            optimizer = optimizer_of(model)
            train(model, optimizer, range(STEPS))
            for step in range(3):  # the ranks' next choice of an order comes later
                with torch.profiler.profile() as profile:
                    train(model, optimizer, [step])
                names = {event.name for event in profile.events()}
                self.assertEqual({name.removeprefix("gloo:") for name in names if name.startswith("gloo:")} - {"or"}, recorded, strategy)

    @on_ranks(2)
    def test_a_compiled_block_shows_the_compiler_nothing_of_the_optimizer(self):
        """Which steps within the forward of the block."""
        shown = set()

        def backend(graph, _inputs):
            shown.update(node.target.__name__ for node in graph.graph.nodes if node.op == "call_function")
            return graph.forward

        model, plain = (over_a_slow_link("ordered") for _ in range(2))
        for layer in model.module.layers:
            layer.compile(backend=backend)
        for each in (model, plain):
            train(each, optimizer_of(each, torch.optim.AdamW, lr=1e-3), range(2 * STEPS))
        self.assertGreater(model.stats().awaited_bytes, 0)
        self.assertEqual(shown, {"linear"})
        self.assertEqual(unlike(parameters_of(model)), 0)
        self.assertTrue(same(parameters_of(model), parameters_of(plain)))

    @on_ranks(2)
    def test_without_an_overlapped_optimizer_gradients_of_what_was_thawed_are_there_after_backward(self):
        module = seeded(Layers, [WIDTH] * 5)
        early, late = (list(part.parameters()) for part in (module.layers[:2], module.layers[2:]))
        module.layers[2:].requires_grad_(False)
        model = over_a_slow_link("ordered", module)
        for step in range(2 * STEPS):
            if step == STEPS:
                for p in (*early, *late):
                    p.requires_grad_(not p.requires_grad)
                    p.grad = None
            module.zero_grad()
            loss_of(model, step).backward()
            self.assertTrue(all((p.grad is not None) == p.requires_grad for p in (*early, *late)), step)

    @on_ranks(2)
    def test_copies_and_pickles(self):
        """Each trains on as the original does, and the original as if nothing had been. Not where parameters may be in flight."""
        for name, make in {
            "deepcopy": copy.deepcopy,
            "torch.save": unpickled,
            "deepcopy of the module": lambda model: firkin.DistributedDataParallel(copy.deepcopy(model.module)),
            "torch.save of the module": lambda model: firkin.DistributedDataParallel(unpickled(model.module)),
        }.items():
            model = over_a_slow_link("bucketed")
            optimizer = optimizer_of(model, lr=0.1)
            train(model, optimizer, range(STEPS))
            made = make(model)
            train(model, optimizer, range(STEPS))
            train(made, optimizer_of(made, lr=0.1), range(STEPS))
            self.assertFalse({*model.module.parameters()} & {*made.module.parameters()}, name)
            self.assertTrue(same(parameters_of(model), parameters_of(made)), name)
        for strategy in ("ordered", "sharded"):
            model = over_a_slow_link(strategy)
            optimizer = optimizer_of(model)
            train(model, optimizer, range(STEPS))
            for call in (lambda: copy.deepcopy(model), lambda: unpickled(model.module), lambda: copy.deepcopy(model.module.layers[3])):
                self.assert_refused(refusals({"expected a copy made before wrapping": call}))
            self.assert_refused(refusals({"torch.jit.script takes no module": lambda: torch.jit.script(model.module)}))
            torch.jit.trace(model.module.layers[0], batch(0))
            train(model, optimizer, range(STEPS))

    @on_ranks(2)
    def test_one_thread_of_one_process_runs_the_model_until_it_has_drained(self):
        """Whether or not anything is in flight when another one comes."""
        for strategy in ("bucketed", "ordered", "sharded"):
            model = over_a_slow_link(strategy)
            optimizer = optimizer_of(model)

            def of_another_thread(call):
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    return raised(lambda: pool.submit(torch.inference_mode(call)).result(60))

            def of_a_forked_process(call):
                receiver, sender = os.pipe()
                if (child := os.fork()) == 0:
                    os.write(sender, str(raised(call)).encode())
                    os._exit(0)
                os.close(sender)
                os.waitpid(child, 0)
                with open(receiver) as said:
                    return ast.literal_eval(said.read())

            reads = (lambda: model(batch(0)), model.module.state_dict, lambda: list(model.parameters()), model.drain)
            for step in range(STEPS):
                train(model, optimizer, [step])
                if strategy != "bucketed":
                    for refused in (*map(of_another_thread, reads), of_a_forked_process(model.module.state_dict)):
                        self.assert_refused({"model.drain() in that one": refused})
                model.drain()
                for call in reads:
                    self.assertEqual(of_another_thread(call), (None, ""))
                self.assertEqual(of_a_forked_process(model.module.state_dict), (None, ""))
            self.assertEqual(unlike(parameters_of(model)), 0)

    @on_ranks(2)
    def test_audits_leave_out_what_ranks_keep_to_themselves(self):
        module = layers()
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["layers.0.weight"])
        model = over_a_slow_link("ordered", module.double(), audit_every=2)
        train(model, optimizer_of(model, torch.optim.AdamW, lr=0.01), range(STEPS))
        model.audit()
        self.assertEqual(unlike(list(module.layers[1:].parameters())), 0)
        self.assertFalse(same(*of_all([module.layers[0].weight])))

    @on_ranks(2)
    def test_arguments_are_pytorchs_or_refused_in_one_line(self):
        def make(*arguments, **options):
            return len(firkin.DistributedDataParallel(seeded(Layers, [WIDTH] * 7), *arguments, **options).buckets())

        with_cap, plain = make(cap_mib=0.02), make()
        self.assertIs(firkin.DataParallel, firkin.DistributedDataParallel)
        self.assertTrue(with_cap == make(bucket_cap_mb=0.02) > plain)
        self.assertTrue(plain == make(cap_mib=None) == make(bucket_cap_mb=None))
        self.assertTrue(plain == make(None, None, gradient_as_bucket_view=True) == make(gradient_as_bucket_view=False))
        self.assertEqual(plain, make(device_ids=[], static_graph=False, init_sync=True, dim=0))
        self.assert_refused(refusals({
            "expected one, since they mean the same": lambda: make(cap_mib=1, bucket_cap_mb=2),
            "device_ids [0], output_device None for a module on cpu; expected its one GPU, or None": lambda: make([0]),
            "device_ids [0, 1]": lambda: make(device_ids=[0, 1]),
            "output_device 0": lambda: make(output_device=0),
            "expected plan=": lambda: make(bucket_cap_mb_list=[1, 2]),
            "expected find_unused_parameters=True": lambda: make(static_graph=True),
            "expected its one GPU": lambda: make(device_ids=["cpu"]),
            "expected process_group=mesh.get_group()": lambda: make(device_mesh="mesh"),
        }))  # fmt: skip
        self.assert_refused(refusals({"bucket_cap": lambda: make(bucket_cap=1)}), "TypeError")

    @on_ranks(2)
    def test_what_would_train_otherwise_is_refused_in_one_line(self):
        model = over_a_slow_link("bucketed")
        inner = sgd(model.parameters())
        _optimizer = firkin.OverlappedOptimizer(model, inner)
        train(model, inner, range(2))  # nothing is late

        def shares_memory(strategy):
            module = layers()
            module.layers[1].weight = nn.Parameter(module.layers[0].weight.data)
            over_a_slow_link(strategy, module)

        def freezes_after_forward():
            loss = loss_of(of_a_group, 0)
            of_a_group.module.layers[0].requires_grad_(False)
            loss.backward()

        def compiles_autograd():
            with compiled_autograd._enable(lambda graph: graph):
                loss_of(of_a_group, 0).backward()

        model, of_a_group = over_a_slow_link("ordered"), over_a_slow_link("ordered", process_group=dist.new_group([0, 1]))
        bucketed_of_a_group = over_a_slow_link("bucketed", process_group=dist.new_group([0, 1]))
        optimizer, fresh = optimizer_of(model), over_a_slow_link("ordered")
        patched = sgd(fresh.parameters())
        patched.step = functools.partial(type(patched).step, patched)
        train(model, optimizer, range(STEPS))
        self.assert_refused(refusals({
            "expected OverlappedOptimizer.step() alone": lambda: train(model, optimizer.optimizer, range(1)),
            "expected its state_dict()": lambda: copy.deepcopy(optimizer),
            "expected the default one": lambda: copy.deepcopy(bucketed_of_a_group),
            "SGD.step() steps parameters": lambda: train(model, optimizer, range(1), after_step=sgd(model.parameters()).step),
            "OverlappedOptimizer: Lamb is not known to step each element by itself": lambda: optimizer_of(model, Lamb, lr=0.1),
            "SGD with a step() of its own is not known": lambda: firkin.OverlappedOptimizer(fresh, patched),
            "train() and eval()": lambda: optimizer_of(model, ScheduleFree, lr=0.1, promises=["elementwise"]),
            "step() without exactly one synchronising backward() before it": lambda: train(model, optimizer, range(1), after_step=optimizer.step),
            "one for each step() (accumulate under no_sync())": lambda: train(fresh, optimizer_of(fresh), range(1), loss_of(fresh, 1).backward),
            "the optimiser's option likes is a list": lambda: optimizer_of(model, parameters=[{"params": [*model.parameters()], "likes": [1]}]),
            "expected load_state_dict()": lambda: optimizer.__setstate__({}),
            "layers.1.weight share memory": lambda: shares_memory("ordered"),
            "share memory, and the strategies ordered and sharded step each by itself": lambda: shares_memory("sharded"),
        }))  # fmt: skip
        self.assert_refused(refusals({
            "expected compiled autograd turned off": compiles_autograd,
            "was frozen between forward and backward": freezes_after_forward,
            "a second backward came first": lambda: [loss_of(model, step).backward() for step in range(2)],
        }), "RuntimeError", "StepError", "GroupError")  # fmt: skip
        for register in (optimizer.optimizer.register_step_post_hook, optimizer.register_step_pre_hook, register_optimizer_step_post_hook):
            handle = register(lambda *_: None)
            self.assert_refused(refusals({"is a hook on step()": lambda: train(model, optimizer, range(1))}))
            handle.remove()
        train(model, optimizer, range(STEPS))  # nothing is left of what was refused
