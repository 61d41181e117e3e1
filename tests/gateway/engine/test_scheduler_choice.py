"""Which scheduler a request goes to."""

from dataclasses import dataclass, field, replace

import pytest

from support.live_scheduler import request
from taco_common.prefix_hashes import prompt_hashes
from taco_gateway.engine.scheduler_choice import MAX_SENT_BLOCKS, SchedulerView, choose_scheduler
from taco_proto.registry import DECODE_TOKENS, KEY_BYTES, LIFETIME_SECONDS, SchedulerRecord
from taco_proto.requests import GenerateRequest, ModelInfo

KEY = b"k" * KEY_BYTES
BLOCK_SIZE = 4
PROMPT = list(range(100, 150))  # 50 tokens: 12 whole blocks can be cached


def info(**changes: object) -> ModelInfo:
    values: dict[str, object] = {
        "model": "m",
        "max_model_len": 1000,
        "vocab_size": 1000,
        "eos_token_ids": (0,),
        "block_size": BLOCK_SIZE,
        "num_blocks": 100,
        "max_logprobs": 5,
    }
    return ModelInfo(**{**values, **changes})  # type: ignore[arg-type]


@dataclass
class Scheduler:
    view: SchedulerView = field(default_factory=lambda: SchedulerView(KEY))
    info: ModelInfo | None = field(default_factory=info)
    own_load: int = 0
    address: str = "a"

    def tell(
        self, load: int = 0, num_cached: int = 0, at: float = 0.0, num_workers: int = 1
    ) -> None:
        """Its record says that this number of PROMPT's tokens is cached there."""
        record = SchedulerRecord(
            address="a",
            model="m",
            block_size=BLOCK_SIZE,
            num_workers=num_workers,
            load=load,
            hash_key=KEY,
            prefixes=frozenset(hashes_of(request(PROMPT))[: num_cached // BLOCK_SIZE]),
        )
        self.view.update(record, at)


def hashes_of(asked: GenerateRequest) -> list[bytes]:
    return prompt_hashes(KEY, "", asked.cache_salt, asked.token_ids, BLOCK_SIZE * 4)


@pytest.fixture
def a() -> Scheduler:
    return Scheduler()


@pytest.fixture
def b() -> Scheduler:
    return Scheduler(address="b")


def test_load_less_what_the_prefix_saves(a: Scheduler, b: Scheduler) -> None:
    a.tell(load=100, num_cached=0)
    b.tell(load=100 + 39, num_cached=40)
    assert choose_scheduler(request(PROMPT), [a, b], 0.0) == (b, 10)
    b.tell(load=100 + 41, num_cached=40)  # by then it is sooner to compute the prefix again
    assert choose_scheduler(request(PROMPT), [a, b], 0.0) == (a, 50)


def test_what_was_sent_since_the_record_counts(a: Scheduler, b: Scheduler) -> None:
    a.tell(load=0, at=1.0)
    b.tell(load=60, at=1.0)
    other = request([7] * 50)
    assert choose_scheduler(request(PROMPT), [a, b], 1.5)[0] is a
    assert a.view.load == 50 + DECODE_TOKENS
    assert choose_scheduler(other, [a, b], 1.5)[0] is b
    a.tell(load=0, at=2.0)  # it knows by now, and is done with it
    assert a.view.load == 0
    assert choose_scheduler(other, [a, b], 2.1)[0] is a


def test_a_prompt_follows_the_one_before_it(a: Scheduler, b: Scheduler) -> None:
    """Before any record can tell."""
    b.tell(load=0)
    a.tell(load=10)
    assert choose_scheduler(request(PROMPT), [a, b], 0.1) == (b, 50)
    b.own_load = 0
    a.tell(load=50 + DECODE_TOKENS)
    assert choose_scheduler(request(PROMPT), [a, b], 0.2) == (b, 2)


def test_prompts_with_one_key_stay_together(a: Scheduler, b: Scheduler) -> None:
    for scheduler in (a, b):
        scheduler.tell()
    keyed = [replace(request(PROMPT), prompt_cache_key=f"key-{i}") for i in range(8)]
    homes = [choose_scheduler(each, [a, b], now=0.0)[0] for each in keyed]
    assert {home.address for home in homes} == {"a", "b"}, "keys are spread"
    a.tell(at=1.0)
    b.tell(load=len(PROMPT), at=1.0)
    key = replace(keyed[homes.index(b)], token_ids=request(PROMPT[::-1]).token_ids)
    assert choose_scheduler(key, [a, b], now=1.0)[0] is b, "it is behind by the prompt, and no more"
    b.tell(load=len(PROMPT) + 1, at=2.0)
    assert choose_scheduler(key, [a, b], now=2.0)[0] is a


def test_load_is_that_of_a_worker(a: Scheduler, b: Scheduler) -> None:
    a.tell(load=1000, num_workers=1)
    b.tell(load=3000, num_workers=4)
    assert choose_scheduler(request(PROMPT), [a, b], 0.0)[0] is b


def test_old_records_are_not_weighed_against_new_ones(a: Scheduler, b: Scheduler) -> None:
    a.tell(load=0, at=0.0)
    b.tell(load=10**6, at=10.0)
    a.own_load, b.own_load = 200, 0
    now = LIFETIME_SECONDS + 1
    assert choose_scheduler(request(PROMPT), [a, b], now)[0] is b
    a.tell(load=0, at=10.0)
    assert choose_scheduler(request(PROMPT), [a, b], 10.0)[0] is a


def test_without_records_it_goes_by_what_it_has_sent(a: Scheduler, b: Scheduler) -> None:
    a.own_load, b.own_load = 30, 0
    assert choose_scheduler(request(PROMPT), [a, b], 0.0) == (b, 50)
    b.own_load = 70
    assert choose_scheduler(request(PROMPT), [a, b], 100.0) == (b, 2)  # its prefix is there
    b.own_load = 80
    assert choose_scheduler(request(PROMPT), [a, b], 100.0) == (a, 50)


def test_prefixes_last_though_the_record_does_not(a: Scheduler, b: Scheduler) -> None:
    a.tell(num_cached=48, at=0.0)
    assert choose_scheduler(request(PROMPT), [a, b], 1000.0) == (a, 2)


def test_tenants_share_nothing(a: Scheduler, b: Scheduler) -> None:
    asked = request(PROMPT)
    choose_scheduler(asked, [a, b], 0.0)
    other = GenerateRequest(
        handle=0,
        request_id="r",
        token_ids=asked.token_ids,
        sampling=asked.sampling,
        cache_salt="another tenant",
    )
    assert choose_scheduler(other, [a, b], 0.0)[1] == 50


def test_what_reads_no_cache_looks_for_none(a: Scheduler, b: Scheduler) -> None:
    a.tell(load=1, num_cached=48)
    b.tell(load=0)
    assert choose_scheduler(request(PROMPT, prompt_logprobs=1), [a, b], 0.0) == (b, 50)


def test_no_answer_is_cut_short_for_a_shorter_queue(a: Scheduler, b: Scheduler) -> None:
    a.info = info(max_model_len=60)
    a.tell(load=0)
    b.tell(load=10**6)
    assert choose_scheduler(request(PROMPT, max_tokens=40), [a, b], 0.0)[0] is b
    assert choose_scheduler(request(PROMPT, max_tokens=10), [a, b], 0.0)[0] is a


def test_another_key_of_the_hashes_forgets_what_was_sent(a: Scheduler) -> None:
    a.view.note_sent(hashes_of(request(PROMPT)), 1, 0.0)
    assert a.view.num_cached_blocks(hashes_of(request(PROMPT))) == 12
    record = SchedulerRecord(
        address="a",
        model="m",
        block_size=BLOCK_SIZE,
        num_workers=1,
        load=0,
        hash_key=b"K" * KEY_BYTES,
        prefixes=frozenset(),
    )
    a.view.update(record, -1.0)
    assert a.view.num_cached_blocks(hashes_of(request(PROMPT))) == 0


def test_what_is_remembered_is_bounded(a: Scheduler) -> None:
    first = hashes_of(request(PROMPT))
    a.view.note_sent(first, 1, 0.0)
    a.view.note_sent([i.to_bytes(8, "big") for i in range(MAX_SENT_BLOCKS)], 1, 0.0)
    assert a.view.num_cached_blocks(first) == 0
    assert a.view.num_cached_blocks([bytes(8)]) == 1


def test_equals_share_the_work() -> None:
    schedulers = [Scheduler(), Scheduler()]
    for scheduler in schedulers:
        scheduler.tell()
    for number in range(40):
        choose_scheduler(request([number + 2] * 50), schedulers, 0.0)
    loads = [scheduler.view.load for scheduler in schedulers]
    assert abs(loads[0] - loads[1]) <= 50 + DECODE_TOKENS
