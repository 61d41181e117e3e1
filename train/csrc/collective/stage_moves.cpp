#include "collective/stage_moves.h"

#include <algorithm>
#include <cstring>

namespace taco::collective {
namespace {

// Parts one after another.
class Stream {
public:
    void add(const Part& part) {
        parts_.push_back(part);
        bytes_ += part.bytes;
    }

    // Calls `copy(data, place, bytes)` for what lies in `length` bytes from `begin` on; `place` is
    // counted from there.
    template <typename Copy>
    void visit(size_t begin, size_t length, Copy copy) const {
        const size_t end = std::min(begin + length, bytes_);
        size_t first = 0;
        for (const Part& part : parts_) {
            const size_t from = std::max(begin, first), to = std::min(end, first + part.bytes);
            if (from < to) copy(part.data + (from - first), from - begin, to - from);
            first += part.bytes;
        }
    }

private:
    std::vector<Part> parts_;
    size_t bytes_ = 0;
};

// Each rank copies chunks of its streams into its slot, and the other ranks copy theirs out of it.
class StageMoves : public Work {
public:
    StageMoves(Group& group, const std::vector<Part>& sends, const std::vector<Part>& receives,
               size_t longest, bool is_shared, bool may_be_shorter)
        : group_(group),
          stage_(*group.stage),
          is_shared_(is_shared),
          // Slots are divided where each rank gets something else; regions begin at cache lines.
          region_(is_shared ? stage_.slot_bytes() : stage_.slot_bytes() / num_ranks() / 64 * 64),
          num_chunks_((longest + region_ - 1) / region_),
          first_(group.take_chunks(num_chunks_)),
          outgoing_(num_ranks()),
          incoming_(num_ranks()),
          remote_(group, elsewhere(sends, outgoing_), elsewhere(receives, incoming_),
                  may_be_shorter) {}

    bool advance() override {
        bool moved = remote_.advance();
        moved |= copy_in();
        if (!arrived_) {
            if (!group_.all_arrived()) return moved;
            arrived_ = moved = true;
        }
        return moved | copy_out();
    }

    bool done() const override { return arrived_ && num_out_ == num_chunks_ && remote_.done(); }

    int awaited_rank() const override {
        if (group_.first_not_arrived() >= 0) return group_.first_not_arrived();
        for (int i = 0; i < num_ranks(); ++i) {
            if (i == stage_.index() || num_out_ == num_chunks_) continue;
            const bool is_late = stage_.get(i, Counter::copied_in) <= first_ + num_out_ ||
                                 stage_.get(i, Counter::reduced) + kDepth <= first_ + num_in_;
            if (is_late) return group_.local_ranks()[i];
        }
        return remote_.awaited_rank();
    }

    std::pair<Counter, uint64_t> awaited_counter() const override {
        if (num_in_ < num_chunks_) return {Counter::any, 0};
        if (!arrived_) return {Counter::arrived, group_.operation()};
        return {Counter::copied_in, first_ + num_out_ + 1};
    }

    const char* stage_name() const override {
        return group_.mesh.idle() ? "shared memory" : "messages";
    }

private:
    int num_ranks() const { return stage_.num_ranks(); }

    // The parts of other hosts; those of this one go into `streams`, by local rank.
    std::vector<Part> elsewhere(const std::vector<Part>& parts, std::vector<Stream>& streams) {
        const std::vector<int>& local = group_.local_ranks();
        std::vector<Part> others;
        for (const Part& part : parts) {
            const auto found = std::find(local.begin(), local.end(), part.rank);
            if (found == local.end()) {
                others.push_back(part);
            } else {
                streams[found - local.begin()].add(part);
            }
        }
        return others;
    }

    bool copy_in() {
        if (num_in_ == num_chunks_) return false;
        const uint64_t chunk = first_ + num_in_;
        if (chunk >= kDepth && stage_.minimum(Counter::reduced, num_ranks()) <= chunk - kDepth) {
            return false;
        }
        for (int i = 0; i < num_ranks(); ++i) {
            if (is_shared_ != (i == stage_.index())) continue;
            char* slot = stage_.input_of(stage_.index(), chunk) + (is_shared_ ? 0 : i * region_);
            outgoing_[i].visit(num_in_ * region_, region_,
                               [&](const char* data, size_t place, size_t bytes) {
                                   std::memcpy(slot + place, data, bytes);
                               });
        }
        ++num_in_;
        stage_.set(Counter::copied_in, chunk + 1);
        return true;
    }

    bool copy_out() {
        if (num_out_ == num_in_) return false;
        const uint64_t chunk = first_ + num_out_;
        if (stage_.minimum(Counter::copied_in, num_ranks()) <= chunk) return false;
        for (int i = 0; i < num_ranks(); ++i) {
            if (i == stage_.index()) continue;
            const char* slot =
                stage_.input_of(i, chunk) + (is_shared_ ? 0 : stage_.index() * region_);
            incoming_[i].visit(num_out_ * region_, region_,
                               [&](char* data, size_t place, size_t bytes) {
                                   std::memcpy(data, slot + place, bytes);
                               });
        }
        ++num_out_;
        // All-reduces wait for these counters before they use the slots again.
        for (Counter counter : {Counter::reduced, Counter::published, Counter::copied_out}) {
            stage_.set(counter, chunk + 1);
        }
        return true;
    }

    Group& group_;
    Stage& stage_;
    bool is_shared_;
    size_t region_, num_chunks_;
    uint64_t first_;
    std::vector<Stream> outgoing_, incoming_;
    Moves remote_;
    size_t num_in_ = 0, num_out_ = 0;
    bool arrived_ = false;
};

}  // namespace

void move_by_stage(Group& group, const std::vector<Part>& sends, const std::vector<Part>& receives,
                   size_t longest, bool is_shared, bool may_be_shorter) {
    StageMoves work(group, sends, receives, longest, is_shared, may_be_shorter);
    group.run(work);
}

}  // namespace taco::collective
