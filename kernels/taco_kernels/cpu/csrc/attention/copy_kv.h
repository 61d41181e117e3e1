// Copies keys and values of single tokens between slots of the cache, bit by bit.
#pragma once

#include <algorithm>
#include <cstring>

#include "attention/kv_cache.h"
#include "runtime/parallel.h"

namespace TACO_ISA {

// One head of one layer of the token in a slot: the addresses of its numbers in the panels.
class TokenSlot {
public:
    TokenSlot(const KVCache& cache, int64_t slot, int64_t layer, int64_t head)
        : item_bytes_(item_bytes(cache.type)),
          group_(cache.group()),
          padded_dim_(cache.padded_dim()),
          value_stride_(cache.block_size * PANEL * item_bytes_) {
        const int64_t block = slot / cache.block_size, offset = slot % cache.block_size;
        const int64_t panel = offset / PANEL * PANEL;
        token_ = offset % PANEL;
        keys_ = cache.keys(block, layer, head) + panel * padded_dim_ * item_bytes_;
        values_ = cache.values(block, layer, head) + panel * PANEL * item_bytes_;
        if (cache.type == DType::i8) {
            key_scale_ = cache.key_scales(block, layer, head) + offset;
            value_scale_ = cache.value_scales(block, layer, head) + offset;
        }
    }

    void copy_from(const TokenSlot& source) {
        const int64_t pair_bytes = group_ * item_bytes_;
        for (int64_t d = 0; d < padded_dim_; d += group_) {
            std::memcpy(key(d), source.key(d), pair_bytes);
        }
        for (int64_t d = 0; d < padded_dim_; ++d) {
            std::memcpy(value(d), source.value(d), item_bytes_);
        }
        if (key_scale_) {
            *key_scale_ = *source.key_scale_;
            *value_scale_ = *source.value_scale_;
        }
    }

    bool begins_panel() const { return token_ == 0; }
    // Zeroes the values of all sixteen tokens of the panel that starts with this one.
    void clear_values() {
        for (int64_t d = 0; d < padded_dim_; d += PANEL) {
            std::memset(value(d), 0, PANEL * PANEL * item_bytes_);
        }
        if (value_scale_) std::fill_n(value_scale_, PANEL, 0.0f);
    }

private:
    // Dims d to d + group - 1, which are adjacent.
    char* key(int64_t d) const { return keys_ + (d * PANEL + token_ * group_) * item_bytes_; }
    char* value(int64_t d) const {
        const int64_t pairs = token_ / group_ * PANEL + d % PANEL;
        return values_ + d / PANEL * value_stride_ +
               (pairs * group_ + token_ % group_) * item_bytes_;
    }

    const int64_t item_bytes_, group_, padded_dim_;
    const int64_t value_stride_;  // bytes from sixteen dims to the next
    int64_t token_;               // of the panel's sixteen
    char *keys_, *values_;        // of the panel
    float *key_scale_ = nullptr, *value_scale_ = nullptr;
};

// Copies within one layer; the other tokens of the panels stay unchanged.
inline void copy_kv(Thread& thread, const KVCache& cache, const KVCopies& copies, int64_t layer) {
    const int64_t heads = cache.num_kv_heads;
    thread.share(copies.count * heads, 8, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t copy = i / heads, head = i % heads;
            TokenSlot target(cache, copies.targets[copy], layer, head);
            target.copy_from(TokenSlot(cache, copies.sources[copy], layer, head));
        }
    });
}

// Copies tokens to the ends of their sequences, in all layers and in token order. As in write_kv,
// the first token of a panel zeroes the values of the other fifteen.
inline void append_kv(Thread& thread, const KVCache& cache, const KVCopies& copies) {
    const int64_t heads = cache.num_kv_heads;
    thread.share(cache.num_layers * heads, 1, [&](int64_t index, int64_t) {
        const int64_t layer = index / heads, head = index % heads;
        for (int64_t i = 0; i < copies.count; ++i) {
            TokenSlot target(cache, copies.targets[i], layer, head);
            if (target.begins_panel()) target.clear_values();
            target.copy_from(TokenSlot(cache, copies.sources[i], layer, head));
        }
    });
}

}  // namespace TACO_ISA
