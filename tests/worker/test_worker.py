import json
import threading
from dataclasses import fields, replace
from pathlib import Path
from time import perf_counter

import pytest
import torch
import transformers

from support.checkpoints import make_checkpoint
from support.models import kernels_for
from support.plans import GREEDY, Join, make_plan
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_proto.steps import StepOutput
from taco_worker.output_thread import OutputThread
from taco_worker.step_metrics import StepMetrics
from taco_worker.worker import Worker

PROMPT = [5, 17, 300, 42, 9, 77, 130, 6, 250]
BLOCKS = [3, 11]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(
        tmp_path_factory.mktemp("llama"),
        generation_config={"eos_token_id": [1, 2], "temperature": 0.6, "top_k": 20},
    )


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


@pytest.fixture(scope="module")
def worker(checkpoint: Path) -> Worker:
    return make_worker(checkpoint)


@pytest.fixture(autouse=True)
def _empty_batch(worker: Worker) -> None:
    worker.reset()


def make_worker(model_dir: Path | str, **changes: object) -> Worker:
    model_fields = {field.name for field in fields(ModelConfig)}
    model_changes = {name: changes.pop(name) for name in model_fields & changes.keys()}
    model = replace(ModelConfig(model=str(model_dir)), **model_changes)  # type: ignore[arg-type]
    config = WorkerConfig(model=model, num_blocks=64, max_num_seqs=8, num_threads=1)
    return Worker(replace(config, **changes))  # type: ignore[arg-type]


def sampled(output: StepOutput) -> dict[int, int]:
    assert output.error == ""
    return dict(zip(output.slots.tolist(), output.token_ids.tolist(), strict=True))


def greedy_continuation(model: transformers.PreTrainedModel, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    for _ in range(6):
        with torch.inference_mode():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_worker_info(checkpoint: Path) -> None:
    info = make_worker(checkpoint, max_model_len=100, served_model_names=("m", "n"), name="w7").info
    assert (info.name, info.model, info.max_model_len, info.vocab_size) == ("w7", "m", 100, 384)
    assert (info.block_size, info.num_blocks, info.max_num_seqs) == (16, 64, 8)
    assert info.eos_token_ids == (1, 2)
    assert dict(info.default_sampling) == {"temperature": 0.6, "top_k": 20}


def test_chunked_prefills_mixed_with_decodes_match_the_oracle(
    worker: Worker, oracle: transformers.PreTrainedModel
) -> None:
    other = [250, 3, 3, 99]
    tokens: dict[int, list[int]] = {2: [], 5: []}
    plans = [
        make_plan({2: 4}, joined=[Join(2, PROMPT, BLOCKS)]),
        make_plan({5: 4, 2: 3}, joined=[Join(5, other, [0])]),
        make_plan({2: 2, 5: 1}),
        *(make_plan({5: 1, 2: 1}) for _ in range(5)),
    ]
    for plan in plans:
        for slot, token_id in sampled(worker.execute(plan)).items():
            tokens[slot].append(token_id)
    assert tokens[2] == greedy_continuation(oracle, PROMPT)
    assert tokens[5][:6] == greedy_continuation(oracle, other)


def test_a_preempted_sequence_resumes_from_its_tokens(worker: Worker) -> None:
    first = sampled(worker.execute(make_plan({0: 9}, joined=[Join(0, PROMPT, BLOCKS)])))[0]
    second = sampled(worker.execute(make_plan({0: 1})))[0]
    third = sampled(worker.execute(make_plan({0: 1})))[0]
    back = Join(4, [*PROMPT, first, second], [40], num_prompt_tokens=9)
    plan = make_plan({4: 11}, left=[0], joined=[back])
    assert sampled(worker.execute(plan)) == {4: third}


def test_cached_blocks_are_read_and_not_computed_again(worker: Worker) -> None:
    prompt = [*PROMPT, *PROMPT]
    whole = sampled(worker.execute(make_plan({0: 18}, joined=[Join(0, prompt, BLOCKS)])))[0]
    shared = Join(1, prompt, [BLOCKS[0], 20], num_computed_tokens=16)
    assert sampled(worker.execute(make_plan({1: 2}, joined=[shared]))) == {1: whole}


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_greedy_rows_with_own_logprobs_keep_no_logits(
    checkpoint: Path,
    oracle: transformers.PreTrainedModel,
    monkeypatch: pytest.MonkeyPatch,
    serves: str,
) -> None:
    """Same values beside a row without logprobs, and on torch, which always makes logits."""
    config = WorkerConfig(model=ModelConfig(model=str(checkpoint)), num_blocks=64, max_num_seqs=8)
    worker = Worker(config, lambda _: kernels_for(serves, 1))
    if serves == "kernels":
        monkeypatch.setattr(worker._runner._model, "compute_logits", pytest.fail)
    asks = Join(2, PROMPT, BLOCKS, sampling=GREEDY.with_updates(logprobs=0))
    other = Join(5, [250, 3, 3, 99], [7], sampling=GREEDY)

    output = worker.execute(make_plan({2: 9, 5: 4}, joined=[asks, other]))

    assert output.error == ""
    with torch.inference_mode():
        logprobs = oracle(torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1)
    best = int(logprobs.argmax())
    assert sampled(output)[2] == best
    assert output.logprobs is not None
    row, empty = output.logprobs.rows()
    assert row == ([best], [pytest.approx(float(logprobs[best]), abs=1e-4)], [1])
    assert empty == ([], [], [])


def test_prompt_logprobs_cover_every_position_but_the_first_whatever_the_chunks(
    worker: Worker, oracle: transformers.PreTrainedModel
) -> None:
    params = GREEDY.with_updates(prompt_logprobs=2)
    join = Join(0, PROMPT, BLOCKS, sampling=params)
    quiet = Join(1, PROMPT, [30])
    outputs = [
        worker.execute(make_plan({1: 2, 0: 4}, joined=[join, quiet])),
        worker.execute(make_plan({0: 1, 1: 7})),
        worker.execute(make_plan({1: 1, 0: 4})),
        worker.execute(make_plan({0: 1})),
    ]
    with torch.inference_mode():
        expected = oracle(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    positions = [position for output in outputs for position in output.prompt_logprob_positions]
    assert positions == list(range(1, len(PROMPT)))
    assert outputs[3].prompt_logprobs is None
    rows = [
        row for output in outputs if output.prompt_logprobs for row in output.prompt_logprobs.rows()
    ]
    for position, (token_ids, logprobs, ranks) in zip(positions, rows, strict=True):
        row = expected[position - 1]
        assert token_ids == [PROMPT[position], *row.topk(2).indices.tolist()]
        assert logprobs == pytest.approx(row[token_ids].tolist(), abs=1e-4)
        assert ranks == [int((row > row[PROMPT[position]]).sum()) + 1, 1, 2]


def test_prompt_logprobs_of_a_resumed_sequence_end_with_the_prompt(worker: Worker) -> None:
    params = GREEDY.with_updates(prompt_logprobs=0)
    back = Join(0, [*PROMPT, 8, 9], BLOCKS, num_prompt_tokens=9, sampling=params)
    output = worker.execute(make_plan({0: 11}, joined=[back]))
    assert output.prompt_logprob_positions.tolist() == list(range(1, 9))


def test_prompt_logprobs_do_not_depend_on_the_chunk_of_logits(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = GREEDY.with_updates(prompt_logprobs=3)
    plan = make_plan({0: 9}, joined=[Join(0, PROMPT, BLOCKS, sampling=params)])
    whole = worker.execute(plan).prompt_logprobs
    worker.reset()
    monkeypatch.setattr("taco_worker.execution.model_runner._MAX_PROMPT_LOGITS", 3 * 384)
    pieces = worker.execute(plan).prompt_logprobs
    assert whole is not None
    assert pieces is not None
    assert pieces.token_ids.tolist() == whole.token_ids.tolist()
    assert pieces.num_entries.tolist() == whole.num_entries.tolist()
    assert pieces.logprobs == pytest.approx(whole.logprobs, abs=1e-5)


def test_outputs_of_launched_steps_come_in_order_from_another_thread(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where the next step is launched before the last one is done."""
    expected = [
        sampled(worker.execute(plan))
        for plan in (make_plan({0: 9}, joined=[Join(0, PROMPT, BLOCKS)]), make_plan({0: 1}))
    ]
    worker.reset()
    monkeypatch.setattr(worker, "_output_thread", OutputThread())
    outputs: list[StepOutput] = []
    threads = set()

    def deliver(output: StepOutput) -> None:
        threads.add(threading.current_thread())
        outputs.append(output)

    worker.submit(make_plan({0: 9}, joined=[Join(0, PROMPT, BLOCKS)]), deliver)
    worker.submit(make_plan({0: 1}, step_id=2), deliver)
    worker.submit(make_plan({5: 1}, step_id=3), deliver)
    worker.drain()
    assert [sampled(output) for output in outputs[:2]] == expected
    assert "a run slot is empty" in outputs[2].error
    assert threads.isdisjoint({threading.current_thread()})


def test_a_plan_without_rows_only_changes_the_batch(worker: Worker) -> None:
    output = worker.execute(make_plan({}, joined=[Join(0, PROMPT, BLOCKS)]))
    assert (output.error, output.slots.size) == ("", 0)
    assert sampled(worker.execute(make_plan({0: 9}, step_id=2))).keys() == {0}


def test_a_failed_step_ends_its_epoch_and_the_next_starts_empty(worker: Worker) -> None:
    good = make_plan({0: 9}, joined=[Join(0, PROMPT, BLOCKS)])
    token_id = sampled(worker.execute(good))[0]
    bad = worker.execute(make_plan({7: 1}, step_id=2))
    assert (bad.epoch, bad.step_id, bad.slots.size) == (1, 2, 0)
    assert "a run slot is empty" in bad.error
    assert "earlier step of epoch 1 failed" in worker.execute(make_plan({0: 1}, step_id=3)).error
    assert sampled(worker.execute(replace(good, epoch=2))) == {0: token_id}


def test_steps_and_tokens_are_counted(worker: Worker) -> None:
    worker.step_metrics = step_metrics = StepMetrics()
    assert sampled(worker.execute(make_plan({0: 4}, joined=[Join(0, PROMPT, BLOCKS)]))) == {}
    worker.execute(make_plan({0: 5}, step_id=2))
    worker.execute(make_plan({0: 1}, step_id=3))
    assert worker.execute(make_plan({7: 1}, step_id=4)).error
    assert (sum(step_metrics.seconds.counts), step_metrics.num_failed) == (4, 1)
    assert (step_metrics.num_computed, step_metrics.num_given) == (4 + 5 + 1 + 1, 2)


def test_overlapping_steps_do_not_count_time_twice() -> None:
    step_metrics = StepMetrics()
    started = perf_counter()
    begun = [step_metrics.begin(make_plan({0: 1}, step_id=number)) for number in range(50)]
    for moment in begun:
        step_metrics.end(moment, StepOutput(epoch=1, step_id=0))
    assert 0 < step_metrics.seconds.sum <= perf_counter() - started


def test_a_lower_epoch_is_rejected_and_changes_nothing(worker: Worker) -> None:
    token_id = sampled(
        worker.execute(make_plan({0: 9}, joined=[Join(0, PROMPT, BLOCKS)], epoch=5))
    )[0]
    assert "epoch 4 has ended" in worker.execute(make_plan({}, left=[0], epoch=4)).error
    worker.execute(make_plan({0: 1}, epoch=5))
    again = make_plan({1: 9}, joined=[Join(1, PROMPT, BLOCKS)], epoch=5)
    assert sampled(worker.execute(again)) == {1: token_id}


def test_an_exception_in_the_model_fails_only_its_step(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = make_plan({0: 9}, joined=[Join(0, PROMPT, BLOCKS)])
    with monkeypatch.context() as patch:

        def out_of_memory(*_: object, **__: object) -> None:
            raise RuntimeError("out of memory")

        patch.setattr(worker._runner._model, "forward_most_likely", out_of_memory)
        assert worker.execute(good).error == "RuntimeError: out of memory"
    assert worker.execute(make_plan({0: 1})).error
    assert sampled(worker.execute(replace(good, epoch=2))).keys() == {0}


def test_ids_beyond_the_vocabulary_in_bias_and_stops_are_harmless(worker: Worker) -> None:
    plain = make_plan({0: 9}, joined=[Join(0, PROMPT, BLOCKS)])
    expected = sampled(worker.execute(plain))
    params = GREEDY.with_updates(logit_bias={10**9: 5.0}, stop_token_ids=[10**9], min_tokens=1)
    odd = make_plan({0: 9}, joined=[Join(0, PROMPT, BLOCKS, sampling=params)], epoch=2)
    assert sampled(worker.execute(odd)) == expected


def test_the_default_max_model_len_is_reduced_to_the_kv_blocks(checkpoint: Path) -> None:
    assert make_worker(checkpoint, num_blocks=4).info.max_model_len == 64


def test_dummy_weights_need_no_weight_file(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    join = Join(0, PROMPT, BLOCKS, sampling=GREEDY.with_updates(logprobs=0))

    def logprob(**changes: object) -> float:
        worker = make_worker(tmp_path, load_format="dummy", **changes)
        output = worker.execute(make_plan({0: 9}, joined=[join]))
        assert 0 <= sampled(output)[0] < 384
        assert output.logprobs is not None
        return output.logprobs.logprobs[0]

    assert logprob() == logprob(seed=0) != logprob(seed=1)


def test_rope_scaling_extends_the_longest_sequence(checkpoint: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    assert make_worker(checkpoint, rope_scaling=scaling).info.max_model_len == 1024


def test_a_warning_names_the_length_without_scaling(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings(rope_type: str, max_model_len: int) -> list[str]:
        caplog.clear()
        scaling = {"rope_type": rope_type, "factor": 2.0}
        make_worker(checkpoint, rope_scaling=scaling, max_model_len=max_model_len)
        return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]

    assert warnings("linear", 513) == warnings("dynamic", 512) == []
    (warning,) = warnings("dynamic", 513)
    assert warning.startswith("rotary positions are scaled for 513 tokens, also in shorter seq")
    assert warning.endswith("by a sequence's length: --max-model-len 512 gives its results")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_model_len": 513}, "512 tokens that the model allows"),
        ({"max_model_len": 65, "num_blocks": 4}, "64 tokens that 4 KV blocks of 16 hold"),
        ({"max_model_len": 512, "num_blocks": 4}, "one such sequence needs 0.2 MiB more"),
        ({"num_blocks": 10**9}, "memory are available"),
        ({"device": "tpu"}, "unknown device 'tpu'; known: auto, cpu, cuda, cuda:N"),
        ({"device": "cuda"}, "device 'cuda' cannot be used: "),
        ({"attention_backend": "triton"}, "attention_backend 'triton' is not supported on a CPU"),
        ({"dtype": "int8"}, "int8"),
        ({"load_format": "none-such"}, "unknown load format 'none-such'"),
        ({"quantization": "awq"}, "quantization 'awq' needs a checkpoint that is quantized so"),
        ({"quantization": "none-such"}, "unknown quantization 'none-such'"),
        ({"kv_cache_dtype": "fp4"}, "unknown kv_cache_dtype 'fp4'"),
        ({"block_size": 8}, "a block size of 8 is not supported on a CPU"),
        ({"block_size": 2**40, "num_blocks": None}, "no memory for the KV cache: a block of"),
        ({"num_threads": 10**6}, "1000000 threads: this process may use"),
    ],
)
def test_an_invalid_setting_is_one_line(
    checkpoint: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        make_worker(checkpoint, **changes)
    assert "\n" not in str(caught.value)


def test_an_unsupported_architecture_error_says_where_the_supported_ones_are(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["NoSuchForCausalLM"]}))
    with pytest.raises(ConfigurationError, match=r"NoSuchForCausalLM is not .*docs/models\.md"):
        make_worker(tmp_path)


def test_an_unknown_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no-such-model"):
        make_worker(tmp_path / "no-such-model")
