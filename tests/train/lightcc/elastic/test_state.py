"""Elastic state and samplers in one process: save, restore, and what is left of an epoch."""

import torch

import taco_train.lightcc.horovod.torch as hvd


def test_state_goes_back_to_the_last_save() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    state = hvd.elastic.TorchState(model, optimizer, epoch=1, best=[3])
    saved = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state.epoch, state.best[0] = 2, 4
    state.restore()
    assert torch.equal(model.weight, saved)
    assert not optimizer.state_dict()["state"]
    assert (state.epoch, state.best) == (1, [3])
    state.epoch = 5
    state.save()
    state.restore()
    assert state.epoch == 5


def test_a_module_that_takes_the_place_of_another_is_saved() -> None:
    state = hvd.elastic.TorchState(torch.nn.Linear(2, 2))
    state.model = torch.nn.Linear(2, 2)
    saved = state.model.weight.detach().clone()
    torch.nn.init.zeros_(state.model.weight)
    state.restore()
    assert torch.equal(state.model.weight, saved)
    torch.nn.init.zeros_(state.model.weight)
    state.save()
    state.restore()
    assert not state.model.weight.any()


def test_a_state_without_a_model_has_none() -> None:
    state = hvd.elastic.TorchState(epoch=1)
    assert state.model is None
    assert state.optimizer is None


def test_a_state_of_the_user_may_call_horovods_constructor() -> None:
    class Counts(hvd.elastic.State):
        def __init__(self) -> None:
            super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)

    calls: list[str] = []
    state = Counts()
    state.register_reset_callbacks([lambda: calls.append("reset")])
    state.on_reset()
    assert calls == ["reset"]


def test_a_sampler_gives_what_is_left() -> None:
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=True, seed=1)
    first = list(sampler)
    assert sorted(first) == list(range(10))
    sampler.record_batch(0, 4)
    assert sampler.processed_num == 4
    assert list(sampler) == first, "the order changes when ranks do, not within a round"
    saved = sampler.state_dict()
    sampler.reset()
    assert list(sampler) == first[4:]
    assert len(sampler) == 6
    sampler.set_epoch(1)
    assert sorted(sampler) == list(range(10))
    assert list(sampler) != first
    sampler.load_state_dict(saved)
    assert sampler.epoch == 0
    assert list(sampler) == first[4:]
    sampler.record_batch(1, 8)  # the last batch was not full
    sampler.reset()
    assert list(sampler) == []


def divided(sampler: hvd.elastic.ElasticSampler, size: int) -> list[list[int]]:
    """What each of `size` ranks gets."""
    parts = []
    sampler.num_replicas = size
    left = len(sampler.remaining_indices)
    sampler.num_samples = -(-left // size)
    sampler.total_size = sampler.num_samples * size
    for sampler.rank in range(size):
        parts.append(list(sampler))
    return parts


def test_samples_of_a_lost_rank_count_as_processed() -> None:
    sampler = hvd.elastic.ElasticSampler(range(23))
    parts = divided(sampler, 3)
    for batch in range(2):
        sampler.record_batch(batch, 2)
    done = {one for part in parts for one in part[:4]}
    sampler.load_state_dict(sampler.state_dict())  # two ranks are left, and take rank 0's state
    rest = divided(sampler, 2)
    assert len(done) == 12
    assert {one for part in rest for one in part} == set(range(23)) - done
    assert [len(part) for part in rest] == [6, 6]
