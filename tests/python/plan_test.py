"""firkin.Plan against stock DistributedDataParallel: the list of caps gives the plan's buckets, and check() tells when it does not.

One rank is enough: PyTorch cuts buckets without asking the others.
"""

import random
import unittest

import firkin
import torch
import torch.distributed as dist
from firkin import _ddp
from firkin._core import caps_of_counts
from models import Layers, Shuffled, TestCase, WithUnused, inputs, refusals, step_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

HAS_LISTS = _ddp.takes_lists()


def setUpModule():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    unittest.addModuleCleanup(dist.destroy_process_group)


def ready_order(model):
    """Names in the order in which one backward readies them."""
    order = []
    hooks = [p.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name)) for name, p in model.named_parameters()]
    model(inputs(model)).sum().backward()
    for hook in hooks:
        hook.remove()
    model.zero_grad()
    return order


def profile_of(model):
    order = ready_order(model)
    sizes = {name: p.numel() * p.element_size() for name, p in model.named_parameters()}
    return firkin.Profile(order, [sizes[name] for name in order], [0.001 * i for i in range(len(order))])


def caps_of(plan):
    """PyTorch's argument that makes these buckets."""
    counts = [len(bucket) for bucket in plan.buckets]
    return {"bucket_cap_mb_list": caps_of_counts(counts, [plan.bytes[name] for bucket in plan.buckets for name in bucket])}


def random_counts(total, generator):
    counts = []
    while sum(counts) < total:
        counts.append(min(generator.randint(1, 5), total - sum(counts)))
    return counts


def stepped(model, steps, **kwargs):
    ddp = DDP(model, **kwargs)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        ddp(inputs(model)).sum().backward()
        optimizer.step()
    return ddp


def layers(seed=0):
    generator = random.Random(seed)
    return Layers([generator.choice([3, 8, 17, 64, 120]) for _ in range(9)])


@unittest.skipUnless(HAS_LISTS, "this PyTorch has no bucket_cap_mb_list")
class ThroughPyTorch(unittest.TestCase):
    def test_random_plans_are_what_pytorch_makes(self):
        for seed in range(20):
            model = layers(seed)
            profile = profile_of(model)
            plan = firkin.Plan.of_counts(profile, random_counts(len(profile), random.Random(seed)))
            with self.subTest(seed=seed, buckets=len(plan.buckets)):
                plan.check(stepped(model, 3, **caps_of(plan)))

    def test_a_wrong_plan_is_refused_by_its_first_differing_bucket(self):
        for seed in range(5):
            model = layers(seed)
            profile = profile_of(model)
            generator = random.Random(seed)
            counts = [2, *random_counts(len(profile) - 2, generator)]
            plan = firkin.Plan.of_counts(profile, counts)
            k = generator.randrange(len(counts) - 1)
            wrong = list(counts)
            wrong[k : k + 2] = [counts[k] + counts[k + 1]]  # two buckets as one
            ddp = stepped(model, 3, **caps_of(plan))
            with self.assertRaisesRegex(firkin.InputError, rf"^check: bucket {k} has .* (?:B|MiB) \(.*\); expected .* (?:B|MiB) \(.*\)$"):
                firkin.Plan.of_counts(profile, wrong).check(ddp)

    def test_a_model_used_in_another_order_than_registered_and_one_with_a_tied_parameter(self):
        for model, counts in ((Shuffled(), [1, 2, 3]), (Layers([16, 16, 16, 16], tied=True), [2, 2, 1])):
            plan = firkin.Plan.of_counts(profile_of(model), counts)
            plan.check(stepped(model, 3, **caps_of(plan)))

    def test_before_the_rebuild_check_says_what_to_do(self):
        model = layers()
        plan = firkin.Plan.of_counts(profile_of(model), [4, 12])
        with self.assertRaisesRegex(firkin.InputError, "no rebuild of the buckets is logged yet.*expected at least 3 training steps"):
            plan.check(stepped(model, 1, **caps_of(plan)))

    def test_a_static_graph_has_its_buckets_a_step_later(self):
        model = layers()
        plan = firkin.Plan.of_counts(profile_of(model), [4, 5, 7])
        kwargs = caps_of(plan) | {"static_graph": True}
        with self.assertRaisesRegex(firkin.InputError, "expected at least 4 training steps"):
            plan.check(stepped(model, 3, **kwargs))
        plan.check(stepped(layers(), 4, **kwargs))

    def test_a_compiled_module_is_looked_into(self):
        model = Layers([16, 16, 16])
        plan = firkin.Plan.of_counts(profile_of(model), [1, 3])
        ddp = torch.compile(DDP(model, **caps_of(plan)), backend="eager")
        with torch._dynamo.config.patch(optimize_ddp=False):  # its graph splitter refuses caps below 1 MiB
            for _ in range(3):
                ddp(inputs(model)).sum().backward()
        plan.check(ddp)


class Caps(unittest.TestCase):
    def test_with_find_unused_parameters_buckets_are_never_rebuilt_and_are_checked_too(self):
        model = layers()
        sizes = {name: p.nbytes for name, p in model.named_parameters()}
        names = [[list(sizes)[i] for i in bucket] for bucket in firkin.assign_buckets(list(sizes.values()), cap_mib=0.02)]
        ddp = stepped(model, 2, bucket_cap_mb=0.02, find_unused_parameters=True)
        firkin.Plan(names[::-1], sizes).check(ddp)
        with self.assertRaisesRegex(firkin.InputError, r"^check: bucket 0 has .* MiB \(.*\); expected .* MiB"):
            firkin.Plan([list(sizes)], sizes).check(ddp)

    def test_a_uniform_cap_is_checked_too(self):
        model = layers()
        profile = profile_of(model)
        counts = [len(bucket) for bucket in firkin.assign_buckets(profile.bytes, cap_mib=0.02)]
        firkin.Plan.of_counts(profile, counts).check(stepped(model, 3, bucket_cap_mb=0.02))


class Prefix(nn.Module):
    """Whose parameters have the prefix of a wrapped module's."""

    def __init__(self):
        super().__init__()
        self.module = Layers([8, 8, 8])


class Names(unittest.TestCase):
    def test_are_the_modules_own_however_it_was_wrapped(self):
        sizes = {name: p.nbytes for name, p in Layers([8, 8, 8]).named_parameters()}
        compiled_part = Layers([8, 8, 8])
        compiled_part.layers[0] = torch.compile(compiled_part.layers[0])
        wrapped = [torch.compile(Layers([8, 8, 8])), DDP(Layers([8, 8, 8])), DDP(torch.compile(Layers([8, 8, 8]))), torch.compile(DDP(Layers([8, 8, 8]))),
                   compiled_part]  # fmt: skip
        for model in wrapped:
            named = {name: p.nbytes for name, p in model.named_parameters()}
            self.assertNotEqual(list(named), list(sizes))
            plan = firkin.Plan(tuple((name,) for name in named), named)
            self.assertEqual(plan, firkin.Plan(tuple((name,) for name in sizes), sizes))
            self.assertEqual(plan.order_in_model(model), list(sizes))
            self.assertEqual(plan.order_in_model(Layers([8, 8, 8])), list(sizes))

    def test_may_be_those_of_a_part_called_module(self):
        profile = profile_of(Layers([8, 8, 8]))
        named = {f"module.{name}": size for name, size in zip(profile.names, profile.bytes)}
        plan = firkin.Plan((tuple(named),), named)
        self.assertEqual(len(plan.order_in_model(Prefix())), 4)
        self.assertEqual(len(plan.order_in_model(DDP(Prefix()).module)), 4)


class Refusals(TestCase):
    def test_counts_and_names_that_make_no_plan(self):
        profile = firkin.Profile(["a", "b"], [4, 4], [0, 0])
        self.assert_refused(refusals({
            "[1] tensors per bucket; expected positive numbers that add up to 2": lambda: firkin.Plan.of_counts(profile, [1]),
            "[2, 0] tensors per bucket; expected positive numbers that add up to 2": lambda: firkin.Plan.of_counts(profile, [2, 0]),
            "'b' is in two buckets": lambda: firkin.Plan((("b",), ("b",)), {"b": 4}),
            "'c', whose size is not known": lambda: firkin.Plan((("c",),), {"b": 4}),
            "bucket 1 is empty": lambda: firkin.Plan((("b",), ()), {"b": 4}),
        }))  # fmt: skip

    def test_a_plan_for_another_model(self):
        plan = firkin.Plan.of_counts(profile_of(Layers([8, 8, 8])), [4])
        self.assert_refused(refusals({
            "for another model: no parameter": lambda: plan.order_in_model(Layers([8, 8])),
            "for another model: parameter 'layers.2.weight' is not in it": lambda: plan.order_in_model(Layers([8, 8, 8, 8])),
            "for another model: 'layers.0.weight' has 128 bytes, expected 256": lambda: plan.order_in_model(Layers([4, 8, 8])),
            "for another model": lambda: plan.check(stepped(Layers([4, 8, 8]), 3)),
        }))  # fmt: skip


class ProfileOfOneProcess(unittest.TestCase):
    def test_is_in_gradient_ready_order_and_ascending(self):
        model = Shuffled()
        profile = firkin.profile(model, step_of(model), steps=3, warmup=1)
        self.assertEqual(profile.names, ready_order(model))
        self.assertEqual(profile.ready_s, sorted(profile.ready_s))
        self.assertGreaterEqual(profile.backward_s, profile.ready_s[-1])
        self.assertGreater(profile.bare_backward_s, 0)

    def test_users_hooks_and_autograd_stay_as_they_were(self):
        model = Layers([8, 8, 8])
        calls = []
        model.layers[0].weight.register_post_accumulate_grad_hook(lambda p: calls.append(p))
        before = torch.autograd.backward
        firkin.profile(model, step_of(model), steps=3, warmup=0)
        self.assertEqual(len(calls), 6)
        self.assertIs(torch.autograd.backward, before)
        self.assertEqual(len(model.layers[1].weight._post_accumulate_grad_hooks or {}), 0)

    def test_a_parameter_without_gradient_is_refused_or_ready_at_once(self):
        model = WithUnused()
        with self.assertRaisesRegex(firkin.InputError, "parameter 'spare.weight' got no gradient"):
            firkin.profile(model, step_of(model), steps=3)
        profile = firkin.profile(model, step_of(model), steps=3, find_unused_parameters=True)
        self.assertEqual(profile.names[:2], ["spare.weight", "spare.bias"])
        self.assertEqual(profile.ready_s[:2], [0, 0])
