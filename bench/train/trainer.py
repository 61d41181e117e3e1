"""A rank of a training benchmark: steps of one model under each arm, and their time."""

import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bench.train.arms import SETTINGS, Arms
from bench.train.figures import DDP, POWER_SGD
from taco_train.collective.communicator import Communicator
from taco_train.collective.store import connect
from taco_train.lightcc.settings import Settings

Batch = tuple[Tensor, Tensor]


class Trainer:
    """A model, its optimizer, and the ranks that train it.

    Args:
        make_model: equal on all ranks.
        make_optimizer: of the model's parameters.
        settings: of LightCC's arms, by name.

    Attributes:
        placement: of this rank.
        control: a communicator of all ranks for the benchmark itself.
        optimizer: it may be replaced between steps.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        make_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        settings: Mapping[str, Settings] = SETTINGS,
    ) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.placement, store = connect()
        self.control = Communicator(self.placement, store, name="control")
        dist.init_process_group("gloo")
        self.model = make_model()
        self.arms = Arms(self.model, self.placement, store, settings)
        self.optimizer = make_optimizer(self.model)
        torch.manual_seed(1 + self.placement.rank)

    def step(self, batch: Batch) -> float:
        """One step with the current arm; returns this rank's loss."""
        self.optimizer.zero_grad()
        logits = self.arms.model(batch[0])
        loss = F.cross_entropy(logits.flatten(0, -2), batch[1].flatten())
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def timed(self, arm: str, batch: Batch, num_batches: int) -> float:
        """Seconds of some steps with an arm, on the slowest rank. All ranks call it together."""
        self.arms.current = arm
        self.control.barrier()
        begun = time.perf_counter()
        for _ in range(num_batches):
            self.step(batch)
        return self.slowest(time.perf_counter() - begun)

    def timed_alone(self, batch: Batch, num_batches: int) -> float:
        """Seconds of some steps of rank 0 while the others sleep, on all ranks."""
        self.control.barrier()
        begun = time.perf_counter()
        if self.placement.rank == 0:
            with self.arms.model.no_sync():
                for _ in range(num_batches):
                    self.step(batch)
        return self.slowest(time.perf_counter() - begun)

    def rounds(
        self, arms: Sequence[str], batch: Batch, *, num_rounds: int, num_batches: int
    ) -> dict[str, list[float]]:
        """Seconds by arm and round; all arms take turns in each round."""
        seconds: dict[str, list[float]] = {arm: [] for arm in arms}
        for _ in range(num_rounds):
            for arm in arms:
                seconds[arm].append(self.timed(arm, batch, num_batches))
        return seconds

    def warm_up(self, arms: Sequence[str], batch: Batch, num_batches: int) -> None:
        """Steps of each arm that are not measured; the first builds DDP's buckets."""
        self.timed(DDP, batch, 1)
        for arm in arms:
            # PowerSGD begins to compress in its third step, and allocates then.
            self.timed(arm, batch, num_batches + 2 if arm == POWER_SGD else num_batches)

    def slowest(self, seconds: float) -> float:
        """The largest number of all ranks."""
        found = torch.tensor([seconds], dtype=torch.float64)
        self.control.all_reduce(found, "max")
        return found.item()

    def close(self) -> None:
        self.control.barrier()
        self.arms.close()
        dist.destroy_process_group()
        self.control.close()
