// Decode steps on a worker's batch: the rows' input before the model runs, and their new tokens
// after it.
//
// A decode step runs the last token of each row and takes the most likely next one. Between two
// steps of the model the caches hold nothing of the host, so that every other piece of code that a
// step touches costs microseconds: here it is one loop instead of many array operations.
#pragma once

#include <algorithm>

#include "runtime/types.h"

// The columns of the batch, one entry a slot (taco_worker/batch/input_batch.py).
struct SlotColumns {
    int32_t num_slots;
    int32_t max_model_len;
    int32_t block_size;
    int32_t num_kv_blocks;  // of the KV cache
    int32_t max_blocks;     // of a slot: columns of `block_tables`
    int32_t not_greedy;     // features of slots that need another step than this
    const bool* is_occupied;
    const int32_t* features;
    const int32_t* num_logprobs;  // -1: none; 0: of the sampled token alone
    const int32_t* adapter_ids;   // negative: none
    int32_t* num_tokens;
    int32_t* num_computed_tokens;
    int32_t* num_blocks;
    int32_t* block_tables;  // [num_slots, max_blocks]
    int32_t* token_ids;     // [num_slots, max_model_len]
    bool* is_seen;          // false between the calls
};

// One decode step. The arrays have room for all slots.
struct DecodeRows {
    int64_t num_rows;
    int64_t table_columns;  // columns of this step's block tables
    bool gives_logprobs;    // of some rows
    bool has_failed_rows;   // rows without a most likely token
    bool has_adapters;      // some rows
    int64_t num_entries;    // of log probabilities
    int32_t* slots;
    // The model's input.
    int32_t* token_ids;
    int32_t* positions;
    int32_t* query_start;
    int32_t* seq_lens;
    int32_t* output_rows;
    int32_t* adapter_ids;
    int32_t* block_tables;  // [num_rows, table_columns]
    // The model's output; a negative token marks a failed row.
    int32_t* sampled;
    float* logprobs;
    // The step's output: 1 or 0 entries a row, and the entries.
    int32_t* entries_of_row;
    int32_t* entry_token_ids;
    float* entry_logprobs;
};

// Blocks that a plan appends to block tables: one slot and one block each.
struct AppendedBlocks {
    int64_t count;
    const int32_t* slots;
    const int32_t* block_ids;
};

inline bool is_slot_in_use(const SlotColumns& batch, int32_t slot) {
    return slot >= 0 && slot < batch.num_slots && batch.is_occupied[slot];
}

inline void remove_blocks(const SlotColumns& batch, const AppendedBlocks& blocks, int64_t count) {
    for (int64_t i = 0; i < count; ++i) --batch.num_blocks[blocks.slots[i]];
}

// Appends the blocks. Returns false, and appends none, if one does not fit.
inline bool append_blocks(const SlotColumns& batch, const AppendedBlocks& blocks) {
    for (int64_t i = 0; i < blocks.count; ++i) {
        const int32_t slot = blocks.slots[i], block = blocks.block_ids[i];
        const bool fits = is_slot_in_use(batch, slot) && block >= 0 &&
                          block < batch.num_kv_blocks && batch.num_blocks[slot] < batch.max_blocks;
        if (!fits) {
            remove_blocks(batch, blocks, i);
            return false;
        }
        batch.block_tables[int64_t{slot} * batch.max_blocks + batch.num_blocks[slot]++] = block;
    }
    return true;
}

// Whether the slot's next step is a decode step that its blocks hold.
inline bool can_decode(const SlotColumns& batch, int32_t slot) {
    if (!is_slot_in_use(batch, slot) || batch.is_seen[slot]) return false;
    const int32_t num_tokens = batch.num_tokens[slot];
    return batch.num_computed_tokens[slot] == num_tokens - 1 && num_tokens < batch.max_model_len &&
           int64_t{num_tokens} <= int64_t{batch.num_blocks[slot]} * batch.block_size &&
           !(batch.features[slot] & batch.not_greedy) && batch.num_logprobs[slot] <= 0;
}

inline bool can_all_decode(const SlotColumns& batch, const int32_t* slots,
                           const int32_t* num_new_tokens, int64_t num_rows) {
    int64_t row = 0;
    for (; row < num_rows; ++row) {
        if (num_new_tokens[row] != 1 || !can_decode(batch, slots[row])) break;
        batch.is_seen[slots[row]] = true;
    }
    for (int64_t seen = 0; seen < row; ++seen) batch.is_seen[slots[seen]] = false;
    return row == num_rows;
}

// Fills the input of a decode step and appends blocks to the batch's tables.
//
// Returns false, and changes nothing, if the rows are not a decode step, or not a valid one.
inline bool begin_decode(const SlotColumns& batch, const int32_t* slots,
                         const int32_t* num_new_tokens, int64_t num_rows,
                         const AppendedBlocks& blocks, DecodeRows* rows) {
    if (num_rows < 1 || num_rows > batch.num_slots || !append_blocks(batch, blocks)) return false;
    if (!can_all_decode(batch, slots, num_new_tokens, num_rows)) {
        remove_blocks(batch, blocks, blocks.count);
        return false;
    }
    int32_t longest = 0;
    rows->gives_logprobs = rows->has_adapters = false;
    rows->query_start[0] = 0;
    for (int64_t row = 0; row < num_rows; ++row) {
        const int32_t slot = slots[row], num_tokens = batch.num_tokens[slot];
        rows->slots[row] = slot;
        rows->positions[row] = num_tokens - 1;
        rows->token_ids[row] =
            batch.token_ids[int64_t{slot} * batch.max_model_len + num_tokens - 1];
        rows->query_start[row + 1] = static_cast<int32_t>(row) + 1;
        rows->seq_lens[row] = num_tokens;
        rows->output_rows[row] = static_cast<int32_t>(row);
        rows->adapter_ids[row] = batch.adapter_ids[slot];
        rows->has_adapters |= batch.adapter_ids[slot] >= 0;
        rows->gives_logprobs |= batch.num_logprobs[slot] == 0;
        longest = std::max(longest, num_tokens);
    }
    rows->num_rows = num_rows;
    rows->table_columns = (int64_t{longest} + batch.block_size - 1) / batch.block_size;
    for (int64_t row = 0; row < num_rows; ++row) {
        const int32_t* table = batch.block_tables + int64_t{slots[row]} * batch.max_blocks;
        std::copy_n(table, rows->table_columns, rows->block_tables + row * rows->table_columns);
    }
    return true;
}

// Appends the sampled tokens to their sequences and fills the step's output. A failed row gets
// token 0: the next step may run before the failure is known.
inline void end_decode(const SlotColumns& batch, DecodeRows* rows) {
    rows->has_failed_rows = false;
    rows->num_entries = 0;
    for (int64_t row = 0; row < rows->num_rows; ++row) {
        const int32_t slot = rows->slots[row], token = rows->sampled[row];
        rows->has_failed_rows |= token < 0;
        const int64_t place = int64_t{slot} * batch.max_model_len + batch.num_tokens[slot];
        batch.token_ids[place] = std::max(token, 0);
        ++batch.num_tokens[slot];
        ++batch.num_computed_tokens[slot];
        rows->entries_of_row[row] = batch.num_logprobs[slot] == 0;
        if (!rows->entries_of_row[row]) continue;
        rows->entry_token_ids[rows->num_entries] = std::max(token, 0);
        rows->entry_logprobs[rows->num_entries++] = rows->logprobs[row];
    }
}
