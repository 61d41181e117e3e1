"""Converters of the messages about the disk tier, which travel as columns of blocks."""

import math
from collections.abc import Iterable, Sequence

from taco_proto import scheduler_pb2 as pb
from taco_proto.kv_tiers import KEY_BYTES, StoreCommand, StoredBlock, StoreReport

_TOKEN_BYTES = 4


def store_command_to_pb(command: StoreCommand) -> pb.StoreCommand:
    return pb.StoreCommand(
        writes=_blocks_to_pb([block for _, block in command.writes]),
        write_sources=[host_block for host_block, _ in command.writes],
        reads=[key for key, _ in command.reads],
        read_targets=[host_block for _, host_block in command.reads],
        deletes=command.deletes,
    )


def store_command_from_pb(message: pb.StoreCommand) -> StoreCommand:
    """Raises:
    ValueError: columns differ in length, or a key or tokens have a wrong size.
    """
    writes = _blocks_from_pb(message.writes)
    return StoreCommand(
        writes=tuple(zip(message.write_sources, writes, strict=True)),
        reads=tuple(zip(_keys(message.reads), message.read_targets, strict=True)),
        deletes=_keys(message.deletes),
    )


def store_report_to_pb(report: StoreReport) -> pb.StoreReport:
    return pb.StoreReport(
        found=_blocks_to_pb(report.found),
        is_complete=report.is_complete,
        written=report.written,
        read=report.read,
        read_seconds=report.read_seconds,
        failed=report.failed,
    )


def store_report_from_pb(message: pb.StoreReport) -> StoreReport:
    """Raises:
    ValueError: columns differ in length, a key or tokens have a wrong size, or a duration is
            negative or not finite.
    """
    return StoreReport(
        found=_blocks_from_pb(message.found),
        is_complete=message.is_complete,
        written=_keys(message.written),
        read=_keys(message.read),
        read_seconds=_seconds(message.read_seconds),
        failed=_keys(message.failed),
    )


def _blocks_to_pb(blocks: Sequence[StoredBlock]) -> pb.StoredBlocks | None:
    if not blocks:
        return None
    return pb.StoredBlocks(
        keys=[block.key for block in blocks],
        parents=[block.parent for block in blocks],
        adapters=[block.adapter for block in blocks],
        cache_salts=[block.cache_salt for block in blocks],
        token_ids=[block.token_ids for block in blocks],
    )


def _blocks_from_pb(message: pb.StoredBlocks) -> tuple[StoredBlock, ...]:
    columns = zip(
        _keys(message.keys),
        message.parents,
        message.adapters,
        message.cache_salts,
        message.token_ids,
        strict=True,
    )
    return tuple(
        StoredBlock(
            key=key,
            parent=_key(parent) if parent else b"",
            adapter=adapter,
            cache_salt=cache_salt,
            token_ids=_tokens(token_ids),
        )
        for key, parent, adapter, cache_salt, token_ids in columns
    )


def _seconds(seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"a duration must be finite and at least 0, not {seconds} seconds")
    return seconds


def _keys(keys: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(_key(key) for key in keys)


def _key(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise ValueError(f"the key of a stored block has {KEY_BYTES} bytes, not {len(key)}")
    return key


def _tokens(token_ids: bytes) -> bytes:
    if not token_ids or len(token_ids) % _TOKEN_BYTES:
        raise ValueError(
            f"the tokens of a stored block are a multiple of {_TOKEN_BYTES} bytes and not empty, "
            f"not {len(token_ids)} bytes"
        )
    return token_ids
