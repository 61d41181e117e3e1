// Routers and the grouped products of a mixture of experts.

#include "experts/expert_args.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "packed.h"

namespace {

constexpr int64_t NUM_EXPERTS = 6, TOP_K = 3, COUNT = 45, HIDDEN = 70, INNER = 40;

// Equal logits go to the lower index.
void check_softmax_router(const Subject& subject) {
    Floats logits = Random(5).normal(COUNT * NUM_EXPERTS);
    for (float& x : logits) x = std::nearbyint(2 * x) / 2;
    std::vector<int32_t> ids(COUNT * TOP_K), want_ids;
    Floats weights(COUNT * TOP_K);
    const Routing routing = {
        {RouterKind::softmax, NUM_EXPERTS, TOP_K, true, 2.0f, 1, 1, GroupScore::max, 0},
        COUNT,
        logits.data(),
        NUM_EXPERTS,
        nullptr,
        ids.data(),
        TOP_K,
        weights.data(),
        TOP_K};
    taco_route(subject.pool, &routing);
    Doubles want;
    for (int64_t row = 0; row < COUNT; ++row) {
        const float* own = logits.data() + row * NUM_EXPERTS;
        std::vector<int32_t> order(NUM_EXPERTS);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return own[a] > own[b]; });
        double sum = 0;
        for (int64_t rank = 0; rank < TOP_K; ++rank) sum += std::exp(double(own[order[rank]]));
        for (int64_t rank = 0; rank < TOP_K; ++rank) {
            want_ids.push_back(order[rank]);
            want.push_back(2 * std::exp(double(own[order[rank]])) / sum);
        }
    }
    subject.report.check(subject.name("router, ids"), ids == want_ids);
    subject.report.close(subject.name("router, weights"), weights, want, 1e-6);
}

class ExpertCheck {
public:
    ExpertCheck(const Subject& subject, DType type)
        : subject_(subject), type_(type), x_(random_.normal(COUNT * HIDDEN, type == DType::bf16)) {
        for (int64_t expert = 0; expert < NUM_EXPERTS; ++expert) {
            gate_up_.emplace_back(subject.pool, random_, type, 2 * INNER, HIDDEN, true, true);
            down_.emplace_back(subject.pool, random_, type, HIDDEN, INNER, true, false);
        }
        // Most rows choose expert 1 first, so that it has more rows than a block, and none
        // expert 4.
        for (int64_t row = 0; row < COUNT; ++row) {
            for (int64_t rank = 0; rank < TOP_K; ++rank) {
                const auto other = int32_t((row + rank * 2) % NUM_EXPERTS);
                ids_.push_back(rank == 0 && row % 8 ? 1 : other == 4 ? 5 : other);
                weights_.push_back(float(random_.uniform()));
            }
        }
    }

    void run() {
        const Floats out = multiply(subject_.pool, 0, COUNT);
        const std::string name = std::string(name_of(type_)) + " experts";
        // A rounding error may move an inner value by a step of bf16 or int8.
        subject_.report.close(subject_.name(name), out, expected(),
                              type_ == DType::f32 ? 1e-4 : 1e-2);
        subject_.report.same(subject_.name(name + ", threads change no bit"),
                             multiply(subject_.single, 0, COUNT), out);
        subject_.report.same(subject_.name(name + ", other rows change no bit"),
                             multiply(subject_.pool, COUNT - 1, 1),
                             Floats(out.end() - HIDDEN, out.end()));
    }

private:
    Floats multiply(TacoPool* pool, int64_t first, int64_t count) {
        const int64_t stride = padded_k(type_, HIDDEN);
        Bytes operands(operand_memory(pool, type_, count, HIDDEN));
        std::vector<RowScale> scales(static_cast<size_t>(count));
        Floats out(static_cast<size_t>(count * HIDDEN));
        taco_encode_rows(pool, int32_t(type_), count, HIDDEN, x_.data() + first * HIDDEN, HIDDEN,
                         operands.data(), scales.data(), nullptr);
        std::vector<Matrix> gate_up, down;
        for (const Packed& packed : gate_up_) gate_up.push_back(packed.matrix());
        for (const Packed& packed : down_) down.push_back(packed.matrix());
        ExpertProduct product = {{count, operands.data(), stride, scales.data()},
                                 TOP_K,
                                 NUM_EXPERTS,
                                 ids_.data() + first * TOP_K,
                                 TOP_K,
                                 weights_.data() + first * TOP_K,
                                 TOP_K,
                                 gate_up.data(),
                                 down.data(),
                                 {Activation::swiglu_clipped, 1.702f, 1.5f},
                                 out.data(),
                                 HIDDEN,
                                 false,
                                 nullptr};
        Bytes scratch(taco_experts_scratch_bytes(pool, &product));
        product.scratch = scratch.data();
        taco_multiply_experts(pool, &product);
        return out;
    }

    Doubles expected() const {
        // Without bf16 instructions operands are floats: the inner values are not rounded.
        const bool is_exact =
            type_ == DType::bf16 && taco_pool_bf16_operand_bytes(subject_.pool) == 4;
        const DType inner_type = is_exact ? DType::f32 : type_;
        Doubles out;
        for (int64_t row = 0; row < COUNT; ++row) {
            const Doubles x = as_operands(type_, x_.data() + row * HIDDEN, HIDDEN);
            Doubles sum(HIDDEN, 0);
            for (int64_t rank = 0; rank < TOP_K; ++rank) {
                const auto expert = size_t(ids_[size_t(row * TOP_K + rank)]);
                const Doubles both = gate_up_[expert].product(x);
                Floats inner;
                for (int64_t i = 0; i < INNER; ++i) {
                    const double gate = std::min(both[size_t(i)], 1.5);
                    const double up = std::clamp(both[size_t(INNER + i)], -1.5, 1.5);
                    inner.push_back(float(gate / (1 + std::exp(-1.702 * gate)) * (up + 1)));
                }
                const Doubles y =
                    down_[expert].product(as_operands(inner_type, inner.data(), INNER));
                for (size_t i = 0; i < y.size(); ++i) {
                    sum[i] += double(weights_[size_t(row * TOP_K + rank)]) * y[i];
                }
            }
            out.insert(out.end(), sum.begin(), sum.end());
        }
        return out;
    }

    const Subject& subject_;
    const DType type_;
    Random random_{11};
    const Floats x_;
    std::vector<Packed> gate_up_, down_;
    std::vector<int32_t> ids_;
    Floats weights_;
};

}  // namespace

void check_experts(const Subject& subject) {
    check_softmax_router(subject);
    for (const DType type : {DType::f32, DType::bf16, DType::i8}) ExpertCheck(subject, type).run();
}
