// Rows of a table by their numbers, in and out:
// what moves the part of a large table that is in use.
//
//   gather_rows(table, indices, staged);        // weight or state of an optimizer, to work on
//   scatter_rows(table, indices, staged);       // and back
//
// They record no gradient (embedding does) and write in place. Work follows the rows named, not the
// table. Rows may lie apart; where their elements do, too, it goes column by column, and slowly.
#pragma once
#include "quern/tensor/random.h"
#include "quern/tensor/tensor.h"

namespace quern {

// table    [V, D]
// indices  i64 [n], each in 0..V-1
// out, rows  [n, D], of the table's dtype
// The same bits for any number of threads. Errors, before anything is written: other shapes or
// dtypes, an index outside of the table, memory that operands share, or what is written to itself.

/// out[i, :] = table[indices[i], :]
void gather_rows(const Tensor& table, const Tensor& indices, const Tensor& out);
/// table[indices[i], :] = rows[i, :]; of several rows for one index the last one stays.
void scatter_rows(const Tensor& table, const Tensor& indices, const Tensor& rows);
/// scatter_rows() of f32 rows into a bf16 or f16 table, each element rounded to one of the two
/// numbers beside it by chance, so that it is right on average: steps of training that are smaller
/// than half of the table's spacing do not vanish. Element i of `rows` takes the upper bits of word
/// i%4 of philox({i/4, stream}, seed): 16 for bf16, 13 for f16, all for its subnormal numbers. NaN
/// stays; the number beside f16's largest is infinity, in the place of 65536.
/// Errors: those of scatter_rows(); other dtypes.
void scatter_rows_by_chance(const Tensor& table, const Tensor& indices, const Tensor& rows,
                            Generator& generator = default_generator());
/// table[indices[i], :] += rows[i, :], one after the other; bf16 and f16 sum in f32 and round once
/// a call. Floating dtypes only.
void scatter_add_rows(const Tensor& table, const Tensor& indices, const Tensor& rows);

}  // namespace quern
