// What the checks of the self-test share: a report, random numbers, memory.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "abi/cpu_abi.h"
#include "runtime/types.h"

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// Prints one line a check.
class Report {
public:
    void check(const std::string& name, bool passed, const std::string& detail = "");
    // |got - want| <= tolerance * (1 + |want|) for each, and never a NaN.
    void close(const std::string& name, const Floats& got, const Doubles& want, double tolerance);
    // Bit for bit.
    void same(const std::string& name, const Floats& got, const Floats& want);

    // The plain closing line; returns the program's exit code.
    int finish() const;

private:
    int num_passed_ = 0, num_failed_ = 0;
};

// One instruction set under test, with two pools: what one thread gives, several must give too.
struct Subject {
    std::string isa;
    TacoPool* pool;
    TacoPool* single;
    Report& report;

    std::string name(const std::string& what) const { return isa + ": " + what; }
};

class Random {
public:
    explicit Random(uint32_t seed) : engine_(seed) {}

    // Normal numbers; with `as_bf16`, those that bf16 holds exactly.
    Floats normal(int64_t count, bool as_bf16 = false);
    double uniform() { return std::uniform_real_distribution<double>()(engine_); }

private:
    std::mt19937 engine_;
};

// Memory aligned to a cache line.
class Bytes {
public:
    explicit Bytes(int64_t size) : memory_(size_t(size) + 64) {}
    void* data() {
        const auto address = reinterpret_cast<uintptr_t>(memory_.data());
        return memory_.data() + (64 - address % 64) % 64;
    }

private:
    std::vector<char> memory_;
};

void check_functions(const Subject& subject);
void check_rotary(const Subject& subject);
void check_norms(const Subject& subject);
void check_products(const Subject& subject);
void check_codes(const Subject& subject);
void check_head_products(const Subject& subject);
void check_experts(const Subject& subject);
void check_attention(const Subject& subject);
void check_program(const Subject& subject);
void check_sampling(const Subject& subject);
