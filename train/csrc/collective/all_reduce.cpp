#include "collective/all_reduce.h"

#include <cstring>

#include "collective/reduce.h"
#include "collective/shards.h"
#include "collective/wire.h"

namespace taco::collective {
namespace {

// On one host, every rank reduces tensors up to this size whole: one time of waiting, not two.
constexpr size_t kWholeBytes = 32 << 10;
// Between hosts, one rank per host speaks for tensors up to this size, in one message.
constexpr size_t kSmallBytes = 16 << 10;
constexpr size_t kWireChunkBytes = 512 << 10;  // of a tensor, where chunks travel between hosts

class WholeAllReduce : public Work {
public:
    WholeAllReduce(Group& group, void* data, size_t count, const AllReduceOptions& options)
        : group_(group), stage_(*group.stage), data_(data), count_(count), options_(options) {
        chunk_ = group.take_chunks(1);
    }

    bool advance() override {
        if (done_) return false;
        if (!arrived_) {
            if (chunk_ >= kDepth &&
                stage_.minimum(Counter::reduced, stage_.num_ranks()) < chunk_ - kDepth + 1) {
                return false;
            }
            std::memcpy(stage_.input_of(stage_.index(), chunk_), data_,
                        count_ * size_of(options_.type));
            stage_.set(Counter::arrived, group_.operation());
            arrived_ = true;
        }
        if (!group_.all_arrived()) return false;
        reduce_all();
        for (Counter counter :
             {Counter::copied_in, Counter::reduced, Counter::published, Counter::copied_out}) {
            stage_.set(counter, chunk_ + 1);
        }
        done_ = true;
        return true;
    }

    bool done() const override { return done_; }
    int awaited_rank() const override { return group_.first_not_arrived(); }
    const char* stage_name() const override { return "shared memory"; }
    std::pair<Counter, uint64_t> awaited_counter() const override {
        if (!arrived_) return {Counter::any, 0};
        return {Counter::arrived, group_.operation()};
    }

private:
    void reduce_all() {
        std::vector<const void*> inputs;
        for (int i = 0; i < stage_.num_ranks(); ++i) inputs.push_back(stage_.input_of(i, chunk_));
        const Type accumulator = accumulator_of(options_.type);
        std::vector<char>& buffer = group_.buffers[0];
        void* out = data_;
        if (accumulator != options_.type) {
            buffer.resize(count_ * size_of(accumulator));
            out = buffer.data();
        }
        reduce(options_.type, options_.reduction, out, inputs.data(), inputs.size(), count_);
        if (options_.reduction == Reduction::average) {
            divide(accumulator, out, count_, group_.size());
        }
        if (out != data_) convert(options_.type, data_, accumulator, out, count_);
    }

    Group& group_;
    Stage& stage_;
    void* data_;
    size_t count_;
    AllReduceOptions options_;
    uint64_t chunk_;
    bool arrived_ = false, done_ = false;
};

// Chunks flow through: copied into shared memory by all, reduced by the owners, exchanged between
// hosts, published, copied out by all. Each rank does what comes next for one chunk or another.
class ChunkedAllReduce : public Work {
public:
    ChunkedAllReduce(Group& group, void* data, const Shards& shards,
                     const AllReduceOptions& options)
        : group_(group),
          stage_(options.uses_stage ? group.stage.get() : nullptr),
          data_(static_cast<char*>(data)),
          shards_(shards),
          options_(options),
          size_(size_of(options.type)),
          accumulator_(accumulator_of(options.type)),
          num_chunks_(shards.num_chunks()),
          owner_(stage_ ? stage_->index() : 0),
          owns_(owner_ < static_cast<int>(shards.num_shards)),
          wire_(group, options) {
        if (!group.stage) return;
        first_ = group.take_chunks(stage_ ? num_chunks_ : 0);
        group.stage->set(Counter::arrived, group.operation());
        if (stage_ && !owns_) {  // the others do not wait for it to reduce
            stage_->set(Counter::reduced, first_ + num_chunks_);
            stage_->set(Counter::published, first_ + num_chunks_);
        }
    }

    bool advance() override {
        bool moved = group_.mesh.progress();
        if (owns_) moved |= finish_exchanges();
        if (stage_) {
            moved |= copy_out();
            if (owns_ && group_.all_arrived()) moved |= reduce_next();
            moved |= copy_in();
        } else {
            moved |= start_next();
        }
        return moved;
    }

    bool done() const override {
        return (stage_ ? num_out_ : num_finished_) == num_chunks_ && group_.mesh.idle();
    }

    int awaited_rank() const override {
        if (stage_ && group_.first_not_arrived() >= 0) return group_.first_not_arrived();
        const int remote = group_.mesh.awaited_rank();
        if (remote >= 0 || !stage_) return remote;
        for (int i = 0; i < stage_->num_ranks(); ++i) {
            const bool is_late =
                stage_->get(i, Counter::published) <= first_ + num_out_ ||
                (owns_ && stage_->get(i, Counter::copied_in) <= first_ + num_reduced_) ||
                stage_->get(i, Counter::reduced) + kDepth <= first_ + num_in_;
            if (is_late && i != stage_->index()) return group_.local_ranks()[i];
        }
        return -1;
    }

    const char* stage_name() const override {
        return group_.mesh.idle() ? "shared memory" : "exchange between hosts";
    }

private:
    bool slot_is_free(Counter counter, uint64_t chunk) const {
        return chunk < kDepth || stage_->minimum(counter, stage_->num_ranks()) > chunk - kDepth;
    }

    // Shard `owner` lies in the slot behind the shards before it.
    size_t slot_offset(size_t owner) const { return owner * shards_.piece * size_; }

    bool copy_in() {
        if (num_in_ == num_chunks_) return false;
        const uint64_t chunk = first_ + num_in_;
        if (!slot_is_free(Counter::reduced, chunk)) return false;
        char* slot = stage_->input_of(stage_->index(), chunk);
        for (size_t owner = 0; owner < shards_.num_shards; ++owner) {
            if (owns_ && static_cast<int>(owner) == owner_) continue;  // read from the tensor
            const Range range = shards_.piece_of(owner, num_in_);
            std::memcpy(slot + slot_offset(owner), data_ + range.begin * size_,
                        range.length() * size_);
        }
        ++num_in_;
        stage_->set(Counter::copied_in, chunk + 1);
        return true;
    }

    bool reduce_next() {
        if (num_reduced_ == num_chunks_) return false;
        const uint64_t chunk = first_ + num_reduced_;
        if (stage_->minimum(Counter::copied_in, stage_->num_ranks()) <= chunk ||
            !slot_is_free(Counter::copied_out, chunk)) {
            return false;
        }
        const Range range = shards_.piece_of(owner_, num_reduced_);
        inputs_.clear();
        for (int i = 0; i < stage_->num_ranks(); ++i) {
            inputs_.push_back(i == owner_ ? data_ + range.begin * size_
                                          : stage_->input_of(i, chunk) + slot_offset(owner_));
        }
        char* result = stage_->result(chunk) + slot_offset(owner_);
        char* work = wire_.begin(num_reduced_, range.length(),
                                 accumulator_ == options_.type ? result : nullptr);
        reduce(options_.type, options_.reduction, work, inputs_.data(), inputs_.size(),
               range.length());
        ++num_reduced_;
        stage_->set(Counter::reduced, chunk + 1);
        wire_.start(num_reduced_ - 1);
        return true;
    }

    bool start_next() {
        if (num_reduced_ == num_chunks_ || num_reduced_ >= num_finished_ + kDepth) return false;
        const Range range = shards_.piece_of(0, num_reduced_);
        char* own = data_ + range.begin * size_;
        char* work = wire_.begin(num_reduced_, range.length(),
                                 accumulator_ == options_.type ? own : nullptr);
        convert(accumulator_, work, options_.type, own, range.length());
        wire_.start(num_reduced_++);
        return true;
    }

    // Results become visible in the order of chunks.
    bool finish_exchanges() {
        bool moved = wire_.advance();
        while (num_finished_ < num_reduced_ && wire_.is_finished(num_finished_)) {
            const uint64_t chunk = first_ + num_finished_;
            const Range range = shards_.piece_of(owner_, num_finished_);
            char* target =
                stage_ ? stage_->result(chunk) + slot_offset(owner_) : data_ + range.begin * size_;
            convert(options_.type, target, accumulator_, wire_.work(num_finished_), range.length());
            ++num_finished_;
            if (stage_) stage_->set(Counter::published, chunk + 1);
            moved = true;
        }
        return moved;
    }

    bool copy_out() {
        if (num_out_ == num_in_) return false;
        const uint64_t chunk = first_ + num_out_;
        if (stage_->minimum(Counter::published, static_cast<int>(shards_.num_shards)) <= chunk) {
            return false;
        }
        const char* slot = stage_->result(chunk);
        for (size_t owner = 0; owner < shards_.num_shards; ++owner) {
            const Range range = shards_.piece_of(owner, num_out_);
            std::memcpy(data_ + range.begin * size_, slot + slot_offset(owner),
                        range.length() * size_);
        }
        ++num_out_;
        stage_->set(Counter::copied_out, chunk + 1);
        return true;
    }

    Group& group_;
    Stage* stage_;
    char* data_;
    Shards shards_;
    AllReduceOptions options_;
    size_t size_;
    Type accumulator_;
    size_t num_chunks_;
    int owner_;
    bool owns_;
    Wire wire_;
    uint64_t first_ = 0;
    size_t num_in_ = 0, num_reduced_ = 0, num_finished_ = 0, num_out_ = 0;
    std::vector<const void*> inputs_;
};

}  // namespace

void all_reduce(Group& group, void* data, size_t count, const AllReduceOptions& options) {
    const bool one_host = group.stage && group.stage->num_ranks() == group.size();
    Description description;
    description.kind = options.kind;
    description.type = options.type;
    description.reduction = options.reduction;
    description.wire = static_cast<int32_t>(options.wire) + 16 * options.schedule;
    description.count = count;
    group.begin(description);
    AllReduceOptions used = options;
    used.uses_stage |= one_host;
    uint8_t nothing = 0;
    if (count == 0) {  // ranks wait for each other all the same, and find out if they disagree
        used.type = Type::uint8;
        data = &nothing;
        count = 1;
    }
    const size_t size = size_of(used.type), bytes = count * size;
    if (one_host && bytes <= kWholeBytes) {
        WholeAllReduce work(group, data, count, used);
        return group.run(work);
    }
    size_t num_shards = 1, chunk_bytes = kWireChunkBytes;
    if (!used.uses_stage) {
        chunk_bytes *= group.size();
    } else if (group.stage) {
        if (bytes > kSmallBytes) num_shards = options.num_shards;
        chunk_bytes = std::min(group.stage->slot_bytes(),
                               one_host ? group.stage->slot_bytes() : kWireChunkBytes);
    } else {
        used.uses_stage = false;
    }
    const size_t piece = std::max<size_t>(chunk_bytes / size / num_shards, 1);
    ChunkedAllReduce work(group, data, {count, num_shards, piece}, used);
    group.run(work);
}

}  // namespace taco::collective
