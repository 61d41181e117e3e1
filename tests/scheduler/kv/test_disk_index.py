from taco_proto.kv_tiers import StoreCommand, StoredBlock, StoreReport
from taco_scheduler.kv.disk_index import DiskIndex
from taco_scheduler.kv.namespace import CacheNamespace

BLOCK_BYTES = 4
NAMESPACE = CacheNamespace()


def split(tokens: bytes) -> list[bytes]:
    return [tokens[i : i + BLOCK_BYTES] for i in range(0, len(tokens), BLOCK_BYTES)]


def blocks(tokens: bytes, namespace: CacheNamespace = NAMESPACE) -> list[StoredBlock]:
    """A prefix's blocks as a tier names them."""
    files = DiskIndex(10, BLOCK_BYTES).write(namespace, None, enumerate(split(tokens)))
    return [file.block for file in files]


def known_tier(max_files: int = 10, found: tuple[StoredBlock, ...] = ()) -> DiskIndex:
    tier = DiskIndex(max_files, BLOCK_BYTES)
    assert tier.next_command() == StoreCommand(), "it asks what there is"
    tier.take(StoreReport(found=found, is_complete=True))
    return tier


def begin_to_write(tier: DiskIndex, tokens: bytes, first_host_block: int = 0) -> list[bytes]:
    """Has what is new of a prefix written; returns the keys."""
    files = tier.walk(NAMESPACE, tokens)
    new = enumerate(split(tokens)[len(files) :], first_host_block)
    return [file.key for file in tier.write(NAMESPACE, files[-1] if files else None, new)]


def write(tier: DiskIndex, tokens: bytes) -> list[bytes]:
    keys = begin_to_write(tier, tokens)
    tier.take(StoreReport(written=tuple(keys)))
    use(tier, tokens)
    return keys


def use(tier: DiskIndex, tokens: bytes) -> None:
    tier.touch(tier.walk(NAMESPACE, tokens))


def num_stored(tier: DiskIndex, tokens: bytes) -> int:
    return sum(file.is_written for file in tier.walk(NAMESPACE, tokens))


def commands(tier: DiskIndex) -> list[StoreCommand]:
    found = []
    while (command := tier.next_command()) is not None:
        found.append(command)
    return found


def test_a_key_names_a_block_and_all_before_it() -> None:
    one, other = blocks(b"aaaabbbb"), blocks(b"ccccbbbb")
    assert one[1].parent == one[0].key
    assert one[0].parent == b""
    assert one[1].key != other[1].key
    assert blocks(b"aaaabbbbcccc")[:2] == one


def test_namespaces_have_keys_of_their_own() -> None:
    names = [
        CacheNamespace(),
        CacheNamespace("a"),
        CacheNamespace("", "a"),
        CacheNamespace("a", "a"),
    ]
    assert len({blocks(b"aaaa", name)[0].key for name in names}) == 4
    tier = known_tier(found=(blocks(b"aaaa", names[1])[0],))
    assert [len(tier.walk(name, b"aaaa")) for name in names] == [0, 1, 0, 0]


def test_a_file_counts_when_it_is_written() -> None:
    tier, (first, second) = known_tier(), blocks(b"aaaabbbb")
    assert begin_to_write(tier, b"aaaabbbb", 5) == [first.key, second.key]
    assert tier.next_command() == StoreCommand(writes=((5, first), (6, second)))
    assert num_stored(tier, b"aaaabbbb") == 0
    released, _ = tier.take(StoreReport(written=(first.key,)))
    assert released == [5]
    assert num_stored(tier, b"aaaabbbb") == 1


def test_reported_files_are_found() -> None:
    tier = known_tier(found=tuple(blocks(b"aaaabbbb")))
    assert num_stored(tier, b"aaaabbbbcccc") == 2
    assert write(tier, b"aaaabbbbcccc") == [blocks(b"aaaabbbbcccc")[2].key]


def test_a_walk_continues_behind_known_files() -> None:
    tier = known_tier(found=tuple(blocks(b"aaaabbbb")))
    known = tier.walk(NAMESPACE, b"aaaabbbbcccc")
    write(tier, b"aaaabbbbcccc")
    assert len(tier.walk(NAMESPACE, b"aaaabbbbcccc", known)) == 3
    tier.take(StoreReport(failed=(known[1].key,)))
    assert len(tier.walk(NAMESPACE, b"aaaabbbbcccc", known)) == 1


def test_a_file_without_its_parent_is_deleted() -> None:
    orphan = blocks(b"aaaabbbb")[1]
    tier = known_tier(found=(orphan,))
    assert tier.num_files == 0
    assert commands(tier) == [StoreCommand(deletes=(orphan.key,))]


def test_the_least_recently_used_leaf_is_evicted() -> None:
    tier = known_tier(max_files=4)
    write(tier, b"aaaabbbb")
    write(tier, b"aaaacccc")
    use(tier, b"aaaabbbb")
    write(tier, b"dddd")
    commands(tier)
    write(tier, b"eeee")
    newer = blocks(b"aaaacccc")[1]
    assert commands(tier)[0] == StoreCommand(deletes=(newer.key,)), "before there is a new one"
    assert num_stored(tier, b"aaaabbbb") == 2


def test_kept_files_are_not_evicted() -> None:
    tier = known_tier(max_files=2)
    write(tier, b"aaaa")
    write(tier, b"bbbb")
    tier.keeps_all = True
    use(tier, b"aaaa")
    assert len(write(tier, b"cccc")) == 1
    assert len(write(tier, b"dddd")) == 0
    assert [num_stored(tier, token * 4) for token in (b"a", b"b", b"c")] == [1, 0, 1]


def test_a_prefix_does_not_evict_its_own_files() -> None:
    tier = known_tier(max_files=2)
    assert len(write(tier, b"aaaabbbbcccc")) == 2


def test_a_failed_write_leaves_no_file() -> None:
    tier, (first, second) = known_tier(), blocks(b"aaaabbbb")
    begin_to_write(tier, b"aaaabbbb", 5)
    commands(tier)
    released, _ = tier.take(StoreReport(failed=(first.key,)))
    assert released == [5]
    assert begin_to_write(tier, b"aaaabbbb", 7) == [first.key], "the other one is under way"
    released, _ = tier.take(StoreReport(written=(first.key,)))
    assert released == [7]
    commands(tier)
    released, _ = tier.take(StoreReport(written=(second.key,)))
    assert released == [6]
    assert commands(tier) == [StoreCommand(deletes=(second.key,))], "it was given up"
    assert tier.outcomes == {"written": 2, "read": 0, "failed": 1}


def test_a_failed_read_drops_the_file_and_its_children() -> None:
    _, second, third = prefix = blocks(b"aaaabbbbcccc")
    tier = known_tier(found=tuple(prefix))
    tier.read([(second.key, 3)])
    commands(tier)
    assert tier.is_reading(second.key)
    released, loaded = tier.take(StoreReport(failed=(second.key,)))
    assert (released, loaded) == ([3], {})
    assert num_stored(tier, b"aaaabbbbcccc") == 1
    assert commands(tier) == [StoreCommand(deletes=(third.key,))]


def test_files_that_are_read_are_not_evicted() -> None:
    (block,) = blocks(b"aaaa")
    tier = known_tier(max_files=1, found=(block,))
    tier.read([(block.key, 3)])
    assert write(tier, b"bbbb") == []
    assert tier.take(StoreReport(read=(block.key,))) == ([], {block.key: 3})
    assert len(write(tier, b"bbbb")) == 1


def test_reports_without_a_command_are_ignored() -> None:
    tier, key = known_tier(), bytes(16)
    assert tier.take(StoreReport(read=(key,), failed=(key,))) == ([], {})
