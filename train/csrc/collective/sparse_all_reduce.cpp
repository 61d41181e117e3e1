#include "collective/sparse_all_reduce.h"

#include <cstring>

#include "collective/codec.h"
#include "collective/reduce.h"
#include "collective/shards.h"
#include "collective/topk.h"

namespace taco::collective {
namespace {

// What the two passes through shared memory have in common.
class Pass : public Work {
public:
    Pass(Group& group, float* data, const Shards& shards, const SparseOptions& options)
        : group_(group),
          stage_(options.uses_stage ? group.stage.get() : nullptr),
          data_(data),
          shards_(shards),
          options_(options),
          owner_(stage_ ? stage_->index() : 0),
          owns_(options.residual != nullptr),
          num_chunks_(shards.num_chunks()) {
        if (stage_) first_ = group.take_chunks(num_chunks_);
    }
    const char* stage_name() const override { return "shared memory"; }
    int awaited_rank() const override {
        if (group_.first_not_arrived() >= 0) return group_.first_not_arrived();
        for (int i = 0; stage_ && i < stage_->num_ranks(); ++i) {
            if (i != stage_->index() && is_late(i)) return group_.local_ranks()[i];
        }
        return -1;
    }

protected:
    virtual bool is_late(int local_rank) const = 0;
    bool slot_is_free(Counter counter, uint64_t chunk) const {
        return chunk < kDepth || stage_->minimum(counter, stage_->num_ranks()) > chunk - kDepth;
    }
    float* piece_in(char* slot, size_t owner) const {
        return reinterpret_cast<float*>(slot) + owner * shards_.piece;
    }

    Group& group_;
    Stage* stage_;
    float* data_;
    Shards shards_;
    const SparseOptions& options_;
    int owner_;
    bool owns_;
    size_t num_chunks_;
    uint64_t first_ = 0;
};

// Adds the sum over the host's ranks to the owner's residual.
class Collect : public Pass {
public:
    Collect(Group& group, float* data, const Shards& shards, const SparseOptions& options)
        : Pass(group, data, shards, options) {
        if (group.stage) group.stage->set(Counter::arrived, group.operation());
        if (!stage_) {
            accumulate(options.residual, options.momentum, options.momentum_factor, data,
                       shards.count);
            num_in_ = num_reduced_ = num_chunks_;
            return;
        }
        if (!owns_) {
            num_reduced_ = num_chunks_;
            stage_->set(Counter::reduced, first_ + num_chunks_);
        }
    }

    bool advance() override {
        bool moved = reduce_next();
        moved |= copy_in();
        if (done() && !is_over_) {
            is_over_ = true;
            if (stage_) {  // the result's slots are not used in this pass
                stage_->set(Counter::published, first_ + num_chunks_);
                stage_->set(Counter::copied_out, first_ + num_chunks_);
            }
        }
        return moved;
    }
    bool done() const override { return num_in_ == num_chunks_ && num_reduced_ == num_chunks_; }

private:
    bool is_late(int local_rank) const override {
        return (owns_ && stage_->get(local_rank, Counter::copied_in) <= first_ + num_reduced_) ||
               stage_->get(local_rank, Counter::reduced) + kDepth <= first_ + num_in_;
    }

    bool copy_in() {
        if (num_in_ == num_chunks_ || !slot_is_free(Counter::reduced, first_ + num_in_)) {
            return false;
        }
        char* slot = stage_->input_of(stage_->index(), first_ + num_in_);
        for (size_t owner = 0; owner < shards_.num_shards; ++owner) {
            if (owns_ && static_cast<int>(owner) == owner_) continue;
            const Range range = shards_.piece_of(owner, num_in_);
            std::memcpy(piece_in(slot, owner), data_ + range.begin, range.length() * sizeof(float));
        }
        ++num_in_;
        stage_->set(Counter::copied_in, first_ + num_in_);
        return true;
    }

    bool reduce_next() {
        if (num_reduced_ == num_chunks_ || !group_.all_arrived()) return false;
        const uint64_t chunk = first_ + num_reduced_;
        if (stage_->minimum(Counter::copied_in, stage_->num_ranks()) <= chunk) return false;
        const Range range = shards_.piece_of(owner_, num_reduced_);
        std::vector<const void*> inputs;
        for (int i = 0; i < stage_->num_ranks(); ++i) {
            inputs.push_back(i == owner_ ? data_ + range.begin
                                         : piece_in(stage_->input_of(i, chunk), owner_));
        }
        sum_.resize(range.length());
        reduce(Type::float32, Reduction::sum, sum_.data(), inputs.data(), inputs.size(),
               range.length());
        const size_t offset = range.begin - shards_.shard(owner_).begin;
        accumulate(options_.residual + offset,
                   options_.momentum ? options_.momentum + offset : nullptr,
                   options_.momentum_factor, sum_.data(), range.length());
        ++num_reduced_;
        stage_->set(Counter::reduced, chunk + 1);
        return true;
    }

    size_t num_in_ = 0, num_reduced_ = 0;
    bool is_over_ = false;
    std::vector<float> sum_;
};

// Messages of all ranks that share the shard, in the order of `ranks`.
class Swap : public Work {
public:
    Swap(Group& group, const std::vector<int>& ranks, size_t capacity, std::vector<char> own)
        : messages(ranks.size()), lengths(ranks.size()), group_(group) {
        pending_ = 2 * (static_cast<int>(ranks.size()) - 1);
        for (size_t i = 0; i < ranks.size(); ++i) {
            if (ranks[i] == group.rank()) {
                lengths[i] = own.size();
                messages[i] = std::move(own);
                for (int other : ranks) {
                    if (other == group.rank()) continue;
                    group.mesh.send(other, 0, messages[i].data(), lengths[i], &pending_);
                }
            } else {
                messages[i].resize(capacity);
                group.mesh.receive(ranks[i], 0, messages[i].data(), capacity, &pending_,
                                   &lengths[i]);
            }
        }
    }
    bool advance() override { return group_.mesh.progress(); }
    bool done() const override { return pending_ == 0; }
    int awaited_rank() const override { return group_.mesh.awaited_rank(); }
    const char* stage_name() const override { return "exchange between hosts"; }

    std::vector<std::vector<char>> messages;
    std::vector<size_t> lengths;

private:
    Group& group_;
    int pending_;
};

// The owners decode the messages piece by piece, and all ranks copy the pieces.
class Spread : public Pass {
public:
    Spread(Group& group, float* data, const Shards& shards, const SparseOptions& options,
           std::vector<Decoder> decoders)
        : Pass(group, data, shards, options), decoders_(std::move(decoders)) {
        if (!owns_) num_published_ = num_chunks_;
        if (!stage_) return;
        stage_->set(Counter::copied_in, first_ + num_chunks_);
        stage_->set(Counter::reduced, first_ + num_chunks_);
        if (!owns_) stage_->set(Counter::published, first_ + num_chunks_);
    }

    bool advance() override {
        bool moved = copy_out();
        moved |= publish_next();
        return moved;
    }
    bool done() const override {
        return num_published_ == num_chunks_ && (!stage_ || num_out_ == num_chunks_);
    }

private:
    bool is_late(int local_rank) const override {
        return stage_->get(local_rank, Counter::published) <= first_ + num_out_ ||
               (owns_ &&
                stage_->get(local_rank, Counter::copied_out) + kDepth <= first_ + num_published_);
    }

    bool publish_next() {
        if (num_published_ == num_chunks_) return false;
        const uint64_t chunk = first_ + num_published_;
        if (stage_ && !slot_is_free(Counter::copied_out, chunk)) return false;
        const Range range = shards_.piece_of(owner_, num_published_);
        float* target = stage_ ? piece_in(stage_->result(chunk), owner_) : data_ + range.begin;
        std::memset(target, 0, range.length() * sizeof(float));
        const size_t begin = shards_.shard(owner_).begin;
        for (Decoder& decoder : decoders_) {
            decoder.add_until(range.end - begin, target, range.begin - begin);
        }
        if (options_.averages) divide(Type::float32, target, range.length(), group_.size());
        ++num_published_;
        if (stage_) stage_->set(Counter::published, chunk + 1);
        return true;
    }

    bool copy_out() {
        if (!stage_ || num_out_ == num_chunks_) return false;
        const uint64_t chunk = first_ + num_out_;
        if (stage_->minimum(Counter::published, static_cast<int>(shards_.num_shards)) <= chunk) {
            return false;
        }
        for (size_t owner = 0; owner < shards_.num_shards; ++owner) {
            const Range range = shards_.piece_of(owner, num_out_);
            std::memcpy(data_ + range.begin, piece_in(stage_->result(chunk), owner),
                        range.length() * sizeof(float));
        }
        ++num_out_;
        stage_->set(Counter::copied_out, chunk + 1);
        return true;
    }

    std::vector<Decoder> decoders_;
    size_t num_published_ = 0, num_out_ = 0;
};

}  // namespace

void sparse_all_reduce(Group& group, float* data, size_t count, double ratio,
                       const SparseOptions& options) {
    Description description;
    description.kind = Kind::all_reduce;
    description.type = Type::float32;
    description.reduction = options.averages ? Reduction::average : Reduction::sum;
    description.wire = 3 + options.as_float16 + 16 * options.schedule;
    description.count = count;
    std::memcpy(&description.extra, &ratio, sizeof ratio);
    group.begin(description);
    SparseOptions used = options;
    used.uses_stage &= group.stage != nullptr;
    const size_t num_shards = used.uses_stage ? options.num_shards : 1;
    const size_t slot_bytes = group.stage ? group.stage->slot_bytes() : size_t{1} << 20;
    const Shards shards{count, num_shards,
                        std::max<size_t>(slot_bytes / sizeof(float) / num_shards, 1)};
    Collect collect(group, data, shards, used);
    group.run(collect);
    std::vector<Decoder> decoders;
    std::unique_ptr<Swap> swap;
    if (used.residual) {
        const size_t length = shards.shard(used.uses_stage ? group.stage->index() : 0).length();
        const size_t capacity = encoded_capacity(length, used.num_selected, used.as_float16);
        std::vector<uint32_t> indices;
        select_largest(used.residual, length, used.num_selected, indices);
        std::vector<char> own(capacity);
        own.resize(encode(used.residual, used.momentum, indices, used.as_float16, own.data()));
        swap = std::make_unique<Swap>(group, group.schedules[used.schedule].levels[0].ranks,
                                      capacity, std::move(own));
        group.run(*swap);
        for (size_t i = 0; i < swap->messages.size(); ++i) {
            decoders.emplace_back(swap->messages[i].data(), swap->lengths[i], length,
                                  used.as_float16);
        }
    }
    Spread spread(group, data, shards, used, std::move(decoders));
    group.run(spread);
}

}  // namespace taco::collective
