// Attention over the paged cache: keys and values are written in two steps, then attended to.

#include <algorithm>
#include <cmath>

#include "attention/prefix_groups.h"
#include "dispatch/kernel_table.h"
#include "selftest.h"

namespace {

struct Sequence {
    int64_t before, now;  // tokens of earlier steps, and of this one
    int64_t length() const { return before + now; }
};

struct Case {
    std::string name;
    int64_t head_dim, num_heads, num_kv_heads, block_size;
    std::vector<Sequence> sequences;
    int64_t window = 0;
    float cap = 0;
    bool has_alibi = false;
};

const Case cases[] = {
    {"decode and prefill", 40, 6, 2, 16, {{37, 1}, {0, 19}, {130, 5}}},
    {"grouped heads, several spans", 64, 8, 2, 32, {{290, 35}, {600, 1}}},
    {"one long prompt", 128, 2, 1, 16, {{0, 77}}},
    {"blocks of several row groups", 64, 14, 2, 16, {{250, 160}}},
    {"rows that miss a span of their block", 48, 8, 1, 32, {{240, 70}}, 20},
    {"window, cap and alibi", 48, 4, 4, 16, {{300, 9}, {3, 1}, {15, 2}}, 23, 5.0f, true},
};

constexpr int64_t LAYERS = 2, LAYER = 1;

// A cache's format. Tokens of 8-bit numbers have scales unless the entry has.
struct Format {
    const char* name;
    KVType type;
    double tolerance;  // with bf16 the weights are rounded too
    float key_scale = 0, value_scale = 0;

    bool has_token_scales() const { return item_bytes(type) == 1 && key_scale == 0; }

    // The number that the cache holds for x, in units of the scale.
    double rounded(float x) const {
        if (type == KVType::i8) return std::nearbyint(x);
        const int mantissa = type == KVType::e4m3 ? 3 : 2, bias = type == KVType::e4m3 ? 7 : 15;
        const int exponent = std::max(x == 0 ? -bias : std::ilogb(x), 1 - bias);
        const double unit = std::ldexp(1.0, exponent - mantissa);
        return std::clamp(std::nearbyint(x / unit) * unit, -double(limit()), double(limit()));
    }
    float limit() const {
        return type == KVType::i8 ? 127.0f : type == KVType::e4m3 ? 448.0f : 57344.0f;
    }
};

const Format formats[] = {
    {"f32", KVType::f32, 2e-5},
    {"bf16", KVType::bf16, 6e-3},
    {"int8", KVType::i8, 6e-3},
    {"e4m3", KVType::e4m3, 6e-3},
    {"e5m2", KVType::e5m2, 6e-3},
    {"e4m3 with scales of entries", KVType::e4m3, 6e-3, 0.011f, 0.005f},
};

// The cache of a case, its keys and values as floats, and the answer.
class Scene {
public:
    Scene(const Case& what, const Format& format) : case_(what), format_(format), cache_bytes_(0) {
        // Queries, keys and values that bf16 holds exactly: what is left is the kernel's own error.
        Random random(uint32_t(what.head_dim));
        for (const Sequence& sequence : what.sequences) {
            const int64_t kv = sequence.length() * kv_stride();
            keys_.push_back(random.normal(kv, true));
            values_.push_back(random.normal(kv, true));
            num_tokens_ += sequence.now;
        }
        for (const Floats& keys : keys_) kept_keys_.push_back(kept(keys, format.key_scale));
        for (const Floats& values : values_)
            kept_values_.push_back(kept(values, format.value_scale));
        queries_ = random.normal(num_tokens_ * query_stride(), true);
        for (int64_t h = 0; h < what.num_heads; ++h) alibi_.push_back(1.0f / float(2 << h));
        place_blocks();
    }

    // What the kernels make of it, [num_tokens, num_heads * head_dim].
    Floats attend(TacoPool* pool) {
        write(pool, true);
        write(pool, false);
        const Batch batch = make_batch(false);
        Floats out(size_t(num_tokens_ * query_stride()));
        Attention attention{};
        attention.cache = cache_;
        attention.batch = batch;
        attention.entry = LAYER;
        attention.num_heads = case_.num_heads;
        attention.scale = float(scale());
        attention.window = case_.window;
        attention.cap = case_.cap;
        attention.alibi = case_.has_alibi ? alibi_.data() : nullptr;
        attention.queries = queries_.data();
        attention.query_stride = query_stride();
        attention.out = out.data();
        attention.out_stride = query_stride();
        Bytes workspace(taco_attention_workspace(pool, &attention));
        attention.workspace = workspace.data();
        taco_attend(pool, &attention);
        return out;
    }

    Doubles expected() const {
        Doubles out;
        int64_t token = 0;
        for (size_t s = 0; s < case_.sequences.size(); ++s) {
            const Sequence& sequence = case_.sequences[s];
            for (int64_t i = 0; i < sequence.now; ++i, ++token) {
                for (int64_t head = 0; head < case_.num_heads; ++head) {
                    const float* query =
                        queries_.data() + token * query_stride() + head * case_.head_dim;
                    append_row(out, s, head, sequence.before + i, query);
                }
            }
        }
        return out;
    }

private:
    int64_t query_stride() const { return case_.num_heads * case_.head_dim; }
    int64_t kv_stride() const { return case_.num_kv_heads * case_.head_dim; }
    double scale() const { return 1 / std::sqrt(double(case_.head_dim)); }

    // Blocks are dealt out backwards, so that neighbours in a sequence do not exist in memory.
    void place_blocks() {
        for (const Sequence& sequence : case_.sequences) {
            table_stride_ = std::max(table_stride_, ceil_div(sequence.length(), case_.block_size));
        }
        const auto num_blocks = int64_t(case_.sequences.size()) * table_stride_;
        for (int64_t i = 0; i < num_blocks; ++i) tables_.push_back(int32_t(num_blocks - 1 - i));
        make_cache(num_blocks);
        // As memory that was used before: NaNs wherever the kernels have not written.
        std::fill_n(cache_.data, num_blocks * cache_.block_bytes, char(0xff));
    }

    void make_cache(int64_t num_blocks) {
        const int64_t dim = case_.head_dim, scales = format_.has_token_scales() ? 4 : 0;
        const int64_t token_bytes = round_up(dim, PANEL) * item_bytes(format_.type) + scales;
        const int64_t entry_bytes = 2 * case_.num_kv_heads * case_.block_size * token_bytes;
        for (int64_t i = 0; i < LAYERS; ++i) {
            entries_[i] = {case_.num_kv_heads, dim, dim, i * entry_bytes, false, format_.key_scale,
                           format_.value_scale};
        }
        const int64_t block_bytes = LAYERS * entry_bytes;
        cache_bytes_ = Bytes(num_blocks * block_bytes);
        cache_ = {format_.type, static_cast<char*>(cache_bytes_.data()),
                  num_blocks,   case_.block_size,
                  block_bytes,  LAYERS,
                  entries_};
    }

    Batch make_batch(bool earlier) {
        query_start_.assign(1, 0);
        seq_lens_.clear();
        for (const Sequence& sequence : case_.sequences) {
            const int64_t count = earlier ? sequence.before : sequence.now;
            query_start_.push_back(query_start_.back() + int32_t(count));
            seq_lens_.push_back(int32_t(earlier ? count : sequence.length()));
        }
        return {query_start_.back(), int64_t(seq_lens_.size()),
                query_start_.data(), seq_lens_.data(),
                tables_.data(),      table_stride_};
    }

    void write(TacoPool* pool, bool earlier) {
        const Batch batch = make_batch(earlier);
        Floats keys, values;
        for (size_t s = 0; s < case_.sequences.size(); ++s) {
            const Sequence& sequence = case_.sequences[s];
            const int64_t begin = earlier ? 0 : sequence.before;
            const int64_t end = earlier ? sequence.before : sequence.length();
            const auto append = [&](Floats& out, const Floats& from) {
                out.insert(out.end(), from.begin() + begin * kv_stride(),
                           from.begin() + end * kv_stride());
            };
            append(keys, keys_[s]);
            append(values, values_[s]);
        }
        const KeyValueRows rows = {keys.data(), kv_stride(), values.data(), kv_stride()};
        taco_write_kv(pool, &cache_, &batch, LAYER, &rows);
    }

    // The numbers of a sequence, [length, num_kv_heads, head_dim], as the cache keeps them.
    Doubles kept(const Floats& from, float scale) const {
        Doubles out(from.begin(), from.end());
        if (item_bytes(format_.type) != 1) return out;
        for (auto head = out.begin(); head != out.end(); head += case_.head_dim) {
            const auto end = head + case_.head_dim;
            // In float, so that what lies in the middle of two steps goes the same way.
            float factor = 1 / scale;
            if (format_.has_token_scales()) {
                float largest = 0;
                for (auto x = head; x != end; ++x)
                    largest = std::max(largest, std::fabs(float(*x)));
                factor = format_.limit() / largest;
                scale = largest / format_.limit();
            }
            for (auto x = head; x != end; ++x) *x = format_.rounded(float(*x) * factor) * scale;
        }
        return out;
    }

    void append_row(Doubles& out, size_t s, int64_t head, int64_t position,
                    const float* query) const {
        const int64_t kv_head = head / (case_.num_heads / case_.num_kv_heads);
        const int64_t window = case_.window;
        const int64_t first = window ? std::max<int64_t>(0, position - window + 1) : 0;
        Doubles sums(size_t(case_.head_dim), 0.0), scores;
        for (int64_t j = first; j <= position; ++j) {
            const double* key = kept_keys_[s].data() + j * kv_stride() + kv_head * case_.head_dim;
            double score = 0;
            for (int64_t d = 0; d < case_.head_dim; ++d) score += double(query[d]) * key[d];
            score *= scale();
            if (case_.cap > 0) score = case_.cap * std::tanh(score / case_.cap);
            if (case_.has_alibi) score += double(alibi_[size_t(head)]) * double(j - position);
            scores.push_back(score);
        }
        const double best = *std::max_element(scores.begin(), scores.end());
        double total = 0;
        for (int64_t j = first; j <= position; ++j) {
            const double weight = std::exp(scores[size_t(j - first)] - best);
            const double* value =
                kept_values_[s].data() + j * kv_stride() + kv_head * case_.head_dim;
            for (size_t d = 0; d < sums.size(); ++d) sums[d] += weight * value[d];
            total += weight;
        }
        for (double sum : sums) out.push_back(sum / total);
    }

    const Case& case_;
    const Format& format_;
    std::vector<Floats> keys_, values_;  // of each sequence, [length, kv_stride]
    std::vector<Doubles> kept_keys_, kept_values_;
    Floats queries_, alibi_;
    int64_t num_tokens_ = 0, table_stride_ = 0;
    std::vector<int32_t> tables_, query_start_, seq_lens_;
    KVEntry entries_[LAYERS];
    KVCache cache_;
    Bytes cache_bytes_;
};

// Neighbours that share spans are found, up to the query token.
void check_prefix_groups(const Subject& subject) {
    constexpr int64_t stride = 8, block_size = 128;  // two blocks in a span
    const std::vector<int32_t> tables = {
        1, 2, 3, 4, 10, 0,  0,  0,  // two whole spans before the query
        1, 2, 3, 4, 11, 0,  0,  0,  // the same
        1, 2, 5, 6, 12, 13, 0,  0,  // one of them: fewer reads with the first two alone
        1, 2, 3, 4, 14, 0,  0,  0,  // two queries
        1, 2, 3, 4, 0,  0,  0,  0,  // the query is in its second span
        1, 2, 3, 4, 7,  8,  9,  0,  //
        6, 2, 3, 4, 7,  8,  15, 0,  // nothing in common
    };
    const std::vector<int32_t> query_start = {0, 1, 2, 3, 5, 6, 7, 8};
    const std::vector<int32_t> seq_lens = {600, 513, 700, 600, 512, 800, 800};
    const Batch batch{8, 7, query_start.data(), seq_lens.data(), tables.data(), stride};
    Floats found;
    for (const PrefixGroup& group : find_prefix_groups(batch, block_size)) {
        for (const int32_t x : {group.first, group.count, group.spans}) found.push_back(float(x));
    }
    const Floats want = {0, 2, 2, 0, 2, 2, 2, 1, 0, 3, 1, 0, 4, 2, 1, 4, 2, 1, 6, 1, 0};
    subject.report.same(subject.name("attention, groups of sequences with a prefix"), found, want);
}

}  // namespace

void check_attention(const Subject& subject) {
    check_prefix_groups(subject);
    for (const Case& what : cases) {
        for (const Format& format : formats) {
            const std::string name =
                subject.name(std::string("attention, ") + format.name + " cache, " + what.name);
            Scene scene(what, format);
            const Floats out = scene.attend(subject.pool);
            subject.report.close(name, out, scene.expected(), format.tolerance);
            Scene again(what, format);
            subject.report.same(name + ", threads change no bit", again.attend(subject.single),
                                out);
        }
    }
}
