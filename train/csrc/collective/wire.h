// Chunks of a shard on their way between hosts: the steps of the schedule, several chunks at once.
#pragma once

#include <vector>

#include "collective/all_reduce.h"
#include "collective/group.h"

namespace taco::collective {

class Wire {
public:
    Wire(Group& group, const AllReduceOptions& options);

    // Takes a slot for the chunk, which is kDepth above the last finished one at most.
    // Returns where its `count` values go, in the accumulator type: `work`, or a buffer if null.
    char* begin(size_t chunk, size_t count, char* work);
    // The values are there: the exchange begins.
    void start(size_t chunk);
    // Ends steps whose messages have been moved; returns whether there was one.
    bool advance();
    bool is_finished(size_t chunk) const { return chunks_[chunk % kDepth].finished; }
    char* work(size_t chunk) const { return chunks_[chunk % kDepth].work; }

private:
    struct Chunk {
        bool started = false, finished = false;
        uint32_t tag = 0;
        size_t count = 0;
        char* work = nullptr;
        Steps steps;
        size_t step = 0;
        int pending = 0;
        size_t buffer = 0;  // first of three: work, sent, received
    };

    void begin_step(Chunk& chunk);
    void end_step(Chunk& chunk);
    void end_reductions(Chunk& chunk);
    void combine_all(Chunk& chunk, const Step& step);
    Type type_on_wire(const Chunk& chunk) const;
    char* buffer(Chunk& chunk, size_t index, size_t bytes);
    char* at(Chunk& chunk, size_t element) const {
        return chunk.work + element * size_of(accumulator_);
    }

    Group& group_;
    AllReduceOptions options_;
    Type accumulator_;
    Type reduced_type_, gathered_type_;  // of values on the wire
    Chunk chunks_[kDepth];
};

}  // namespace taco::collective
