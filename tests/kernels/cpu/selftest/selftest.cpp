// Compares each kernel of the C ABI with plain C++, with every instruction set of this machine.
//
// For machines and emulators without Python: one program and libtaco_kernels.so. Arguments are
// names of parts (kParts); without any, all are run. Prints one line a check and then 'N passed, N
// failed'.

#include "selftest.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

void Report::check(const std::string& name, bool passed, const std::string& detail) {
    ++(passed ? num_passed_ : num_failed_);
    std::printf("%s %s%s%s\n", passed ? "ok    " : "FAILED", name.c_str(),
                detail.empty() ? "" : ": ", detail.c_str());
    std::fflush(stdout);
}

void Report::close(const std::string& name, const Floats& got, const Doubles& want,
                   double tolerance) {
    double worst = 0;
    size_t where = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        const double error = std::fabs(got[i] - want[i]) / (1 + std::fabs(want[i]));
        if (error <= worst) continue;
        worst = std::isnan(error) ? INFINITY : error;
        where = i;
    }
    char detail[128];
    std::snprintf(detail, sizeof detail, "error %.2g of %.2g at %zu: %.7g, not %.7g", worst,
                  tolerance, where, double(got[where]), want[where]);
    check(name, worst <= tolerance && got.size() == want.size(), detail);
}

void Report::same(const std::string& name, const Floats& got, const Floats& want) {
    const bool equal = got.size() == want.size() &&
                       std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0;
    check(name, equal);
}

int Report::finish() const {
    std::printf("%d passed, %d failed\n", num_passed_, num_failed_);
    return num_failed_ == 0 && num_passed_ > 0 ? 0 : 1;
}

Floats Random::normal(int64_t count, bool as_bf16) {
    std::normal_distribution<float> distribution;
    Floats out(size_t(count), 0.0f);
    for (float& x : out) {
        x = distribution(engine_);
        if (as_bf16) x = from_bf16(to_bf16(x));
    }
    return out;
}

struct Part {
    const char* name;
    void (*run)(const Subject&);
};

const Part kParts[] = {
    {"functions", check_functions}, {"rotary", check_rotary},
    {"norms", check_norms},         {"products", check_products},
    {"codes", check_codes},         {"head_products", check_head_products},
    {"experts", check_experts},     {"attention", check_attention},
    {"program", check_program},     {"sampling", check_sampling},
};

// Whether a part is among the arguments; without any, all are.
bool is_wanted(const char* name, const char* const* begin, const char* const* end) {
    return begin == end || std::any_of(begin, end, [=](const char* argument) {
               return std::strcmp(argument, name) == 0;
           });
}

int main(int argc, char** argv) {
    Report report;
    for (int32_t index = 0; const char* isa = taco_isa_name(index); ++index) {
        if (const char* lacking = taco_isa_missing_feature(index)) {
            std::printf("-- %s: this machine lacks %s\n", isa, lacking);
            continue;
        }
        const Subject subject{isa, taco_pool_create(3, nullptr, index),
                              taco_pool_create(1, nullptr, index), report};
        for (const Part& part : kParts) {
            if (is_wanted(part.name, argv + 1, argv + argc)) part.run(subject);
        }
        taco_pool_destroy(subject.pool);
        taco_pool_destroy(subject.single);
    }
    return report.finish();
}
