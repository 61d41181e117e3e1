// Writes a step's keys and values into the paged cache.
#pragma once

#include <algorithm>
#include <cmath>

#include "dispatch/kernel_table.h"
#include "isa/vec.h"

namespace TACO_ISA {

// Tokens of one sequence that lie in the same group of sixteen: one panel of keys.
struct PanelTokens {
    int64_t first_token;  // of the step
    int64_t count;
    int64_t first_slot;           // 0 to 15
    int64_t block, block_offset;  // offset of the panel in the block
};

// The panels that a step writes to, by number. A thread asks for increasing numbers.
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

// One head of a panel in the cache.
template <class Item>
class PanelWriter {
    // Adjacent items: of consecutive dims in keys, of consecutive tokens in values.
    static constexpr int64_t GROUP = std::is_same_v<Item, float> ? 1 : 2;

public:
    PanelWriter(const KVCache& cache, int64_t layer, int64_t head, const PanelTokens& tokens)
        : dim_(cache.head_dim), padded_dim_(cache.padded_dim()) {
        keys_ = reinterpret_cast<Item*>(cache.keys(tokens.block, layer, head)) +
                tokens.block_offset * padded_dim_;
        values_ = reinterpret_cast<Item*>(cache.values(tokens.block, layer, head)) +
                  tokens.block_offset * PANEL;
        value_stride_ = cache.block_size * PANEL;
        if (cache.type == DType::i8) {
            key_scales_ = cache.key_scales(tokens.block, layer, head) + tokens.block_offset;
            value_scales_ = cache.value_scales(tokens.block, layer, head) + tokens.block_offset;
        }
    }

    void clear_values() {
        for (int64_t d = 0; d < padded_dim_; d += PANEL) {
            std::fill_n(values_ + d / PANEL * value_stride_, PANEL * PANEL, Item(0));
        }
        if (value_scales_) std::fill_n(value_scales_, PANEL, 0.0f);
    }

    void write_key(int64_t slot, const float* row) {
        const float factor = quantize(row, key_scales_, slot);
        for (int64_t d = 0; d < padded_dim_; d += LANES) {
            Item items[LANES];
            encode(items, row, d, factor);
            Item* out = keys_ + d * PANEL + slot * GROUP;
            for (int64_t i = 0; i < LANES; i += GROUP) {
                std::memcpy(out + i * PANEL, items + i, GROUP * sizeof(Item));
            }
        }
    }

    void write_value(int64_t slot, const float* row) {
        const float factor = quantize(row, value_scales_, slot);
        for (int64_t d = 0; d < padded_dim_; d += LANES) {
            Item items[LANES];
            encode(items, row, d, factor);
            Item* out =
                values_ + d / PANEL * value_stride_ + slot / GROUP * GROUP * PANEL + slot % GROUP;
            for (int64_t i = 0; i < LANES; ++i) out[i * GROUP] = items[i];
        }
    }

private:
    // Stores the slot's scale; returns the factor from floats to items.
    float quantize(const float* row, float* scales, int64_t slot) const {
        if (!scales) return 1;
        float largest = 0;
        for (int64_t d = 0; d < dim_; ++d) largest = std::max(largest, std::fabs(row[d]));
        scales[slot] = largest / 127;
        return largest > 0 ? 127 / largest : 0;
    }

    // Items of sixteen dims, zeros past the last.
    void encode(Item* items, const float* row, int64_t d, float factor) const {
        float padded[LANES] = {};
        if (d < dim_) std::copy_n(row + d, std::min<int64_t>(LANES, dim_ - d), padded);
        store_items(items, mul(load(padded), set1(factor)));
    }

    const int64_t dim_, padded_dim_;
    Item *keys_, *values_;
    int64_t value_stride_;
    float *key_scales_ = nullptr, *value_scales_ = nullptr;
};

template <class Item>
inline void write_panel(const KVCache& cache, int64_t layer, int64_t head,
                        const PanelTokens& tokens, const KeyValueRows& rows) {
    PanelWriter<Item> writer(cache, layer, head, tokens);
    if (tokens.first_slot == 0) writer.clear_values();
    for (int64_t i = 0; i < tokens.count; ++i) {
        const int64_t at = (tokens.first_token + i) * rows.stride + head * cache.head_dim;
        writer.write_key(tokens.first_slot + i, rows.keys + at);
        writer.write_value(tokens.first_slot + i, rows.values + at);
    }
}

inline void write_kv(Thread& thread, const KVCache& cache, const Batch& batch, int64_t layer,
                     const KeyValueRows& rows) {
    WrittenPanels panels(cache, batch);
    const int64_t heads = cache.num_kv_heads;
    thread.share(panels.count() * heads, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const PanelTokens tokens = panels.find(i / heads);
            const int64_t head = i % heads;
            switch (cache.type) {
                case DType::f32: write_panel<float>(cache, layer, head, tokens, rows); break;
                case DType::bf16: write_panel<bf16>(cache, layer, head, tokens, rows); break;
                case DType::i8: write_panel<int8_t>(cache, layer, head, tokens, rows); break;
            }
        }
    });
}

}  // namespace TACO_ISA
