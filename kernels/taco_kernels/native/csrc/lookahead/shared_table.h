// Table of successors of contexts, shared by all sequences: a trie without pointers in fixed
// memory.
#pragma once

#include "lookahead/context.h"

// One pair of a context and a token that followed it; 16 bytes. All zeros is an empty entry.
struct TableEntry {
    uint64_t tag_and_weight;  // 48 bits of hash, 16 of weight
    int32_t token;
    uint32_t stamp;  // clock of the last update

    uint32_t weight() const { return uint16_t(tag_and_weight); }
    bool is_empty() const { return weight() == 0; }
    bool has_tag(uint64_t tag) const { return (tag_and_weight ^ tag) <= UINT16_MAX; }
    void set_weight(uint32_t weight) {
        tag_and_weight = (tag_and_weight & ~uint64_t(UINT16_MAX)) | weight;
    }
};

// An open-addressing hash table. The entries of a context form its cell. They lie in a window of
// buckets that starts at the context's hash, in order of insertion. An entry is never cleared, only
// replaced, so that the first empty one ends a window and learning scans one window at most:
//
// - a full cell evicts its least recently used entry below the threshold; without such an entry
//   the weights of the cell decay and its lightest entry is evicted;
// - a full window evicts its least recently used entry, of whatever context.
class LookaheadTable {
public:
    static constexpr int64_t BUCKET = 4;  // entries of a cache line

    explicit LookaheadTable(const LookaheadOptions& options)
        : entries_(static_cast<TableEntry*>(options.table)),
          window_(std::max<int64_t>(MIN_WINDOW, ceil_div(options.cell_size, BUCKET)) * BUCKET),
          num_windows_((options.table_bytes / int64_t(sizeof(TableEntry)) - window_) / BUCKET + 1),
          cell_size_(options.cell_size),
          threshold_(options.threshold),
          decay_(options.decay) {}

    void prefetch(uint64_t hash) const {
        const TableEntry* entry = window_of(hash);
        __builtin_prefetch(entry);
        __builtin_prefetch(entry + BUCKET);
    }

    // Advances the clock: entries that are learned between two ticks are equally recent.
    void tick() { ++clock_; }

    void learn(uint64_t hash, int32_t token) {
        const uint64_t tag = hash << 16;
        TableEntry* const begin = window_of(hash);
        TableEntry* const end = begin + window_;
        TableEntry* oldest = begin;
        int32_t cell_size = 0;
        TableEntry* entry = begin;
        for (; entry != end && !entry->is_empty(); ++entry) {
            if (entry->has_tag(tag)) {
                if (entry->token == token) return increase_weight(*entry);
                ++cell_size;
            }
            if (age(*entry) > age(*oldest)) oldest = entry;
        }
        if (cell_size >= cell_size_) {
            entry = evict_from_cell(begin, entry, tag);
        } else if (entry == end) {
            entry = oldest;
        }
        *entry = {tag | WEIGHT_ONE, token, clock_};
    }

    // Calls take(token, weight, age) for each entry of the context's cell.
    template <class Take>
    void for_cell(uint64_t hash, Take take) const {
        const uint64_t tag = hash << 16;
        const TableEntry* const begin = window_of(hash);
        for (const TableEntry* entry = begin; entry != begin + window_; ++entry) {
            if (entry->is_empty()) break;
            if (entry->has_tag(tag)) take(entry->token, entry->weight(), age(*entry));
        }
    }

private:
    static constexpr int64_t MIN_WINDOW = 4;  // buckets

    TableEntry* window_of(uint64_t hash) const {
        const auto product = static_cast<unsigned __int128>(hash) * uint64_t(num_windows_);
        return entries_ + int64_t(product >> 64) * BUCKET;
    }
    uint32_t age(const TableEntry& entry) const { return clock_ - entry.stamp; }

    void increase_weight(TableEntry& entry) const {
        entry.set_weight(std::min<uint32_t>(entry.weight() + WEIGHT_ONE, UINT16_MAX));
        entry.stamp = clock_;
    }

    // The entry to evict from the cell with this tag, which must not be empty.
    TableEntry* evict_from_cell(TableEntry* begin, TableEntry* end, uint64_t tag) const {
        TableEntry* unused = nullptr;
        for (TableEntry* entry = begin; entry != end; ++entry) {
            if (!entry->has_tag(tag) || entry->weight() >= threshold_) continue;
            if (!unused || age(*entry) > age(*unused)) unused = entry;
        }
        if (unused) return unused;
        TableEntry* least = nullptr;
        for (TableEntry* entry = begin; entry != end; ++entry) {
            if (!entry->has_tag(tag)) continue;
            entry->set_weight(std::max<uint32_t>(entry->weight() * decay_ >> 16, 1));
            if (!least || is_less(*entry, *least)) least = entry;
        }
        return least;
    }
    bool is_less(const TableEntry& a, const TableEntry& b) const {
        return a.weight() != b.weight() ? a.weight() < b.weight() : age(a) > age(b);
    }

    TableEntry* entries_;
    int64_t window_;       // entries
    int64_t num_windows_;  // buckets at which a window can start
    int32_t cell_size_;
    uint32_t threshold_;
    uint64_t decay_;
    uint32_t clock_ = 0;
};
