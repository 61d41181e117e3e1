// A step of a small model: a prompt in two steps, then logits; against the same in plain C++.
//
// Both architectures differ in what decoders choose: norms, positions, MLP, widths.

#include <algorithm>
#include <cmath>

#include "packed.h"
#include "program/program_args.h"

namespace {

constexpr int64_t VOCAB = 75, HIDDEN = 48, INNER = 56, LAYERS = 2, HEADS = 4, HEAD_DIM = 12;
constexpr int64_t QUERY = HEADS * HEAD_DIM, TOKENS = 21, BLOCK = 16, NUM_BLOCKS = 2;

struct Norm {
    Floats weight, bias;
};

struct Layer {
    Norm attn_norm, mlp_norm;
    Packed qkv, out, up, down;
};

double gelu(double x) { return x / 2 * (1 + std::erf(x * std::sqrt(0.5))); }
double silu(double x) { return x / (1 + std::exp(-x)); }

void add_to(Doubles& sum, const Doubles& more) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

// Two of them: rotary positions, RMSNorm first, gated, grouped heads; or learned positions,
// LayerNorm last, biases.
class Model {
public:
    Model(TacoPool* pool, DType type, bool is_modern)
        : type_(type),
          is_modern_(is_modern),
          keeps_floats_(type == DType::bf16 && taco_pool_bf16_operand_bytes(pool) == sizeof(float)),
          random_(is_modern ? 3 : 4),
          num_kv_heads_(is_modern ? 2 : HEADS),
          lm_head_(pack(pool, VOCAB, HIDDEN, false)) {
        embeddings_ = random_.normal(VOCAB * HIDDEN);
        positions_ = random_.normal(TOKENS * HIDDEN);
        for (const float angle : random_.normal(TOKENS * HEAD_DIM / 2)) {
            cosines_.push_back(std::cos(angle));
            sines_.push_back(std::sin(angle));
        }
        final_norm_ = make_norm();
        for (int64_t i = 0; i < LAYERS; ++i) {
            layers_.push_back(
                {make_norm(), make_norm(), pack(pool, QUERY + 2 * kv_size(), HIDDEN, !is_modern),
                 pack(pool, HIDDEN, QUERY, !is_modern),
                 is_modern ? Packed(pool, random_, type, 2 * INNER, HIDDEN, false, true)
                           : pack(pool, INNER, HIDDEN, true),
                 pack(pool, HIDDEN, INNER, !is_modern)});
        }
        fill_program();
    }

    const Program& program() const { return program_; }
    int64_t num_kv_heads() const { return num_kv_heads_; }

    // Hidden states of a prompt, [tokens, HIDDEN].
    std::vector<Doubles> forward(const std::vector<int32_t>& tokens) const {
        std::vector<Doubles> hidden;
        for (size_t t = 0; t < tokens.size(); ++t) {
            const float* row = embeddings_.data() + tokens[t] * HIDDEN;
            hidden.emplace_back(row, row + HIDDEN);
            if (is_modern_) continue;
            for (size_t i = 0; i < HIDDEN; ++i) hidden[t][i] += double(positions_[t * HIDDEN + i]);
        }
        for (const Layer& layer : layers_) {
            attend(layer, hidden);
            for (Doubles& row : hidden) feed_forward(layer, row);
        }
        for (Doubles& row : hidden) row = normed(final_norm_, row);
        return hidden;
    }

    Doubles logits(const Doubles& hidden) const { return lm_head_.product(as_input(hidden)); }

private:
    int64_t kv_size() const { return num_kv_heads_ * HEAD_DIM; }

    Norm make_norm() {
        Norm norm{random_.normal(HIDDEN), random_.normal(HIDDEN)};
        for (float& x : norm.weight) x = 1 + x / 8;
        return norm;
    }
    Packed pack(TacoPool* pool, int64_t n, int64_t k, bool has_bias) {
        return Packed(pool, random_, type_, n, k, has_bias);
    }

    int32_t add_buffer(int64_t columns, DType type, bool is_local, bool is_restricted = false) {
        const bool clears_tail = type == DType::bf16;
        buffers_.push_back({columns, type, 1, is_local, clears_tail, is_restricted});
        return int32_t(buffers_.size() - 1);
    }
    Columns all(int32_t buffer) const { return {buffer, 0, buffers_[size_t(buffer)].columns}; }
    Op& add_op(OpKind kind, Columns x, Columns out) {
        Op op = {};
        op.kind = kind;
        op.x = x;
        op.y = {-1, 0, 0};
        op.out = out;
        ops_.push_back(op);
        return ops_.back();
    }
    void add_norm(const Norm& norm, Columns x, Columns out) {
        Op& op = add_op(OpKind::norm, x, out);
        op.norm = is_modern_ ? NormKind::rms : NormKind::layer;
        op.eps = 1e-5f;
        op.weight = norm.weight.data();
        op.bias = is_modern_ ? nullptr : norm.bias.data();
        op.group = HIDDEN;
    }
    void add_linear(const Packed& packed, Columns x, Columns out, Epilogue epilogue,
                    Activation activation = Activation::none) {
        Op& op = add_op(OpKind::linear, x, out);
        op.matrix = packed.matrix();
        op.epilogue = epilogue;
        op.activation = activation;
    }
    // Floats as operands in `operands`; float matrices take them as they are.
    Columns encoded(Columns x, int32_t operands) {
        if (type_ == DType::f32) return x;
        add_op(OpKind::encode, x, all(operands));
        return all(operands);
    }
    // What a kernel wrote for a product: operands of bf16, else floats to encode.
    Columns written(int32_t buffer, int32_t operands) {
        return type_ == DType::bf16 ? all(buffer) : encoded(all(buffer), operands);
    }
    void end_stage(bool by_chunks) {
        const int64_t first = stages_.empty() ? 0 : stages_.back().first + stages_.back().count;
        stages_.push_back({first, int64_t(ops_.size()) - first, by_chunks});
    }

    void fill_program() {
        const DType written_type = type_ == DType::bf16 ? DType::bf16 : DType::f32;
        const int32_t x = add_buffer(HIDDEN, DType::f32, false, true);
        const int32_t normed = add_buffer(HIDDEN, type_, true);
        const int32_t qkv = add_buffer(QUERY + 2 * kv_size(), DType::f32, false, true);
        const int32_t attended = add_buffer(QUERY, written_type, false);
        const int32_t attended_operands = add_buffer(QUERY, type_, true);
        const int32_t inner = add_buffer(INNER, written_type, true);
        const int32_t inner_operands = add_buffer(INNER, type_, true);
        const int32_t hidden = add_buffer(HIDDEN, DType::f32, false);
        live_ = {x, qkv};

        add_op(OpKind::embed, {-1, 0, 0}, all(x)).table = {embeddings_.data(), HIDDEN,
                                                           TableType::f32};
        if (!is_modern_) {
            Op& op = add_op(OpKind::embed, {-1, 0, 0}, all(x));
            op.table = {positions_.data(), HIDDEN, TableType::f32};
            op.indexes_positions = op.adds = true;
        }
        const auto before_product = [&](const Norm& norm) {
            if (!is_modern_) return encoded(all(x), normed);
            add_norm(norm, all(x), all(normed));
            return all(normed);
        };
        const auto after_sum = [&](const Norm& norm) {
            if (!is_modern_) add_norm(norm, all(x), all(x));
        };
        for (int64_t i = 0; i < LAYERS; ++i) {
            const Layer& layer = layers_[size_t(i)];
            add_linear(layer.qkv, before_product(layer.attn_norm), all(qkv), Epilogue::store);
            if (is_modern_) {
                Op& op = add_op(OpKind::rope, {qkv, 0, QUERY + kv_size()}, {-1, 0, 0});
                op.cosines = cosines_.data();
                op.sines = sines_.data();
                op.group = op.rotary_dim = HEAD_DIM;
            }
            end_stage(true);
            Op& write = add_op(OpKind::write_kv, {qkv, int32_t(QUERY), kv_size()}, {-1, 0, 0});
            write.y = {qkv, int32_t(QUERY + kv_size()), kv_size()};
            write.index = i;
            end_stage(false);
            if (i + 1 == LAYERS) add_restriction(2, false);
            Op& attend = add_op(OpKind::attend, {qkv, 0, QUERY}, all(attended));
            attend.attention.entry = i;
            attend.attention.num_heads = HEADS;
            attend.attention.scale = 0.25f;
            end_stage(false);
            add_linear(layer.out, written(attended, attended_operands), all(x), Epilogue::add);
            after_sum(layer.attn_norm);
            add_linear(layer.up, before_product(layer.mlp_norm), all(inner),
                       is_modern_ ? Epilogue::gate_mul : Epilogue::store,
                       is_modern_ ? Activation::silu : Activation::gelu);
            add_linear(layer.down, written(inner, inner_operands), all(x), Epilogue::add);
            after_sum(layer.mlp_norm);
            if (i + 1 == LAYERS) end_stage(true);
        }
        add_restriction(1, true);
        add_norm(final_norm_, all(x), all(hidden));
        end_stage(true);

        program_ = Program{};
        program_.num_buffers = int64_t(buffers_.size());
        program_.num_ops = int64_t(ops_.size());
        program_.num_stages = int64_t(stages_.size());
        program_.buffers = buffers_.data();
        program_.ops = ops_.data();
        program_.stages = stages_.data();
        program_.hidden = hidden;
        program_.lm_head = lm_head_.matrix();
        program_.logit_scale = 1;
    }
    void add_restriction(int64_t num_live, bool is_final) {
        Op& op = add_op(OpKind::restrict_rows, {-1, 0, 0}, {-1, 0, 0});
        op.live = live_.data();
        op.num_live = num_live;
        op.is_final = is_final;
        end_stage(false);
    }

    // Activations as a product takes them.
    Doubles as_input(const Doubles& row) const {
        const Floats floats(row.begin(), row.end());
        if (keeps_floats_) return row;
        return as_operands(type_, floats.data(), int64_t(row.size()));
    }

    Doubles normed(const Norm& norm, const Doubles& row) const {
        double mean = 0, squares = 0;
        if (!is_modern_) {
            for (double x : row) mean += x / HIDDEN;
        }
        for (double x : row) squares += (x - mean) * (x - mean);
        const double scale = 1 / std::sqrt(squares / HIDDEN + 1e-5);
        Doubles out;
        for (size_t i = 0; i < row.size(); ++i) {
            const double bias = is_modern_ ? 0 : double(norm.bias[i]);
            out.push_back((row[i] - mean) * scale * double(norm.weight[i]) + bias);
        }
        return out;
    }
    Doubles before(const Norm& norm, const Doubles& row) const {
        return as_input(is_modern_ ? normed(norm, row) : row);
    }
    Doubles after(const Norm& norm, const Doubles& row) const {
        return is_modern_ ? row : normed(norm, row);
    }

    void rotate(double* heads, int64_t count, size_t position) const {
        constexpr size_t half = HEAD_DIM / 2;
        if (!is_modern_) return;
        for (int64_t head = 0; head < count; ++head, heads += HEAD_DIM) {
            for (size_t i = 0; i < half; ++i) {
                const double cosine = cosines_[position * half + i];
                const double sine = sines_[position * half + i];
                const double x = heads[i], y = heads[i + half];
                heads[i] = x * cosine - y * sine;
                heads[i + half] = y * cosine + x * sine;
            }
        }
    }

    void attend(const Layer& layer, std::vector<Doubles>& hidden) const {
        std::vector<Doubles> qkv;
        for (size_t t = 0; t < hidden.size(); ++t) {
            qkv.push_back(layer.qkv.product(before(layer.attn_norm, hidden[t])));
            rotate(qkv[t].data(), HEADS + num_kv_heads_, t);
        }
        for (size_t t = 0; t < hidden.size(); ++t) {
            Doubles attended;
            for (int64_t head = 0; head < HEADS; ++head) append_head(attended, qkv, t, head);
            add_to(hidden[t], layer.out.product(as_input(attended)));
            hidden[t] = after(layer.attn_norm, hidden[t]);
        }
    }

    void append_head(Doubles& out, const std::vector<Doubles>& qkv, size_t token,
                     int64_t head) const {
        const int64_t kv_head = head / (HEADS / num_kv_heads_);
        const double* query = qkv[token].data() + head * HEAD_DIM;
        double total = 0, sums[HEAD_DIM] = {};
        for (size_t j = 0; j <= token; ++j) {
            const double* key = qkv[j].data() + QUERY + kv_head * HEAD_DIM;
            double score = 0;
            for (int d = 0; d < HEAD_DIM; ++d) score += query[d] * key[d];
            const double weight = std::exp(score * 0.25);
            for (int d = 0; d < HEAD_DIM; ++d) sums[d] += weight * key[kv_size() + d];
            total += weight;
        }
        for (double sum : sums) out.push_back(sum / total);
    }

    void feed_forward(const Layer& layer, Doubles& row) const {
        Doubles inner = layer.up.product(before(layer.mlp_norm, row));
        for (size_t i = 0; i < INNER; ++i) {
            inner[i] = is_modern_ ? silu(inner[i]) * inner[INNER + i] : gelu(inner[i]);
        }
        inner.resize(INNER);
        add_to(row, layer.down.product(as_input(inner)));
        row = after(layer.mlp_norm, row);
    }

    const DType type_;
    const bool is_modern_;
    const bool keeps_floats_;  // sets without bf16 products do not round activations
    Random random_;
    const int64_t num_kv_heads_;
    const Packed lm_head_;
    Floats embeddings_, positions_, cosines_, sines_;
    Norm final_norm_;
    std::vector<Layer> layers_;
    std::vector<Buffer> buffers_;
    std::vector<Op> ops_;
    std::vector<Stage> stages_;
    std::vector<int32_t> live_;
    Program program_;
};

// What the kernels make of a prompt, some tokens in a first step and the rest in a second.
class Run {
public:
    Run(TacoPool* pool, const Model& model, const std::vector<int32_t>& tokens)
        : pool_(pool), program_(model.program()), tokens_(tokens), memory_(0) {
        const int64_t heads = model.num_kv_heads();
        const int64_t entry_bytes = 2 * heads * BLOCK * round_up(HEAD_DIM, PANEL) * 4;
        for (int64_t i = 0; i < LAYERS; ++i) {
            entries_[i] = {heads, HEAD_DIM, HEAD_DIM, i * entry_bytes, false, 0, 0};
        }
        const int64_t block_bytes = LAYERS * entry_bytes;
        memory_ = Bytes(NUM_BLOCKS * block_bytes);
        cache_ = {
            KVType::f32, static_cast<char*>(memory_.data()), NUM_BLOCKS, BLOCK, block_bytes, LAYERS,
            entries_};
    }

    // Hidden states of tokens begin to end; with `last_only`, of the last.
    Floats step(int32_t begin, int32_t end, bool last_only) {
        const int32_t query_start[] = {0, end - begin}, blocks[NUM_BLOCKS] = {1, 0};
        std::vector<int32_t> positions, rows;
        for (int32_t t = begin; t < end; ++t) {
            positions.push_back(t);
            if (!last_only || t + 1 == end) rows.push_back(t - begin);
        }
        Floats hidden(rows.size() * HIDDEN);
        Step step = {};
        step.batch = {end - begin, 1, query_start, &end, blocks, NUM_BLOCKS};
        step.cache = cache_;
        step.token_ids = tokens_.data() + begin;
        step.positions = positions.data();
        step.num_outputs = int64_t(rows.size());
        step.output_rows = rows.data();
        step.hidden = hidden.data();
        Bytes scratch(taco_program_forward_bytes(pool_, &program_, &step));
        step.scratch = scratch.data();
        taco_program_forward(pool_, &program_, &step);
        return hidden;
    }

    Floats logits(const Floats& hidden, std::vector<int32_t>& greatest, Floats& logprobs) {
        const auto count = int64_t(hidden.size()) / HIDDEN;
        Floats out(size_t(count * VOCAB));
        greatest.assign(size_t(count), -1);
        logprobs.assign(size_t(count), 0);
        Logits request = {count, hidden.data(), out.data(), greatest.data(), logprobs.data(),
                          {},    nullptr};
        Bytes scratch(taco_program_logits_bytes(pool_, &program_, &request));
        request.scratch = scratch.data();
        taco_program_logits(pool_, &program_, &request);
        return out;
    }

private:
    TacoPool* pool_;
    const Program& program_;
    const std::vector<int32_t>& tokens_;
    KVEntry entries_[LAYERS];
    KVCache cache_;
    Bytes memory_;
};

double root_mean_square(const Floats& got, const Doubles& want) {
    double squares = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        squares += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
    }
    return std::sqrt(squares / double(want.size()));
}

// `tolerance`: of each hidden number. `mean_tolerance`: of the root mean square of their errors.
void check_model(const Subject& subject, DType type, bool is_modern, double tolerance,
                 double mean_tolerance) {
    const Model model(subject.pool, type, is_modern);
    const std::string name = subject.name(std::string("program, ") + name_of(type) + " weights, " +
                                          (is_modern ? "norms first" : "norms last"));
    std::vector<int32_t> tokens;
    for (int32_t t = 0; t < TOKENS; ++t) tokens.push_back(t * 31 % int32_t(VOCAB));

    Run run(subject.pool, model, tokens);
    Floats hidden = run.step(0, 13, false);
    const Floats rest = run.step(13, TOKENS, false);
    hidden.insert(hidden.end(), rest.begin(), rest.end());
    const std::vector<Doubles> expected = model.forward(tokens);
    Doubles flat;
    for (const Doubles& row : expected) flat.insert(flat.end(), row.begin(), row.end());
    subject.report.close(name, hidden, flat, tolerance);
    subject.report.check(name + ", mean error", root_mean_square(hidden, flat) <= mean_tolerance);

    Run other(subject.single, model, tokens);
    other.step(0, 20, true);
    subject.report.same(name + ", threads, steps and other rows change no bit",
                        other.step(20, TOKENS, true), Floats(hidden.end() - HIDDEN, hidden.end()));

    std::vector<int32_t> greatest;
    Floats logprobs;
    const Floats logits = run.logits(rest, greatest, logprobs);
    Doubles want, want_logprobs;
    bool is_greatest = true;
    for (size_t row = 0; row < greatest.size(); ++row) {
        const float* begin = rest.data() + row * HIDDEN;
        const Doubles values = model.logits(Doubles(begin, begin + HIDDEN));
        want.insert(want.end(), values.begin(), values.end());
        const auto own = logits.begin() + int64_t(row) * VOCAB;
        is_greatest &= greatest[row] == std::max_element(own, own + VOCAB) - own;
        double sum = 0;
        for (auto each = own; each != own + VOCAB; ++each) {
            sum += std::exp(double(*each) - double(own[greatest[row]]));
        }
        want_logprobs.push_back(-std::log(sum));
    }
    subject.report.close(name + ", logits", logits, want, 5e-5);
    subject.report.check(name + ", most likely tokens", is_greatest);
    subject.report.close(name + ", their log probabilities", logprobs, want_logprobs, 1e-6);
}

}  // namespace

void check_program(const Subject& subject) {
    const bool keeps_floats = taco_pool_bf16_operand_bytes(subject.pool) == sizeof(float);
    for (const bool is_modern : {true, false}) {
        check_model(subject, DType::f32, is_modern, 1e-4, 1e-5);
        // A number in the middle of two steps may be rounded the other way.
        check_model(subject, DType::bf16, is_modern, keeps_floats ? 5e-3 : 2e-2,
                    keeps_floats ? 1e-4 : 4e-3);
        check_model(subject, DType::i8, is_modern, 1e-2, 4e-3);
    }
}
