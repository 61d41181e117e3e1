// Products with matrices of codes: of int8 and of bf16 activations.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "packed.h"

namespace {

struct Case {
    const char* name;
    DType operands;
    CodeKind kind;
    GroupOffset offset;
    int32_t zero;  // of all codes
    int64_t group;
    bool is_ordered;  // the groups of columns are in another order
};

const Case cases[] = {
    {"4 bits with zeros", DType::i8, CodeKind::nibble, GroupOffset::zero, 0, 64, false},
    {"4 bits with one zero", DType::i8, CodeKind::nibble, GroupOffset::none, 8, 128, false},
    {"4 bits in an order", DType::i8, CodeKind::nibble, GroupOffset::zero, 0, 64, true},
    {"8 bits", DType::i8, CodeKind::int8, GroupOffset::none, 0, 128, false},
    {"4 bits with zeros", DType::bf16, CodeKind::nibble, GroupOffset::zero, 0, 32, false},
    {"4 bits with minima", DType::bf16, CodeKind::nibble, GroupOffset::minimum, 0, 32, false},
    {"8 bits", DType::bf16, CodeKind::int8, GroupOffset::none, 0, 64, false},
    {"8-bit floats", DType::bf16, CodeKind::e4m3, GroupOffset::none, 0, 128, false},
};

struct Shape {
    int64_t count, n, k;
};

// One row; odd ends of n and k; on tiles several parts of k, and more than one block of rows.
const Shape shapes[] = {{1, 33, 200}, {20, 64, 1100}, {290, 20, 140}};

float number_of(CodeKind kind, uint8_t code) {
    if (kind == CodeKind::int8) return float(int8_t(code));
    if (kind == CodeKind::nibble) return code;
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float size =
        exponent ? std::ldexp(float(8 + mantissa), exponent - 10) : std::ldexp(float(mantissa), -9);
    return code & 0x80 ? -size : size;
}

// A matrix of random codes, and its numbers.
class Codes {
public:
    Codes(TacoPool* pool, Random& random, const Case& wanted, int64_t n, int64_t k)
        : columns_(size_t(padded_k(DType::i8, k)), int32_t(k)),
          places_(size_t(k)),
          data_(0),
          k_(k) {
        const int64_t groups = ceil_div(k, wanted.group);
        std::iota(columns_.begin(), columns_.begin() + k, 0);
        if (wanted.is_ordered) {
            for (int64_t i = k - 1; i > 0; --i) {
                std::swap(columns_[size_t(i)], columns_[size_t(random.uniform() * double(i + 1))]);
            }
        }
        for (int64_t i = 0; i < k; ++i) places_[size_t(columns_[size_t(i)])] = int32_t(i);
        std::vector<uint8_t> codes;
        for (int64_t i = 0; i < n * k; ++i) {
            uint8_t code = uint8_t(random.uniform() * 256);
            if (wanted.kind == CodeKind::nibble) code &= 15;
            if (wanted.kind == CodeKind::e4m3 && (code & 0x7f) == 0x7f) code = 0;  // no number
            codes.push_back(code);
        }
        const float unit = wanted.kind == CodeKind::nibble ? 0x1p-4f : 0x1p-8f;
        Floats scales, minima;
        std::vector<bf16> zeros;
        for (int64_t i = 0; i < n * groups; ++i) {
            scales.push_back(float(1 + random.uniform()) * unit);
            minima.push_back(float(random.uniform()));
            zeros.push_back(to_bf16(std::floor(float(random.uniform() * 17))));
        }
        for (int64_t i = 0; i < n * k; ++i) {
            const size_t at = size_t(i / k * groups + places_[size_t(i % k)] / wanted.group);
            float value = number_of(wanted.kind, codes[size_t(i)]) - float(wanted.zero);
            if (wanted.offset == GroupOffset::zero) value -= from_bf16(zeros[at]);
            value *= scales[at];
            if (wanted.offset == GroupOffset::minimum) value -= minima[at];
            const bool is_rounded = wanted.operands == DType::bf16;
            values_.push_back(is_rounded ? from_bf16(to_bf16(value)) : value);
        }
        for (int i = 0; i < 16; ++i) table_.push_back(float(i - wanted.zero));

        part_ = {};
        part_.kind = wanted.kind;
        part_.offset = wanted.offset;
        part_.zero = wanted.zero;
        part_.panel_step = 1;
        part_.num_panels = ceil_div(n, PANEL);
        part_.k = k;
        part_.chunk = std::min(wanted.group, k);
        part_.num_groups = 1;
        part_.panel_bytes = groups * part_.header_bytes() + ceil_div(k, part_.block_columns()) * 64;
        part_.table = table_.data();
        data_ = Bytes(part_.num_panels * part_.panel_bytes);
        part_.data = static_cast<const char*>(data_.data());
        matrix_ = {wanted.operands, n, k, nullptr, nullptr, nullptr, nullptr};
        matrix_.parts = &part_;
        matrix_.num_parts = 1;
        if (wanted.is_ordered) matrix_.order = {columns_.data(), places_.data()};

        CodePacking packing{};
        packing.part = part_;
        packing.operands = wanted.operands;
        packing.count = n;
        packing.codes = codes.data();
        packing.stride = k;
        packing.columns = matrix_.order.columns;
        packing.scales = scales.data();
        packing.offsets = wanted.offset == GroupOffset::zero ? zeros.data()
                          : wanted.offset == GroupOffset::minimum
                              ? static_cast<void*>(minima.data())
                              : nullptr;
        taco_pack_codes(pool, &packing, nullptr);
    }
    Codes(const Codes&) = delete;
    Codes& operator=(const Codes&) = delete;

    const Matrix& matrix() const { return matrix_; }

    Doubles product(const Doubles& row) const {
        Doubles out;
        for (auto weights = values_.begin(); weights != values_.end(); weights += k_) {
            out.push_back(std::inner_product(row.begin(), row.end(), weights, 0.0));
        }
        return out;
    }

private:
    std::vector<int32_t> columns_, places_;
    Doubles values_;  // [n, k]
    Floats table_;
    Bytes data_;
    int64_t k_;
    CodePart part_;
    Matrix matrix_;
};

class CodeCheck {
public:
    CodeCheck(const Subject& subject, const Case& wanted, const Shape& shape)
        : subject_(subject),
          shape_(shape),
          type_(wanted.operands),
          random_(uint32_t(shape.k)),
          codes_(subject.pool, random_, wanted, shape.n, shape.k),
          x_(random_.normal(shape.count * shape.k, wanted.operands == DType::bf16)) {
        x_[size_t(shape.k / 2)] = 96;  // an outlier of int8 rows
        name_ = std::string(wanted.name) + " x " + name_of(type_) + ", " +
                std::to_string(shape.count) + " x " + std::to_string(shape.n) + " x " +
                std::to_string(shape.k);
    }

    void run() {
        Doubles want;
        for (int64_t row = 0; row < shape_.count; ++row) {
            const Doubles one =
                codes_.product(as_operands(type_, x_.data() + row * shape_.k, shape_.k));
            want.insert(want.end(), one.begin(), one.end());
        }
        const Floats got = multiply(subject_.pool, 0, shape_.count);
        const double tolerance = 1e-7 * std::max(500.0, double(shape_.k));
        subject_.report.close(subject_.name(name_), got, want, tolerance);
        subject_.report.same(subject_.name(name_ + ", threads change no bit"),
                             multiply(subject_.single, 0, shape_.count), got);
        subject_.report.same(subject_.name(name_ + ", other rows change no bit"),
                             multiply(subject_.pool, shape_.count - 1, 1),
                             Floats(got.end() - shape_.n, got.end()));
    }

private:
    Floats multiply(TacoPool* pool, int64_t first, int64_t count) {
        Bytes operands(operand_memory(pool, type_, count, shape_.k));
        std::vector<RowScale> scales(size_t(count), RowScale{});
        taco_encode_rows(pool, int32_t(type_), count, shape_.k, x_.data() + first * shape_.k,
                         shape_.k, operands.data(), scales.data(), &codes_.matrix().order);
        Floats out(size_t(count * shape_.n));
        const Rows rows = {count, operands.data(), padded_k(type_, shape_.k), scales.data()};
        const Product product = {
            rows, codes_.matrix(), Epilogue::store, Activation::none, out.data(), shape_.n, false};
        taco_multiply(pool, &product, 1);
        return out;
    }

    const Subject& subject_;
    const Shape& shape_;
    const DType type_;
    Random random_;
    Codes codes_;
    Floats x_;
    std::string name_;
};

}  // namespace

void check_codes(const Subject& subject) {
    for (const Case& wanted : cases) {
        for (const Shape& shape : shapes) CodeCheck(subject, wanted, shape).run();
    }
}
