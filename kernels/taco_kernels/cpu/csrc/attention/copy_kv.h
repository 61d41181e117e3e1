// Copies keys and values of single tokens between slots of the cache, bit by bit.
#pragma once

#include <algorithm>
#include <cstring>

#include "attention/kv_cache.h"
#include "runtime/parallel.h"

namespace TACO_ISA {

// One head of one entry of the token in a slot: the addresses of its numbers in the panels.
class TokenSlot {
public:
    TokenSlot(const EntryKV& kv, int64_t slot, int64_t head)
        : item_bytes_(item_bytes(kv.type)),
          group_(kv.group()),
          padded_key_dim_(kv.padded_key_dim()),
          padded_value_dim_(kv.is_latent ? 0 : kv.padded_value_dim()),
          value_stride_(kv.block_size * PANEL * item_bytes_) {
        const int64_t block = slot / kv.block_size, offset = slot % kv.block_size;
        const int64_t panel = offset / PANEL * PANEL;
        token_ = offset % PANEL;
        keys_ = kv.keys(block, head) + panel * padded_key_dim_ * item_bytes_;
        values_ = kv.values(block, head) + panel * PANEL * item_bytes_;
        if (kv.has_token_scales()) {
            key_scale_ = kv.key_scales(block, head) + offset;
            value_scale_ = kv.value_scales(block, head) + offset;
        }
    }

    void copy_from(const TokenSlot& source) {
        const int64_t pair_bytes = group_ * item_bytes_;
        for (int64_t d = 0; d < padded_key_dim_; d += group_) {
            std::memcpy(key(d), source.key(d), pair_bytes);
        }
        for (int64_t d = 0; d < padded_value_dim_; ++d) {
            std::memcpy(value(d), source.value(d), item_bytes_);
        }
        if (key_scale_) {
            *key_scale_ = *source.key_scale_;
            *value_scale_ = *source.value_scale_;
        }
    }

    bool begins_panel() const { return token_ == 0; }
    // Zeroes the values of all sixteen tokens of the panel that starts with this one; of a latent
    // entry, the keys.
    void clear_values() {
        for (int64_t d = 0; d < padded_value_dim_; d += PANEL) {
            std::memset(value(d), 0, PANEL * PANEL * item_bytes_);
        }
        if (padded_value_dim_ == 0) std::memset(keys_, 0, padded_key_dim_ * PANEL * item_bytes_);
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

    const int64_t item_bytes_, group_, padded_key_dim_;
    const int64_t padded_value_dim_;  // 0 of a latent entry
    const int64_t value_stride_;      // bytes from sixteen dims to the next
    int64_t token_;                   // of the panel's sixteen
    char *keys_, *values_;            // of the panel
    float *key_scale_ = nullptr, *value_scale_ = nullptr;
};

// Copies within one entry; the other tokens of the panels stay unchanged.
inline void copy_kv(Thread& thread, const KVCache& cache, const KVCopies& copies, int64_t entry) {
    const EntryKV kv = cache.entry(entry);
    const int64_t heads = kv.num_heads;
    thread.share(copies.count * heads, 8, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t copy = i / heads, head = i % heads;
            TokenSlot target(kv, copies.targets[copy], head);
            target.copy_from(TokenSlot(kv, copies.sources[copy], head));
        }
    });
}

// Copies tokens to the ends of their sequences, in all entries and in token order. As in write_kv,
// the first token of a panel zeroes the values of the other fifteen.
inline void append_kv(Thread& thread, const KVCache& cache, const KVCopies& copies) {
    thread.share(cache.num_entries, 1, [&](int64_t index, int64_t) {
        const EntryKV kv = cache.entry(index);
        for (int64_t head = 0; head < kv.num_heads; ++head) {
            for (int64_t i = 0; i < copies.count; ++i) {
                TokenSlot target(kv, copies.targets[i], head);
                if (target.begins_panel()) target.clear_values();
                target.copy_from(TokenSlot(kv, copies.sources[i], head));
            }
        }
    });
}

}  // namespace TACO_ISA
