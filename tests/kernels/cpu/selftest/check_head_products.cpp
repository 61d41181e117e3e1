// Separate products of the heads of some rows.

#include <algorithm>

#include "packed.h"

namespace {

constexpr float BEFORE = 0.25f;

struct Shape {
    int64_t count, num_heads, n, k;
};

// One row; odd ends of n and k; more than one block of rows and of panels.
const Shape shapes[] = {{1, 3, 16, 32}, {5, 2, 33, 70}, {17, 3, 24, 130}, {100, 2, 160, 40}};

class HeadProductCheck {
public:
    HeadProductCheck(const Subject& subject, DType type, const Shape& shape)
        : subject_(subject),
          type_(type),
          shape_(shape),
          random_(uint32_t(shape.k)),
          packed_(subject.pool, random_, type, shape.num_heads * padded_n(), shape.k, false),
          x_(random_.normal(shape.count * x_stride(), type == DType::bf16)) {
        name_ = std::string(name_of(type)) + " heads " + std::to_string(shape.count) + " x " +
                std::to_string(shape.num_heads) + " x " + std::to_string(shape.n) + " x " +
                std::to_string(shape.k);
    }

    void run() {
        const Floats out = multiply(subject_.pool, 0, shape_.count);
        // Operands are exact; what is left is the float sums' rounding.
        subject_.report.close(subject_.name(name_), out, expected(), 5e-5);
        subject_.report.same(subject_.name(name_ + ", threads change no bit"),
                             multiply(subject_.single, 0, shape_.count), out);
        subject_.report.same(subject_.name(name_ + ", other rows change no bit"),
                             multiply(subject_.pool, shape_.count - 1, 1),
                             Floats(out.end() - out_stride(), out.end()));
    }

private:
    // Each head's matrix begins with a whole panel.
    int64_t padded_n() const { return ceil_div(shape_.n, PANEL) * PANEL; }
    // Columns that are no head's lie between the heads and after the last one.
    int64_t x_head_stride() const { return shape_.k + 3; }
    int64_t x_stride() const { return shape_.num_heads * x_head_stride() + 2; }
    int64_t out_head_stride() const { return shape_.n + 5; }
    int64_t out_stride() const { return shape_.num_heads * out_head_stride(); }

    Floats multiply(TacoPool* pool, int64_t first, int64_t count) {
        const int64_t groups = shape_.num_heads * count;
        Bytes operands(shape_.num_heads * operand_memory(pool, type_, count, shape_.k));
        std::vector<RowScale> scales(static_cast<size_t>(groups));
        Floats out(size_t(count * out_stride()), BEFORE);
        HeadProduct product = {};
        product.num_heads = shape_.num_heads;
        product.count = count;
        product.x = x_.data() + first * x_stride();
        product.x_stride = x_stride();
        product.x_head_stride = x_head_stride();
        product.matrix = packed_.matrix();
        product.matrix.n = shape_.n;
        product.operands = type_ == DType::f32 ? nullptr : operands.data();
        product.scales = type_ == DType::i8 ? scales.data() : nullptr;
        product.out = out.data();
        product.out_stride = out_stride();
        product.out_head_stride = out_head_stride();
        taco_multiply_heads(pool, &product);
        return out;
    }

    Doubles expected() const {
        Doubles out(size_t(shape_.count * out_stride()), double(BEFORE));
        for (int64_t row = 0; row < shape_.count; ++row) {
            for (int64_t head = 0; head < shape_.num_heads; ++head) {
                const float* x = x_.data() + row * x_stride() + head * x_head_stride();
                const Doubles all = packed_.product(as_operands(type_, x, shape_.k));
                std::copy_n(all.begin() + head * padded_n(), shape_.n,
                            out.begin() + row * out_stride() + head * out_head_stride());
            }
        }
        return out;
    }

    const Subject& subject_;
    const DType type_;
    const Shape shape_;
    Random random_;
    const Packed packed_;
    const Floats x_;
    std::string name_;
};

}  // namespace

void check_head_products(const Subject& subject) {
    for (const DType type : {DType::f32, DType::bf16, DType::i8}) {
        for (const Shape& shape : shapes) HeadProductCheck(subject, type, shape).run();
    }
}
