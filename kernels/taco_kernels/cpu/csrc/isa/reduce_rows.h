// Reduces sixteen rows one by one, for sets whose shuffles gain nothing from doing it together.
// vec_avx2.h and vec_emulated.h include this.
#pragma once

namespace TACO_ISA {

// Lane r is row r reduced.
inline F32 reduce_add(const F32 (&rows)[LANES]) {
    float sums[LANES];
    for (int r = 0; r < LANES; ++r) sums[r] = reduce_add(rows[r]);
    return load(sums);
}
inline F32 reduce_max(const F32 (&rows)[LANES]) {
    float greatest[LANES];
    for (int r = 0; r < LANES; ++r) greatest[r] = reduce_max(rows[r]);
    return load(greatest);
}

}  // namespace TACO_ISA
