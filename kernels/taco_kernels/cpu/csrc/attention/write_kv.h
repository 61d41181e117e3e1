// Writes a step's keys and values into the paged cache.
#pragma once

#include <algorithm>
#include <limits>

#include "dispatch/kernel_table.h"
#include "isa/partial_vectors.h"
#include "isa/row_magnitudes.h"

namespace TACO_ISA {

// Tokens of one sequence that lie in the same group of sixteen: one panel of keys.
struct PanelTokens {
    int64_t first_token;  // of the step
    int64_t count;
    int64_t first_slot;           // 0 to 15
    int64_t block, block_offset;  // offset of the panel in the block
};

// The panels that a step writes to, by number. A thread asks for increasing numbers; or, when it
// helps others, for lower ones again.
class WrittenPanels {
public:
    explicit WrittenPanels(const KVCache& cache, const Batch& batch)
        : cache_(cache), batch_(batch) {}

    int64_t count() const {
        int64_t all = 0;
        for (int64_t s = 0; s < batch_.num_seqs; ++s) all += count(s);
        return all;
    }

    PanelTokens find(int64_t index) {
        if (index < first_) sequence_ = first_ = 0;
        while (index >= first_ + count(sequence_)) first_ += count(sequence_++);
        const int64_t s = sequence_, seq_len = batch_.seq_lens[s];
        const int64_t begin = first_position(s);
        const int64_t panel = begin / PANEL + index - first_;
        const int64_t from = std::max(begin, panel * PANEL);
        const int64_t end = std::min(seq_len, (panel + 1) * PANEL);
        const int64_t position = panel * PANEL;
        return {batch_.query_start[s] + from - begin, end - from, from - position,
                batch_.block_tables[s * batch_.block_table_stride + position / cache_.block_size],
                position % cache_.block_size};
    }

private:
    int64_t first_position(int64_t s) const {
        return batch_.seq_lens[s] - (batch_.query_start[s + 1] - batch_.query_start[s]);
    }
    int64_t count(int64_t s) const {
        const int64_t begin = first_position(s), end = batch_.seq_lens[s];
        return begin == end ? 0 : ceil_div(end, PANEL) - begin / PANEL;
    }

    const KVCache& cache_;
    const Batch& batch_;
    int64_t sequence_ = 0, first_ = 0;
};

inline void store_items(float* p, F32 v) { store(p, v); }
inline void store_items(bf16* p, F32 v) { store_bf16(p, v); }
inline void store_items(int8_t* p, F32 v) { store_i8(p, v); }

// The greatest number of a type that has a scale.
template <class Item>
constexpr float MAX_ITEM = Float8Limits<Item>::MAX;
template <>
inline constexpr float MAX_ITEM<int8_t> = 127;
// A row of smaller numbers is stored as zeros: the factor to items would not be finite.
constexpr float MIN_ROW = 0x1p-100f;
// The greatest float that is stored as a finite item. With an entry's scale, greater 8-bit numbers
// are clamped to MAX_ITEM.
template <class Item>
constexpr float MAX_STORED = std::numeric_limits<float>::max();
template <>
inline constexpr float MAX_STORED<bf16> = 0x1.fefffep127f;  // the next rounds to infinity

// One head of a panel in the cache.
template <class Item>
class PanelWriter {
    // Adjacent items: of consecutive dims in keys, of consecutive tokens in values.
    static constexpr int64_t GROUP = std::is_same_v<Item, float> ? 1 : 2;
    static constexpr bool HAS_SCALE = sizeof(Item) == 1;

public:
    PanelWriter(const EntryKV& kv, int64_t head, const PanelTokens& tokens) : kv_(kv) {
        keys_ = reinterpret_cast<Item*>(kv.keys(tokens.block, head)) +
                tokens.block_offset * kv.padded_key_dim();
        values_ =
            reinterpret_cast<Item*>(kv.values(tokens.block, head)) + tokens.block_offset * PANEL;
        value_stride_ = kv.block_size * PANEL;
        if (kv.has_token_scales()) {
            key_scales_ = kv.key_scales(tokens.block, head) + tokens.block_offset;
            value_scales_ = kv.value_scales(tokens.block, head) + tokens.block_offset;
        }
    }

    // Zeroes what products with probability 0 read of tokens that were not written yet.
    void clear_values() {
        if (kv_.is_latent) {
            std::fill_n(keys_, kv_.padded_key_dim() * PANEL, Item());
            if (key_scales_) std::fill_n(key_scales_, PANEL, 0.0f);
            return;
        }
        for (int64_t d = 0; d < kv_.padded_value_dim(); d += PANEL) {
            std::fill_n(values_ + d / PANEL * value_stride_, PANEL * PANEL, Item());
        }
        if (value_scales_) std::fill_n(value_scales_, PANEL, 0.0f);
    }

    // Writes a token. `value` is not read of a latent entry.
    void write(int64_t slot, const float* key, const float* value) {
        if (can_mark() && !is_finite(kv_.is_latent ? key : value)) return write_not_finite(slot);
        write_key(slot, key);
        if (!kv_.is_latent) write_value(slot, value);
    }

private:
    void write_key(int64_t slot, const float* row) {
        const float factor = scale_row(row, kv_.key_dim, key_scales_, slot, kv_.key_factor());
        for (int64_t d = 0; d < kv_.padded_key_dim(); d += LANES) {
            Item items[LANES];
            encode(items, row, kv_.key_dim, d, factor);
            store_key(slot, d, items);
        }
    }

    void write_value(int64_t slot, const float* row) {
        const float factor = scale_row(row, kv_.value_dim, value_scales_, slot, kv_.value_factor());
        for (int64_t d = 0; d < kv_.padded_value_dim(); d += LANES) {
            Item items[LANES];
            encode(items, row, kv_.value_dim, d, factor);
            store_value(slot, d, items);
        }
    }

    // Writes a token whose value is not finite: zeros as its value, and a key of NaNs, so that it
    // reaches the rows that see the token. Products of its value with the weight 0 of other rows
    // would be NaN too.
    void write_not_finite(int64_t slot) {
        // A latent value is the beginning of its key.
        const int64_t zeros = kv_.is_latent ? kv_.value_dim : 0;
        for (int64_t d = 0; d < kv_.padded_key_dim(); d += LANES) {
            Item items[LANES];
            if (key_scales_) {
                std::fill_n(items, LANES, Item());
            } else {
                store_items(items, set1(std::numeric_limits<float>::quiet_NaN()));
                std::fill_n(items, std::clamp<int64_t>(zeros - d, 0, LANES), Item());
            }
            store_key(slot, d, items);
        }
        if (key_scales_) key_scales_[slot] = std::numeric_limits<float>::quiet_NaN();
        if (kv_.is_latent) return;
        const Item items[LANES]{};
        for (int64_t d = 0; d < kv_.padded_value_dim(); d += LANES) store_value(slot, d, items);
        if (value_scales_) value_scales_[slot] = 0;
    }

    // Whether a key can be NaN while its value is zeros.
    bool can_mark() const { return !kv_.is_latent || key_scales_ || kv_.value_dim < kv_.key_dim; }

    // Whether a value, or the part of a latent key that is one, is stored as finite numbers.
    // Another part of a latent key counts if it shares their scale.
    bool is_finite(const float* row) const {
        const bool is_whole_key = kv_.is_latent && key_scales_;
        const float largest = magnitudes(row, is_whole_key ? kv_.key_dim : kv_.value_dim).top();
        const bool is_clamped = HAS_SCALE && !key_scales_;
        return is_clamped ? !std::isnan(largest) : largest <= MAX_STORED<Item>;
    }

    // Stores sixteen dims of a key.
    void store_key(int64_t slot, int64_t d, const Item* items) {
        Item* out = keys_ + d * PANEL + slot * GROUP;
        for (int64_t i = 0; i < LANES; i += GROUP) {
            std::memcpy(out + i * PANEL, items + i, GROUP * sizeof(Item));
        }
    }
    // Stores sixteen dims of a value.
    void store_value(int64_t slot, int64_t d, const Item* items) {
        Item* out =
            values_ + d / PANEL * value_stride_ + slot / GROUP * GROUP * PANEL + slot % GROUP;
        for (int64_t i = 0; i < LANES; ++i) out[i * GROUP] = items[i];
    }

    static RowMagnitudes magnitudes(const float* row, int64_t dim) {
        RowMagnitudes all;
        for (int64_t d = 0; d < dim; d += LANES) {
            all.add(load_lanes(row + d, std::min<int64_t>(LANES, dim - d)));
        }
        return all;
    }

    // Returns the factor from floats to items. `scale`: of the entry; where tokens have `scales`,
    // it stores the slot's instead.
    static float scale_row(const float* row, int64_t dim, float* scales, int64_t slot,
                           float scale) {
        if constexpr (!HAS_SCALE) {
            return 1;
        } else {
            if (!scales) return 1 / scale;
            const float largest = magnitudes(row, dim).top();  // NaN if a number is
            const bool is_zero = largest < MIN_ROW;
            scales[slot] = is_zero ? 0 : largest / MAX_ITEM<Item>;
            return is_zero ? 0 : MAX_ITEM<Item> / largest;
        }
    }

    // Items of sixteen dims, zeros past the last.
    static void encode(Item* items, const float* row, int64_t dim, int64_t d, float factor) {
        const F32 numbers = load_lanes(row + d, std::min<int64_t>(LANES, dim - d));
        store_items(items, mul(numbers, set1(factor)));
    }

    const EntryKV& kv_;
    Item *keys_, *values_;
    int64_t value_stride_;
    float *key_scales_ = nullptr, *value_scales_ = nullptr;
};

template <class Item>
inline void write_panel(const EntryKV& kv, int64_t head, const PanelTokens& tokens,
                        const KeyValueRows& rows) {
    PanelWriter<Item> writer(kv, head, tokens);
    if (tokens.first_slot == 0) writer.clear_values();
    for (int64_t i = 0; i < tokens.count; ++i) {
        const int64_t token = tokens.first_token + i, slot = tokens.first_slot + i;
        const float* value =
            kv.is_latent ? nullptr : rows.values + token * rows.value_stride + head * kv.value_dim;
        writer.write(slot, rows.keys + token * rows.key_stride + head * kv.key_dim, value);
    }
}

inline void write_kv(Thread& thread, const KVCache& cache, const Batch& batch, int64_t entry,
                     const KeyValueRows& rows) {
    WrittenPanels panels(cache, batch);
    const EntryKV kv = cache.entry(entry);
    const int64_t heads = kv.num_heads;
    thread.share(panels.count() * heads, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const PanelTokens tokens = panels.find(i / heads);
            const int64_t head = i % heads;
            switch (cache.type) {
                case KVType::f32: write_panel<float>(kv, head, tokens, rows); break;
                case KVType::bf16: write_panel<bf16>(kv, head, tokens, rows); break;
                case KVType::i8: write_panel<int8_t>(kv, head, tokens, rows); break;
                case KVType::e4m3: write_panel<e4m3>(kv, head, tokens, rows); break;
                case KVType::e5m2: write_panel<e5m2>(kv, head, tokens, rows); break;
            }
        }
    });
}

}  // namespace TACO_ISA
