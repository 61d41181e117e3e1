// Products with packed matrices, their epilogues, and norms as operands of products.

#include <algorithm>
#include <cmath>

#include "elementwise/elementwise_args.h"
#include "packed.h"
#include "sampling/sampling_args.h"

namespace {

constexpr DType types[] = {DType::f32, DType::bf16, DType::i8};

struct Shape {
    int64_t count, n, k;
};

// One row, a tile and one more, more than one block of rows; odd ends of k and n; on tiles several
// parts of k, and several ranges.
const Shape shapes[] = {{1, 16, 32},    {5, 33, 70},    {17, 160, 130}, {100, 48, 200},
                        {40, 80, 1100}, {530, 24, 100}, {250, 20, 1300}};

// Rows of activations: as floats, as what a product takes, and as plain numbers.
class Activations {
public:
    Activations(TacoPool* pool, Random& random, DType type, int64_t count, int64_t k)
        : pool_(pool),
          type_(type),
          k_(k),
          scales_(size_t(count)),
          operands_(operand_memory(pool, type, count, k)) {
        floats_ = random.normal(count * k, type == DType::bf16);
        floats_[size_t(k / 2)] = 96;  // an outlier of int8 rows
    }

    // Encodes some of the rows; the result is valid until the next call.
    Rows rows(int64_t first, int64_t count) {
        taco_encode_rows(pool_, int32_t(type_), count, k_, floats_.data() + first * k_, k_,
                         operands_.data(), scales_.data(), nullptr);
        return {count, operands_.data(), padded_k(type_, k_), scales_.data()};
    }
    Doubles plain(int64_t row) const { return as_operands(type_, floats_.data() + row * k_, k_); }

private:
    TacoPool* pool_;
    DType type_;
    int64_t k_;
    Floats floats_;
    std::vector<RowScale> scales_;
    Bytes operands_;
};

double activate(double x) { return x / (1 + std::exp(-x)); }

class ProductCheck {
public:
    ProductCheck(const Subject& subject, DType type, const Shape& shape, bool is_gated)
        : subject_(subject),
          shape_(shape),
          is_gated_(is_gated),
          random_(uint32_t(shape.n)),
          packed_(subject.pool, random_, type, shape.n, shape.k, true, is_gated),
          activations_(subject.pool, random_, type, shape.count, shape.k) {
        name_ = std::string(name_of(type)) + " product " + std::to_string(shape.count) + " x " +
                std::to_string(shape.n) + " x " + std::to_string(shape.k);
        for (int64_t row = 0; row < shape.count; ++row) {
            const Doubles values = packed_.product(activations_.plain(row));
            products_.insert(products_.end(), values.begin(), values.end());
        }
    }

    void run() {
        report("packed", packed_.is_packed_right());
        is_gated_ ? check_gated() : check_plain();
    }

private:
    int64_t columns() const { return is_gated_ ? shape_.n / 2 : shape_.n; }

    Floats multiply(TacoPool* pool, Epilogue epilogue, Activation activation, int64_t first,
                    int64_t count, float before) {
        const int64_t stride = columns() + 3;
        Floats memory(size_t(count * stride), before), out;
        const Product product = {activations_.rows(first, count),
                                 packed_.matrix(),
                                 epilogue,
                                 activation,
                                 memory.data(),
                                 stride,
                                 false};
        taco_multiply(pool, &product, 1);
        bool is_kept = true;
        for (int64_t row = 0; row < count; ++row) {
            const auto begin = memory.begin() + row * stride, end = begin + columns();
            out.insert(out.end(), begin, end);
            is_kept &= std::all_of(end, begin + stride, [=](float x) { return x == before; });
        }
        if (!is_kept) report("writes past the columns", false);
        return out;
    }

    void check_plain() {
        const auto store = [&](TacoPool* pool, int64_t first, int64_t count) {
            return multiply(pool, Epilogue::store, Activation::none, first, count, 0);
        };
        const Floats stored = store(subject_.pool, 0, shape_.count);
        close("", stored, products_);
        subject_.report.same(subject_.name(name_ + ", threads change no bit"),
                             store(subject_.single, 0, shape_.count), stored);
        const int64_t last = shape_.count - 1;
        subject_.report.same(subject_.name(name_ + ", other rows change no bit"),
                             store(subject_.pool, last, 1),
                             Floats(stored.end() - columns(), stored.end()));

        Doubles silu, sums;
        for (double x : products_) {
            silu.push_back(activate(x));
            sums.push_back(x + 0.5);
        }
        close(", silu",
              multiply(subject_.pool, Epilogue::store, Activation::silu, 0, shape_.count, 0), silu);
        close(", added",
              multiply(subject_.pool, Epilogue::add, Activation::none, 0, shape_.count, 0.5f),
              sums);
        check_argmax(stored);
    }

    void check_argmax(const Floats& stored) {
        std::vector<uint64_t> ranks(size_t(shape_.count), 0);
        std::vector<int32_t> columns(size_t(shape_.count), -1), want;
        Doubles want_logprobs;
        for (int64_t row = 0; row < shape_.count; ++row) {
            const auto begin = stored.begin() + row * shape_.n;
            want.push_back(int32_t(std::max_element(begin, begin + shape_.n) - begin));
            double sum = 0;
            for (auto each = begin; each != begin + shape_.n; ++each) {
                sum += std::exp(double(*each) - double(begin[want.back()]));
            }
            want_logprobs.push_back(-std::log(sum));
        }
        const Rows rows = activations_.rows(0, shape_.count);
        Bytes sums(shape_.count * num_partial_sums(shape_.n) * int64_t(sizeof(PartialSum)));
        Floats logprobs(size_t(shape_.count));
        taco_multiply_argmax(subject_.pool, &rows, &packed_.matrix(), ranks.data(), columns.data(),
                             static_cast<PartialSum*>(sums.data()), logprobs.data(), nullptr);
        report("the greatest column", columns == want);
        subject_.report.close(subject_.name(name_ + ", its log probability"), logprobs,
                              want_logprobs, 1e-6);
        check_masked_argmax(stored);
    }

    // Every second row has a mask of a few columns; the first of them has an empty one.
    void check_masked_argmax(const Floats& stored) {
        const int64_t num_words = ceil_div(shape_.n, MASK_WORD_TOKENS);
        std::vector<uint32_t> bits;
        std::vector<int32_t> of_row, columns(size_t(shape_.count), -1), want;
        for (int64_t row = 0; row < shape_.count; ++row) {
            of_row.push_back(row % 2 ? -1 : int32_t(row / 2));
            std::vector<uint32_t> mask(size_t(num_words), 0);
            int32_t best = row % 2 || row == 0 ? -1 : 0;
            const float* values = stored.data() + row * shape_.n;
            for (int64_t i = row % 7; row && row % 2 == 0 && i < shape_.n; i += 50) {
                mask[size_t(i / MASK_WORD_TOKENS)] |= 1u << i % MASK_WORD_TOKENS;
                if (i == row % 7 || values[i] > values[best]) best = int32_t(i);
            }
            if (row % 2) {
                best = int32_t(std::max_element(values, values + shape_.n) - values);
            } else {
                bits.insert(bits.end(), mask.begin(), mask.end());
            }
            want.push_back(best);
        }
        const TokenMasks masks = {bits.data(), num_words, of_row.data()};
        std::vector<uint64_t> ranks(size_t(shape_.count), 0);
        const Rows rows = activations_.rows(0, shape_.count);
        taco_multiply_argmax(subject_.pool, &rows, &packed_.matrix(), ranks.data(), columns.data(),
                             nullptr, nullptr, &masks);
        report("the greatest column of a mask", columns == want);
    }

    void check_gated() {
        Doubles want;
        const int64_t half = shape_.n / 2;
        for (int64_t row = 0; row < shape_.count; ++row) {
            const double* gate = products_.data() + row * shape_.n;
            for (int64_t i = 0; i < half; ++i) want.push_back(activate(gate[i]) * gate[half + i]);
        }
        close(", gated",
              multiply(subject_.pool, Epilogue::gate_mul, Activation::silu, 0, shape_.count, 0),
              want);
    }

    void report(const std::string& what, bool passed) {
        subject_.report.check(subject_.name(name_ + ", " + what), passed);
    }
    // Operands are exact; what is left is the float sums' rounding, which grows with k.
    void close(const std::string& what, const Floats& got, const Doubles& want) {
        const double tolerance = 1e-7 * std::max(500.0, double(shape_.k));
        subject_.report.close(subject_.name(name_ + what), got, want, tolerance);
    }

    const Subject& subject_;
    const Shape& shape_;
    const bool is_gated_;
    Random random_;
    const Packed packed_;
    Activations activations_;
    std::string name_;
    Doubles products_;
};

// The sums over segments of k are those of matrices that have one segment each, added as a tree.
class SegmentCheck {
public:
    SegmentCheck(const Subject& subject, DType type)
        : subject_(subject),
          type_(type),
          x_(random_.normal(COUNT * K, type == DType::bf16)),
          w_(random_.normal(N * K, type == DType::bf16)) {}

    void run() const {
        std::vector<Floats> sums;
        for (int64_t first = 0; first < K; first += SEGMENT) {
            sums.push_back(multiply(subject_.pool, first, SEGMENT, 1));
        }
        for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
            for (size_t i = 0; i < sums.size(); i += 2) sums[i / 2] = add(sums[i], sums[i + 1]);
        }
        const std::string name = std::string(name_of(type_)) + " product of segments";
        subject_.report.same(subject_.name(name), multiply(subject_.pool, 0, K, K / SEGMENT),
                             sums[0]);
        subject_.report.same(subject_.name(name + ", threads change no bit"),
                             multiply(subject_.single, 0, K, K / SEGMENT), sums[0]);
    }

private:
    static constexpr int64_t COUNT = 37, N = 40, SEGMENT = 96, K = 8 * SEGMENT;

    static Floats add(Floats left, const Floats& right) {
        for (size_t i = 0; i < left.size(); ++i) left[i] += right[i];
        return left;
    }

    // The product over `k` numbers of each row from `first` on.
    Floats multiply(TacoPool* pool, int64_t first, int64_t k, int64_t segments) const {
        Matrix matrix = {type_, N, k, nullptr, nullptr, nullptr, nullptr, segments};
        Bytes weights(matrix.num_panels() * matrix.panel_bytes());
        Bytes operands(operand_memory(pool, type_, COUNT, k));
        matrix.data = weights.data();
        const Packing packing = {TableType::f32, w_.data() + first, N,      k, K, type_, 0, 1,
                                 weights.data(), nullptr,           nullptr};
        taco_pack(pool, &packing, 1);
        taco_encode_rows(pool, int32_t(type_), COUNT, k, x_.data() + first, K, operands.data(),
                         nullptr, nullptr);
        Floats out(size_t(COUNT * N));
        const Product product = {{COUNT, operands.data(), k, nullptr},
                                 matrix,
                                 Epilogue::store,
                                 Activation::none,
                                 out.data(),
                                 N,
                                 false};
        taco_multiply(pool, &product, 1);
        return out;
    }

    const Subject& subject_;
    const DType type_;
    Random random_{8};
    const Floats x_, w_;
};

Doubles norm(NormKind kind, const float* row, int64_t size, const Floats& weight,
             const Floats& bias) {
    double mean = 0, squares = 0;
    if (kind == NormKind::layer) {
        for (int64_t i = 0; i < size; ++i) mean += row[i] / double(size);
    }
    for (int64_t i = 0; i < size; ++i) squares += (row[i] - mean) * (row[i] - mean);
    const double scale = 1 / std::sqrt(squares / double(size) + 1e-5);
    Doubles out;
    for (int64_t i = 0; i < size; ++i) {
        out.push_back((row[i] - mean) * scale * double(weight[size_t(i)]) +
                      double(bias[size_t(i)]));
    }
    return out;
}

bool same_scales(const std::vector<RowScale>& a, const std::vector<RowScale>& b) {
    const auto same_outlier = [](const Outlier& x, const Outlier& y) {
        return x.k == y.k && x.quad == y.quad;
    };
    return std::equal(a.begin(), a.end(), b.begin(), [&](const RowScale& x, const RowScale& y) {
        return x.scale == y.scale && x.num_outliers == y.num_outliers &&
               x.num_positive == y.num_positive &&
               std::equal(x.outliers, x.outliers + x.num_outliers, y.outliers, same_outlier);
    });
}

// As operands, a norm's rows must be what encode_rows makes of its floats.
void check_norm(const Subject& subject, NormKind kind, int64_t size) {
    constexpr int64_t count = 7;
    Random random{uint32_t(size)};
    const Floats rows = random.normal(count * size), weight = random.normal(size);
    const Floats bias = kind == NormKind::layer ? random.normal(size) : Floats(size_t(size));
    const std::string name = std::string(kind == NormKind::rms ? "RMSNorm" : "LayerNorm") + " of " +
                             std::to_string(size);
    Floats floats(size_t(count * size));
    std::vector<RowScale> scales(count), encoded_scales(count);
    NormRows request = {kind,
                        1e-5f,
                        count,
                        size,
                        1,
                        rows.data(),
                        size,
                        weight.data(),
                        kind == NormKind::layer ? bias.data() : nullptr,
                        0,
                        DType::f32,
                        floats.data(),
                        size,
                        scales.data()};
    taco_norm_rows(subject.pool, &request);
    Doubles want;
    for (int64_t row = 0; row < count; ++row) {
        const Doubles values = norm(kind, rows.data() + row * size, size, weight, bias);
        want.insert(want.end(), values.begin(), values.end());
    }
    subject.report.close(subject.name(name), floats, want, 2e-6);

    for (const DType type : {DType::bf16, DType::i8}) {
        const int64_t bytes = operand_memory(subject.pool, type, count, size);
        Bytes got(bytes), encoded(bytes);
        request.type = type;
        request.out = got.data();
        request.out_stride = padded_k(type, size);
        taco_norm_rows(subject.pool, &request);
        taco_encode_rows(subject.pool, int32_t(type), count, size, floats.data(), size,
                         encoded.data(), encoded_scales.data(), nullptr);
        const bool same = std::memcmp(got.data(), encoded.data(), size_t(bytes)) == 0 &&
                          (type != DType::i8 || same_scales(scales, encoded_scales));
        subject.report.check(subject.name(name + " as operands of " + name_of(type)), same);
    }
}

}  // namespace

void check_products(const Subject& subject) {
    for (const DType type : types) {
        for (const Shape& shape : shapes) ProductCheck(subject, type, shape, false).run();
        for (const Shape& shape : {Shape{3, 72, 40}, Shape{40, 128, 96}}) {
            ProductCheck(subject, type, shape, true).run();
        }
        if (type != DType::i8) SegmentCheck(subject, type).run();
    }
}

void check_norms(const Subject& subject) {
    for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
        for (const int64_t size : {5, 64, 200}) check_norm(subject, kind, size);
    }
}
