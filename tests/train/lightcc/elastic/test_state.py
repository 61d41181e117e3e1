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


def test_a_sampler_gives_what_is_left() -> None:
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=True, seed=1)
    first = list(sampler)
    assert sorted(first) == list(range(10))
    sampler.record_batch(0, 4)
    states = [sampler.state_dict(), {"epoch": 0, "processed_indices": [first[4]]}]
    sampler.merge(states)
    assert sorted(sampler) == sorted(first[5:])
    assert len(sampler) == 5
    sampler.set_epoch(1)
    assert sorted(sampler) == list(range(10))
    assert list(sampler) != first
    sampler.load_state_dict(states[0])
    assert sampler.epoch == 0
    assert sorted(sampler) == sorted(first[4:])
