// Attention of a query block by AMX tiles.
//
// Rows are worked on in groups of 32. A group over one span takes four stages: scores (tiles),
// weights (vectors), sums of values (tiles), and their merge into the rows' sums (vectors). Tile
// products and vector arithmetic slow each other down if they are interleaved, but a stage that
// waits for the end of another one wastes time too. So each turn runs the tile stages of two pieces
// of work, then the vector stages of two others.
#pragma once

#include <optional>

#include "attention/amx_span.h"
#include "attention/query_rows.h"
#include "isa/partial_vectors.h"
#include "runtime/arena.h"

#ifdef TACO_HAS_TILES

namespace TACO_ISA {

// `Source` is the element type of the cache.
template <class Source>
class AmxAttention {
public:
    // Memory of one thread.
    struct Scratch {
        bf16* queries;        // [groups][key steps][2] tiles
        bf16* keys;           // of a span, as `prepare_keys` writes them
        bf16* values;         // of a span, as `prepare_values` writes them
        float* scores[2];     // of a group, as TileOrder
        bf16* weights[2];     // the same
        float* sums[2];       // of a group, [pairs of dim panels][2][2] tiles
        uint8_t* has_begun;   // [groups]: whether a span was merged
        int32_t* positions;   // [rows]
        float* scales;        // [rows]
        float* key_scales;    // [SPAN]
        float* value_scales;  // [SPAN]
        float* total;         // SpanSums

        Scratch(Arena& arena, const EntryKV& kv, int64_t max_rows) {
            const int64_t groups = ceil_div(max_rows, QUAD_ROWS);
            const int64_t key_depth = round_up(kv.padded_key_dim(), TILE_DEPTH);
            const int64_t value_dim = kv.padded_value_dim();
            queries = arena.take<bf16>(groups * QUAD_ROWS * key_depth);
            keys = arena.take<bf16>(SPAN * key_depth);
            values = arena.take<bf16>(SPAN * value_dim);
            for (int i = 0; i < 2; ++i) {
                scores[i] = arena.take<float>(QUAD_ROWS * SPAN);
                weights[i] = arena.take<bf16>(QUAD_ROWS * SPAN);
                sums[i] = arena.take<float>(QUAD_ROWS * round_up(value_dim, 2 * PANEL));
            }
            has_begun = arena.take<uint8_t>(groups);
            positions = arena.take<int32_t>(max_rows);
            scales = arena.take<float>(max_rows);
            key_scales = arena.take<float>(SPAN);
            value_scales = arena.take<float>(SPAN);
            total = arena.take<float>(SpanSums::num_floats(max_rows, value_dim));
        }
    };

    AmxAttention(const Attention& attention, const QueryBlock& queries,
                 const ItemNeighbors& neighbors, const Scratch& scratch)
        : kv_(attention.cache.entry(attention.entry)),
          scratch_(scratch),
          rows_(attention, queries, scratch.positions, scratch.scales),
          num_groups_(ceil_div(rows_.count(), QUAD_ROWS)),
          key_depth_(round_up(kv_.padded_key_dim(), TILE_DEPTH)),
          locator_(attention, queries),
          is_prefetched_(neighbors.is_prefetched) {
        if (neighbors.next) next_item_ = locate_first<Source>(attention, *neighbors.next);
        configure_quads(rows_.count());
        encode_queries();
    }

    SpanSums total() const { return sums(scratch_.total); }

    // Merges the sums of the spans into `total`, which holds those of earlier ones if `continues`.
    void attend_spans(SpanRange spans, bool continues) {
        std::fill_n(scratch_.has_begun, num_groups_, uint8_t(continues));
        run(spans, true, [&](const Work& work, const GroupSums& found) {
            uint8_t& has_begun = scratch_.has_begun[work.group];
            merge_group(total(), work, !has_begun, found);
            has_begun = 1;
        });
    }
    // Keeps the sums of each span in a separate record: record(span) is its memory.
    template <class Record>
    void record_spans(SpanRange spans, Record record) {
        run(spans, false, [&](const Work& work, const GroupSums& found) {
            merge_group(sums(record(work.span)), work, true, found);
        });
    }

private:
    // A group of rows over one span.
    struct Work {
        int64_t group, span;
        uint32_t strips;   // that any of its rows sees
        bool begins_span;  // the first of its span: prepares what the others use too
        SpanPanels<Source>* panels;
        uint32_t panel_bits[QUAD_ROWS];  // of each row, with a block-sparse pattern
        alignas(64) float best[QUAD_ROWS];
        alignas(64) float weight[QUAD_ROWS];
    };
    // Work in the four stages, and the one that comes next.
    static constexpr int64_t RING = 8;

    // The sums of a group's rows, as the products left them.
    struct GroupSums {
        const float* tiles;
        int64_t first_row;

        const float* value(int64_t row, int64_t dim) const {
            return tiles + TileOrder::score(row - first_row, dim / PANEL);
        }
    };

    // Hands out the work of some spans, span by span.
    class WorkList {
    public:
        WorkList(const AmxAttention& attention, SpanRange spans, bool skips_unseen)
            : attention_(attention), spans_(spans), skips_unseen_(skips_unseen) {}

        // Returns false at the end.
        bool next(Work& work) {
            for (; spans_.begin < spans_.end; ++spans_.begin, group_ = 0, is_located_ = false) {
                while (group_ < attention_.num_groups_) {
                    work.group = group_++;
                    work.span = spans_.begin;
                    attention_.find_strips(work);
                    if (work.strips == 0 && skips_unseen_) continue;
                    work.begins_span = !is_located_;
                    if (!is_located_) locate();
                    work.panels = &panels_[num_located_ % RING];
                    return true;
                }
            }
            return false;
        }

    private:
        void locate() {
            const auto& rows = attention_.rows_;
            const Range seen = rows.panels_seen(0, rows.count(), spans_.begin);
            panels_[++num_located_ % RING] = attention_.locator_.locate(spans_.begin, seen);
            is_located_ = true;
        }

        const AmxAttention& attention_;
        SpanRange spans_;
        const bool skips_unseen_;
        int64_t group_ = 0, num_located_ = 0;
        bool is_located_ = false;
        SpanPanels<Source> panels_[RING];
    };

    SpanSums sums(float* memory) const {
        return SpanSums(memory, rows_.count(), kv_.padded_value_dim());
    }
    int64_t first_row(const Work& work) const { return work.group * QUAD_ROWS; }
    int64_t num_rows(const Work& work) const {
        return std::min(QUAD_ROWS, rows_.count() - first_row(work));
    }

    // With several groups, the missing rows of the last one are zeros. The tiles of a single group
    // have no missing rows.
    void encode_queries() {
        const int64_t rows = num_groups_ > 1 ? num_groups_ * QUAD_ROWS : rows_.count();
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t lane = row % QUAD_ROWS;
            bf16* out = scratch_.queries + (row - lane) * key_depth_ + lane * TILE_DEPTH;
            const float* in = row < rows_.count() ? rows_.query(row, kv_.key_dim) : nullptr;
            for (int64_t d = 0; d < key_depth_; d += LANES) {
                const int64_t left = in ? std::min<int64_t>(LANES, kv_.key_dim - d) : 0;
                store_bf16_operand(out + d / TILE_DEPTH * 2 * TILE_ITEMS + d % TILE_DEPTH,
                                   left > 0 ? load_lanes(in + d, left) : zero());
            }
        }
    }

    void find_strips(Work& work) const {
        const int64_t first = first_row(work), count = num_rows(work);
        work.strips = strips_of(rows_.panels_seen(first, count, work.span));
        if (!rows_.is_sparse()) return;
        uint32_t panels = 0;
        for (int64_t r = 0; r < count; ++r) {
            work.panel_bits[r] = rows_.panel_bits(first + r, work.span);
            panels |= work.panel_bits[r];
        }
        for (int64_t s = 0; s < SPAN_STRIPS; ++s) {
            if (!(panels >> 2 * s & 3)) work.strips &= ~(uint32_t(1) << s);
        }
    }

    // Runs the stages of all work; takes(work, sums) merges.
    template <class Take>
    void run(SpanRange spans, bool skips_unseen, Take take) {
        first_span_ = spans.begin;
        WorkList list(*this, spans, skips_unseen);
        Work ring[RING];
        int64_t count = 0;  // of work handed out
        const auto fill = [&] { count += list.next(ring[count % RING]); };
        const auto at = [&](int64_t i) -> Work* {
            return i >= 0 && i < count ? &ring[i % RING] : nullptr;
        };
        fill();
        for (int64_t i = 0; i < count + 3; ++i) {
            fill();
            if (Work* work = at(i)) score(*work, scratch_.scores[i % 2], i + 1 == count);
            if (Work* work = at(i - 2)) {
                sum_values(*work, scratch_.weights[i % 2], scratch_.sums[i % 2], at(i + 1),
                           i - 1 == count);
            }
            const int64_t other = (i + 1) % 2;
            if (Work* work = at(i - 1)) {
                weigh(*work, scratch_.scores[other], scratch_.weights[other]);
            }
            if (Work* work = at(i - 3)) {
                take(*work, GroupSums{scratch_.sums[other], first_row(*work)});
            }
        }
    }

    // `is_last`: of the item's work; then keys of the thread's next item are fetched.
    void score(const Work& work, float* out, bool is_last) {
        if (work.begins_span) prepare_keys(keys_, *work.panels, scratch_.keys);
        QuadProduct product{};
        product.rows = scratch_.queries + first_row(work) * key_depth_;
        set_tile_order(product);
        product.steps = keys_.steps;
        SpanFetch<Source> values, next_keys;
        if (work.begins_span && !(is_prefetched_ && work.span == first_span_)) {
            values = SpanFetch<Source>::values(*work.panels);
        }
        if (is_last && next_item_) next_keys = SpanFetch<Source>::keys(*next_item_);
        const int64_t strips = std::max(1, __builtin_popcount(work.strips));
        const int64_t value_bytes = ceil_div(values.bytes(), strips);
        const int64_t key_bytes = ceil_div(next_keys.bytes(), strips);
        for (int64_t s = 0; s < SPAN_STRIPS; ++s) {
            if (!(work.strips >> s & 1)) continue;
            values.fetch(value_bytes);
            next_keys.fetch(key_bytes);
            const auto* left = reinterpret_cast<const char*>(keys_.panels[2 * s]);
            const auto* right = reinterpret_cast<const char*>(keys_.panels[2 * s + 1]);
            product.panels = left;
            product.panel_bytes = right - left;
            product.to = quad_at(out + s * 4 * TILE_SUMS);
            multiply_quad<Bf16Tiles, Streamed::panels>(num_rows(work), 2, product, NothingBeside());
        }
    }

    // Two tiles of rows for each step, in one piece.
    static void set_tile_order(QuadProduct& product) {
        product.row_step_bytes = 2 * TILE_BYTES;
        product.lower_rows = TILE_BYTES;
    }
    // Four tiles in one piece.
    static QuadSums quad_at(float* out) { return {out, 2 * TILE_BYTES, TILE_BYTES}; }

    void weigh(Work& work, float* scores, bf16* weights) {
        if (work.begins_span) {
            scales_ = gather_scales(*work.panels, scratch_.key_scales, scratch_.value_scales);
        }
        const int64_t first = first_row(work), count = num_rows(work);
        const auto view = [&](int64_t r) {
            const uint32_t bits = rows_.is_sparse() ? work.panel_bits[r] : ALL_PANELS;
            return rows_.view(first + r, work.span, bits);
        };
        SpanScales scales = scales_;
        if (rows_.needs_finish()) {
            for (int64_t r = 0; r < count; ++r) {
                finish_scores<TileOrder>(scores, r, view(r), rows_.terms(first + r, work.span),
                                         scales.keys);
            }
            scales.keys = nullptr;
        }
        weigh_rows<TileOrder>(scores, weights, scales, count, work.strips, view, work.best,
                              work.weight);
    }

    // `next`: the work whose keys will be read next; may be null. `is_last`: of the item's work;
    // then values of the thread's next item are fetched.
    void sum_values(const Work& work, const bf16* weights, float* out, const Work* next,
                    bool is_last) {
        const int64_t panels = kv_.padded_value_dim() / PANEL;
        if (work.begins_span) {
            prepare_values(*work.panels, kv_.padded_value_dim(), scratch_.values);
        }
        FetchBeside fetch;
        if (next && next->begins_span) {
            fetch.panels = SpanFetch<Source>::keys(*next->panels);
        } else if (is_last && next_item_) {
            fetch.panels = SpanFetch<Source>::values(*next_item_);
        }
        if (work.strips) {
            const int64_t steps = __builtin_popcount(work.strips) * ceil_div(panels, 2);
            fetch.bytes = ceil_div(fetch.panels.bytes(), steps);
        }
        for (int64_t d = 0; d < panels; d += 2) {
            QuadProduct product{};
            set_tile_order(product);
            product.panel_bytes = SPAN * PANEL * int64_t(sizeof(bf16));
            product.to = quad_at(out + d * 2 * TILE_SUMS);
            if (work.strips == 0)
                multiply_strips(work, product, panels - d, fetch);  // stores zeros
            // Strips that no row sees have no weights: runs of the others are added up.
            for (uint32_t strips = work.strips; strips != 0;) {
                const int64_t first = __builtin_ctz(strips);
                product.rows = weights + first * 2 * TILE_ITEMS;
                product.panels = scratch_.values + d * SPAN * PANEL + first * TILE_ITEMS;
                product.steps = __builtin_ctz(~(strips >> first));
                fetch = multiply_strips(work, product, panels - d, fetch);
                product.from = product.to;
                strips &= ~(low_bits(product.steps) << first);
            }
        }
    }

    // Called with each step of a product.
    struct FetchBeside {
        SpanFetch<Source> panels;
        int64_t bytes = 0;

        void operator()(int64_t) { panels.fetch(bytes); }
    };

    FetchBeside multiply_strips(const Work& work, const QuadProduct& product, int64_t panels,
                                FetchBeside fetch) const {
        return multiply_quad<Bf16Tiles, Streamed::panels>(
            num_rows(work), std::min<int64_t>(2, panels), product, fetch);
    }

    void merge_group(const SpanSums& total, const Work& work, bool is_first,
                     const GroupSums& found) {
        for (int64_t r = 0; r < num_rows(work); r += LANES) {
            merge_rows(total, first_row(work) + r, is_first, found, work.best + r, work.weight + r);
        }
    }

    const EntryKV kv_;
    const Scratch& scratch_;
    const QueryRows rows_;
    const int64_t num_groups_, key_depth_;
    const SpanLocator<Source> locator_;
    const bool is_prefetched_;                     // the item's first span, by the item before
    std::optional<SpanPanels<Source>> next_item_;  // its first span
    int64_t first_span_ = 0;
    KeyTiles keys_;      // of the span whose scores are computed
    SpanScales scales_;  // of the span whose weights are computed
};

}  // namespace TACO_ISA

#endif
