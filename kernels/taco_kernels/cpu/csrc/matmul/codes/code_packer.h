// Packs codes into panels (code_args.h), in the order in which their operands decode them. This is
// host code: it waits for memory, and no instruction set makes it faster.
#pragma once

#include <algorithm>
#include <cstring>

#include "matmul/codes/code_order.h"
#include "runtime/parallel.h"

// Codes of 4 bits, eight in a word: [count, k / 8], the first column in the lowest bits.
struct CodeWords {
    const uint32_t* words;
    int64_t row_stride, column_stride;  // in words
};

// Packs the rows of one panel that a packing gives.
class CodePacker {
public:
    CodePacker(const CodePacking& packing, const CodeWords* words, const CodeOrder& order,
               int64_t panel)
        : packing_(packing), part_(packing.part), words_(words), order_(order) {
        const int64_t first = panel * PANEL;
        begin_ = std::max<int64_t>(packing.first - first, 0);
        end_ = std::min(packing.first + packing.count - first, PANEL);
        first_row_ = first - packing.first;
        data_ = const_cast<char*>(part_.data) + panel * part_.panel_bytes;
        row_chunks_ = ceil_div(part_.k, part_.chunk);
        row_groups_ = row_chunks_ * part_.num_groups;
    }

    void pack() {
        for (int64_t column = 0, chunk = 0; column < part_.k; column += part_.chunk, ++chunk) {
            char* data = data_ + chunk * part_.chunk_bytes();
            if (part_.has_steps()) {
                pack_scales(data, chunk, row_chunks_);
                pack_steps(data + part_.unit_bytes(), chunk * part_.num_groups);
            } else {
                for (int64_t group = 0; group < part_.num_groups; ++group) {
                    pack_scales(data + group * part_.group_bytes(),
                                chunk * part_.num_groups + group, row_groups_);
                }
            }
            const int64_t end = std::min(column + part_.chunk, part_.k);
            char* block = data + part_.header_bytes();
            if (high_bits(part_.kind)) {
                pack_joined_blocks(column, end, block);
            } else {
                pack_blocks(column, end, block);
            }
        }
    }

private:
    // Packs scale number `group` of the `groups` of each row, and its offset.
    void pack_scales(char* header, int64_t group, int64_t groups) const {
        const int64_t size = scale_bytes(part_.scale_type), offset_size = part_.offset_bytes();
        copy_items(header, packing_.scales, size, group, groups);
        if (offset_size) {
            copy_items(header + PANEL * size, packing_.offsets, offset_size, group, groups);
        }
    }

    // Copies item `index` of the `count` of each row.
    void copy_items(char* out, const void* items, int64_t size, int64_t index,
                    int64_t count) const {
        switch (size) {
            case 1: return copy_items(out, static_cast<const uint8_t*>(items), index, count);
            case 2: return copy_items(out, static_cast<const uint16_t*>(items), index, count);
            default: return copy_items(out, static_cast<const uint32_t*>(items), index, count);
        }
    }
    template <class Item>
    void copy_items(char* out, const Item* items, int64_t index, int64_t count) const {
        for (int64_t row = begin_; row < end_; ++row) {
            std::memcpy(out + row * sizeof(Item), items + (first_row_ + row) * count + index,
                        sizeof(Item));
        }
    }

    // Packs the steps of a chunk's groups.
    void pack_steps(char* header, int64_t first_group) const {
        for (int64_t group = 0; group < part_.num_groups; ++group, header += part_.group_bytes()) {
            copy_items(header, packing_.steps, first_group + group, row_groups_);
            if (packing_.offset_steps) {
                copy_items(header + PANEL, packing_.offset_steps, first_group + group, row_groups_);
            }
        }
    }

    // Packs the blocks of 64 bytes that have the columns from `column` to before `end`.
    void pack_blocks(int64_t column, int64_t end, char* block) const {
        const bool is_whole = begin_ == 0 && end_ == PANEL;
        RowWords own{};  // the bits of a block that belong to the rows of this packing
        std::fill(own.of + begin_, own.of + end_, ~uint32_t(0));
        const RowWords kept = order_.apply(own);
        for (; column < end; column += part_.block_columns()) {
            RowWords words = order_.apply(load(column));
            if (!is_whole) {
                RowWords old;
                std::memcpy(old.of, block, sizeof old.of);
                for (int i = 0; i < PANEL; ++i) words.of[i] |= old.of[i] & ~kept.of[i];
            }
            std::memcpy(block, words.of, sizeof words.of);
            block += sizeof words.of;
        }
    }

    // The same of blocks whose high bits are apart. They belong to int8 operands, whose order
    // leaves the words of each row apart.
    void pack_joined_blocks(int64_t column, int64_t end, char* block) const {
        const int high = high_bits(part_.kind);
        const uint64_t every = 0x0101010101010101, zero = every * uint64_t(part_.zero);
        const int64_t num_nibbles = part_.block_columns() / 8;
        for (; column < end; column += part_.block_columns()) {
            RowWords highs{};
            for (int64_t i = 0; i < num_nibbles; ++i) {
                RowWords lows{};
                for (int64_t row = begin_; row < end_; ++row) {
                    // A zero is 0 or the highest bit: to flip it is to add it.
                    const uint64_t codes = (load_bytes<uint64_t>(row, column + 8 * i) ^ zero) &
                                           every * ((16 << high) - 1);
                    lows.of[row] = join_nibbles(codes & every * 15);
                    const uint64_t bits = codes >> 4 & every * 3;
                    highs.of[row] |= uint32_t(bits) << 2 * high * i;
                    highs.of[row] |= uint32_t(bits >> 32) << (2 * high * i + high);
                }
                copy_rows(block + 64 * (1 + i), order_.apply(lows));
            }
            copy_rows(block, highs);
            block += 64 * (1 + num_nibbles);
        }
    }

    void copy_rows(char* block, const RowWords& words) const {
        std::memcpy(block + begin_ * 4, words.of + begin_, size_t(end_ - begin_) * 4);
    }

    // The codes of a block from a column on; zeros past the last, and of rows that are not given.
    RowWords load(int64_t column) const {
        RowWords words{};
        if (words_) {
            packing_.columns ? gather_words(column, words) : load_words(column, words);
        } else if (part_.kind == CodeKind::nibble) {
            for (int64_t row = begin_; row < end_; ++row) {
                words.of[row] = join_nibbles(load_bytes<uint64_t>(row, column));
            }
        } else {
            for (int64_t row = begin_; row < end_; ++row) {
                words.of[row] = load_bytes<uint32_t>(row, column);
            }
        }
        return words;
    }

    void load_words(int64_t column, RowWords& words) const {
        const int64_t stride = words_->row_stride;
        const uint32_t* source = word(column);
        if (stride == 1 && begin_ == 0 && end_ == PANEL) {
            std::memcpy(words.of, source, sizeof words.of);
            return;
        }
        for (int64_t row = begin_; row < end_; ++row) words.of[row] = source[row * stride];
    }

    void gather_words(int64_t column, RowWords& words) const {
        const int64_t stride = words_->row_stride;
        for (int64_t i = 0; i < std::min<int64_t>(8, part_.k - column); ++i) {
            const int64_t from = packing_.columns[column + i];
            const uint32_t* source = word(from);
            const int shift = int(from % 8 * 4);
            for (int64_t row = begin_; row < end_; ++row) {
                words.of[row] |= (source[row * stride] >> shift & 15) << 4 * i;
            }
        }
    }

    // The word of a column, of the panel's first row.
    const uint32_t* word(int64_t column) const {
        return words_->words + first_row_ * words_->row_stride + column / 8 * words_->column_stride;
    }

    // Codes of a row from a column on, one a byte.
    template <class Word>
    Word load_bytes(int64_t row, int64_t column) const {
        const auto count = std::clamp<int64_t>(part_.k - column, 0, sizeof(Word));
        const uint8_t* codes = packing_.codes + (first_row_ + row) * packing_.stride;
        Word word = 0;
        if (packing_.columns) {
            const int32_t* columns = packing_.columns + column;
            for (int i = 0; i < count; ++i) word |= Word(codes[columns[i]]) << 8 * i;
        } else if (count == sizeof(Word)) {
            std::memcpy(&word, codes + column, sizeof(Word));
        } else {
            std::memcpy(&word, codes + column, size_t(count));
        }
        return word;
    }

    const CodePacking& packing_;
    const CodePart& part_;
    const CodeWords* words_;
    const CodeOrder& order_;
    int64_t begin_, end_, first_row_, row_chunks_, row_groups_;
    char* data_;
};

// Packs codes that are words, or those of the packing if `words` is null.
inline void pack_code_panels(Thread& thread, const CodePacking& packing, const CodeWords* words,
                             bool widens_pairs) {
    const CodeOrder order(packing.part.kind, packing.operands, widens_pairs);
    const int64_t first = packing.first / PANEL;
    const int64_t past = ceil_div(packing.first + packing.count, PANEL);
    thread.share(past - first, 1, [&](int64_t panel, int64_t) {
        CodePacker(packing, words, order, first + panel).pack();
    });
}
