// Index of one sequence's own n-grams: the earlier positions of its latest tokens.
#pragma once

#include <cstdlib>

#include "lookahead/context.h"

// Memory of the indexes of all sequences, up to a limit.
class LocalMemory {
public:
    explicit LocalMemory(int64_t limit) : limit_(limit) {}

    int64_t used() const { return used_; }
    // Returns zeroed memory, or null if the limit would be exceeded.
    void* take(int64_t bytes) {
        if (used_ + bytes > limit_) return nullptr;
        void* memory = std::calloc(bytes, 1);
        if (memory) used_ += bytes;
        return memory;
    }
    void release(void* memory, int64_t bytes) {
        std::free(memory);
        if (memory) used_ -= bytes;
    }

private:
    const int64_t limit_;
    int64_t used_ = 0;
};

// Lengths of the indexed n-grams.
struct Orders {
    int32_t count = 0;
    int32_t lengths[MAX_MATCH + 1];

    void add(int32_t length) {
        if (index_of(length) == count) lengths[count++] = length;
    }
    int32_t index_of(int32_t length) const {
        return int32_t(std::find(lengths, lengths + count, length) - lengths);
    }
};

// For each n-gram length: a chain from every n-gram to its previous occurrence, and a hash table of
// the latest occurrences. Positions are stored plus one; zero means empty.
class LocalIndex {
public:
    static constexpr int32_t LONGEST_MATCH = 32;  // matches are counted up to this length

    LocalIndex() = default;
    LocalIndex(const LocalIndex&) = delete;
    LocalIndex& operator=(const LocalIndex&) = delete;

    int32_t length() const { return length_; }
    int32_t token(int32_t position) const { return tokens_[position]; }

    // Appends a token; `context` ends with it. If memory to grow is denied, the index is cleared
    // first.
    void append(int32_t token, const Context& context, const ContextHash& hash,
                const Orders& orders, LocalMemory& memory) {
        if (length_ == capacity_ && !grow(context.hashes[0], hash, orders, memory)) clear(orders);
        if (length_ == capacity_) return;
        tokens_[length_++] = token;
        for (int32_t i = 0; i < orders.count; ++i) {
            if (orders.lengths[i] > length_) continue;
            int32_t* head = find_head(i, orders, context.hashes[orders.lengths[i]], length_ - 1);
            previous_of(i)[length_ - 1] = *head;
            *head = length_;
        }
    }

    void clear(const Orders& orders) {
        length_ = 0;
        for (int32_t i = 0; i < orders.count; ++i) std::fill_n(heads_of(i), 2 * capacity_, 0);
    }

    void free(const Orders& orders, LocalMemory& memory) {
        memory.release(tokens_, bytes(capacity_, orders));
        tokens_ = nullptr;
        length_ = capacity_ = 0;
    }

    // Calls take(position of the following token, match length) for each earlier occurrence of the
    // last `order` tokens, latest first, until it returns false.
    template <class Take>
    void for_matches(int32_t order_index, const Orders& orders, Take take) const {
        if (length_ < orders.lengths[order_index]) return;
        for (int32_t next = previous_of(order_index)[length_ - 1]; next;
             next = previous_of(order_index)[next - 1]) {
            if (!take(next, match_length(next - 1))) return;
        }
    }

private:
    static constexpr int32_t MIN_CAPACITY = 128;

    static int64_t bytes(int64_t capacity, const Orders& orders) {
        return capacity * (1 + 3 * orders.count) * int64_t(sizeof(int32_t));
    }
    int32_t* previous_of(int32_t i) const { return tokens_ + capacity_ * int64_t(1 + 3 * i); }
    int32_t* heads_of(int32_t i) const { return previous_of(i) + capacity_; }

    // Number of tokens up to `position` that equal those at the end.
    int32_t match_length(int32_t position) const {
        const int32_t most = std::min(position + 1, LONGEST_MATCH);
        int32_t length = 0;
        while (length < most && tokens_[position - length] == tokens_[length_ - 1 - length]) {
            ++length;
        }
        return length;
    }

    // Hash table slot of the n-gram that ends at `position`.
    int32_t* find_head(int32_t i, const Orders& orders, uint64_t hash, int32_t position) const {
        const int32_t order = orders.lengths[i];
        const uint64_t mask = 2 * uint64_t(capacity_) - 1;
        int32_t* heads = heads_of(i);
        for (uint64_t at = hash & mask;; at = (at + 1) & mask) {
            if (!heads[at]) return heads + at;
            const int32_t* end = tokens_ + heads[at];
            if (std::equal(end - order, end, tokens_ + position + 1 - order)) return heads + at;
        }
    }

    bool grow(uint64_t name_space, const ContextHash& hash, const Orders& orders,
              LocalMemory& memory) {
        LocalIndex larger;
        larger.capacity_ = std::max(2 * capacity_, MIN_CAPACITY);
        larger.tokens_ = static_cast<int32_t*>(memory.take(bytes(larger.capacity_, orders)));
        if (!larger.tokens_) return false;
        larger.length_ = length_;
        std::copy_n(tokens_, length_, larger.tokens_);
        for (int32_t i = 0; i < orders.count; ++i) {
            std::copy_n(previous_of(i), length_, larger.previous_of(i));
            for (int32_t at = 0; at < 2 * capacity_; ++at) {
                const int32_t end = heads_of(i)[at];
                if (!end) continue;
                uint64_t key = name_space;
                for (int32_t back = 1; back <= orders.lengths[i]; ++back) {
                    key = hash.extend(key, tokens_[end - back]);
                }
                *larger.find_head(i, orders, key, end - 1) = end;
            }
        }
        free(orders, memory);
        std::swap(tokens_, larger.tokens_);
        std::swap(length_, larger.length_);
        std::swap(capacity_, larger.capacity_);
        return true;
    }

    int32_t* tokens_ = nullptr;  // [capacity], then for each order previous and heads
    int32_t length_ = 0;
    int32_t capacity_ = 0;  // a power of two, or 0
};
