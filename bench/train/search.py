"""Finds the rate of the links at which plain DDP is slowed down to a given share."""

import statistics

from bench.train.emulated import Driver
from bench.train.figures import DDP, OFF
from bench.train.trainer import Batch, Trainer

FIRST_RATE, _LEAST_RATE, _LARGEST_RATE = 1e9, 5e6, 4e10  # bits a second
_NUM_TRIALS, _NUM_ROUNDS, _NEAR = 5, 2, 0.02  # a trial this near to the share is the last


def find_rate(
    trainer: Trainer, driver: Driver, batch: Batch, share: float, first: float = FIRST_RATE
) -> float:
    """Sets all links to the rate at which DDP has `share` of the speed without communication.

    What DDP's step takes longer is taken to be proportional to the time of a byte. All ranks call
    this together.

    Args:
        first: rate of the first trial, in bits a second.

    Returns:
        the rate, in bits a second.
    """
    rate = best = first
    nearest = 1.0
    for _ in range(_NUM_TRIALS):
        driver.set_rate(rate)
        trainer.timed(DDP, batch, 1)  # connections find out how fast the link is
        found = trainer.rounds([OFF, DDP], batch, num_rounds=_NUM_ROUNDS, num_batches=1)
        off, ddp = statistics.median(found[OFF]), statistics.median(found[DDP])
        driver.show(f"  {rate / 1e6:.0f} Mbit/s: DDP has {off / ddp:.1%} of {OFF}")
        if abs(off / ddp - share) < nearest:
            nearest, best = abs(off / ddp - share), rate
        if nearest <= _NEAR:
            break
        faster = (ddp - off) / (off / share - off)
        rate = min(max(rate * min(max(faster, 0.1), 10.0), _LEAST_RATE), _LARGEST_RATE)
    driver.set_rate(best)
    trainer.timed(DDP, batch, 1)
    return best
