"""What the tests of CS336's assignment 2 ask of `tests/adapters.py` for its sharded optimiser, with Firkin's.

Copy the function there; `sharded_test.py` steps it as those tests do.
"""

from collections.abc import Iterable

import firkin
import torch


def get_sharded_optimizer(params: Iterable[torch.nn.Parameter], optimizer_cls: type[torch.optim.Optimizer], **kwargs) -> torch.optim.Optimizer:
    """Steps `params` with gradients averaged over the ranks; each rank keeps the state of its part. Call `backward()` of the model as it is."""
    model = firkin.DistributedDataParallel(torch.nn.ParameterList(params), strategy="sharded")
    return firkin.ShardedOptimizer(model, optimizer_cls, **kwargs)
