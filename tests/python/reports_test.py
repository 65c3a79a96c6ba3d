"""Programs after public reports: under every strategy they train as with means taken by hand, or are refused in
one line. The reports stand behind the programs, as OWNER/REPOSITORY#NUMBER on GitHub."""

import copy

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import nn
from torch.utils.checkpoint import checkpoint
from trainees import SGD, STEPS, STRATEGIES, WIDTH, Trainee, assert_as_by_hand, assert_every_rank_says_why_not, batch, net, results_of, trains


class Complex(nn.Module):
    """A complex layer, and a complex buffer that turns with every forward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(WIDTH, 9, dtype=torch.complex128)
        self.read = nn.Linear(9, 3, dtype=torch.float64)
        self.register_buffer("phase", torch.ones(9, dtype=torch.complex128))

    def forward(self, x):
        with torch.no_grad():
            self.phase = self.phase * torch.exp(1j * x.mean())
        return self.read((self.first(x.to(torch.complex128)) * self.phase).real)


class OldSignature(nn.Sequential):
    """Has a method as it was before PyTorch 2.0."""

    def named_parameters(self, prefix="", recurse=True):
        return super().named_parameters(prefix, recurse)


class Shared(nn.Module):
    """One block, used several times, each time under a checkpoint."""

    def __init__(self, reentrant):
        super().__init__()
        torch.manual_seed(5)
        self.embed, self.block, self.read = (nn.Linear(*shape).double() for shape in ((WIDTH, 9), (9, 9), (9, 3)))
        self.reentrant = reentrant

    def forward(self, x):
        x = self.embed(x)
        for _ in range(3):
            x = checkpoint(lambda x: torch.tanh(self.block(x)), x, use_reentrant=self.reentrant)
        return self.read(x)


class TwoHeads(nn.Module):
    """`which`: the heads of a step, by rank."""

    def __init__(self, which=lambda step, rank: (0, 1)):
        super().__init__()
        torch.manual_seed(6)
        self.body, self.heads = nn.Linear(WIDTH, 9).double(), nn.ModuleList(nn.Linear(9, 3).double() for _ in range(2))
        self.which, self.step = which, 0

    def forward(self, x):
        heads = self.which(self.step, torch.distributed.get_rank())
        self.step += 1
        return sum(self.heads[i](torch.tanh(self.body(x))) for i in heads)

    def of_one_head(self, x):
        return self.heads[0](torch.tanh(self.body(x))) + self.heads[1](x.new_ones(9))


def behind(make):
    """net() behind one more part."""
    torch.manual_seed(8)
    return net(make().double())


def back_twice_through_a_graph(trainee, step):
    y = trainee.model(batch(step)).square().mean(0)
    trainee.backward(y[0], retain_graph=True)
    trainee.drain()
    trainee.backward(y.sum())


def accumulates(first):
    """first(trainee, x): forward and backward of the first of two micro-batches."""

    def backward(trainee, step):
        first(trainee, batch(step))
        trainee.plain(step, 1)

    return trains(net, backward)


def only_forward(trainee, x):
    with trainee.alone():
        y = trainee.model(x).square().mean()
    y.backward()


def only_backward(trainee, x):
    y = trainee.model(x).square().mean()
    with trainee.alone():
        y.backward()


def by_the_attribute(trainee, x):
    """nanoGPT's way."""
    trainee.model.require_backward_grad_sync = False
    trainee.model(x).square().mean().backward()
    assert not trainee.model.require_backward_grad_sync
    trainee.model.require_backward_grad_sync = True
    if trainee.strategy is not None:
        assert trainee.model.stats().steps == trainee.step  # no more than one in each step of the optimiser


def by_a_method_of_the_module(trainee, step):
    trainee.backward(trainee.module.of_one_head(batch(step)).square().mean())


def plays_two_parts_by_turns(strategy):
    """Generator and critic, each wrapped and with its own optimiser: the generator's backward goes through the critic."""
    maker, critic = (Trainee(strategy, behind(lambda: nn.Linear(width, WIDTH))) for width in (WIDTH, 3))
    for step in range(STEPS):
        maker.optimizer.zero_grad()
        critic.optimizer.zero_grad()
        critic.model(maker.model(batch(step))).mean().backward()
        if strategy is None:
            maker.average()
            critic.average()
        maker.optimizer.step()
        critic.drain()
        critic.optimizer.zero_grad()
        with torch.no_grad():
            made = maker.model(batch(step))
        critic.backward((critic.model(made) - critic.model(batch(step)[:, :3])).square().mean())
        critic.optimizer.step()
    maker.drain()
    maker.kept = results_of(critic)
    return maker


def freezing_parts_by_turns(trainee, step):
    """Both in one wrapped module, whose parts are frozen by turns."""
    trainee.drain()
    for part, trained in zip(trainee.module.heads, (step % 2 == 0, step % 2 == 1)):
        part.requires_grad_(trained)
    trainee.leaves = [p for p in trainee.module.parameters() if p.requires_grad]
    trainee.plain(step)
    for p in trainee.module.parameters():
        if not p.requires_grad:
            p.grad = None


def two_adapters():
    """Of a frozen body, one for each step by turns."""
    module = TwoHeads(lambda step, _rank: (step % 2,))
    module.body.requires_grad_(False)
    return module


def loading_by_assignment(trainee, step):
    """Every parameter becomes another tensor."""
    if step == 2:
        trainee.drain()
        trainee.module.load_state_dict({name: value.clone() for name, value in trainee.module.state_dict().items()}, assign=True)
        trainee.leaves = list(trainee.module.parameters())
        if trainee.strategy != "sharded":
            trainee.optimizer = torch.optim.SGD(trainee.leaves, **SGD)
    trainee.plain(step)


def averaging_by_itself(trainee, step):
    """Without a backward, in every second step."""
    if step % 2:
        return trainee.plain(step)
    trainee.drain()
    gradients = torch.autograd.grad(trainee.model(batch(step)).square().mean(), trainee.leaves)
    for p, gradient in zip(trainee.leaves, gradients):
        p.grad = gradient.clone()
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def steps_in_backward(strategy):
    trainee = Trainee(strategy, net())

    def step(p):
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.1)
        p.grad = None

    for p in trainee.leaves:
        p.register_post_accumulate_grad_hook(step)
    return trainee.train()


def copies_itself_for_an_average(strategy):
    trainee = Trainee(strategy, net(nn.BatchNorm1d(WIDTH)))
    average = copy.deepcopy(trainee.model).requires_grad_(False)
    for step in range(STEPS):
        trainee.optimizer.zero_grad()
        trainee.plain(step)
        trainee.optimizer.step()
        trainee.drain()
        with torch.no_grad():
            for theirs, ours in zip(average.parameters(), trainee.model.parameters()):
                theirs.mul_(0.8).add_(ours, alpha=0.2)
    trainee.kept = [p.clone() for p in average.parameters()]
    return trainee


def leaving_out_a_layer(trainee, step):
    trainee.plain(step)
    if step in (1, 2):
        for p in trainee.module[4].parameters():
            p.grad = None


def validating_before_the_step(trainee, step):
    """As many batches as the rank has."""
    trainee.plain(step)
    trainee.model.eval()
    with torch.no_grad():
        for micro in range(2 * dist.get_rank()):
            trainee.model(batch(step, micro))
    trainee.model.train()


def images():
    torch.manual_seed(9)
    return nn.Sequential(nn.Unflatten(1, (WIDTH, 1, 1)), nn.Upsample(size=(4, 4)), nn.Conv2d(WIDTH, 4, 3), nn.Flatten(), nn.Linear(16, 3)).double()


def becoming_channels_last(trainee, step):
    trainee.drain()
    if step == 2:
        trainee.model.to(memory_format=torch.channels_last)
    trainee.plain(step)


def hooking_modules(trainee, step):
    if step == 0:
        trainee.model.register_forward_pre_hook(lambda _module, inputs: (2 * inputs[0],))
        trainee.model.register_full_backward_pre_hook(lambda _module, of_outputs: (2 * of_outputs[0],))
        trainee.module[2].register_full_backward_hook(lambda _module, of_inputs, _of_outputs: (2 * of_inputs[0],))
    trainee.plain(step)


def hooking_what_thaws(trainee, step):
    """PyTorch's first hook on a tensor frees others' hooks on it, and set_() takes its place in the graph away."""
    trainee.drain()
    for name, p in trainee.module.named_parameters():
        if step == 2 and p.requires_grad_(not name.startswith("4.")).requires_grad:
            p.register_hook(lambda gradient: gradient)
        if step == 3:
            with torch.no_grad():
                p.set_(p.detach().clone())
    trainee.plain(step)


def only_its_head():
    module = net()
    module[:-1].requires_grad_(False)
    return module


def swapping_in_an_average(trainee, step):
    """For an evaluation, by .data."""
    trainee.drain()
    if step == 0:
        trainee.average_of = [p.detach().clone() for p in trainee.leaves]
    for _ in range(2):
        for p, average in zip(trainee.leaves, trainee.average_of):
            p.data, average.data = average.data, p.data
        with torch.no_grad():
            trainee.model(batch(step))
    for p, average in zip(trainee.leaves, trainee.average_of):
        average.mul_(0.5).add_(p.detach(), alpha=0.5)
    trainee.plain(step)


def compiled():
    module = Shared(False)
    module.compile(backend="eager")
    return module


PROGRAMS = {
    "complex parameters and buffers": trains(Complex),  # pytorch/pytorch#158753, #99652
    "a method of an older signature": trains(lambda: OldSignature(*net())),  # NVlabs/OmniDrive#39
    "a block in three reentrant checkpoints": trains(lambda: Shared(True)),  # microsoft/FocalNet#4, tatp22/linformer-pytorch#23, facebookresearch/multimodal#404
    "a block in three checkpoints": trains(lambda: Shared(False)),
    "two backwards of one graph": trains(net, back_twice_through_a_graph),  # pytorch/pytorch#47260
    "no_sync around forward alone": accumulates(only_forward),  # karpathy/build-nanogpt#30, huggingface/accelerate#1726
    "no_sync around backward alone": accumulates(only_backward),
    "require_backward_grad_sync": accumulates(by_the_attribute),  # speechbrain/speechbrain#2010
    "a method of the module": trains(TwoHeads, by_a_method_of_the_module),  # k2-fsa/icefall#226
    "spectral norm": trains(lambda: behind(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)))),  # pytorch/pytorch#8160, #68327
    "generator and critic": plays_two_parts_by_turns,  # horovod/horovod#796, Lightning-AI/pytorch-lightning#20328
    "parts frozen by turns": trains(TwoHeads, freezing_parts_by_turns),  # JDAI-CV/fast-reid#178, Lightning-AI/pytorch-lightning#20866
    "adapters by turns": trains(two_adapters, freezing_parts_by_turns),  # huggingface/peft#1571, facebookresearch/fairscale#368
    "loads by assignment": trains(net, loading_by_assignment),  # pytorch/pytorch#12603, NVIDIA/Megatron-LM#6087
    "averages by itself": trains(net, averaging_by_itself),  # pytorch/pytorch#47562
    "steps in backward": steps_in_backward,  # kohya-ss/musubi-tuner#679
    "an average of copies": copies_itself_for_an_average,  # pytorch/pytorch#73825, ultralytics/yolov5#279, microsoft/Tutel#177
    "leaves out a layer": trains(net, leaving_out_a_layer),  # lightly-ai/lightly#731
    "validates before the step": trains(lambda: net(nn.BatchNorm1d(WIDTH)), validating_before_the_step),  # pytorch/pytorch#53979, #54059
    "becomes channels-last": trains(images, becoming_channels_last),  # vturrisi/solo-learn#306
    "hooks on modules": trains(net, hooking_modules),  # pytorch/pytorch#35191, #66229
    "hooks on what thaws": trains(only_its_head, hooking_what_thaws),
    "swaps in an average": trains(net, swapping_in_an_average),  # lucidrains/ema-pytorch#9, Lightning-AI/pytorch-lightning#21724
    # lyuwenyu/RT-DETR#684, joanaapa/Distillation-DNABERT-Promoter#1
    "a head that one rank leaves out": trains(lambda: TwoHeads(lambda step, rank: (0, 1) if rank == step % 2 else (0,)), find_unused_parameters=True),
}
COMPILED = {"a compiled module with checkpoints": trains(compiled)}  # pytorch/pytorch#111279, #108269, huggingface/nanoVLM#61

FOLLOWS_NOT = "expected a new DistributedDataParallel and ShardedOptimizer after such a change"
IS_USED = r"expected step\(\) before another backward\(\) \(accumulate under no_sync\(\)\)"
IS_NOT_USED = "did not use the gradients of the last step"
WITHOUT_ONE = r"step\(\) without exactly one synchronising backward\(\) before it"
REFUSED = {  # by strategy, and what each rank then says
    ("complex parameters and buffers", "sharded"): "which the strategy sharded cannot send",
    ("two backwards of one graph", "sharded"): IS_USED,
    ("no_sync around forward alone", "sharded"): IS_USED,
    ("no_sync around forward alone", "ordered"): WITHOUT_ONE,
    ("generator and critic", "sharded"): IS_NOT_USED,
    ("parts frozen by turns", "sharded"): FOLLOWS_NOT,
    ("adapters by turns", "sharded"): FOLLOWS_NOT,
    ("hooks on what thaws", "sharded"): FOLLOWS_NOT,
    ("adapters by turns", "planned"): "the module now trains 2 parameters, but its plan or ready order covers 4",
    ("loads by assignment", "sharded"): "strategy sharded does not follow in Python",
    ("loads by assignment", "ordered"): "strategy ordered does not follow in Python",
    ("an average of copies", "ordered"): "expected a copy made before wrapping",
    ("an average of copies", "sharded"): "expected a copy made before wrapping",
    ("leaves out a layer", "sharded"): "has another gradient than backward left, or none",
    ("becomes channels-last", "sharded"): "the memory layout of 2.weight changed after wrapping",
    ("averages by itself", "ordered"): WITHOUT_ONE,
    ("averages by itself", "sharded"): "has a gradient that no synchronising backward has summed over the ranks",
    **{("steps in backward", strategy): "a hook removed the gradient of 4.bias before it was averaged" for strategy in STRATEGIES},
    ("hooks on what thaws", "planned"): "the module now trains 4 parameters, but its plan or ready order covers 2",
    ("parts frozen by turns", "planned"): "the module now trains 4 parameters, but its plan or ready order covers 6",
}


@pytest.mark.parametrize("name", PROGRAMS)
@on_ranks(2, full=3)
def test_trains_as_by_hand_under_every_strategy(name):
    assert_as_by_hand(name, PROGRAMS, REFUSED)


@on_ranks(2, full=3)
def test_or_every_rank_has_an_error_that_says_why_not():
    assert_every_rank_says_why_not(PROGRAMS, REFUSED)


@pytest.mark.full
@pytest.mark.parametrize("name", COMPILED)
@on_ranks(3)
def test_compiled_ones_do_too(name):
    assert_as_by_hand(name, COMPILED)
