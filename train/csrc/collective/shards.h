// How a tensor is cut: into one shard per owner, and every shard into pieces, one per chunk.
#pragma once

#include <algorithm>
#include <cstddef>

#include "collective/schedule.h"

namespace taco::collective {

struct Shards {
    size_t count;       // elements of the tensor
    size_t num_shards;  // owners
    size_t piece;       // elements of a shard in one chunk

    Range shard(size_t owner) const { return part_of({0, count}, owner, num_shards); }

    size_t num_chunks() const {
        const size_t longest = (count + num_shards - 1) / num_shards;
        return (longest + piece - 1) / piece;
    }

    // Elements of shard `owner` in chunk `chunk`: perhaps none, in the last chunk.
    Range piece_of(size_t owner, size_t chunk) const {
        const Range all = shard(owner);
        const size_t begin = std::min(all.begin + chunk * piece, all.end);
        return {begin, std::min(begin + piece, all.end)};
    }
};

}  // namespace taco::collective
