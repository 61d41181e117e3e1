from taco_proto.kv_tiers import StoreCommand, StoredBlock, StoreReport
from taco_scheduler.kv.disk_tier import DiskTier, chain
from taco_scheduler.kv.namespace import CacheNamespace

BLOCK_BYTES = 4
NAMESPACE = CacheNamespace()


def blocks(tokens: bytes, namespace: CacheNamespace = NAMESPACE) -> list[StoredBlock]:
    return list(chain(namespace, tokens, BLOCK_BYTES))


def known_tier(max_files: int = 10, found: tuple[StoredBlock, ...] = ()) -> DiskTier:
    tier = DiskTier(max_files, BLOCK_BYTES)
    assert tier.next_command() == StoreCommand(), "it asks what there is"
    tier.take(StoreReport(found=found, is_complete=True))
    return tier


def write(tier: DiskTier, prefix: list[StoredBlock], first_host_block: int = 0) -> list[bytes]:
    """Writes what is new of a prefix; returns the keys that were written."""
    new = [block for block in prefix if not tier.has(block)]
    num_written = tier.write(list(enumerate(new, first_host_block)))
    keys = [block.key for block in new[:num_written]]
    tier.take(StoreReport(written=tuple(keys)))
    tier.touch(prefix)
    return keys


def commands(tier: DiskTier) -> list[StoreCommand]:
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


def test_a_file_counts_when_it_is_written() -> None:
    tier, prefix = known_tier(), blocks(b"aaaabbbb")
    assert tier.write([(5, prefix[0]), (7, prefix[1])]) == 2
    assert tier.next_command() == StoreCommand(writes=((5, prefix[0]), (7, prefix[1])))
    assert tier.stored(prefix) == 0
    released, _ = tier.take(StoreReport(written=(prefix[0].key,)))
    assert released == [5]
    assert tier.stored(prefix) == 1


def test_what_was_found_is_there() -> None:
    prefix = blocks(b"aaaabbbb")
    tier = known_tier(found=tuple(prefix))
    assert tier.stored(blocks(b"aaaabbbbcccc")) == 2
    assert not tier.wants(prefix[1])
    assert tier.wants(blocks(b"aaaabbbbcccc")[2])


def test_a_file_without_its_parent_is_deleted() -> None:
    prefix = blocks(b"aaaabbbb")
    tier = known_tier(found=(prefix[1],))
    assert tier.num_files == 0
    assert commands(tier) == [StoreCommand(deletes=(prefix[1].key,))]


def test_the_leaf_that_was_used_longest_ago_makes_room() -> None:
    tier = known_tier(max_files=4)
    old, newer = blocks(b"aaaabbbb"), blocks(b"aaaacccc")
    write(tier, old)
    write(tier, newer)
    tier.touch(old)
    write(tier, blocks(b"dddd"))
    commands(tier)
    write(tier, blocks(b"eeee"))
    assert commands(tier)[0] == StoreCommand(deletes=(newer[1].key,)), "before there is a new one"
    assert tier.stored(old) == 2


def test_a_prompt_does_not_make_room_for_itself() -> None:
    tier = known_tier(max_files=2)
    assert len(write(tier, blocks(b"aaaabbbbcccc"))) == 2


def test_a_write_that_failed_is_no_file() -> None:
    tier, prefix = known_tier(), blocks(b"aaaabbbb")
    tier.write([(5, prefix[0]), (7, prefix[1])])
    commands(tier)
    released, _ = tier.take(StoreReport(failed=(prefix[0].key,)))
    assert released == [5]
    assert not tier.wants(prefix[1]), "its parent is none"
    released, _ = tier.take(StoreReport(written=(prefix[1].key,)))
    assert released == [7]
    assert commands(tier) == [StoreCommand(deletes=(prefix[1].key,))], "it is of no use"


def test_a_read_that_failed_loses_the_file_and_what_continues_it() -> None:
    prefix = blocks(b"aaaabbbbcccc")
    tier = known_tier(found=tuple(prefix))
    tier.read([(prefix[1].key, 3)])
    commands(tier)
    assert tier.is_reading(prefix[1].key)
    released, loaded = tier.take(StoreReport(failed=(prefix[1].key,)))
    assert (released, loaded) == ([3], {})
    assert tier.stored(prefix) == 1
    assert commands(tier) == [StoreCommand(deletes=(prefix[2].key,))]


def test_what_is_read_stays() -> None:
    prefix = blocks(b"aaaa")
    tier = known_tier(max_files=1, found=tuple(prefix))
    tier.read([(prefix[0].key, 3)])
    assert write(tier, blocks(b"bbbb")) == []
    assert tier.take(StoreReport(read=(prefix[0].key,))) == ([], {prefix[0].key: 3})
    assert len(write(tier, blocks(b"bbbb"))) == 1


def test_reports_of_what_nobody_waits_for_are_ignored() -> None:
    tier, key = known_tier(), bytes(16)
    assert tier.take(StoreReport(read=(key,), failed=(key,))) == ([], {})
