// Packs codes into panels (code_args.h), in the order in which their operands decode them.
#pragma once

#include <algorithm>
#include <cstring>

#include "isa/code_pairs.h"
#include "matmul/codes/code_args.h"
#include "runtime/parallel.h"

namespace TACO_ISA {

// Packs the rows of one panel that a packing gives.
class CodePanelPacker {
public:
    CodePanelPacker(const CodePacking& packing, int64_t panel) : packing_(packing) {
        const int64_t first = panel * PANEL;
        begin_ = std::max<int64_t>(packing.first - first, 0);
        end_ = std::min(packing.first + packing.count - first, PANEL);
        first_row_ = first - packing.first;
        data_ = const_cast<char*>(packing.part.data) + panel * packing.part.panel_bytes;
    }

    void pack() {
        const CodePart& part = packing_.part;
        for (int64_t column = 0, chunk = 0; column < part.k; column += part.chunk, ++chunk) {
            char* data = data_ + chunk * part.chunk_bytes();
            if (part.has_steps()) {
                pack_scales(data, chunk, ceil_div(part.k, part.chunk));
                pack_steps(data + part.unit_bytes(), chunk * part.num_groups);
            } else {
                for (int64_t group = 0; group < part.num_groups; ++group) {
                    pack_scales(data + group * part.group_bytes(), chunk * part.num_groups + group,
                                row_groups());
                }
            }
            char* codes = data + part.header_bytes();
            const int64_t end = std::min(column + part.chunk, part.k);
            for (int64_t at = column; at < end; at += part.block_columns(), codes += 64) {
                if (packing_.operands == DType::i8) {
                    pack_int8_block(at, codes);
                } else if (part.kind == CodeKind::nibble) {
                    pack_nibbles(at, codes);
                } else {
                    pack_bytes(at, codes);
                }
            }
        }
    }

private:
    bool has(int64_t row) const { return row >= begin_ && row < end_; }

    int64_t row_groups() const {
        const CodePart& part = packing_.part;
        return ceil_div(part.k, part.chunk) * part.num_groups;
    }

    // Packs scale number `group` of the `groups` of each row, and its offset.
    void pack_scales(char* header, int64_t group, int64_t groups) const {
        const CodePart& part = packing_.part;
        const int64_t size = scale_bytes(part.scale_type), offset_size = part.offset_bytes();
        for (int64_t row = begin_; row < end_; ++row) {
            const int64_t index = (first_row_ + row) * groups + group;
            std::memcpy(header + row * size,
                        static_cast<const char*>(packing_.scales) + index * size, size_t(size));
            if (offset_size) {
                std::memcpy(header + PANEL * size + row * offset_size,
                            static_cast<const char*>(packing_.offsets) + index * offset_size,
                            size_t(offset_size));
            }
        }
    }

    // Packs the steps of a chunk's groups.
    void pack_steps(char* header, int64_t first_group) const {
        const CodePart& part = packing_.part;
        for (int64_t group = 0; group < part.num_groups; ++group, header += part.group_bytes()) {
            for (int64_t row = begin_; row < end_; ++row) {
                const int64_t index = (first_row_ + row) * row_groups() + first_group + group;
                header[row] = char(packing_.steps[index]);
                if (packing_.offset_steps) {
                    header[PANEL + row] = char(packing_.offset_steps[index]);
                }
            }
        }
    }

    // `COUNT` codes of a row from a column on; zeros past the last, and of rows that are not given.
    template <int COUNT>
    void load_codes(int64_t row, int64_t column, uint8_t (&out)[COUNT]) const {
        const int64_t count = has(row) ? std::min<int64_t>(packing_.part.k - column, COUNT) : 0;
        const uint8_t* codes = packing_.codes + (first_row_ + row) * packing_.stride;
        if (packing_.columns) {
            const int32_t* columns = packing_.columns + column;
            for (int i = 0; i < COUNT; ++i) out[i] = i < count ? codes[columns[i]] : uint8_t(0);
        } else if (count == COUNT) {
            std::memcpy(out, codes + column, COUNT);
        } else {
            std::fill(std::copy_n(codes + column, count, out), out + COUNT, uint8_t(0));
        }
    }

    // Vectors of sixteen codes (codes/decode_pairs.h): 4 bits of each word of 32 bits.
    void pack_nibbles(int64_t column, char* block) const {
        for (int64_t row = begin_; row < end_; ++row) {
            uint8_t codes[8];
            load_codes(row, column, codes);
            for_lanes<8>(row, [&](int vector, int lane, int64_t of) {
                char& byte = block[4 * lane + vector / 2];
                const int shift = 4 * (vector % 2);
                byte = char((byte & 0xf0 >> shift) | codes[of] << shift);
            });
        }
    }

    // Vectors of sixteen bytes.
    void pack_bytes(int64_t column, char* block) const {
        for (int64_t row = begin_; row < end_; ++row) {
            uint8_t codes[4];
            load_codes(row, column, codes);
            for_lanes<4>(row, [&](int vector, int lane, int64_t of) {
                block[PANEL * vector + lane] = char(codes[of]);
            });
        }
    }

    // Calls body(vector, lane, column) for the columns of a row in a block of VECTORS of them.
    template <int VECTORS, class Body>
    static void for_lanes(int64_t row, Body body) {
        for (int vector = 0; vector < VECTORS; ++vector) {
            for (int lane = 0; lane < LANES; ++lane) {
                if (row_of_lane(vector, lane) == row) {
                    body(vector, lane, column_of_lane(vector, lane));
                }
            }
        }
    }

    // The order of int8 operands (codes/grouped_int8.h).
    void pack_int8_block(int64_t column, char* block) const {
        for (int64_t row = begin_; row < end_; ++row) {
            uint8_t codes[8];
            load_codes(row, column, codes);
            if (packing_.part.kind == CodeKind::nibble) {
                for (int i = 0; i < 4; ++i) codes[i] = uint8_t(codes[i] | codes[4 + i] << 4);
            }
            std::memcpy(block + row * 4, codes, 4);
        }
    }

    const CodePacking& packing_;
    int64_t begin_, end_, first_row_;
    char* data_;
};

inline void pack_codes(Thread& thread, const CodePacking& packing) {
    const int64_t first = packing.first / PANEL;
    const int64_t past = ceil_div(packing.first + packing.count, PANEL);
    thread.share(past - first, 1,
                 [&](int64_t panel, int64_t) { CodePanelPacker(packing, first + panel).pack(); });
}

}  // namespace TACO_ISA
